//! Profiles: a model on a machine, in numbers that a simulation can use.
//!
//! ```text
//! Profile::find("llama-70b-h100-tp8")  built in, or else the path of a TOML file -> Result<Profile, ProfileError>
//! Profile::parse(text, "name in errors")
//! profile.stage_cost(stages)           -> Result<CostModel, ProfileError>: one stage of so many
//! profile.num_blocks(stages)           -> Result<u32, ProfileError>: KV blocks of the machine
//! profile.hop.ns(tokens)               -> u64: from one stage to the next
//! profile.config(stages)               -> Result<cpp_sched::Config, ProfileError>: sizes, cost and dimensions filled in, the rest default
//! list_profiles()                      -> text for --list-profiles
//! ```
//!
//! **Scaling.** What is proportional to layers is kept for the whole model ([`Profile::whole`]) and shared out: one stage of P has 1/P of it, or with known
//! layers the part of the stage that has most of them, `ceil(layers / P) / layers`. What each stage pays for each batch, whatever its layers, is
//! [`Profile::per_batch`].

mod builtin;
mod device;
mod error;
mod file;
mod published;
mod roofline;

use cpp_sched::{Attos, Config, CostModel, ModelDims};
use serde::Serialize;

pub use builtin::{builtin_names, list_profiles};
pub use device::{Device, derive};
pub use error::ProfileError;
pub use published::{
    CutRule, Drawn, Fitted, Free, Gemm, Measure, Pipelined, Point, Prompt, Published, Quantity, Ratios, fit, measure, ratios,
};
pub use roofline::{Roofline, derive_stages, experts_touched};

/// A model on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it stands for, in one line.
    pub about: String,
    /// Where the numbers come from and how they were derived.
    pub source: String,
    /// Dimensions, for FLOPs; none where the model is no dense transformer.
    pub model: Option<ModelDims>,
    /// The machine, where the cost was derived and not measured.
    pub device: Option<Device>,
    /// What each stage pays for each batch, whatever its layers.
    pub per_batch: Attos,
    /// The rest, for the whole model as one stage; shared out over the stages.
    pub whole: CostModel,
    /// From a stage to the next.
    pub hop: Hop,
    /// CPU time of one scheduling decision, in nanoseconds; a synchronous scheduler delays every batch by it.
    pub scheduler_ns: u64,
    /// From the end of the last stage until its sampled tokens are with the scheduler, in nanoseconds.
    pub return_ns: u64,
    /// Tokens per KV block.
    pub block_size: u32,
    /// KV blocks of the whole machine, whatever the stages; none = as many as fit beside the weights, see [`Profile::num_blocks`].
    pub fixed_blocks: Option<u32>,
    /// Tokens in one batch at most.
    pub max_batch_tokens: u32,
    /// Requests admitted at once, and rows in a batch.
    pub max_requests: u32,
}

/// The way from one stage to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// Nanoseconds, whatever the size.
    pub latency_ns: u64,
    /// Bytes of activations per token.
    #[serde(default)]
    pub bytes_per_token: u64,
    /// Bytes per second; 0 = a hop takes its latency alone.
    #[serde(default)]
    pub bytes_per_s: u64,
}

impl Hop {
    /// How long a batch of `tokens` tokens is under way, in nanoseconds, rounded up, saturating.
    #[must_use]
    pub fn ns(&self, tokens: u64) -> u64 {
        self.latency_ns.saturating_add(self.transmit_ns(tokens))
    }

