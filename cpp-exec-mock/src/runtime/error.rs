//! Why batches are lost.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use cpp_sched::BatchId;
use cpp_sched::wire::EncodeError;

/// Why the pipeline has lost its batches, or cannot be started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuntimeError {
    /// A stage cannot be started.
    Start {
        /// The stage.
        stage: usize,
        /// Why.
        problem: String,
    },
    /// The leader cannot wait for its workers there.
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        problem: String,
    },
    /// A stage could not run a batch, and lives.
    Stage {
        /// The stage.
        stage: usize,
        /// Why.
        problem: String,
    },
    /// A stage is gone. Another one is put in its place; what it had in memory must be computed again.
    Died {
        /// The stage.
        stage: usize,
        /// Why, if it is known.
        problem: String,
    },
    /// A batch was not back in time.
    Deadline {
        /// The batch.
        batch: BatchId,
        /// The first stage that has not run it.
        stage: usize,
        /// How long it was under way.
        waited: Duration,
    },
    /// A plan cannot be written.
    Encode(EncodeError),
    /// A stage was put in the place of a dead one and has not been told what the others know: call
    /// [`Pipeline::recover`](super::Pipeline::recover) after a failure.
    NotRecovered,
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { stage, problem } => write!(f, "stage {stage} cannot be started: {problem}"),
            Self::Listen { address, problem } => write!(f, "workers cannot be waited for at {address}: {problem}"),
            Self::Stage { stage, problem } => write!(f, "stage {stage} cannot run a batch: {problem}"),
            Self::Died { stage, problem } => write!(f, "stage {stage} is gone: {problem}"),
            Self::Deadline { batch, stage, waited } => {
                write!(f, "{batch} was not back after {:.1} s: stage {stage} has not run it", waited.as_secs_f64())
            }
            Self::Encode(error) => write!(f, "a plan cannot be written: {error}"),
            Self::NotRecovered => f.write_str("a new stage was not told what the others know: call recover after a failure"),
        }
    }
}

impl std::error::Error for RuntimeError {}
