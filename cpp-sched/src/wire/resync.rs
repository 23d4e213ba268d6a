//! All that workers know, in one message: for a worker that joins late or starts again.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::bytes::{Reader, put, put32, take_step};
use super::encoder::{Encoder, NONE, Record, steps};
use super::error::MirrorError;
use super::groups::Told;
use super::header::{Geometry, Kind, begin, mark_section, seal};
use super::message::{Identity, flag, put_all};
use super::mirror::{Entry, Pending};
use super::spans::{check_spans, parse_cached, parse_spans, put_spans};
use crate::batch::Batch;
use crate::encoder::{EncoderCache, EncoderItem};
use crate::ids::{BlockId, RequestId};
use crate::kv::{GroupTable, KvGroups};
use crate::scheduler::Scheduler;
use crate::state::{Slot, Tables};

/// What the encoder looks at in a scheduler.
pub(crate) struct State<'a> {
    pub(crate) tables: Tables<'a>,
    pub(crate) in_flight: alloc::collections::vec_deque::Iter<'a, alloc::boxed::Box<Batch>>,
    pub(crate) next_batch: u64,
    pub(crate) encoded: &'a EncoderCache,
}

impl Encoder {
    /// Appends a message to `out` that puts a worker which knows nothing into the state of those that have applied the whole stream. The
    /// stream itself goes on as if nothing had happened: give it only to workers that need it, before the next message.
    ///
    /// `scheduler` is the one whose batches this encoder has encoded. O(requests and their tokens + rows in flight).
    pub fn resync(&self, scheduler: &Scheduler, out: &mut Vec<u8>) {
        let state = scheduler.wire_state();
        let mut known = alloc::vec![None; self.handles as usize];
        for (place, record) in (0..).zip(&self.records) {
            if record.handle != NONE {
                known[record.handle as usize] = Some((place, record));
            }
        }
        // Samples that are in flight: whose, and which.
        let mut pending: Vec<(u32, Pending)> = Vec::new();
        for batch in state.in_flight {
            for (row, number) in batch.rows().iter().zip(0..) {
                let current = state.tables.slot(row.slot).is_some_and(|slot| slot.epoch == row.epoch);
                if row.samples && row.num_draft_tokens == 0 && current {
                    pending.push((row.slot, Pending { position: row.end(), plan: batch.id().0, row: number }));
                }
            }
        }
        pending.sort_by_key(|&(slot, _)| slot);

        let at = begin(out, Kind::Resync, self.sequence);
        self.geometry.put(&self.groups, out);
        out.extend_from_slice(&self.chain.to_le_bytes());
        put(out, self.next_plan);
        put(out, self.lost_at);
        put32(out, self.handles);
        // The stream has told spans of those that are here; one that has ended needs none any more.
        let told = |place: u32, record: &Record| {
            let cold = state.tables.cold(place).filter(|cold| cold.seq == record.seq);
            cold.and_then(|cold| cold.spans.get(..record.spans as usize)).unwrap_or_default()
        };
        let with_spans: Vec<_> = known.iter().flatten().map(|&(place, record)| (record.handle, told(place, record))).collect();
        for known in known {
            let Some((place, record)) = known else {
                out.push(0);
                continue;
            };
            let samples = pending.partition_point(|&(slot, _)| slot < place)..pending.partition_point(|&(slot, _)| slot <= place);
            let groups = self.groups.more().len();
            let told = self.told.get(place as usize * groups..(place as usize + 1) * groups).unwrap_or_default();
            put_request(out, place, record, told, &state.tables, &pending[samples]);
        }
        let with_spans = || with_spans.iter().filter(|(_, spans)| !spans.is_empty());
        if !self.encoded.items.is_empty() || with_spans().next().is_some() {
            mark_section(out, at);
            self.encoded.put_all(out);
            put(out, with_spans().count() as u64);
            for (handle, spans) in with_spans() {
                put32(out, *handle);
                put_spans(out, spans);
            }
        }
        seal(out, at, 0);
    }
}

