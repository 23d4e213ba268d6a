//! A pool of stages for prompts and another one for outputs, with KV that goes over links: two real schedulers, with the roles prefill and decode.
//!
//! # What happens when
//!
//! A request is submitted to both schedulers when it arrives. The prefill scheduler runs its prompt; its first token counts when it is back from there. The
//! decode scheduler sets blocks aside for the prompt and the first token, as soon as it has them (`KvWanted`); nothing is sent before. When all KV of
//! the prompt has arrived, the prefill blocks are given back (`kv_sent`) and the request runs in the decode pool (`kv_arrived`), whose first batch continues
//! the first token. What each [`Handover`] changes is when parts of the KV are ready to be sent:
//!
//! | handover | a part is | ready when |
//! |---|---|---|
//! | `end` | the whole prompt | its last chunk is back |
//! | `chunk` | the blocks that a chunk has made final (`KvReady`) | that chunk is back |
//! | `layer` | a chunk on one stage, layer by layer | each layer has run, before the chunk is at the next stage |
//!
//! Each prefill stage sends its layers' part over a link of its own. Each of the two schedulers is a thread of its own.

mod drive;
mod link;

use serde::{Deserialize, Serialize};

pub use drive::simulate_pools;
pub use link::KvLink;

use super::{Distribution, RequestCounts, StageTime};
use cpp_sched::Stats;
use cpp_sched::journal::DecisionDigest;

/// When KV goes to the decode pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handover {
    /// All of it after the last chunk.
    End,
    /// After each chunk.
    Chunk,
    /// Layer by layer, while a chunk runs.
    Layer,
}

impl Handover {
    /// All of them, simplest first.
    pub const ALL: [Self; 3] = [Self::End, Self::Chunk, Self::Layer];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Chunk => "chunk",
            Self::Layer => "layer",
        }
    }
}

/// How KV is handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvTransfers {
    /// When.
    pub handover: Handover,
    /// Over what.
    pub link: KvLink,
    /// Layers on each prefill stage, for [`Handover::Layer`]; 0 counts as 1.
    pub layers: u32,
    /// For each of these times, in order: the next transfer that would be complete then or later never is. At the timeout both sides give it up, and the
    /// decode pool computes that prompt itself.
    pub hangs_ns: Vec<u64>,
    /// How long until that is noticed, in nanoseconds.
    pub timeout_ns: u64,
}

/// What one pool did.
#[derive(Clone, Debug)]
pub struct PoolOutcome {
    /// Where each stage's time went.
    pub stages: Vec<StageTime>,
    /// Its scheduler's counters.
    pub stats: Stats,
    /// Hash over its decisions.
    pub decision_digest: DecisionDigest,
}

/// What two pools have done. Times are nanoseconds.
#[derive(Clone, Debug)]
pub struct PoolsOutcome {
    /// Requests by how they ended.
    pub requests: RequestCounts,
    /// From the first arrival to the last result.
    pub duration_ns: u64,
    /// Output tokens of finished requests.
    pub output_tokens: u64,
    /// Arrival to first token.
    pub ttft: Distribution,
    /// (E2E - TTFT) / (outputs - 1), requests with one output left out: with it the time of the handover.
    pub tpot: Distribution,
    /// Arrival to last token.
    pub e2e: Distribution,
    /// From the first token to the arrival of all KV.
    pub handover: Distribution,
    /// Transfers that never ended.
    pub transfers_failed: u64,
    /// The pool for prompts.
    pub prefill: PoolOutcome,
    /// The pool for outputs.
    pub decode: PoolOutcome,
    /// How long the link of each prefill stage was taken.
    pub links_busy_ns: Vec<u64>,
}
