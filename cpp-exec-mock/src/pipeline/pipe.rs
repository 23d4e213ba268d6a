//! The pipeline that the simulator drives: piece after piece, online.

use std::collections::VecDeque;

use cpp_sched::BatchId;

use super::{Cause, Links, Slice, StageTime, Transfer};

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
    links: Links,
    return_ns: u64,
    stages: Vec<Stage>,
    source: Source,
    steps: Vec<Step>,
    /// Idle time of the stage before, and of the stage at hand, ahead of the piece that is pushed.
    before: Vec<(Cause, u64)>,
    gap: Vec<Slice>,
    in_flight: VecDeque<Flight>,
    taken: Flight,
    spare: Vec<Flight>,
}

#[derive(Clone, Debug, Default)]
struct Stage {
    /// The end of its last piece, and from when on it can take the next; between them what held it.
    end_ns: u64,
    free_ns: u64,
    held: Vec<(u64, Cause)>,
    /// When it took up each of the newest pieces, as many as its buffer holds.
    starts: VecDeque<u64>,
    /// When the link to the next stage is free.
    link_free_ns: u64,
    /// From the end on the stage before to the arrival here, of the last piece.
    hop_ns: u64,
    time: StageTime,
}

/// Why stage 0 has no piece, since the last push.
#[derive(Clone, Debug)]
struct Source {
    log: Vec<(u64, Cause)>,
    /// Times without work, in order; the last one is open while there is none.
    quiet: Vec<(u64, u64)>,
    quiet_since_ns: Option<u64>,
}

/// A batch in flight.
#[derive(Clone, Debug, Default)]
struct Flight {
    batch: u64,
    /// When its last piece leaves the last stage, and is back.
    left_ns: u64,
    back_ns: u64,
    pieces_back_ns: Vec<u64>,
    slices: Vec<Slice>,
}

impl Pipe {
    /// An empty pipeline of `stages` stages (at least one) at time `start_ns`, without work, from whose last stage a result needs `return_ns` to
    /// the scheduler.
    #[must_use]
    pub fn new(stages: u32, links: Links, return_ns: u64, start_ns: u64) -> Self {
        let stage = Stage { end_ns: start_ns, free_ns: start_ns, link_free_ns: start_ns, ..Stage::default() };
        Self {
            links,
            return_ns,
            stages: vec![stage; stages.max(1) as usize],
            source: Source { log: Vec::new(), quiet: Vec::new(), quiet_since_ns: Some(start_ns) },
            steps: Vec::new(),
            before: Vec::new(),
            gap: Vec::new(),
            in_flight: VecDeque::new(),
            taken: Flight::default(),
            spare: Vec::new(),
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
            let end_ns = start_ns.saturating_add(time_ns);
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
            received_ns = sent_ns;
        }
        self.source.log.clear();
        self.source.quiet.clear();
        let back_ns = received_ns;
        if let Some(flight) = self.in_flight.back_mut() {
            flight.left_ns = self.steps.last().map_or(0, |step| step.end_ns);
            flight.back_ns = back_ns;
            flight.pieces_back_ns.push(back_ns);
            for (s, step) in (0..).zip(&self.steps) {
                flight.slices.push(Slice { stage: s, piece: piece_index, idle: None, from_ns: step.start_ns, to_ns: step.end_ns });
            }
        }
        Passage { steps: &self.steps, back_ns }
    }

    /// The transfer from stage `s` to the next, or to the scheduler: when it begins and when it is over. Says what holds the stage meanwhile.
    fn hand_on(&mut self, s: usize, end_ns: u64, piece: &Piece<'_>) -> (u64, u64) {
        let (stages, next) = self.stages.split_at_mut(s + 1);
        let stage = &mut stages[s];
        stage.end_ns = end_ns;
        stage.free_ns = end_ns;
        stage.held.clear();
        let Some(next) = next.first() else { return (end_ns, end_ns.saturating_add(self.return_ns)) };
        let link_ns = end_ns.max(stage.link_free_ns);
        let blocking_receive = self.links.receives == Transfer::Blocking;
        let room_ns = match self.links.room() {
            _ if blocking_receive => next.free_ns,
            Some(room) if next.starts.len() >= room => next.starts[0],
            _ => 0,
        };
        let send_ns = link_ns.max(room_ns);
        stage.link_free_ns = send_ns.saturating_add(piece.transmit_ns);
        let sent_ns = stage.link_free_ns.saturating_add(piece.latency_ns);
        stage.free_ns = match (self.links.sends, self.links.room()) {
            (Transfer::Blocking, _) => sent_ns,
            (Transfer::Overlapped, Some(_)) if !blocking_receive => send_ns,
            (Transfer::Overlapped, _) => end_ns,
        };
        if stage.free_ns > end_ns {
            // A send that has to wait until the other side receives is communication that blocks; a full buffer is not.
            if !blocking_receive {
                stage.held.push((link_ns, Cause::Communication));
                stage.held.push((send_ns, Cause::Downstream));
            }
            stage.held.push((stage.free_ns, Cause::Communication));
        }
        (send_ns, sent_ns)
    }

