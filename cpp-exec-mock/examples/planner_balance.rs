//! How evenly batches cost what they cost: decodes in a closed loop, and prompts among decodes.
//!
//! `cargo run --release -p cpp-exec-mock --example planner_balance`
//!
//! First: 32 decodes a stage with contexts of 1k to 128k tokens, equally likely in every octave; who ends is followed by a new one. Utilisation is
//! the busy part of the stages. Second: prompts among 16 decodes a stage, chunks cut by the adaptive planner on grids of 64 and 16 tokens; the spread is
//! the largest batch over the mean one, over all batches that prompt work was left after. Costs: Llama-3.1-70B on stages of 8 H100 (weights of a
//! stage read once a batch, KV read at 80 % of 3.35 TB/s a GPU), no hops.

use std::collections::VecDeque;

use cpp_exec_mock::splitmix::{decades, next as random};
use cpp_sched::{Attos, Balance, Chunking, Config, CostModel, Event, Request, RequestId, Role, Sample, Schedule, Scheduler};

fn log_uniform(state: &mut u64, low: f64, high: f64) -> u32 {
    decades(state, low, high) as u32
}

/// What one stage of `stages` takes; `overhead_ns` is its constant per batch.
fn llama_70b(stages: u32, overhead_ns: u64) -> CostModel {
    let per_stage = |ns: f64| Attos((ns / f64::from(stages) * 1e9) as u128);
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(overhead_ns);
    (cost.c1, cost.c2, cost.c3) = (per_stage(28_827.0), per_stage(0.6624), per_stage(15.28));
    cost
}

/// Equal stages in virtual time, as many batches in flight as the scheduler allows.
struct Pipeline {
    cost: CostModel,
    ends: Vec<u128>,
    in_flight: VecDeque<u128>,
    now: u128,
    costs: Vec<u128>,
    ids: Vec<(RequestId, bool)>,
}

impl Pipeline {
    fn new(cost: CostModel, stages: u32) -> Self {
        Self { cost, ends: vec![0; stages as usize], in_flight: VecDeque::new(), now: 0, costs: Vec::new(), ids: Vec::new() }
    }

    /// Fills the pipeline and completes the oldest batch. False: idle.
    fn round(&mut self, scheduler: &mut Scheduler) -> bool {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            let cost = self.cost.cost(batch.terms()).0;
            let mut at = self.now;
            for end in &mut self.ends {
                at = at.max(*end) + cost;
                *end = at;
            }
            self.in_flight.push_back(at);
            self.costs.push(cost);
        }
        let Some(end) = self.in_flight.pop_front() else { return false };
        self.now = self.now.max(end);
        if let Some(batch) = scheduler.oldest_in_flight() {
            let id = batch.id();
            let sampling: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
            let samples: Vec<_> = sampling.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
            scheduler.complete(id, &samples).expect("the oldest batch, with its samples");
        }
        self.ids.clear();
        self.ids.extend(scheduler.events().filter_map(|event| match event {
            Event::Finished { request, .. } => Some((request, true)),
            Event::KvWanted { request, .. } => Some((request, false)),
            _ => None,
        }));
        true
    }
}

fn decode_config(stages: u32, balance: Balance, cost: CostModel) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 64;
    config.num_blocks = 200_000;
    config.max_model_len = Some(1 << 20);
    config.max_requests = 4096;
    config.max_batch_requests = 4096;
    config.max_batch_tokens = 1 << 20;
    config.balance = balance;
    config.cost = Some(cost);
    config
}

/// Busy part of the stages over `rounds` batches, after the first hundred.
fn closed_loop(stages: u32, balance: Balance, overhead_ns: u64, seed: u64) -> f64 {
    let cost = llama_70b(stages, overhead_ns);
    let mut config = decode_config(stages, balance, cost);
    config.role = Role::Decode;
    let mut scheduler = Scheduler::new(config).expect("valid");
    let (mut state, mut next) = (seed, 0);
    let mut submit = |scheduler: &mut Scheduler| {
        let context = log_uniform(&mut state, 1024.0, 131_072.0);
        let tokens = 200 + (random(&mut state) % 400) as u32;
        scheduler.submit(Request::with_lengths(RequestId(next), context, Vec::new(), tokens)).expect("fits");
        _ = scheduler.kv_arrived(RequestId(next));
        next += 1;
    };
    (0..32 * stages).for_each(|_| submit(&mut scheduler));
    let mut pipeline = Pipeline::new(cost, stages);
    let (mut begun, mut skipped) = (0, 0);
    for round in 0..6000 {
        pipeline.round(&mut scheduler);
        let ended = pipeline.ids.iter().filter(|(_, ended)| *ended).count();
        (0..ended).for_each(|_| submit(&mut scheduler));
        if round == 100 {
            (begun, skipped) = (pipeline.now, pipeline.costs.len());
        }
    }
    // Batches in flight at both ends count alike.
    let busy: u128 = pipeline.costs[skipped..].iter().sum();
    busy as f64 / (pipeline.now - begun) as f64
}

