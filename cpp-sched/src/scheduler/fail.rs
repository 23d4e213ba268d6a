//! The executor lost batches: every one in flight, or one of them.

use super::Scheduler;
use crate::config::{Admission, Role};
use crate::error::CompleteError;
use crate::ids::BatchId;
use crate::state::{State, Trait, next_epoch};

/// The epoch of rows that no result is taken of. No request ever has it.
const VOID: u32 = 0;

impl Scheduler {
    /// Every batch in flight is lost (a stage died): cursors go back to what is committed, and the work runs again. Nothing that was delivered
    /// is delivered again or lost; what completed batches wrote is still there. Returns how many batches were lost.
    ///
    /// O(rows in flight * log admitted).
    pub fn fail(&mut self) -> u32 {
        let lost = self.in_flight.len() as u32;
        self.stats.batches_lost += self.in_flight.iter().filter(|batch| !batch.lost).count() as u64;
        let first_lost = self.in_flight.front().map_or(0, |oldest| oldest.id.0);
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
                State::Running if self.slots[row.slot].live_rows > 0 => self.roll_back(row.slot, first_lost),
                State::Waiting if self.slots[row.slot].has(Trait::Late) => {
                    self.slots.set_stale(row.slot, 0);
                    self.queue_waiting(row.slot);
                }
                _ => self.settle(row.slot),
            }
        }
        for &slot in batches.iter().flat_map(|batch| &batch.copied) {
            self.lose_copy(slot, first_lost);
        }
        for mut batch in batches.drain(..) {
            // Workers that are still there have not seen these, so the next batch tells them again.
            self.preempted.append(&mut batch.preempted);
            self.ended.append(&mut batch.ended);
            for input in &batch.encodes {
                if self.encoder.lose(input.item, batch.id.0) {
                    self.encoder_freed.push(input.item);
                }
            }
            self.tell_freed_again(&mut batch.freed);
            batch.recycle();
            self.spare.push(batch);
        }
        self.in_flight = batches;
        if self.config.role == Role::Decode {
            self.grant_transfers();
        }
        lost
    }

    /// One batch in flight is lost, the others live: its rows, and the rows of later batches that continue them, are void; their requests go
    /// back to what the batches before it hold, and run again. Results of the later batches are handed in as always.
    ///
    /// O(rows in flight * log admitted).
    ///
    /// # Errors
    /// A batch that is not in flight; nothing has changed.
    pub fn lose(&mut self, batch: BatchId) -> Result<(), CompleteError> {
        let oldest = self.in_flight.front().map_or(u64::MAX, |oldest| oldest.id.0);
        let at = batch.0.checked_sub(oldest).and_then(|at| usize::try_from(at).ok()).filter(|&at| at < self.in_flight.len());
        let at = at.filter(|&at| !self.in_flight[at].lost).ok_or(CompleteError::Unknown(batch))?;
        self.stats.batches_lost += 1;
        self.in_flight[at].lost = true;
        for row in 0..self.in_flight[at].rows.len() {
            let row = self.in_flight[at].rows[row];
            if row.epoch == self.slots[row.slot].epoch && self.slots[row.slot].state == State::Running {
                self.void_from(row.slot, at);
            } else if self.slots[row.slot].has(Trait::Late) && row.epoch == self.slots.cold(row.slot).stale_epoch {
                self.void_late(row.slot, at);
            }
        }
        for copy in 0..self.in_flight[at].copied.len() {
            let slot = self.in_flight[at].copied[copy];
            match (self.slots.cold(slot).copied, self.slots[slot].state) {
                // A session that has gone on since the copy was made.
                (Some((made, _)), State::Running) if made == batch.0 => self.void_from(slot, at),
                _ => self.lose_copy(slot, batch.0),
            }
        }
        if !self.in_flight[at].encodes.is_empty() {
            self.lose_encodings(at);
        }
        self.drop_lost();
        Ok(())
    }

    /// Voids the request's rows in the `at`th batch in flight and all later ones, and goes on from the row before.
    pub(super) fn void_from(&mut self, slot: u32, at: usize) {
        let epoch = self.slots[slot].epoch;
        let (lost, block_size) = (self.in_flight[at].id.0, self.config.block_size);
        let copy = self.lost_copy(slot, lost);
        // Rows before a copy that is lost have written to the block that it was made from, which the request has no more.
        let stands = self.state_stands(slot, at).min(copy.map_or(u32::MAX, |index| index * block_size));
        let committed = self.slots[slot].committed.min(stands);
        self.slots[slot].committed = committed;
        let (mut scheduled, mut live, mut live_rows, mut drafts) = (committed, 0, 0, false);
        for (index, batch) in self.in_flight.iter_mut().enumerate() {
            for row in batch.rows.iter_mut().filter(|row| row.slot == slot && row.epoch == epoch) {
                if index >= at || row.end() > stands {
                    row.epoch = VOID;
                } else {
                    scheduled = row.end();
                    live += u32::from(row.samples);
                    live_rows += 1;
                    drafts |= row.num_draft_tokens > 0;
                }
            }
        }
        let s = &mut self.slots[slot];
        s.published = s.published.min(committed / block_size);
        s.reached = s.reached.max(s.scheduled);
        (s.scheduled, s.live, s.live_rows) = (scheduled, live, live_rows);
        s.set(Trait::DraftsOut, drafts);
        self.roll_back_encodings(slot);
        self.unqueue_work(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
        self.queue_running(slot);
    }

    /// The position up to which the state of a request stands when its rows from the `at`th batch in flight on are lost: they have written to the
    /// state behind the last grain before them. Rows before them that end behind it have to run again as well.
    fn state_stands(&self, slot: u32, at: usize) -> u32 {
        let groups = &self.config.kv_groups;
        if !groups.has_state() {
            return u32::MAX;
        }
        let s = &self.slots[slot];
        let rows = self.in_flight.iter().take(at).flat_map(|batch| &batch.rows).filter(|row| row.slot == slot && row.epoch == s.epoch);
        let kept = rows.map(crate::batch::Row::end).filter(|&end| groups.base(end) == end);
        kept.fold(groups.base(s.committed), u32::max)
    }

    /// Late results of the `at`th batch in flight and all later ones do not come: those before it still do.
    pub(super) fn void_late(&mut self, slot: u32, at: usize) {
        let epoch = self.slots.cold(slot).stale_epoch;
        let mut stale = 0;
        for (index, batch) in self.in_flight.iter_mut().enumerate() {
            for row in batch.rows.iter_mut().filter(|row| row.slot == slot && row.epoch == epoch) {
                if index >= at {
                    row.epoch = VOID;
                } else {
                    stale += u32::from(row.samples);
                }
            }
        }
        self.slots.set_stale(slot, stale);
        self.queue_waiting(slot);
    }

    /// Lost batches that nothing older is in flight before are gone.
    pub(super) fn drop_lost(&mut self) {
        while self.in_flight.front().is_some_and(|batch| batch.lost) {
            let Some(mut batch) = self.in_flight.pop_front() else { return };
            self.pool.close_fence();
            for row in &batch.rows {
                self.slots[row.slot].rows -= 1;
                self.settle(row.slot);
            }
            self.preempted.append(&mut batch.preempted);
            self.ended.append(&mut batch.ended);
            self.tell_freed_again(&mut batch.freed);
            batch.recycle();
            self.spare.push(batch);
        }
        if self.config.role == Role::Decode {
            self.grant_transfers();
        }
    }

    /// The place in the request's table of a copy that a lost batch was to make, if one of these was.
    fn lost_copy(&mut self, slot: u32, first_lost: u64) -> Option<u32> {
        let rare = self.slots.cold_mut(slot).rare_mut()?;
        rare.copied.take_if(|(batch, _)| *batch >= first_lost).map(|(_, index)| index)
    }

    /// A copy that batches from `first_lost` on were to make for a request without rows that count is lost, and so is what it had in that block. A
    /// session may have ended its output, and may have got its next input, while they were in flight.
    fn lose_copy(&mut self, slot: u32, first_lost: u64) {
        if !matches!(self.slots[slot].state, State::Running | State::Waiting | State::Paused) {
            return;
        }
        let Some(index) = self.lost_copy(slot, first_lost) else { return };
        let s = &mut self.slots[slot];
        s.reached = s.reached.max(s.scheduled);
        s.committed = s.committed.min(index * self.config.block_size);
        s.published = s.published.min(index);
        s.scheduled = s.committed;
        self.unqueue_work(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
        self.queue_waiting(slot);
        self.queue_running(slot);
    }

    fn roll_back(&mut self, slot: u32, first_lost: u64) {
        let block_size = self.config.block_size;
        let copy = self.lost_copy(slot, first_lost);
        let s = &mut self.slots[slot];
        s.epoch = next_epoch(s.epoch);
        // Copies are made in order, so with this request's rows its copy is lost if its batch was in flight.
        if let Some(index) = copy {
            s.committed = s.committed.min(index * block_size);
        }
        s.reached = s.reached.max(s.scheduled);
        // What was lost has written to the state behind its last grain.
        s.committed = self.config.kv_groups.base(s.committed);
        s.published = s.published.min(s.committed / block_size);
        s.scheduled = s.committed;
        let (committed, known) = (s.committed, s.known());
        (s.live, s.live_rows) = (0, 0);
        s.set(Trait::DraftsOut, false);
        self.roll_back_encodings(slot);
        self.leave_ready(slot);
        let tenant = self.slots.cold(slot).tenant;
        self.prompts.remove(slot, tenant);
        self.give_back(slot, committed, known);
        self.count_decoding(slot);
        self.count_partial(slot);
        self.queue_running(slot);
    }
    /// Blocks behind what is committed are not in use any more; those of known tokens stay set aside where a prompt under way lacks none.
    fn give_back(&mut self, slot: u32, committed: u32, known: u32) {
        let keep = self.config.blocks(committed);
        if self.is_grouped() {
            return self.shorten_groups(slot, keep);
        }
        let set_aside = match self.config.admission {
            Admission::ReservePrompt => self.config.blocks(known),
            Admission::NoEvict => u32::MAX,
            Admission::Lazy => 0,
        };
        while self.slots[slot].table.len() as u32 > keep {
            let last = self.slots[slot].table.len() as u32;
            let Some(block) = self.slots[slot].table.pop() else { return };
            self.pool.release(block, None);
            if last <= set_aside {
                self.slots[slot].reserved += 1;
                self.reserved += 1;
            }
        }
    }
}
