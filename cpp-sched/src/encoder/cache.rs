//! Which items are encoded, who needs them, and which may go.

use alloc::vec::Vec;
use core::hash::BuildHasher;

use hashbrown::HashTable;

use super::EncoderItem;
use crate::kv::NIL;
use crate::kv::links::{Link, Linked, List};
use crate::state::IdHasher;

#[derive(Clone, Copy, Debug)]
struct Entry {
    item: EncoderItem,
    /// Requests that need it: one for each of their spans.
    refs: u32,
    /// The batch that encodes it.
    batch: u64,
    /// Its place among those that nobody needs.
    link: Link,
}

#[derive(Clone, Debug, Default)]
struct Arena(Vec<Entry>);

impl Linked for Arena {
    fn link(&self, element: u32) -> Link {
        self.0[element as usize].link
    }

    fn link_mut(&mut self, element: u32) -> &mut Link {
        &mut self.0[element as usize].link
    }
}

/// What became of an item that one request less needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Others need it, or it is kept for later.
    Kept,
    /// Nobody needs it, and the batch under construction was to encode it: it is not encoded.
    Undone,
    /// Nobody needs it, and nothing is kept.
    Freed,
}

/// The encoder cache: what is encoded, or will be by a batch in flight or under construction. With a size, items that nobody needs stay until
/// others need their room, least recently used first; without one nothing is kept that nobody needs. All operations O(1) expected.
#[derive(Clone, Debug)]
pub(crate) struct EncoderCache {
    size: Option<u32>,
    table: HashTable<u32>,
    arena: Arena,
    vacant: Vec<u32>,
    /// Those that nobody needs, least recently used first.
    unused: List,
    /// Tokens of all items, and of those that somebody needs.
    used: u64,
    needed: u64,
    hasher: IdHasher,
}

impl EncoderCache {
    pub(crate) fn new(size: Option<u32>, hasher: IdHasher) -> Self {
        let (table, arena, vacant) = (HashTable::new(), Arena::default(), Vec::new());
        Self { size, table, arena, vacant, unused: List::EMPTY, used: 0, needed: 0, hasher }
    }

    fn find(&self, item: EncoderItem) -> Option<u32> {
        let hash = self.hasher.hash_one(item.digest);
        self.table.find(hash, |&at| self.arena.0[at as usize].item == item).copied()
    }

    pub(crate) fn contains(&self, item: EncoderItem) -> bool {
        self.find(item).is_some()
    }

    /// Whether somebody needs it; `None`: it is not encoded.
    pub(crate) fn is_needed(&self, item: EncoderItem) -> Option<bool> {
        self.find(item).map(|at| self.arena.0[at as usize].refs > 0)
    }

    /// The batch that encodes it.
    pub(crate) fn batch(&self, item: EncoderItem) -> Option<u64> {
        self.find(item).map(|at| self.arena.0[at as usize].batch)
    }

    /// Tokens of all items.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// Tokens that could be made room for.
    pub(crate) fn room(&self) -> u64 {
        self.size.map_or(u64::MAX, |size| u64::from(size).saturating_sub(self.needed))
    }

    /// One request more needs an item, if it is encoded.
    pub(crate) fn hold(&mut self, item: EncoderItem) -> bool {
        let Some(at) = self.find(item) else { return false };
        if self.arena.0[at as usize].refs == 0 {
            self.unused.remove(&mut self.arena, at);
            self.needed += u64::from(item.encoder_tokens);
        }
        self.arena.0[at as usize].refs += 1;
        true
    }

    /// `batch` encodes an item that is not there, for one request. Those that nobody needs make room, and are added to `freed`.
    pub(crate) fn encode(&mut self, item: EncoderItem, batch: u64, freed: &mut Vec<EncoderItem>) {
        let tokens = u64::from(item.encoder_tokens);
        while self.size.is_some_and(|size| self.used + tokens > u64::from(size)) && self.unused.head != NIL {
            freed.push(self.remove(self.unused.head));
        }
        self.insert(item, batch, 1);
    }

    fn insert(&mut self, item: EncoderItem, batch: u64, refs: u32) {
        let entry = Entry { item, refs, batch, link: Link::NONE };
        let at = match self.vacant.pop() {
            Some(at) => {
                self.arena.0[at as usize] = entry;
                at
            }
            None => {
                self.arena.0.push(entry);
                self.arena.0.len() as u32 - 1
            }
        };
        let (arena, hasher) = (&self.arena.0, &self.hasher);
        self.table.insert_unique(hasher.hash_one(item.digest), at, |&at| hasher.hash_one(arena[at as usize].item.digest));
        self.used += u64::from(item.encoder_tokens);
        self.needed += if refs > 0 { u64::from(item.encoder_tokens) } else { 0 };
        if refs == 0 {
            self.unused.push_back(&mut self.arena, at);
        }
    }