    /// How long it takes the link: without the latency.
    #[must_use]
    pub fn transmit_ns(&self, tokens: u64) -> u64 {
        let bytes = u128::from(tokens) * u128::from(self.bytes_per_token);
        let ns = if self.bytes_per_s == 0 { 0 } else { bytes.saturating_mul(1_000_000_000).div_ceil(u128::from(self.bytes_per_s)) };
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

impl Profile {
    /// The cost of a batch on one stage of `stages`, the one with most layers.
    ///
    /// # Errors
    /// No stage at all, or more stages than layers.
    pub fn stage_cost(&self, stages: u32) -> Result<CostModel, ProfileError> {
        let (part, all) = self.share(stages)?;
        Ok(self.part_cost(part, all))
    }

    /// The cost of a batch on each stage of a pipeline with so many layers on each. Where the layers of the model are not known, the numbers are
    /// parts of their sum.
    ///
    /// # Errors
    /// No stage, a stage without layers, or another number of layers than the model has.
    pub fn split_costs(&self, layers: &[u32]) -> Result<Vec<CostModel>, ProfileError> {
        let all = self.split(layers)?;
        Ok(layers.iter().map(|&part| self.part_cost(part, all)).collect())
    }

    /// All layers of a split.
    fn split(&self, layers: &[u32]) -> Result<u32, ProfileError> {
        let sum = layers.iter().try_fold(0u32, |sum, &part| sum.checked_add(part)).unwrap_or(0);
        match self.model {
            _ if layers.is_empty() || layers.contains(&0) => Err(self.bad("each stage has at least 1 layer".to_owned())),
            _ if sum == 0 => Err(self.bad("too many layers".to_owned())),
            Some(model) if model.layers != sum => Err(self.bad(format!("a split into {sum} layers, the model has {}", model.layers))),
            _ => Ok(sum),
        }
    }

    fn part_cost(&self, part: u32, all: u32) -> CostModel {
        let share = |whole: Attos| Attos(whole.0.saturating_mul(part.into()).saturating_add(u128::from(all) / 2) / u128::from(all));
        let mut cost = self.whole;
        for coefficient in [&mut cost.c0, &mut cost.c1, &mut cost.c2, &mut cost.c3, &mut cost.c4, &mut cost.c5] {
            *coefficient = share(*coefficient);
        }
        cost.c0.0 = cost.c0.0.saturating_add(self.per_batch.0);
        cost
    }

    /// KV blocks that a pipeline of `stages` stages holds. Every stage keeps its layers' part of each block, so more stages hold more.
    ///
    /// # Errors
    /// As [`stage_cost`](Self::stage_cost); a stage's memory does not even hold its weights and one block.
    pub fn num_blocks(&self, stages: u32) -> Result<u32, ProfileError> {
        let (part, all) = self.share(stages)?;
        self.part_blocks(part, all, &format!("a stage of {stages}"))
    }

    /// KV blocks that the stage with `part` of `all` layers has room for; `stage` stands for it in an error.
    fn part_blocks(&self, part: u32, all: u32, stage: &str) -> Result<u32, ProfileError> {
        match (self.fixed_blocks, &self.device, &self.model) {
            (Some(blocks), ..) => Ok(blocks),
            (None, Some(device), Some(model)) => {
                let free = device.usable_memory().saturating_sub(u128::from(device.weights_bytes) * u128::from(part) / u128::from(all));
                let block = device.kv_bytes_per_token(model).saturating_mul(self.block_size.into()).saturating_mul(part.into());
                let blocks = (free * u128::from(all)).checked_div(block).unwrap_or(0);
                if blocks == 0 {
                    return Err(self.bad(format!("{stage} cannot hold its weights and one KV block; take more stages")));
                }
                // The kernel keeps the largest number back.
                Ok(u32::try_from(blocks).unwrap_or(u32::MAX).min(u32::MAX - 1))
            }
            (None, ..) => Err(self.bad("neither num_blocks nor a device with memory".to_owned())),
        }
    }

    /// A scheduler's configuration for `stages` stages: sizes, cost and dimensions from here, the rest as by default.
    ///
    /// # Errors
    /// As [`num_blocks`](Self::num_blocks).
    pub fn config(&self, stages: u32) -> Result<Config, ProfileError> {
        let mut config = Config::default();
        config.stages = stages;
        config.num_blocks = self.num_blocks(stages)?;
        config.cost = Some(self.stage_cost(stages)?);
        self.sizes(&mut config);
        Ok(config)
    }

    /// As [`config`](Self::config), for a pipeline with so many layers on each stage: cost and KV blocks are those of the stage with most.
    ///
    /// # Errors
    /// As [`split_costs`](Self::split_costs) and [`num_blocks`](Self::num_blocks).
    pub fn split_config(&self, layers: &[u32]) -> Result<Config, ProfileError> {
        let all = self.split(layers)?;
        let most = layers.iter().copied().max().unwrap_or(1);
        let mut config = Config::default();
        config.stages = layers.len() as u32;
        config.num_blocks = self.part_blocks(most, all, &format!("a stage of {most} layers"))?;
        config.cost = Some(self.part_cost(most, all));
        self.sizes(&mut config);
        Ok(config)
    }

    fn sizes(&self, config: &mut Config) {
        config.block_size = self.block_size;
        config.max_batch_tokens = self.max_batch_tokens;
        config.max_batch_requests = self.max_requests;
        config.max_requests = self.max_requests;
        config.model = self.model;
    }

    /// The part of the model that the largest of `stages` stages has, as a fraction.
    fn share(&self, stages: u32) -> Result<(u32, u32), ProfileError> {
        match self.model {
            _ if stages == 0 => Err(self.bad("a pipeline has at least 1 stage".to_owned())),
            Some(model) if stages > model.layers => Err(self.bad(format!("{} layers make no {stages} stages", model.layers))),
            Some(model) => Ok((model.layers.div_ceil(stages), model.layers)),
            None => Ok((1, stages)),
        }
    }

    fn bad(&self, problem: String) -> ProfileError {
        ProfileError::new(&format!("profile {}", self.name), None, problem)
    }
}
