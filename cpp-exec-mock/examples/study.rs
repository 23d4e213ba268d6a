//! Runs a study of deadlines and prints its table.
//!
//! `cargo run --release -p cpp-exec-mock --example study -- studies/medha-mix.toml [--report] [--knee] [--only NAME] [--load X] [--seconds X]`
//!
//! Without `--report` the seeds that options may be chosen by, with it the others. Medians over seeds, with the least and the largest.

use std::process::ExitCode;

use cpp_exec_mock::sim::Machine;
use cpp_exec_mock::study::{Fate, Job, Study, StudyError, Summary, clairvoyant, play};
use cpp_sched::{Balance, Chunking, Config, PolicyKind};

/// A scheduler that is compared.
struct Variant {
    name: &'static str,
    config: Config,
}

fn variants(base: Config) -> Vec<Variant> {
    let mut shaped = base;
    shaped.chunking = Chunking::Adaptive;
    shaped.balance = Balance::Cost;
    let chunks = |tokens| {
        let mut fixed = base;
        fixed.max_batch_tokens = tokens;
        fixed
    };
    let with = |name, config: Config, policy, sharing| {
        let mut config = config;
        config.policy = policy;
        config.latency.space_sharing = sharing;
        Variant { name, config }
    };
    let relegating = |name, policy, sharing| {
        let mut variant = with(name, shaped, policy, sharing);
        variant.config.relegation = true;
        variant.config.feasibility_guard = policy == PolicyKind::Lars;
        variant
    };
    let guarded = |name, sharing| {
        let mut variant = with(name, shaped, PolicyKind::Lars, sharing);
        variant.config.feasibility_guard = true;
        variant
    };
    vec![
        with("fcfs, fixed 512", chunks(512), PolicyKind::Fcfs, false),
        with("edf, fixed 512", chunks(512), PolicyKind::Edf, false),
        with("fcfs, fixed 1024", chunks(1024), PolicyKind::Fcfs, false),
        with("edf, fixed 1024", chunks(1024), PolicyKind::Edf, false),
        with("fcfs, fixed 2048", chunks(2048), PolicyKind::Fcfs, false),
        with("edf, fixed 2048", chunks(2048), PolicyKind::Edf, false),
        with("fcfs", shaped, PolicyKind::Fcfs, false),
        with("srpf", shaped, PolicyKind::Srpf, false),
        with("edf", shaped, PolicyKind::Edf, false),
        with("edf, sharing", shaped, PolicyKind::Edf, true),
        with("lars", shaped, PolicyKind::Lars, false),
        with("lars, sharing", shaped, PolicyKind::Lars, true),
        guarded("lars+guard", false),
        with("hybrid", shaped, PolicyKind::Hybrid, false),
        with("hybrid, sharing", shaped, PolicyKind::Hybrid, true),
        relegating("edf+relegation", PolicyKind::Edf, false),
        relegating("edf+relegation, sharing", PolicyKind::Edf, true),
        relegating("srpf+relegation", PolicyKind::Srpf, false),
        relegating("hybrid+relegation", PolicyKind::Hybrid, false),
        relegating("hybrid+relegation, sharing", PolicyKind::Hybrid, true),
        relegating("lars+guard+relegation", PolicyKind::Lars, false),
        relegating("lars+guard+relegation, sharing", PolicyKind::Lars, true),
        with("fair", shaped, PolicyKind::Fair, false),
    ]
}

/// Median, least and largest.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    format!("{:.3} ({least:.3}..{most:.3})", values[values.len() / 2])
}

/// The same machine, `times` slower.
fn slower(machine: &Machine, times: u64) -> Machine {
    let mut slower = machine.clone();
    for cost in &mut slower.stage_costs {
        for coefficient in [&mut cost.c0, &mut cost.c1, &mut cost.c2, &mut cost.c3, &mut cost.c4, &mut cost.c5] {
            coefficient.0 *= u128::from(times);
        }
    }
    slower
}

/// The largest load at which at most 1 % of the requests miss a target, by bisection, for one seed's draws.
fn knee(study: &Study, rate: f64, seed: u64, config: Config) -> Result<f64, StudyError> {
    let (machine, _) = study.machine()?;
    let (mut low, mut high) = (0.0, 2.0);
    for _ in 0..8 {
        let middle = f64::midpoint(low, high);
        let jobs = study.draw(seed, rate * middle)?;
        let met = Summary::of(&jobs, &play(&jobs, &machine, config)?, |_| true).attainment();
        if met >= 0.99 { low = middle } else { high = middle }
    }
    Ok(low)
}

