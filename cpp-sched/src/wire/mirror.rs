//! The worker's side: messages become plans.
//!
//! A message is applied in three steps: [`Message::parse`] reads numbers and looks at nothing else, [`Check`] holds them against what is known
//! and notes what would be known then, [`Mirror::commit`] takes them over and cannot fail. So an error leaves the mirror as it was.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::bytes::Reader;
use super::check::{Check, Expected, check_encoded};
use super::error::MirrorError;
use super::groups::ExpectedTable;
use super::header::{Geometry, Header, Kind};
use super::message::{Identity, Message, Origin};
use super::plan::{Applied, Plan, Transfer};
use super::resync::{Resync, parse_table};
use super::spans::check_spans;
use crate::config::Config;
use crate::encoder::{EncoderItem, Span};
use crate::ids::{BatchId, BlockId, RequestId, TokenId};
use crate::kv::{GroupTable, KvGroups};

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
    /// A byte of a resync may come to some two hundred bytes of memory here (a handle that is free), that of any other message to a few dozen: whoever
    /// takes messages from strangers limits their length.
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
