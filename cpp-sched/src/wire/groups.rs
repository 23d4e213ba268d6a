//! Block tables of several KV groups in a stream. With one group nothing of this is in it.
//!
//! A row tells of each further group what is new: where its table begins now, how many of the entries told before stand, and the blocks behind
//! them. How many there must be follows from the positions, so that a table that is too short or too long is found at once.

use alloc::vec::Vec;
use core::ops::Range;

use super::bytes::{Reader, put, put32, take_step};
use super::encoder::steps;
use super::error::MirrorError;
use super::header::Geometry;
use crate::ids::{BlockId, RequestId};
use crate::kv::{GroupTable, KvGroup, KvGroups};

const MOVED: u64 = 1;
const KEEP: u64 = 1 << 1;
/// Where the number of new entries begins.
const COUNT: u32 = 2;

/// A kind of group as two numbers.
fn named(group: &KvGroup) -> (u32, u32) {
    match *group {
        KvGroup::Full => (0, 0),
        KvGroup::Window { tokens } => (1, tokens),
        KvGroup::ChunkedLocal { tokens } => (2, tokens),
        KvGroup::State { grain } => (3, grain),
        KvGroup::Cross => (4, 0),
    }
}

/// Names the groups behind a block size of 0, which there is not; full attention alone is not named.
pub(super) fn put_kinds(groups: &KvGroups, out: &mut Vec<u8>) {
    if groups.is_single() {
        return;
    }
    put32(out, 0);
    put32(out, groups.as_slice().len() as u32);
    for (kind, size) in groups.as_slice().iter().map(named) {
        put32(out, kind);
        put32(out, size);
    }
}

/// `told`: the message names groups.
pub(super) fn check_kinds(groups: &KvGroups, told: bool, reader: &mut Reader<'_>) -> Result<(), MirrorError> {
    if told == groups.is_single() {
        return Err(MirrorError::Groups);
    }
    if told {
        let mut same = reader.number32("KV groups")? == groups.as_slice().len() as u32;
        for kind in groups.as_slice().iter().map(named) {
            same = same && (reader.number32("KV groups")?, reader.number32("KV groups")?) == kind;
        }
        if !same {
            return Err(MirrorError::Groups);
        }
    }
    Ok(())
}

/// Entries of a group's table for the positions before `end`; none: they do not follow from positions.
pub(super) fn entries(geometry: Geometry, group: KvGroup, end: u32) -> Option<u32> {
    (group != KvGroup::Cross).then(|| group.entries(end, geometry.block_size))
}

/// What workers know of one further table of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    front: u32,
    /// One past the last entry that stands.
    stands: u32,
    /// One past the last entry told.
    told: u32,
}

impl Told {
    /// All of the table up to the entries of scheduled positions.
    pub(super) fn of(table: &GroupTable, entries: Option<u32>) -> Self {
        let end = entries.map_or(table.len(), |entries| entries.min(table.len()));
        Self { front: table.front(), stands: end, told: end }
    }

    /// What lay behind `entries` was given back, and may be another block by now.
    pub(super) fn shorten(&mut self, entries: Option<u32>) {
        self.stands = entries.map_or(self.stands, |entries| self.stands.min(entries));
    }

    /// Writes what a row needs of the table and workers do not have.
    pub(super) fn put(&mut self, table: &GroupTable, entries: Option<u32>, out: &mut Vec<u8>) {
        let end = entries.map_or(table.len(), |entries| entries.min(table.len()));
        let from = self.stands.max(table.front());
        let new = table.until(end).get((from - table.front()) as usize..).unwrap_or_default();
        let (moved, keep) = (table.front() != self.front, self.stands < self.told);
        put(out, (new.len() as u64) << COUNT | if moved { MOVED } else { 0 } | if keep { KEEP } else { 0 });
        if moved {
            put32(out, table.front());
        }
        if keep {
            put32(out, self.stands);
        }
        let last = from.checked_sub(1).and_then(|before| table.get(before)).map_or(0, |block| block.0);
        for step in steps(last, new) {
            put32(out, step);
        }
        self.front = table.front();
        self.stands = from + new.len() as u32;
        self.told = self.stands;
    }

