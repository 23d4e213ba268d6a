//! What can be wrong with a call: one small enum an operation. A call that fails changes nothing.

use core::fmt;

use crate::ids::{BatchId, RequestId};

/// Why a [`Config`](crate::Config) is not valid. The caller is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field must be at least 1.
    Zero {
        /// Its name.
        field: &'static str,
    },
    /// A field is larger than it may be.
    TooLarge {
        /// Its name.
        field: &'static str,
        /// What it may be at most.
        most: u64,
    },
    /// The field cannot change while the scheduler lives.
    Fixed {
        /// Its name.
        field: &'static str,
    },
    /// A scheduler is made with a cost model or without one, and stays so: the model itself may change.
    CostFixed,
    /// There is one cost model for all stages, or one for each.
    StageCosts {
        /// Stages that there are.
        stages: u32,
        /// Models given.
        given: u32,
    },
    /// A request that is alive has a span that would not fit into any batch any more: end it first, or leave the limit.
    Span {
        /// Whose.
        request: RequestId,
        /// Which of its spans, from 0.
        span: u32,
    },
    /// This option needs a cost model: without one work is no time.
    NeedsCost {
        /// Which.
        field: &'static str,
    },
    /// Policy `custom` is the caller's own, and none was given.
    PolicyMissing,
    /// Lazy admission with role prefill: two half announced prompts could lock each other.
    LazyPrefill,
    /// The KV groups do not go together, or not with the rest.
    KvGroups {
        /// What must be so.
        what: &'static str,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero { field } => write!(f, "{field} must be at least 1"),
            Self::TooLarge { field, most } => write!(f, "{field} must be at most {most}"),
            Self::Fixed { field } => write!(f, "{field} cannot change at run time: make a new scheduler"),
            Self::CostFixed => f.write_str("cost is given when a scheduler is made or never: make a new one, with or without"),
            Self::StageCosts { stages, given } => {
                write!(f, "{given} stage costs are given for {stages} stages: give one for all or one for each")
            }
            Self::KvGroups { what } => write!(f, "kv_groups: {what}"),
            Self::Span { request, span } => write!(f, "span {span} of {request}, which is alive, would fit into no batch any more"),
            Self::NeedsCost { field } => write!(f, "{field} needs a cost model: set cost"),
            Self::PolicyMissing => f.write_str("policy custom is your own: hand it to Scheduler::with_policy"),
            Self::LazyPrefill => {
                f.write_str("admission lazy does not go with role prefill: two half announced prompts could lock each other")
            }
        }
    }
}

