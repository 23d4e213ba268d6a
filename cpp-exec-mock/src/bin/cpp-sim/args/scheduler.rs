//! Options of the scheduler: a field of its configuration each.

use std::path::PathBuf;

use clap::Args;
use cpp_sched::{Admission, Balance, Pipelining, PolicyKind};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

/// The scheduler. What is not given comes from --config, then from mode and profile.
#[derive(Args, Debug)]
#[command(next_help_heading = "Scheduler (default: --config, else mode and profile)")]
pub(crate) struct SchedulerArgs {
    /// A TOML file with fields of the scheduler's configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// chunk, request or none: how much of a request may be in flight.
    #[arg(long, value_name = "WHAT", value_parser = named::<Pipelining>)]
    pub(crate) pipelining: Option<Pipelining>,
    /// tokens, cost or adaptive: what a chunk is cut by.
    #[arg(long, value_name = "HOW", value_parser = named::<ChunkingKind>)]
    pub(crate) chunking: Option<ChunkingKind>,
    /// Chunking tokens: tokens in a chunk at most.
    #[arg(long, value_name = "N")]
    pub(crate) chunk_tokens: Option<u32>,
    /// Chunking cost: nanoseconds that a batch may cost.
    #[arg(long, value_name = "NS")]
    pub(crate) chunk_target_ns: Option<u64>,
    /// Chunking cost: chunks end on a multiple of this many tokens.
    #[arg(long, value_name = "N")]
    pub(crate) chunk_align: Option<u32>,
    /// Chunking cost: tokens in a chunk at least.
    #[arg(long, value_name = "N")]
    pub(crate) chunk_min: Option<u32>,
    /// off, count or cost: how decodes spread over the batches in flight.
    #[arg(long, value_name = "HOW", value_parser = named::<Balance>)]
    pub(crate) balance: Option<Balance>,
    /// true or false: whether a decode may be scheduled before its token is known.
    #[arg(long = "async", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) async_scheduling: Option<bool>,
    /// fcfs, priority, edf, srpf, hybrid, lars or fair: the order of prompt work.
    #[arg(long, value_name = "POLICY", value_parser = named::<PolicyKind>)]
    pub(crate) policy: Option<PolicyKind>,
    /// Policy hybrid: what a prompt token still to compute adds to the deadline, in nanoseconds.
    #[arg(long, value_name = "NS")]
    pub(crate) hybrid_alpha_ns: Option<u64>,
    /// Policy srpf: so long a wait counts as one prompt token less, in nanoseconds; default: no ageing.
    #[arg(long, value_name = "NS")]
    pub(crate) srpf_ageing_ns: Option<u64>,
    /// Policy priority: so long a wait counts as one level, in nanoseconds; default: no ageing.
    #[arg(long, value_name = "NS")]
    pub(crate) priority_ageing_ns: Option<u64>,
    /// true or false: whether requests that cannot be on time are served last.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) relegation: Option<bool>,
    /// true or false: whether requests that one more batch for others would make late go first.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) feasibility_guard: Option<bool>,
    /// A prompt without a chunk for so long comes first, in nanoseconds; default: no bound.
    #[arg(long, value_name = "NS")]
    pub(crate) max_prefill_wait_ns: Option<u64>,
    /// reserve_prompt, lazy or no_evict: what is set aside for an admitted request.
    #[arg(long, value_name = "WHAT", value_parser = named::<Admission>)]
    pub(crate) admission: Option<Admission>,
    /// true or false: whether prompts that begin alike share their blocks.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) prefix_caching: Option<bool>,
    /// Tokens per KV block.
    #[arg(long, value_name = "N")]
    pub(crate) block_size: Option<u32>,
    /// KV blocks.
    #[arg(long, value_name = "N")]
    pub(crate) num_blocks: Option<u32>,
    /// Tokens in one batch at most.
    #[arg(long, value_name = "N")]
    pub(crate) max_batch_tokens: Option<u32>,
    /// Rows in one batch at most.
    #[arg(long, value_name = "N")]
    pub(crate) max_batch_requests: Option<u32>,
    /// Requests admitted at once.
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<u32>,
    /// Batches in flight at most; default: the stages.
    #[arg(long, value_name = "D")]
    pub(crate) max_in_flight: Option<u32>,
    /// Chunks of one request that one batch may hold.
    #[arg(long, value_name = "N")]
    pub(crate) chunks_per_batch: Option<u32>,
}

/// The kinds of [`cpp_sched::Chunking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChunkingKind {
    Tokens,
    Cost,
    Adaptive,
}

/// Reads the name of a variant, as the configuration file spells it; `reserve-prompt` is as good as `reserve_prompt`.
pub(super) fn named<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
    let name = text.replace('-', "_");
    let deserializer: StrDeserializer<'_, ValueError> = name.as_str().into_deserializer();
    T::deserialize(deserializer).map_err(|error| error.to_string().replace('`', ""))
}