fn run() -> Result<(), StudyError> {
    let mut arguments = std::env::args().skip(1);
    let (mut file, mut report, mut find_knee, mut load, mut seconds, mut only) = (None, false, false, None, None, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--report" => report = true,
            "--knee" => find_knee = true,
            "--only" => only = arguments.next(),
            "--load" => load = arguments.next().and_then(|x| x.parse::<f64>().ok()),
            "--seconds" => seconds = arguments.next().and_then(|x| x.parse::<f64>().ok()),
            _ => file = Some(argument),
        }
    }
    let file =
        file.ok_or_else(|| StudyError::Value("which study? give a file, such as cpp-exec-mock/studies/medha-mix.toml".to_owned()))?;
    let mut study = Study::load(file)?;
    for phase in &mut study.phases {
        phase.load = load.unwrap_or(phase.load);
        phase.seconds = seconds.unwrap_or(phase.seconds);
    }
    let (machine, base) = study.machine()?;
    let mut fcfs = base;
    fcfs.chunking = Chunking::Adaptive;
    let rate = study.capacity(fcfs)?;
    let seeds = if report { &study.report_seeds } else { &study.seeds };
    println!("{}: capacity {rate:.2} requests/s, seeds {seeds:?}", study.name);
    if find_knee {
        for variant in variants(base).into_iter().filter(|variant| only.as_ref().is_none_or(|only| variant.name.contains(only.as_str()))) {
            let knees = seeds.iter().map(|&seed| knee(&study, rate, seed, variant.config)).collect::<Result<Vec<_>, _>>()?;
            println!("{}: 1 % miss at a load of {}", variant.name, spread(knees));
        }
        return Ok(());
    }
    let draws = seeds.iter().map(|&seed| study.draw(seed, rate)).collect::<Result<Vec<Vec<Job>>, _>>()?;
    // A last batch of the adaptive plan of a middling prompt, through the stages behind the first.
    let fill_ns = draws[0].iter().map(|job| job.own_ns - job.work_ns.min(job.own_ns)).min().unwrap_or(0);
    let oracle = draws.iter().map(|jobs| clairvoyant(jobs, fill_ns) as f64 / jobs.len() as f64 * 100.0).collect();
    println!("clairvoyant EDF that drops the largest job, first tokens in time: {} %", spread(oracle));
    // A tenant alone on its share: a machine that takes as many times longer as there are tenants.
    let tenants: Vec<_> = study.classes.iter().enumerate().filter(|(_, class)| class.tenant.is_some()).collect();
    for &(number, class) in tenants.iter().filter(|_| tenants.len() > 1) {
        let share = slower(&machine, tenants.len() as u64);
        let mut config = base;
        (config.cost, config.chunking, config.balance) = (Some(share.stage_costs[0]), Chunking::Adaptive, Balance::Cost);
        let mut means = Vec::new();
        for jobs in &draws {
            let own: Vec<Job> = jobs.iter().filter(|job| job.class == number).copied().collect();
            means.push(Summary::of(&own, &play(&own, &share, config)?, |_| true).ttft_mean_s);
        }
        println!("{} alone on its share: TTFT mean {} s", class.name, spread(means));
    }
    for variant in variants(base).into_iter().filter(|variant| only.as_ref().is_none_or(|only| variant.name.contains(only.as_str()))) {
        let runs: Vec<Vec<Fate>> = draws.iter().map(|jobs| play(jobs, &machine, variant.config)).collect::<Result<_, _>>()?;
        let summaries = |which: &dyn Fn(&Job) -> bool| -> Vec<Summary> {
            draws.iter().zip(&runs).map(|(jobs, fates)| Summary::of(jobs, fates, which)).collect()
        };
        let of = |summaries: &[Summary], figure: fn(&Summary) -> f64| spread(summaries.iter().map(figure).collect());
        let all = summaries(&|_| true);
        let short = summaries(&|job| job.input_tokens < 8192);
        println!("{}", variant.name);
        println!(
            "  all: first tokens in time {} %, all targets met {} %, rejected {}, relegated {}",
            of(&all, |s| s.ttft_attainment() * 100.0),
            of(&all, |s| s.attainment() * 100.0),
            of(&all, |s| s.rejected as f64),
            of(&all, |s| s.relegated as f64)
        );
        println!("  prompts under 8k: TTFT mean {} s, p99 {} s", of(&short, |s| s.ttft_mean_s), of(&short, |s| s.ttft_p99_s));
        for (number, class) in study.classes.iter().enumerate() {
            let part = summaries(&|job| job.class == number);
            println!(
                "  {}: TTFT mean {} s, p99 {} s, in time {} %, TPOT {} s",
                class.name,
                of(&part, |s| s.ttft_mean_s),
                of(&part, |s| s.ttft_p99_s),
                of(&part, |s| s.attainment() * 100.0),
                of(&part, |s| s.tpot_mean_s)
            );
        }
        if study.phases.len() > 1 {
            for number in 0..study.phases.len() {
                let part = summaries(&|job| job.phase == number);
                println!("  phase {number}: met {} %", of(&part, |s| s.attainment() * 100.0));
            }
        }
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
