//! Hunts for faults with random scenarios: `cargo run --release -p cpp-sched-tests --example mixed -- --seeds 0..1000`.
//!
//! Prints every seed whose run the oracle finds fault with, and writes its scenario, made small, into the folder given by `--out` (default
//! `target/mixed`). `--keep` writes every scenario, for `check.py`; `--seconds N` stops after so long. Exit 1 if a seed fails.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cpp_sched_tests::generate::scenario;
use cpp_sched_tests::play::problems;
use cpp_sched_tests::shrink::{pretty, shrink};

struct Options {
    seeds: std::ops::Range<u64>,
    out: PathBuf,
    keep: bool,
    small: bool,
    time: Duration,
}

fn options() -> Option<Options> {
    let mut options = Options { seeds: 0..1000, out: "target/mixed".into(), keep: false, small: true, time: Duration::MAX };
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
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: mixed [--seeds A..B] [--out DIR] [--seconds N] [--keep] [--whole]");
        return ExitCode::from(2);
    };
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
