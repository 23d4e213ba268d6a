//! What leader and workers tell each other.

use std::sync::Arc;

use cpp_sched::{BatchId, TokenId};
use serde::{Deserialize, Serialize};

use super::work::RowSample;
use crate::cpu::Sampling;

/// From the leader to a worker. In order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Control {
    /// A batch to run.
    Plan {
        /// How often the pipeline has been aborted before.
        generation: u64,
        /// The message of the scheduler's encoder.
        message: Arc<[u8]>,
        /// How rows choose their tokens, by their number in the batch; those that are not named are greedy.
        sampling: Arc<[(u32, Sampling)]>,
    },
    /// The first token of each row of a batch that sampled, for the first stage: rows of later batches continue them.
    Tokens {
        /// As in [`Control::Plan`].
        generation: u64,
        /// The batch.
        batch: BatchId,
        /// Row and token.
        tokens: Arc<[(u32, TokenId)]>,
    },
    /// All that mirrors know, for a worker that has lost its own.
    Resync(Arc<[u8]>),
    /// Everything under way is lost: forget it, and say so.
    Abort {
        /// From now on.
        generation: u64,
    },
    /// The end: give the device back.
    Stop,
}

/// From a worker to the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Report {
    /// A stage has run a batch.
    Done {
        /// The stage.
        stage: usize,
        /// As in [`Control::Plan`].
        generation: u64,
        /// The batch.
        batch: BatchId,
        /// When it began and ended.
        time: Span,
        /// What its rows sampled; of the last stage.
        samples: Vec<RowSample>,
    },
    /// A stage cannot run a batch. It lives.
    Failed {
        /// The stage.
        stage: usize,
        /// As in [`Control::Plan`].
        generation: u64,
        /// Why.
        problem: String,
    },
    /// A stage has forgotten everything that was under way.
    Aborted {
        /// The stage.
        stage: usize,
        /// From now on.
        generation: u64,
    },
    /// A stage is gone, with all that it had in memory.
    Died {
        /// The stage.
        stage: usize,
        /// Which of the workers that ran it, counted from 0.
        life: u64,
        /// Why, if it is known.
        problem: String,
    },
}

/// A stretch of time, in nanoseconds since the pipeline was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "a beginning and an end")]
pub struct Span {
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// The activations of one batch on their way from one stage to the next.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "what crosses an edge")]
pub struct Frame<A> {
    /// As in [`Control::Plan`]; frames of an earlier one are thrown away.
    pub generation: u64,
    /// The batch's number.
    pub batch: u64,
    /// What the stage has put out.
    pub activations: A,
}
