//! KV that goes to another machine (role prefill) or comes from one (role decode).

use super::Scheduler;
use crate::batch::Row;
use crate::config::{Admission, Role};
use crate::event::{Event, FinishReason};
use crate::ids::RequestId;
use crate::outcome::Outcome;
use crate::state::State;

impl Scheduler {
    /// Role prefill: every consumer has read everything that was announced. What was announced of an aborted request is read when this comes;
    /// of any other, [`TooEarly`](Outcome::TooEarly) while there is more to announce. A repetition finds nobody, or nothing under way.
    pub fn kv_sent(&mut self, request: RequestId) -> Outcome {
        let slot = match self.sending(request) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        match self.slots[slot].state {
            State::Sending => self.end_send(slot, FinishReason::HandedOver),
            State::Aborting => {
                self.unpin(slot);
                self.settle(slot);
            }
            _ => return Outcome::TooEarly,
        }
        Outcome::Applied
    }

    /// Role prefill: one of [`kv_consumers`](crate::Config::kv_consumers) has read everything; with the last one it is as [`kv_sent`](Self::kv_sent).
    /// [`Already`](Outcome::Already): this consumer has said so before.
    pub fn kv_sent_by(&mut self, request: RequestId, consumer: u32) -> Outcome {
        let slot = match self.sending(request) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        if consumer >= self.config.kv_consumers {
            return Outcome::NoConsumer;
        }
        if !matches!(self.slots[slot].state, State::Sending | State::Aborting) {
            return Outcome::TooEarly;
        }
        let before = self.slots.cold(slot).acknowledged;
        if before & (1 << consumer) != 0 {
            return Outcome::Already;
        }
        let now = before | 1 << consumer;
        self.slots.cold_mut(slot).acknowledged = now;
        if now.count_ones() < self.config.kv_consumers { Outcome::Applied } else { self.kv_sent(request) }
    }

    /// Role prefill: the peer will never take it; the request ends with [`FinishReason::TransferFailed`], whatever is announced by then.
    pub fn kv_send_failed(&mut self, request: RequestId) -> Outcome {
        let slot = match self.sending(request) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        if self.slots[slot].state == State::Aborting {
            self.unpin(slot);
            self.settle(slot);
        } else {
            self.end_send(slot, FinishReason::TransferFailed);
        }
        Outcome::Applied
    }

    /// The request that a report of a sender is about, or what becomes of the report.
    fn sending(&self, request: RequestId) -> Result<u32, Outcome> {
        let slot = self.reported(request, Role::Prefill)?;
        let s = &self.slots[slot];
        if s.state == State::Aborting && !s.pinned { Err(Outcome::NoTransfer) } else { Ok(slot) }
    }

    fn reported(&self, request: RequestId, role: Role) -> Result<u32, Outcome> {
        if self.config.role != role {
            return Err(Outcome::WrongRole);
        }
        self.slots.find(request.0).ok_or(Outcome::NotAlive)
    }

    /// From now on the peer has so long.
    pub(super) fn begin_lease(&mut self, slot: u32) {
        if let Some(lease) = self.config.kv_lease_ns {
            self.leases.set(slot, (self.now_ns.saturating_add(lease), self.slots.cold(slot).seq));
        }
    }

    /// Transfers that are overdue have failed.
    pub(super) fn end_leases(&mut self) {
        while let Some(((deadline, _), slot)) = self.leases.peek() {
            if deadline > self.now_ns {
                return;
            }
            self.leases.remove(slot);
            let request = RequestId(self.slots[slot].id);
            // Its transfer is under way, or it would have no lease.
            _ = if self.config.role == Role::Prefill { self.kv_send_failed(request) } else { self.kv_failed(request) };
        }
    }

    fn end_send(&mut self, slot: u32, reason: FinishReason) {
        if self.slots[slot].state == State::Sending {
            self.unpin(slot);
        } else if self.slots[slot].pinned {
            self.unpin_held(slot);
        }
        self.finish(slot, reason);
    }

