//! The worker's side: messages become plans.
//!
//! A message is applied in three steps: [`Message::parse`] reads numbers and looks at nothing else, [`Check`] holds them against what is known
//! and notes what would be known then, [`Mirror::commit`] takes them over and cannot fail. So an error leaves the mirror as it was.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use smallvec::SmallVec;

use super::bytes::{Reader, take_step};
use super::error::MirrorError;
use super::groups::{self, ExpectedTable, RawGroup};
use super::header::{Geometry, Header, Kind};
use super::message::{Identity, Message, Origin, RawRow};
use super::plan::{Applied, Plan, Transfer};
use super::resync::{Resync, parse_table};
use super::spans::check_spans;
use crate::config::Config;
use crate::encoder::{EncoderItem, Span};
use crate::ids::{BatchId, BlockId, RequestId, TokenId};
use crate::kv::{GroupTable, KvGroup, KvGroups};

/// A token that a row of a plan samples, and that nobody has told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) position: u32,
    pub(super) plan: u64,
    pub(super) row: u32,
}

/// What is known of the request under a handle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// There is one.
    pub(super) used: bool,
    pub(super) id: u64,
    pub(super) incarnation: u64,
    pub(super) prompt_len: u32,
    /// Its tokens are in the stream.
    pub(super) in_stream: bool,
    /// It has a block table.
    pub(super) running: bool,
    /// Tokens known, here or to the caller.
    pub(super) known: u32,
    /// The end of its last row.
    pub(super) cursor: u32,
    /// Drafts of its last row.
    pub(super) drafts: u32,
    /// The plan of its last row.
    pub(super) plan: u64,
    pub(super) tokens: Vec<TokenId>,
    pub(super) table: Vec<BlockId>,
    pub(super) pending: SmallVec<[Pending; 2]>,
    /// The tables of further KV groups.
    pub(super) groups: Vec<GroupTable>,
    pub(super) spans: Vec<Span>,
}

impl Entry {
    pub(super) fn new(identity: &Identity) -> Self {
        let &Identity { id, incarnation, prompt_len } = identity;
        Self { used: true, id, incarnation, prompt_len, ..Self::default() }
    }

    /// What samples the token at a position.
    pub(super) fn sample(&self, position: u32) -> Option<&Pending> {
        self.pending.iter().find(|pending| pending.position == position)
    }

    fn give_up_blocks(&mut self) {
        self.running = false;
        self.table.clear();
        self.pending.clear();
        self.groups.iter_mut().for_each(|table| table.begin(0));
        (self.cursor, self.drafts) = (0, 0);
    }
}

/// A request as a mirror knows it; see [`Mirror::requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mirrored<'a> {
    /// The caller's name for it.
    pub request: RequestId,
    /// Which of the requests with this id.
    pub incarnation: u64,
    /// Tokens known: prompt and outputs. Empty where the caller keeps them.
    pub tokens: &'a [TokenId],
    /// Its blocks; empty after a preemption.
    pub blocks: &'a [BlockId],
    /// Positions scheduled: the end of its last row.
    pub num_computed_tokens: u32,
}

/// Rebuilds plans from the messages of an [`Encoder`](super::Encoder), and checks that it is told all of them.
///
/// One belongs to each worker. It decides nothing: every difference between what a message says and what the mirror knows is an error, and the
/// mirror stays as it was. It holds the tokens and block tables of the requests that the stream has named and not ended.
#[derive(Clone, Debug)]
pub struct Mirror {
    pub(super) geometry: Geometry,
    pub(super) groups: KvGroups,
    sequence: u64,
    chain: u128,
    next_plan: u64,
    /// The plan that told of the last loss.
    pub(super) lost_at: u64,
    pub(super) entries: Vec<Entry>,
    /// What a message under check would leave, by handle.
    expected: Vec<Expected>,
    /// The same of further tables, by handle and KV group.
    expected_tables: Vec<ExpectedTable>,
    stamp: u64,
    /// The plan applied last.
    pub(super) message: Message,
    pub(super) ended: Vec<RequestId>,
    pub(super) preempted: Vec<RequestId>,
    transfer: Vec<BlockId>,
    /// Some request had spans.
    has_spans: bool,
    /// What is encoded.
    encoded: BTreeSet<EncoderItem>,
}

