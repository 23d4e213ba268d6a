//! The pool in a snapshot: the order of its lists and what is found in it; who holds a block follows from the block tables.

use alloc::vec::Vec;

use super::links::{Linked, List};
use super::pool::Pool;
use super::{Digest, NIL};
use crate::ids::BlockId;

/// What a snapshot says of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SavedPool {
    /// Free blocks, the next one to be taken first.
    pub(crate) free: Vec<u32>,
    /// Cached blocks, least recently used first.
    pub(crate) cached: Vec<u32>,
    /// Blocks under the fence of each batch in flight, oldest batch first.
    pub(crate) fenced: Vec<Vec<u32>>,
    /// Held or pinned blocks that a batch in flight has in an older table: the block, and how many batches, counted from the oldest one, must
    /// be done before it is free of it.
    pub(crate) behind: Vec<(u32, u32)>,
    /// Blocks that are found by a digest, in the order of their insertion.
    #[serde(with = "crate::wide::pairs")]
    pub(crate) hashed: Vec<(u32, Digest)>,
    /// Blocks whose holders may let them go while they run on.
    pub(crate) sliding: Vec<u32>,
}

/// Holders and transfers of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) refs: u32,
    pub(crate) pins: u32,
}

impl Use {
    const NONE: Self = Self { refs: 0, pins: 0 };
}

impl Pool {
    fn sliding(&self) -> impl Iterator<Item = u32> + '_ {
        let free =
            |block: &u32, b: &super::pool::Block| b.refs == 0 && b.pins == 0 && b.fence <= self.oldest && !self.index.is_hashed(*block);
        (0..).zip(&self.blocks.0).filter(move |(block, b)| b.slides && !free(block, b)).map(|(block, _)| block)
    }

    pub(crate) fn save(&self) -> SavedPool {
        let walk = |mut at: u32| {
            let mut blocks = Vec::new();
            while at != NIL {
                blocks.push(at);
                at = self.blocks.link(at).next;
            }
            blocks
        };
        let used = (0..).zip(&self.blocks.0).filter(|(_, b)| (b.refs > 0 || b.pins > 0) && b.fence > self.oldest);
        SavedPool {
            free: walk(self.free.head).into_iter().chain(self.untouched()).collect(),
            cached: walk(self.cached.head),
            fenced: self.fences.iter().map(|list| walk(list.head)).collect(),
            behind: used.map(|(block, b)| (block, (b.fence - self.oldest) as u32)).collect(),
            hashed: self.index.in_order(),
            // Of a free block it means nothing.
            sliding: self.sliding().collect(),
        }
    }

    /// Fills a new pool. `used`: by block, as many as there are. `oldest`: the number of the oldest batch in flight. The error names the first
    /// block that is wrong.
    pub(crate) fn load(&mut self, saved: &SavedPool, used: &[Use], oldest: u64) -> Result<(), (BlockId, &'static str)> {
        let wrong = |block: u32, what| Err((BlockId(block), what));
        self.touch_all();
        for (block, digest) in &saved.hashed {
            match self.blocks.0.get(*block as usize) {
                Some(_) if self.index.is_hashed(*block) => return wrong(*block, "it is found by two digests"),
                Some(_) if !self.index.is_on() => return wrong(*block, "it is found by a digest, and there is no prefix cache"),
                Some(_) => self.index.insert(*block, *digest),
                None => return wrong(*block, "there is no such block"),
            };
        }
        for (b, used) in self.blocks.0.iter_mut().zip(used) {
            (b.refs, b.pins) = (used.refs, used.pins);
        }
        for &block in &saved.sliding {
            match self.blocks.0.get_mut(block as usize) {
                Some(b) if b.pins == 0 => b.slides = true,
                Some(_) => return wrong(block, "it is under a transfer, and of a group whose blocks are let go one by one"),
                None => return wrong(block, "there is no such block"),
            }
        }
        self.spare = self.blocks.0.iter().filter(|b| b.slides).map(|b| b.refs.saturating_sub(1)).fold(0, u32::saturating_add);
        self.held = used.iter().filter(|u| u.refs > 0).count() as u32;
        self.pinned = used.iter().filter(|u| u.refs == 0 && u.pins > 0).count() as u32;
        (self.oldest, self.free) = (oldest, List::EMPTY);
        let mut listed = alloc::vec![false; used.len()];
        let lists = [&saved.free, &saved.cached].into_iter().chain(&saved.fenced);
        for (number, list) in (0u64..).zip(lists) {
            if number >= 2 {
                self.fences.push_back(List::EMPTY);
            }
            for &block in list {
                match used.get(block as usize) {
                    None => return wrong(block, "there is no such block"),
                    Some(&u) if u != Use::NONE => return wrong(block, "it is in use, and in a list of blocks that are not"),
                    Some(_) if core::mem::replace(&mut listed[block as usize], true) => return wrong(block, "it is in two lists"),
                    Some(_) => {}
                }
                let hashed = self.index.is_hashed(block);
                match number {
                    0 if hashed => return wrong(block, "it is free, and found by a digest"),
                    1 if !hashed => return wrong(block, "it is cached, and found by no digest"),
                    0 => self.free.push_back(&mut self.blocks, block),
                    1 => self.cached.push_back(&mut self.blocks, block),
                    _ => {
                        self.blocks.0[block as usize].fence = oldest + number - 1;
                        self.fenced += 1;
                        if let Some(fence) = self.fences.back_mut() {
                            fence.push_back(&mut self.blocks, block);
                        }
                    }
                }
            }
        }
        for &(block, batches) in &saved.behind {
            if used.get(block as usize).is_none_or(|&u| u == Use::NONE) || batches == 0 || batches as usize > saved.fenced.len() {
                return wrong(block, "it is not in use, or behind a batch that is not in flight");
            }
            self.blocks.0[block as usize].fence = oldest + u64::from(batches);
        }
        match (0..).zip(used).find(|&(block, &u)| u == Use::NONE && !listed[block as usize]) {
            Some((block, _)) => wrong(block, "nobody uses it, and no list has it"),
            None => Ok(()),
        }
    }
}
