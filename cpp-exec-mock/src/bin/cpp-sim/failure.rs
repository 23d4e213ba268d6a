//! How this command ends; see [`cpp_exec_mock::command`].

use std::process::ExitCode;

use cpp_exec_mock::command::Program;
pub(crate) use cpp_exec_mock::command::{Failure, print};

const PROGRAM: Program = Program::new("cpp-sim");

pub(crate) fn note(text: &str) {
    PROGRAM.note(text);
}

pub(crate) fn exit(result: Result<(), Failure>) -> ExitCode {
    PROGRAM.exit(result)
}

pub(crate) fn of_arguments(error: &clap::Error) -> Result<(), Failure> {
    PROGRAM.of_arguments(error)
}

impl From<crate::commands::scenario::Failure> for Failure {
    fn from(failure: crate::commands::scenario::Failure) -> Self {
        if failure.code == 2 { Self::Usage(failure.message) } else { Self::Failed(failure.message) }
    }
}
