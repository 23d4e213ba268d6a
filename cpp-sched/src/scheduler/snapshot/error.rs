//! Why a snapshot is not restored.

use alloc::string::String;
use core::fmt;

use super::super::Violation;
use crate::error::ConfigError;
use crate::ids::{BatchId, BlockId, RequestId};

/// Why [`restore`](crate::Scheduler::restore) refuses a snapshot: it was damaged, or made up. Take another one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// Its configuration is not valid.
    Config(ConfigError),
    /// A counter that cannot be.
    Counter {
        /// Its name.
        field: &'static str,
    },
    /// A request that cannot be.
    Request {
        /// Which.
        request: RequestId,
        /// What is wrong.
        what: &'static str,
    },
    /// A batch in flight that cannot be.
    Batch {
        /// Which.
        batch: BatchId,
        /// What is wrong.
        what: &'static str,
    },
    /// A block that cannot be where it is.
    Block {
        /// Which.
        block: BlockId,
        /// What is wrong.
        what: &'static str,
    },
    /// A request's number in a list that it does not belong to.
    Queue {
        /// The number of its slot.
        slot: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// It was taken with another policy: hand that one to [`restore_with_policy`](crate::Scheduler::restore_with_policy), or with a policy that is
    /// shipped use [`restore`](crate::Scheduler::restore).
    Policy {
        /// The name of the policy that it was taken with; none: one that is shipped.
        saved: Option<String>,
        /// The name of the one that was given.
        given: Option<String>,
    },
    /// The list of tenants does not fit the requests.
    Tenants,
    /// The parts do not fit together.
    Invariant(Violation),
}

impl From<(BlockId, &'static str)> for RestoreError {
    fn from((block, what): (BlockId, &'static str)) -> Self {
        Self::Block { block, what }
    }
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Policy { saved, given } = self {
            let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "none of the caller's".into());
            return write!(f, "the snapshot was taken with policy {}, and restored with {}", name(saved), name(given));
        }
        f.write_str("the snapshot is damaged: ")?;
        match self {
            Self::Config(error) => write!(f, "{error}"),
            Self::Counter { field } => write!(f, "{field} is out of range"),
            Self::Request { request, what } => write!(f, "{request}: {what}"),
            Self::Batch { batch, what } => write!(f, "{batch}: {what}"),
            Self::Block { block, what } => write!(f, "{block}: {what}"),
            Self::Queue { slot, what } => write!(f, "slot {slot}: {what}"),
            Self::Policy { .. } => Ok(()),
            Self::Tenants => f.write_str("its tenants do not fit its requests"),
            Self::Invariant(violation) => write!(f, "{violation}"),
        }
    }
}

impl core::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Invariant(violation) => Some(violation),
            _ => None,
        }
    }
}
