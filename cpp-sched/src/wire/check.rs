//! A message against what a mirror knows: nothing changes but notes of what would be known then.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use super::bytes::take_step;
use super::error::MirrorError;
use super::groups::{self, ExpectedTable, RawGroup};
use super::header::Geometry;
use super::message::{Message, Origin, RawRow};
use super::mirror::Entry;
use crate::encoder::{EncoderItem, Span};
use crate::ids::RequestId;
use crate::kv::KvGroup;

/// What would be known of a request after the rows checked so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    /// The check that this belongs to.
    stamp: u64,
    pub(super) used: bool,
    in_stream: bool,
    running: bool,
    pub(super) id: u64,
    prompt_len: u32,
    known: u32,
    cursor: u32,
    drafts: u32,
    plan: u64,
    blocks: u32,
    last_block: u32,
    /// Its pending samples count up to this position.
    samples_to: u32,
    /// Its further tables were looked at.
    tables_begun: bool,
    /// Where its spans end, and which of the message's are new ones of it.
    pub(super) spans_end: u32,
    pub(super) new_spans: Range<usize>,
    /// It is another request than the one known under its handle before.
    is_new: bool,
}

impl Expected {
    fn of(entry: &Entry, stamp: u64) -> Self {
        Self {
            stamp,
            used: entry.used,
            in_stream: entry.in_stream,
            running: entry.running,
            id: entry.id,
            prompt_len: entry.prompt_len,
            known: entry.known,
            cursor: entry.cursor,
            drafts: entry.drafts,
            plan: entry.plan,
            blocks: entry.table.len() as u32,
            last_block: entry.table.last().map_or(0, |block| block.0),
            samples_to: u32::MAX,
            tables_begun: false,
            spans_end: entry.spans.last().map_or(0, Span::end),
            new_spans: 0..0,
            is_new: false,
        }
    }

    pub(super) fn give_up_blocks(&mut self) {
        self.running = false;
        (self.cursor, self.drafts, self.blocks, self.last_block, self.samples_to) = (0, 0, 0, 0, 0);
    }
}

/// Holds a message against what is known.
pub(super) struct Check<'a> {
    pub(super) geometry: Geometry,
    pub(super) stamp: u64,
    pub(super) lost_at: u64,
    pub(super) number: u64,
    pub(super) entries: &'a [Entry],
    pub(super) expected: &'a mut Vec<Expected>,
    /// Steps, which become blocks.
    pub(super) blocks: &'a mut [u32],
    /// The KV groups behind the first one.
    pub(super) kinds: &'a [KvGroup],
    pub(super) tables: &'a mut Vec<ExpectedTable>,
}

impl Check<'_> {
    pub(super) fn known(&mut self, handle: u32) -> Result<&mut Expected, MirrorError> {
        let unknown = MirrorError::Unknown { handle };
        let expected = self.expected.get_mut(handle as usize).ok_or(unknown)?;
        if expected.stamp != self.stamp {
            *expected = self.entries.get(handle as usize).map_or_else(Expected::default, |entry| Expected::of(entry, self.stamp));
        }
        if expected.used { Ok(expected) } else { Err(unknown) }
    }

    /// A place for a new request: a vacant one, or the next.
    fn vacant(&mut self, row: &RawRow<Range<usize>>) -> Result<&mut Expected, MirrorError> {
        let (handle, place) = (row.handle, row.handle as usize);
        let error = MirrorError::Handle { handle };
        if place == self.expected.len() {
            self.expected.push(Expected::default());
        } else if self.known(handle).is_ok() {
            return Err(error);
        }
        let stamp = self.stamp;
        let expected = self.expected.get_mut(place).ok_or(error)?;
        *expected = Expected {
            stamp,
            used: true,
            is_new: true,
            in_stream: row.tokens.is_some(),
            id: row.identity.id,
            prompt_len: row.identity.prompt_len,
            ..Expected::default()
        };
        Ok(expected)
    }

    pub(super) fn row(&mut self, row: &RawRow<Range<usize>>) -> Result<(), MirrorError> {
        let (lost_at, number, geometry) = (self.lost_at, self.number, self.geometry);
        // A new request at the place of one that has ended has nothing of it.
        let entries = self.entries;
        let expected = if row.origin == Origin::New { self.vacant(row)? } else { self.known(row.handle)? };
        let request = RequestId(expected.id);
        check_start(expected, row, lost_at)?;
        let end =
            row.start.checked_add(row.len).filter(|&end| end > row.start && row.drafts < row.len).ok_or(MirrorError::Length(request))?;
        check_tokens(expected, row)?;

        let entry = entries.get(row.handle as usize).filter(|_| row.origin != Origin::New);
        if let Some(keep) = row.keep {
            // Told in an earlier plan: a row replaces no block of another row of its plan.
            let table = entry.filter(|_| expected.blocks >= keep).and_then(|entry| entry.table.get(..keep as usize));
            let table = table.ok_or(MirrorError::Keep { request, most: expected.blocks, found: keep })?;
            (expected.blocks, expected.last_block) = (keep, table.last().map_or(0, |block| block.0));
        }
        let needed = geometry.blocks(end).saturating_sub(expected.blocks);
        let found = row.blocks.len() as u32;
        if found != needed {
            return Err(MirrorError::Table { request, expected: needed, found });
        }
        let (mut last, known, samples_to) = (expected.last_block, expected.known, expected.samples_to);
        for block in self.blocks.get_mut(row.blocks.clone()).unwrap_or_default() {
            last = take_step(last, *block);
            geometry.check_block(request, last)?;
            *block = last;
        }
        // Positions that an earlier plan samples: no more than there are such plans.
        for position in row.start.max(known)..row.base() {
            let sample = entry.and_then(|entry| entry.sample(position));
            if position > samples_to || sample.is_none() {
                return Err(MirrorError::Position { request, position });
            }
        }
        let expected = self.known(row.handle)?;
        expected.running = true;
        (expected.cursor, expected.drafts, expected.plan) = (end, row.drafts, number);
        (expected.blocks, expected.last_block) = (expected.blocks + found, last);
        Ok(())
    }

    /// The tables of the further KV groups, of a row that was checked.
    pub(super) fn tables(&mut self, row: &RawRow<Range<usize>>, raw: &[RawGroup]) -> Result<(), MirrorError> {
        let (geometry, kinds) = (self.geometry, self.kinds);
        let entry = self.entries.get(row.handle as usize).filter(|_| !matches!(row.origin, Origin::New | Origin::Restarted));
        let expected = self.known(row.handle)?;
        let (request, begun) = (RequestId(expected.id), core::mem::replace(&mut expected.tables_begun, true));
        let from = row.handle as usize * kinds.len();
        if self.tables.len() < from + kinds.len() {
            self.tables.resize(from + kinds.len(), ExpectedTable::default());
        }
        let tables = &mut self.tables[from..from + kinds.len()];
        for (index, ((table, &kind), raw)) in tables.iter_mut().zip(kinds).zip(&raw[row.groups.clone()]).enumerate() {
            let known = entry.and_then(|entry| entry.groups.get(index));
            if !begun || matches!(row.origin, Origin::New | Origin::Restarted) {
                *table = known.map_or_else(ExpectedTable::default, ExpectedTable::of);
            }
            table.check(geometry, request, raw, known, groups::entries(geometry, kind, row.end()), self.blocks)?;
        }
        Ok(())
    }
}

