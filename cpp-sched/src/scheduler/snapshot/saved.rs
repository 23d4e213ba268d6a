//! What a snapshot holds.

use alloc::string::String;
use alloc::vec::Vec;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::super::relegate::Pace;
use super::super::target::Target;
use super::record::{SavedCold, SavedSlot};
use super::{Pause, Stats};
use crate::batch::{Batch, Ended};
use crate::config::Config;
use crate::encoder::EncoderItem;
use crate::event::{Event, FinishReason};
use crate::ids::{BlockId, RequestId, TokenId};
use crate::kv::KvEvent;
use crate::kv::saved::SavedPool;
use crate::policy::{Key, Tenant};

/// The version of the format. Another one is not read: a field may have another meaning there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version;

const VERSION: u32 = 2;

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(VERSION)
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            VERSION => Ok(Self),
            other => Err(D::Error::custom(format_args!("snapshot of version {other}, this is version {VERSION}"))),
        }
    }
}

/// See [`Snapshot`](super::Snapshot). Slots are named by their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Saved {
    pub(super) config: Config,
    /// The name of the caller's policy.
    pub(super) policy: Option<String>,
    pub(super) now_ns: u64,
    pub(super) keyed_at_ns: u64,
    pub(super) next_seq: u64,
    pub(super) next_batch: u64,
    pub(super) publish_from: u64,
    pub(super) prompt_wait: u32,
    pub(super) pause: Pause,
    pub(super) draining: bool,
    pub(super) target: Target,
    pub(super) stats: Stats,
    /// All slots, vacant ones included, without what follows from the rest.
    pub(super) requests: Vec<(SavedSlot, SavedCold)>,
    /// Vacant slots, the next one to be used last.
    pub(super) vacant: Vec<u32>,
    /// Requests whose next step is a decode, longest waiting first.
    pub(super) ready: Vec<u32>,
    pub(super) lacking: Option<u32>,
    /// The head that was refused, by its place in the order of submission and what it knew, and the blocks that it needs.
    pub(super) refused: Option<(u64, u32, u32)>,
    pub(super) leases: Vec<(u32, u64)>,
    /// With a policy of the caller's: what queued requests are compared by.
    pub(super) keys: Vec<(u32, Key)>,
    pub(super) pace: Pace,
    pub(super) tenants: Vec<Tenant>,
    pub(super) spare_tenants: Vec<u32>,
    pub(super) in_flight: Vec<Batch>,
    pub(super) preempted: Vec<RequestId>,
    pub(super) ended: Vec<Ended>,
    pub(super) events: Vec<SavedEvent>,
    pub(super) kv_events: Vec<SavedKvEvent>,
    pub(super) pool: SavedPool,
    /// What is encoded, and by which batch: what requests need, then the rest, least recently used first.
    pub(super) encoder: Vec<(EncoderItem, u64)>,
    pub(super) encoder_freed: Vec<EncoderItem>,
}

/// An event in a form that formats which do not describe themselves can read as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedEvent(#[serde(with = "EventDef")] pub(super) Event);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Event")]
enum EventDef {
    Token { request: RequestId, index: u32, token: TokenId },
    Finished { request: RequestId, reason: FinishReason },
    Preempted { request: RequestId },
    Paused { request: RequestId, reason: FinishReason },
    KvReady { request: RequestId, start: u32, end: u32 },
    KvWanted { request: RequestId, start: u32, end: u32 },
}

/// The same for a change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedKvEvent(#[serde(with = "KvEventDef")] pub(super) KvEvent);

#[derive(Serialize, Deserialize)]
#[serde(remote = "KvEvent")]
enum KvEventDef {
    Stored { block: BlockId, digest: [u8; 16], parent: Option<[u8; 16]> },
    Removed { digest: [u8; 16] },
    Cleared,
}
