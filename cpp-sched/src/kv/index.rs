//! From a digest to the blocks that hold its prefix. Several blocks may hold the same one; each can be hit, and the loss of one leaves the others.

use alloc::vec::Vec;

use hashbrown::HashTable;

use super::{Digest, NIL};

/// What the index keeps of a block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    digest: Digest,
    /// Other blocks with the same digest; the first of them is the one in the table.
    prev: u32,
    next: u32,
    hashed: bool,
}

const EMPTY: Entry = Entry { digest: 0, prev: NIL, next: NIL, hashed: false };

/// The prefix index. All operations O(1) expected; nothing allocates after `new`.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    table: HashTable<u32>,
    entries: Vec<Entry>,
    /// Counts the changes: equal versions find the same.
    version: u64,
}

/// Digests are the output of a keyed pseudo-random function, so any 64 bits of them make a good and safe hash.
const fn bucket(digest: Digest) -> u64 {
    digest as u64
}

impl Index {
    /// An index over `num_blocks` blocks; with 0 it is off.
    pub(crate) fn new(num_blocks: u32) -> Self {
        let blocks = num_blocks as usize;
        // Twice the blocks: enough room that erased places are re-used without growing.
        Self { table: HashTable::with_capacity(blocks * 2), entries: alloc::vec![EMPTY; blocks], version: 0 }
    }

    /// Whether there is a prefix cache at all.
    #[cfg(feature = "serde")]
    pub(crate) fn is_on(&self) -> bool {
        !self.entries.is_empty()
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn is_hashed(&self, block: u32) -> bool {
        self.entries.get(block as usize).is_some_and(|e| e.hashed)
    }

    /// The oldest block with this digest.
    pub(crate) fn find(&self, digest: Digest) -> Option<u32> {
        self.table.find(bucket(digest), |&b| self.entries[b as usize].digest == digest).copied()
    }

    /// From now on `block` is found under `digest`. True: nothing was found under it before.
    pub(crate) fn insert(&mut self, block: u32, digest: Digest) -> bool {
        debug_assert!(!self.is_hashed(block));
        self.version += 1;
        match self.find(digest) {
            Some(first) => {
                let next = self.entries[first as usize].next;
                self.entries[block as usize] = Entry { digest, prev: first, next, hashed: true };
                self.entries[first as usize].next = block;
                if next != NIL {
                    self.entries[next as usize].prev = block;
                }
                false
            }
            None => {
                self.entries[block as usize] = Entry { digest, prev: NIL, next: NIL, hashed: true };
                let entries = &self.entries;
                self.table.insert_unique(bucket(digest), block, |&b| bucket(entries[b as usize].digest));
                true
            }
        }
    }

    /// `block` is found no more. The digest under which nothing is found any more, if it was the last.
    pub(crate) fn remove(&mut self, block: u32) -> Option<Digest> {
        if !self.is_hashed(block) {
            return None;
        }
        self.version += 1;
        let Entry { digest, prev, next, .. } = self.entries[block as usize];
        self.entries[block as usize] = EMPTY;
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if prev != NIL {
            self.entries[prev as usize].next = next;
            return None;
        }
        // The block's own entry is gone already, so it is found by number.
        if let Ok(mut place) = self.table.find_entry(bucket(digest), |&b| b == block) {
            if next == NIL {
                place.remove();
            } else {
                *place.get_mut() = next;
            }
        }
        (next == NIL).then_some(digest)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.version += 1;
        self.table.clear();
        self.entries.fill(EMPTY);
    }

    /// Blocks that are found by some digest. O(blocks), for checks.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = (u32, Digest)> + '_ {
        (0..).zip(&self.entries).filter(|(_, e)| e.hashed).map(|(b, e)| (b, e.digest))
    }

    /// Blocks with their digests, in an order that gives an equal index when they are inserted in it. O(blocks).
    #[cfg(feature = "serde")]
    pub(crate) fn in_order(&self) -> Vec<(u32, Digest)> {
        let firsts = (0..).zip(&self.entries).filter(|(_, e)| e.hashed && e.prev == NIL);
        let mut all = Vec::new();
        for (first, entry) in firsts {
            all.push((first, entry.digest));
            // A block is inserted right behind the first one: the last of a chain comes first.
            let rest = all.len();
            let mut next = entry.next;
            while next != NIL {
                all.push((next, entry.digest));
                next = self.entries[next as usize].next;
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
            .map(|&first| {
                let (mut n, mut at, mut prev) = (0, first, NIL);
                while at != NIL {
                    let e = &self.entries[at as usize];
                    if !e.hashed || e.prev != prev || e.digest != self.entries[first as usize].digest || n > self.entries.len() {
                        return usize::MAX / 2;
                    }
                    (n, prev, at) = (n + 1, at, e.next);
                }
                n
            })
            .sum();
        reached == self.hashed().count() && self.hashed().all(|(_, d)| self.find(d).is_some())
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
    fn a_full_index_never_grows() {
        let mut index = Index::new(64);
        let capacity = index.table.capacity();
        for round in 0..10_000u32 {
            let block = round % 64;
            index.remove(block);
            index.insert(block, Digest::from(round) << 3 | Digest::from(round).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        }
        assert!(index.table.capacity() <= capacity, "erased places count until they are used again, never more");
        assert!(index.is_consistent());
    }
}
