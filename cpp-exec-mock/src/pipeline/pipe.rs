//! The pipeline that the simulator drives: piece after piece, online.

use std::collections::VecDeque;

use cpp_sched::BatchId;

use super::gap::{Filler, Source};
use super::pace::Windows;
use super::{Cause, Links, Slice, StageTime};

/// One piece of a batch, as it enters the pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// When it is ready for stage 0: decided, prepared, and its tokens known.
    pub not_before_ns: u64,
    /// How long each stage runs it.
    pub stage_ns: &'a [u64],
    /// How long each link is taken by it.
    pub transmit_ns: u64,
    /// How long it is under way to the next stage after that.
    pub latency_ns: u64,
}

/// The times of one piece on one stage, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// When its input is there; stage 0: when it is ready.
    pub received_ns: u64,
    /// When the stage takes it up.
    pub start_ns: u64,
    /// When the stage is done with it.
    pub end_ns: u64,
    /// When its transfer to the next stage begins; last stage: the end.
    pub send_ns: u64,
    /// When its output is at the next stage; last stage: with the scheduler.
    pub sent_ns: u64,
    /// When the stage can take up the next piece.
    pub free_ns: u64,
}

/// The way of one piece through the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage<'a> {
    /// Its times on each stage, in order.
    pub steps: &'a [Step],
    /// When its result is back at the scheduler.
    pub back_ns: u64,
}

/// P stages, first come first served, and the batches that are in them.
///
/// Pieces keep their order, so the times of a piece depend on the pieces before it alone and are known when it is pushed: there is no event queue
/// to run. [`push`](Self::push) is the one place that computes them, and with them why each stage was idle before. How many batches are in flight
/// at most is the scheduler's business; why stage 0 has no piece it has to be told: [`work_came`](Self::work_came), [`work_ended`](Self::work_ended),
/// [`waits`](Self::waits).
///
/// ```
/// use cpp_exec_mock::pipeline::{Links, Piece, Pipe};
/// use cpp_sched::BatchId;
/// let mut pipe = Pipe::new(2, Links::default(), 5, 0);
/// let piece = Piece { not_before_ns: 100, stage_ns: &[10, 10], transmit_ns: 0, latency_ns: 1 };
/// assert_eq!(pipe.push(BatchId(0), &piece).back_ns, 126);
/// // The second waits for stage 0 until 110, leaves it at 120, hops until 121, and so on.
/// assert_eq!(pipe.push(BatchId(1), &piece).back_ns, 136);
/// assert_eq!(pipe.next_result_ns(), Some(126));
/// assert_eq!(pipe.take_result(125), None);
/// assert_eq!(pipe.take_result(126), Some(BatchId(0)));
/// ```
#[derive(Clone, Debug)]
pub struct Pipe {
    pub(super) links: Links,
    pub(super) return_ns: u64,
    pub(super) stages: Vec<Stage>,
    pub(super) source: Source,
    pub(super) steps: Vec<Step>,
    /// Idle time of the stage before, and of the stage at hand, ahead of the piece that is pushed.
    pub(super) before: Vec<(Cause, u64)>,
    pub(super) gap: Vec<Slice>,
    /// What each stage did for the piece that is pushed.
    runs: Vec<Slice>,
    pub(super) in_flight: VecDeque<Flight>,
    taken: Flight,
    spare: Vec<Flight>,
    /// When the transfer began that never ends.
    pub(super) hung_since_ns: Option<u64>,
    /// After an outage: from when on stages work again.
    pub(super) up_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Stage {
    /// The end of its last piece, and from when on it can take the next; between them what held it.
    pub(super) end_ns: u64,
    pub(super) free_ns: u64,
    pub(super) held: Vec<(u64, Cause)>,
    /// When it took up each of the newest pieces, as many as its buffer holds.
    pub(super) starts: VecDeque<u64>,
    /// When the link to the next stage is free.
    pub(super) link_free_ns: u64,
    /// From the end on the stage before to the arrival here, of the last piece.
    pub(super) hop_ns: u64,
    pub(super) windows: Windows,
    /// From when on a transfer to the next stage never ends.
    pub(super) hang_from_ns: u64,
    pub(super) time: StageTime,
}

/// A batch in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Flight {
    batch: u64,
    /// When its last piece leaves the last stage, and is back.
    left_ns: u64,
    pub(super) back_ns: u64,
    pub(super) pieces_back_ns: Vec<u64>,
    pub(super) slices: Vec<Slice>,
}