/// Why [`submit`](crate::Scheduler::submit) refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError {
    /// A living request has this id. The caller is wrong.
    DuplicateId(RequestId),
    /// A prompt has at least one token. The caller is wrong.
    EmptyPrompt(RequestId),
    /// `max_tokens` is at least 1. The caller is wrong.
    ZeroMaxTokens(RequestId),
    /// `weight_millionths` is above 0. The caller is wrong.
    ZeroWeight(RequestId),
    /// There is one hash for each whole block of the prompt. The caller is wrong.
    BlockHashes {
        /// Whose.
        request: RequestId,
        /// Whole blocks of the prompt.
        expected: u32,
        /// Hashes given.
        given: u32,
    },
    /// `min_tokens` is at most `max_tokens`. The caller is wrong.
    MinTokens(RequestId),
    /// The scheduler is draining: nothing new is taken in.
    Draining(RequestId),
    /// What the request asks for does not go with the scheduler's role. The caller is wrong.
    Role {
        /// Whose.
        request: RequestId,
        /// The field of the request.
        field: &'static str,
    },
    /// `cross_tokens` is given, and no KV group is [`Cross`](crate::KvGroup::Cross). The caller is wrong.
    NoCrossGroup(RequestId),
    /// A span is empty, begins before the end of the one before it, or ends beyond the prompt. The caller is wrong.
    Span {
        /// Whose.
        request: RequestId,
        /// Which of its spans, from 0.
        span: u32,
    },
    /// An atomic span is longer than the longest chunk (`max_batch_tokens` without `draft_slots`, `max_prompt_tokens_per_batch`, the chunking's
    /// `max`).
    SpanTooLong {
        /// Whose.
        request: RequestId,
        /// Which of its spans, from 0.
        span: u32,
        /// Its positions.
        tokens: u32,
        /// Positions of a chunk at most.
        most: u32,
    },
    /// It has spans, and a KV group is a [`State`](crate::KvGroup::State): chunks end where either allows it, which may be nowhere. The caller is
    /// wrong.
    SpansWithState(RequestId),
    /// A span takes more encoder tokens than a batch, or the encoder cache, may hold.
    EncoderTooSmall {
        /// Whose.
        request: RequestId,
        /// Which of its spans, from 0.
        span: u32,
        /// Encoder tokens that it takes.
        needed: u32,
        /// The smaller of `encoder_budget_tokens` and `encoder_cache_tokens`.
        most: u32,
    },
    /// The prompt leaves no room for one output below `max_model_len`.
    TooLong {
        /// Whose.
        request: RequestId,
        /// Tokens of the prompt, cut off at `u32::MAX`.
        prompt_tokens: u32,
        /// Prompt + output at most.
        max_model_len: u32,
    },
    /// Even alone it could not run to its end.
    NeverFits {
        /// Whose.
        request: RequestId,
        /// Blocks that its longest run needs.
        needed: u32,
        /// Blocks that there are.
        num_blocks: u32,
    },
    /// It would most likely miss its target for the first token by more than
    /// [`reject_above_millionths`](crate::Latency::reject_above_millionths) allows. Send it elsewhere, or again later.
    TooLate {
        /// Whose.
        request: RequestId,
        /// Predicted time from its arrival to its first token, in nanoseconds.
        ttft_ns: u64,
        /// Its target.
        ttft_slo_ns: u64,
    },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DuplicateId(id) => write!(f, "{id} is alive already: give another id, or wait for its Finished event"),
            Self::EmptyPrompt(id) => write!(f, "{id} has an empty prompt: give it at least one token"),
            Self::ZeroMaxTokens(id) => write!(f, "{id} asks for no output: max_tokens must be at least 1"),
            Self::ZeroWeight(id) => write!(f, "{id} has weight_millionths 0: it must be at least 1 (1000000 is a weight of 1)"),
            Self::BlockHashes { request, expected, given } => {
                write!(f, "{request} comes with {given} block hashes, but has {expected} whole blocks: give one for each")
            }
            Self::MinTokens(id) => write!(f, "{id} asks for more tokens at least than at most: min_tokens must not be above max_tokens"),
            Self::Draining(id) => write!(f, "{id} is not taken in: the scheduler is draining"),
            Self::NoCrossGroup(id) => write!(f, "{id} has cross_tokens, but no KV group is Cross: leave them out or configure one"),
            Self::Role { request, field } => write!(f, "{request} has {field}, which does not go with this scheduler's role: leave it out"),
            Self::Span { request, span } => {
                write!(f, "span {span} of {request} is empty, overlaps the one before it, or ends beyond the prompt: give them in order")
            }
            Self::SpanTooLong { request, span, tokens, most } => {
                write!(f, "span {span} of {request} is atomic and has {tokens} positions, a chunk has at most {most}: raise the budget")
            }
            Self::SpansWithState(id) => write!(f, "{id} has spans, which do not go with a State group: leave them out"),
            Self::EncoderTooSmall { request, span, needed, most } => {
                write!(f, "span {span} of {request} takes {needed} encoder tokens, budget and cache hold at most {most}: raise them")
            }
            Self::TooLong { request, prompt_tokens, max_model_len } => {
                write!(
                    f,
                    "{request} has {prompt_tokens} prompt tokens, which leaves no output below max_model_len {max_model_len}: shorten it"
                )
            }
            Self::TooLate { request, ttft_ns, ttft_slo_ns } => {
                let (predicted, target) = (ttft_ns / 1_000_000, ttft_slo_ns / 1_000_000);
                write!(
                    f,
                    "{request} would wait about {predicted} ms for its first token, its target is {target} ms: send it elsewhere or later"
                )
            }
            Self::NeverFits { request, needed, num_blocks } => {
                write!(f, "{request} needs {needed} blocks, there are {num_blocks}: give it fewer tokens or the pool more blocks")
            }
        }
    }
}

/// Why [`extend`](crate::Scheduler::extend) refuses more input. The caller is wrong; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExtendError {
    /// Its spans are wrong.
    Span(SubmitError),
    /// No living request has this id.
    Unknown(RequestId),
    /// It is no session, or its output has not ended yet.
    NotPaused(RequestId),
    /// It was aborted, or its output has ended for good: it is alive only until its last batch or transfer is over.
    Ended(RequestId),
    /// At least one token of input and one of output.
    Empty(RequestId),
    /// Tokens for a request whose tokens the kernel keeps, a length for one whose tokens the caller keeps.
    OtherPrompt(RequestId),
    /// An extension by [`Prompt::Lengths`](crate::Prompt::Lengths) has no block hashes: outputs lie before it, which the caller has given no digest
    /// of, so that nothing behind them is found in or put into the prefix cache.
    BlockHashes(RequestId),
    /// No room for one output below `max_model_len`.
    TooLong {
        /// Whose.
        request: RequestId,
        /// Tokens that it would have.
        prompt_tokens: u32,
        /// Prompt + output at most.
        max_model_len: u32,
    },
    /// Even alone it could not run to its end.
    NeverFits {
        /// Whose.
        request: RequestId,
        /// Blocks that its longest run needs.
        needed: u32,
        /// Blocks that there are.
        num_blocks: u32,
    },
}

