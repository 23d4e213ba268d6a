//! One request.

use alloc::vec::Vec;
use core::ops::Range;

use smallvec::SmallVec;

use crate::encoder::Span;
use crate::gate::GateSet;
use crate::ids::{BlockId, TokenId};
use crate::kv::{Digest, GroupTable};
use crate::planner::Segment;
use crate::policy::Class;
use crate::queue::Ticket;

/// Where a request is in its life; see ARCHITECTURE.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum State {
    /// The slot holds no request.
    Vacant,
    /// Not admitted, or not any more.
    Waiting,
    /// Admitted: scheduled, and neither finished nor preempted since.
    Running,
    /// A session between two inputs.
    Paused,
    /// Role prefill: computed, and its KV is being read.
    Sending,
    /// Aborted, with rows in flight or under a transfer.
    Aborting,
    /// Finished, with rows in flight. Its id may belong to another request by now.
    Gone,
}

/// The epoch after this one. 0 is kept back for rows that are void.
pub(crate) const fn next_epoch(epoch: u32) -> u32 {
    if epoch == u32::MAX { 1 } else { epoch + 1 }
}

/// What a running request wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nothing before a result is back.
    Nothing,
    /// Tokens without KV: prompt, or outputs that are computed again.
    Prompt,
    /// One token at or after the end of the prompt.
    Decode,
}

/// What the hot path touches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Slot {
    pub(crate) id: u64,
    pub(crate) state: State,
    /// What it waits for outside.
    pub(crate) gates: GateSet,
    /// Never two tokens of it in flight at once.
    pub(crate) constrained: bool,
    /// It yields no token: its end is the end of its prompt.
    pub(crate) pooling: bool,
    /// At its end it waits for more input.
    pub(crate) session: bool,
    /// A block from `committed` on may be another's too.
    pub(crate) shared_tail: bool,
    /// Role decode: its KV is awaited; with `pinned`, into its block table.
    pub(crate) waits_kv: bool,
    /// Blocks of it are pinned: all of the table (role decode), or those of the positions before `Cold::ready_to` (role prefill).
    pub(crate) pinned: bool,
    /// Its prompt has spans.
    pub(crate) has_spans: bool,
    /// Spans of it are under way: `Cold::held` is not empty.
    pub(crate) encoding: bool,
    /// The times of its tokens are of interest.
    pub(crate) paced: bool,
    /// Counts as decoding for the balance.
    pub(crate) decoding: bool,
    /// Counts as a partial prefill.
    pub(crate) partial: bool,
    /// It has tokens (or digests) to find its prefix by.
    pub(crate) cacheable: bool,
    pub(crate) keeps_tokens: bool,
    /// Counts how often its scheduled work was given up: results of an older epoch are late.
    pub(crate) epoch: u32,
    pub(crate) prompt_len: u32,
    /// Outputs at most, cut to the model length.
    pub(crate) max_out: u32,
    /// Outputs delivered.
    pub(crate) outputs: u32,
    /// `num_computed_tokens`, counting what is in flight.
    pub(crate) scheduled: u32,
    /// Positions whose KV is final.
    pub(crate) committed: u32,
    /// Samples in flight, of this epoch.
    pub(crate) live: u32,
    /// Rows in flight with drafts, of this epoch: how far it is is not known before they are back.
    pub(crate) live_drafts: u32,
    /// Rows in flight, of this epoch, those of the batch under construction included.
    pub(crate) live_rows: u32,
    /// Rows in flight, of all epochs.
    pub(crate) rows: u32,
    /// Samples in flight of `stale_epoch` that will be delivered.
    pub(crate) stale: u32,
    pub(crate) stale_epoch: u32,
    /// Drafts proposed for its next decode.
    pub(crate) drafts: u32,
    /// Blocks set aside for it and not taken yet.
    pub(crate) reserved: u32,
    /// Blocks that were set aside for it, and lent out while its KV was on the way.
    pub(crate) owed: u32,
    /// Whole blocks of its table that are published, or never will be.
    pub(crate) published: u32,
    /// The batch that copies a shared block for it, and which block of its table that is: a copy that is lost is computed instead.
    pub(crate) copied: Option<(u64, u32)>,
    /// Positions before this one were scheduled once, and given up.
    pub(crate) reached: u32,
    /// Its part in the gauges.
    pub(crate) counted: u16,
    /// Its place in the queue of decodes; 0 = none.
    pub(crate) ticket: Ticket,
    pub(crate) has_stops: bool,
    /// The newest batch that holds a row of it, or a later one.
    pub(crate) last_batch: u64,
    /// The one before that.
    pub(crate) batch_before: u64,
    pub(crate) table: Vec<BlockId>,
    /// Counts how often it has let go of its table.
    pub(crate) table_life: u32,
    /// Prompt and outputs, where the kernel keeps them.
    pub(crate) tokens: Vec<TokenId>,
}

