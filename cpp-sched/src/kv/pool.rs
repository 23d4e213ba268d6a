//! The pool of KV blocks: references, transfers, fences, and what is free to take.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::ahead::Ahead;
use super::index::Index;
use super::links::{Link, Linked, List};
use super::{Digest, KvEvent};
use crate::ids::BlockId;
use crate::outcome::KvUsage;

/// One block. It is in a list exactly when nobody holds or pins it: in the one of its fence, else cached, else free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) refs: u32,
    pub(super) pins: u32,
    /// Its holders may let it go while they run on: see `Pool::spare`.
    pub(super) slides: bool,
    /// Written by [`ahead`](super::ahead), and never read.
    pub(super) walked: bool,
    link: Link,
    /// 1 + the newest batch that had the block in a table when a holder let it go; 0 = none.
    pub(super) fence: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Blocks(pub(super) Vec<Block>);

impl Linked for Blocks {
    fn link(&self, element: u32) -> Link {
        self.0[element as usize].link
    }

    fn link_mut(&mut self, element: u32) -> &mut Link {
        &mut self.0[element as usize].link
    }
}

/// The pool. Every operation is O(1) but where it says so.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    /// Those that were taken once; the others have no record yet.
    pub(super) blocks: Blocks,
    total: u32,
    pub(super) index: Index,
    /// Free blocks that were taken once. Behind them come those that never were, in their order.
    pub(super) free: List,
    /// Least recently used first.
    pub(super) cached: List,
    /// One list a batch in flight, oldest first: what becomes free when that batch is done.
    pub(super) fences: VecDeque<List>,
    /// Number of the batch of `fences[0]`.
    pub(super) oldest: u64,
    pub(super) held: u32,
    pub(super) pinned: u32,
    pub(super) fenced: u32,
    /// Holders beyond the first of blocks that holders may let go while they run on. Each of them is to find a block when it has let go, as if
    /// it had not shared: so many available blocks are spoken for.
    pub(super) spare: u32,
    pub(super) ahead: Ahead,
    /// Changes of the index, if they are to be told.
    pub(crate) events: Vec<KvEvent>,
    tells: bool,
}

impl Pool {
    pub(crate) fn new(num_blocks: u32, depth: u32, caching: bool) -> Self {
        Self {
            // Room is asked for, and written as blocks are taken.
            blocks: Blocks(Vec::with_capacity(num_blocks as usize)),
            total: num_blocks,
            index: Index::new(if caching { num_blocks } else { 0 }),
            free: List::EMPTY,
            cached: List::EMPTY,
            fences: VecDeque::with_capacity(depth.min(1024) as usize + 1),
            oldest: 0,
            held: 0,
            pinned: 0,
            fenced: 0,
            spare: 0,
            ahead: Ahead::default(),
            events: Vec::new(),
            tells: false,
        }
    }

    /// Blocks that were never taken.
    pub(super) fn untouched(&self) -> core::ops::Range<u32> {
        self.blocks.0.len() as u32..self.total
    }

    fn touch(&mut self) {
        self.blocks.0.push(Block { refs: 0, pins: 0, slides: false, walked: false, link: Link::NONE, fence: 0 });
    }

    /// All blocks get their record: free blocks are about to come behind those that were never taken. O(blocks).
    pub(super) fn touch_all(&mut self) {
        for block in self.untouched() {
            self.touch();
            self.free.push_back(&mut self.blocks, block);
        }
    }

    /// Changes of the index are told from now on.
    pub(crate) fn tell_events(&mut self) {
        self.tells = true;
    }

    /// Blocks that can be taken now.
    pub(crate) fn available(&self) -> u32 {
        (self.free.len + self.untouched().len() as u32 + self.cached.len).saturating_sub(self.spare)
    }

