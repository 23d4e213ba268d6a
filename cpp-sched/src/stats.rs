//! Counters over the life of a scheduler, and gauges of what is now.

/// Counters that only grow, and gauges of this moment. Cheap: plain integers, read at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// Requests accepted by `submit`.
    pub submitted: u64,
    /// Requests that ended as they should: by stop or length, computed, or handed over.
    pub finished: u64,
    /// Requests whose prompt KV the peer never took ([`TransferFailed`](crate::FinishReason::TransferFailed)).
    pub transfers_failed: u64,
    /// Requests that ended by an abort.
    pub aborted: u64,
    /// Requests that `submit` refused.
    pub rejected: u64,
    /// Batches scheduled.
    pub batches: u64,
    /// Batches lost, by `fail` or `lose`.
    pub batches_lost: u64,
    /// Tokens scheduled over all rows, drafts included.
    pub scheduled_tokens: u64,
    /// Output tokens delivered.
    pub output_tokens: u64,
    /// Admissions: first ones and those after a preemption.
    pub admissions: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens looked up in the prefix cache, once per first admission.
    pub cache_queried_tokens: u64,
    /// Tokens found there, once per first admission.
    pub cache_hit_tokens: u64,
    /// Tokens found there by requests that come back after a preemption.
    pub cache_hit_tokens_resumed: u64,
    /// Committed tokens that a preemption threw away.
    pub preempted_tokens: u64,
    /// Tokens scheduled once more, at positions that were scheduled and given up before: after a preemption or a loss. What the prefix cache has
    /// kept is not scheduled, and does not count.
    pub recomputed_tokens: u64,
    /// Drafts scheduled.
    pub draft_tokens: u64,
    /// Drafts that were right.
    pub accepted_draft_tokens: u64,
    /// Encoder tokens that batches were to encode.
    pub encoder_tokens: u64,
    /// Encoder tokens that were found encoded, once per request and span each time that it needs it anew.
    pub encoder_hit_tokens: u64,
    /// Times that a request was relegated ([`Config::relegation`](crate::Config::relegation)).
    pub relegated: u64,
    /// Times that a relegated request came back among those that can be on time.
    pub returned: u64,
    /// Gauge: encoder tokens whose outputs are kept now, or will be by batches in flight.
    pub encoder_cached_tokens: u64,
    /// Gauge: requests admitted now.
    pub running: u32,
    /// Gauge: requests alive that are not admitted now.
    pub waiting: u32,
    /// Gauge: what requests wait for now.
    pub waiting_for: Waiting,
    /// Gauge: batches in flight.
    pub in_flight_batches: u32,
    /// Gauge: tokens of the batches in flight, drafts included.
    pub in_flight_tokens: u64,
    /// Gauge: cost of the batches in flight in nanoseconds; 0 without a cost model.
    pub in_flight_cost_ns: u64,
}

/// Requests by what they wait for, in an engine's terms. Each request alive counts once among the first eight, or not at all if it runs;
/// the gates count each shut gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Waiting {
    /// For admission: a slot, blocks, its turn.
    pub admission: u32,
    /// For gates, admitted or not.
    pub gates: u32,
    /// For late results, after a preemption.
    pub late_results: u32,
    /// Role decode: for blocks to receive KV in.
    pub transfer_blocks: u32,
    /// Role decode: for KV on the way.
    pub kv: u32,
    /// Role prefill: for consumers to read its KV.
    pub consumers: u32,
    /// For the next input of its session.
    pub input: u32,
    /// For its last batch or transfer to end, after an abort.
    pub abort: u32,
    /// Of those that wait for admission, gates or late results: admitted before, and preempted or set aside since.
    pub again: u32,
    /// Shut gates of kind [`Other`](crate::Gate::Other).
    pub gate_other: u32,
    /// Shut gates of kind [`Grammar`](crate::Gate::Grammar).
    pub gate_grammar: u32,
    /// Shut gates of kind [`Kv`](crate::Gate::Kv).
    pub gate_kv: u32,
    /// Shut gates of kind [`Input`](crate::Gate::Input).
    pub gate_input: u32,
    /// Shut gates of kind [`Adapter`](crate::Gate::Adapter).
    pub gate_adapter: u32,
}
