//! From a digest to the blocks that hold its prefix. Several blocks may hold the same one; each can be hit, and the loss of one leaves the others.

use alloc::vec::Vec;

use super::Digest;

/// A set of blocks, a bit each: small enough to stay in a cache.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn get(&self, block: u32) -> bool {
        self.0.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 != 0)
    }

    fn set(&mut self, block: u32, holds: bool) {
        let word = &mut self.0[block as usize / 64];
        let bit = 1 << (block % 64);
        *word = if holds { *word | bit } else { *word & !bit };
    }
}

/// The prefix index. All operations O(1) expected; nothing allocates after `new`, and what is there for blocks that were never used is not touched.
///
/// The table has open addressing with linear probing, at most half full. A place holds 1 + the number of a block, and above it 32 bits of the
/// digest, so that a look-up reads one line of the table and, nearly always, no digest but the right one. What is removed leaves no mark: later
/// places move up (Knuth, "The Art of Computer Programming" 3, section 6.4, algorithm R).
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// As many places as a power of two; 0 = empty.
    table: Vec<u64>,
    /// By block.
    digests: Vec<Digest>,
    hashed: Bits,
    /// Blocks whose links mean something: several blocks have their digest.
    linked: Bits,
    /// The other blocks with a block's digest, before it and behind it: 1 + number, 0 = none. The first of them is the one in the table.
    links: Vec<[u32; 2]>,
    /// What was read ahead: kept, or nothing would be read.
    seen: u64,
    /// Counts the changes: equal versions find the same.
    version: u64,
}

/// Digests are the output of a keyed pseudo-random function, so any 32 bits of them make a good and safe hash.
const fn tag(digest: Digest) -> u32 {
    digest as u32
}

const fn place(tag: u32, block: u32) -> u64 {
    (tag as u64) << 32 | (block as u64 + 1)
}

const fn block_of(place: u64) -> u32 {
    (place as u32).wrapping_sub(1)
}

