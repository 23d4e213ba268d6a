//! How large batches and chunks are.

use crate::cost::CostTerms;

/// How prompts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunking {
    /// A chunk is as long as the prompt, `max`, the budget and the blocks allow.
    Tokens {
        /// Tokens in a chunk at most; none = the batch budget alone.
        max: Option<u32>,
    },
    /// Every batch, its decodes included, is filled up to a cost; a batch may exceed it only as a single item of the smallest size.
    Cost {
        /// The target, in nanoseconds.
        target_ns: u64,
        /// Chunks end on a multiple of this many tokens, counted from the start of the sequence (or at the end of what is known); with a
        /// [`State`](crate::KvGroup::State) group on a multiple of its grain as well.
        align: u32,
        /// A chunk has at least this many tokens, where alignment, budget and the end of the prompt allow it.
        min: u32,
    },
    /// The kernel chooses the target itself, from the prefill work of the busy period and the depth of the pipeline. Needs no tuning;
    /// [`Config::adaptive`](crate::Config::adaptive) sets limits for those who want some.
    Adaptive,
}

impl Default for Chunking {
    fn default() -> Self {
        Self::Tokens { max: None }
    }
}

/// Limits of [`Chunking::Adaptive`]. The defaults set none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Adaptive {
    /// Chunks end on a multiple of this many tokens from the start of the sequence; cut to `max_batch_tokens`. A coarse grid costs time: each
    /// batch is half a step short on average. Default 64.
    pub align: u32,
    /// Tokens of a chunk at least. Default: `align`.
    pub min: Option<u32>,
    /// Pins the target, in nanoseconds: nothing is chosen any more. Default none.
    pub target_ns: Option<u64>,
    /// A batch costs at most this, in nanoseconds: how long an urgent prompt waits for the first stage. Default none.
    pub max_target_ns: Option<u64>,
    /// While decodes ride along, a token takes at most this long from step to step, in nanoseconds: a batch costs at most this over the batches
    /// in flight. [`Request::tbt_slo_ns`](crate::Request::tbt_slo_ns) asks for it by request ([`Latency::follow_slack`]). Default none.
    pub token_latency_ns: Option<u64>,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { align: 64, min: None, target_ns: None, max_target_ns: None, token_latency_ns: None }
    }
}

/// How latency targets shape batches and admission. The defaults follow the targets that requests bring, and reserve nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Latency {
    /// With [`Chunking::Adaptive`], targets limit what a batch costs. A target for a first token
    /// ([`Request::ttft_slo_ns`](crate::Request::ttft_slo_ns)): a half of the tightest in the busy period, over the stages and one more, so that a
    /// prompt that comes unforeseen can still be on time; though no less than 64 times what each batch costs anyway. A target between tokens
    /// ([`Request::tbt_slo_ns`](crate::Request::tbt_slo_ns)): its share of a round (the target over the batches in flight) limits every batch while
    /// such a request decodes, as its next step comes behind those that it does not ride in; and a batch that it rides in has to be out before its
    /// next token is due, by the stages' times. Both aim earlier by what results have lately taken longer than the cost model says. Tokens are due a
    /// target after one another from the first on: up to four late ones are made good, what came early is not spent. A batch may always cost
    /// three quarters of the share, so that decodes that are late already do not stop prompts. Off: a target between tokens gives its steady share
    /// to the batches that it rides in, and one for a first token nothing. Default on.
    pub follow_slack: bool,
    /// A decode that has waited for so many batches goes into the next one whatever latency caps say; budget, target, balance and blocks
    /// still count, and decodes go longest waiting first. Default 8.
    pub max_decode_wait: u32,
    /// A prompt that has got no chunk for so long (since its submit, or its last chunk) comes first in the next batch, whatever the policy
    /// says: the bound on starvation that a policy alone does not give. Default none.
    pub max_prefill_wait_ns: Option<u64>,
    /// An admitted prompt that comes first and has time left until its deadline leaves room in the batch: it keeps the share of the target that
    /// brings it home in time, `left / (deadline - now)`, and what nobody else wants (Medha's space sharing, arXiv 2409.17264). Needs a cost model
    /// and chunking by cost or adaptive chunking, else it does nothing. Default off.
    pub space_sharing: bool,
    /// Refuses, at submit, a request whose predicted time to the first token is above so many millionths of its
    /// [`ttft_slo_ns`](crate::Request::ttft_slo_ns); the prediction is [`Scheduler::estimate`](crate::Scheduler::estimate)'s, and comes with
    /// the error. Needs a cost model. Default none.
    pub reject_above_millionths: Option<u32>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { follow_slack: true, max_decode_wait: 8, max_prefill_wait_ns: None, space_sharing: false, reject_above_millionths: None }
    }
}

/// Memory that prefill chunks take beside the KV cache while they run, such as activations, or keys and values expanded from a latent cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[allow(clippy::exhaustive_structs, reason = "three numbers of one formula")]
pub struct Workspace {
    /// Bytes that there are.
    pub bytes: u64,
    /// Bytes for each token of a batch.
    pub per_token: u64,
    /// Bytes for each token of a chunk's history.
    pub per_history: u64,
}

impl Workspace {
    /// Tokens of a chunk after `history` computed ones for which a batch with these terms has room.
    pub(crate) fn room(&self, terms: &CostTerms, history: u32) -> u32 {
        let taken = u128::from(terms.tokens) * u128::from(self.per_token)
            + (u128::from(terms.prefill_history) + u128::from(history)) * u128::from(self.per_history);
        let left = u128::from(self.bytes).saturating_sub(taken);
        left.checked_div(u128::from(self.per_token)).map_or(if left > 0 { u32::MAX } else { 0 }, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}
