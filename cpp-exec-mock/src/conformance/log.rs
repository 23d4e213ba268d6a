//! The lines of a log, as FORMAT.md says: one JSON object a call.

use cpp_sched::{Event, FinishReason, KvUsage};
use serde::Serialize;

/// One line. Fields that do not belong to the op are left out; `batch` of `schedule` and `complete` may be null.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "named as in FORMAT.md, where each is described")]
pub struct Line<'a> {
    pub op: &'static str,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub label: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Option<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Vec<&'a str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<LineItem<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Vec<Blocked<'a>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<LineEvent<'a>>,
    pub kv: KvUsage,
    pub in_flight: u32,
}

impl<'a> Line<'a> {
    /// A line of `op` with nothing but its name.
    #[must_use]
    pub fn of(op: &'static str, label: Option<&'a str>) -> Self {
        Self {
            op,
            label,
            id: None,
            now_ns: None,
            result: None,
            reason: None,
            batch: None,
            preempted: None,
            items: None,
            cost_ns: None,
            flops: None,
            blocked: None,
            events: Vec::new(),
            kv: KvUsage::default(),
            in_flight: 0,
        }
    }
}

/// One item of a batch.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "named as in FORMAT.md, where each is described")]
pub struct LineItem<'a> {
    pub id: &'a str,
    pub start: u32,
    pub len: u32,
    pub drafts: u32,
    pub samples: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<u128>,
    pub blocks: Vec<u32>,
}

/// Why a request is not in an empty batch.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "named as in FORMAT.md, where each is described")]
pub struct Blocked<'a> {
    pub id: &'a str,
    pub reason: &'static str,
}

/// What happened to a request.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "named as in FORMAT.md, where each is described")]
pub enum LineEvent<'a> {
    Token { id: &'a str, index: u32, token: u32 },
    Finished { id: &'a str, reason: FinishReason },
    KvReady { id: &'a str, start: u32, end: u32 },
    KvWanted { id: &'a str, start: u32, end: u32, blocks: Vec<u32> },
}

impl<'a> LineEvent<'a> {
    /// The line's form of a kernel event. `blocks` is asked only for `kv_wanted`; none for what the log says elsewhere or not at all.
    pub(super) fn of(event: &Event, id: &'a str, blocks: impl FnOnce() -> Vec<u32>) -> Option<Self> {
        match *event {
            Event::Token { index, token, .. } => Some(Self::Token { id, index, token }),
            Event::Finished { reason, .. } => Some(Self::Finished { id, reason }),
            Event::KvReady { start, end, .. } => Some(Self::KvReady { id, start, end }),
            Event::KvWanted { start, end, .. } => Some(Self::KvWanted { id, start, end, blocks: blocks() }),
            _ => None,
        }
    }
}