impl Pipe {
    /// An empty pipeline of `stages` stages (at least one) at time `start_ns`, without work, from whose last stage a result needs `return_ns` to
    /// the scheduler.
    #[must_use]
    pub fn new(stages: u32, links: Links, return_ns: u64, start_ns: u64) -> Self {
        let stage = Stage {
            end_ns: start_ns,
            free_ns: start_ns,
            held: Vec::new(),
            starts: VecDeque::new(),
            link_free_ns: start_ns,
            hop_ns: 0,
            windows: Windows::default(),
            hang_from_ns: u64::MAX,
            time: StageTime::default(),
        };
        Self {
            links,
            return_ns,
            stages: vec![stage; stages.max(1) as usize],
            source: Source::new(start_ns),
            steps: Vec::new(),
            before: Vec::new(),
            gap: Vec::new(),
            runs: Vec::new(),
            in_flight: VecDeque::new(),
            taken: Flight::default(),
            spare: Vec::new(),
            hung_since_ns: None,
            up_ns: 0,
        }
    }

    /// Stages.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// A request is alive from now on.
    pub fn work_came(&mut self, now_ns: u64) {
        if let Some(since_ns) = self.source.quiet_since_ns.take() {
            self.source.quiet.push((since_ns, now_ns));
        }
    }

    /// No request is alive from now on.
    pub fn work_ended(&mut self, now_ns: u64) {
        self.source.quiet_since_ns.get_or_insert(now_ns);
    }

    /// From `now_ns` on stage 0 has to wait for its next piece because of this; replaces what was said for later times.
    pub fn waits(&mut self, now_ns: u64, cause: Cause) {
        let log = &mut self.source.log;
        log.truncate(log.partition_point(|&(from_ns, _)| from_ns < now_ns));
        if log.last().is_none_or(|&(_, last)| last != cause) {
            log.push((now_ns, cause));
        }
    }

