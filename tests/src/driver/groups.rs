//! Several KV groups: what the layers of each read and write, in tables of their own.
//!
//! Written from the meaning of the groups: which positions a position reads, and where a state is. What the kernel keeps, gives back and counts
//! is not looked at.

use std::collections::BTreeSet;
use std::ops::Range;

use cpp_sched::{BatchId, BlockId, Config, GroupBlocks, KvGroup, RequestId, RowKind};

use super::flight::Flying;
use super::{Driver, ensure};
use crate::truth::mix;

/// Stands where a table has no block any more.
const HOLE: BlockId = BlockId(u32::MAX);

/// A table from entry 0 on.
pub(super) fn padded(table: GroupBlocks<'_>) -> Vec<BlockId> {
    let holes = std::iter::repeat_n(HOLE, table.first as usize);
    holes.chain(table.blocks.iter().copied()).collect()
}

/// The first position that a position reads.
pub(super) fn first_read(kind: KvGroup, position: u32) -> u32 {
    match kind {
        KvGroup::Window { tokens } => (position + 1).saturating_sub(tokens),
        KvGroup::ChunkedLocal { tokens } => position / tokens * tokens,
        _ => 0,
    }
}

/// The state of a text after so many positions, as it stands in a block.
const fn state_of(chain: u64, position: u32) -> (u32, u64) {
    (position, chain)
}

/// The entries that a row reads or writes.
fn needed(c: &Config, kind: KvGroup, row: &Flying) -> Range<usize> {
    let size = c.block_size;
    match kind {
        KvGroup::State { grain } => {
            let before = if row.start.is_multiple_of(grain) { (row.start / grain).saturating_sub(1) } else { row.start / grain };
            before as usize..row.end.div_ceil(grain) as usize
        }
        KvGroup::Cross => 0..usize::MAX,
        kind => (first_read(kind, row.start) / size) as usize..row.end.div_ceil(size) as usize,
    }
}

/// The entries that a row writes.
fn written(c: &Config, kind: KvGroup, row: &Flying) -> Range<usize> {
    match kind {
        KvGroup::State { grain } => (row.start / grain) as usize..row.end.div_ceil(grain) as usize,
        KvGroup::Cross => 0..usize::MAX,
        _ => (row.start / c.block_size) as usize..row.end.div_ceil(c.block_size) as usize,
    }
}

fn part(table: &[BlockId], entries: Range<usize>) -> &[BlockId] {
    &table[entries.start.min(table.len())..entries.end.min(table.len())]
}

/// What chunks end on.
pub(super) fn grain(c: &Config) -> Option<u32> {
    c.kv_groups.as_slice().iter().find_map(|kind| if let KvGroup::State { grain } = kind { Some(*grain) } else { None })
}

/// The least common multiple of an alignment of chunks and what they end on.
pub(super) fn on_grain(c: &Config, align: u32) -> u32 {
    let grain = grain(c).unwrap_or(1);
    (1..=align).map(|n| n * grain).find(|end| end.is_multiple_of(align)).unwrap_or(grain)
}

/// The groups behind the first one.
fn more(c: &Config) -> Vec<KvGroup> {
    c.kv_groups.as_slice()[1..].to_vec()
}

/// Positions of an encoder's output of a request.
pub(super) fn cross_tokens(c: &Config, author: u64) -> u32 {
    if c.kv_groups.as_slice().contains(&KvGroup::Cross) { (author % 9) as u32 } else { 0 }
}

/// Blocks beyond those of the first group for so many positions, when the request is alone: a window is as large as what it spans, and all that
/// can be in flight behind it.
pub(super) fn need_of_more(c: &Config, tokens: u32, cross: u32) -> u32 {
    let flight = c.depth() * c.max_batch_tokens + grain(c).unwrap_or(1) + c.lookahead_tokens;
    let blocks = tokens.div_ceil(c.block_size);
    let of = |kind: KvGroup| match kind {
        KvGroup::Window { tokens } | KvGroup::ChunkedLocal { tokens } => blocks.min((tokens - 1 + flight).div_ceil(c.block_size) + 1),
        KvGroup::State { grain } => (blocks * c.block_size).div_ceil(grain).min(flight.div_ceil(grain) + 2),
        KvGroup::Cross => cross.div_ceil(c.block_size),
        _ => blocks,
    };
    more(c).into_iter().map(of).sum()
}

