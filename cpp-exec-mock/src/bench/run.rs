//! What the measurements share: a scheduler with running decodes, one step of it, and memory.

use std::time::Instant;

use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler, TokenId};

use super::Counter;

/// What some work did to the heap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Allocations made.
    pub allocations: u64,
    /// Bytes that were taken and not given back.
    pub bytes_kept: i64,
}

/// One stage, prefix caching on, room for so many requests with so many tokens each.
pub(super) fn config(running: u32, tokens_each: u32) -> Config {
    let mut config = Config::default();
    config.num_blocks = running.saturating_mul(tokens_each.div_ceil(config.block_size) + 1);
    config.max_model_len = Some(tokens_each);
    config.max_requests = running;
    config.max_batch_requests = running;
    config.max_batch_tokens = running.max(2048);
    config.prefix_caching = true;
    config
}

/// Time of the two halves of a step, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) schedule_ns: u64,
    pub(super) complete_ns: u64,
}

/// A scheduler and what its executor would keep between steps.
pub(super) struct Run {
    pub(super) scheduler: Scheduler,
    sampling: Vec<RequestId>,
}

impl Run {
    /// # Panics
    /// If the configuration is wrong.
    pub(super) fn new(config: Config) -> Self {
        Self { scheduler: Scheduler::new(config).expect("a valid configuration"), sampling: Vec::new() }
    }

    /// Submits a prompt of tokens that no other request has.
    pub(super) fn submit(&mut self, id: u64, len: u32, max_tokens: u32) {
        let first = (id as u32).wrapping_mul(0x9e37_79b9);
        let prompt = (0..len).map(|at| first.wrapping_add(at)).collect();
        self.scheduler.submit(Request::new(RequestId(id), prompt, max_tokens)).expect("a request that fits");
    }

    /// Schedules one batch and completes it, each row with this token. What an executor does between the two is not timed.
    ///
    /// # Panics
    /// If there is nothing to run.
    pub(super) fn step(&mut self, token: TokenId) -> Step {
        let start = Instant::now();
        let scheduled = self.scheduler.schedule();
        let schedule_ns = nanoseconds(start);
        let Schedule::Batch(batch) = scheduled else { panic!("work is left") };
        let id = batch.id();
        self.sampling.clear();
        self.sampling.extend(batch.rows().iter().filter(|row| row.samples).map(|row| row.request));
        let token = [token];
        // Samples borrow the token, so the list cannot be kept from step to step.
        let samples: Vec<Sample<'_>> = self.sampling.iter().map(|&request| Sample { request, tokens: &token }).collect();
        let start = Instant::now();
        self.scheduler.complete(id, &samples).expect("a right result");
        let complete_ns = nanoseconds(start);
        self.scheduler.events().for_each(drop);
        Step { schedule_ns, complete_ns }
    }
}

pub(super) fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes that each of so many waiting requests takes, its tokens kept by the caller.
///
/// # Panics
/// If `requests` is 0.
#[must_use]
pub fn bytes_per_request(requests: u32, counter: Counter) -> u64 {
    let mut run = Run::new(config(64, 1024));
    let memory = counter(&mut || {
        for id in 0..u64::from(requests) {
            run.scheduler.submit(Request::with_lengths(RequestId(id), 500, Vec::new(), 100)).expect("a request that fits");
        }
    });
    u64::try_from(memory.bytes_kept).unwrap_or(0) / u64::from(requests)
}
