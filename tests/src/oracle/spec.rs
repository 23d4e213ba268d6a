//! A scenario as the oracle reads it: on its own, without the runner's parser.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Number, Value};

/// A scenario. Only good ones are judged, so nothing is checked here.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) config: ConfigSpec,
    pub(super) requests: Vec<RequestSpec>,
    pub(super) script: Option<Vec<StepSpec>>,
    #[serde(default)]
    pub(super) expect: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct ConfigSpec {
    pub(super) block_size: u64,
    pub(super) num_blocks: u64,
    pub(super) max_batch_tokens: u64,
    pub(super) max_batch_requests: u64,
    pub(super) max_requests: u64,
    pub(super) max_model_len: Option<u64>,
    pub(super) stages: u64,
    pub(super) max_in_flight: Option<u64>,
    pub(super) pipelining: String,
    pub(super) policy: String,
    pub(super) admission: String,
    pub(super) prefix_caching: bool,
    pub(super) async_scheduling: bool,
    pub(super) chunking: ChunkingSpec,
    pub(super) chunks_per_batch: u64,
    pub(super) cost: Option<BTreeMap<String, Number>>,
    pub(super) model: Option<ModelSpec>,
    pub(super) balance: String,
    pub(super) role: String,
    pub(super) preempted_output: String,
}

impl Default for ConfigSpec {
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 256,
            max_batch_tokens: 2048,
            max_batch_requests: 256,
            max_requests: 256,
            max_model_len: None,
            stages: 1,
            max_in_flight: None,
            pipelining: "chunk".to_owned(),
            policy: "fcfs".to_owned(),
            admission: "reserve_prompt".to_owned(),
            prefix_caching: false,
            async_scheduling: false,
            chunking: ChunkingSpec { kind: "tokens".to_owned(), ..ChunkingSpec::default() },
            chunks_per_batch: 1,
            cost: None,
            model: None,
            balance: "off".to_owned(),
            role: "unified".to_owned(),
            preempted_output: "deliver".to_owned(),
        }
    }
}

impl ConfigSpec {
    /// Prompt + output of one request at most.
    pub(super) fn model_len(&self) -> u64 {
        self.max_model_len.unwrap_or(self.block_size * self.num_blocks)
    }

    /// Batches in flight at most.
    pub(super) fn depth(&self) -> usize {
        let depth = if self.pipelining == "none" { 1 } else { self.max_in_flight.unwrap_or(self.stages) };
        usize::try_from(depth).unwrap_or(usize::MAX)
    }

    /// Blocks for so many tokens.
    pub(super) fn blocks(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block_size)
    }

    /// Whether the late result of a preempted request leaves no trace.
    pub(super) fn drops(&self) -> bool {
        self.preempted_output == "drop" || self.role == "prefill"
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ChunkingSpec {
    pub(super) kind: String,
    pub(super) max: Option<u64>,
    pub(super) target_ns: Option<u64>,
    pub(super) align: Option<u64>,
    pub(super) min: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ModelSpec {
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    pub(super) head_dim: u64,
    pub(super) intermediate: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct SegmentSpec {
    pub(super) seed: u64,
    pub(super) len: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct RequestSpec {
    pub(super) id: String,
    pub(super) prompt: Vec<SegmentSpec>,
    pub(super) max_tokens: u64,
    #[serde(default)]
    pub(super) priority: i64,
    pub(super) arrival_ns: Option<u64>,
    pub(super) ttft_slo_ns: Option<u64>,
    #[serde(default)]
    pub(super) stop_tokens: Vec<u32>,
    pub(super) cache_salt: Option<String>,
    #[serde(default)]
    pub(super) gated: bool,
    #[serde(default)]
    pub(super) drafts: u64,
    pub(super) draft_accept: Option<Vec<u64>>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct StepSpec {
    pub(super) op: String,
    pub(super) id: Option<String>,
}
