//! A pipeline that loses what is in it, and comes back.

use cpp_sched::BatchId;

use super::gap::Filler;
use super::pace::Window;
use super::pipe::Pipe;
use super::{Cause, Slice};

impl Pipe {
    /// A stage has another pace for a time. To be told before pieces are pushed that run then. Without effect on stages that are not there.
    pub fn disturb(&mut self, stage: u32, window: Window) {
        if let Some(stage) = self.stages.get_mut(stage as usize) {
            stage.windows.add(window);
        }
    }

    /// The first transfer from `stage` to the next that begins at `from_ns` or later never ends: neither it nor what waits behind it arrives,
    /// until [`lose_oldest`](Self::lose_oldest) and [`outage`](Self::outage) end it.
    pub fn hang(&mut self, stage: u32, from_ns: u64) {
        if let Some(stage) = self.stages.get_mut(stage as usize) {
            stage.hang_from_ns = stage.hang_from_ns.min(from_ns);
        }
    }

    /// When the transfer began that never ends, if there is one.
    #[must_use]
    pub fn hung_since_ns(&self) -> Option<u64> {
        self.hung_since_ns
    }

    /// When a fault begins to keep the oldest batch in flight from leaving, and when the last such one is over.
    #[must_use]
    pub fn oldest_is_held_ns(&self) -> Option<(u64, u64)> {
        let faults = self.in_flight.front()?.slices.iter().filter(|slice| slice.idle == Some(Cause::Fault));
        faults.map(|slice| (slice.from_ns, slice.to_ns)).reduce(|all, next| (all.0.min(next.0), all.1.max(next.1)))
    }

    /// The result of the oldest batch in flight is back only at `ns`, if that is later.
    pub fn delay_result(&mut self, ns: u64) {
        if let Some(oldest) = self.in_flight.front_mut() {
            oldest.back_ns = oldest.back_ns.max(ns);
        }
    }

    /// The oldest batch in flight is lost at `now_ns`: what stages did for it until then counts, what was to come does not happen. To be repeated until
    /// nothing is in flight, and followed by [`outage`](Self::outage).
    pub fn lose_oldest(&mut self, now_ns: u64) -> Option<BatchId> {
        let oldest = self.in_flight.front_mut()?;
        oldest.slices.retain(|slice| slice.from_ns < now_ns);
        oldest.slices.iter_mut().for_each(|slice| slice.to_ns = slice.to_ns.min(now_ns));
        oldest.back_ns = oldest.back_ns.min(now_ns);
        self.take_result(now_ns)
    }

    /// Nothing is in flight, and no stage works from `now_ns` until `up_ns`. Why stages were idle before that, since the last batch that was lost.
    ///
    /// # Panics
    /// If a batch is in flight.
    pub fn outage(&mut self, now_ns: u64, up_ns: u64) -> Vec<Slice> {
        assert!(self.in_flight.is_empty(), "batches in flight are lost first");
        let mut slices = Vec::new();
        self.up_ns = self.up_ns.max(up_ns);
        for (s, stage) in (0..).zip(&mut self.stages) {
            let mut filler = Filler { stage: s, piece: 0, at_ns: stage.end_ns, end_ns: now_ns, gap: &mut slices };
            filler.held(&stage.held);
            self.source.fill_quiet(&mut filler);
            // Nothing came to the other stages for the reason for which nothing came to stage 0.
            self.source.fill_log(&mut filler);
            stage.end_ns = now_ns;
            stage.held.clear();
            stage.held.push((self.up_ns, Cause::Fault));
            (stage.free_ns, stage.link_free_ns, stage.hop_ns) = (self.up_ns.max(now_ns), self.up_ns.max(now_ns), 0);
            stage.starts.clear();
            stage.windows.forget(now_ns);
        }
        for slice in &slices {
            self.stages[slice.stage as usize].time.add(slice.idle, slice.to_ns - slice.from_ns);
        }
        self.source.log.clear();
        self.source.quiet.clear();
        if let Some(since_ns) = &mut self.source.quiet_since_ns {
            *since_ns = now_ns.max(*since_ns);
        }
        self.source.refill = true;
        self.hung_since_ns = None;
        slices
    }
}
