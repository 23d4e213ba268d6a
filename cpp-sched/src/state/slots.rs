//! All requests: an arena of slots that are used again, and the map from ids.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use core::ops::{Index, IndexMut};

use hashbrown::HashTable;
use siphasher::sip::SipHasher13;

use super::slot::{Cold, Slot, State, Trait, next_epoch};
use crate::batch::{GroupBlocks, Row};
use crate::ids::BlockId;
use crate::planner::Segment;

/// Keyed hashing for maps over ids that callers choose: crafted ids find no collisions without the key.
#[derive(Clone)]
pub(crate) struct IdHasher(SipHasher13);

/// Without what the key could be read from.
impl core::fmt::Debug for IdHasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IdHasher(..)")
    }
}

impl IdHasher {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        Self(SipHasher13::new_with_key(key))
    }
}

impl BuildHasher for IdHasher {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        self.0
    }
}

/// Makes room for one more: a sixteenth more than there is, where a vector by itself would double. Lists grow when there are more requests than ever
/// before, so it is seldom; each element is moved some sixteen times in all.
pub(crate) fn grow<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 16).max(16));
    }
}

/// Records that few calls look at: in chunks, so that there is no room for more than a chunk of them in vain.
#[derive(Clone, Debug, Default)]
struct Chunks(Vec<Vec<Cold>>);

const CHUNK: usize = 64;

impl Chunks {
    fn push(&mut self, cold: Cold) {
        match self.0.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(cold),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(cold);
                self.0.push(chunk);
            }
        }
    }

    fn get(&self, slot: u32) -> Option<&Cold> {
        self.0.get(slot as usize / CHUNK)?.get(slot as usize % CHUNK)
    }
}

impl Index<u32> for Chunks {
    type Output = Cold;

    fn index(&self, slot: u32) -> &Cold {
        &self.0[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

impl IndexMut<u32> for Chunks {
    fn index_mut(&mut self, slot: u32) -> &mut Cold {
        &mut self.0[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

type Chunk = Box<[Slot; CHUNK]>;

/// Records that each step looks at: in chunks, too. They begin at lines of the cache, and a vector of such is copied each time it grows, where an
/// allocator moves the pages of others: with many thousands of requests that took longer than all the rest of `submit`.
#[derive(Clone, Debug, Default)]
struct Records {
    chunks: Vec<Chunk>,
    len: u32,
}

impl Records {
    fn push(&mut self, hot: Slot) {
        if self.len as usize == self.chunks.len() * CHUNK {
            self.chunks.push(Box::new(core::array::from_fn(|_| Slot::vacant())));
        }
        self.len += 1;
        let last = self.len - 1;
        self[last] = hot;
    }

    fn get(&self, slot: u32) -> Option<&Slot> {
        (slot < self.len).then(|| &self[slot])
    }

    fn iter(&self) -> impl Iterator<Item = &Slot> + '_ {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).take(self.len as usize)
    }
}

impl Index<u32> for Records {
    type Output = Slot;

    #[inline]
    fn index(&self, slot: u32) -> &Slot {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

impl IndexMut<u32> for Records {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

/// They, for a sweep: nothing is added meanwhile.
pub(crate) struct RecordsMut<'a>(&'a mut [Chunk]);

impl RecordsMut<'_> {
    #[inline]
    pub(crate) fn get(&mut self, slot: u32) -> &mut Slot {
        &mut self.0[slot as usize / CHUNK][slot as usize % CHUNK]
    }
}

/// The arena. A slot number is stable while any row in flight or list refers to it.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    hot: Records,
    cold: Chunks,
    vacant: Vec<u32>,
    /// Slots of requests alive, by their ids; an id itself is looked up in its slot.
    ids: HashTable<u32>,
    hasher: IdHasher,
    /// What each has left to prefill, as the planner counts it; as long as the last one that had something.
    work: Vec<Segment>,
}

impl Index<u32> for Slots {
    type Output = Slot;

    fn index(&self, slot: u32) -> &Slot {
        &self.hot[slot]
    }
}

impl IndexMut<u32> for Slots {
    fn index_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.hot[slot]
    }
}

impl Slots {
    pub(crate) fn new(hasher: IdHasher) -> Self {
        Self { hot: Records::default(), cold: Chunks::default(), vacant: Vec::new(), ids: HashTable::new(), hasher, work: Vec::new() }
    }

    /// The arena's parts, for a snapshot: records, and vacant places in the order in which they were left.
    #[cfg(feature = "serde")]
    pub(crate) fn parts(&self) -> (impl Iterator<Item = (&Slot, &Cold)>, &[u32]) {
        (self.hot.iter().zip(self.cold.0.iter().flatten()), &self.vacant)
    }

    /// The arena of a snapshot. The ids of requests alive are known to differ, `vacant` to name the vacant ones.
    #[cfg(feature = "serde")]
    pub(crate) fn from_parts(hasher: IdHasher, records: impl Iterator<Item = (Slot, Cold)>, vacant: Vec<u32>) -> Self {
        let mut slots = Self { vacant, ..Self::new(hasher) };
        for (hot, cold) in records {
            slots.hot.push(hot);
            slots.cold.push(cold);
        }
        let alive = slots.iter().filter(|(_, s)| !matches!(s.state, State::Vacant | State::Gone)).map(|(slot, _)| slot);
        for slot in alive.collect::<Vec<_>>() {
            slots.remember_id(slot);
        }
        slots
    }

    pub(crate) fn find(&self, id: u64) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(id), |&slot| self.hot[slot].id == id).copied()
    }

    #[cfg(feature = "serde")]
    pub(crate) fn get(&self, slot: u32) -> Option<&Slot> {
        self.hot.get(slot)
    }

    /// The records that each step looks at, by number.
    pub(crate) fn records_mut(&mut self) -> RecordsMut<'_> {
        RecordsMut(&mut self.hot.chunks)
    }

    pub(crate) fn cold(&self, slot: u32) -> &Cold {
        &self.cold[slot]
    }

    pub(crate) fn cold_mut(&mut self, slot: u32) -> &mut Cold {
        &mut self.cold[slot]
    }

    /// A place for a request whose id is not in use.
    pub(crate) fn insert(&mut self, mut hot: Slot, cold: Cold) -> u32 {
        let slot = match self.vacant.pop() {
            Some(slot) => {
                // Rows of a former holder are all back, but an epoch is never used twice in a slot.
                hot.epoch = next_epoch(self.hot[slot].epoch);
                self.hot[slot] = hot;
                self.cold[slot] = cold;
                slot
            }
            None => {
                self.hot.push(hot);
                self.cold.push(cold);
                self.hot.len - 1
            }
        };
        self.remember_id(slot);
        slot
    }

    /// The slot is found by its id from now on; the id is not in use.
    fn remember_id(&mut self, slot: u32) {
        let (hot, hasher) = (&self.hot, &self.hasher);
        let hash = |slot: u32| hasher.hash_one(hot[slot].id);
        self.ids.insert_unique(hash(slot), slot, |&slot| hash(slot));
    }

    /// The id is free, the record stays.
    pub(crate) fn forget_id(&mut self, slot: u32) {
        let hash = self.hasher.hash_one(self[slot].id);
        if let Ok(place) = self.ids.find_entry(hash, |&other| other == slot) {
            place.remove();
        }
    }

    /// The record goes: no row in flight, no list refers to it.
    pub(crate) fn vacate(&mut self, slot: u32) {
        let hot = &mut self[slot];
        hot.state = State::Vacant;
        hot.ticket = 0;
        hot.set(Trait::Spans, false);
        hot.table = Vec::new();
        hot.tokens = Vec::new();
        self.cold_mut(slot).clear();
        self.vacant.push(slot);
    }

    /// Samples of an older epoch that are in flight and will be delivered.
    pub(crate) fn stale(&self, slot: u32) -> u32 {
        if self[slot].has(Trait::Late) { self.cold(slot).stale } else { 0 }
    }

    /// Another count of them.
    pub(crate) fn set_stale(&mut self, slot: u32, stale: u32) {
        if stale > 0 || self[slot].has(Trait::Late) {
            self[slot].set(Trait::Late, stale > 0);
            self.cold_mut(slot).stale = stale;
        }
    }

    /// What the request has left to prefill, as the planner counted it last.
    pub(crate) fn unscheduled(&self, slot: u32) -> Segment {
        self.work.get(slot as usize).copied().unwrap_or_default()
    }

    /// Another count; the one before.
    pub(crate) fn set_unscheduled(&mut self, slot: u32, work: Segment) -> Segment {
        let at = slot as usize;
        if self.work.len() <= at {
            if work == Segment::default() {
                return work;
            }
            self.work.resize(at + 1, Segment::default());
        }
        core::mem::replace(&mut self.work[at], work)
    }

    /// Slots that hold a request, in the order of slots. O(slots).
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> + '_ {
        (0..).zip(self.hot.iter()).filter(|(_, s)| s.state != State::Vacant)
    }

