//! Several KV groups over one pool: the tables of all groups of a request grow together, and each is given back where its layers read no more.
//!
//! The table of the first group (full attention) says how many blocks of positions a request has; the tables behind it follow from that number,
//! so that it stays the one that counts. With one group nothing here is called on the way of a batch.
//!
//! *The base* of a request is the position up to which nothing of it is computed again, whatever is lost: what is committed, or with a state the
//! last grain before it ([`KvGroups::base`](crate::KvGroups)). A block leaves its table when no position from the base on reads it. No fence is
//! needed for that: rows in flight begin at what is committed, or later, and read nothing behind their own window. What is found by others
//! ends at the base, too, so that what is computed again is never written into a block that somebody else reads.
//!
//! *Who shares pays.* A holder of a block that slides out of tables may need another one when it has let go of it, though the block stays with
//! others. So each pays for it as if it were alone ([`Pool::spare`](crate::kv::Pool)), and what was set aside for a request is set aside again
//! when it gives back a block: a prompt under way lacks none.

use super::Scheduler;
use crate::config::Admission;
use crate::ids::{BlockId, RequestId};
use crate::kv::{Digest, GroupTable, KvGroup};

impl Scheduler {
    /// The blocks of a request's positions in one of the [`kv_groups`](crate::Config::kv_groups), by its number: the number of the first entry
    /// that it holds, and the blocks from there on. `None`: not alive, or no such group.
    #[must_use]
    pub fn group_table(&self, request: RequestId, group: usize) -> Option<(u32, &[BlockId])> {
        let slot = self.slots.find(request.0)?;
        match group.checked_sub(1) {
            None => Some((0, &self.slots[slot].table)),
            Some(index) => self.slots.cold(slot).groups.get(index).map(|table| (table.front(), table.held())),
        }
    }

    /// More than one group.
    pub(super) const fn is_grouped(&self) -> bool {
        !self.config.kv_groups.is_single()
    }

    /// Blocks of all groups that lengthen a request's tables by `n` blocks of positions.
    pub(super) fn growth(&self, slot: u32, n: u32) -> u32 {
        let len = self.slots[slot].table.len() as u32;
        self.config.kv_groups.growth(len, len.saturating_add(n), self.config.block_size)
    }

    /// Blocks that a request has still to take, at one time at most, until its tables are `wanted` blocks of positions long.
    pub(super) fn due(&self, slot: u32, wanted: u32) -> u32 {
        let (len, cold) = (self.slots[slot].table.len() as u32, self.slots.cold(slot));
        let due = self.config.kv_groups.due(len, wanted, self.config.block_size, self.config.ahead(), |index| cold.groups[index].front());
        due.saturating_add(self.cross_due(slot))
    }

    /// The same for one that would be admitted with `hits` blocks of positions found.
    pub(super) fn due_behind(&self, slot: u32, hits: u32, wanted: u32) -> u32 {
        self.config.due_behind(hits, wanted, 0).saturating_add(self.cross_due(slot))
    }

    /// Blocks for the encoder's output that the request has not taken yet.
    pub(super) fn cross_due(&self, slot: u32) -> u32 {
        let cold = self.slots.cold(slot);
        let taken = self.config.more_groups().any(|(index, group)| group == KvGroup::Cross && cold.groups[index].len() > 0);
        if taken { 0 } else { self.config.blocks(cold.cross_tokens) }
    }

    /// Blocks of positions that are to be set aside for a request, by the rule of admission.
    fn set_aside(&self, slot: u32) -> u32 {
        match self.config.admission {
            Admission::ReservePrompt => self.config.blocks(self.slots[slot].known()),
            Admission::NoEvict => self.longest_blocks(slot),
            Admission::Lazy => 0,
        }
    }

    /// Lengthens all tables by `n` blocks of positions. The blocks were counted, and are there.
    pub(super) fn take_in_groups(&mut self, slot: u32, n: u32) {
        let blocks = self.growth(slot, n);
        self.spend_reserve(slot, blocks);
        let size = self.config.block_size;
        for _ in 0..n {
            let len = self.slots[slot].table.len() as u32 + 1;
            let Some(block) = self.taken(false) else { return };
            self.slots[slot].table.push(block);
            for (index, group) in self.config.more_groups() {
                if group.entries_of_blocks(len, size) > self.slots.cold(slot).groups[index].len() {
                    let Some(block) = self.taken(group.slides()) else { return };
                    self.slots.cold_mut(slot).groups[index].push(block);
                }
            }
        }
    }

    fn taken(&mut self, slides: bool) -> Option<BlockId> {
        let taken = self.pool.take_for(slides);
        debug_assert!(taken.is_some(), "blocks were counted but are not there");
        taken
    }

    fn spend_reserve(&mut self, slot: u32, blocks: u32) {
        let from_reserve = blocks.min(self.slots[slot].reserved);
        self.slots[slot].reserved -= from_reserve;
        self.reserved -= from_reserve;
    }

