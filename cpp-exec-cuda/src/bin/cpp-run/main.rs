//! `cpp-run`: real models over pipeline stages. See the package's README.

mod args;
mod device;
mod doctor;
mod failure;
mod generate;
mod load;
mod processes;
mod selftest;
#[cfg(all(feature = "cuda", unix))]
mod selftest_processes;
mod summary;
mod worker;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return failure::exit(failure::of_arguments(&error, &arguments)),
    };
    failure::exit(match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Selftest(args) => selftest::run(&args),
    })
}