fn put_request(out: &mut Vec<u8>, place: u32, record: &Record, told: &[Told], tables: &Tables<'_>, samples: &[(u32, Pending)]) {
    out.push(1);
    put(out, record.id);
    put(out, record.seq);
    // A request that has ended meanwhile is known by name until the next plan says so.
    let slot = tables.slot(place).zip(tables.cold(place)).filter(|(slot, cold)| cold.seq == record.seq && record.tokens <= slot.known());
    let (tokens, running): (Option<&Slot>, bool) = match slot {
        Some((slot, cold)) => (Some(slot), record.has_table_of(cold)),
        None => (None, false),
    };
    put32(out, record.prompt_len);
    put32(out, record.tokens);
    let tokens = tokens.filter(|slot| slot.keeps_tokens).and_then(|slot| slot.tokens.get(..record.tokens as usize));
    out.push(tokens.is_some().into());
    put_all(out, tokens.unwrap_or_default());
    out.push(running.into());
    if !running {
        return;
    }
    put32(out, record.cursor);
    put32(out, record.drafts);
    put(out, record.plan);
    // After a loss it may be shorter than what was told; the next row says so to everybody.
    let table = slot.map_or(&[][..], |(slot, _)| &slot.table[..slot.table.len().min(record.told as usize)]);
    put32(out, table.len() as u32);
    for block in steps(0, table) {
        put32(out, block);
    }
    for (told, table) in told.iter().zip(slot.map_or(&[][..], |(_, cold)| &cold.groups)) {
        told.put_all(table, out);
    }
    let samples = samples.iter().filter(|(_, pending)| pending.position >= record.tokens);
    put(out, samples.clone().count() as u64);
    for (_, pending) in samples {
        put32(out, pending.position);
        put(out, pending.plan);
        put32(out, pending.row);
    }
}

/// A resync that was read.
pub(super) struct Resync {
    pub(super) chain: u128,
    pub(super) next_plan: u64,
    pub(super) lost_at: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) encoded: BTreeSet<EncoderItem>,
}

impl Resync {
    pub(super) fn parse(geometry: Geometry, groups: &KvGroups, reader: &mut Reader<'_>, section: bool) -> Result<Self, MirrorError> {
        let chain = u128::from_le_bytes(reader.array("digest")?);
        let next_plan = reader.ordinal("plan number")?;
        let lost_at = reader.ordinal("plan number")?;
        // One byte of a message makes at most one entry, of some two hundred bytes; see `Mirror::apply`.
        let entries = (0..reader.count("requests")?).map(|_| parse_request(geometry, groups, reader)).collect::<Result<_, _>>()?;
        let mut resync = Self { chain, next_plan, lost_at, entries, encoded: BTreeSet::new() };
        if section {
            resync.encoded = parse_cached(reader)?;
            for _ in 0..reader.count("requests")? {
                let handle = reader.number32("requests")?;
                let entry = resync.entries.get_mut(handle as usize).filter(|entry| entry.used && entry.spans.is_empty());
                let entry = entry.ok_or(MirrorError::Unknown { handle })?;
                parse_spans(reader, &mut entry.spans)?;
                check_spans(&entry.spans, 0, entry.prompt_len, RequestId(entry.id))?;
            }
        }
        reader.end()?;
        Ok(resync)
    }
}

fn parse_request(geometry: Geometry, groups: &KvGroups, reader: &mut Reader<'_>) -> Result<Entry, MirrorError> {
    if !flag(reader, "request")? {
        return Ok(Entry::default());
    }
    let (id, incarnation) = (reader.number("request id")?, reader.number("incarnation")?);
    let prompt_len = reader.number32("prompt length")?;
    let mut entry = Entry::new(&Identity { id, incarnation, prompt_len });
    entry.known = reader.number32("tokens")?;
    entry.in_stream = flag(reader, "tokens")?;
    if entry.in_stream {
        let count = reader.fits("tokens", entry.known.into())?;
        reader.numbers("tokens", count, &mut entry.tokens)?;
    }
    entry.groups = alloc::vec![GroupTable::default(); groups.more().len()];
    entry.running = flag(reader, "request")?;
    if !entry.running {
        return Ok(entry);
    }
    entry.cursor = reader.number32("start")?;
    entry.drafts = reader.number32("drafts")?;
    entry.plan = reader.ordinal("plan number")?;
    entry.table = parse_table(geometry, reader, RequestId(id), 0)?;
    for table in &mut entry.groups {
        *table = super::groups::parse_table(geometry, reader, RequestId(id))?;
    }
    for _ in 0..reader.count("samples")? {
        let position = reader.number32("position")?;
        let (plan, row) = (reader.ordinal("plan number")?, reader.number32("row")?);
        entry.pending.push(Pending { position, plan, row });
    }
    Ok(entry)
}

/// A table that covers at least the positions before `end`.
pub(super) fn parse_table(geometry: Geometry, reader: &mut Reader<'_>, request: RequestId, end: u32) -> Result<Vec<BlockId>, MirrorError> {
    let found = reader.count("blocks")?;
    let expected = geometry.blocks(end);
    if found < expected {
        return Err(MirrorError::Table { request, expected, found });
    }
    let mut table = Vec::with_capacity(found as usize);
    let mut last = 0;
    for _ in 0..found {
        last = take_step(last, reader.number32("blocks")?);
        geometry.check_block(request, last)?;
        table.push(BlockId(last));
    }
    Ok(table)
}
