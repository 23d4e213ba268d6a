//! `cpp-sim`: chunked pipeline parallelism in virtual time. See the package's README for what each command does.

mod args;
mod commands;
mod failure;
mod output;
mod setup;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return failure::exit(failure::of_arguments(&error, &arguments)),
    };
    failure::exit(match cli.command {
        None => commands::demo::run(),
        Some(Command::Run(args)) => commands::run::run(&args),
        Some(Command::Compare(args)) => commands::compare::run(&args),
        Some(Command::Granularity(args)) => commands::granularity::run(args),
        Some(Command::Pools(args)) => commands::pools::run(args),
        Some(Command::Sweep(args)) => commands::sweep::run(&args),
        Some(Command::Calibrate(args)) => commands::calibrate::run(&args),
        Some(Command::Plan(args)) => commands::plan::run(&args),
        Some(Command::Bench(args)) => commands::bench::run(&args),
        Some(Command::Replay(args)) => commands::replay::run(&args),
        Some(Command::Scenario(args)) => commands::scenario::run(&args.file, args.log.as_deref()).map_err(Failure::from),
    })
}
