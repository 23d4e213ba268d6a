//! In which queues and counts a request stands, and its blocks.

use core::cmp::Reverse;

use super::Scheduler;
use crate::config::{Admission, Pipelining};
use crate::state::{Demand, State, Trait};

impl Scheduler {
    /// Blocks that nobody holds, waits behind a fence for, or has set aside.
    pub(super) fn unreserved(&self) -> u32 {
        self.pool.available().saturating_sub(self.reserved)
    }

    /// Puts a request that is not admitted into the waiting queue if it is runnable.
    pub(super) fn queue_waiting(&mut self, slot: u32) {
        self.count_waiting(slot);
        self.count_work(slot);
        let s = &self.slots[slot];
        if s.is_runnable() && !self.waiting.contains(slot) && !self.resident.contains(slot) {
            let (key, tenant) = (self.rank(slot), self.slots.cold(slot).tenant);
            let queue = if self.slots[slot].table.is_empty() { &mut self.waiting } else { &mut self.resident };
            queue.push(slot, key, tenant);
            self.note_wait(slot);
        }
    }

    /// Puts an admitted request where its next step is taken from.
    pub(super) fn queue_running(&mut self, slot: u32) {
        let s = &self.slots[slot];
        if s.state != State::Running
            || !s.gates.is_empty()
            || s.ticket != 0
            || (self.config.pipelining == Pipelining::Request && s.live_rows > 0)
        {
            return;
        }
        match s.demand(self.config.async_scheduling) {
            Demand::Nothing => {}
            Demand::Prompt if self.prompts.contains(slot) => {}
            Demand::Prompt => {
                let key = self.rank(slot);
                self.prompts.push(slot, key, self.slots.cold(slot).tenant);
                self.note_wait(slot);
            }
            Demand::Decode => self.slots[slot].ticket = self.ready.push_back(slot),
        }
    }

    pub(super) fn lacks_no_more(&mut self, slot: u32) {
        if self.lacking.is_some_and(|(_, lacking)| lacking == slot) {
            self.lacking = None;
        }
    }

    pub(super) fn leave_ready(&mut self, slot: u32) {
        if self.slots[slot].ticket != 0 {
            self.slots[slot].ticket = 0;
            self.ready.give_up();
        }
    }

    /// Takes a request out of the lists that its next step is taken from.
    pub(super) fn unqueue_work(&mut self, slot: u32) {
        self.leave_ready(slot);
        self.lacks_no_more(slot);
        let tenant = self.slots.cold(slot).tenant;
        for queue in [&mut self.prompts, &mut self.waiting, &mut self.resident] {
            queue.remove(slot, tenant);
        }
        self.put_off.remove(slot);
    }

    /// Takes a request out of all lists that decisions are taken from.
    pub(super) fn unqueue(&mut self, slot: u32) {
        self.unqueue_work(slot);
        let tenant = self.slots.cold(slot).tenant;
        self.wanting.remove(slot, tenant);
        self.victims.remove(slot);
        self.idle.remove(slot);
    }

    /// Puts a request that holds blocks among those that may be made to give them up: to those before it, or to anybody.
    pub(super) fn queue_victim(&mut self, slot: u32) {
        let s = &self.slots[slot];
        let holds = s.state == State::Running || (matches!(s.state, State::Waiting | State::Paused) && !s.waits_kv && !s.table.is_empty());
        // What a peer reads is not to be had by a preemption.
        let holds = holds && !s.pinned;
        let idle = s.state == State::Paused || !s.gates.is_empty();
        let key = Reverse(self.victim_key(slot).into());
        self.victims.remove(slot);
        self.idle.remove(slot);
        match (holds, idle) {
            (false, _) => {}
            (true, false) => self.victims.push(slot, key),
            (true, true) => self.idle.push(slot, key),
        }
    }

    /// Counts the request among those that decode, or not any more.
    pub(super) fn count_decoding(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        let decoding = s.state == State::Running && (s.outputs > 0 || s.scheduled >= s.prompt_len);
        if decoding != s.has(Trait::Decoding) {
            s.set(Trait::Decoding, decoding);
            if decoding {
                self.decoding += 1;
                self.decoding_tokens += u64::from(s.known());
            } else {
                self.decoding -= 1;
                self.decoding_tokens -= u64::from(s.known());
            }
            if s.has(Trait::Paced) {
                self.count_paced(slot);
            }
        }
    }

    /// Its tokens are to keep a pace while it decodes.
    pub(super) fn count_paced(&mut self, slot: u32) {
        match self.slots.cold(slot).tbt_slo_ns.filter(|_| self.slots[slot].has(Trait::Decoding)) {
            Some(target) => self.paced.set(slot, (target, slot)),
            None => self.paced.remove(slot),
        }
    }

    /// Counts the request among the partial prefills, or not any more. One behind a shut gate is in nobody's way.
    pub(super) fn count_partial(&mut self, slot: u32) {
        self.count_waiting(slot);
        self.count_work(slot);
        let s = &mut self.slots[slot];
        let partial = s.state == State::Running && s.gates.is_empty() && s.demand(false) == Demand::Prompt;
        if partial != s.has(Trait::Partial) {
            s.set(Trait::Partial, partial);
            self.partial = if partial { self.partial + 1 } else { self.partial - 1 };
        }
    }

    /// Lets go of all blocks of a request, and of what was set aside for it. The last block goes first: a prefix outlives its extensions.
    pub(super) fn release_blocks(&mut self, slot: u32) {
        while let Some(at) = self.build.copies.iter().position(|copied| copied.slot == slot) {
            self.pool.release(self.build.copies.swap_remove(at).from, None);
        }
        let s = &mut self.slots[slot];
        let fence = (s.rows > 0).then_some(s.last_batch);
        // Blocks behind what is scheduled are in no table of a row in flight; of rows that are void that is not known.
        let covered = if s.rows == s.live_rows { self.config.blocks(s.scheduled) } else { u32::MAX };
        let mut table = core::mem::take(&mut s.table);
        self.reserved -= s.reserved;
        s.reserved = 0;
        if self.is_grouped() {
            self.release_groups(slot, &table, covered, fence);
        } else {
            for (index, &block) in table.iter().enumerate().rev() {
                self.pool.release(block, fence.filter(|_| index < covered as usize));
            }
        }
        let cold = self.slots.cold_mut(slot);
        cold.table_life = cold.table_life.wrapping_add(1);
        // Its room is kept for when the request comes back.
        table.clear();
        self.slots[slot].table = table;
    }

    /// Blocks of positions of a request's longest run.
    pub(super) fn longest_blocks(&self, slot: u32) -> u32 {
        let s = &self.slots[slot];
        self.config.blocks(self.config.longest(s.prompt_len, s.max_out))
    }

    pub(super) fn never_preempts(&self) -> bool {
        self.config.admission == Admission::NoEvict
    }
}
