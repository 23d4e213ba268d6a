//! Budgets that change at run time.

use arbitrary::Unstructured;
use cpp_sched::Balance;

/// What can change at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// `max_batch_tokens`.
    BatchTokens(u32),
    /// `max_batch_requests`.
    BatchRequests(u32),
    /// `max_requests`.
    Requests(u32),
    /// The most tokens of a chunk.
    Chunk(Option<u32>),
    /// `chunks_per_batch`.
    ChunksPerBatch(u32),
    /// `max_prompt_tokens_per_batch`.
    PromptTokens(Option<u32>),
    /// `max_partial_prefills`.
    PartialPrefills(Option<u32>),
    /// `max_bypass`.
    Bypass(u32),
    /// `balance`.
    Balance(Balance),
    /// `async_distance`.
    Distance(u32),
    /// `max_adapters_per_batch`.
    Adapters(Option<u32>),
    /// `draft_slots`.
    DraftSlots(u32),
    /// `kv_lease_ns`.
    Lease(Option<u64>),
    /// `c0` of the cost model, in nanoseconds.
    Cost(u64),
    /// `num_blocks`, which cannot change.
    Blocks(u32),
    /// Chunking chooses its target itself.
    Adaptive,
    /// `encoder_budget_tokens`.
    EncoderBudget(Option<u32>),
    /// `encoder_cache_tokens`, which cannot change.
    EncoderCache(u32),
    /// `latency.max_prefill_wait_ns`.
    PrefillWait(Option<u64>),
}

impl Knob {
    pub(super) fn decode(u: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let kind = u.int_in_range(0..=18)?;
        let n = u32::from(u.arbitrary::<u8>()?);
        let small = 1 + n % 4;
        let some = (n >= 64).then_some(small);
        Ok(match kind {
            0 => Self::BatchTokens(1 + n % 40),
            1 => Self::BatchRequests(1 + n % 8),
            2 => Self::Requests(1 + n % 8),
            3 => Self::Chunk((n >= 64).then_some(1 + n % 12)),
            4 => Self::ChunksPerBatch(small),
            5 => Self::PromptTokens((n >= 64).then_some(1 + n % 10)),
            6 => Self::PartialPrefills(some),
            7 => Self::Bypass(n % 4),
            8 => Self::Balance([Balance::Off, Balance::Count, Balance::Cost][n as usize % 3]),
            9 => Self::Distance(n % 4),
            10 => Self::Adapters(some),
            11 => Self::DraftSlots(n % 3),
            12 => Self::Lease((n >= 64).then_some(u64::from(n) * 20)),
            13 => Self::Cost(u64::from(n) * 3),
            14 => Self::Blocks(n),
            15 => Self::Adaptive,
            16 => Self::EncoderBudget((n >= 64).then_some(1 + n % 12)),
            17 => Self::EncoderCache(1 + n),
            _ => Self::PrefillWait((n >= 64).then_some(u64::from(n) * 5)),
        })
    }
}
