//! A line of a log, as the oracle reads it.

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) op: String,
    #[serde(rename = "as")]
    pub(super) label: Option<String>,
    pub(super) id: Option<String>,
    pub(super) now_ns: Option<u64>,
    pub(super) result: Option<String>,
    pub(super) batch: Option<u64>,
    #[serde(default)]
    pub(super) preempted: Vec<String>,
    #[serde(default)]
    pub(super) items: Vec<ItemEntry>,
    pub(super) cost_ns: Option<u64>,
    pub(super) flops: Option<u128>,
    #[serde(default)]
    pub(super) blocked: Vec<BlockedEntry>,
    #[serde(default)]
    pub(super) events: Vec<EventEntry>,
    pub(super) kv: KvEntry,
    pub(super) in_flight: usize,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ItemEntry {
    pub(super) id: String,
    pub(super) start: u64,
    pub(super) len: u64,
    #[serde(default)]
    pub(super) drafts: u64,
    pub(super) samples: bool,
    pub(super) flops: Option<u128>,
    pub(super) blocks: Vec<u32>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct BlockedEntry {
    pub(super) id: String,
    pub(super) reason: String,
}

/// All kinds of events in one: which fields are there depends on `kind`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct EventEntry {
    pub(super) kind: String,
    pub(super) id: String,
    pub(super) index: Option<u64>,
    pub(super) token: Option<u32>,
    pub(super) reason: Option<String>,
    pub(super) start: Option<u64>,
    pub(super) end: Option<u64>,
    pub(super) blocks: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct KvEntry {
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) held: u64,
    pub(super) cached: u64,
    pub(super) fenced: u64,
    pub(super) pinned: u64,
}
