//! The kernel's plan: the scheduler itself, in virtual time.

use std::collections::VecDeque;
use std::fmt;

use cpp_sched::{Attos, Chunking, Config, ConfigError, CostModel, Request, RequestId, RowKind, Sample, Schedule, Scheduler};

/// Equal prompts, all there from the start, on equal stages without hops.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Problem {
    /// Tokens of each prompt.
    pub prompt: u32,
    /// How many of them are in the prefix cache.
    pub cached: u32,
    /// How many prompts.
    pub requests: u32,
    /// Pipeline stages.
    pub stages: u32,
    /// Cost of a batch on one stage.
    pub cost: CostModel,
    /// Chunks end on a multiple of this many tokens.
    pub align: u32,
    /// Chunks of so many tokens, in place of the kernel's choice.
    pub fixed: Option<u32>,
    /// Tokens of a batch at most; none = no limit. The optimum and the bound know no such limit.
    pub max_batch_tokens: Option<u32>,
    /// Batches in flight at most; none = no limit.
    pub max_in_flight: Option<u32>,
}

/// What the scheduler did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Lengths of the chunks of the first request.
    pub chunks: Vec<u32>,
    /// Cost of each batch.
    pub batches: Vec<Attos>,
    /// The largest target that the planner held; with fixed chunks the largest batch.
    pub target: Attos,
    /// From the start of the first batch on the first stage to the end of the last on the last.
    pub makespan: Attos,
    /// Idle part of the stages from the first start to the last end, mean over the stages.
    pub bubble: f64,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A number that makes no sense, and what it must be.
    Bad(String),
    /// The scheduler does not take the configuration.
    Config(ConfigError),
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(what) => f.write_str(what),
            Self::Config(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlanError {}

/// Blocks that a plan's pool may have: 64 bytes of memory each.
const MOST_BLOCKS: u64 = 1 << 24;

impl Problem {
    /// Tokens of all prompts together, at most: a plan of a hundred million takes seconds.
    pub const MOST_TOKENS: u32 = 100_000_000;

    /// One prompt on so many stages, cut on a grid of 64 tokens by the kernel.
    #[must_use]
    pub const fn new(prompt: u32, stages: u32, cost: CostModel) -> Self {
        Self { prompt, cached: 0, requests: 1, stages, cost, align: 64, fixed: None, max_batch_tokens: None, max_in_flight: None }
    }

    fn check(&self) -> Result<(), PlanError> {
        let bad = |what: &str| Err(PlanError::Bad(what.to_owned()));
        if self.prompt == 0
            || self.requests == 0
            || self.stages == 0
            || self.align == 0
            || self.fixed == Some(0)
            || self.max_batch_tokens == Some(0)
        {
            return bad("prompt, requests, stages, alignment, chunk size and budget must be at least 1");
        }
        if self.cached >= self.prompt {
            return bad("at least one token of the prompt must be left to compute: cached must be below prompt");
        }
        if u64::from(self.prompt) * u64::from(self.requests) > u64::from(Self::MOST_TOKENS) {
            return Err(PlanError::Bad(format!("prompt * requests must be at most {} tokens", Self::MOST_TOKENS)));
        }
        Ok(())
    }

    /// The largest block size up to 4096 with which the cached part is whole blocks.
    fn block_size(&self) -> u32 {
        if self.cached == 0 { 4096 } else { 1 << self.cached.trailing_zeros().min(12) }
    }

    fn config(&self) -> Result<Config, PlanError> {
        let total = self.prompt * self.requests;
        let mut config = Config::default();
        config.block_size = self.block_size();
        let blocks = u64::from(self.requests) * u64::from((self.prompt + 1).div_ceil(config.block_size));
        if blocks > MOST_BLOCKS {
            return Err(PlanError::Bad(
                "so much cached of so long prompts needs too many blocks: take a rounder number of cached tokens".to_owned(),
            ));
        }
        config.num_blocks = blocks as u32;
        config.max_model_len = Some(self.prompt + 1);
        let budget = self.max_batch_tokens.unwrap_or(u32::MAX);
        config.max_batch_tokens = self.fixed.unwrap_or(total).min(budget).max(1);
        config.max_batch_requests = self.requests;
        config.max_requests = self.requests;
        config.stages = self.stages;
        // Every batch may be in flight at once: a grid step each at most, and one for each prompt's end.
        let most_batches = total / self.align.min(self.fixed.unwrap_or(u32::MAX)).min(budget) + 2 * self.requests + 1;
        config.max_in_flight = Some(self.max_in_flight.unwrap_or(most_batches));
        config.prefix_caching = self.cached > 0;
        config.cost = Some(self.cost);
        config.adaptive.align = self.align;
        if self.fixed.is_none() {
            config.chunking = Chunking::Adaptive;
        }
        Ok(config)
    }

    fn request(&self, id: u64, tokens: u32) -> Request {
        let blocks = if self.cached == 0 { 0 } else { tokens / self.block_size() };
        let shared = self.cached / self.block_size();
        // Equal up to what is cached, then each request its own.
        let digest = |block: u32| {
            let owner = if block < shared { 0 } else { id + 1 };
            ((u128::from(owner) << 64) | u128::from(block)).to_le_bytes()
        };
        Request::with_lengths(RequestId(id), tokens, (0..blocks).map(digest).collect(), 1)
    }
}

/// Submits all prompts at once and lets the scheduler cut them.
///
/// # Errors
/// What is wrong with the problem.
pub fn plan(problem: &Problem) -> Result<Plan, PlanError> {
    problem.check()?;
    let mut scheduler = Scheduler::new(problem.config()?).map_err(PlanError::Config)?;
    let refused = |error: cpp_sched::SubmitError| PlanError::Bad(error.to_string());
    if problem.cached > 0 {
        let warm_up = u64::from(problem.requests);
        scheduler.submit(problem.request(warm_up, problem.cached)).map_err(refused)?;
        let mut unused = Clock::new(problem);
        while unused.step(&mut scheduler, &mut |_, _| {}) {}
    }
    for id in 0..problem.requests {
        scheduler.submit(problem.request(id.into(), problem.prompt)).map_err(refused)?;
    }
    let mut clock = Clock::new(problem);
    let (mut chunks, mut target) = (Vec::new(), Attos::ZERO);
    let mut look = |scheduler: &Scheduler, batch: &cpp_sched::Batch| {
        target = target.max(scheduler.adaptive_target());
        let first = batch.rows().iter().filter(|row| row.request == RequestId(0) && row.kind == RowKind::Prefill);
        chunks.extend(first.map(|row| row.num_scheduled_tokens));
    };
    while clock.step(&mut scheduler, &mut look) {}
    let largest = clock.costs.iter().copied().max().unwrap_or_default();
    let busy = clock.costs.iter().map(|cost| cost.0).sum::<u128>();
    let makespan = clock.ends.last().copied().unwrap_or_default();
    Ok(Plan {
        chunks,
        target: if target == Attos::ZERO { largest } else { target },
        batches: clock.costs,
        makespan: Attos(makespan),
        bubble: if makespan == 0 { 0.0 } else { 1.0 - busy as f64 / makespan as f64 },
    })
}

/// When batches pass the stages: each starts on a stage when the batch before it has left it and it has left the stage before, and on the
/// first stage not before the scheduler could have it.
struct Clock {
    cost: CostModel,
    /// End of the newest batch on each stage.
    ends: Vec<u128>,
    /// Ends on the last stage of the batches in flight.
    in_flight: VecDeque<u128>,
    costs: Vec<Attos>,
    now: u128,
}

impl Clock {
    fn new(problem: &Problem) -> Self {
        Self { cost: problem.cost, ends: vec![0; problem.stages as usize], in_flight: VecDeque::new(), costs: Vec::new(), now: 0 }
    }

    /// Schedules as much as there may be in flight, then completes the oldest. False: all is done.
    fn step(&mut self, scheduler: &mut Scheduler, look: &mut impl FnMut(&Scheduler, &cpp_sched::Batch)) -> bool {
        while let Schedule::Batch(scheduled) = scheduler.schedule() {
            let id = scheduled.id();
            let cost = self.cost.cost(scheduled.terms());
            let mut arrival = self.now;
            for end in &mut self.ends {
                arrival = arrival.max(*end) + cost.0;
                *end = arrival;
            }
            self.in_flight.push_back(arrival);
            self.costs.push(cost);
            if let Some(batch) = scheduler.batch(id) {
                look(scheduler, batch);
            }
        }
        let Some(end) = self.in_flight.pop_front() else { return false };
        self.now = self.now.max(end);
        if let Some(batch) = scheduler.oldest_in_flight() {
            let id = batch.id();
            let sampling: Vec<RequestId> = batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
            let samples: Vec<Sample<'_>> = sampling.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
            let completed = scheduler.complete(id, &samples);
            debug_assert!(completed.is_ok(), "{completed:?}");
        }
        scheduler.events();
        true
    }
}
