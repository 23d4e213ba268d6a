//! How fast the scheduler itself is on this machine: one core, no executor, no device.
//!
//! Three questions, a file each: what a step of N running decodes costs ([`decode`]), what a long queue costs ([`queue`]), and what a long
//! prompt costs ([`prefill`]). Times are medians over many steps after a warm-up at a constant population. Every time contains one reading of
//! the clock, some 20 to 40 ns, which shows where few requests run.
//!
//! Memory is counted by the caller's allocator: the library has none of its own, and takes a [`Counter`].

pub mod decode;
pub mod prefill;
pub mod queue;
mod run;

pub use decode::{Decode, Lengths};
pub use prefill::Prefill;
pub use queue::Queue;
pub use run::{Memory, bytes_per_request};

use serde::Serialize;

/// Runs a piece of work and tells what it did to the heap.
pub type Counter = fn(&mut dyn FnMut()) -> Memory;

/// Everything that `cpp-sim bench` measures.
#[derive(Clone, Debug, Serialize)]
pub struct Bench {
    /// Steps of N running decodes, prompt lengths spread evenly over the block size.
    pub decode: Vec<Decode>,
    /// The same, all block borders in one step.
    pub lockstep: Vec<Decode>,
    /// Full batches of decodes in front of a long queue.
    pub queue: Vec<Queue>,
    /// Long prompts.
    pub prefill: Vec<Prefill>,
    /// Bytes that a waiting request takes, whose tokens the caller keeps.
    pub bytes_per_request: u64,
}

/// Populations of running decodes.
pub const RUNNING: [u32; 6] = [1, 16, 64, 256, 1024, 8192];
/// Lengths of the queue.
pub const WAITING: [u32; 2] = [10_000, 100_000];
/// Lengths of prompts, in tokens.
pub const PROMPTS: [u32; 4] = [8 << 10, 32 << 10, 128 << 10, 1 << 20];

/// Runs all of it; `steps` is how many steps a median is taken over, at least 1. Some seconds with 300.
#[must_use]
pub fn all(steps: u32, counter: Counter) -> Bench {
    let decode = |lengths| RUNNING.map(|running| decode::measure(running, lengths, steps, counter)).to_vec();
    Bench {
        decode: decode(Lengths::Spread),
        lockstep: decode(Lengths::Lockstep),
        queue: WAITING.map(|waiting| queue::measure(waiting, steps)).to_vec(),
        prefill: PROMPTS.map(|prompt| prefill::measure(prompt, 5)).to_vec(),
        bytes_per_request: bytes_per_request(100_000, counter),
    }
}

/// The middle of some times, the upper one of two; 0 of none.
fn median(times: &mut [u64]) -> u64 {
    let middle = times.len() / 2;
    if times.is_empty() { 0 } else { *times.select_nth_unstable(middle).1 }
}
