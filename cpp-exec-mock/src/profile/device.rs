//! Cost from dimensions: what a dense transformer takes on a machine whose speeds are known.

use cpp_sched::{Attos, CostModel, ModelDims};
use serde::{Deserialize, Serialize};

/// The machine of one stage: all its GPUs together, in tensor parallel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Device {
    /// Peak floating point operations per second (multiply-add = 2).
    pub peak_flops: u64,
    /// Part of the peak that linear layers reach, in percent.
    pub linear_percent: u32,
    /// Part of the peak that prefill attention reaches, in percent.
    pub attention_percent: u32,
    /// Peak memory bandwidth, in bytes per second.
    pub memory_bytes_per_s: u64,
    /// Part of the bandwidth that is reached, in percent.
    pub bandwidth_percent: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Part of the memory for weights and KV, in percent.
    pub memory_percent: u32,
    /// All weights of the model, embeddings and head included, in bytes; kept beside the KV, and shared out like the layers.
    pub weights_bytes: u64,
    /// Bytes of one weight of a layer.
    pub bytes_per_weight: u32,
    /// Bytes of one element of the KV cache.
    pub bytes_per_kv: u32,
    /// Whether each batch pays for reading its stage's weights on top of computing; false where the constant per batch covers it.
    pub pays_for_weights: bool,
}

impl Device {
    /// Bytes of KV per token, over all layers: `2 * kv_heads * head_dim * layers * bytes_per_kv`.
    #[must_use]
    pub fn kv_bytes_per_token(&self, dims: &ModelDims) -> u128 {
        let elements = 2 * u128::from(dims.kv_heads) * u128::from(dims.head_dim);
        elements.saturating_mul(u128::from(dims.layers)).saturating_mul(u128::from(self.bytes_per_kv))
    }

    pub(super) fn usable_memory(&self) -> u128 {
        u128::from(self.memory_bytes) * u128::from(self.memory_percent) / 100
    }

    /// The fields that must be above 0, and those that are percentages.
    pub(super) fn problem(&self) -> Option<String> {
        let zero = [
            ("peak_flops", self.peak_flops),
            ("memory_bytes_per_s", self.memory_bytes_per_s),
            ("memory_bytes", self.memory_bytes),
            ("bytes_per_weight", self.bytes_per_weight.into()),
            ("bytes_per_kv", self.bytes_per_kv.into()),
        ];
        let percent = [
            ("linear_percent", self.linear_percent),
            ("attention_percent", self.attention_percent),
            ("bandwidth_percent", self.bandwidth_percent),
            ("memory_percent", self.memory_percent),
        ];
        let zero = zero.iter().find(|(_, value)| *value == 0).map(|(name, _)| format!("device.{name} must be at least 1"));
        zero.or_else(|| {
            percent.iter().find(|(_, value)| !(1..=100).contains(value)).map(|(name, _)| format!("device.{name} must be from 1 to 100"))
        })
    }
}

/// The cost of the whole model on one such machine, without a constant per batch of its own.
///
/// | coefficient | time of |
/// |---|---|
/// | `c0` | reading the weights of all layers once, if `pays_for_weights` |
/// | `c1` | the linear layers of a token: `2 * weights / (peak * linear)` |
/// | `c2` | attention of a pair in prefill: `4 * heads * head_dim * layers / (peak * attention)` |
/// | `c3` | reading the KV of a token of a decode's context: `kv bytes / (bandwidth * part)` |
/// | `c4`, `c5` | 0: reading the history of a chunk hides behind its attention, and a decode has nothing of its own |
///
/// A roofline takes the larger of computing and reading; a cost that is linear cannot. With `pays_for_weights` both are added, which is too much by at
/// most the time of reading (chunks of many tokens) and right for decodes; without it small batches are too cheap unless the constant covers them.
/// Saturates at u128; exact integers else, rounded down to an attosecond.
#[must_use]
pub fn derive(dims: &ModelDims, device: &Device) -> CostModel {
    // Attoseconds for `amount` at `per_second` times a percentage.
    let time = |amount: u128, per_second: u64, percent: u32| {
        let speed = u128::from(per_second) * u128::from(percent);
        Attos(amount.saturating_mul(100 * 1_000_000_000 * Attos::PER_NS).checked_div(speed).unwrap_or(u128::MAX))
    };
    let compute = |flops, percent| time(flops, device.peak_flops, percent);
    let read = |bytes| time(bytes, device.memory_bytes_per_s, device.bandwidth_percent);
    let mut cost = CostModel::default();
    if device.pays_for_weights {
        cost.c0 = read(dims.weights().saturating_mul(u128::from(device.bytes_per_weight)));
    }
    cost.c1 = compute(dims.weights().saturating_mul(2), device.linear_percent);
    cost.c2 = compute(dims.flops_per_pair(), device.attention_percent);
    cost.c3 = read(device.kv_bytes_per_token(dims));
    cost
}
