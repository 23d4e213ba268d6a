//! The leader's side: batches become messages.

mod sections;

use alloc::vec::Vec;

use super::bytes::{put, put32, step};
use super::error::EncodeError;
use super::groups::{self, Told as ToldTable};
use super::header::{Geometry, Kind, begin, digest_of, mark_section, seal};
use super::spans::Told;
use crate::batch::{Row, Scheduled};
use crate::config::Config;
use crate::ids::{BatchId, BlockId, RequestId, TokenId};
use crate::kv::KvGroups;
use crate::scheduler::Scheduler;
use crate::state::{Cold, State};

/// No handle: workers do not know the request.
pub(super) const NONE: u32 = u32::MAX;

/// What workers know of the request in a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Under which number the stream names it; [`NONE`] = not at all, and the rest means nothing.
    pub(super) handle: u32,
    pub(super) id: u64,
    /// Which of the requests that had this slot.
    pub(super) seq: u64,
    pub(super) epoch: u32,
    /// Which of its block tables they have.
    pub(super) table_life: u32,
    pub(super) prompt_len: u32,
    /// They have a block table.
    pub(super) running: bool,
    /// Tokens told.
    pub(super) tokens: u32,
    /// Blocks told that stand.
    pub(super) blocks: u32,
    /// Blocks told.
    pub(super) told: u32,
    /// The end of its last row.
    pub(super) cursor: u32,
    /// Drafts of its last row.
    pub(super) drafts: u32,
    /// The plan of its last row.
    pub(super) plan: u64,
    /// Spans told.
    pub(super) spans: u32,
}

impl Record {
    pub(super) const UNKNOWN: Self = Self {
        handle: NONE,
        id: 0,
        seq: 0,
        epoch: 0,
        table_life: 0,
        prompt_len: 0,
        running: false,
        tokens: 0,
        blocks: 0,
        told: 0,
        cursor: 0,
        drafts: 0,
        plan: 0,
        spans: 0,
    };

    /// Whether the block table that workers have is the beginning of the one that the request has.
    pub(super) fn has_table_of(&self, cold: &Cold) -> bool {
        self.running && self.table_life == cold.table_life
    }
}

/// Turns batches into messages from which a [`Mirror`](super::Mirror) rebuilds all that an executor needs.
///
/// It belongs to one scheduler from the scheduler's first batch on ([`new`](Self::new)), or from a later moment on
/// ([`attach`](Self::attach), then workers need a [`resync`](Self::resync) first). Every batch goes through
/// [`encode`](Self::encode), right after [`schedule`](Scheduler::schedule).
///
/// *Whose batch it is* it knows by what the batch says, since no scheduler has a name of its own: the block size, number of blocks and KV groups
/// are those of its configuration, the batch's number is the next one, losses are not fewer than were told, and every row is of the request that
/// workers know in its slot and has no fewer tokens than they know, or comes after an end that the batch tells. A batch of another scheduler that contradicts any of it is refused and changes nothing. One that
/// contradicts none (a twin of the same shape that has scheduled as many batches, with other requests in slots that are new to the encoder) is
/// encoded as if it were its own: keep an encoder where its scheduler is, as an [`Executor`](crate::Executor) that owns it does.
///
/// It keeps a few numbers for each request alive. A message costs O(rows + new blocks + new tokens); at a constant population nothing is
/// allocated but what the caller's vector may need.
#[derive(Clone, Debug)]
pub struct Encoder {
    pub(super) geometry: Geometry,
    pub(super) sequence: u64,
    pub(super) chain: u128,
    pub(super) next_plan: u64,
    /// Batches lost, as far as told.
    pub(super) lost: u64,
    /// The plan that told of the last loss.
    pub(super) lost_at: u64,
    /// By slot.
    pub(super) records: Vec<Record>,
    pub(super) groups: KvGroups,
    /// By slot and further KV group.
    pub(super) told: Vec<ToldTable>,
    /// Handles below `handles` that are not in use.
    vacant: Vec<u32>,
    pub(super) handles: u32,
    listed: Vec<u32>,
    /// Places of rows of an epoch that workers do not know of a request that runs.
    anew: Vec<u32>,
    /// What workers have encoded.
    pub(super) encoded: Told,
}

