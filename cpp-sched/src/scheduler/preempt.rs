//! Blocks for requests that run, and who gives theirs up.

use core::cmp::Reverse;

use super::Scheduler;
use crate::event::Event;
use crate::ids::RequestId;
use crate::policy::Key;
use crate::state::{Slot, State, Trait, next_epoch};

impl Scheduler {
    /// `n` more blocks of positions for an admitted request: set aside ones, available ones, or those of others that come after it. False: not now.
    pub(super) fn get_blocks(&mut self, slot: u32, n: u32) -> bool {
        let beyond = self.beyond_reserve(slot, n);
        if beyond > self.unreserved() && !self.make_room(slot, beyond) {
            self.build.no_blocks = true;
            let key = self.victim_key(slot);
            if self.lacking.is_none_or(|(first, _)| key < first) {
                self.lacking = Some((key, slot));
            }
            return false;
        }
        self.lacks_no_more(slot);
        self.take_blocks(slot, n);
        true
    }

    /// Blocks that are to be found for `n` more blocks of positions, beyond those that are set aside.
    pub(super) fn beyond_reserve(&mut self, slot: u32, n: u32) -> u32 {
        if !self.is_grouped() {
            return n.saturating_sub(self.slots[slot].reserved);
        }
        let beyond = |scheduler: &Self| scheduler.growth(slot, n).saturating_sub(scheduler.slots[slot].reserved);
        let first = beyond(self);
        // What it could not give back when its last result came may be free by now.
        if first > self.unreserved() && self.slide(slot) { beyond(self) } else { first }
    }

    /// Takes `n` blocks of positions that are known to be there.
    pub(super) fn take_blocks(&mut self, slot: u32, n: u32) {
        if self.is_grouped() {
            return self.take_in_groups(slot, n);
        }
        let from_reserve = n.min(self.slots[slot].reserved);
        self.slots[slot].reserved -= from_reserve;
        self.reserved -= from_reserve;
        for _ in 0..n {
            let taken = self.pool.take();
            debug_assert!(taken.is_some(), "blocks were counted but are not there");
            let Some(block) = taken else { return };
            self.slots[slot].table.push(block);
        }
    }

    /// Preempts the least urgent until `n` blocks can be taken, or until those that come after `slot` are exhausted, or until what is
    /// under a fence will do: a victim whose blocks are in flight frees nothing now, and one victim is enough.
    pub(super) fn make_room(&mut self, slot: u32, n: u32) -> bool {
        if self.never_preempts() {
            return false;
        }
        let own = self.victim_key(slot);
        loop {
            let now = self.unreserved();
            if now >= n {
                return true;
            }
            let coming = self.pool.coming().saturating_sub(self.build.claims);
            if n - now <= coming {
                self.build.claims += n - now;
                return false;
            }
            match self.victims.peek() {
                Some((Reverse(key), victim)) if Key::from(key) > own => self.preempt(victim),
                _ => match self.idle.peek() {
                    Some((_, holder)) if holder != slot => self.preempt(holder),
                    _ => return false,
                },
            }
        }
    }

    /// Idle requests give up their blocks until `needed` can be taken, for a request that is to be admitted. False: that does not help.
    pub(super) fn make_room_to_admit(&mut self, needed: u32) -> bool {
        if self.never_preempts() {
            return false;
        }
        while self.unreserved() < needed {
            match self.idle.peek() {
                Some((_, holder)) => self.preempt(holder),
                None => return false,
            }
        }
        true
    }

