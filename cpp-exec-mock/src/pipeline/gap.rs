//! Why a stage was idle: every nanosecond between two pieces gets one cause.

use super::pipe::Pipe;
use super::{Cause, Slice, Transfer};

/// Why stage 0 has no piece, since the last push.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) log: Vec<(u64, Cause)>,
    /// Times without work, in order; the last one is open while there is none.
    pub(super) quiet: Vec<(u64, u64)>,
    pub(super) quiet_since_ns: Option<u64>,
    /// The pipeline was emptied, and no piece has come since.
    pub(super) refill: bool,
}

impl Pipe {
    /// Gives every nanosecond of stage `s` between its last piece and `start_ns` a cause; `hop_ns` is how long the piece came from the stage before.
    pub(super) fn explain(&mut self, s: usize, start_ns: u64, hop_ns: u64) {
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
                if source.refill {
                    // To fill the pipeline once more is a part of what a fault costs.
                    filler.until(wait_end_ns, Cause::Fault);
                } else if fresh {
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
}

impl Source {
    /// Without work since `start_ns`.
    pub(super) fn new(start_ns: u64) -> Self {
        Self { log: Vec::new(), quiet: Vec::new(), quiet_since_ns: Some(start_ns), refill: false }
    }

    /// A piece has come.
    pub(super) fn taken(&mut self) {
        self.log.clear();
        self.quiet.clear();
        self.refill = false;
    }

    /// The part of a gap up to the last time without work; whether there was one.
    pub(super) fn fill_quiet(&self, filler: &mut Filler<'_>) -> bool {
        for &(from_ns, to_ns) in &self.quiet {
            filler.until(from_ns, Cause::Drain);
            filler.until(to_ns, Cause::NoWork);
        }
        !self.quiet.is_empty()
    }

    /// The part of a gap of stage 0 behind that.
    pub(super) fn fill_log(&self, filler: &mut Filler<'_>) {
        for (i, &(from_ns, cause)) in self.log.iter().enumerate() {
            filler.until(from_ns, Cause::Dependency);
            filler.until(self.log.get(i + 1).map_or(u64::MAX, |next| next.0), cause);
        }
        filler.until(u64::MAX, Cause::Dependency);
    }
}

/// Fills a gap from its beginning.
pub(super) struct Filler<'a> {
    pub(super) stage: u32,
    pub(super) piece: u32,
    pub(super) at_ns: u64,
    pub(super) end_ns: u64,
    pub(super) gap: &'a mut Vec<Slice>,
}

impl Filler<'_> {
    pub(super) fn until(&mut self, to_ns: u64, cause: Cause) {
        let to_ns = to_ns.min(self.end_ns);
        if to_ns > self.at_ns {
            self.gap.push(Slice { stage: self.stage, piece: self.piece, idle: Some(cause), from_ns: self.at_ns, to_ns });
            self.at_ns = to_ns;
        }
    }

    pub(super) fn held(&mut self, held: &[(u64, Cause)]) {
        held.iter().for_each(|&(to_ns, cause)| self.until(to_ns, cause));
    }
}
