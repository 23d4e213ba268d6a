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

/// What the driver reads when it starts, unless the user has said otherwise.
///
/// Kernels are loaded at once: one that is loaded at its first launch may wait for the device, where a kernel of NCCL waits for a peer. And streams that
/// must not wait for each other need queues of their own.
fn set_environment() {
    for (name, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
        if std::env::var_os(name).is_none() {
            // SAFETY: no other thread has been started yet.
            unsafe { std::env::set_var(name, value) };
        }
    }
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::exit(failure::of_arguments(&error)),
    };
    set_environment();
    failure::exit(match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Worker(args) => worker::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Selftest(args) => selftest::run(&args),
    })
}