    /// After an admission: the blocks found in the further groups are held, before any is taken, then those for the encoder's output are taken.
    /// `fresh`: its tables were empty.
    pub(super) fn begin_groups(&mut self, slot: u32, hits: u32, fresh: bool) {
        let size = self.config.block_size;
        if fresh {
            for (index, group) in self.config.more_groups() {
                let mut table = core::mem::take(&mut self.slots.cold_mut(slot).groups[index]);
                table.begin(group.front(hits * size, size));
                for entry in table.front()..group.entries_of_blocks(hits, size) {
                    let Some(block) = self.found_in_group(&self.slots.cold(slot).digests, index, group, entry) else { break };
                    self.pool.hold(block);
                    table.push(block);
                }
                self.slots.cold_mut(slot).groups[index] = table;
            }
        }
        let cross = self.cross_due(slot);
        self.spend_reserve(slot, cross);
        for (index, group) in self.config.more_groups().filter(|&(_, group)| group == KvGroup::Cross) {
            for _ in 0..cross {
                let Some(block) = self.taken(group.slides()) else { return };
                self.slots.cold_mut(slot).groups[index].push(block);
            }
        }
    }

    // ---- the prefix cache ------------------------------------------------------------------------------------------------

    /// The block that holds an entry of what these digests name in the `index`th further group, if one is found.
    fn found_in_group(&self, digests: &[Digest], index: usize, group: KvGroup, entry: u32) -> Option<BlockId> {
        let digest = *digests.get(self.last_block(group, entry) as usize)?;
        // A block of another group never has this name, but in a snapshot that was made up.
        self.pool.find(self.hashing.in_group(digest, index)).filter(|&block| self.pool.slides(block) == group.slides())
    }

    /// The block of positions at whose end an entry is complete.
    fn last_block(&self, group: KvGroup, entry: u32) -> u32 {
        match group {
            KvGroup::State { grain } => (entry + 1).saturating_mul(grain / self.config.block_size) - 1,
            _ => entry,
        }
    }

