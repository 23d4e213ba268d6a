//! Steps of running decodes.

use serde::Serialize;

use super::run::{Run, config};
use super::{Counter, median};

/// How the lengths of prompts lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// Evenly over the block size: each step takes as many new blocks as the next.
    Spread,
    /// All equal: every request needs a block in the same step, and none in the others.
    Lockstep,
}

/// A step of so many decodes.
#[derive(Clone, Debug, Serialize)]
pub struct Decode {
    /// Requests running, all of them in each batch.
    pub running: u32,
    /// Median time of `schedule`, in nanoseconds.
    pub schedule_ns: u64,
    /// Median time of `complete`, in nanoseconds.
    pub complete_ns: u64,
    /// The mean of both together, for one request.
    pub ns_per_request: f64,
    /// Allocations over all steps, those of the harness (one a step) taken off.
    pub allocations: u64,
}

/// Prompts of 97 tokens and up, then the steps. O(running · steps).
#[must_use]
pub fn measure(running: u32, lengths: Lengths, steps: u32, counter: Counter) -> Decode {
    let warm_up = 64;
    let mut config = config(running, 97 + 16 + warm_up + steps + 16);
    // All prompts in the first batch, so that lengths alone say who is where.
    config.max_batch_tokens = running.saturating_mul(97 + 16);
    let block = config.block_size;
    let mut run = Run::new(config);
    for id in 0..running {
        let extra = if lengths == Lengths::Spread { id % block } else { 0 };
        run.submit(u64::from(id), 97 + extra, warm_up + steps + 16);
    }
    for token in 0..warm_up {
        run.step(token);
    }
    let (mut schedule, mut complete) = (Vec::with_capacity(steps as usize), Vec::with_capacity(steps as usize));
    let memory = counter(&mut || {
        for token in 0..steps {
            let step = run.step(token);
            schedule.push(step.schedule_ns);
            complete.push(step.complete_ns);
        }
    });
    let total: u64 = schedule.iter().chain(&complete).sum();
    Decode {
        running,
        ns_per_request: total as f64 / f64::from(steps) / f64::from(running),
        schedule_ns: median(&mut schedule),
        complete_ns: median(&mut complete),
        allocations: memory.allocations.saturating_sub(u64::from(steps)),
    }
}
