//! A batch: an immutable snapshot of what was decided.

use alloc::vec::Vec;

use crate::cost::CostTerms;
use crate::encoder::{EncoderInput, EncoderItem, Span};
use crate::ids::{BatchId, BlockId, RequestId, TokenId};

/// Which part of a request a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum RowKind {
    /// Known tokens that have no KV: prompt, or outputs that are computed again.
    Prefill,
    /// One token at or after the end of the prompt, and its drafts.
    Decode,
}

/// One item of a batch: positions `num_computed_tokens .. num_computed_tokens + num_scheduled_tokens` of one request.
///
/// With `chunks_per_batch` above 1 a request may have several rows in a batch; each continues the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Row {
    /// Whose.
    pub request: RequestId,
    /// Tokens whose KV is there before this row, in this batch's own snapshot.
    pub num_computed_tokens: u32,
    /// Tokens that this row computes, drafts included.
    pub num_scheduled_tokens: u32,
    /// How many of them are drafts (the last ones).
    pub num_draft_tokens: u32,
    /// Prefill or decode.
    pub kind: RowKind,
    /// Whether its last position yields a token (and each draft that is right one more).
    pub samples: bool,
    pub(crate) slot: u32,
    pub(crate) epoch: u32,
    /// Cost of this row alone, without `c0`, in nanoseconds; 0 without a cost model.
    pub cost_ns: u64,
    /// FLOPs of this row; 0 without model dimensions.
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    pub flops: u128,
}

impl Row {
    /// One past the last position of this row. Cut off at `u32::MAX`, which only a row from elsewhere comes to (read from a file, edited).
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.num_computed_tokens.saturating_add(self.num_scheduled_tokens)
    }

    /// One token of a request that ends what is known of it, without drafts, cost and FLOPs.
    #[inline]
    pub(crate) const fn plain_decode(request: RequestId, start: u32, slot: u32, epoch: u32) -> Self {
        Self {
            request,
            num_computed_tokens: start,
            num_scheduled_tokens: 1,
            num_draft_tokens: 0,
            kind: RowKind::Decode,
            // A decode is wanted only where it ends what is known.
            samples: true,
            slot,
            epoch,
            cost_ns: 0,
            flops: 0,
        }
    }

    pub(crate) fn terms(&self) -> CostTerms {
        match self.kind {
            RowKind::Prefill => CostTerms::prefill(self.num_computed_tokens, self.num_scheduled_tokens),
            RowKind::Decode => CostTerms::decode(self.num_computed_tokens, self.num_scheduled_tokens),
        }
    }
}

/// A request that was admitted once and has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Ended {
    pub(crate) request: RequestId,
    pub(crate) slot: u32,
    /// Which of the requests that had this slot.
    pub(crate) seq: u64,
}

/// A batch in flight: its rows, and sums over them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Batch {
    pub(crate) id: BatchId,
    pub(crate) rows: Vec<Row>,
    pub(crate) preempted: Vec<RequestId>,
    pub(crate) ended: Vec<Ended>,
    pub(crate) copies: Vec<(BlockId, BlockId)>,
    /// Whose table got each copy.
    pub(crate) copied: Vec<u32>,
    pub(crate) encodes: Vec<EncoderInput>,
    pub(crate) freed: Vec<EncoderItem>,
    pub(crate) lost: bool,
    pub(crate) terms: CostTerms,
    pub(crate) cost_ns: u64,
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    pub(crate) flops: u128,
    pub(crate) samples: u32,
    pub(crate) scheduled_ns: u64,
    /// When the cost model says that it is out; 0 = nobody asked.
    pub(crate) out_ns: u64,
}