    /// Role prefill, after a batch: whole blocks of the prompt that have become final are announced and pinned, and with the last chunk the
    /// rest. Then the request only waits for its transfer.
    pub(super) fn announce(&mut self, row: &Row) {
        let slot = row.slot;
        let s = &self.slots[slot];
        if s.state != State::Running || s.epoch != row.epoch {
            return;
        }
        let start = self.slots.cold(slot).ready_to;
        let done = s.committed >= s.prompt_len;
        let end = if done { s.prompt_len } else { s.committed / self.config.block_size * self.config.block_size };
        if end > start {
            let blocks = (start / self.config.block_size) as usize..self.config.blocks(end) as usize;
            for index in blocks {
                let block = self.slots[slot].table[index];
                self.pool.pin(block);
            }
            self.slots[slot].pinned = true;
            self.queue_victim(slot);
            self.slots.cold_mut(slot).ready_to = end;
            self.events.push(Event::KvReady { request: row.request, start, end });
        }
        if done && self.slots[slot].outputs > 0 {
            self.begin_sending(slot);
        }
    }

    fn begin_sending(&mut self, slot: u32) {
        self.unqueue(slot);
        self.admitted -= 1;
        let s = &mut self.slots[slot];
        s.state = State::Sending;
        self.reserved -= s.reserved;
        s.reserved = 0;
        // The pins keep the blocks; the table stays to name them.
        let table = core::mem::take(&mut self.slots[slot].table);
        for &block in table.iter().rev() {
            self.pool.release(block, None);
        }
        self.slots[slot].table = table;
        self.begin_lease(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
    }

    /// Ends the pins of a request that holds its blocks no more, last block first.
    fn unpin(&mut self, slot: u32) {
        if !self.slots[slot].pinned {
            return;
        }
        self.slots[slot].pinned = false;
        self.leases.remove(slot);
        let announced = match self.config.role {
            Role::Prefill => self.config.blocks(self.slots.cold(slot).ready_to) as usize,
            _ => usize::MAX,
        };
        let table = core::mem::take(&mut self.slots[slot].table);
        for &block in table.iter().take(announced).rev() {
            self.pool.unpin(block);
        }
    }

    /// Ends the pins of a request that goes on holding its blocks.
    fn unpin_held(&mut self, slot: u32) {
        let announced = self.config.blocks(self.slots.cold(slot).ready_to) as usize;
        for index in 0..announced {
            let block = self.slots[slot].table[index];
            self.pool.unpin(block);
        }
        self.slots[slot].pinned = false;
        self.leases.remove(slot);
        self.slots.cold_mut(slot).ready_to = 0;
    }

    /// An aborted request lets go of its blocks, but the table goes on naming those that the peer still reads.
    pub(super) fn release_pinned_holder(&mut self, slot: u32) {
        let s = &self.slots[slot];
        let fence = (s.rows > 0).then_some(s.last_batch);
        let mut table = core::mem::take(&mut self.slots[slot].table);
        for &block in table.iter().rev() {
            self.pool.release(block, fence);
        }
        table.truncate(self.config.blocks(self.slots.cold(slot).ready_to) as usize);
        self.slots[slot].table = table;
    }

    // ---- role decode -----------------------------------------------------------------------------------------------------

    /// The request waits for blocks to receive its KV in.
    pub(super) fn want_kv(&mut self, slot: u32) {
        self.wanting.push(slot, self.key(slot), self.slots.cold(slot).tenant);
        self.count_waiting(slot);
        self.grant_transfers();
    }

    /// Sets blocks aside for as many requests as there are blocks for, in the order of the policy, and tells the peer where to write.
    /// O(granted * (log wanting + their blocks)).
    pub(super) fn grant_transfers(&mut self) {
        while let Some((_, slot)) = self.wanting.peek() {
            let (hits, taken) = self.available_hits(slot, self.count_hits(slot));
            let s = &self.slots[slot];
            let blocks = self.config.blocks(s.prompt_len);
            let reserve = match self.config.admission {
                Admission::NoEvict => self.longest_blocks(slot) - blocks,
                _ => 0,
            };
            // Where nobody is preempted, blocks lent to one whose gate stays shut could not be had back.
            let shut = self.never_preempts() && !self.slots[slot].gates.is_empty();
            if shut || blocks - hits + taken + reserve > self.unreserved().saturating_sub(self.owed) {
                return;
            }
            let tenant = self.slots.cold(slot).tenant;
            self.wanting.remove(slot, tenant);
            self.make_table(slot, hits);
            for index in 0..hits as usize {
                let block = self.slots[slot].table[index];
                self.pool.pin(block);
            }
            for _ in hits..blocks {
                let Some(block) = self.pool.take_pinned() else { return };
                self.slots[slot].table.push(block);
            }
            self.reserved += reserve;
            let s = &mut self.slots[slot];
            s.reserved = reserve;
            s.pinned = true;
            s.published = hits;
            self.count_waiting(slot);
            self.begin_lease(slot);
            let s = &self.slots[slot];
            let (request, end) = (RequestId(s.id), s.prompt_len);
            self.events.push(Event::KvWanted { request, start: hits * self.config.block_size, end });
        }
    }

    /// Role decode: the prompt's KV is here; the request is runnable. [`NoTransfer`](Outcome::NoTransfer): none was on the way.
    pub fn kv_arrived(&mut self, request: RequestId) -> Outcome {
        self.end_receive(request, |scheduler, slot| {
            let s = &mut scheduler.slots[slot];
            // The last position is computed again, for its token. It counts as committed only then, so that its block is shared with nobody
            // while it is written.
            s.scheduled = s.prompt_len - 1;
            s.committed = s.prompt_len - 1;
            scheduler.queue_victim(slot);
            scheduler.publish(slot);
        })
    }

    /// Role decode: the prompt's KV will not come; it is computed here. [`NoTransfer`](Outcome::NoTransfer): none was on the way.
    pub fn kv_failed(&mut self, request: RequestId) -> Outcome {
        self.end_receive(request, |scheduler, slot| {
            // It computes its prompt into the blocks that it has, behind what it had found.
            let found = scheduler.slots[slot].published * scheduler.config.block_size;
            let s = &mut scheduler.slots[slot];
            (s.scheduled, s.committed) = (found, found);
            scheduler.queue_victim(slot);
        })
    }

    /// A transfer to here is over; `goes_on`: what becomes of a request that was not aborted meanwhile.
    fn end_receive(&mut self, request: RequestId, goes_on: impl FnOnce(&mut Self, u32)) -> Outcome {
        let slot = match self.receiving(request) {
            Ok(slot) => slot,
            Err(outcome) => return outcome,
        };
        if self.slots[slot].state == State::Aborting {
            self.unpin(slot);
            self.settle(slot);
        } else {
            self.hold_received(slot);
            goes_on(self, slot);
            self.queue_waiting(slot);
        }
        self.grant_transfers();
        Outcome::Applied
    }

    /// The transfer has ended: what it had pinned, the request holds.
    fn hold_received(&mut self, slot: u32) {
        for index in 0..self.slots[slot].table.len() {
            let block = self.slots[slot].table[index];
            self.pool.hold(block);
            self.pool.unpin(block);
        }
        self.leases.remove(slot);
        let s = &mut self.slots[slot];
        (s.pinned, s.waits_kv) = (false, false);
    }

    /// The request that a report of a receiver is about, or what becomes of the report.
    fn receiving(&self, request: RequestId) -> Result<u32, Outcome> {
        let slot = self.reported(request, Role::Decode)?;
        if self.slots[slot].pinned { Ok(slot) } else { Err(Outcome::NoTransfer) }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use crate::{Config, Event, Request, RequestId, Role, Sample, Scheduler};

    #[test]
    fn leases_of_one_moment_end_in_the_order_of_submission() {
        let mut config = Config::default();
        (config.role, config.kv_lease_ns) = (Role::Prefill, Some(10));
        let mut scheduler = Scheduler::new(config).unwrap();
        let ids = [7, 3, 5, 1].map(RequestId);
        for id in ids {
            scheduler.submit(Request::new(id, vec![1; 20], 1)).unwrap();
        }
        let batch = scheduler.schedule().batch().unwrap().id();
        scheduler.complete(batch, &ids.map(|request| Sample { request, tokens: &[9] })).unwrap();
        scheduler.events().for_each(drop);
        scheduler.tick(100);
        let ended: Vec<_> =
            scheduler.events().filter_map(|e| if let Event::Finished { request, .. } = e { Some(request) } else { None }).collect();
        assert_eq!(ended, ids);
    }
}
