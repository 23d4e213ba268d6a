//! `cpp-sim`: the command line of the mock executors.

use std::path::Path;
use std::process::ExitCode;

mod commands {
    pub(crate) mod scenario;
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["scenario", file] => commands::scenario::run(Path::new(file), None),
        ["scenario", file, "--log", log] => commands::scenario::run(Path::new(file), Some(Path::new(log))),
        _ => Err(commands::scenario::Failure { code: 2, message: "usage: cpp-sim scenario FILE [--log OUT]".to_owned() }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