impl fmt::Display for ExtendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(error) => error.fmt(f),
            Self::Unknown(id) => write!(f, "{id} is not alive: submit a new request"),
            Self::Ended(id) => write!(f, "{id} was aborted or has ended, and takes no more input: submit a new request"),
            Self::NotPaused(id) => write!(f, "{id} is not a paused session: wait for its Paused event"),
            Self::Empty(id) => write!(f, "{id}: an extension needs at least one token of input, and max_tokens of at least 1"),
            Self::OtherPrompt(id) => write!(f, "{id}: extend it with tokens if it was submitted with tokens, else with a length"),
            Self::BlockHashes(id) => {
                write!(f, "{id}: block hashes of an extension are of no use, as no outputs before it have any: give none")
            }
            Self::TooLong { request, prompt_tokens, max_model_len } => {
                write!(
                    f,
                    "{request} would have {prompt_tokens} prompt tokens, which leaves no output below max_model_len {max_model_len}: shorten the input"
                )
            }
            Self::NeverFits { request, needed, num_blocks } => {
                write!(f, "{request} would need {needed} blocks, there are {num_blocks}: give it fewer tokens or the pool more blocks")
            }
        }
    }
}

/// Why [`fork`](crate::Scheduler::fork) refuses. The caller is wrong; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkError {
    /// No living request has the parent's id: it has ended, or was aborted with nothing in flight, or there never was one.
    Unknown(RequestId),
    /// The parent's prompt is not computed (yet, or any more): fork after its first token.
    NotComputed(RequestId),
    /// The parent was aborted, or its output has ended: it is alive only until its last batch or transfer is over.
    Ended(RequestId),
    /// The fork is wrong as a request.
    Submit(SubmitError),
}

impl fmt::Display for ForkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(id) => write!(f, "{id}, which was to be forked, is not alive (any more): submit its prompt again"),
            Self::Ended(id) => write!(f, "{id} was aborted or has ended, and cannot be forked any more: submit its prompt again"),
            Self::NotComputed(id) => write!(f, "the prompt of {id} is not computed: fork it after its next token"),
            Self::Submit(error) => error.fmt(f),
        }
    }
}

/// Why [`complete`](crate::Scheduler::complete) refuses a result. The executor's side is wrong; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompleteError {
    /// No batch of this number was ever scheduled, or it was completed or lost already.
    Unknown(BatchId),
    /// An older batch is still in flight: results come back oldest first.
    Early {
        /// The batch of the result.
        batch: BatchId,
        /// The oldest in flight.
        oldest: BatchId,
    },
    /// There is one sample for each row that samples, in the order of the rows.
    Samples {
        /// The batch.
        batch: BatchId,
        /// Rows that sample.
        expected: u32,
        /// Samples given.
        given: u32,
    },
    /// A sample names another request than its row.
    WrongRequest {
        /// The batch.
        batch: BatchId,
        /// Whose row it is.
        expected: RequestId,
        /// Whose sample was given.
        given: RequestId,
    },
    /// A sample has one token and at most one more for each draft of its row.
    TokenCount {
        /// The batch.
        batch: BatchId,
        /// Whose row.
        request: RequestId,
        /// Tokens at most: 1 + drafts.
        most: u32,
        /// Tokens given.
        given: u32,
    },
}

impl fmt::Display for CompleteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(batch) => write!(f, "{batch} is not in flight: never scheduled, completed already, or lost"),
            Self::Early { batch, oldest } => write!(f, "{batch} comes too early: {oldest} is older and still in flight"),
            Self::Samples { batch, expected, given } => {
                write!(f, "{batch} has {expected} rows that sample, the result holds {given} samples")
            }
            Self::WrongRequest { batch, expected, given } => write!(f, "{batch}: the row is of {expected}, the sample of {given}"),
            Self::TokenCount { batch, request, most, given } => {
                write!(f, "{batch}: {given} tokens for {request}, whose row takes 1 to {most}")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
impl core::error::Error for SubmitError {}
impl core::error::Error for CompleteError {}
impl core::error::Error for ExtendError {}
impl core::error::Error for ForkError {}