impl Batch {
    pub(crate) const fn new() -> Self {
        Self {
            id: BatchId(0),
            rows: Vec::new(),
            preempted: Vec::new(),
            ended: Vec::new(),
            copies: Vec::new(),
            copied: Vec::new(),
            encodes: Vec::new(),
            freed: Vec::new(),
            lost: false,
            terms: CostTerms::prefill(0, 0),
            cost_ns: 0,
            flops: 0,
            samples: 0,
            scheduled_ns: 0,
            out_ns: 0,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn id(&self) -> BatchId {
        self.id
    }

    /// The rows: decodes and prefill chunks, in the order in which they were decided.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Requests that lost their blocks since the last batch: workers forget them before they look at the rows.
    #[must_use]
    pub fn preempted(&self) -> &[RequestId] {
        &self.preempted
    }

    /// Requests that ended since the last batch, of those that were admitted: workers forget all of them before they look at the rows. A row
    /// may belong to a new request of the same id. Those that a lost batch named are named again.
    pub fn ended(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.ended.iter().map(|ended| ended.request)
    }

    /// Blocks to be copied (from, to) before the rows run: a shared block that is about to be written.
    #[must_use]
    pub fn copies(&self) -> &[(BlockId, BlockId)] {
        &self.copies
    }

    /// What is encoded before the rows run, each item once; after [`encoder_freed`](Self::encoder_freed).
    #[must_use]
    pub fn encoder_inputs(&self) -> &[EncoderInput] {
        &self.encodes
    }

    /// Encoder outputs that nobody needs any more: workers forget them before they encode. May name some that are not there: those that a lost
    /// batch was to encode, or named.
    #[must_use]
    pub fn encoder_freed(&self) -> &[EncoderItem] {
        &self.freed
    }

    /// Tokens over all rows, drafts included.
    #[must_use]
    pub const fn num_tokens(&self) -> u64 {
        self.terms.tokens
    }

    /// The sums that the cost is made of.
    #[must_use]
    pub const fn terms(&self) -> &CostTerms {
        &self.terms
    }

    /// Cost of the batch in nanoseconds, rounded once; 0 without a cost model.
    #[must_use]
    pub const fn cost_ns(&self) -> u64 {
        self.cost_ns
    }

    /// The clock when it was scheduled, in nanoseconds.
    #[must_use]
    pub const fn scheduled_ns(&self) -> u64 {
        self.scheduled_ns
    }

    /// FLOPs over all rows; 0 without model dimensions.
    #[must_use]
    pub const fn flops(&self) -> u128 {
        self.flops
    }

    /// Rows that sample: as many [`Sample`]s as [`complete`](crate::Scheduler::complete) wants.
    #[must_use]
    pub const fn num_samples(&self) -> u32 {
        self.samples
    }
}

/// The block table of one KV group, as far as it is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a slice that does not begin with its first entry")]
pub struct GroupBlocks<'a> {
    /// The number of its first entry: those before it are behind the window. An entry stands for `block_size` positions, or for a grain.
    pub first: u32,
    /// The blocks from there on.
    pub blocks: &'a [BlockId],
}

/// A batch just scheduled, with the block tables of its rows.
///
/// Borrows the scheduler: take what the executor needs (or `clone` the [`Batch`]) before the next call.
#[derive(Clone, Copy, Debug)]
pub struct Scheduled<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) tables: crate::state::Tables<'a>,
    pub(crate) block_size: u32,
    pub(crate) num_blocks: u32,
    pub(crate) kv_groups: &'a crate::kv::KvGroups,
    /// Batches lost, ever.
    pub(crate) lost: u64,
}

impl<'a> Scheduled<'a> {
    /// The batch.
    #[must_use]
    pub const fn batch(&self) -> &'a Batch {
        self.batch
    }

    /// The block table of a row's request over positions `0..row.end()`.
    #[must_use]
    pub fn blocks(&self, row: &Row) -> &'a [BlockId] {
        self.tables.row(row, self.block_size)
    }

    /// How many [`kv_groups`](crate::Config::kv_groups) there are.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.kv_groups.as_slice().len()
    }

    /// The block table of a row's request in one of the [`kv_groups`](crate::Config::kv_groups), by its number: the blocks that the positions of
    /// the row read or write. Group 0 is what [`blocks`](Self::blocks) gives. Of a group of cross-attention it is the blocks of the encoder's output.
    #[must_use]
    pub fn group_table(&self, row: &Row, group: usize) -> GroupBlocks<'a> {
        let Some(index) = group.checked_sub(1) else { return GroupBlocks { first: 0, blocks: self.blocks(row) } };
        let entries = match self.kv_groups.as_slice().get(group) {
            Some(crate::KvGroup::Cross) => u32::MAX,
            Some(kind) => kind.entries(row.end(), self.block_size),
            None => 0,
        };
        self.tables.row_in_group(row, index, entries)
    }

    /// The tokens of a row's request that are known: prompt and delivered outputs. Fewer than `row.end()` where the row runs drafts, or the
    /// sample of a batch in flight. `None`: the caller keeps them, see [`Prompt::Lengths`](crate::Prompt::Lengths).
    #[must_use]
    pub fn tokens(&self, row: &Row) -> Option<&'a [TokenId]> {
        let slot = self.tables.slot(row.slot)?;
        (slot.keeps_tokens && slot.epoch == row.epoch).then_some(&slot.tokens)
    }
}

impl<'a> Scheduled<'a> {
    /// The spans of a row's request that have a position in the row. O(log spans).
    #[must_use]
    pub fn spans(&self, row: &Row) -> &'a [Span] {
        let spans = self.tables.cold(row.slot).map_or(&[][..], |cold| &cold.spans);
        spans.get(crate::encoder::span::overlapping(spans, row.num_computed_tokens, row.end())).unwrap_or_default()
    }
}

impl core::ops::Deref for Scheduled<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        self.batch
    }
}

/// What one row sampled: its token, after one token for each of its drafts that was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Whose row.
    pub request: RequestId,
    /// The accepted drafts and then the token that follows them: 1 to 1 + drafts tokens.
    pub tokens: &'a [TokenId],
}
