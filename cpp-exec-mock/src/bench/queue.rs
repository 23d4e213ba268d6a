//! A full batch of decodes in front of a long queue.

use std::time::Instant;

use cpp_sched::{Request, RequestId};
use serde::Serialize;

use super::median;
use super::run::{Run, config, nanoseconds};

/// Requests that run beside the queue.
pub const RUNNING: u32 = 256;

/// What calls cost with so many requests waiting; medians, in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Queue {
    /// Requests that wait.
    pub waiting: u32,
    /// `schedule` for 256 running decodes.
    pub schedule_ns: u64,
    /// The same with nobody waiting, measured in turns with it.
    pub schedule_alone_ns: u64,
    /// `submit` of a prompt whose tokens the caller keeps.
    pub submit_ns: u64,
    /// `abort` of one that waits somewhere in the queue.
    pub abort_ns: u64,
}

/// Fills the queue, then measures. O(waiting + steps).
#[must_use]
pub fn measure(waiting: u32, steps: u32) -> Queue {
    let mut full = running(steps);
    let mut alone = running(steps);
    for id in 0..waiting {
        submit(&mut full, u64::from(RUNNING + id));
    }
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for token in 0..steps {
        with.push(full.step(token).schedule_ns);
        without.push(alone.step(token).schedule_ns);
    }
    let (mut submits, mut aborts) = (Vec::new(), Vec::new());
    for turn in 0..u64::from(steps) {
        let id = u64::from(RUNNING + waiting) + turn;
        let request = Request::with_lengths(RequestId(id), 500, Vec::new(), 100);
        let start = Instant::now();
        let submitted = full.scheduler.submit(request);
        submits.push(nanoseconds(start));
        submitted.expect("a request that fits");
        // A large odd step visits places all over the queue, none twice.
        let victim = u64::from(RUNNING) + turn * 7919 % u64::from(waiting);
        let start = Instant::now();
        let found = full.scheduler.abort(RequestId(victim));
        aborts.push(nanoseconds(start));
        assert!(found.is_applied(), "request {victim} waits");
        full.scheduler.events().for_each(drop);
    }
    Queue {
        waiting,
        schedule_ns: median(&mut with),
        schedule_alone_ns: median(&mut without),
        submit_ns: median(&mut submits),
        abort_ns: median(&mut aborts),
    }
}

/// Decodes that fill every batch for all steps to come.
fn running(steps: u32) -> Run {
    let mut run = Run::new(config(RUNNING, 1024 + steps));
    for id in 0..RUNNING {
        run.submit(u64::from(id), 97 + id % 16, 128 + steps);
    }
    for token in 0..64 {
        run.step(token);
    }
    run
}

fn submit(run: &mut Run, id: u64) {
    run.scheduler.submit(Request::with_lengths(RequestId(id), 500, Vec::new(), 100)).expect("a request that fits");
}