/// Rows run nothing that is not encoded, and what is to be encoded and forgotten is as it is said.
pub(super) fn check_encoded(
    entries: &[Entry],
    expected: &[Expected],
    encoded: &BTreeSet<EncoderItem>,
    message: &mut Message,
) -> Result<(), MirrorError> {
    let Message { rows, spans, section, .. } = message;
    // The spans of a request: those known before, then those of the message.
    let spans_of = |handle: u32| {
        let new = expected.get(handle as usize)?;
        let known = entries.get(handle as usize).filter(|_| !new.is_new).map_or(&[][..], |entry| &entry.spans);
        Some((known, spans.get(new.new_spans.clone()).unwrap_or_default(), RequestId(new.id)))
    };
    let in_plan = |handle: u32| rows.iter().any(|row| row.handle == handle);
    section.check(encoded, |handle, span| {
        let (known, new, _) = spans_of(handle).filter(|_| in_plan(handle))?;
        let span = span as usize;
        known.get(span).or_else(|| new.get(span.checked_sub(known.len())?))?.item()
    })?;
    for row in rows.iter() {
        let Some((known, new, request)) = spans_of(row.handle) else { continue };
        for spans in [known, new] {
            section.check_row(encoded, spans, &(row.start..row.end()), request)?;
        }
    }
    Ok(())
}

/// The row starts where its request is.
fn check_start(expected: &mut Expected, row: &RawRow<Range<usize>>, lost_at: u64) -> Result<(), MirrorError> {
    let request = RequestId(expected.id);
    let found = row.start;
    let running = !matches!(row.origin, Origin::New | Origin::Restarted);
    if expected.running != running {
        return Err(MirrorError::Running(request));
    }
    let start = match row.origin {
        Origin::Continues => expected.cursor,
        Origin::Rejected(drafts) => {
            let most = expected.drafts.min(expected.cursor);
            if drafts == 0 || drafts > most {
                return Err(MirrorError::Rejected { request, most, found: drafts });
            }
            expected.cursor - drafts
        }
        Origin::RolledBack => {
            if expected.plan >= lost_at {
                return Err(MirrorError::NotLost(request));
            }
            expected.samples_to = found;
            // What is final is the leader's knowledge; it is never beyond what was scheduled.
            found.min(expected.cursor)
        }
        Origin::Extended => {
            expected.samples_to = 0;
            found.min(expected.cursor)
        }
        // It may start behind a prefix that the cache has.
        Origin::New | Origin::Restarted => found,
    };
    if found == start { Ok(()) } else { Err(MirrorError::Start { request, expected: start, found }) }
}

/// What has become known fits what was.
fn check_tokens(expected: &mut Expected, row: &RawRow<Range<usize>>) -> Result<(), MirrorError> {
    let error = MirrorError::Tokens(RequestId(expected.id));
    if row.new_tokens > 0 && row.tokens.is_some() != expected.in_stream {
        return Err(error);
    }
    expected.known = expected.known.checked_add(row.new_tokens).ok_or(error)?;
    match row.origin {
        Origin::Extended if row.identity.prompt_len <= expected.prompt_len => return Err(error),
        Origin::New | Origin::Restarted | Origin::Extended => expected.prompt_len = row.identity.prompt_len,
        _ => {}
    }
    if expected.known < expected.prompt_len.max(1) { Err(error) } else { Ok(()) }
}
