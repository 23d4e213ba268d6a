//! What `schedule` answers, and why a request does not run.

use crate::batch::Scheduled;

/// The answer of [`Scheduler::schedule`](crate::Scheduler::schedule).
#[derive(Clone, Copy, Debug)]
#[must_use = "a batch that is scheduled must be run and completed, or the pipeline stays full"]
pub enum Schedule<'a> {
    /// Run this batch and hand its result to [`complete`](crate::Scheduler::complete).
    Batch(Scheduled<'a>),
    /// There is none now.
    Empty(EmptyReason),
}

impl<'a> Schedule<'a> {
    /// The batch, if there is one.
    #[must_use]
    pub const fn batch(self) -> Option<Scheduled<'a>> {
        match self {
            Self::Batch(batch) => Some(batch),
            Self::Empty(_) => None,
        }
    }
}

/// Why there is no batch now: what a driver waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum EmptyReason {
    /// No request is alive, and nothing is in flight.
    Idle,
    /// `max_in_flight` batches are in flight: complete the oldest.
    PipelineFull,
    /// Batches are in flight, and nothing can be added before their results are back.
    WaitingForResults,
    /// Requests are alive, and all wait for something outside: a gate, a transfer, the next input of a session.
    WaitingForExternal,
    /// Scheduling is paused.
    Paused,
    /// Requests could run, but the blocks that they need are under a fence or a transfer.
    NoBlocks,
}

/// Why a request is not in the next batch; see [`Scheduler::why`](crate::Scheduler::why).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum WaitReason {
    /// It can run: nothing but the pipeline, the budget or the order stands before it.
    Runnable,
    /// All `max_in_flight` batches are in flight.
    PipelineFull,
    /// A result in flight decides how it goes on.
    WaitingForResult,
    /// It was preempted, and goes on when its late results are back.
    WaitingForLateResult,
    /// A gate of it is shut; see [`Scheduler::gates`](crate::Scheduler::gates).
    Gated,
    /// A session between two inputs.
    SessionPaused,
    /// Scheduling, or admission, is paused.
    Paused,
    /// Role decode: there are no blocks yet for its KV to be written to.
    WaitingForTransferBlocks,
    /// Role decode: its KV is on the way.
    WaitingForKv,
    /// Role prefill: the peer reads its KV.
    Sending,
    /// There are not blocks enough.
    NoBlocks,
    /// What it must run next is not encoded, and the encoder cache has no room for it.
    NoEncoder,
    /// `max_requests` are admitted.
    NoSlot,
    /// `max_partial_prefills` are in their prompt.
    PartialPrefillLimit,
    /// Another request comes first and cannot be admitted.
    BehindOthers,
    /// Its policy said "not now" ([`Rank::NotNow`](crate::Rank::NotNow)), and something else is in flight.
    PutOff,
    /// It was aborted, and ends when its last batch or transfer has ended.
    Aborting,
}

impl WaitReason {
    /// A short stable text, for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runnable => "runnable",
            Self::PipelineFull => "pipeline_full",
            Self::WaitingForResult => "waiting_for_result",
            Self::WaitingForLateResult => "waiting_for_late_result",
            Self::Gated => "gated",
            Self::SessionPaused => "session_paused",
            Self::Paused => "paused",
            Self::WaitingForTransferBlocks => "waiting_for_transfer_blocks",
            Self::WaitingForKv => "waiting_for_kv",
            Self::Sending => "sending",
            Self::NoBlocks => "no_blocks",
            Self::NoEncoder => "no_encoder",
            Self::NoSlot => "no_slot",
            Self::PartialPrefillLimit => "partial_prefill_limit",
            Self::BehindOthers => "behind_others",
            Self::PutOff => "put_off",
            Self::Aborting => "aborting",
        }
    }
}

/// KV blocks by what they are used for; `total = free + held + cached + fenced + pinned`. A block counts once, as the first that fits of
/// held, pinned, fenced, cached, free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct KvUsage {
    /// All blocks.
    pub total: u32,
    /// Holding nothing.
    pub free: u32,
    /// In the block table of a request. What is only set aside still counts as free or cached.
    pub held: u32,
    /// Unreferenced, but found by their prefix.
    pub cached: u32,
    /// Released, but still in the block table of a row in flight.
    pub fenced: u32,
    /// Under a transfer, and not held any more, or yet.
    pub pinned: u32,
}
