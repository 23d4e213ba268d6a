//! One long prompt, chunk after chunk through eight stages.

use std::time::Instant;

use cpp_sched::{Config, Request, RequestId, Schedule, Scheduler};
use serde::Serialize;

use super::median;
use super::run::nanoseconds;

/// Tokens of a chunk.
pub const CHUNK: u32 = 4096;
/// Stages, and so batches in flight.
pub const STAGES: u32 = 8;

/// A prompt of so many tokens; medians, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Prefill {
    /// Tokens.
    pub prompt: u32,
    /// `submit` with prefix caching on: every block is hashed.
    pub submit_ns: u64,
    /// The same for one token of the prompt.
    pub submit_ns_per_token: f64,
    /// `schedule` of a chunk, over all chunks.
    pub schedule_ns: u64,
    /// Over the last quarter of the chunks, at the end of the prompt.
    pub schedule_late_ns: u64,
}

/// Runs the prompt through so many times. O(prompt · repeats).
///
/// # Panics
/// Never with a prompt of 1 token to 2^30.
#[must_use]
pub fn measure(prompt: u32, repeats: u32) -> Prefill {
    let (mut submits, mut schedules, mut late) = (Vec::new(), Vec::new(), Vec::new());
    let mut config = Config::default();
    config.stages = STAGES;
    config.max_batch_tokens = CHUNK;
    config.num_blocks = prompt.div_ceil(config.block_size) + 2;
    config.prefix_caching = true;
    for repeat in 0..repeats {
        let mut scheduler = Scheduler::new(config).expect("a valid configuration");
        let request = Request::new(RequestId(0), (repeat..repeat + prompt).collect(), 1);
        let start = Instant::now();
        let submitted = scheduler.submit(request);
        submits.push(nanoseconds(start));
        submitted.expect("a request that fits");
        let mut done = 0;
        while done < prompt {
            let start = Instant::now();
            let scheduled = scheduler.schedule();
            let took = nanoseconds(start);
            if let Schedule::Batch(batch) = scheduled {
                schedules.push(took);
                done = batch.rows().iter().map(cpp_sched::Row::end).max().unwrap_or(done);
                if done > prompt / 4 * 3 {
                    late.push(took);
                }
            } else {
                let oldest = scheduler.oldest_in_flight().expect("a full pipeline").id();
                scheduler.complete(oldest, &[]).expect("a chunk in the middle");
            }
        }
    }
    let submit_ns = median(&mut submits);
    Prefill {
        prompt,
        submit_ns,
        submit_ns_per_token: submit_ns as f64 / f64::from(prompt),
        schedule_ns: median(&mut schedules),
        schedule_late_ns: median(&mut late),
    }
}
