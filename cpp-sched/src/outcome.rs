//! What calls answer: `schedule`, and commands and reports on one request; and why a request does not run.

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

/// What a command or a report on one request did: [`abort`](crate::Scheduler::abort), the gates, [`set_drafts`](crate::Scheduler::set_drafts) and the
/// `kv_` reports of transfers. All but [`Applied`](Self::Applied) have changed nothing.
///
/// None is an error. Commands and reports cross with results: a client hangs up as its request ends, a worker's report is sent again or comes
/// after an abort. What comes late finds nobody, or nothing to do, and can be let go. Of the others each variant says what is to be done.
///
/// ```
/// use cpp_sched::{Config, Gate, Outcome, Request, RequestId, Scheduler};
/// let mut scheduler = Scheduler::new(Config::default())?;
/// scheduler.submit(Request::new(RequestId(1), vec![5; 9], 4))?;
/// assert_eq!(scheduler.shut(RequestId(1), Gate::Adapter), Outcome::Applied);
/// assert_eq!(scheduler.open(RequestId(1), Gate::Grammar), Outcome::Already);
/// assert_eq!(scheduler.abort(RequestId(7)), Outcome::NotAlive);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "what was not applied has changed nothing, and may have to come again"]
#[non_exhaustive]
pub enum Outcome {
    /// It was done.
    Applied,
    /// No living request has this id: it has ended, or was never submitted. The scheduler remembers no ids, so it cannot say which.
    NotAlive,
    /// It is so already: aborted before, the gate is open or shut as it was to be, this consumer has said so before.
    Already,
    /// The request was aborted or only waits for its transfer: nothing of it is scheduled any more, and its gates mean nothing.
    Ending,
    /// Not all of the prompt's KV is announced yet: the report must come again when it is ([`KvReady`](crate::Event::KvReady)), or its blocks
    /// stay pinned. The caller is wrong.
    TooEarly,
    /// No transfer of this request is under way: it has ended or failed before, or has not begun.
    NoTransfer,
    /// A consumer of this number does not exist; see [`kv_consumers`](crate::Config::kv_consumers). The caller is wrong.
    NoConsumer,
    /// This report belongs to the other [`Role`](crate::Role) of a pair, or the scheduler is a unified one. The caller is wrong.
    WrongRole,
}

impl Outcome {
    /// Whether it was done.
    #[must_use]
    pub const fn is_applied(self) -> bool {
        matches!(self, Self::Applied)
    }

    /// A short stable text, for logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::NotAlive => "not_alive",
            Self::Already => "already",
            Self::Ending => "ending",
            Self::TooEarly => "too_early",
            Self::NoTransfer => "no_transfer",
            Self::NoConsumer => "no_consumer",
            Self::WrongRole => "wrong_role",
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
