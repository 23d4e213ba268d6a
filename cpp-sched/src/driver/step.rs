//! What one step of the [`Driver`](super::Driver) came to.

use core::fmt;

use crate::error::CompleteError;
use crate::ids::BatchId;

/// What a step came to. After [`Progress`](Self::Progress) the next step can do something at once; the others say what the caller waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "it says whether to step again or to wait"]
pub enum Step<E> {
    /// Something was done: step again.
    Progress(Progress<E>),
    /// Batches are in flight, their results are not there, and nothing can be added: wait for the executor, or for a command.
    WaitingForResults,
    /// Nothing is in flight, and the executor [has no room](super::Executor::has_room): wait for it.
    WaitingForExecutor,
    /// Nothing is in flight; all requests alive wait for something outside (a gate, a transfer, the next input of a session): wait for a command.
    WaitingForExternal,
    /// Nothing is in flight; requests could run, but the blocks that they need are under transfers: wait for a command.
    NoBlocks,
    /// Nothing is in flight; scheduling is [paused](crate::Pause): wait for a command.
    Paused,
    /// No request is alive: wait for a command.
    Idle,
}

impl<E> Step<E> {
    /// Whether to step again at once.
    #[must_use]
    pub const fn is_progress(&self) -> bool {
        matches!(self, Self::Progress(_))
    }
}

/// What was done in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress<E> {
    /// A batch was handed to the executor.
    Submitted(BatchId),
    /// The executor was waited for and has returned this batch. The next step applies the result; commands given before that come first.
    Received(BatchId),
    /// The result of this batch was applied.
    Completed(BatchId),
    /// The result of a batch that was lost before; it was thrown away.
    Discarded(BatchId),
    /// The executor has failed. The next step rolls back what is in flight; wait before it if the executor needs a pause.
    Failed(Failure<E>),
    /// So many batches were lost and rolled back; their work runs again.
    RolledBack(u32),
}

/// What went wrong at the executor.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure<E> {
    /// It says so itself.
    Executor(E),
    /// It has returned something that is no result of the oldest batch.
    Result(CompleteError),
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Executor(error) => write!(f, "the executor failed: {error}"),
            Self::Result(error) => write!(f, "the executor returned a wrong result: {error}"),
        }
    }
}

impl<E: core::error::Error + 'static> core::error::Error for Failure<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Executor(error) => Some(error),
            Self::Result(error) => Some(error),
        }
    }
}

/// The executor has failed more often in a row than it may. No request is lost: another step rolls back and tries again, counting from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GaveUp<E> {
    /// Failures in a row, without a batch completed between them.
    pub failures: u32,
    /// The last one.
    pub cause: Failure<E>,
}

impl<E: fmt::Display> fmt::Display for GaveUp<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gave up after {} failures in a row: {}", self.failures, self.cause)
    }
}

impl<E: core::error::Error + 'static> core::error::Error for GaveUp<E> {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        Some(&self.cause)
    }
}