impl Flying {
    /// The blocks that it reads or writes, over all groups.
    pub(super) fn used(&self, c: &Config) -> Vec<BlockId> {
        let mut used = self.table.clone();
        for (kind, table) in more(c).into_iter().zip(&self.groups) {
            used.extend_from_slice(part(table, needed(c, kind, self)));
        }
        used
    }

    /// The blocks that it writes, over all groups.
    pub(super) fn writes(&self, c: &Config) -> Vec<BlockId> {
        let mut blocks = self.table[(self.start / c.block_size) as usize..].to_vec();
        for (kind, table) in more(c).into_iter().zip(&self.groups) {
            blocks.extend_from_slice(part(table, written(c, kind, self)));
        }
        blocks
    }
}

impl Driver {
    /// All blocks that a request holds.
    pub(super) fn holds(&self, id: RequestId) -> Vec<BlockId> {
        let tables = (0..self.config.kv_groups.as_slice().len()).filter_map(|group| self.scheduler.group_table(id, group));
        tables.flat_map(|(_, blocks)| blocks.to_vec()).collect()
    }

    /// The tables of a row: as long as they must be, without a hole in what it needs, no block twice.
    pub(super) fn check_groups(&mut self, row: &Flying) -> Result<(), String> {
        let c = self.config;
        if let Some(grain) = grain(&c) {
            let limit = self.requests[row.who].known();
            let chunk = row.kind == RowKind::Prefill && row.end < limit;
            ensure!(!chunk || row.end.is_multiple_of(grain), "a chunk ends within a grain of {grain}");
            ensure!(row.drafts == 0, "drafts with a state");
        }
        ensure!(row.groups.len() == more(&c).len(), "{} tables", row.groups.len());
        for (kind, table) in more(&c).into_iter().zip(&row.groups) {
            let due = match kind {
                KvGroup::Cross => cross_tokens(&c, self.requests[row.who].shape.author).div_ceil(c.block_size) as usize,
                kind => needed(&c, kind, row).end,
            };
            ensure!(table.len() == due, "{kind:?}: {} entries, must have {due}", table.len());
            ensure!(!part(table, needed(&c, kind, row)).contains(&HOLE), "{kind:?}: a hole in {table:?}");
        }
        let used = row.used(&c);
        ensure!(used.iter().collect::<BTreeSet<_>>().len() == used.len(), "a block has two places in {used:?}");
        self.check_group_contents(row, None)?;
        let first_start = self.requests[row.who].first_start;
        if first_start.is_some_and(|first| first != row.start) {
            self.check_cross(row)?;
        }
        if self.requests[row.who].fresh && row.start > 0 {
            self.check_group_hit(row)?;
        }
        Ok(())
    }

    /// What the layers of all groups read is there, in the blocks of a row: before it runs, or for the positions up to `done` that it has computed.
    fn check_group_contents(&mut self, row: &Flying, done: Option<u32>) -> Result<(), String> {
        let c = self.config;
        for (kind, table) in more(&c).into_iter().zip(&row.groups) {
            let text = &mut self.requests[row.who].text;
            let wrong = match kind {
                KvGroup::Cross => None,
                KvGroup::State { grain } => {
                    // Before a row the state at its start counts; after it only those on the grain stay, as the next rows go on from the others.
                    let ends = row.start..done.unwrap_or(row.start) + 1;
                    let stays = |&at: &u32| at > 0 && (at.is_multiple_of(grain) || done.is_none());
                    ends.filter(stays).find(|&at| {
                        let slot = self.memory.slot_of(table[((at - 1) / grain) as usize], 0);
                        slot.content != Some(state_of(text.chain(at - 1), at))
                    })
                }
                kind => self.memory.first_wrong(table, first_read(kind, row.start)..done.unwrap_or(row.start), text),
            };
            ensure!(wrong.is_none(), "{kind:?}: position {wrong:?} is not in {table:?}");
        }
        Ok(())
    }

