//! Counters over the life of a scheduler.

/// Counters that only grow (but those that say "gauge"). Cheap: plain integers, read at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// Requests accepted by `submit`.
    pub submitted: u64,
    /// Requests that ended by stop or length, or were handed over.
    pub finished: u64,
    /// Requests that ended by an abort.
    pub aborted: u64,
    /// Requests that `submit` refused.
    pub rejected: u64,
    /// Batches scheduled.
    pub batches: u64,
    /// Batches lost by `fail`.
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
    /// Drafts scheduled.
    pub draft_tokens: u64,
    /// Drafts that were right.
    pub accepted_draft_tokens: u64,
    /// Encoder tokens that batches were to encode.
    pub encoder_tokens: u64,
    /// Encoder tokens that were found encoded, once per request and span each time that it needs it anew.
    pub encoder_hit_tokens: u64,
    /// Gauge: encoder tokens whose outputs are kept now, or will be by batches in flight.
    pub encoder_cached_tokens: u64,
    /// Gauge: requests admitted now.
    pub running: u32,
    /// Gauge: requests that wait for admission, a gate or a transfer now.
    pub waiting: u32,
}
