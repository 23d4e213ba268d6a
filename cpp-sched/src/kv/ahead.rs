//! Memory that evictions will need, read before they do.
//!
//! An eviction follows a chain: the block's record names the next one, its digest says where it stands in the index. In a large pool each link of it
//! is a wait for memory, longer than all the rest of a decode. So the cached blocks that come next are looked at some at a time: what one of them
//! needs comes while that of the others does. These are hints. Blocks may leave the list meanwhile, and nothing is decided by what is read here.

use super::NIL;
use super::links::Linked;
use super::pool::Pool;

/// How many blocks are looked at together.
const TOGETHER: usize = 8;

/// The cached blocks that are evicted after those that are near.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    blocks: [u32; TOGETHER],
    len: usize,
    /// The last one that was walked to.
    at: u32,
    /// Evictions until these come.
    near: usize,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { blocks: [NIL; TOGETHER], len: 0, at: NIL, near: 0 }
    }
}

impl Pool {
    /// A cached block is about to be evicted, the first one in the list.
    pub(super) fn look_ahead_of_eviction(&mut self) {
        if self.ahead.near == 0 {
            if self.ahead.len == 0 || self.ahead.blocks[0] != self.cached.head {
                // The way was lost.
                (self.ahead.len, self.ahead.at) = (0, NIL);
                (0..TOGETHER).for_each(|_| self.walk_on());
            }
            let mut digests = [0; TOGETHER];
            let blocks = &self.ahead.blocks[..self.ahead.len];
            for (digest, &block) in digests.iter_mut().zip(blocks) {
                *digest = self.index.digest(block).unwrap_or(0);
            }
            self.index.look_ahead(&digests[..blocks.len()]);
            (self.ahead.near, self.ahead.len) = (blocks.len(), 0);
        }
        self.ahead.near = self.ahead.near.saturating_sub(1);
        self.walk_on();
    }

    /// One step along the list. The record that it comes to is written to, which does not wait for it, and is there when the next step reads it.
    fn walk_on(&mut self) {
        let next = match self.ahead.at {
            NIL => self.cached.head,
            at => self.blocks.link(at).next,
        };
        if self.ahead.len < TOGETHER && next != NIL {
            self.blocks.0[next as usize].walked = true;
            self.ahead.blocks[self.ahead.len] = next;
            (self.ahead.len, self.ahead.at) = (self.ahead.len + 1, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;
    use crate::ids::BlockId;
    use crate::kv::Digest;

    #[test]
    fn evictions_keep_their_order_whatever_leaves_the_list_meanwhile() {
        let mut pool = Pool::new(60, 1, true);
        let (mut next, mut state) = (0u64, 5u64);
        let mut name = |pool: &mut Pool, block: BlockId| {
            next += 1;
            pool.publish(block, Digest::from(next) << 7, None);
        };
        let mut cached = VecDeque::new();
        while let Some(block) = pool.take() {
            name(&mut pool, block);
            cached.push_back(block);
        }
        cached.iter().for_each(|&block| pool.release(block, None));
        let mut held = VecDeque::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match (state >> 33) % 4 {
                // A hit, often one of those that were looked at already.
                0 if !cached.is_empty() => {
                    let block = cached.remove((state >> 40) as usize % cached.len().min(20)).unwrap();
                    pool.hold(block);
                    held.push_back(block);
                }
                1 | 2 => {
                    let evicted = pool.take();
                    assert_eq!(evicted, cached.pop_front());
                    if let Some(block) = evicted {
                        name(&mut pool, block);
                        held.push_back(block);
                    }
                }
                _ => {
                    for _ in 0..3 {
                        let Some(block) = held.pop_front() else { break };
                        pool.release(block, None);
                        cached.push_back(block);
                    }
                }
            }
        }
        assert!(pool.is_consistent());
    }
}