    /// Takes an item out that nobody needs.
    fn remove(&mut self, at: u32) -> EncoderItem {
        let item = self.arena.0[at as usize].item;
        if let Ok(place) = self.table.find_entry(self.hasher.hash_one(item.digest), |&other| other == at) {
            place.remove();
        }
        self.unused.remove(&mut self.arena, at);
        self.vacant.push(at);
        self.used -= u64::from(item.encoder_tokens);
        item
    }

    /// Takes out what nobody needs.
    pub(crate) fn clear_unused(&mut self, freed: &mut Vec<EncoderItem>) {
        while self.unused.head != NIL {
            freed.push(self.remove(self.unused.head));
        }
    }

    /// One request less needs an item. `building`: the number of the batch under construction.
    pub(crate) fn release(&mut self, item: EncoderItem, building: u64) -> Released {
        let Some(at) = self.find(item) else { return Released::Kept };
        let entry = &mut self.arena.0[at as usize];
        entry.refs = entry.refs.saturating_sub(1);
        if entry.refs > 0 {
            return Released::Kept;
        }
        let undone = entry.batch == building;
        self.needed -= u64::from(item.encoder_tokens);
        self.unused.push_back(&mut self.arena, at);
        match (undone, self.size) {
            (false, Some(_)) => Released::Kept,
            (undone, _) => {
                self.remove(at);
                if undone { Released::Undone } else { Released::Freed }
            }
        }
    }

    /// A batch that was to encode an item is lost, and nobody needs the item any more: it is not encoded. Whether it was there.
    pub(crate) fn lose(&mut self, item: EncoderItem, batch: u64) -> bool {
        let at = self.find(item).filter(|&at| {
            let entry = &self.arena.0[at as usize];
            entry.batch == batch && entry.refs == 0
        });
        at.map(|at| self.remove(at)).is_some()
    }

    /// All items with the number of requests that need them, those that nobody needs in the order in which they go. For checks and snapshots.
    pub(crate) fn items(&self) -> impl Iterator<Item = (EncoderItem, u64, u32)> + '_ {
        let entry = |at: &u32| {
            let entry = &self.arena.0[*at as usize];
            (entry.item, entry.batch, entry.refs)
        };
        let unused = core::iter::successors(Some(self.unused.head).filter(|&at| at != NIL), |&at| {
            Some(self.arena.0[at as usize].link.next).filter(|&at| at != NIL)
        });
        let mut needed: Vec<_> = self.table.iter().map(entry).filter(|&(.., refs)| refs > 0).collect();
        needed.sort_unstable();
        needed.into_iter().chain(unused.map(move |at| entry(&at)))
    }

    /// Adds an item of a snapshot. False: it is there already.
    #[cfg(feature = "serde")]
    pub(crate) fn load(&mut self, item: EncoderItem, batch: u64) -> bool {
        let new = !self.contains(item);
        if new {
            self.insert(item, batch, 0);
        }
        new
    }

    /// Whether all sums are what they must be. O(items).
    pub(crate) fn is_consistent(&self) -> bool {
        let (mut used, mut needed, mut items) = (0, 0, 0);
        for (item, _, refs) in self.items() {
            used += u64::from(item.encoder_tokens);
            needed += if refs > 0 { u64::from(item.encoder_tokens) } else { 0 };
            items += 1;
        }
        (used, needed, items) == (self.used, self.needed, self.table.len())
            && self.size.is_none_or(|size| used <= u64::from(size))
            && (self.size.is_some() || self.unused.len == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(n: u8, encoder_tokens: u32) -> EncoderItem {
        EncoderItem { digest: [n; 16], encoder_tokens }
    }

    #[test]
    fn what_nobody_needs_goes_first_used_first() {
        let mut cache = EncoderCache::new(Some(10), IdHasher::new(&[0; 16]));
        let mut freed = Vec::new();
        for (n, batch) in [(1, 0), (2, 0), (3, 1)] {
            cache.encode(item(n, 3), batch, &mut freed);
        }
        assert_eq!((cache.room(), cache.used()), (1, 9));
        for n in [2, 1, 3] {
            assert_eq!(cache.release(item(n, 3), 2), Released::Kept);
        }
        assert!(cache.hold(item(2, 3)));
        cache.encode(item(4, 4), 2, &mut freed);
        assert_eq!((freed, cache.room()), (alloc::vec![item(1, 3)], 3));
        assert_eq!(cache.release(item(4, 4), 2), Released::Undone);
        assert!(!cache.contains(item(4, 4)) && cache.is_consistent());
        // The same content at another cost is another item.
        assert!(!cache.contains(item(2, 4)));
    }

    #[test]
    fn without_a_size_nothing_is_kept() {
        let mut cache = EncoderCache::new(None, IdHasher::new(&[0; 16]));
        cache.encode(item(1, 3), 0, &mut Vec::new());
        assert!(cache.hold(item(1, 3)));
        assert_eq!((cache.release(item(1, 3), 1), cache.release(item(1, 3), 1)), (Released::Kept, Released::Freed));
        assert_eq!((cache.used(), cache.is_consistent()), (0, true));
    }
}
