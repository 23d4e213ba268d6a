//! The executor lost every batch in flight.

use super::Scheduler;
use crate::config::Role;
use crate::state::State;

impl Scheduler {
    /// Every batch in flight is lost (a stage died): cursors go back to what is committed, and the work runs again. Nothing that was delivered
    /// is delivered again or lost; what completed batches wrote is still there. Returns how many batches were lost.
    ///
    /// O(rows in flight * log admitted).
    pub fn fail(&mut self) -> u32 {
        let lost = self.in_flight.len() as u32;
        self.stats.batches_lost += u64::from(lost);
        let mut batches = core::mem::take(&mut self.in_flight);
        for _ in 0..lost {
            self.pool.close_fence();
        }
        for row in batches.iter().flat_map(|batch| &batch.rows) {
            self.slots[row.slot].rows -= 1;
        }
        for row in batches.iter().flat_map(|batch| &batch.rows) {
            // A slot that has settled may belong to nobody by now, and is left alone; each is rolled back at its first row.
            match self.slots[row.slot].state {
                State::Running if self.slots[row.slot].live_rows > 0 => self.roll_back(row.slot),
                State::Waiting if self.slots[row.slot].stale > 0 => {
                    self.slots[row.slot].stale = 0;
                    self.queue_waiting(row.slot);
                }
                _ => self.settle(row.slot),
            }
        }
        for mut batch in batches.drain(..) {
            // Workers that are still there have not seen these, so the next batch tells them again.
            self.preempted.append(&mut batch.preempted);
            self.ended.append(&mut batch.ended);
            batch.recycle();
            self.spare.push(batch);
        }
        self.in_flight = batches;
        if self.config.role == Role::Decode {
            self.grant_transfers();
        }
        lost
    }

    fn roll_back(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        s.epoch = s.epoch.wrapping_add(1);
        s.scheduled = s.committed;
        (s.live, s.live_rows) = (0, 0);
        self.leave_ready(slot);
        let tenant = self.slots.cold(slot).tenant;
        self.prompts.remove(slot, tenant);
        self.count_decoding(slot);
        self.count_partial(slot);
        self.queue_running(slot);
    }
}