    /// Blocks that can be taken when the batches in flight are done.
    pub(crate) fn coming(&self) -> u32 {
        self.fenced
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn usage(&self) -> KvUsage {
        KvUsage {
            total: self.total,
            free: self.free.len + self.untouched().len() as u32,
            held: self.held,
            cached: self.cached.len,
            fenced: self.fenced,
            pinned: self.pinned,
        }
    }

    /// Takes a block that holds nothing of worth, the least recently used cached one if none is free. The caller holds it.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        self.take_for(false)
    }

    /// The same; `slides`: its holders may let it go while they run on.
    pub(crate) fn take_for(&mut self, slides: bool) -> Option<BlockId> {
        let block = self.pop_available()?;
        let b = &mut self.blocks.0[block as usize];
        (b.refs, b.slides) = (1, slides);
        self.held += 1;
        Some(BlockId(block))
    }

    /// Takes a block under a transfer: nobody holds it, and nobody may take it.
    pub(crate) fn take_pinned(&mut self) -> Option<BlockId> {
        let block = self.pop_available()?;
        let b = &mut self.blocks.0[block as usize];
        (b.pins, b.slides) = (1, false);
        self.pinned += 1;
        Some(BlockId(block))
    }

    fn pop_available(&mut self) -> Option<u32> {
        if let Some(block) = self.free.pop_front(&mut self.blocks) {
            return Some(block);
        }
        if let Some(block) = self.untouched().next() {
            self.touch();
            return Some(block);
        }
        if self.cached.len > 0 {
            self.look_ahead_of_eviction();
        }
        let block = self.cached.pop_front(&mut self.blocks)?;
        let gone = self.index.remove(block);
        if let (true, Some(digest)) = (self.tells, gone) {
            self.events.push(KvEvent::Removed { digest: digest.to_le_bytes() });
        }
        Some(block)
    }

    /// Whether taking this block by a hit leaves one less for others.
    pub(crate) fn is_available(&self, block: BlockId) -> bool {
        let b = &self.blocks.0[block.0 as usize];
        b.refs == 0 && b.pins == 0 && !self.is_fenced(b)
    }

    /// Whether holders of this block may let it go while they run on.
    pub(crate) fn slides(&self, block: BlockId) -> bool {
        self.blocks.0[block.0 as usize].slides
    }

    /// Whether one more holder of this block leaves one block less for others.
    pub(crate) fn costs(&self, block: BlockId) -> bool {
        let b = &self.blocks.0[block.0 as usize];
        self.is_available(block) || (b.slides && b.refs > 0)
    }

    /// Whether a batch in flight has the block in the table of somebody who has let it go.
    pub(crate) fn waits(&self, block: BlockId) -> bool {
        self.is_fenced(&self.blocks.0[block.0 as usize])
    }

    fn is_fenced(&self, b: &Block) -> bool {
        b.fence > self.oldest
    }

    /// One more holder.
    pub(crate) fn hold(&mut self, block: BlockId) {
        self.detach(block);
        let b = &mut self.blocks.0[block.0 as usize];
        if b.refs == 0 {
            self.held += 1;
            if b.pins > 0 {
                self.pinned -= 1;
            }
        } else if b.slides {
            self.spare += 1;
        }
        b.refs += 1;
    }

    /// One holder less. `fence` is the newest batch in flight that has the block in a table of this holder.
    pub(crate) fn release(&mut self, block: BlockId, fence: Option<u64>) {
        let b = &mut self.blocks.0[block.0 as usize];
        debug_assert!(b.refs > 0);
        b.refs -= 1;
        if let Some(batch) = fence {
            b.fence = b.fence.max(batch + 1);
        }
        if b.refs > 0 {
            self.spare -= u32::from(b.slides);
        } else {
            self.held -= 1;
            if b.pins > 0 {
                self.pinned += 1;
            } else {
                self.attach(block.0);
            }
        }
    }

    /// One more transfer.
    pub(crate) fn pin(&mut self, block: BlockId) {
        self.detach(block);
        let b = &mut self.blocks.0[block.0 as usize];
        if b.refs == 0 && b.pins == 0 {
            self.pinned += 1;
        }
        b.pins += 1;
    }