impl Index {
    /// An index over `num_blocks` blocks; with 0 it is off.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let blocks = num_blocks as usize;
        let places = if blocks == 0 { 0 } else { (blocks * 2).next_power_of_two() };
        let bits = || Bits(alloc::vec![0; blocks.div_ceil(64)]);
        // All zeros: the allocator has such memory without writing it.
        Self {
            table: alloc::vec![0; places],
            digests: alloc::vec![0; blocks],
            hashed: bits(),
            linked: bits(),
            links: alloc::vec![[0; 2]; blocks],
            seen: 0,
            version: 0,
        }
    }

    /// Whether there is a prefix cache at all.
    #[cfg(feature = "serde")]
    pub(crate) fn is_on(&self) -> bool {
        !self.digests.is_empty()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn is_hashed(&self, block: u32) -> bool {
        self.hashed.get(block)
    }

    /// What the block is found under, if it is.
    pub(crate) fn digest(&self, block: u32) -> Option<Digest> {
        self.is_hashed(block).then(|| self.digests[block as usize])
    }

    /// Where the probe for a digest ends: at the block that it finds, or at an empty place.
    fn probe(&self, digest: Digest) -> usize {
        let (tag, mask) = (tag(digest), self.table.len() - 1);
        let mut at = tag as usize & mask;
        while self.table[at] != 0 {
            let here = self.table[at];
            if (here >> 32) as u32 == tag && self.digests[block_of(here) as usize] == digest {
                break;
            }
            at = (at + 1) & mask;
        }
        at
    }

    /// Reads where the probes for these digests begin, so that the memory is near when they do. Nothing comes of it but the time that is saved: a read
    /// does not wait for the one before it, as it would with all that lies between two operations.
    pub(crate) fn look_ahead(&mut self, digests: &[Digest]) {
        let mask = self.table.len().wrapping_sub(1);
        let seen = digests.iter().filter_map(|&digest| self.table.get(tag(digest) as usize & mask));
        self.seen = seen.fold(self.seen, |seen, place| seen ^ place);
    }

    /// The oldest block with this digest.
    pub(crate) fn find(&self, digest: Digest) -> Option<u32> {
        if self.table.is_empty() {
            return None;
        }
        let here = self.table[self.probe(digest)];
        (here != 0).then(|| block_of(here))
    }

    fn links(&self, block: u32) -> [u32; 2] {
        if self.linked.get(block) { self.links[block as usize] } else { [0; 2] }
    }

    fn link(&mut self, block: u32, links: [u32; 2]) {
        self.linked.set(block, links != [0; 2]);
        if links != [0; 2] {
            self.links[block as usize] = links;
        }
    }

    /// From now on `block` is found under `digest`. True: nothing was found under it before.
    pub(crate) fn insert(&mut self, block: u32, digest: Digest) -> bool {
        debug_assert!(!self.is_hashed(block));
        self.version += 1;
        self.digests[block as usize] = digest;
        self.hashed.set(block, true);
        let at = self.probe(digest);
        if self.table[at] == 0 {
            self.table[at] = place(tag(digest), block);
            return true;
        }
        let first = block_of(self.table[at]);
        let [before, next] = self.links(first);
        self.link(block, [first + 1, next]);
        self.link(first, [before, block + 1]);
        if let Some(next) = next.checked_sub(1) {
            let [_, behind] = self.links(next);
            self.link(next, [block + 1, behind]);
        }
        false
    }

    /// `block` is found no more. The digest under which nothing is found any more, if it was the last.
    pub(crate) fn remove(&mut self, block: u32) -> Option<Digest> {
        if !self.is_hashed(block) {
            return None;
        }
        self.version += 1;
        let digest = self.digests[block as usize];
        let [prev, next] = self.links(block);
        if let Some(next) = next.checked_sub(1) {
            let [_, behind] = self.links(next);
            self.link(next, [prev, behind]);
        }
        match prev.checked_sub(1) {
            Some(prev) => {
                let [before, _] = self.links(prev);
                self.link(prev, [before, next]);
            }
            None => {
                let at = self.place_of(digest, block);
                if next == 0 {
                    self.close(at);
                } else {
                    self.table[at] = place(tag(digest), next - 1);
                }
            }
        }
        self.link(block, [0; 2]);
        self.hashed.set(block, false);
        ([prev, next] == [0; 2]).then_some(digest)
    }

    /// The place of a block that is in the table.
    fn place_of(&self, digest: Digest, block: u32) -> usize {
        let (wanted, mask) = (place(tag(digest), block), self.table.len() - 1);
        let mut at = tag(digest) as usize & mask;
        while self.table[at] != wanted && self.table[at] != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    /// Empties a place; those behind it that were pushed on by others move up.
    fn close(&mut self, mut hole: usize) {
        let mask = self.table.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let here = self.table[at];
            if here == 0 {
                break;
            }
            let home = (here >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = here;
                hole = at;
            }
        }
        self.table[hole] = 0;
    }

    /// Forgets everything. O(blocks).
    pub(crate) fn clear(&mut self) {
        self.version += 1;
        self.table.fill(0);
        self.hashed.0.fill(0);
        self.linked.0.fill(0);
    }

    /// Blocks that are found by some digest. O(blocks), for checks.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = (u32, Digest)> + '_ {
        (0..).zip(&self.digests).filter(|&(block, _)| self.is_hashed(block)).map(|(block, &digest)| (block, digest))
    }

    /// Blocks with their digests, in an order that gives an equal index when they are inserted in it. O(blocks).
    #[cfg(feature = "serde")]
    pub(crate) fn in_order(&self) -> Vec<(u32, Digest)> {
        let firsts = self.hashed().filter(|&(block, _)| self.links(block)[0] == 0);
        let mut all = Vec::new();
        for (first, digest) in firsts {
            all.push((first, digest));
            // A block is inserted right behind the first one: the last of a chain comes first.
            let rest = all.len();
            let mut next = self.links(first)[1];
            while let Some(block) = next.checked_sub(1) {
                all.push((block, digest));
                next = self.links(block)[1];
            }
            all[rest..].reverse();
        }
        all
    }

    /// Checks the chains against the table. O(blocks).
    pub(crate) fn is_consistent(&self) -> bool {
        let reached: usize = self
            .table
            .iter()
            .filter(|&&place| place != 0)
            .map(|&place| {
                let first = block_of(place);
                let (mut n, mut at, mut prev) = (0, first + 1, 0);
                while let Some(block) = at.checked_sub(1) {
                    let [before, next] = self.links(block);
                    if before != prev || self.digest(block) != self.digest(first) || self.digest(block).is_none() || n > self.digests.len()
                    {
                        return usize::MAX / 2;
                    }
                    (n, prev, at) = (n + 1, at, next);
                }
                n
            })
            .sum();
        reached == self.hashed().count() && self.hashed().all(|(_, digest)| self.find(digest).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_blocks_with_a_digest_may_go() {
        let mut index = Index::new(4);
        for block in [2, 0, 3] {
            index.insert(block, 77);
            assert!(index.is_consistent());
        }
        index.insert(1, 78);
        for (gone, left) in [(2, true), (3, true), (0, false)] {
            index.remove(gone);
            assert!(index.is_consistent());
            assert_eq!(index.find(77).is_some(), left);
        }
        assert_eq!(index.find(78), Some(1));
        index.clear();
        assert_eq!((index.find(78), index.hashed().count()), (None, 0));
    }

    #[test]
    fn like_a_map_under_random_operations_however_digests_collide() {
        use alloc::collections::BTreeMap;
        let mut index = Index::new(64);
        let (mut map, mut state) = (BTreeMap::<u32, Digest>::new(), 9u64);
        for round in 0..40_000u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (state >> 33) as u32 % 64;
            if map.remove(&block).is_some() {
                let digest = index.digest(block);
                let gone = index.remove(block);
                assert_eq!(gone.is_some(), !map.values().any(|&other| Some(other) == digest));
            } else {
                // Few places, fewer tags, and digests that differ above them alone.
                let digest = Digest::from((state >> 40) % 8 * 16 + 120) | Digest::from((state >> 50) % 5) << 64;
                assert_eq!(index.insert(block, digest), !map.values().any(|&other| other == digest));
                map.insert(block, digest);
            }
            if round % 16 == 0 {
                assert!(index.is_consistent());
                assert!(index.hashed().eq(map.iter().map(|(&block, &digest)| (block, digest))));
            }
        }
    }
}