impl Encoder {
    /// The encoder of a scheduler that has scheduled nothing yet, with this configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            geometry: Geometry::of(config),
            groups: config.kv_groups,
            told: Vec::new(),
            sequence: 0,
            chain: 0,
            next_plan: 0,
            lost: 0,
            lost_at: 0,
            records: Vec::new(),
            vacant: Vec::new(),
            handles: 0,
            listed: Vec::new(),
            anew: Vec::new(),
            encoded: Told::default(),
        }
    }

    /// An encoder for a scheduler that has worked before (a new leader). Every worker must get a [`resync`](Self::resync) before the next
    /// message. O(requests + rows in flight).
    #[must_use]
    pub fn attach(scheduler: &Scheduler) -> Self {
        let state = scheduler.wire_state();
        let mut encoder = Self::new(scheduler.config());
        encoder.next_plan = state.next_batch;
        encoder.lost = scheduler.stats().batches_lost;
        encoder.encoded.items = state.encoded.items().map(|(item, ..)| item).collect();
        for (place, slot) in state.tables.iter().filter(|(_, slot)| matches!(slot.state, State::Running | State::Paused | State::Sending)) {
            let Some(cold) = state.tables.cold(place) else { continue };
            let handle = encoder.handle();
            let blocks = encoder.geometry.blocks(slot.scheduled).min(slot.table.len() as u32);
            *encoder.record(place) = Record {
                handle,
                id: slot.id,
                seq: cold.seq,
                // The epoch of a paused session has begun with its pause, before workers are told of its next input.
                epoch: if slot.state == State::Paused { 0 } else { slot.epoch },
                table_life: cold.table_life,
                prompt_len: slot.prompt_len,
                // A paused session may have lost its blocks.
                running: !slot.table.is_empty(),
                tokens: slot.known(),
                blocks,
                told: blocks,
                cursor: slot.scheduled,
                drafts: 0,
                plan: state.next_batch.saturating_sub(1),
                spans: cold.spans.len() as u32,
            };
            let (geometry, groups) = (encoder.geometry, encoder.groups);
            for ((told, table), &group) in encoder.told(place).iter_mut().zip(&cold.groups).zip(groups.more()) {
                *told = ToldTable::of(table, groups::entries(geometry, group, slot.scheduled));
            }
        }
        for row in state.in_flight.flat_map(|batch| batch.rows()) {
            let record = encoder.record(row.slot);
            if record.handle != NONE && record.epoch == row.epoch {
                record.drafts = row.num_draft_tokens;
            }
        }
        // The stream has a beginning of its own: a worker that got no resync, or that of another leader, refuses what comes.
        if encoder.next_plan > 0 {
            let mut known = Vec::new();
            encoder.resync(scheduler, &mut known);
            encoder.chain = digest_of(&known);
        }
        encoder
    }

    /// The number of the next message, from 0 on.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The digest of the stream so far. A mirror that has applied all of it has the same.
    #[must_use]
    pub const fn digest(&self) -> u128 {
        self.chain
    }

    /// Appends the message of a batch just scheduled to `out`. Drafts are not in it: see [`encode_with`](Self::encode_with).
    ///
    /// # Errors
    /// The batch is not the next one, or not the newest any more, or of another scheduler (as one restored from an older snapshot is, as far as
    /// that shows: [`attach`](Self::attach) a new encoder to it); nothing was written and nothing has changed.
    pub fn encode(&mut self, batch: &Scheduled<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.encode_with(batch, |_| None, out)
    }

    /// Appends the message of a batch just scheduled to `out`, with the tokens of drafts. `drafts` is asked for each row that carries some, and
    /// gives at least that many, of which the first ones are taken, or `None`: workers have them from elsewhere.
    ///
    /// # Errors
    /// As of [`encode`](Self::encode), or there are too few drafts; nothing was written and nothing has changed.
    pub fn encode_with<'d, D>(&mut self, batch: &Scheduled<'_>, mut drafts: D, out: &mut Vec<u8>) -> Result<(), EncodeError>
    where
        D: FnMut(&Row) -> Option<&'d [TokenId]>,
    {
        if batch.id().0 != self.next_plan {
            return Err(EncodeError::Order { expected: BatchId(self.next_plan), found: batch.id() });
        }
        self.fits(Geometry { block_size: batch.block_size, num_blocks: batch.num_blocks }, batch.kv_groups)?;
        let lost = batch.lost.checked_sub(self.lost).ok_or_else(|| EncodeError::Foreign(batch.id()))?;
        self.anew.clear();
        for row in batch.rows() {
            if batch.blocks(row).is_empty() {
                return Err(EncodeError::Late(row.request));
            }
            if !self.continues(batch, row) {
                return Err(EncodeError::Foreign(batch.id()));
            }
            if self.records.get(row.slot as usize).is_some_and(|record| record.running && record.epoch != row.epoch) {
                self.anew.push(row.slot);
            }
            if row.num_draft_tokens == 0 {
                continue;
            }
            let (expected, given) = (row.num_draft_tokens, drafts(row).map(<[TokenId]>::len));
            if let Some(given) = given.filter(|&given| given < expected as usize) {
                return Err(EncodeError::Drafts { request: row.request, expected, given: given as u32 });
            }
        }
        let at = begin(out, Kind::Plan, self.sequence);
        let section = self.encoded.note(batch.batch());
        if section {
            mark_section(out, at);
        }
        self.geometry.put(&self.groups, out);
        put(out, self.next_plan);
        put(out, lost);
        if lost > 0 {
            self.lost = batch.lost;
            self.lost_at = self.next_plan;
        }
        self.put_ended(batch, out);
        self.put_preempted(batch, out);
        self.put_copies(batch, out);
        put(out, batch.rows().len() as u64);
        for row in batch.rows() {
            let tokens = if row.num_draft_tokens > 0 { drafts(row) } else { None };
            self.put_row(batch, row, tokens, out);
        }
        if section {
            let records = &self.records;
            let handle = |slot: u32| records.get(slot as usize).map_or(NONE, |record| record.handle);
            self.encoded.put(batch.batch(), handle, out);
        }
        self.next_plan += 1;
        self.end(out, at);
        Ok(())
    }

    /// Appends the message of a transfer of prompt KV to this machine, after [`Event::KvWanted`](crate::Event::KvWanted): where the positions
    /// `start..end` are to be written.
    ///
    /// # Errors
    /// The request has no block table over the positions, or the scheduler is of another configuration; nothing was written and nothing has changed.
    pub fn transfer(
        &mut self,
        scheduler: &Scheduler,
        request: RequestId,
        start: u32,
        end: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let error = EncodeError::Transfer(request);
        self.fits(Geometry::of(scheduler.config()), &scheduler.config().kv_groups)?;
        let tables = scheduler.wire_state().tables;
        let place = tables.find(request.0).ok_or(error)?;
        let (slot, cold) = tables.slot(place).zip(tables.cold(place)).ok_or(error)?;
        let table = slot.table.get(..self.geometry.blocks(end) as usize).ok_or(error)?;
        if start >= end {
            return Err(error);
        }
        let at = begin(out, Kind::Transfer, self.sequence);
        self.geometry.put(&self.groups, out);
        put(out, request.0);
        put(out, cold.seq);
        put32(out, start);
        put32(out, end);
        put32(out, table.len() as u32);
        for block in steps(0, table) {
            put32(out, block);
        }
        self.end(out, at);
        Ok(())
    }

    /// Blocks are counted as workers count them.
    fn fits(&self, found: Geometry, groups: &KvGroups) -> Result<(), EncodeError> {
        let pair = |geometry: Geometry| (geometry.block_size, geometry.num_blocks);
        if found != self.geometry {
            return Err(EncodeError::Geometry { expected: pair(self.geometry), found: pair(found) });
        }
        if *groups == self.groups { Ok(()) } else { Err(EncodeError::Groups) }
    }

    /// Whether a row may be of the request that workers know in its slot, or of one after it.
    #[inline]
    fn continues(&self, batch: &Scheduled<'_>, row: &Row) -> bool {
        let record = self.records.get(row.slot as usize).filter(|record| record.handle != NONE);
        let (Some(record), Some(slot)) = (record, batch.tables.slot(row.slot)) else { return true };
        let same = record.id == slot.id && record.tokens <= slot.known();
        // Else the one that workers know has ended, and this batch says so.
        same || batch.batch().ended.iter().any(|ended| ended.slot == row.slot && ended.seq == record.seq)
    }

    /// Places that it has allocated.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.records.capacity() + self.told.capacity() + self.vacant.capacity() + self.listed.capacity() + self.anew.capacity()
    }

    fn end(&mut self, out: &mut [u8], at: usize) {
        self.chain = seal(out, at, self.chain);
        self.sequence += 1;
    }

    fn handle(&mut self) -> u32 {
        self.vacant.pop().unwrap_or_else(|| {
            self.handles += 1;
            self.handles - 1
        })
    }

    fn record(&mut self, slot: u32) -> &mut Record {
        let slot = slot as usize;
        if slot >= self.records.len() {
            self.records.resize(slot + 1, Record::UNKNOWN);
        }
        &mut self.records[slot]
    }

    /// What workers know of the further tables of the request in a slot.
    fn told(&mut self, slot: u32) -> &mut [ToldTable] {
        let groups = self.groups.more().len();
        let from = slot as usize * groups;
        if self.told.len() < from + groups {
            self.told.resize(from + groups, ToldTable::default());
        }
        &mut self.told[from..from + groups]
    }
}

/// A table as steps from block to block.
pub(super) fn steps(from: u32, table: &[BlockId]) -> impl ExactSizeIterator<Item = u32> + '_ {
    let mut last = from;
    table.iter().map(move |block| {
        let step = step(last, block.0);
        last = block.0;
        step
    })
}
