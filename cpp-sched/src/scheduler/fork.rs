//! Parallel sampling: another request over the same prompt, sharing its blocks, with a copy of the last one when somebody writes to it.

use alloc::vec::Vec;

use super::Scheduler;
use crate::error::ForkError;
use crate::ids::{BlockId, RequestId};
use crate::request::{Fork, Prompt};
use crate::state::{State, Trait};

/// A block to be copied before the rows of a batch run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied {
    pub(super) slot: u32,
    pub(super) from: BlockId,
    pub(super) to: BlockId,
}

impl Scheduler {
    /// Starts `child` over the prompt of `parent`, whose prompt must be computed: it shares the parent's blocks and computes the last prompt
    /// position again, to sample a token of its own. Who first writes into the last shared block gets a copy ([`Batch::copies`](crate::Batch::copies)). With several KV groups only whole blocks are
    /// shared, as far as the parent still has what the windows and states of all groups need there, and nothing is copied. Nor is it under
    /// [`NoEvict`](crate::Admission::NoEvict), where no block is left for copies: the child computes what is behind the last whole block of the prompt.
    ///
    /// O(blocks of the prompt + log waiting).
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn fork(&mut self, parent: RequestId, child: Fork) -> Result<(), ForkError> {
        let from = self.slots.find(parent.0).ok_or(ForkError::Unknown(parent))?;
        let p = &self.slots[from];
        if matches!(p.state, State::Aborting | State::Sending) {
            return Err(ForkError::Ended(parent));
        }
        let computed =
            matches!(p.state, State::Running | State::Waiting | State::Paused) && p.committed >= p.prompt_len && !p.table.is_empty();
        if !computed || p.waits_kv {
            return Err(ForkError::NotComputed(parent));
        }
        let prompt_len = p.prompt_len;
        let prompt = if p.keeps_tokens {
            Prompt::Tokens(p.tokens[..prompt_len as usize].to_vec())
        } else {
            Prompt::Lengths { len: prompt_len, block_hashes: Vec::new() }
        };
        let grouped = self.is_grouped();
        let cold = self.slots.cold(from);
        let child = child.over(prompt, cold.cross_tokens, cold.adapter);
        let max_out = self.check(&child).map_err(ForkError::Submit)?;
        let cold = self.slots.cold(from);
        let (digests, spans) = (cold.digests.clone(), cold.spans.clone());
        let salted_root = if child.session { cold.salted_root } else { 0 };
        let cacheable = self.slots[from].has(Trait::Cacheable);
        // Beside its longest run the child needs a block for the copy of its tail; where there is none, it shares whole blocks alone. So it does where
        // the parent's tail is a copy itself that is still under way, and may be lost.
        let under_way = self.copy_under_way(from);
        let fits = self.config.blocks(self.config.longest(prompt_len, max_out)) < self.config.num_blocks;
        // And where blocks are set aside for whole runs nobody has one for a copy: who needs it might wait for those who wait for its slot.
        let copies = !grouped && fits && under_way.is_none() && !self.never_preempts();
        let whole = ((prompt_len - 1) / self.config.block_size).min(under_way.unwrap_or(u32::MAX));
        let behind = if copies { prompt_len } else { whole * self.config.block_size };
        let blocks = if grouped { 0 } else { self.config.blocks(behind) as usize };
        let slot = self.insert(child, max_out);
        for index in 0..blocks {
            let block = self.slots[from].table[index];
            self.pool.hold(block);
            self.slots[slot].table.push(block);
        }
        let whole = prompt_len / self.config.block_size;
        let shared = if grouped { self.share_groups(from, slot) } else { behind / self.config.block_size };
        let computed = if copies { prompt_len - 1 } else { shared * self.config.block_size };
        self.slots[from].shared_tail |= copies;
        let s = &mut self.slots[slot];
        (s.scheduled, s.committed, s.published) = (computed, computed, shared);
        (s.shared_tail, s.waits_kv) = (copies, false);
        s.set(Trait::Cacheable, cacheable);
        s.set(Trait::Spans, !spans.is_empty());
        let cold = self.slots.cold_mut(slot);
        cold.digests = digests;
        cold.digests.truncate(whole as usize);
        if spans.is_empty() != cold.spans.is_empty() || salted_root != cold.salted_root {
            (cold.spans, cold.salted_root) = (spans, salted_root);
        }
        self.queue_victim(slot);
        self.queue_waiting(slot);
        self.aim(slot);
        Ok(())
    }

    /// The place in the request's table of a block that a batch in flight copies.
    fn copy_under_way(&self, slot: u32) -> Option<u32> {
        let oldest = self.in_flight.front()?.id.0;
        self.slots.cold(slot).copied.filter(|&(batch, _)| batch >= oldest).map(|(_, index)| index)
    }

    /// Whether the block that the request writes next belongs to others too: one that is found by its digest belongs to all who may find it, and
    /// one that somebody has let go of to the rows in flight that have it.
    pub(super) fn has_shared_tail(&self, slot: u32) -> bool {
        let s = &self.slots[slot];
        let tail = if s.shared_tail { s.table.get((s.scheduled / self.config.block_size) as usize) } else { None };
        tail.is_some_and(|&block| {
            // Whoever takes a copy in the batch under construction goes on with that one, but for rows that are in flight before.
            let leaving = self.build.copies.iter().filter(|copied| copied.from == block && !self.is_in_earlier_batch(copied.slot));
            let leaving = leaving.count() as u32;
            self.pool.holders(block) > 1 + leaving || self.pool.index().is_hashed(block.0) || self.pool.waits(block)
        })
    }

    /// Whether the request has a row in a batch in flight. O(rows in flight).
    fn is_in_earlier_batch(&self, slot: u32) -> bool {
        self.in_flight.iter().any(|batch| batch.rows.iter().any(|row| row.slot == slot))
    }

    /// Makes sure that the block that the request writes next is its own. False: there is no block for the copy now.
    pub(super) fn own_tail(&mut self, slot: u32) -> bool {
        if self.has_shared_tail(slot) {
            let index = (self.slots[slot].scheduled / self.config.block_size) as usize;
            let shared = self.slots[slot].table[index];
            if !self.get_blocks(slot, 1) {
                // Those that shared it may have given way, and left it to this one.
                if self.has_shared_tail(slot) {
                    return false;
                }
                self.lacks_no_more(slot);
                self.owns_tail(slot);
                return true;
            }
            let Some(own) = self.slots[slot].table.pop() else { return false };
            self.slots[slot].table[index] = own;
            // The shared one is held until the batch that reads it has its number.
            self.build.copies.push(Copied { slot, from: shared, to: own });
            // A copy is not found by the digest of what it was copied from.
            let s = &mut self.slots[slot];
            s.published = s.published.max(index as u32);
        }
        self.owns_tail(slot);
        true
    }

    /// The block that the request writes next is its own. It may still go back to an earlier one, by a loss, or by an end that its rows in flight
    /// ran past: as long as they begin in that one, it is looked at again.
    fn owns_tail(&mut self, slot: u32) {
        let s = &mut self.slots[slot];
        s.shared_tail = s.committed / self.config.block_size < s.scheduled / self.config.block_size;
    }
}