    /// After a row has come back: nobody else has written to what it reads and wrote.
    pub(super) fn check_groups_still_there(&mut self, row: &Flying) -> Result<(), String> {
        let done = (row.base() + row.accepted).min(row.until);
        self.check_group_contents(row, Some(done))?;
        self.check_cross(row)
    }

    fn check_cross(&self, row: &Flying) -> Result<(), String> {
        let c = self.config;
        for (_, table) in more(&c).into_iter().zip(&row.groups).filter(|(kind, _)| *kind == KvGroup::Cross) {
            for (entry, &block) in table.iter().enumerate() {
                let content = self.memory.slot_of(block, 0).content;
                ensure!(content == cross_content(row.who, entry), "the encoder's output is not in {table:?}: {content:?}");
            }
        }
        Ok(())
    }

    /// What a hit found was computed by batches that are done, and not before the last reset.
    fn check_group_hit(&self, row: &Flying) -> Result<(), String> {
        let c = self.config;
        for (kind, table) in more(&c).into_iter().zip(&row.groups).filter(|(kind, _)| *kind != KvGroup::Cross) {
            let found = needed(&c, kind, row).start..written(&c, kind, row).start;
            for &block in part(table, found) {
                let slots: Vec<_> = (0..c.block_size).map(|place| self.memory.slot_of(block, place)).collect();
                let computing = slots.iter().find(|slot| self.flight.iter().any(|flight| Some(flight.id) == slot.batch));
                ensure!(computing.is_none(), "{kind:?}: it hits {block}, which {computing:?} is still writing");
                let last_write = slots.iter().map(|slot| slot.written).max();
                ensure!(last_write > Some(self.writes_at_reset), "{kind:?}: it hits {block}, computed before the reset");
            }
        }
        if let Some(grain) = grain(&c) {
            ensure!(row.start.is_multiple_of(grain), "it hits {} positions, which is within a grain", row.start);
        }
        Ok(())
    }

    /// The executor runs the row in all groups. `lost`: what it wrote is rubbish.
    pub(super) fn write_groups(&mut self, row: &Flying, batch: BatchId, lost: bool) {
        let c = self.config;
        for (kind, table) in more(&c).into_iter().zip(&row.groups) {
            let request = &mut self.requests[row.who];
            let memory = &mut self.memory;
            match kind {
                KvGroup::Cross => {
                    if request.first_start == Some(row.start) {
                        for (entry, &block) in table.iter().enumerate() {
                            if lost {
                                memory.lose_in(block, 0, batch);
                            } else {
                                memory.write_to(block, 0, cross_content(row.who, entry), Some(batch));
                            }
                        }
                    }
                }
                KvGroup::State { grain } => {
                    for at in (row.start + 1..=row.end).filter(|at| at.is_multiple_of(grain) || *at == row.end) {
                        let block = table[((at - 1) / grain) as usize];
                        if lost {
                            memory.lose_in(block, 0, batch);
                        } else {
                            memory.write_to(block, 0, Some(state_of(request.text.chain(at - 1), at)), Some(batch));
                        }
                    }
                }
                _ => {
                    for position in row.start..row.end {
                        if lost {
                            memory.lose(table, position, batch);
                        } else {
                            let right = position < row.base() + row.accepted;
                            let chain = right.then(|| request.text.chain(position));
                            memory.write(table, position, chain, Some(batch));
                        }
                    }
                }
            }
        }
    }
}

fn cross_content(who: usize, entry: usize) -> Option<(u32, u64)> {
    Some((entry as u32, mix(who as u64, entry as u64)))
}