    /// One transfer less.
    pub(crate) fn unpin(&mut self, block: BlockId) {
        let b = &mut self.blocks.0[block.0 as usize];
        debug_assert!(b.pins > 0);
        b.pins -= 1;
        if b.pins == 0 && b.refs == 0 {
            self.pinned -= 1;
            self.attach(block.0);
        }
    }

    /// Takes a block that nobody uses out of its list.
    fn detach(&mut self, block: BlockId) {
        let b = &self.blocks.0[block.0 as usize];
        if b.refs > 0 || b.pins > 0 {
            return;
        }
        if self.is_fenced(b) {
            let list = (b.fence - 1 - self.oldest) as usize;
            self.fences[list].remove(&mut self.blocks, block.0);
            self.fenced -= 1;
        } else if self.index.is_hashed(block.0) {
            self.cached.remove(&mut self.blocks, block.0);
        } else {
            self.free.remove(&mut self.blocks, block.0);
        }
    }

    /// Puts a block that nobody uses into its list.
    fn attach(&mut self, block: u32) {
        let b = &self.blocks.0[block as usize];
        if self.is_fenced(b) {
            let list = (b.fence - 1 - self.oldest) as usize;
            self.fences[list].push_back(&mut self.blocks, block);
            self.fenced += 1;
        } else if self.index.is_hashed(block) {
            self.cached.push_back(&mut self.blocks, block);
        } else {
            // Warm memory first.
            self.free.push_front(&mut self.blocks, block);
        }
    }

    /// A batch joins those in flight; batches are numbered without gaps.
    pub(crate) fn open_fence(&mut self, batch: u64) {
        debug_assert_eq!(batch, self.oldest + self.fences.len() as u64);
        self.fences.push_back(List::EMPTY);
    }

    /// The oldest batch is done. O(blocks that its fence held).
    pub(crate) fn close_fence(&mut self) {
        let Some(mut list) = self.fences.pop_front() else { return };
        self.oldest += 1;
        self.fenced -= list.len;
        while let Some(block) = list.pop_front(&mut self.blocks) {
            self.attach(block);
        }
    }

    /// A held block is found by `digest` from now on.
    pub(crate) fn publish(&mut self, block: BlockId, digest: Digest, parent: Option<Digest>) {
        debug_assert!(self.blocks.0[block.0 as usize].refs > 0);
        let first = self.index.insert(block.0, digest);
        if self.tells && first {
            let parent = parent.map(Digest::to_le_bytes);
            self.events.push(KvEvent::Stored { block, digest: digest.to_le_bytes(), parent });
        }
    }

    /// The caller is about to publish blocks under these digests, or to find them.
    pub(crate) fn look_ahead(&mut self, digests: &[Digest]) {
        self.index.look_ahead(digests);
    }

    pub(crate) fn find(&self, digest: Digest) -> Option<BlockId> {
        self.index.find(digest).map(BlockId)
    }

    /// Nothing is found any more. O(blocks).
    pub(crate) fn forget(&mut self) {
        self.index.clear();
        if self.tells {
            self.events.push(KvEvent::Cleared);
        }
        if self.cached.len > 0 {
            self.touch_all();
        }
        while let Some(block) = self.cached.pop_front(&mut self.blocks) {
            self.free.push_back(&mut self.blocks, block);
        }
    }

