//! The pipeline that the simulator drives: batch after batch, online.

use std::collections::VecDeque;

use cpp_sched::BatchId;

/// When one batch occupied one stage, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When the stage took it up.
    pub start_ns: u64,
    /// When the stage was done with it.
    pub end_ns: u64,
}

/// The way of one batch through the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage<'a> {
    /// Its time on each stage, in order.
    pub spans: &'a [Span],
    /// When its result is back at the scheduler.
    pub back_ns: u64,
}

/// P stages, first come first served, and the batches that are in them.
///
/// A stage can never be overtaken, so the times of a batch depend on the batches before it alone and are known when it is pushed: there is no
/// event queue to run. How many batches are in flight at most is the scheduler's business.
///
/// ```
/// use cpp_exec_mock::pipeline::Pipe;
/// use cpp_sched::BatchId;
/// let mut pipe = Pipe::new(2, 5);
/// assert_eq!(pipe.push(BatchId(0), 100, &[10, 10], 1).back_ns, 126);
/// // The second waits for stage 0 until 110, leaves it at 120, hops until 121, and so on.
/// assert_eq!(pipe.push(BatchId(1), 100, &[10, 10], 1).back_ns, 136);
/// assert_eq!(pipe.next_result_ns(), Some(126));
/// assert_eq!(pipe.take_result(125), None);
/// assert_eq!(pipe.take_result(126), Some(BatchId(0)));
/// ```
#[derive(Clone, Debug)]
pub struct Pipe {
    /// When each stage is done with all that was pushed.
    free_ns: Vec<u64>,
    spans: Vec<Span>,
    busy_ns: Vec<u64>,
    return_ns: u64,
    in_flight: VecDeque<(BatchId, u64)>,
}

impl Pipe {
    /// An empty pipeline of `stages` stages (at least one), from whose last one a result needs `return_ns` to the scheduler.
    #[must_use]
    pub fn new(stages: u32, return_ns: u64) -> Self {
        let stages = stages.max(1) as usize;
        Self {
            free_ns: vec![0; stages],
            spans: vec![Span::default(); stages],
            busy_ns: vec![0; stages],
            return_ns,
            in_flight: VecDeque::new(),
        }
    }

    /// Stages.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.free_ns.len()
    }

    /// Hands in the next batch: it starts on stage 0 when that one is free and `not_before_ns` has come, takes `stage_ns[s]` on stage `s`, and
    /// `hop_ns` between two stages. Times saturate. O(stages).
    ///
    /// # Panics
    /// If `stage_ns` has another length than there are stages.
    pub fn push(&mut self, batch: BatchId, not_before_ns: u64, stage_ns: &[u64], hop_ns: u64) -> Passage<'_> {
        assert_eq!(stage_ns.len(), self.free_ns.len(), "one time a stage");
        let mut arrives = not_before_ns;
        for (s, &time) in stage_ns.iter().enumerate() {
            let start_ns = self.free_ns[s].max(arrives);
            let end_ns = start_ns.saturating_add(time);
            self.spans[s] = Span { start_ns, end_ns };
            self.free_ns[s] = end_ns;
            self.busy_ns[s] += end_ns - start_ns;
            arrives = end_ns.saturating_add(hop_ns);
        }
        let left_ns = self.free_ns[self.free_ns.len() - 1];
        let back_ns = left_ns.saturating_add(self.return_ns);
        self.in_flight.push_back((batch, back_ns));
        Passage { spans: &self.spans, back_ns }
    }

    /// When the oldest batch in flight is back at the scheduler; none in flight: none.
    #[must_use]
    pub fn next_result_ns(&self) -> Option<u64> {
        self.in_flight.front().map(|&(_, back_ns)| back_ns)
    }

    /// The oldest batch in flight, if its result is back by `now_ns`; it is in flight no more.
    pub fn take_result(&mut self, now_ns: u64) -> Option<BatchId> {
        if self.next_result_ns()? > now_ns {
            return None;
        }
        self.in_flight.pop_front().map(|(batch, _)| batch)
    }

    /// Batches pushed whose results were not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When stage 0 is done with all that was pushed.
    #[must_use]
    pub fn first_stage_free_ns(&self) -> u64 {
        self.free_ns[0]
    }

    /// How long stage `s` has been busy with all that was pushed, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self, s: usize) -> u64 {
        self.busy_ns[s]
    }
}
