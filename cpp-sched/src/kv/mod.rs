//! KV blocks: who holds them ([`pool`]), how they are found again by what they hold ([`hash`], [`index`]), and which of them layers that keep
//! different parts of the past need ([`groups`]).

mod ahead;
pub(crate) mod groups;
pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod links;
pub(crate) mod pool;
#[cfg(feature = "serde")]
pub(crate) mod saved;

pub(crate) use groups::GroupTable;
pub use groups::{KvGroup, KvGroups, MAX_KV_GROUPS};
pub(crate) use hash::{Digest, Hashing};
pub(crate) use pool::Pool;

use crate::ids::BlockId;

/// A change of what the prefix cache finds; see [`Scheduler::kv_events`](crate::Scheduler::kv_events). Digests are keyed: routers that are to
/// compare them across schedulers give all of them one [`hash_key`](crate::Config::hash_key). With several KV groups each tells of its own blocks,
/// under names of its own; what the first one has is an upper bound of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(tag = "kind", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum KvEvent {
    /// A prefix that was not found before is found from now on.
    Stored {
        /// The block that holds its end.
        block: BlockId,
        /// Its name.
        digest: [u8; 16],
        /// The name of the prefix that is one block shorter; none for a first block.
        parent: Option<[u8; 16]>,
    },
    /// A prefix is found no more.
    Removed {
        /// Its name.
        digest: [u8; 16],
    },
    /// Nothing is found any more.
    Cleared,
}

/// "No block", "no slot": one number that configurations may not reach.
pub(crate) const NIL: u32 = u32::MAX;