    /// Gives every nanosecond of stage `s` between its last piece and `start_ns` a cause; `hop_ns` is how long the piece came from the stage before.
    fn explain(&mut self, s: usize, start_ns: u64, hop_ns: u64) {
        let Self { links, stages, source, steps, before, gap, in_flight, .. } = self;
        let stage = &stages[s];
        let piece = in_flight.back().map_or(0, |flight| flight.pieces_back_ns.len() as u32);
        gap.clear();
        let mut filler = Filler { stage: s as u32, piece, at_ns: stage.end_ns, end_ns: start_ns, gap };
        filler.held(&stage.held);
        let fresh = source.fill_quiet(&mut filler);
        match s.checked_sub(1).map(|up| steps[up]) {
            None => source.fill_log(&mut filler),
            Some(up) => {
                let wait_end_ns = if links.receives == Transfer::Blocking { up.send_ns.min(start_ns) } else { start_ns };
                // What made the stage before wait made this one wait as well: the latest part of it, as much as there is time.
                let mut left_ns = wait_end_ns.saturating_sub(filler.at_ns);
                let mut first = before.len();
                while first > 0 && left_ns > 0 {
                    first -= 1;
                    let part = &mut before[first];
                    part.1 = part.1.min(left_ns);
                    left_ns -= part.1;
                }
                for &(cause, ns) in &before[first..] {
                    filler.until(filler.at_ns.saturating_add(ns).min(wait_end_ns), cause);
                }
                if fresh {
                    filler.until(wait_end_ns, Cause::Fill);
                } else {
                    let longer_ns = hop_ns.saturating_sub(stage.hop_ns);
                    filler.until(filler.at_ns.saturating_add(longer_ns).min(wait_end_ns), Cause::Communication);
                    filler.until(wait_end_ns, Cause::Upstream);
                }
                filler.until(start_ns, Cause::Communication);
            }
        }
        before.clear();
        for slice in &*gap {
            if let Some(cause) = slice.idle.filter(|cause| !matches!(cause, Cause::NoWork | Cause::Drain)) {
                before.push((cause, slice.to_ns - slice.from_ns));
            }
        }
        if let Some(flight) = self.in_flight.back_mut() {
            flight.slices.extend_from_slice(gap);
        }
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

impl Links {
    fn room(&self) -> Option<usize> {
        self.buffer.map(|room| room.max(1) as usize)
    }
}

impl Source {
    /// The part of a gap up to the last time without work; whether there was one.
    fn fill_quiet(&self, filler: &mut Filler<'_>) -> bool {
        for &(from_ns, to_ns) in &self.quiet {
            filler.until(from_ns, Cause::Drain);
            filler.until(to_ns, Cause::NoWork);
        }
        !self.quiet.is_empty()
    }

    /// The part of a gap of stage 0 behind that.
    fn fill_log(&self, filler: &mut Filler<'_>) {
        for (i, &(from_ns, cause)) in self.log.iter().enumerate() {
            filler.until(from_ns, Cause::Dependency);
            filler.until(self.log.get(i + 1).map_or(u64::MAX, |next| next.0), cause);
        }
        filler.until(u64::MAX, Cause::Dependency);
    }
}

/// Fills a gap from its beginning.
struct Filler<'a> {
    stage: u32,
    piece: u32,
    at_ns: u64,
    end_ns: u64,
    gap: &'a mut Vec<Slice>,
}

impl Filler<'_> {
    fn until(&mut self, to_ns: u64, cause: Cause) {
        let to_ns = to_ns.min(self.end_ns);
        if to_ns > self.at_ns {
            self.gap.push(Slice { stage: self.stage, piece: self.piece, idle: Some(cause), from_ns: self.at_ns, to_ns });
            self.at_ns = to_ns;
        }
    }

    fn held(&mut self, held: &[(u64, Cause)]) {
        held.iter().for_each(|&(to_ns, cause)| self.until(to_ns, cause));
    }
}