/// Largest over mean cost of the full batches of a busy period, how many there were, and the mean chunk.
fn spread(stages: u32, balance: Balance, align: u32, seed: u64) -> (f64, usize, u32) {
    let cost = llama_70b(stages, 2_000_000);
    let mut config = decode_config(stages, balance, cost);
    config.chunking = Chunking::Adaptive;
    config.adaptive.align = align;
    let mut scheduler = Scheduler::new(config).expect("valid");
    let mut pipeline = Pipeline::new(cost, stages);
    let mut state = seed;
    for id in 0..16 * stages {
        let context = log_uniform(&mut state, 1024.0, 65_536.0);
        scheduler.submit(Request::with_lengths(RequestId(id.into()), context, Vec::new(), 10_000)).expect("fits");
    }
    // All of them decode, and the busy period of their prompts is over.
    for _ in 0..4000 {
        pipeline.round(&mut scheduler);
    }
    for id in 0..24 {
        let prompt = log_uniform(&mut state, 8192.0, 131_072.0);
        scheduler.submit(Request::with_lengths(RequestId(100_000 + id), prompt, Vec::new(), 100)).expect("fits");
    }
    let first = pipeline.costs.len();
    let (mut full, mut tokens, mut chunks) = (first, 0u64, 0u64);
    while pipeline.costs.len() < first + 4000 && scheduler.adaptive_rest() > 0 {
        // One batch at a time, so that the last one with work left is known.
        pipeline.round(&mut scheduler);
        if scheduler.adaptive_rest() > 0 {
            full = pipeline.costs.len();
        }
        for row in scheduler.oldest_in_flight().iter().flat_map(|batch| batch.rows()) {
            if row.num_scheduled_tokens > 1 && row.request.0 >= 100_000 {
                (tokens, chunks) = (tokens + u64::from(row.num_scheduled_tokens), chunks + 1);
            }
        }
    }
    let costs = &pipeline.costs[first..full];
    let mean = costs.iter().sum::<u128>() as f64 / costs.len().max(1) as f64;
    (costs.iter().copied().max().unwrap_or(0) as f64 / mean, costs.len(), (tokens / chunks.max(1)) as u32)
}

fn main() {
    println!("closed loop, 32 decodes a stage, contexts 1k to 128k: utilisation by balance, mean of 5 seeds (worst)");
    for stages in [4, 8] {
        for overhead_ns in [0, 800_000] {
            let all = |balance| {
                let runs: Vec<f64> = (1..=5).map(|seed| closed_loop(stages, balance, overhead_ns, seed)).collect();
                format!("{:.4} ({:.4})", runs.iter().sum::<f64>() / 5.0, runs.iter().copied().fold(f64::INFINITY, f64::min))
            };
            println!(
                "  P={stages} c0={} ms: cost {}, count {}, off {}",
                overhead_ns as f64 / 1e6,
                all(Balance::Cost),
                all(Balance::Count),
                all(Balance::Off)
            );
        }
    }
    println!("prompts among 16 decodes a stage, cut on a grid: largest over mean cost of full batches, worst of 5 seeds");
    for stages in [4, 8] {
        for align in [64, 16] {
            for (name, balance) in [("cost", Balance::Cost), ("count", Balance::Count), ("off", Balance::Off)] {
                let runs: Vec<_> = (1..=5).map(|seed| spread(stages, balance, align, seed)).collect();
                let worst = runs.iter().map(|run| run.0).fold(0.0, f64::max);
                let chunk = runs.iter().map(|run| run.2).min().unwrap_or(0);
                println!(
                    "  P={stages} grid {align} balance {name}: {worst:.4} over {} batches; chunks of {chunk} tokens on average, the grid 1/{} of them",
                    runs.iter().map(|run| run.1).sum::<usize>(),
                    chunk / align
                );
            }
        }
    }
}