    /// Writes all that workers have of the table; after a loss it may be shorter than what was told.
    pub(super) fn put_all(&self, table: &GroupTable, out: &mut Vec<u8>) {
        let held = table.until(self.told);
        put32(out, table.front());
        put32(out, held.len() as u32);
        for step in steps(0, held) {
            put32(out, step);
        }
    }
}

/// What a row tells of one further table, as it was read.
#[derive(Clone, Debug)]
pub(super) struct RawGroup {
    /// Where the table begins from now on, if elsewhere than before.
    front: Option<u32>,
    /// How many of the entries told before stand, if not all.
    keep: Option<u32>,
    /// New entries: first as steps, once checked as blocks.
    blocks: Range<usize>,
}

impl RawGroup {
    pub(super) fn parse(reader: &mut Reader<'_>, blocks: &mut Vec<u32>) -> Result<Self, MirrorError> {
        let head = reader.number("group table")?;
        let front = if head & MOVED != 0 { Some(reader.number32("group table")?) } else { None };
        let keep = if head & KEEP != 0 { Some(reader.number32("group table")?) } else { None };
        let count = reader.fits("group table", head >> COUNT)?;
        let from = blocks.len();
        reader.numbers("group table", count, blocks)?;
        Ok(Self { front, keep, blocks: from..blocks.len() })
    }

    /// Takes over what was checked.
    pub(super) fn commit(&self, table: &mut GroupTable, blocks: &[u32]) {
        if let Some(keep) = self.keep {
            while table.len() > keep {
                if table.pop().is_none() {
                    break;
                }
            }
        }
        if let Some(front) = self.front {
            if front >= table.len() {
                table.begin(front);
            }
            while table.front() < front {
                table.pop_front();
            }
        }
        for &block in blocks.get(self.blocks.clone()).unwrap_or_default() {
            table.push(BlockId(block));
        }
    }
}

/// What would be known of one further table after the rows checked so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedTable {
    front: u32,
    end: u32,
    last: u32,
}

impl ExpectedTable {
    pub(super) fn of(table: &GroupTable) -> Self {
        let last = table.held().last().map_or(0, |block| block.0);
        Self { front: table.front(), end: table.len(), last }
    }

    /// Holds a row's part against what is known. `known`: the table before the message, of a request that has one; `entries`: how many the row
    /// must have; none: any number at first, none later.
    pub(super) fn check(
        &mut self,
        geometry: Geometry,
        request: RequestId,
        raw: &RawGroup,
        known: Option<&GroupTable>,
        entries: Option<u32>,
        blocks: &mut [u32],
    ) -> Result<(), MirrorError> {
        if let Some(keep) = raw.keep {
            let error = MirrorError::Keep { request, most: self.end, found: keep };
            // Told in an earlier plan: a row replaces no block of another row of its plan.
            let table = known.filter(|known| (self.front..=self.end.min(known.len())).contains(&keep)).ok_or(error)?;
            let last = keep.checked_sub(1).filter(|&last| last >= self.front).and_then(|last| table.get(last));
            (self.end, self.last) = (keep, last.map_or(0, |block| block.0));
        }
        let fresh = (self.front, self.end) == (0, 0);
        if let Some(front) = raw.front {
            let most = if fresh { entries.unwrap_or(0) } else { self.end };
            if front < self.front || front > most {
                return Err(MirrorError::Front { request, least: self.front, most, found: front });
            }
            self.front = front;
            if front >= self.end {
                (self.end, self.last) = (front, 0);
            }
        }
        let found = raw.blocks.len() as u32;
        let expected = match entries {
            Some(entries) => entries.saturating_sub(self.end),
            None if fresh => found,
            None => 0,
        };
        if found != expected {
            return Err(MirrorError::Table { request, expected, found });
        }
        for block in blocks.get_mut(raw.blocks.clone()).unwrap_or_default() {
            self.last = take_step(self.last, *block);
            geometry.check_block(request, self.last)?;
            *block = self.last;
        }
        self.end += found;
        Ok(())
    }
}