    /// How many of the first `hits` blocks of positions can be taken over with all that the further groups need behind them. Blocks behind a window
    /// go before others, so what is found is no prefix there, and is looked for from the end. O(`hits` * groups).
    pub(super) fn common_hits(&self, digests: &[Digest], hits: u32) -> u32 {
        let (groups, size) = (&self.config.kv_groups, self.config.block_size);
        let ratio = if groups.has_state() { groups.grain() / size } else { 1 };
        let mut hits = hits / ratio * ratio;
        'lower: while hits > 0 {
            for (index, group) in self.config.more_groups() {
                let needed = group.front(hits * size, size)..group.entries_of_blocks(hits, size);
                let missing = needed.rev().find(|&entry| self.found_in_group(digests, index, group, entry).is_none());
                if let Some(entry) = missing {
                    // Every number of hits down to this one needs the entry that is missing.
                    let without = match group {
                        KvGroup::State { .. } => hits - ratio,
                        _ => entry,
                    };
                    hits = without / ratio * ratio;
                    continue 'lower;
                }
            }
            break;
        }
        hits
    }

    /// How many blocks a hit of so many blocks of positions takes away from others in the further groups; none: it is not there.
    pub(super) fn cost_of_hits(&self, slot: u32, hits: u32) -> Option<u32> {
        let size = self.config.block_size;
        let mut taken = 0;
        for (index, group) in self.config.more_groups() {
            for entry in group.front(hits * size, size)..group.entries_of_blocks(hits, size) {
                let block = self.found_in_group(&self.slots.cold(slot).digests, index, group, entry)?;
                taken += u32::from(self.pool.costs(block));
            }
        }
        Some(taken)
    }

    /// The entries of the further groups that end with a block of positions are found from now on.
    pub(super) fn publish_in_groups(&mut self, slot: u32, block: u32) {
        for (index, group) in self.config.more_groups() {
            let entry = group.entries_of_blocks(block + 1, self.config.block_size).saturating_sub(1);
            if group == KvGroup::Cross || self.last_block(group, entry) != block {
                continue;
            }
            let cold = self.slots.cold(slot);
            let Some(own) = cold.groups[index].get(entry) else { continue };
            let name = |block: u32| cold.digests.get(block as usize).map(|&digest| self.hashing.in_group(digest, index));
            let parent = entry.checked_sub(1).and_then(|parent| name(self.last_block(group, parent)));
            if let Some(digest) = name(block) {
                self.pool.publish(own, digest, parent);
            }
        }
    }

    // ---- giving back -----------------------------------------------------------------------------------------------------

    /// Gives back what no position from the base on reads. As many blocks as are still due are set aside again. True: something was.
    ///
    /// A block that another holder has let go with a batch in flight stays until that batch is done: it would not be free.
    pub(super) fn slide(&mut self, slot: u32) -> bool {
        let size = self.config.block_size;
        let base = self.config.kv_groups.base(self.slots[slot].committed);
        let mut given = 0;
        for (index, group) in self.config.more_groups() {
            let front = group.front(base, size);
            loop {
                let table = &self.slots.cold(slot).groups[index];
                let first = table.held().first().copied().filter(|_| table.front() < front);
                let Some(block) = first.filter(|&block| !self.pool.waits(block)) else { break };
                self.pool.release(block, None);
                self.slots.cold_mut(slot).groups[index].pop_front();
                given += 1;
            }
        }
        self.set_aside_again(slot, given);
        given > 0
    }

    /// Of `given` blocks that the request has let go, as many are set aside for it as it is due.
    fn set_aside_again(&mut self, slot: u32, given: u32) {
        if given > 0 && self.config.admission != Admission::Lazy {
            let more = self.due(slot, self.set_aside(slot)).saturating_sub(self.slots[slot].reserved).min(given);
            self.slots[slot].reserved += more;
            self.reserved += more;
        }
    }

    /// After a loss: all tables end with `keep` blocks of positions. Nothing is in flight.
    pub(super) fn shorten_groups(&mut self, slot: u32, keep: u32) {
        let size = self.config.block_size;
        let mut given = 0;
        for (index, group) in self.config.more_groups().filter(|&(_, group)| group != KvGroup::Cross) {
            while self.slots.cold(slot).groups[index].len() > group.entries_of_blocks(keep, size) {
                let Some(block) = self.slots.cold_mut(slot).groups[index].pop() else { break };
                self.pool.release(block, None);
                given += 1;
            }
        }
        while self.slots[slot].table.len() as u32 > keep {
            let Some(block) = self.slots[slot].table.pop() else { break };
            self.pool.release(block, None);
            given += 1;
        }
        self.set_aside_again(slot, given);
    }

    /// Lets go of the blocks of all groups, the end of the sequence first: a prefix that all groups have outlives its extensions. Blocks of positions
    /// from `covered` on are in no row in flight.
    pub(super) fn release_groups(&mut self, slot: u32, table: &[BlockId], covered: u32, fence: Option<u64>) {
        let size = self.config.block_size;
        let mut tables = core::mem::take(&mut self.slots.cold_mut(slot).groups);
        let groups = self.config.kv_groups;
        let groups = groups.more();
        for (position, &block) in table.iter().enumerate().rev() {
            let position = position as u32;
            let fence = fence.filter(|_| position < covered);
            for (own, group) in tables.iter_mut().zip(groups).rev().filter(|(_, group)| **group != KvGroup::Cross) {
                while own.len() > group.entries_of_blocks(position, size) {
                    // The state of a grain is written by rows from its first position on.
                    let Some(block) = own.pop() else { break };
                    self.pool.release(block, fence);
                }
            }
            self.pool.release(block, fence);
        }
        for own in &mut tables {
            while let Some(block) = own.pop() {
                self.pool.release(block, fence);
            }
            own.begin(0);
        }
        self.slots.cold_mut(slot).groups = tables;
    }

    // ---- forks -----------------------------------------------------------------------------------------------------------

    /// With several groups a fork shares whole blocks alone, up to the last position that all of the parent's tables still serve, and computes the
    /// rest of the prompt itself: nothing is copied. The blocks of positions that are shared; 0 = it begins like any other request.
    pub(super) fn share_groups(&mut self, from: u32, slot: u32) -> u32 {
        let (groups, size) = (self.config.kv_groups, self.config.block_size);
        let p = &self.slots[from];
        let most = groups.base(p.committed).min(p.prompt_len - 1);
        let shared = groups.base(most) / size;
        let tables = &self.slots.cold(from).groups;
        let fronts = |group: &KvGroup| group.front(shared * size, size);
        let served = groups.more().iter().zip(tables).all(|(group, table)| table.front() <= fronts(group));
        let needed = |(group, table): (&KvGroup, &GroupTable)| {
            let entries = fronts(group)..group.entries_of_blocks(shared, size);
            entries.filter_map(|entry| table.get(entry)).filter(|&block| self.pool.costs(block)).count() as u32
        };
        let cost: u32 = groups.more().iter().zip(tables).map(needed).sum();
        if shared == 0 || !served || cost > self.unreserved() {
            return 0;
        }
        for block in 0..shared as usize {
            let block = self.slots[from].table[block];
            self.pool.hold(block);
            self.slots[slot].table.push(block);
        }
        for (index, group) in self.config.more_groups() {
            let mut table = GroupTable::default();
            table.begin(group.front(shared * size, size));
            for entry in table.front()..group.entries_of_blocks(shared, size) {
                let Some(block) = self.slots.cold(from).groups[index].get(entry) else { break };
                self.pool.hold(block);
                table.push(block);
            }
            self.slots.cold_mut(slot).groups[index] = table;
        }
        shared
    }
}
