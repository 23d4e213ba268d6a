//! What a worker gets: the plan of one batch, with block tables and tokens.

use core::iter::FusedIterator;
use core::ops::Range;

use super::message::{Origin, RawRow};
use super::mirror::{Entry, Mirror};
use crate::batch::{GroupBlocks, RowKind};
use crate::encoder::{EncoderItem, Span};
use crate::ids::{BatchId, BlockId, RequestId, TokenId};

/// What a message was.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Applied<'a> {
    /// A batch to run.
    Plan(Plan<'a>),
    /// KV that the peer writes: role decode.
    Transfer(Transfer<'a>),
    /// The mirror has all that the others have.
    Resynced,
}

impl<'a> Applied<'a> {
    /// The plan, if it is one.
    #[must_use]
    pub const fn plan(self) -> Option<Plan<'a>> {
        match self {
            Self::Plan(plan) => Some(plan),
            Self::Transfer(_) | Self::Resynced => None,
        }
    }

    /// The transfer, if it is one.
    #[must_use]
    pub const fn transfer(self) -> Option<Transfer<'a>> {
        match self {
            Self::Transfer(transfer) => Some(transfer),
            Self::Plan(_) | Self::Resynced => None,
        }
    }
}

/// Where prompt KV is to be written by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer<'a> {
    /// Whose.
    pub request: RequestId,
    /// Which of the requests with this id.
    pub incarnation: u64,
    /// First position.
    pub start: u32,
    /// One past the last.
    pub end: u32,
    /// The block table over `0..end`.
    pub blocks: &'a [BlockId],
}

/// The token at a position that a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Token {
    /// This one.
    Known(TokenId),
    /// The caller keeps the tokens of this request, and has this one.
    Kept,
    /// It was not known when the plan was made: what the first sample of that row of that plan was.
    Sampled {
        /// The plan, by its batch.
        plan: BatchId,
        /// The row in it, from 0 on.
        row: u32,
    },
    /// This one, which a drafter has proposed.
    Draft(TokenId),
    /// A drafter has proposed it, and it is not in the stream.
    OtherDraft,
}

/// The plan of one batch: what to forget, and what to run. Borrows the mirror.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    mirror: &'a Mirror,
}

impl<'a> Plan<'a> {
    pub(super) const fn of(mirror: &'a Mirror) -> Self {
        Self { mirror }
    }

    /// The number of its batch. Plans come in order, none left out.
    #[must_use]
    pub const fn batch(&self) -> BatchId {
        BatchId(self.mirror.message.number)
    }

    /// Batches lost since the plan before. What they were to write is rubbish; the rows of their requests start where the rest ends.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.mirror.message.lost
    }

    /// Requests that have ended. Forget them before you look at the rows: a row may belong to a new request of the same id.
    #[must_use]
    pub fn ended(&self) -> &'a [RequestId] {
        &self.mirror.ended
    }

    /// Requests that have lost their blocks, and may come back with others.
    #[must_use]
    pub fn preempted(&self) -> &'a [RequestId] {
        &self.mirror.preempted
    }

    /// Blocks to be copied (from, to) before the rows run.
    #[must_use]
    pub fn copies(&self) -> &'a [(BlockId, BlockId)] {
        &self.mirror.message.copies
    }

    /// What is encoded before the rows run, after [`encoder_freed`](Self::encoder_freed); each output once.
    pub fn encoder_inputs(&self) -> impl Iterator<Item = PlanInput> + 'a {
        let mirror = self.mirror;
        mirror.message.section.inputs.iter().filter_map(|&(handle, index)| {
            let entry = mirror.entries.get(handle as usize)?;
            let span = *entry.spans.get(index as usize)?;
            Some(PlanInput { request: RequestId(entry.id), handle, index, span })
        })
    }

    /// Encoder outputs to be forgotten before anything is encoded.
    #[must_use]
    pub fn encoder_freed(&self) -> &'a [EncoderItem] {
        &self.mirror.message.section.freed
    }

    /// How many rows there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mirror.message.rows.len()
    }

    /// Never: a plan has rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A row by its number.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<PlanRow<'a>> {
        let raw = self.mirror.message.rows.get(row)?;
        let entry = self.mirror.entries.get(raw.handle as usize)?;
        let drafts = raw.draft_tokens.as_ref().and_then(|drafts| self.mirror.message.tokens.get(drafts.clone()));
        let blocks = entry.table.get(..self.mirror.geometry.blocks(raw.end()) as usize).unwrap_or_default();
        Some(PlanRow { raw, entry, drafts, blocks, mirror: self.mirror })
    }

    /// The rows, in the order of the batch.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = PlanRow<'a>> + DoubleEndedIterator + 'a {
        let plan = *self;
        // Each number below the length has its row.
        Rows { plan, numbers: 0..plan.len() }
    }
}

