//! Runs a study of deadlines and prints its table.
//!
//! `cargo run --release -p cpp-exec-mock --example study -- FILE [--report | --seeds 1,2] [--only "NAME; .."] [--load X] [--seconds X] [--knee | --sustained]`
//!
//! Without `--report` the seeds that options may be chosen by, with it the others. Medians over seeds, with the least and the largest. `--only` takes
//! exact names. `--load` and `--seconds` hold for each phase. `--knee` finds the heaviest load of which at most 1 % of the requests miss a target,
//! `--sustained` the heaviest that leaves no queue behind as well.

mod tables;
mod variants;

use std::process::ExitCode;

use cpp_exec_mock::study::{Job, Knee, Study, StudyError};
use cpp_sched::Chunking;

/// What is asked for.
#[derive(Default)]
struct Options {
    file: Option<String>,
    report: bool,
    seeds: Vec<u64>,
    only: Vec<String>,
    load: Option<f64>,
    seconds: Option<f64>,
    knee: Option<Knee>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, StudyError> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| StudyError::Value(format!("{argument} wants a value")));
            let number = |text: String| text.parse::<f64>().map_err(|_| StudyError::Value(format!("{text} is no number")));
            match argument.as_str() {
                "--report" => options.report = true,
                "--knee" => options.knee = Some(Knee::Misses),
                "--sustained" => options.knee = Some(Knee::Sustained),
                "--only" => options.only = value()?.split(';').map(|name| name.trim().to_owned()).collect(),
                "--load" => options.load = Some(number(value()?)?),
                "--seconds" => options.seconds = Some(number(value()?)?),
                "--seeds" => {
                    let seed = |text: &str| text.parse().map_err(|_| StudyError::Value(format!("{text} is no seed")));
                    options.seeds = value()?.split(',').map(seed).collect::<Result<_, _>>()?;
                }
                other if other.starts_with("--") => return Err(StudyError::Value(format!("{other} is no option"))),
                _ => options.file = Some(argument),
            }
        }
        Ok(options)
    }
}

fn run() -> Result<(), StudyError> {
    let options = Options::parse(std::env::args().skip(1))?;
    let file = options.file.as_ref();
    let file =
        file.ok_or_else(|| StudyError::Value("which study? give a file, such as cpp-exec-mock/studies/medha-mix.toml".to_owned()))?;
    let mut study = Study::load(file)?;
    for phase in &mut study.phases {
        phase.load = options.load.unwrap_or(phase.load);
        phase.seconds = options.seconds.unwrap_or(phase.seconds);
    }
    let (machine, base) = study.machine()?;
    let mut fcfs = base;
    fcfs.chunking = Chunking::Adaptive;
    let rate = study.capacity(fcfs)?;
    let seeds = if options.report { &study.report_seeds } else { &study.seeds };
    let seeds = if options.seeds.is_empty() { seeds } else { &options.seeds };
    println!("{}: capacity {rate:.2} requests/s, seeds {seeds:?}", study.name);
    let mut variants = variants::variants(base, study.classes.iter().any(|class| class.tpot_s.is_some()));
    variants.retain(|variant| options.only.is_empty() || options.only.contains(&variant.name));
    if let Some(kind) = options.knee {
        return tables::knees(&study, rate, seeds, &variants, kind);
    }
    let draws = seeds.iter().map(|&seed| study.draw(seed, rate)).collect::<Result<Vec<Vec<Job>>, _>>()?;
    tables::oracle(&draws);
    let alone = tables::alone(&study, &machine, base, &draws)?;
    for variant in &variants {
        tables::table(&study, &machine, &draws, variant, &alone)?;
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
