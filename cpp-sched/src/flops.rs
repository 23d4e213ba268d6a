//! What a chunk computes: FLOPs from the dimensions of the model, multiply-add = 2, causal attention exactly.

use crate::cost::causal_pairs;

/// Dimensions of a dense transformer with grouped-query attention and a gated MLP, for FLOPs. The layers alone: no embedding, no head.
///
/// ```
/// use cpp_sched::ModelDims;
/// let llama_70b = ModelDims::new(80, 8192, 64, 8, 128, 28672);
/// assert_eq!(llama_70b.weights(), 68_451_041_280);
/// assert_eq!(llama_70b.flops(0, 2048), 285_875_707_576_320);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ModelDims {
    /// Layers.
    pub layers: u32,
    /// Model width.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// KV heads.
    pub kv_heads: u32,
    /// Size of one head.
    pub head_dim: u32,
    /// Width of the MLP.
    pub intermediate: u32,
}

impl ModelDims {
    /// All six dimensions, in the order of the fields.
    #[must_use]
    pub const fn new(layers: u32, hidden: u32, heads: u32, kv_heads: u32, head_dim: u32, intermediate: u32) -> Self {
        Self { layers, hidden, heads, kv_heads, head_dim, intermediate }
    }

    /// Weights of all layers: `layers * (2*hidden*heads*head_dim + 2*hidden*kv_heads*head_dim + 3*hidden*intermediate)`, saturating.
    #[must_use]
    pub const fn weights(&self) -> u128 {
        let hidden = self.hidden as u128;
        let attention = (hidden * 2 * self.head_dim as u128).saturating_mul(self.heads as u128 + self.kv_heads as u128);
        let mlp = 3 * hidden * self.intermediate as u128;
        attention.saturating_add(mlp).saturating_mul(self.layers as u128)
    }

    /// FLOPs of `x` new tokens after `history` computed ones: `2*x*W + 4*heads*head_dim*layers*(x*L + x*(x+1)/2)`, saturating. O(1).
    #[must_use]
    pub const fn flops(&self, history: u32, x: u32) -> u128 {
        let linear = self.weights().saturating_mul(2 * x as u128);
        linear.saturating_add(self.flops_per_pair().saturating_mul(causal_pairs(history, x)))
    }

    /// FLOPs of attention per (query, key) pair: `4*heads*head_dim*layers`.
    #[must_use]
    pub const fn flops_per_pair(&self) -> u128 {
        (4 * self.heads as u128 * self.head_dim as u128).saturating_mul(self.layers as u128)
    }

    /// The dimensions in order, with their names.
    #[must_use]
    pub const fn dimensions(&self) -> [(&'static str, u32); 6] {
        [
            ("layers", self.layers),
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate", self.intermediate),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_do_not_depend_on_the_cutting() {
        let dims = ModelDims::new(2, 64, 4, 2, 16, 128);
        assert_eq!(dims.flops(0, 300), dims.flops(0, 130) + dims.flops(130, 170));
    }

    #[test]
    fn ten_million_tokens_of_a_large_model_fit() {
        let dims = ModelDims::new(80, 8192, 64, 8, 128, 28672);
        assert!(dims.flops(0, 10_000_000) < u128::MAX);
        let giant = ModelDims::new(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(giant.flops(u32::MAX, u32::MAX), u128::MAX);
    }
}
