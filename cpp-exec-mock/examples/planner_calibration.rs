//! Calibration from a cold start: the scheduler begins with coefficients each of which is wrong by a factor of three, up or down, on each stage by itself
//! or on all alike; measures its own batches; and cuts the fifth prompt with what it has learnt.
//!
//! `cargo run --release -p cpp-exec-mock --example planner_calibration [SEEDS [FIRST [v]]]`: so many seeds from FIRST on; v names every run above 2 %.
//!
//! Prompts of 8k to 256k tokens, one after the other, P stages with the 70B costs of the regret table, P + 1 batches in flight, so results come late. A
//! measured time is the true cost with normal noise; warm-up makes the first batches slower (the first 10 times, the second 4 times, two more twice), and 3 % of
//! all times are 3 to 10 times too long. Regret: the time of the fifth prompt in true costs, over the optimum.

use std::collections::VecDeque;

use cpp_exec_mock::planning::{Problem, optimum};
use cpp_exec_mock::splitmix;
use cpp_sched::planner::StageCalibrator;
use cpp_sched::{Attos, Chunking, Config, CostModel, CostTerms, Request, RequestId, Sample, Schedule, Scheduler};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    fn unit(&mut self) -> f64 {
        splitmix::unit(&mut self.0)
    }

    /// Normal, nearly: mean 0, standard deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Three times too much or too little, coefficient by coefficient.
    fn wrong(&mut self, truth: &CostModel) -> CostModel {
        let mut wrong = *truth;
        for coefficient in [&mut wrong.c0, &mut wrong.c1, &mut wrong.c2] {
            *coefficient = Attos(if self.next().is_multiple_of(2) { coefficient.0 * 3 } else { coefficient.0 / 3 });
        }
        wrong
    }
}

fn truth(stages: u32, overhead_ms: f64) -> CostModel {
    let per_stage = |ns: f64| Attos((ns / f64::from(stages) * 1e9) as u128);
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (Attos((overhead_ms * 1e15) as u128), per_stage(28_827.0), per_stage(0.6624));
    cost
}

/// How much the measured times deviate.
#[derive(Clone, Copy)]
struct Trouble {
    noise: f64,
    outliers: f64,
    warm_up: bool,
    /// All stages are given the same wrong model.
    alike: bool,
}

struct Run {
    scheduler: Scheduler,
    calibrator: StageCalibrator,
    truth: CostModel,
    stages: u32,
    trouble: Trouble,
    random: Random,
    batches: u32,
}

impl Run {
    fn measured(&mut self, terms: &CostTerms) -> Vec<u64> {
        let cost = self.truth.cost(terms).to_ns() as f64;
        let slow = if self.trouble.warm_up { [10.0, 4.0, 2.0, 2.0].get(self.batches as usize).copied().unwrap_or(1.0) } else { 1.0 };
        self.batches += 1;
        (0..self.stages)
            .map(|_| {
                let noisy = cost * slow * (1.0 + self.trouble.noise * self.random.normal());
                let outlier = if self.random.unit() < self.trouble.outliers { 3.0 + 7.0 * self.random.unit() } else { 1.0 };
                (noisy * outlier) as u64
            })
            .collect()
    }

    fn take_over(&mut self) {
        if let Some(models) = self.calibrator.update() {
            self.scheduler.set_stage_costs(models).expect("coefficients in range");
        }
    }

    /// Runs a prompt alone; the time that it took, in true costs.
    fn prompt(&mut self, id: u64, tokens: u32) -> u128 {
        self.scheduler.submit(Request::with_lengths(RequestId(id), tokens, Vec::new(), 1)).expect("fits");
        let (mut in_flight, mut sum, mut largest) = (VecDeque::new(), 0, 0);
        loop {
            while let Schedule::Batch(batch) = self.scheduler.schedule() {
                let sampled = batch.rows().iter().find(|row| row.samples).map(|row| row.request);
                let cost = self.truth.cost(batch.terms()).0;
                (sum, largest) = (sum + cost, largest.max(cost));
                in_flight.push_back((batch.id(), *batch.terms(), sampled));
            }
            let Some((batch, terms, sampled)) = in_flight.pop_front() else { break };
            let samples: Vec<_> = sampled.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
            self.scheduler.complete(batch, &samples).expect("the oldest");
            self.scheduler.events();
            let measured = self.measured(&terms);
            self.calibrator.observe(&terms, &measured);
            self.take_over();
        }
        sum + u128::from(self.stages - 1) * largest
    }
}

