//! `cpp-sim sweep`: many runs over a grid or a list of options, in parallel; what is done already is not done again.

mod knee;
mod points;
mod store;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use cpp_exec_mock::sim::Extras;

use self::knee::{Found, Knee, Value};
use self::points::Point;
use self::store::{Row, Store};
use crate::args::RunArgs;
use crate::commands::run;
use crate::failure::{Failure, note, print};
use crate::setup::Setup;

#[derive(Args, Debug)]
#[command(allow_negative_numbers = true)]
pub(crate) struct SweepArgs {
    /// An option of `run` and its values; several make a grid. Values that have commas themselves are separated by semicolons.
    #[arg(long, value_name = "OPTION=V,V,..")]
    vary: Vec<String>,
    /// A file with one run a line, each as options of `run`; with --vary each line goes through the grid.
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Finds the heaviest load that meets the SLO, between two values of an option, for every other point: rate=0.5..50.
    #[arg(long, value_name = "OPTION=LOW..HIGH")]
    knee: Option<String>,
    /// With --knee: the part of all requests that must meet the SLO.
    #[arg(long, value_name = "PART", default_value_t = 0.9, value_parser = part)]
    attain: f64,
    /// With --knee: how close to it, as a ratio above 1.
    #[arg(long, value_name = "RATIO", default_value_t = 1.02, value_parser = ratio)]
    within: f64,
    /// Where results go, a line a run. Runs that are in it are not done again.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Runs at once.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Options of `run` that all runs have, behind `--`.
    #[arg(last = true, value_name = "OPTIONS OF run")]
    all: Vec<String>,
}

fn part(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|part| *part > 0.0 && *part <= 1.0).ok_or_else(|| "must be above 0 and at most 1".to_owned())
}

fn ratio(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ratio| *ratio > 1.0 && *ratio <= 1000.0).ok_or_else(|| "must be above 1".to_owned())
}

/// Runs all points, and shows them in one table.
pub(crate) fn run(args: &SweepArgs) -> Result<(), Failure> {
    if args.vary.is_empty() && args.list.is_none() && args.knee.is_none() {
        let what = "give --vary OPTION=V,V,.., --list FILE or --knee OPTION=LOW..HIGH; one run alone is `cpp-sim run`";
        return Err(Failure::Usage(format!("sweep has nothing to vary: {what}")));
    }
    let points = points::points(&args.all, args.list.as_deref(), &args.vary)?;
    let knee = args.knee.as_deref().map(|text| Knee::parse(text, args.attain, args.within)).transpose()?;
    // Every point is understood before the first one runs.
    for point in &points {
        let point = match &knee {
            Some(knee) => point.with(&knee.option, &knee.low.to_string()),
            None => point.clone(),
        };
        let run = point.parse()?;
        if knee.is_some() && run.shared.system.slo_ttft.is_none() && run.shared.system.slo_tpot.is_none() {
            return Err(Failure::Usage("--knee needs --slo-ttft or --slo-tpot among the options of run".to_owned()));
        }
    }
    let store = Store::open(args.csv.as_deref())?;
    let sweep = Sweep { store: Mutex::new(store), knee };
    let answers = sweep.all(&points, usize::from(args.jobs));
    let mut lines = Vec::new();
    let mut failures = Vec::new();
    for (point, answer) in points.iter().zip(answers) {
        match answer {
            Ok((row, value)) => lines.push((point.name(), row, value)),
            Err(Failure::Usage(text)) => failures.push(Failure::Usage(format!("{}: {text}", point.name()))),
            Err(Failure::Failed(text)) => failures.push(Failure::Failed(format!("{}: {text}", point.name()))),
            Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
        }
    }
    if !lines.is_empty() {
        print(&store::table(&lines, sweep.knee.as_ref()))?;
    }
    for failure in failures.iter().skip(1) {
        if let Failure::Usage(text) | Failure::Failed(text) = failure {
            note(text);
        }
    }
    // Bad options of one point are bad options of the sweep; but that a run failed says more.
    let first = failures.iter().position(|failure| matches!(failure, Failure::Failed(_))).unwrap_or(0);
    failures.into_iter().nth(first).map_or(Ok(()), Err)
}

/// The result of a point; with --knee that of the run there, and where it is.
type Answer = Result<(Row, Option<Value>), Failure>;

struct Sweep {
    store: Mutex<Store>,
    knee: Option<Knee>,
}

impl Sweep {
    /// The answers for all points, in their order, `jobs` at a time.
    fn all(&self, points: &[Point], jobs: usize) -> Vec<Answer> {
        let next = AtomicUsize::new(0);
        let answers: Mutex<Vec<Option<Answer>>> = Mutex::new(points.iter().map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..jobs.min(points.len()) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(point) = points.get(at) else { break };
                        let answer = match &self.knee {
                            None => self.one(point).map(|row| (row, None)),
                            Some(knee) => {
                                let found = knee.find(|value| self.one(&point.with(&knee.option, &value.to_string())));
                                found.map(|Found { row, value }| (row, Some(value)))
                            }
                        };
                        if let Ok(mut answers) = answers.lock() {
                            answers[at] = Some(answer);
                        }
                    }
                });
            }
        });
        let answers = answers.into_inner().unwrap_or_default();
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(Failure::Failed("the run ended early".to_owned())))).collect()
    }

    /// The result of one run, from the file if it is there.
    fn one(&self, point: &Point) -> Result<Row, Failure> {
        let broken = || Failure::Failed("a run before this one ended early".to_owned());
        let command = point.command();
        if let Some(row) = self.store.lock().map_err(|_| broken())?.get(&command) {
            return Ok(row);
        }
        let args: RunArgs = point.parse()?;
        let setup = Setup::new(&args.shared)?;
        let (config, machine) = setup.system(args.mode, &args.shared)?;
        let report = run::report_of(&setup, args.mode, &args.shared, config, &machine, Extras::default(), false)?;
        let row = Row::new(command, &report);
        self.store.lock().map_err(|_| broken())?.add(&row)?;
        Ok(row)
    }
}
