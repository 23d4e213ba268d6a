//! What is printed.

use cpp_exec_mock::sim::Machine;
use cpp_exec_mock::study::{Fate, Job, Knee, Study, StudyError, Summary, clairvoyant, knee, play};
use cpp_sched::{Balance, Chunking, Config};

use crate::variants::Variant;

/// Requests that arrive so long after a burst are to fare as those before it.
const RECOVERED_NS: u64 = 60_000_000_000;

/// Median, least and largest.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_unstable_by(f64::total_cmp);
    let (least, most) = (values[0], values[values.len() - 1]);
    format!("{:.3} ({least:.3}..{most:.3})", median(&values))
}

fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// The knee of each variant.
pub(crate) fn knees(study: &Study, rate: f64, seeds: &[u64], variants: &[Variant], kind: Knee) -> Result<(), StudyError> {
    for variant in variants {
        let points = seeds.iter().map(|&seed| knee(study, rate, seed, variant.config, kind)).collect::<Result<Vec<_>, _>>()?;
        let of = |figure: fn(&Summary) -> f64| spread(points.iter().map(|point| figure(&point.summary)).collect());
        println!(
            "{}: {} at a load of {}; there TPOT mean {} s, rejected {}, relegated {}",
            variant.name,
            if kind == Knee::Misses { "1 % miss" } else { "1 % miss and no queue is left" },
            spread(points.iter().map(|point| point.load).collect()),
            of(|s| s.tpot_mean_s),
            of(|s| s.rejected as f64),
            of(|s| s.relegated as f64)
        );
    }
    Ok(())
}

/// What a clairvoyant meets.
pub(crate) fn oracle(draws: &[Vec<Job>]) {
    // What a last batch needs for the stages behind the first, at least.
    let fill_ns = draws[0].iter().map(|job| job.own_ns - job.work_ns.min(job.own_ns)).min().unwrap_or(0);
    let oracle = draws.iter().map(|jobs| clairvoyant(jobs, fill_ns) as f64 / jobs.len().max(1) as f64 * 100.0).collect();
    println!("clairvoyant EDF that drops the largest job, first tokens in time: {} %", spread(oracle));
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

/// Each tenant alone on its share, a machine that takes as many times longer as there are tenants: its mean times to the first token, by class and
/// draw; none without tenants.
pub(crate) fn alone(study: &Study, machine: &Machine, base: Config, draws: &[Vec<Job>]) -> Result<Vec<Vec<f64>>, StudyError> {
    let tenants = study.classes.iter().filter(|class| class.tenant.is_some()).count();
    if tenants < 2 {
        return Ok(Vec::new());
    }
    let share = slower(machine, tenants as u64);
    let mut config = base;
    (config.cost, config.chunking, config.balance) = (Some(share.stage_costs[0]), Chunking::Adaptive, Balance::Cost);
    // All that it does takes twice the time, its batches too.
    config.adaptive.max_target_ns = config.adaptive.max_target_ns.map(|most| most * tenants as u64);
    let mut all = Vec::new();
    for (number, class) in study.classes.iter().enumerate() {
        let mut means = Vec::new();
        for jobs in draws {
            let own: Vec<Job> = jobs.iter().filter(|job| job.class == number).copied().collect();
            means.push(Summary::of(&own, &play(&own, &share, config)?, |_| true).ttft_mean_s);
        }
        println!("{} alone on its share: TTFT mean {} s", class.name, spread(means.clone()));
        all.push(means);
    }
    Ok(all)
}

/// Summaries of all draws over the requests that a function picks.
type Summarise<'a> = dyn Fn(&dyn Fn(&Job) -> bool) -> Vec<Summary> + 'a;

/// Everything about one variant.
pub(crate) fn table(study: &Study, machine: &Machine, draws: &[Vec<Job>], variant: &Variant, alone: &[Vec<f64>]) -> Result<(), StudyError> {
    let runs: Vec<Vec<Fate>> = draws.iter().map(|jobs| play(jobs, machine, variant.config)).collect::<Result<_, _>>()?;
    let summaries = |which: &dyn Fn(&Job) -> bool| -> Vec<Summary> {
        draws.iter().zip(&runs).map(|(jobs, fates)| Summary::of(jobs, fates, which)).collect()
    };
    let of = |summaries: &[Summary], figure: fn(&Summary) -> f64| spread(summaries.iter().map(figure).collect());
    let all = summaries(&|_| true);
    println!("{}", variant.name);
    println!(
        "  all: first tokens in time {} %, all targets met {} %, rejected {}, relegated {}",
        of(&all, |s| s.ttft_attainment() * 100.0),
        of(&all, |s| s.attainment() * 100.0),
        of(&all, |s| s.rejected as f64),
        of(&all, |s| s.relegated as f64)
    );
    let short = summaries(&|job| job.input_tokens < 8192);
    println!("  prompts under 8k: TTFT mean {} s, p99 {} s", of(&short, |s| s.ttft_mean_s), of(&short, |s| s.ttft_p99_s));
    for (number, class) in study.classes.iter().enumerate() {
        let part = summaries(&|job| job.class == number);
        println!(
            "  {}: TTFT mean {} s, p99 {} s, in time {} %, TPOT mean {} s, p99 {} s",
            class.name,
            of(&part, |s| s.ttft_mean_s),
            of(&part, |s| s.ttft_p99_s),
            of(&part, |s| s.attainment() * 100.0),
            of(&part, |s| s.tpot_mean_s),
            of(&part, |s| s.tpot_p99_s)
        );
        if let Some(alone) = alone.get(number) {
            println!(
                "    times its mean alone on its share: {}",
                spread(part.iter().zip(alone).map(|(s, alone)| s.ttft_mean_s / alone).collect())
            );
        }
    }
    if study.phases.len() > 1 {
        phases(study, &summaries);
    }
    Ok(())
}

/// How each phase fared, and those who came a while after the one before the last.
fn phases(study: &Study, summaries: &Summarise<'_>) {
    let mut start = 0.0;
    for (number, phase) in study.phases.iter().enumerate() {
        let part = summaries(&|job| job.phase == number);
        println!(
            "  phase {number} (load {}): met {} %, goodput {} requests/s, relegated {}",
            phase.load,
            spread(part.iter().map(|s| s.attainment() * 100.0).collect()),
            spread(part.iter().map(|s| s.met as f64 / phase.seconds).collect()),
            spread(part.iter().map(|s| s.relegated as f64).collect())
        );
        if number > 0 {
            let from = (start * 1e9) as u64 + RECOVERED_NS;
            let late = summaries(&|job| job.phase == number && job.arrival_ns >= from);
            println!("    of those a minute and more into it: met {} %", spread(late.iter().map(|s| s.attainment() * 100.0).collect()));
        }
        start += phase.seconds;
    }
}
