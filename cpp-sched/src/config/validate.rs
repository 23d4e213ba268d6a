//! What makes a configuration valid.

use super::{Admission, Chunking, Config, Role};
use crate::cost::{Attos, CostModel};
use crate::error::ConfigError;
use crate::flops::ModelDims;

impl Config {
    /// Checks every field and every combination.
    ///
    /// # Errors
    /// The first field that is wrong, and what is wrong with it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_batch_requests", self.max_batch_requests),
            ("max_requests", self.max_requests),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
            ("stages", self.stages),
            ("max_in_flight", self.max_in_flight.unwrap_or(1)),
            ("chunks_per_batch", self.chunks_per_batch),
            ("max_prompt_tokens_per_batch", self.max_prompt_tokens_per_batch.unwrap_or(1)),
            ("max_partial_prefills", self.max_partial_prefills.unwrap_or(1)),
            ("max_prompt_wait", self.max_prompt_wait),
            ("adaptive.align", self.adaptive.align),
            ("adaptive.min", self.adaptive.min.unwrap_or(1)),
            ("async_distance", self.async_distance),
            ("max_adapters_per_batch", self.max_adapters_per_batch.unwrap_or(1)),
            ("encoder_budget_tokens", self.encoder_budget_tokens.unwrap_or(1)),
            ("encoder_cache_tokens", self.encoder_cache_tokens.unwrap_or(1)),
            ("kv_consumers", self.kv_consumers),
            ("latency.max_decode_wait", self.latency.max_decode_wait),
            ("latency.reject_above_millionths", self.latency.reject_above_millionths.unwrap_or(1)),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        let times = [
            ("adaptive.target_ns", self.adaptive.target_ns),
            ("adaptive.max_target_ns", self.adaptive.max_target_ns),
            ("adaptive.token_latency_ns", self.adaptive.token_latency_ns),
            ("latency.max_prefill_wait_ns", self.latency.max_prefill_wait_ns),
            ("srpf_ageing_ns", self.srpf_ageing_ns),
            ("priority_ageing_ns", self.priority_ageing_ns),
        ];
        if let Some((field, _)) = times.into_iter().find(|(_, time)| *time == Some(0)) {
            return Err(ConfigError::Zero { field });
        }
        // One number is kept back as "no block".
        if self.num_blocks == u32::MAX {
            return Err(ConfigError::TooLarge { field: "num_blocks", most: u64::from(u32::MAX - 1) });
        }
        for (field, value, most) in [("kv_consumers", self.kv_consumers, 64), ("draft_slots", self.draft_slots, self.max_batch_tokens - 1)]
        {
            if value > most {
                return Err(ConfigError::TooLarge { field, most: most.into() });
            }
        }
        self.validate_chunking()?;
        for (field, value) in self.cost.iter().flat_map(CostModel::coefficients) {
            if value > Attos::MAX_COEFFICIENT {
                return Err(ConfigError::TooLarge { field, most: Attos::MAX_COEFFICIENT.to_ns() });
            }
        }
        for (field, value) in self.model.iter().flat_map(ModelDims::dimensions) {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        if self.latency.reject_above_millionths.is_some() && self.cost.is_none() {
            return Err(ConfigError::NeedsCost { field: "latency.reject_above_millionths" });
        }
        for (field, on) in [("relegation", self.relegation), ("feasibility_guard", self.feasibility_guard)] {
            if on && self.cost.is_none() {
                return Err(ConfigError::NeedsCost { field });
            }
        }
        if self.role == Role::Prefill && self.admission == Admission::Lazy {
            return Err(ConfigError::LazyPrefill);
        }
        self.validate_groups()
    }

    /// With a state that is kept on a grain alone, a chunk must be able to reach the next multiple of it.
    fn validate_groups(&self) -> Result<(), ConfigError> {
        let what = |what| Err(ConfigError::KvGroups { what });
        if !self.kv_groups.is_single() && self.role != Role::Unified {
            return what("more than one group goes with role unified alone");
        }
        if !self.kv_groups.has_state() {
            return Ok(());
        }
        let grain = self.kv_groups.grain();
        let align = match self.chunking {
            Chunking::Tokens { max } => {
                if max.is_some_and(|max| max < grain) {
                    return what("chunking.max must be at least the grain of State");
                }
                grain
            }
            Chunking::Cost { align, .. } => self.grain_align(align),
            Chunking::Adaptive => grain,
        };
        let most = (self.max_batch_tokens - self.draft_slots).min(self.max_prompt_tokens_per_batch.unwrap_or(u32::MAX));
        if grain % self.block_size != 0 {
            return what("the grain of State must be a multiple of block_size");
        }
        if align > most {
            return what(
                "max_batch_tokens (without draft_slots) and max_prompt_tokens_per_batch must hold one grain of State, and one multiple of it \
                 that chunking.align divides",
            );
        }
        if self.chunks_per_batch > 1 {
            return what("chunks_per_batch must be 1 with a State group: a batch computes a state from one that was kept before it");
        }
        Ok(())
    }

    fn validate_chunking(&self) -> Result<(), ConfigError> {
        match self.chunking {
            Chunking::Tokens { max: Some(0) } => Err(ConfigError::Zero { field: "chunking.max" }),
            Chunking::Tokens { .. } => Ok(()),
            Chunking::Cost { .. } | Chunking::Adaptive if self.cost.is_none() => Err(ConfigError::NeedsCost { field: "chunking" }),
            Chunking::Adaptive => Ok(()),
            Chunking::Cost { target_ns, align, min } => {
                for (field, value) in [("chunking.target_ns", target_ns), ("chunking.align", align.into()), ("chunking.min", min.into())] {
                    if value == 0 {
                        return Err(ConfigError::Zero { field });
                    }
                }
                for (field, value) in [("chunking.align", align), ("chunking.min", min)] {
                    if value > self.max_batch_tokens {
                        return Err(ConfigError::TooLarge { field, most: self.max_batch_tokens.into() });
                    }
                }
                Ok(())
            }
        }
    }
}
