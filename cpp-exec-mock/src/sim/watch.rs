//! Looking at a run while it goes on: for timelines and plots.

use cpp_sched::{BatchId, KvUsage, Row};

use crate::pipeline::{Granularity, Slice};

/// A batch whose result is back, and what the stages did for it.
#[derive(Clone, Copy, Debug)]
pub struct BatchBack<'a> {
    /// Which batch.
    pub batch: BatchId,
    /// What it ran.
    pub rows: &'a [Row],
    /// What passed the stages as one; [`pieces`](Self::pieces) are numbered so in the slices.
    pub granularity: Granularity,
    /// Runs of its pieces on the stages, and idle time before each; of each stage in order of time.
    pub slices: &'a [Slice],
    /// When its result was taken, in nanoseconds.
    pub now_ns: u64,
    /// Requests that wait to be admitted.
    pub waiting: u32,
    /// Requests admitted.
    pub running: u32,
    /// KV blocks by state.
    pub kv: KvUsage,
}

impl<'a> BatchBack<'a> {
    /// The rows, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [Row]> + use<'a> {
        self.granularity.pieces(self.rows)
    }
}

/// A request that the scheduler has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestArrived {
    /// Its place in the workload; what runs call its id.
    pub index: usize,
    /// Of its prompt.
    pub input_tokens: u32,
    /// When it arrived, in nanoseconds.
    pub arrival_ns: u64,
}

/// A request that has its last token. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDone {
    /// Its place in the workload.
    pub index: usize,
    /// Of its prompt.
    pub input_tokens: u32,
    /// Delivered.
    pub output_tokens: u32,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Arrival to first token.
    pub ttft_ns: u64,
    /// Arrival to last token.
    pub e2e_ns: u64,
}

/// Whoever looks at a run. All times are those of the workload.
pub trait Watch {
    /// A request has come; not told of those that are refused.
    fn arrived(&mut self, arrived: &RequestArrived) {
        let _ = arrived;
    }

    /// A batch is back.
    fn batch(&mut self, back: &BatchBack<'_>) {
        let _ = back;
    }

    /// A batch is lost; the slices end with it, and so may its run on a stage.
    fn lost(&mut self, back: &BatchBack<'_>) {
        let _ = back;
    }

    /// Nothing is in flight, and why the stages were idle since.
    fn idle(&mut self, slices: &[Slice]) {
        let _ = slices;
    }

    /// A request is gone before its end; `index` is its place in the workload, the time is in nanoseconds.
    fn aborted(&mut self, index: usize, now_ns: u64) {
        let _ = (index, now_ns);
    }

    /// A request is done.
    fn request(&mut self, done: &RequestDone) {
        let _ = done;
    }

    /// The run is over; why the stages were idle at its end.
    fn end(&mut self, slices: &[Slice]) {
        let _ = slices;
    }
}
