//! Calibration from a cold start: the scheduler begins with coefficients that are wrong by a factor of three, measures its own batches, and is asked
//! for its plan of the fifth prompt.
//!
//! `cargo run --release -p cpp-exec-mock --example planner_calibration`
//!
//! Prompts of 8k to 256k tokens, one after the other, P stages with the 70B costs of the regret table. Each measured time is the true cost with noise;
//! the first two batches take twice as long (warm-up), and one in fifty takes three times as long. Regret: the fifth plan, in true costs, over the optimum.

use cpp_exec_mock::planning::{Problem, optimum, plan};
use cpp_sched::planner::Calibrator;
use cpp_sched::{Attos, Chunking, Config, CostModel, Request, RequestId, Sample, Schedule, Scheduler};

/// splitmix64
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn unit(state: &mut u64) -> f64 {
    (random(state) >> 11) as f64 / (1u64 << 53) as f64
}

fn scaled(model: &CostModel, factors: [f64; 3]) -> CostModel {
    let mut scaled = *model;
    for (coefficient, factor) in [&mut scaled.c0, &mut scaled.c1, &mut scaled.c2].into_iter().zip(factors) {
        *coefficient = Attos((coefficient.0 as f64 * factor) as u128);
    }
    scaled
}

fn truth(stages: u32, overhead_ms: f64) -> CostModel {
    let per_stage = |ns: f64| Attos((ns / f64::from(stages) * 1e9) as u128);
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (Attos((overhead_ms * 1e15) as u128), per_stage(28_827.0), per_stage(0.6624));
    cost
}

/// A scheduler that runs prompts alone, one batch after the other, and tells what each took.
struct Run {
    scheduler: Scheduler,
    truth: CostModel,
    noise: f64,
    state: u64,
    batches: u64,
}

impl Run {
    fn prompt(&mut self, id: u64, tokens: u32, calibrator: &mut Calibrator) {
        self.scheduler.submit(Request::with_lengths(RequestId(id), tokens, Vec::new(), 1)).expect("fits");
        while let Schedule::Batch(batch) = self.scheduler.schedule() {
            let (batch_id, terms) = (batch.id(), *batch.terms());
            let request = batch.rows().iter().find(|row| row.samples).map(|row| row.request);
            let mut time = self.truth.cost(&terms).to_ns() as f64 * (1.0 + self.noise * (2.0 * unit(&mut self.state) - 1.0));
            self.batches += 1;
            time *= if self.batches <= 2 { 2.0 } else { 1.0 };
            time *= if random(&mut self.state).is_multiple_of(50) && self.noise > 0.0 { 3.0 } else { 1.0 };
            calibrator.observe(&terms, time as u64);
            let samples: Vec<_> = request.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
            self.scheduler.complete(batch_id, &samples).expect("the oldest");
            self.scheduler.events();
        }
    }
}

/// Regret of the fifth plan with the given model, and with what was learnt.
fn regrets(stages: u32, prompt: u32, overhead_ms: f64, factors: [f64; 3], noise: f64, seed: u64) -> (f64, f64) {
    let truth = truth(stages, overhead_ms);
    let given = scaled(&truth, factors);
    let mut config = Config::default();
    config.stages = stages;
    (config.block_size, config.num_blocks) = (4096, 1024);
    config.max_batch_tokens = 1 << 20;
    config.chunking = Chunking::Adaptive;
    config.cost = Some(given);
    let mut run = Run { scheduler: Scheduler::new(config).expect("valid"), truth, noise, state: seed, batches: 0 };
    let mut calibrator = Calibrator::new(given);
    for turn in 0..4 {
        run.prompt(turn, prompt, &mut calibrator);
        run.scheduler.set_cost_model(calibrator.probe(turn as u32)).expect("coefficients in range");
    }
    calibrator.refit();
    let regret = |model: CostModel| {
        let best = optimum(&Problem::new(prompt, stages, truth)).makespan;
        let batches = plan_with(&model, &truth, prompt, stages);
        batches as f64 / best.0 as f64 - 1.0
    };
    (regret(given), regret(calibrator.model()))
}

/// The time, in true costs, of the plan that a scheduler with another model makes.
fn plan_with(model: &CostModel, truth: &CostModel, prompt: u32, stages: u32) -> u128 {
    let ours = plan(&Problem::new(prompt, stages, *model)).expect("valid");
    let (mut history, mut sum, mut largest) = (0, 0, 0);
    for chunk in ours.chunks {
        let cost = truth.cost(&cpp_sched::CostTerms::prefill(history, chunk)).0;
        (history, sum, largest) = (history + chunk, sum + cost, largest.max(cost));
    }
    sum + u128::from(stages - 1) * largest
}

fn main() {
    for noise in [0.0, 0.03, 0.10] {
        let (mut worst, mut worst_case, mut sum, mut cases, mut worst_given) = (0.0, String::new(), 0.0, 0, 0.0f64);
        for stages in [4, 8, 16] {
            for prompt in [8192, 32_768, 131_072, 262_144] {
                for overhead_ms in [1.0, 5.0] {
                    for factors in [
                        [3.0, 3.0, 3.0],
                        [1.0 / 3.0; 3],
                        [3.0, 1.0 / 3.0, 1.0],
                        [1.0 / 3.0, 3.0, 3.0],
                        [1.0, 3.0, 1.0 / 3.0],
                        [3.0, 1.0, 1.0],
                    ] {
                        let (given, learnt) = regrets(stages, prompt, overhead_ms, factors, noise, 1 + cases);
                        worst_given = worst_given.max(given);
                        sum += learnt;
                        cases += 1;
                        if learnt > worst {
                            (worst, worst_case) =
                                (learnt, format!("P={stages} N={prompt} o={overhead_ms} ms, given {factors:.2?} of the truth"));
                        }
                    }
                }
            }
        }
        println!(
            "noise {:.0} %: {cases} cases, regret of the fifth prompt: mean {:.3} %, worst {:.3} % ({worst_case}); with the given model at worst {:.1} %",
            noise * 100.0,
            sum / cases as f64 * 100.0,
            worst * 100.0,
            worst_given * 100.0
        );
    }
}