    /// The least urgent admitted request behind a shut gate gives up its slot, and keeps its blocks. O(requests) if there is one.
    pub(super) fn make_slot(&mut self) {
        if !self.is_somebody_shut() {
            return;
        }
        let shut = |s: &Slot| s.state == State::Running && !s.gates.is_empty() && s.live_rows == 0;
        let shut = self.slots.iter().filter(|(_, s)| shut(s)).map(|(slot, _)| slot);
        let Some(slot) = shut.max_by_key(|&slot| self.victim_key(slot)) else { return };
        if self.slots[slot].table.is_empty() {
            // One that has lost all but the blocks of its encoder (KV group `Cross`) can only give everything up.
            let encoded = self.slots.cold(slot).groups.iter().any(|table| !table.held().is_empty());
            if encoded && !self.never_preempts() {
                return self.preempt(slot);
            }
            // Nothing of it is computed, so it loses nothing: it starts anew, and nothing is kept for it.
            self.release_blocks(slot);
        }
        self.admitted -= 1;
        self.slots[slot].state = State::Waiting;
        self.queue_victim(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
    }

    /// Nothing is in flight, somebody lacks blocks, and the batch is empty: those that hold blocks without being admitted give way, latest
    /// first. They lose KV, not their place. Where nobody who runs is preempted, what is set aside for KV on the way is lent out, and forks and
    /// sessions that wait give back what they hold. True: try again.
    pub(super) fn break_deadlock(&mut self) -> bool {
        if self.never_preempts() {
            return self.lend() || self.give_up_waiting();
        }
        let holder = self.idle.peek().map(|(_, slot)| slot).or_else(|| {
            let resident = self.resident.iter().map(|(_, slot)| (self.victim_key(slot), slot));
            resident.max_by_key(|&(key, _)| key).map(|(_, slot)| slot)
        });
        holder.map(|slot| self.preempt(slot)).is_some()
    }

    /// A fork shares its parent's blocks before it is admitted, and a session keeps its own between two inputs: each may hold what another one lacks.
    /// The latest that waits and lacks blocks itself gives back what it holds.
    fn give_up_waiting(&mut self) -> bool {
        let waits = |s: &Slot| s.state == State::Waiting && !s.table.is_empty() && !s.waits_kv && !s.pinned;
        // One that has received its KV lacks none: all that it needs is set aside, or was lent, and comes back.
        let has = |slot: u32, s: &Slot| s.table.len() as u32 + s.reserved + self.slots.cold(slot).owed;
        let lacking = self.slots.iter().filter(|&(slot, s)| waits(s) && has(slot, s) < self.longest_blocks(slot)).map(|(slot, _)| slot);
        let latest = lacking.max_by_key(|&slot| self.victim_key(slot));
        latest.map(|slot| self.preempt(slot)).is_some()
    }

    fn lend(&mut self) -> bool {
        let awaited = self.slots.iter().filter(|(_, s)| s.waits_kv && s.reserved > 0).map(|(slot, _)| slot).next();
        let Some(slot) = awaited else { return false };
        let lent = core::mem::take(&mut self.slots[slot].reserved);
        self.slots.cold_mut(slot).owed += lent;
        self.owed += lent;
        self.reserved -= lent;
        true
    }

    /// What was lent is set aside again, or not needed any more.
    pub(super) fn repay(&mut self, slot: u32) {
        if let Some(rare) = self.slots.cold_mut(slot).rare_mut() {
            self.owed -= core::mem::take(&mut rare.owed);
        }
    }

    /// The request gives up its blocks and what it has scheduled; it will be computed again.
    pub(super) fn preempt(&mut self, slot: u32) {
        self.unqueue(slot);
        self.take_out_of_batch(slot);
        self.repay(slot);
        let drop = self.config.drops_preempted_output();
        let s = &mut self.slots[slot];
        self.stats.preemptions += 1;
        self.stats.preempted_tokens += u64::from(s.committed);
        if s.state == State::Running {
            self.admitted -= 1;
            s.state = State::Waiting;
        }
        s.shared_tail = false;
        let (request, stale, epoch) = (RequestId(s.id), if drop { 0 } else { s.live }, s.epoch);
        self.slots.set_stale(slot, stale);
        if stale > 0 {
            self.slots.cold_mut(slot).stale_epoch = epoch;
        }
        if self.slots[slot].has(Trait::Encoding) {
            self.release_encodings(slot);
            self.hand_over_encodings(slot);
        }
        // By these it finds again what it has computed.
        self.extend_digests(slot);
        self.release_blocks(slot);
        self.restart(slot);
        self.events.push(Event::Preempted { request });
        self.preempted.push(request);
        self.queue_waiting(slot);
    }

    /// A new epoch: nothing scheduled, nothing computed.
    fn restart(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        s.epoch = next_epoch(s.epoch);
        s.reached = s.reached.max(s.scheduled);
        (s.scheduled, s.committed, s.live, s.live_rows, s.published) = (0, 0, 0, 0, 0);
        s.set(Trait::DraftsOut, false);
        if let Some(rare) = self.slots.cold_mut(slot).rare_mut() {
            rare.copied = None;
        }
        self.count_decoding(slot);
        self.count_partial(slot);
    }

    /// Undoes the request's rows in the batch under construction. O(rows in flight), and only for a victim that stands in it.
    fn take_out_of_batch(&mut self, slot: u32) {
        if self.slots[slot].live_rows == 0 || self.slots[slot].last_batch != self.next_batch {
            return;
        }
        // The newest batch in flight that has a row of it; if none has, its blocks are fenced by none.
        let before = self.in_flight.iter().rev().find(|batch| batch.rows.iter().any(|row| row.slot == slot)).map_or(0, |batch| batch.id.0);
        let build = &mut self.build;
        let s = &mut self.slots[slot];
        let stats = &mut self.stats;
        let mut start = s.scheduled;
        build.batch.rows.retain(|row| {
            if row.slot != slot {
                return true;
            }
            start = start.min(row.num_computed_tokens);
            build.batch.terms.sub(row.terms());
            build.batch.samples -= u32::from(row.samples);
            build.batch.flops = build.batch.flops.saturating_sub(row.flops);
            build.tokens_left += row.num_scheduled_tokens + build.slots;
            build.rows_left += 1;
            stats.draft_tokens -= u64::from(row.num_draft_tokens);
            stats.recomputed_tokens -= u64::from(s.reached.min(row.end()).saturating_sub(row.num_computed_tokens));
            s.live -= u32::from(row.samples);
            if row.num_draft_tokens > 0 {
                s.set(Trait::DraftsOut, false);
            }
            s.live_rows -= 1;
            s.rows -= 1;
            false
        });
        s.scheduled = start;
        s.last_batch = before;
        if self.config.max_adapters_per_batch.is_some() {
            self.build.adapters.clear();
            for row in 0..self.build.batch.rows.len() {
                self.note_adapter(self.build.batch.rows[row].slot);
            }
        }
    }
}
