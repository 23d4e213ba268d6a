//! How this command ends; see [`cpp_exec_mock::command`].

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory;
pub(crate) use cpp_exec_mock::command::{Failure, print};
use cpp_exec_mock::command::{Program, subcommand};

use crate::args::Cli;

const PROGRAM: Program = Program::new("cpp-run");

pub(crate) fn note(text: &str) {
    PROGRAM.note(text);
}

pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    PROGRAM.exit(result)
}

/// What is wrong with these arguments, the first of which is the program.
pub(crate) fn of_arguments(error: &clap::Error, arguments: &[OsString]) -> Result<(), Failure> {
    let arguments = arguments.iter().skip(1).map(OsString::as_os_str);
    PROGRAM.of_arguments(error, subcommand(&Cli::command(), arguments).as_deref())
}