/// A span that a plan encodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanInput {
    /// A request of the plan whose span it is.
    pub request: RequestId,
    /// The request's [`handle`](PlanRow::handle).
    pub handle: u32,
    /// Which of the request's spans, from 0.
    pub index: u32,
    /// The span; [`item`](Span::item) names the output.
    pub span: Span,
}

struct Rows<'a> {
    plan: Plan<'a>,
    numbers: Range<usize>,
}

impl<'a> Iterator for Rows<'a> {
    type Item = PlanRow<'a>;

    fn next(&mut self) -> Option<PlanRow<'a>> {
        self.plan.row(self.numbers.next()?)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.numbers.size_hint()
    }
}

impl DoubleEndedIterator for Rows<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.plan.row(self.numbers.next_back()?)
    }
}

impl ExactSizeIterator for Rows<'_> {}
impl FusedIterator for Rows<'_> {}

/// One row of a plan: positions `num_computed_tokens .. num_computed_tokens + num_scheduled_tokens` of one request.
#[derive(Clone, Copy, Debug)]
pub struct PlanRow<'a> {
    raw: &'a RawRow<Range<usize>>,
    entry: &'a Entry,
    drafts: Option<&'a [TokenId]>,
    blocks: &'a [BlockId],
    mirror: &'a Mirror,
}

impl<'a> PlanRow<'a> {
    /// Whose.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        RequestId(self.entry.id)
    }

    /// Which of the requests with this id: no two requests of one scheduler have the same number.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.entry.incarnation
    }

    /// A small number that is this request's alone while the stream knows it: the place in an executor's own tables.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.raw.handle
    }

    /// How the row stands to those of its request before it.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.raw.origin
    }

    /// Tokens whose KV is there before this row.
    #[must_use]
    pub const fn num_computed_tokens(&self) -> u32 {
        self.raw.start
    }

    /// Tokens that this row computes, drafts included.
    #[must_use]
    pub const fn num_scheduled_tokens(&self) -> u32 {
        self.raw.len
    }

    /// How many of them are drafts (the last ones).
    #[must_use]
    pub const fn num_draft_tokens(&self) -> u32 {
        self.raw.drafts
    }

    /// One past the last position.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.raw.end()
    }

    /// Prefill or decode.
    #[must_use]
    pub const fn kind(&self) -> RowKind {
        self.raw.kind
    }

    /// Whether its last position yields a token.
    #[must_use]
    pub const fn samples(&self) -> bool {
        self.raw.samples
    }

    /// Tokens of the request's prompt.
    #[must_use]
    pub const fn prompt_len(&self) -> u32 {
        self.entry.prompt_len
    }

    /// The block table over positions `0..end()`.
    #[must_use]
    pub const fn blocks(&self) -> &'a [BlockId] {
        self.blocks
    }

    /// The block table in one of the [`kv_groups`](crate::Config::kv_groups), by its number: the blocks that the positions of the row read or write.
    /// Group 0 is what [`blocks`](Self::blocks) gives. Of a group of cross-attention it is the blocks of the encoder's output.
    #[must_use]
    pub fn group_table(&self, group: usize) -> GroupBlocks<'a> {
        let Some(index) = group.checked_sub(1) else { return GroupBlocks { first: 0, blocks: self.blocks } };
        let table = self.entry.groups.get(index).zip(self.mirror.groups.more().get(index));
        table.map_or_else(GroupBlocks::default, |(table, &kind)| {
            let entries = super::groups::entries(self.mirror.geometry, kind, self.raw.end());
            GroupBlocks { first: table.front(), blocks: table.until(entries.unwrap_or(u32::MAX)) }
        })
    }

    /// The tokens known, prompt and outputs, from position 0 on. `None`: the caller keeps them.
    #[must_use]
    pub fn known(&self) -> Option<&'a [TokenId]> {
        self.entry.in_stream.then_some(&self.entry.tokens)
    }

    /// The request's spans that have a position in this row. O(log spans).
    #[must_use]
    pub fn spans(&self) -> &'a [Span] {
        let spans = &self.entry.spans;
        spans.get(crate::encoder::span::overlapping(spans, self.raw.start, self.raw.end())).unwrap_or_default()
    }

    /// The token at a position before `end()`; `None` for any other.
    #[must_use]
    pub fn token(&self, position: u32) -> Option<Token> {
        if position >= self.raw.end() {
            return None;
        }
        if let Some(draft) = position.checked_sub(self.raw.base()) {
            let draft = self.drafts.map(|drafts| drafts.get(draft as usize).copied());
            return draft.map_or(Some(Token::OtherDraft), |token| token.map(Token::Draft));
        }
        if position < self.entry.known {
            let token = self.known().map(|known| known.get(position as usize).copied());
            return token.map_or(Some(Token::Kept), |token| token.map(Token::Known));
        }
        let sample = self.entry.sample(position)?;
        Some(Token::Sampled { plan: BatchId(sample.plan), row: sample.row })
    }

    /// The tokens of the positions that it runs, one each.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + use<'a> {
        let row = *self;
        (row.raw.start..row.raw.end()).filter_map(move |position| row.token(position))
    }
}