impl Run {
    fn new(stages: u32, overhead_ms: f64, trouble: Trouble, seed: u64) -> Self {
        let (truth, mut random) = (truth(stages, overhead_ms), Random(seed));
        let mut given: Vec<CostModel> = (0..stages).map(|_| random.wrong(&truth)).collect();
        if trouble.alike {
            let first = given[0];
            given.fill(first);
        }
        let mut config = Config::default();
        config.stages = stages;
        (config.block_size, config.num_blocks) = (4096, 1024);
        config.max_batch_tokens = 1 << 20;
        config.max_in_flight = Some(stages + 1);
        config.chunking = Chunking::Adaptive;
        config.cost = Some(given[0]);
        let mut scheduler = Scheduler::new(config).expect("valid");
        scheduler.set_stage_costs(&given).expect("coefficients in range");
        Self { scheduler, calibrator: StageCalibrator::new(&given), truth, stages, trouble, random, batches: 0 }
    }
}

/// Regrets with the given models, while learning, and after four prompts.
fn regrets(stages: u32, prompt: u32, overhead_ms: f64, trouble: Trouble, seed: u64, best: u128) -> [f64; 3] {
    let regret = |time: u128| time as f64 / best as f64 - 1.0;
    let mut untaught = Run::new(stages, overhead_ms, trouble, seed);
    untaught.calibrator.freeze(true);
    let given = regret(untaught.prompt(0, prompt));
    let mut run = Run::new(stages, overhead_ms, trouble, seed);
    let learning: u128 = (0..4).map(|turn| run.prompt(turn, prompt)).sum();
    // What was learnt is used, and learnt no further.
    run.calibrator.freeze(true);
    run.take_over();
    [given, regret(learning / 4), regret(run.prompt(4, prompt))]
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100] * 100.0
}

fn main() {
    let seeds: u64 = std::env::args().nth(1).map_or(20, |text| text.parse().expect("a number of seeds"));
    let first: u64 = std::env::args().nth(2).map_or(0, |text| text.parse().expect("the first seed"));
    println!("regret in %                    given model    learning      after four prompts");
    println!("                               median  worst  median  worst  median    p99  worst");
    let verbose = std::env::args().nth(3).is_some();
    for (noise, outliers, warm_up, alike) in [
        (0.0, 0.0, false, false),
        (0.02, 0.0, false, false),
        (0.05, 0.0, false, false),
        (0.0, 0.03, true, false),
        (0.02, 0.03, true, false),
        (0.05, 0.03, true, false),
        (0.1, 0.03, true, false),
        (0.0, 0.0, false, true),
        (0.02, 0.03, true, true),
        (0.05, 0.03, true, true),
    ] {
        let (mut all, mut worst_case) = ([Vec::new(), Vec::new(), Vec::new()], (0.0, String::new()));
        for stages in [4, 8, 16] {
            for prompt in [8192, 32_768, 131_072, 262_144] {
                for overhead_ms in [1.0, 5.0] {
                    let best = optimum(&Problem::new(prompt, stages, truth(stages, overhead_ms))).makespan.0;
                    for seed in first..first + seeds {
                        let found = regrets(stages, prompt, overhead_ms, Trouble { noise, outliers, warm_up, alike }, seed, best);
                        all.iter_mut().zip(found).for_each(|(all, regret)| all.push(regret));
                        if verbose && found[2] > 0.02 {
                            println!("  {:.1} % P={stages} N={prompt} o={overhead_ms} ms, seed {seed}", found[2] * 100.0);
                        }
                        if found[2] > worst_case.0 {
                            worst_case = (found[2], format!("P={stages} N={prompt} o={overhead_ms} ms, seed {seed}"));
                        }
                    }
                }
            }
        }
        all.iter_mut().for_each(|regrets| regrets.sort_by(f64::total_cmp));
        let [given, learning, learnt] = &all;
        println!(
            "noise {:>2.0} %, outliers {}, {} {:>8.2} {:>6.1} {:>7.2} {:>6.1} {:>7.2} {:>6.2} {:>6.2}   {} runs, worst at {}",
            noise * 100.0,
            if warm_up { "yes" } else { "no " },
            if alike { "alike" } else { "each " },
            percentile(given, 50),
            percentile(given, 100),
            percentile(learning, 50),
            percentile(learning, 100),
            percentile(learnt, 50),
            percentile(learnt, 99),
            percentile(learnt, 100),
            learnt.len(),
            worst_case.1
        );
    }
}