    /// Slots that wait for late results, in the order of slots.
    pub(crate) fn late(&self) -> Vec<u32> {
        self.iter().filter(|(_, s)| s.has(Trait::Late)).map(|(slot, _)| slot).collect()
    }

    pub(crate) fn num_ids(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn tables(&self) -> Tables<'_> {
        Tables(self)
    }
}

/// Block tables, as rows see them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables<'a>(&'a Slots);

impl<'a> Tables<'a> {
    pub(crate) fn slot(&self, slot: u32) -> Option<&'a Slot> {
        self.0.hot.get(slot)
    }

    pub(crate) fn cold(&self, slot: u32) -> Option<&'a Cold> {
        self.0.cold.get(slot)
    }

    /// The slot of a request that is alive.
    pub(crate) fn find(&self, id: u64) -> Option<u32> {
        self.0.find(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &'a Slot)> + 'a {
        self.0.iter()
    }

    /// The table of a row's request up to the row's end; empty if the request has moved on since.
    pub(crate) fn row(&self, row: &Row, block_size: u32) -> &'a [BlockId] {
        let blocks = row.end().div_ceil(block_size) as usize;
        match self.0.hot.get(row.slot) {
            Some(slot) if slot.epoch == row.epoch => slot.table.get(..blocks).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The same in the `index`th KV group behind the first one, whose table has `entries` entries for the row's positions.
    pub(crate) fn row_in_group(&self, row: &Row, index: usize, entries: u32) -> GroupBlocks<'a> {
        let table = self.0.cold.get(row.slot).and_then(|cold| cold.groups.get(index));
        let current = self.0.hot.get(row.slot).is_some_and(|slot| slot.epoch == row.epoch);
        table
            .filter(|_| current)
            .map_or_else(GroupBlocks::default, |table| GroupBlocks { first: table.front(), blocks: table.until(entries) })
    }
}
