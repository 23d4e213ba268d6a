//! What every block must hold, by the log: each slot's token, who wrote it, and which whole blocks can be hit.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::request::{Fnv, Track};

/// What is in one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The token; none: rubbish.
    pub(super) token: Option<u32>,
    /// The batch that wrote it; none: a transfer, or a batch that was lost.
    pub(super) batch: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) slots: HashMap<u64, Slot>,
    /// Count of its writes.
    pub(super) stamp: u64,
    /// The salt of its last writer.
    pub(super) salt: Option<String>,
    /// Line of its last write.
    pub(super) born: usize,
}

/// Which tokens a whole block stands for: salt, its place in the sequence, hash over everything up to its end.
type Prefix = (Option<String>, u64, u64);

#[derive(Debug, Default)]
pub(super) struct Memory {
    blocks: HashMap<u32, Block>,
    /// Whole blocks that a completed batch has written, and nobody else since.
    published: HashMap<u32, Prefix>,
    /// The line of the last cache reset.
    pub(super) reset_at: usize,
}

impl Memory {
    pub(super) fn block(&self, block: u32) -> Option<&Block> {
        self.blocks.get(&block)
    }

    pub(super) fn stamp(&self, block: u32) -> u64 {
        self.block(block).map_or(0, |block| block.stamp)
    }

    pub(super) fn token(&self, block: u32, slot: u64) -> Option<u32> {
        self.block(block)?.slots.get(&slot)?.token
    }

    pub(super) fn write(&mut self, block: u32, slot: u64, value: Slot, salt: Option<&str>, line: usize) {
        let entry = self.blocks.entry(block).or_default();
        let before = entry.slots.insert(slot, value);
        entry.stamp += 1;
        entry.salt = salt.map(str::to_owned);
        entry.born = line;
        if before.is_none_or(|before| before.token != value.token) {
            self.published.remove(&block);
        }
    }

    /// The first `tokens` positions of a request are final: their whole blocks can be hit from now on.
    pub(super) fn publish(&mut self, track: &Track, tokens: u64, block_size: u64) {
        let mut hash = Fnv::START;
        for (k, &block) in (0..tokens / block_size).zip(&track.table) {
            let own = k * block_size..(k + 1) * block_size;
            own.clone().filter_map(|p| track.token(p)).for_each(|token| hash.push(token));
            // What was scheduled before a reset is never hit again, nor what hangs on it.
            if self.block(block).is_none_or(|block| block.born <= self.reset_at) {
                return;
            }
            if own.clone().all(|p| self.token(block, p % block_size) == track.token(p)) {
                self.published.insert(block, (track.spec.cache_salt.clone(), k, hash.0));
            }
        }
    }

    /// Tokens of the longest hit that a request certainly has now; at least one of its known tokens is left.
    pub(super) fn longest_hit(&self, track: &Track, block_size: u64) -> u64 {
        let there: HashSet<&Prefix> = self.published.values().collect();
        let mut hash = Fnv::START;
        for k in 0..(track.known() - 1) / block_size {
            (k * block_size..(k + 1) * block_size).filter_map(|p| track.token(p)).for_each(|token| hash.push(token));
            if !there.contains(&(track.spec.cache_salt.clone(), k, hash.0)) {
                return k * block_size;
            }
        }
        (track.known() - 1) / block_size * block_size
    }

    /// Somebody took the block for something else.
    pub(super) fn evict(&mut self, block: u32) {
        self.published.remove(&block);
    }

    /// Who knows what became of blocks other than these.
    pub(super) fn forget_all_but(&mut self, blocks: &BTreeSet<u32>) {
        self.published.retain(|block, _| blocks.contains(block));
    }

    /// Nothing is hit any more.
    pub(super) fn reset(&mut self, line: usize) {
        self.reset_at = line;
        self.published.clear();
    }
}