impl Mirror {
    /// A mirror that knows nothing, at the beginning of a stream. Block size and number of blocks must be the leader's.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            geometry: Geometry::of(config),
            groups: config.kv_groups,
            sequence: 0,
            chain: 0,
            next_plan: 0,
            lost_at: 0,
            entries: Vec::new(),
            expected: Vec::new(),
            expected_tables: Vec::new(),
            stamp: 0,
            message: Message::default(),
            ended: Vec::new(),
            preempted: Vec::new(),
            transfer: Vec::new(),
            has_spans: false,
            encoded: BTreeSet::new(),
        }
    }

    /// The number of the message that is due.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The digest of the stream so far; the same as the encoder's and every other mirror's that has applied as much.
    #[must_use]
    pub const fn digest(&self) -> u128 {
        self.chain
    }

    /// The requests that are known, in the order of their handles. O(handles).
    pub fn requests(&self) -> impl Iterator<Item = Mirrored<'_>> {
        self.entries.iter().filter(|entry| entry.used).map(|entry| Mirrored {
            request: RequestId(entry.id),
            incarnation: entry.incarnation,
            tokens: &entry.tokens,
            blocks: &entry.table,
            num_computed_tokens: entry.cursor,
        })
    }

    /// The encoder outputs that are there after the last plan. O(their number).
    pub fn encoded(&self) -> impl ExactSizeIterator<Item = EncoderItem> + '_ {
        self.encoded.iter().copied()
    }

    /// Applies one whole message. A resync replaces all that is known; every other message must be the next of the stream. O(the message).
    ///
    /// # Errors
    /// The first thing that is wrong with the message, or differs from what is known; nothing has changed.
    pub fn apply(&mut self, bytes: &[u8]) -> Result<Applied<'_>, MirrorError> {
        let header = Header::read(bytes)?;
        let mut reader = Reader::new(bytes, super::header::BODY);
        match header.kind {
            Kind::Plan => {
                header.follows(self.sequence, self.chain, bytes)?;
                self.geometry.check(&self.groups, &mut reader)?;
                self.message.parse(&mut reader, self.groups.more().len(), header.section)?;
                self.check()?;
                self.commit();
                self.advance(&header);
                Ok(Applied::Plan(Plan::of(self)))
            }
            Kind::Transfer => {
                header.follows(self.sequence, self.chain, bytes)?;
                self.geometry.check(&self.groups, &mut reader)?;
                let (request, incarnation) = (RequestId(reader.number("request id")?), reader.number("incarnation")?);
                let (start, end) = (reader.number32("start")?, reader.number32("end")?);
                if start >= end {
                    return Err(MirrorError::Length(request));
                }
                self.transfer = parse_table(self.geometry, &mut reader, request, end)?;
                reader.end()?;
                self.advance(&header);
                Ok(Applied::Transfer(Transfer { request, incarnation, start, end, blocks: &self.transfer }))
            }
            Kind::Resync => {
                header.follows(header.sequence, 0, bytes)?;
                self.geometry.check(&self.groups, &mut reader)?;
                let resync = Resync::parse(self.geometry, &self.groups, &mut reader, header.section)?;
                self.encoded = resync.encoded;
                self.has_spans = resync.entries.iter().any(|entry| !entry.spans.is_empty());
                self.entries = resync.entries;
                self.next_plan = resync.next_plan;
                self.lost_at = resync.lost_at;
                self.chain = resync.chain;
                self.sequence = header.sequence;
                self.message = Message::default();
                Ok(Applied::Resynced)
            }
        }
    }

    /// As if nothing had been encoded.
    #[cfg(test)]
    pub(super) fn forget_encoded(&mut self) {
        self.encoded.clear();
    }

    fn advance(&mut self, header: &Header) {
        self.sequence += 1;
        self.chain = header.digest;
    }

    fn check(&mut self) -> Result<(), MirrorError> {
        self.stamp += 1;
        self.expected.truncate(self.entries.len());
        self.expected.resize(self.entries.len(), Expected::default());
        let Message { number, lost, .. } = self.message;
        if number != self.next_plan {
            return Err(MirrorError::Plan { expected: BatchId(self.next_plan), found: BatchId(number) });
        }
        let mut check = Check {
            geometry: self.geometry,
            stamp: self.stamp,
            lost_at: if lost > 0 { number } else { self.lost_at },
            number,
            entries: &self.entries,
            expected: &mut self.expected,
            blocks: &mut self.message.blocks,
            kinds: self.groups.more(),
            tables: &mut self.expected_tables,
        };
        for &handle in &self.message.ended {
            check.known(handle)?.used = false;
        }
        for &handle in &self.message.preempted {
            check.known(handle)?.give_up_blocks();
        }
        if let Some(&(from, to)) = self.message.copies.iter().find(|(from, to)| from.0.max(to.0) >= self.geometry.num_blocks) {
            return Err(MirrorError::Copy { from, to });
        }
        for row in &self.message.rows {
            check.row(row)?;
            if !check.kinds.is_empty() {
                check.tables(row, &self.message.groups)?;
            }
            if !row.spans.is_empty() {
                let expected = check.known(row.handle)?;
                let (request, new) = (RequestId(expected.id), &self.message.spans[row.spans.clone()]);
                check_spans(new, expected.spans_end, row.identity.prompt_len, request)?;
                expected.spans_end = new.last().map_or(0, Span::end);
                if !expected.new_spans.is_empty() {
                    return Err(MirrorError::Spans(request));
                }
                expected.new_spans = row.spans.clone();
            }
        }
        if !self.has_spans && self.message.spans.is_empty() && self.message.section.is_empty() {
            return Ok(());
        }
        check_encoded(&self.entries, &self.expected, &self.encoded, &mut self.message)
    }

    /// Takes over what was checked.
    fn commit(&mut self) {
        let message = &self.message;
        message.section.apply(&mut self.encoded);
        self.has_spans |= !message.spans.is_empty();
        self.next_plan = message.number + 1;
        if message.lost > 0 {
            self.lost_at = message.number;
        }
        self.ended.clear();
        for &handle in &message.ended {
            self.ended.push(RequestId(self.entries[handle as usize].id));
            self.entries[handle as usize] = Entry::default();
        }
        self.preempted.clear();
        for &handle in &message.preempted {
            let entry = &mut self.entries[handle as usize];
            self.preempted.push(RequestId(entry.id));
            entry.give_up_blocks();
        }
        for (row, number) in message.rows.iter().zip(0..) {
            let handle = row.handle as usize;
            if row.origin == Origin::New {
                if handle == self.entries.len() {
                    self.entries.push(Entry::default());
                }
                self.entries[handle] = Entry::new(&row.identity);
                self.entries[handle].in_stream = row.tokens.is_some();
                self.entries[handle].groups = alloc::vec![GroupTable::default(); self.groups.more().len()];
            }
            let entry = &mut self.entries[handle];
            entry.running = true;
            match row.origin {
                Origin::RolledBack => entry.pending.retain(|pending| pending.position <= row.start),
                Origin::Extended => entry.pending.clear(),
                _ => {}
            }
            if matches!(row.origin, Origin::Extended | Origin::Restarted) {
                entry.prompt_len = row.identity.prompt_len;
            }
            entry.spans.extend_from_slice(&message.spans[row.spans.clone()]);
            if let Some(keep) = row.keep {
                entry.table.truncate(keep as usize);
            }
            if row.new_tokens > 0 {
                entry.known += row.new_tokens;
                entry.tokens.extend_from_slice(&message.tokens[row.tokens.clone().unwrap_or_default()]);
                let known = entry.known;
                entry.pending.retain(|pending| pending.position >= known);
            }
            for (raw, table) in message.groups[row.groups.clone()].iter().zip(&mut entry.groups) {
                raw.commit(table, &message.blocks);
            }
            entry.table.extend(message.blocks[row.blocks.clone()].iter().map(|&block| BlockId(block)));
            (entry.cursor, entry.drafts, entry.plan) = (row.end(), row.drafts, message.number);
            // With drafts, where the next token stands depends on how many are right; the next row tells.
            if row.samples && row.drafts == 0 {
                entry.pending.push(Pending { position: row.end(), plan: message.number, row: number });
            }
        }
    }
}