impl Slot {
    /// Not admitted, and nothing outside stands before its admission.
    pub(crate) fn is_runnable(&self) -> bool {
        self.state == State::Waiting && self.gates.is_empty() && !self.waits_kv && self.stale == 0
    }

    /// Tokens that are known: prompt and outputs.
    pub(crate) fn known(&self) -> u32 {
        self.prompt_len + self.outputs
    }

    /// Positions that could be scheduled: with asynchronous scheduling also those whose token is in flight.
    fn limit(&self, asynchronous: bool) -> u32 {
        let known = self.known();
        let ahead = asynchronous && !self.constrained && self.live_drafts == 0 && self.outputs + self.live < self.max_out;
        if ahead { known + self.live } else { known }
    }

    pub(crate) fn demand(&self, asynchronous: bool) -> Demand {
        let limit = self.limit(asynchronous);
        if limit <= self.scheduled {
            Demand::Nothing
        } else if self.scheduled < self.prompt_len || limit - self.scheduled > 1 {
            Demand::Prompt
        } else {
            Demand::Decode
        }
    }
}

/// What only admissions, publications and rare calls touch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Cold {
    pub(crate) seq: u64,
    pub(crate) priority: i64,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) ttft_slo_ns: Option<u64>,
    pub(crate) tenant: u32,
    pub(crate) weight_millionths: u64,
    pub(crate) stops: SmallVec<[TokenId; 4]>,
    /// Outputs before which no stop token counts.
    pub(crate) min_tokens: u32,
    pub(crate) adapter: Option<u32>,
    /// It takes nothing from the prefix cache.
    pub(crate) skip_cache_read: bool,
    /// Role prefill: consumers that have read everything.
    pub(crate) acknowledged: u64,
    /// Digest of each whole block of what is known, as far as it was needed.
    pub(crate) digests: Vec<Digest>,
    pub(crate) root: Digest,
    /// Role prefill: positions announced.
    pub(crate) ready_to: u32,
    /// Its share of the prefill work that the planner counts.
    pub(crate) unscheduled: Segment,
    pub(crate) tbt_slo_ns: Option<u64>,
    /// What stands for images and the like, in order.
    pub(crate) spans: Vec<Span>,
    /// Those of them that are scheduled and not committed, whose items the request needs.
    pub(crate) held: Range<u32>,
    /// When its next token is due, if it is paced.
    pub(crate) token_due_ns: u64,
    /// When it got its last chunk (before: when it was submitted), if waits are bounded.
    pub(crate) last_chunk_ns: u64,
    /// Admissions so far.
    pub(crate) admissions: u32,
    /// Cost of the whole prompt (without a cost model: its tokens).
    pub(crate) total: u64,
    /// The tables of the KV groups behind the first one.
    pub(crate) groups: Vec<GroupTable>,
    /// Positions of an encoder's output.
    pub(crate) cross_tokens: u32,
    /// When it arrived; a session's input: when it was extended.
    pub(crate) arrival_ns: u64,
    /// The tenant that it was submitted with.
    pub(crate) owner: Option<u64>,
    /// Whether it is relegated.
    pub(crate) standing: Class,
    /// Cost of its prompt that is left, as it was last counted for the question who can be on time.
    pub(crate) due_work_ns: u64,
    /// Since when its policy puts it off.
    pub(crate) put_off_since_ns: Option<u64>,
}