/// Reads what [`Told::put_all`] writes.
pub(super) fn parse_table(geometry: Geometry, reader: &mut Reader<'_>, request: RequestId) -> Result<GroupTable, MirrorError> {
    let front = reader.number32("group table")?;
    let mut table = GroupTable::default();
    table.begin(front);
    let mut last = 0;
    let count = reader.count("group table")?;
    front.checked_add(count).ok_or(MirrorError::Length(request))?;
    for _ in 0..count {
        last = take_step(last, reader.number32("group table")?);
        geometry.check_block(request, last)?;
        table.push(BlockId(last));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::wire::{Encoder, Mirror};
    use crate::{Config, Request, Schedule, Scheduler};

    fn config(groups: &[KvGroup]) -> Config {
        Config { kv_groups: KvGroups::new(groups).unwrap(), ..Config::default() }
    }

    #[test]
    fn a_mirror_with_other_groups_refuses_the_stream() {
        let kinds: [&[KvGroup]; 4] = [
            &[KvGroup::Full],
            &[KvGroup::Full, KvGroup::Window { tokens: 32 }],
            &[KvGroup::Full, KvGroup::Window { tokens: 33 }],
            &[KvGroup::Full, KvGroup::ChunkedLocal { tokens: 32 }],
        ];
        for (leader, worker) in kinds.into_iter().flat_map(|leader| kinds.map(|worker| (leader, worker))) {
            let (leader, worker) = (config(leader), config(worker));
            let mut scheduler = Scheduler::new(leader).unwrap();
            scheduler.submit(Request::new(RequestId(1), vec![5; 40], 1)).unwrap();
            let mut message = Vec::new();
            let Schedule::Batch(batch) = scheduler.schedule() else { panic!("a batch is due") };
            Encoder::new(&leader).encode(&batch, &mut message).unwrap();
            let answer = Mirror::new(&worker).apply(&message).map(drop);
            assert_eq!(answer, if leader == worker { Ok(()) } else { Err(MirrorError::Groups) });
        }
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused() {
        let request = RequestId(1);
        let geometry = Geometry { block_size: 4, num_blocks: 10 };
        let mut known = GroupTable::default();
        known.begin(2);
        for block in [7, 8, 9] {
            known.push(BlockId(block));
        }
        // Entries 2, 3 and 4 are there; the row needs six, so one more.
        let check = |front, keep, steps: &[u32]| {
            let mut blocks = steps.to_vec();
            let raw = RawGroup { front, keep, blocks: 0..blocks.len() };
            let mut expected = ExpectedTable::of(&known);
            let answer = expected.check(geometry, request, &raw, Some(&known), Some(6), &mut blocks);
            answer.map(|()| (expected.front, expected.end, blocks))
        };
        // A step of 1 leads one block down.
        assert_eq!(check(None, None, &[1]), Ok((2, 6, vec![8])));
        assert_eq!(check(Some(4), None, &[1]), Ok((4, 6, vec![8])));
        assert_eq!(check(Some(5), None, &[6]), Ok((5, 6, vec![3])));
        assert_eq!(check(Some(3), Some(4), &[2, 1]), Ok((3, 6, vec![9, 8])));
        assert_eq!(check(None, None, &[]), Err(MirrorError::Table { request, expected: 1, found: 0 }));
        assert_eq!(check(None, None, &[1, 1]), Err(MirrorError::Table { request, expected: 1, found: 2 }));
        assert_eq!(check(None, None, &[2]), Err(MirrorError::Block { request, block: BlockId(10) }));
        assert_eq!(check(Some(1), None, &[1]), Err(MirrorError::Front { request, least: 2, most: 5, found: 1 }));
        assert_eq!(check(Some(6), None, &[]), Err(MirrorError::Front { request, least: 2, most: 5, found: 6 }));
        assert_eq!(check(None, Some(6), &[]), Err(MirrorError::Keep { request, most: 5, found: 6 }));
        assert_eq!(check(None, Some(1), &[1; 5]), Err(MirrorError::Keep { request, most: 5, found: 1 }));
    }
}