/// What would be known of a request after the rows checked so far.
#[derive(Clone, Debug, Default)]
struct Expected {
    /// The check that this belongs to.
    stamp: u64,
    used: bool,
    in_stream: bool,
    running: bool,
    id: u64,
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
    spans_end: u32,
    new_spans: Range<usize>,
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

    fn give_up_blocks(&mut self) {
        self.running = false;
        (self.cursor, self.drafts, self.blocks, self.last_block, self.samples_to) = (0, 0, 0, 0, 0);
    }
}

/// Holds a message against what is known.
struct Check<'a> {
    geometry: Geometry,
    stamp: u64,
    lost_at: u64,
    number: u64,
    entries: &'a [Entry],
    expected: &'a mut Vec<Expected>,
    /// Steps, which become blocks.
    blocks: &'a mut [u32],
    /// The KV groups behind the first one.
    kinds: &'a [KvGroup],
    tables: &'a mut Vec<ExpectedTable>,
}

impl Check<'_> {
    fn known(&mut self, handle: u32) -> Result<&mut Expected, MirrorError> {
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

    fn row(&mut self, row: &RawRow<Range<usize>>) -> Result<(), MirrorError> {
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
    fn tables(&mut self, row: &RawRow<Range<usize>>, raw: &[RawGroup]) -> Result<(), MirrorError> {
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
fn check_encoded(
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
