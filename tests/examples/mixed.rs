//! Hunts for faults with random scenarios: `cargo run --release -p cpp-sched-tests --example mixed -- --seeds 0..1000`.
//!
//! Prints every seed whose run the oracle finds fault with, and writes its scenario, made small, into the folder given by `--out` (default
//! `target/mixed`). `--keep` writes every scenario, for `check.py`; `--whole` does not make them small; `--seconds N` stops after so long;
//! `--judge FILE` judges one scenario instead. Exit 1 if a seed fails.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cpp_sched_tests::generate::scenario;
use cpp_sched_tests::play::{log_of, problems};
use cpp_sched_tests::shrink::{pretty, shrink};

struct Options {
    seeds: std::ops::Range<u64>,
    out: PathBuf,
    keep: bool,
    small: bool,
    judge: Option<PathBuf>,
    time: Duration,
}

fn options() -> Option<Options> {
    let mut options = Options { seeds: 0..1000, out: "target/mixed".into(), keep: false, small: true, judge: None, time: Duration::MAX };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seeds" => {
                let (from, to) = arguments.next()?.split_once("..").map(|(from, to)| (from.parse(), to.parse()))?;
                options.seeds = from.ok()?..to.ok()?;
            }
            "--out" => options.out = arguments.next()?.into(),
            "--seconds" => options.time = Duration::from_secs(arguments.next()?.parse().ok()?),
            "--keep" => options.keep = true,
            "--whole" => options.small = false,
            "--judge" => options.judge = Some(arguments.next()?.into()),
            _ => return None,
        }
    }
    Some(options)
}

/// Prints the log of one scenario file and all that is wrong with it.
fn judge(file: &std::path::Path) -> ExitCode {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("error: {}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    print!("{}", log_of(&text).unwrap_or_default());
    let found = problems(&text);
    found.iter().for_each(|problem| println!("{problem}"));
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: mixed [--seeds A..B] [--out DIR] [--seconds N] [--keep] [--whole] [--judge FILE]");
        return ExitCode::from(2);
    };
    if let Some(file) = options.judge {
        return judge(&file);
    }
    // Panics of the scheduler are reported with their seed.
    std::panic::set_hook(Box::new(|_| {}));
    let (start, mut ran, mut failed) = (Instant::now(), 0u64, 0u64);
    for seed in options.seeds {
        if start.elapsed() > options.time {
            break;
        }
        let whole = scenario(seed);
        let found = problems(&whole.to_string());
        ran += 1;
        let write = |scenario: &serde_json::Value| {
            let file = options.out.join(format!("{seed}.json"));
            std::fs::create_dir_all(&options.out).and_then(|()| std::fs::write(&file, pretty(scenario)))
        };
        if let Some(problem) = found.first() {
            failed += 1;
            println!("seed {seed}: {problem}");
        }
        let written = match (found.is_empty(), options.keep) {
            (false, _) => write(&if options.small { shrink(&whole) } else { whole }),
            (true, true) => write(&whole),
            (true, false) => Ok(()),
        };
        if let Err(error) = written {
            eprintln!("error: {}: {error}", options.out.display());
            return ExitCode::from(2);
        }
    }
    println!("{ran} scenarios in {:.1} s, {failed} failed", start.elapsed().as_secs_f64());
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
