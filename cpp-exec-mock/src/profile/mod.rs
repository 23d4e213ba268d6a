//! Profiles: a model on a machine, in numbers a simulation can use.
//!
//! ```text
//! Profile::find("llama-70b-h100-tp8")  built in, or else the path of a TOML file -> Result<Profile, ProfileError>
//! Profile::parse(text, "name in errors")
//! profile.stage_cost(stages)           -> Result<CostModel, ProfileError>: one stage of so many
//! profile.hop_ns(tokens)               -> u64: from one stage to the next
//! profile.config(stages)               -> Result<cpp_sched::Config, ProfileError>: sizes, cost and dimensions filled in, the rest default
//! list_profiles()                      -> text for --list-profiles
//! ```

use cpp_sched::{CostModel, ModelDims};
use serde::Serialize;

/// A model on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it stands for, one line.
    pub about: String,
    /// Where the numbers come from and how they were derived.
    pub source: String,
    /// Dimensions, for FLOPs; none where the model is no dense transformer.
    pub model: Option<ModelDims>,
    /// The whole model as one stage: `c0` is paid by every stage, `c1` to `c5` are shared out over the stages.
    pub cost: CostModel,
    /// From a stage to the next.
    pub hop: Hop,
    /// CPU time of one scheduling decision, in nanoseconds; it delays a batch when scheduling is synchronous.
    pub scheduler_ns: u64,
    /// From the end of the last stage until its sampled tokens are with the scheduler, in nanoseconds.
    pub return_ns: u64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks of the whole machine.
    pub num_blocks: u32,
    /// Tokens in one batch at most.
    pub max_batch_tokens: u32,
    /// Requests admitted at once.
    pub max_requests: u32,
}

/// The way from one stage to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hop {
    /// Nanoseconds, whatever the size.
    pub latency_ns: u64,
    /// Bytes of activations per token.
    pub bytes_per_token: u64,
    /// Bytes per second; 0 = a hop takes its latency alone.
    pub bytes_per_s: u64,
}