    /// Hands in the next piece. It belongs to the same batch as the piece before it if that has the same `batch`. Times saturate. O(stages).
    ///
    /// # Panics
    /// If there is not one time for each stage.
    pub fn push(&mut self, batch: BatchId, piece: &Piece<'_>) -> Passage<'_> {
        self.push_with(batch, piece, &[])
    }

    /// As [`push`](Self::push); after its time on each stage the piece holds it for so long again, while the devices of the stage exchange data and compute
    /// nothing. Stages without an entry have no such time.
    ///
    /// # Panics
    /// As [`push`](Self::push).
    pub fn push_with(&mut self, batch: BatchId, piece: &Piece<'_>, collective_ns: &[u64]) -> Passage<'_> {
        assert_eq!(piece.stage_ns.len(), self.stages.len(), "one time a stage");
        if self.in_flight.back().is_none_or(|flight| flight.batch != batch.0) {
            let flight = self.spare.pop().unwrap_or_default();
            self.in_flight.push_back(Flight { batch: batch.0, ..flight });
        }
        let piece_index = self.in_flight.back().map_or(0, |flight| flight.pieces_back_ns.len() as u32);
        self.steps.clear();
        self.before.clear();
        let mut received_ns = piece.not_before_ns;
        let mut hop_ns = 0;
        for (s, &time_ns) in piece.stage_ns.iter().enumerate() {
            let start_ns = self.stages[s].free_ns.max(received_ns);
            self.explain(s, start_ns, hop_ns);
            let end_ns = self.run(s, piece_index, start_ns, time_ns, collective_ns.get(s).copied().unwrap_or(0));
            let stage = &mut self.stages[s];
            stage.hop_ns = hop_ns;
            if let Some(room) = self.links.room() {
                stage.starts.push_back(start_ns);
                if stage.starts.len() > room {
                    stage.starts.pop_front();
                }
            }
            let (send_ns, sent_ns) = self.hand_on(s, end_ns, piece);
            let free_ns = self.stages[s].free_ns;
            self.steps.push(Step { received_ns, start_ns, end_ns, send_ns, sent_ns, free_ns });
            hop_ns = sent_ns - end_ns;
            if self.hung_since_ns.is_some() && sent_ns == u64::MAX {
                self.before.push((Cause::Fault, hop_ns));
            }
            received_ns = sent_ns;
        }
        self.source.taken();
        let back_ns = received_ns;
        if let Some(flight) = self.in_flight.back_mut() {
            flight.left_ns = self.steps.last().map_or(0, |step| step.end_ns);
            flight.back_ns = back_ns;
            flight.pieces_back_ns.push(back_ns);
            flight.slices.append(&mut self.runs);
        }
        Passage { steps: &self.steps, back_ns }
    }

    /// A piece on a stage, at the pace that it has then; when it is done. What it took longer, the next stage waits for.
    fn run(&mut self, s: usize, piece: u32, start_ns: u64, time_ns: u64, collective_ns: u64) -> u64 {
        let Self { stages, runs, before, .. } = self;
        let windows = &mut stages[s].windows;
        windows.forget(start_ns);
        let mut lost_ns = 0;
        let end_ns = windows.run(start_ns, time_ns, |lost, from_ns, to_ns| {
            let idle = lost.then_some(Cause::Fault);
            runs.push(Slice { stage: s as u32, piece, idle, from_ns, to_ns });
            lost_ns += if lost { to_ns - from_ns } else { 0 };
        });
        if lost_ns > 0 {
            before.push((Cause::Fault, lost_ns));
        }
        let done_ns = end_ns.saturating_add(collective_ns);
        if done_ns > end_ns {
            runs.push(Slice { stage: s as u32, piece, idle: Some(Cause::Communication), from_ns: end_ns, to_ns: done_ns });
        }
        done_ns
    }

    /// When the oldest batch in flight is back at the scheduler; none in flight: none.
    #[must_use]
    pub fn next_result_ns(&self) -> Option<u64> {
        self.in_flight.front().map(|flight| flight.back_ns)
    }

    /// When the oldest batch in flight has left the last stage.
    #[must_use]
    pub fn oldest_leaves_ns(&self) -> Option<u64> {
        self.in_flight.front().map(|flight| flight.left_ns)
    }

    /// The oldest batch in flight, if its result is back by `now_ns`; it is in flight no more, and its time counts.
    pub fn take_result(&mut self, now_ns: u64) -> Option<BatchId> {
        if self.next_result_ns()? > now_ns {
            return None;
        }
        let flight = self.in_flight.pop_front()?;
        for slice in &flight.slices {
            self.stages[slice.stage as usize].time.add(slice.idle, slice.to_ns - slice.from_ns);
        }
        let mut last = std::mem::replace(&mut self.taken, flight);
        last.slices.clear();
        last.pieces_back_ns.clear();
        self.spare.push(last);
        Some(BatchId(self.taken.batch))
    }

    /// What the stages did for the batch that was taken last, and why they were idle before each of its pieces; of each stage in order of time.
    #[must_use]
    pub fn taken_slices(&self) -> &[Slice] {
        &self.taken.slices
    }

    /// When each piece of the batch that was taken last was back.
    #[must_use]
    pub fn taken_pieces_back_ns(&self) -> &[u64] {
        &self.taken.pieces_back_ns
    }

    /// Batches pushed whose results were not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// When stage 0 can take another piece.
    #[must_use]
    pub fn first_stage_free_ns(&self) -> u64 {
        self.stages[0].free_ns
    }

    /// Where the time of each stage went from `start_ns` (that of [`new`](Self::new)) to `end_ns`, of all batches that were taken; then the slices of the
    /// end, behind the last piece.
    pub fn finish(&mut self, start_ns: u64, end_ns: u64) -> (Vec<StageTime>, Vec<Slice>) {
        let mut slices = Vec::new();
        for (s, stage) in (0..).zip(&self.stages) {
            let mut filler = Filler { stage: s, piece: 0, at_ns: stage.end_ns, end_ns, gap: &mut slices };
            filler.held(&stage.held);
            self.source.fill_quiet(&mut filler);
            filler.until(end_ns, Cause::Drain);
        }
        for slice in &slices {
            self.stages[slice.stage as usize].time.add(slice.idle, slice.to_ns - slice.from_ns);
        }
        let window_ns = end_ns - start_ns;
        (self.stages.iter().map(|stage| stage.time.over(window_ns)).collect(), slices)
    }
}
