//! How far the kernel's plans are from the optimum on the same grid: the table of the planner's goals.
//!
//! `cargo run --release -p cpp-exec-mock --example planner_regret [quick] [seed=N]`
//!
//! For each prompt length, number of stages, constant per batch and number of prompts: the scheduler's own plan in virtual time, with nothing
//! tuned, against the best cutting on a grid of 64 tokens (regret) and against the best fixed chunk size. Costs: Llama-3.1-70B in bf16 on
//! stages of 8 H100 SXM (989.4 TFLOP/s each at 60 % in linear layers and 50 % in attention), and random coefficients.
//!
//! The planner's constants were chosen looking at random cases of seed 1, and one case of seed 1003 led to a wider search. The held-out cases come from
//! seeds 1001 to 1005, which nobody looked at otherwise; `seed=N` alone runs 1000 cases of any other.
//!
//! The second line of each block is the same with no more batches in flight than stages. Costs on a grid differ by up to a step, and each P batches
//! then take P times the dearest of them, whatever the target. So the plan is held against the best single target under the same limit, and
//! against the optimum without it.

use std::time::Instant;

use cpp_exec_mock::planning::{Problem, best_fixed, best_target, optimum, plan};
use cpp_exec_mock::splitmix::{decades, next as random};
use cpp_sched::{Attos, CostModel, ModelDims};

/// The 70B dimensions as nanoseconds on one of `stages` stages.
fn llama_70b(stages: u32, overhead_us: u64) -> CostModel {
    let dims = ModelDims::new(80, 8192, 64, 8, 128, 28672);
    let peak = 8.0 * 989.4e12;
    let attos = |flops: u128, efficiency: f64| Attos((flops as f64 / (peak * efficiency * f64::from(stages)) * 1e18) as u128);
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(overhead_us * 1000);
    cost.c1 = attos(2 * dims.weights(), 0.6);
    cost.c2 = attos(dims.flops_per_pair(), 0.5);
    cost
}

/// A comparison over many cases.
#[derive(Default)]
struct Tally {
    cases: u32,
    sum: f64,
    worst: f64,
    worst_case: String,
    above_half: u32,
    above_one: u32,
}

impl Tally {
    fn add(&mut self, name: &str, ours: Attos, other: Attos) -> f64 {
        let excess = ours.0 as f64 / other.0 as f64 - 1.0;
        self.cases += 1;
        self.sum += excess;
        self.above_half += u32::from(excess > 0.005);
        self.above_one += u32::from(excess > 0.01);
        if excess > self.worst || self.cases == 1 {
            (self.worst, self.worst_case) = (excess, name.to_owned());
        }
        excess
    }

    fn text(&self) -> String {
        format!(
            "mean {:+.3} %, worst {:+.3} % ({}), {} of {} above 0.5 %, {} above 1 %",
            self.sum / f64::from(self.cases) * 100.0,
            self.worst * 100.0,
            self.worst_case,
            self.above_half,
            self.cases,
            self.above_one
        )
    }
}

#[derive(Default)]
struct Summary {
    optimum: Tally,
    fixed: Tally,
    narrow_target: Tally,
    narrow_optimum: Tally,
}

impl Summary {
    fn add(&mut self, name: &str, problem: &Problem) {
        let ours = plan(problem).expect("the grid's problems are valid");
        let best = optimum(problem);
        let (size, fixed) = best_fixed(problem);
        let regret = self.optimum.add(name, ours.makespan, best.makespan);
        self.fixed.add(&format!("{name}, {size} tokens"), ours.makespan, fixed);
        if regret > 0.005 {
            println!(
                "    {name}: regret {:.2} %, {} batches of at most {:.3} ms, optimum {} of {:.3} ms",
                regret * 100.0,
                ours.batches.len(),
                ours.batches.iter().max().map_or(0.0, |cost| cost.0 as f64 / 1e15),
                best.batches,
                best.target.0 as f64 / 1e15
            );
        }
        let mut narrow = *problem;
        narrow.max_in_flight = Some(problem.stages);
        let ours = plan(&narrow).expect("valid").makespan;
        self.narrow_target.add(name, ours, best_target(problem, problem.stages).makespan);
        self.narrow_optimum.add(name, ours, best.makespan);
    }

    fn tell(&self, what: &str) {
        println!("{what}: against the optimum {}; against the best fixed size {}", self.optimum.text(), self.fixed.text());
        println!(
            "    in flight = stages: against the best target under that limit {}; against the optimum without it {}",
            self.narrow_target.text(),
            self.narrow_optimum.text()
        );
    }
}

/// Random costs, lengths, prompts and stages; every fourth case re-reads history (`c4`).
fn random_cases(seed: u64, cases: u32, what: &str) {
    let (mut additive, mut rereading, state) = (Summary::default(), Summary::default(), &mut { seed });
    for case in 0..cases {
        let mut cost = CostModel::default();
        cost.c0 = Attos((decades(state, 1e5, 2e7) * 1e9) as u128);
        cost.c1 = Attos((decades(state, 50.0, 2e4) * 1e9) as u128);
        cost.c2 = Attos((decades(state, 1e-3, 3.0) * 1e9) as u128);
        let with_c4 = case % 4 == 3;
        if with_c4 {
            cost.c4 = Attos((decades(state, 1.0, 1e3) * 1e9) as u128);
        }
        let prompt = decades(state, 2e3, 3e5) as u32;
        let mut problem = Problem::new(prompt, [2, 4, 8, 16][(random(state) % 4) as usize], cost);
        problem.requests = [1, 1, 1, 2, 4, 16][(random(state) % 6) as usize];
        if random(state).is_multiple_of(4) {
            problem.cached = prompt / 2 / 256 * 256;
        }
        let name = format!(
            "{case}: N={prompt} cached {} R={} P={} c0 {:.3} ms",
            problem.cached,
            problem.requests,
            problem.stages,
            cost.c0.0 as f64 / 1e15
        );
        if with_c4 { &mut rereading } else { &mut additive }.add(&name, &problem);
    }
    additive.tell(&format!("random c0, c1, c2, {what}"));
    rereading.tell(&format!("random c0, c1, c2, c4, {what}"));
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "quick");
    let lengths: &[(u32, &str)] = &[(8192, "8k"), (32_768, "32k"), (131_072, "128k"), (524_288, "512k"), (1_048_576, "1M")];
    let lengths = if quick { &lengths[..3] } else { lengths };
    let begun = Instant::now();
    if let Some(seed) = std::env::args().find_map(|argument| argument.strip_prefix("seed=").and_then(|seed| seed.parse().ok())) {
        random_cases(seed, 1000, &format!("seed {seed}"));
        return;
    }
    for requests in [1, 2, 4, 16, 64] {
        let mut summary = Summary::default();
        for &(prompt, name) in lengths {
            for stages in [2, 4, 8, 16] {
                for overhead_us in [500, 1000, 2000, 5000, 10_000, 20_000] {
                    let mut problem = Problem::new(prompt, stages, llama_70b(stages, overhead_us));
                    problem.requests = requests;
                    summary.add(&format!("R={requests} N={name} P={stages} o={} ms", overhead_us as f64 / 1000.0), &problem);
                }
            }
        }
        summary.tell(&format!("70B, R={requests}"));
    }
    random_cases(1, if quick { 200 } else { 1000 }, "seed 1");
    for seed in if quick { 1001..=1001 } else { 1001..=1005 } {
        random_cases(seed, if quick { 200 } else { 500 }, &format!("held out, seed {seed}"));
    }
    eprintln!("{:.1} s", begun.elapsed().as_secs_f64());
}
