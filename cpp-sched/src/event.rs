//! What the scheduler tells its caller.

use crate::ids::{RequestId, TokenId};

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum FinishReason {
    /// By a stop token.
    Stop,
    /// By `max_tokens` or `max_model_len`.
    Length,
    /// By [`abort`](crate::Scheduler::abort).
    Aborted,
    /// Role prefill: the peer has read everything.
    HandedOver,
    /// Role prefill: the peer will never take it ([`kv_send_failed`](crate::Scheduler::kv_send_failed), or its lease is over). Written as `error`.
    #[cfg_attr(feature = "serde", serde(rename = "error"))]
    TransferFailed,
    /// A pooling request: its whole prompt is computed.
    Computed,
}

/// Something happened to a request. Taken from [`Scheduler::events`](crate::Scheduler::events), in the order in which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(tag = "kind", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Event {
    /// An output token is final: deliver it.
    Token {
        /// Whose.
        request: RequestId,
        /// Its place among the outputs, from 0.
        index: u32,
        /// The token.
        token: TokenId,
    },
    /// The request has ended and its id is free. By [`Aborted`](FinishReason::Aborted), nothing of it is in flight or pinned any more. By any other
    /// reason this is told at once: rows of it that were scheduled ahead may still be in flight, and their results count for nothing.
    Finished {
        /// Which.
        request: RequestId,
        /// Why.
        reason: FinishReason,
    },
    /// The request lost its blocks and will be computed again.
    Preempted {
        /// Which.
        request: RequestId,
    },
    /// The session has come to its end for now, keeps its KV, and waits for [`extend`](crate::Scheduler::extend) or
    /// [`abort`](crate::Scheduler::abort).
    Paused {
        /// Which.
        request: RequestId,
        /// Why its output ended.
        reason: FinishReason,
    },
    /// Role prefill: these positions are final and the peer may read them. Ranges tile the prompt; all but the last end at a block's end.
    KvReady {
        /// Whose.
        request: RequestId,
        /// First position.
        start: u32,
        /// One past the last.
        end: u32,
    },
    /// Role decode: the peer may write these positions now, into [`block_table`](crate::Scheduler::block_table).
    KvWanted {
        /// Whose.
        request: RequestId,
        /// First position.
        start: u32,
        /// One past the last: the end of the prompt.
        end: u32,
    },
}
