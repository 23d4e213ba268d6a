//! One request.

use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::ids::{BlockId, TokenId};
use crate::kv::Digest;
use crate::planner::Segment;
use crate::queue::Ticket;

/// Where a request is in its life; see ARCHITECTURE.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The slot holds no request.
    Vacant,
    /// Not admitted, or not any more.
    Waiting,
    /// Admitted: scheduled, and neither finished nor preempted since.
    Running,
    /// Role prefill: computed, and its KV is being read.
    Sending,
    /// Aborted, with rows in flight or under a transfer.
    Aborting,
    /// Finished, with rows in flight. Its id may belong to another request by now.
    Gone,
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
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) id: u64,
    pub(crate) state: State,
    /// Not runnable before `ready`.
    pub(crate) gated: bool,
    /// Role decode: its KV is awaited; with `pinned`, into its block table.
    pub(crate) waits_kv: bool,
    /// Blocks of it are pinned: all of the table (role decode), or those of the positions before `Cold::ready_to` (role prefill).
    pub(crate) pinned: bool,
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
    /// Whole blocks of its table that are published, or never will be.
    pub(crate) published: u32,
    /// Its place in the queue of decodes; 0 = none.
    pub(crate) ticket: Ticket,
    pub(crate) has_stops: bool,
    /// The newest batch that holds a row of it, or a later one.
    pub(crate) last_batch: u64,
    pub(crate) table: Vec<BlockId>,
    /// Prompt and outputs, where the kernel keeps them.
    pub(crate) tokens: Vec<TokenId>,
}

impl Slot {
    /// Not admitted, and nothing outside stands before its admission.
    pub(crate) fn is_runnable(&self) -> bool {
        self.state == State::Waiting && !self.gated && !self.waits_kv && self.stale == 0
    }

    /// Tokens that are known: prompt and outputs.
    pub(crate) fn known(&self) -> u32 {
        self.prompt_len + self.outputs
    }

    /// Positions that could be scheduled: with asynchronous scheduling also those whose token is in flight.
    fn limit(&self, asynchronous: bool) -> u32 {
        let known = self.known();
        if asynchronous && self.outputs + self.live < self.max_out { known + self.live } else { known }
    }

    pub(crate) fn demand(&self, asynchronous: bool) -> Demand {
        let limit = self.limit(asynchronous);
        // With a sample in flight and nothing beyond it to run, all known tokens are scheduled.
        if limit <= self.scheduled || self.outputs + self.live >= self.max_out {
            Demand::Nothing
        } else if self.scheduled < self.prompt_len || limit - self.scheduled > 1 {
            Demand::Prompt
        } else {
            Demand::Decode
        }
    }

    /// Tokens that the longest run writes: the KV of the last output is never needed.
    pub(crate) fn longest(&self) -> u32 {
        self.prompt_len + self.max_out - 1
    }
}

/// What only admissions, publications and rare calls touch.
#[derive(Clone, Debug)]
pub(crate) struct Cold {
    pub(crate) seq: u64,
    pub(crate) priority: i64,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) tenant: u32,
    pub(crate) weight_millionths: u64,
    pub(crate) stops: SmallVec<[TokenId; 4]>,
    /// Digest of each whole block of what is known, as far as it was needed.
    pub(crate) digests: Vec<Digest>,
    pub(crate) root: Digest,
    /// Role prefill: positions announced.
    pub(crate) ready_to: u32,
    /// Its share of the prefill work that the planner counts.
    pub(crate) unscheduled: Segment,
    pub(crate) tbt_slo_ns: Option<u64>,
    /// Admissions so far.
    pub(crate) admissions: u32,
    /// Cost of the whole prompt (without a cost model: its tokens).
    pub(crate) total: u64,
}