    /// Who holds it.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.blocks.0[block.0 as usize].refs
    }

    /// References, pins and whether it is fenced, for checks.
    pub(crate) fn inspect(&self, block: u32) -> (u32, u32, bool) {
        self.blocks.0.get(block as usize).map_or((0, 0, false), |b| (b.refs, b.pins, self.is_fenced(b)))
    }

    /// Checks the lists against the blocks. O(blocks).
    pub(crate) fn is_consistent(&self) -> bool {
        let walk = |list: &List| {
            let (mut n, mut at, mut ok) = (0, list.head, true);
            while at != super::NIL && n <= list.len {
                ok &= self.blocks.0[at as usize].refs == 0 && self.blocks.0[at as usize].pins == 0;
                (n, at) = (n + 1, self.blocks.0[at as usize].link.next);
            }
            ok && n == list.len
        };
        let u = self.usage();
        walk(&self.free)
            && walk(&self.cached)
            && self.fences.iter().all(walk)
            && self.fences.iter().map(|l| l.len).sum::<u32>() == self.fenced
            && u.free + u.held + u.cached + u.fenced + u.pinned == u.total
            && self.blocks.0.iter().filter(|b| b.slides).map(|b| b.refs.saturating_sub(1)).sum::<u32>() == self.spare
            && self.blocks.0.iter().filter(|b| b.refs > 0).count() as u32 == self.held
            && self.blocks.0.iter().filter(|b| b.refs == 0 && b.pins > 0).count() as u32 == self.pinned
            && self.index.is_consistent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_block_waits_for_its_batch() {
        let mut pool = Pool::new(2, 4, false);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(pool.take(), None);
        pool.open_fence(0);
        pool.open_fence(1);
        pool.release(a, Some(1));
        pool.release(b, Some(0));
        assert_eq!((pool.available(), pool.coming()), (0, 2));
        pool.close_fence();
        assert_eq!((pool.available(), pool.coming()), (1, 1));
        assert_eq!(pool.take(), Some(b));
        pool.close_fence();
        assert_eq!(pool.take(), Some(a));
        assert!(pool.is_consistent());
    }

    #[test]
    fn blocks_that_were_never_taken_have_no_record_and_come_in_their_order() {
        let mut pool = Pool::new(1 << 20, 1, true);
        let taken: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert_eq!((taken.as_slice(), pool.blocks.0.len()), (&[BlockId(0), BlockId(1), BlockId(2)][..], 3));
        assert_eq!((pool.usage().free, pool.usage().total), ((1 << 20) - 3, 1 << 20));
        pool.release(taken[1], None);
        assert_eq!((pool.take(), pool.take()), (Some(BlockId(1)), Some(BlockId(3))), "warm memory first");
        pool.publish(taken[2], 9, None);
        pool.release(taken[2], None);
        assert!(pool.is_consistent());
        pool.forget();
        assert!(pool.is_consistent());
        assert_eq!((pool.take(), pool.usage().free), (Some(BlockId(4)), (1 << 20) - 4), "what was found comes last");
    }

    #[test]
    fn a_fenced_block_can_be_hit_and_keeps_its_fence() {
        let mut pool = Pool::new(1, 4, true);
        let a = pool.take().unwrap();
        pool.publish(a, 5, None);
        pool.open_fence(0);
        pool.release(a, Some(0));
        assert_eq!(pool.find(5), Some(a));
        pool.hold(a);
        assert_eq!(pool.usage().held, 1);
        pool.release(a, None);
        assert_eq!(pool.usage().fenced, 1);
        pool.close_fence();
        assert_eq!(pool.usage().cached, 1);
        assert!(pool.is_consistent());
    }

    #[test]
    fn least_recently_used_goes_first_and_pins_outlive_holders() {
        let mut pool = Pool::new(3, 1, true);
        let taken: Vec<_> = (0..3).map(|_| pool.take().unwrap()).collect();
        for (digest, &block) in (10..).zip(&taken) {
            pool.publish(block, digest, None);
        }
        pool.pin(taken[2]);
        for &block in taken.iter().rev() {
            pool.release(block, None);
        }
        assert_eq!(pool.usage(), KvUsage { total: 3, free: 0, held: 0, cached: 2, fenced: 0, pinned: 1 });
        assert_eq!(pool.take(), Some(taken[1]), "a prefix outlives its extensions");
        pool.unpin(taken[2]);
        assert_eq!(pool.take(), Some(taken[0]));
        assert_eq!(pool.find(12), Some(taken[2]));
        pool.forget();
        assert_eq!((pool.find(12), pool.available()), (None, 1));
        assert!(pool.is_consistent());
    }
}
