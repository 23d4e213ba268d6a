//! How well the time to the first token is predicted at admission, on a trace at a part of the machine's capacity.
//!
//! `cargo run --release -p cpp-exec-mock --example prediction -- TRACE [--load 0.7] [--limit N]`
//!
//! Profile llama-70b-h100-tp8, 4 stages, first come first served, output lengths unknown to the scheduler. The capacity is measured: all requests at
//! once. Arrivals are the trace's, stretched to the load.

use std::process::ExitCode;

use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::Machine;
use cpp_exec_mock::study::{Job, StudyError, jobs_of, play, play_predicting};
use cpp_exec_mock::workload::{LoadOptions, Workload};
use cpp_sched::{Balance, Chunking};

fn run() -> Result<(), StudyError> {
    let mut arguments = std::env::args().skip(1);
    let (mut file, mut load, mut limit) = (None, 0.7f64, 5000usize);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_default();
        match argument.as_str() {
            "--load" => load = value().parse().map_err(|_| StudyError::Value("--load wants a number".to_owned()))?,
            "--limit" => limit = value().parse().map_err(|_| StudyError::Value("--limit wants a number".to_owned()))?,
            _ => file = Some(argument),
        }
    }
    let file = file.ok_or_else(|| StudyError::Value("which trace? give a file".to_owned()))?;
    let options = LoadOptions { limit: Some(limit), ..LoadOptions::default() };
    let workload = Workload::load(&file, &options).map_err(|error| StudyError::Value(error.to_string()))?;
    let stages = 4;
    let profile = Profile::find("llama-70b-h100-tp8")?;
    let (machine, base) = (Machine::new(&profile, stages)?, profile.config(stages)?);
    let jobs = jobs_of(&workload);
    let mut adaptive = base;
    adaptive.chunking = Chunking::Adaptive;
    adaptive.balance = Balance::Cost;
    let mut fixed = base;
    fixed.max_batch_tokens = 2048;
    for (name, config) in [("fixed 2048", fixed), ("fixed 8192", base), ("adaptive", adaptive)] {
        let at_once: Vec<Job> = jobs.iter().map(|job| Job { arrival_ns: 0, ..*job }).collect();
        let span = play(&at_once, &machine, config)?.iter().map(|fate| fate.last_token_ns).max().unwrap_or(1);
        let trace_span = jobs.last().map_or(1, |job| job.arrival_ns).max(1);
        let factor = span as f64 / load / trace_span as f64;
        let timed: Vec<Job> = jobs.iter().map(|job| Job { arrival_ns: (job.arrival_ns as f64 * factor) as u64, ..*job }).collect();
        let fates = play_predicting(&timed, &machine, config)?;
        let mut errors: Vec<f64> = timed
            .iter()
            .zip(&fates)
            .filter_map(|(job, fate)| Some(fate.predicted_ttft_ns as f64 / (fate.first_token_ns? - job.arrival_ns) as f64 - 1.0))
            .collect();
        errors.sort_unstable_by(|a, b| a.abs().total_cmp(&b.abs()));
        let at = |part: f64| errors[((errors.len() - 1) as f64 * part) as usize].abs() * 100.0;
        let bias = errors.iter().sum::<f64>() / errors.len() as f64 * 100.0;
        println!(
            "{name}: {} requests at {:.0} % load: error of the predicted TTFT: median {:.1} %, p90 {:.1} %, p99 {:.1} %, mean (signed) {bias:+.1} %",
            errors.len(),
            load * 100.0,
            at(0.5),
            at(0.9),
            at(0.99)
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
