//! What layers of different kinds compute and keep: FLOPs (multiply-add = 2), weights and KV elements from dimensions, exact and saturating.
//!
//! Textbook counting. A layer is a mixer (some kind of attention) and an MLP. What does not grow with a product of widths is left out: norms,
//! activations, rotary embeddings, softmax.

use crate::cost::{causal_pairs, product};

/// How tokens of a layer look at each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mixer {
    /// Grouped-query attention: `heads` queries share `kv_heads` keys and values of `head_dim` elements. Weights
    /// `2*hidden*heads*head_dim + 2*hidden*kv_heads*head_dim`, a pair `4*heads*head_dim`.
    Attention {
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u32,
        /// Tokens that one token sees, itself included; none = all before it.
        window: Option<u32>,
    },
    /// Multi-head latent attention as in DeepSeek-V2: one latent vector of `kv_rank` elements and `rope_dim` positional ones per token is kept.
    ///
    /// Weights: `hidden*q_rank + q_rank*heads*(nope_dim + rope_dim) + hidden*(kv_rank + rope_dim) + kv_rank*heads*(nope_dim + v_dim) +
    /// heads*v_dim*hidden`. Expanded, each chunk makes keys and values of all tokens before it again, `2*kv_rank*heads*(nope_dim + v_dim)` each, and
    /// a pair takes `2*heads*(nope_dim + rope_dim + v_dim)`. Absorbed, queries and outputs are taken into the latent space for as much per new token,
    /// nothing is expanded, and a pair takes `2*heads*(2*kv_rank + rope_dim)`.
    Latent {
        /// Heads.
        heads: u32,
        /// Width of the query's latent.
        q_rank: u32,
        /// Width of the latent that is kept.
        kv_rank: u32,
        /// Elements of a head's key without position.
        nope_dim: u32,
        /// Elements of a head's key with position.
        rope_dim: u32,
        /// Elements of a head's value.
        v_dim: u32,
        /// Whether prefill works in the latent space; decodes always do.
        absorbed: bool,
    },
    /// Linear attention or a state-space layer: a state of `heads*key_dim*value_dim` numbers in place of a KV cache, updated and read once per token
    /// (`per_state` FLOPs for each number: 4 for an additive state, 6 to 8 for a delta rule), in blocks of `block` tokens that see each
    /// other (`2*heads*block*(key_dim + value_dim)` per token). Projections: `hidden*heads*(2*key_dim + 2*value_dim)` weights.
    Linear {
        /// Heads.
        heads: u32,
        /// Elements of a key.
        key_dim: u32,
        /// Elements of a value.
        value_dim: u32,
        /// FLOPs per number of the state and token.
        per_state: u32,
        /// Tokens of an inner block.
        block: u32,
    },
}

/// The second half of a layer. `gated`: three matrices, else two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mlp {
    /// One MLP for all tokens.
    Dense {
        /// Its width.
        intermediate: u32,
        /// Three matrices in place of two.
        gated: bool,
    },
    /// A mixture of gated experts: a router of `hidden*experts` weights sends each token to `top_k` of them, and `shared` more see every token.
    Experts {
        /// Experts to choose from.
        experts: u32,
        /// Experts of one token.
        top_k: u32,
        /// Width of one of them.
        intermediate: u32,
        /// Experts that see every token.
        shared: u32,
        /// Width of one of those.
        shared_intermediate: u32,
    },
}

/// One layer.
///
/// ```
/// use cpp_sched::{Layer, Mixer, Mlp};
/// // DeepSeek-V3: each chunk expands all latents before it again, which costs as much as the attention of 410 more tokens.
/// let layer = Layer::new(7168, Mixer::latent(128, 1536, 512, 128, 64, 128, false), Mlp::experts(256, 8, 2048, 1, 2048));
/// assert_eq!((layer.history_flops(), layer.pair_flops()), (33_554_432, 81_920));
/// assert_eq!(layer.history_flops().div_ceil(layer.pair_flops()), 410);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layer {
    /// Model width.
    pub hidden: u32,
    /// The first half.
    pub mixer: Mixer,
    /// The second half.
    pub mlp: Mlp,
}

impl Mixer {
    /// Grouped-query attention over all tokens, or a window of them.
    #[must_use]
    pub const fn attention(heads: u32, kv_heads: u32, head_dim: u32, window: Option<u32>) -> Self {
        Self::Attention { heads, kv_heads, head_dim, window }
    }

    /// Latent attention; the dimensions in the order of the fields.
    #[must_use]
    pub const fn latent(heads: u32, q_rank: u32, kv_rank: u32, nope_dim: u32, rope_dim: u32, v_dim: u32, absorbed: bool) -> Self {
        Self::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, absorbed }
    }

    /// Linear attention; the dimensions in the order of the fields.
    #[must_use]
    pub const fn linear(heads: u32, key_dim: u32, value_dim: u32, per_state: u32, block: u32) -> Self {
        Self::Linear { heads, key_dim, value_dim, per_state, block }
    }
}

impl Mlp {
    /// One gated MLP.
    #[must_use]
    pub const fn gated(intermediate: u32) -> Self {
        Self::Dense { intermediate, gated: true }
    }

    /// Experts; the dimensions in the order of the fields.
    #[must_use]
    pub const fn experts(experts: u32, top_k: u32, intermediate: u32, shared: u32, shared_intermediate: u32) -> Self {
        Self::Experts { experts, top_k, intermediate, shared, shared_intermediate }
    }
}

/// The product of dimensions, saturating.
fn times(factors: &[u32]) -> u128 {
    factors.iter().fold(1, |all, &factor| product(all, factor.into()))
}

fn sum(parts: &[u128]) -> u128 {
    parts.iter().fold(0, |all, &part| all.saturating_add(part))
}

impl Layer {
    /// A layer of these halves.
    #[must_use]
    pub const fn new(hidden: u32, mixer: Mixer, mlp: Mlp) -> Self {
        Self { hidden, mixer, mlp }
    }

    /// Weights of the first half.
    #[must_use]
    pub fn mixer_weights(&self) -> u128 {
        let d = self.hidden;
        match self.mixer {
            Mixer::Attention { heads, kv_heads, head_dim, .. } => {
                sum(&[times(&[2, d, heads, head_dim]), times(&[2, d, kv_heads, head_dim])])
            }
            Mixer::Latent { heads, q_rank, kv_rank, nope_dim, rope_dim, v_dim, .. } => {
                let (key, latent) = (nope_dim.saturating_add(rope_dim), kv_rank.saturating_add(rope_dim));
                let expand = times(&[kv_rank, heads, nope_dim.saturating_add(v_dim)]);
                sum(&[times(&[d, q_rank]), times(&[q_rank, heads, key]), times(&[d, latent]), expand, times(&[heads, v_dim, d])])
            }
            Mixer::Linear { heads, key_dim, value_dim, .. } => times(&[2, d, heads, key_dim.saturating_add(value_dim)]),
        }
    }

    /// Weights of all experts together that a token may be sent to; 0 for a dense layer.
    #[must_use]
    pub fn routed_weights(&self) -> u128 {
        match self.mlp {
            Mlp::Dense { .. } => 0,
            Mlp::Experts { experts, intermediate, .. } => times(&[3, self.hidden, intermediate, experts]),
        }
    }

    /// Weights that every token meets: all but the routed experts.
    #[must_use]
    pub fn common_weights(&self) -> u128 {
        let mlp = match self.mlp {
            Mlp::Dense { intermediate, gated } => times(&[if gated { 3 } else { 2 }, self.hidden, intermediate]),
            Mlp::Experts { experts, shared, shared_intermediate, .. } => {
                sum(&[times(&[self.hidden, experts]), times(&[3, self.hidden, shared_intermediate, shared])])
            }
        };
        self.mixer_weights().saturating_add(mlp)
    }

    /// All weights.
    #[must_use]
    pub fn weights(&self) -> u128 {
        self.common_weights().saturating_add(self.routed_weights())
    }

    /// Weights that one token meets: with experts, those of its `top_k`.
    #[must_use]
    pub fn active_weights(&self) -> u128 {
        let routed = match self.mlp {
            Mlp::Dense { .. } => 0,
            Mlp::Experts { top_k, intermediate, .. } => times(&[3, self.hidden, intermediate, top_k]),
        };
        self.common_weights().saturating_add(routed)
    }

    /// FLOPs of a new token whatever is before it: twice the active weights, and the state of a linear layer. Latent attention's expansion
    /// matrix counts here for the token's own key and value, or absorbed for its query and output, which is as much.
    #[must_use]
    pub fn token_flops(&self) -> u128 {
        let state = match self.mixer {
            Mixer::Linear { heads, key_dim, value_dim, per_state, block } => {
                sum(&[times(&[per_state, heads, key_dim, value_dim]), times(&[2, heads, block, key_dim.saturating_add(value_dim)])])
            }
            _ => 0,
        };
        product(self.active_weights(), 2).saturating_add(state)
    }

    /// FLOPs of a (query, key) pair in prefill, inside the window if there is one.
    #[must_use]
    pub fn pair_flops(&self) -> u128 {
        match self.mixer {
            Mixer::Attention { heads, head_dim, .. } => times(&[4, heads, head_dim]),
            Mixer::Latent { heads, nope_dim, rope_dim, v_dim, absorbed: false, .. } => {
                times(&[2, heads, nope_dim.saturating_add(rope_dim).saturating_add(v_dim)])
            }
            Mixer::Latent { .. } => self.decode_pair_flops(),
            Mixer::Linear { .. } => 0,
        }
    }

    /// FLOPs of a pair for a decode, which never expands latents.
    #[must_use]
    pub fn decode_pair_flops(&self) -> u128 {
        match self.mixer {
            Mixer::Latent { heads, kv_rank, rope_dim, .. } => times(&[2, heads, kv_rank.saturating_mul(2).saturating_add(rope_dim)]),
            _ => self.pair_flops(),
        }
    }

    /// FLOPs that each chunk pays for each token before it: latents that are expanded again.
    #[must_use]
    pub fn history_flops(&self) -> u128 {
        match self.mixer {
            Mixer::Latent { heads, kv_rank, nope_dim, v_dim, absorbed: false, .. } => {
                times(&[2, kv_rank, heads, nope_dim.saturating_add(v_dim)])
            }
            _ => 0,
        }
    }

    /// Elements of the KV cache per token (inside the window): `2*kv_heads*head_dim`, or the latent.
    #[must_use]
    pub fn kv_elements(&self) -> u128 {
        match self.mixer {
            Mixer::Attention { kv_heads, head_dim, .. } => times(&[2, kv_heads, head_dim]),
            Mixer::Latent { kv_rank, rope_dim, .. } => u128::from(kv_rank) + u128::from(rope_dim),
            Mixer::Linear { .. } => 0,
        }
    }

    /// Numbers of a linear layer's state per request.
    #[must_use]
    pub fn state_elements(&self) -> u128 {
        match self.mixer {
            Mixer::Linear { heads, key_dim, value_dim, .. } => times(&[heads, key_dim, value_dim]),
            _ => 0,
        }
    }

    /// Tokens that a token sees, where they are limited.
    #[must_use]
    pub const fn window(&self) -> Option<u32> {
        match self.mixer {
            Mixer::Attention { window, .. } => window,
            _ => None,
        }
    }

    /// The pairs of `x` new tokens after `history`: causal, and inside the window if there is one.
    #[must_use]
    pub const fn pairs(&self, history: u32, x: u32) -> u128 {
        match self.window() {
            Some(window) => windowed_pairs(history, x, window),
            None => causal_pairs(history, x),
        }
    }

    /// FLOPs of a prefill chunk of `x` tokens after `history`, exactly, saturating. O(1). Without expanded latents the sum over chunks does not depend on
    /// the cutting.
    #[must_use]
    pub fn flops(&self, history: u32, x: u32) -> u128 {
        let pairs = product(self.pair_flops(), self.pairs(history, x));
        sum(&[product(self.token_flops(), x.into()), pairs, product(self.history_flops(), history.into())])
    }
}

/// `sum of min(L+i, w) for i = 1..=x`: pairs of `x` new tokens after `history` of which each sees the last `window`, itself included.
///
/// With `m = clamp(w-L, 0, x)` tokens that still see everything: `m*L + m*(m+1)/2 + (x-m)*w`.
///
/// ```
/// // After 3 tokens, 4 more with a window of 5 see 4 + 5 + 5 + 5.
/// assert_eq!(cpp_sched::windowed_pairs(3, 4, 5), 19);
/// ```
#[must_use]
pub const fn windowed_pairs(history: u32, x: u32, window: u32) -> u128 {
    let room = window.saturating_sub(history);
    let growing = if room < x { room } else { x };
    causal_pairs(history, growing) + (x - growing) as u128 * window as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEEPSEEK: Layer = Layer::new(7168, Mixer::latent(128, 1536, 512, 128, 64, 128, false), Mlp::experts(256, 8, 2048, 1, 2048));

    #[test]
    fn a_dense_layer_of_llama_70b() {
        let layer = Layer::new(8192, Mixer::attention(64, 8, 128, None), Mlp::gated(28_672));
        // 2*8192*64*128 + 2*8192*8*128 + 3*8192*28672
        assert_eq!(layer.weights(), 134_217_728 + 16_777_216 + 704_643_072);
        assert_eq!((layer.pair_flops(), layer.kv_elements()), (32_768, 2048));
        let dims = crate::ModelDims::new(80, 8192, 64, 8, 128, 28_672);
        assert_eq!(80 * layer.flops(5000, 2048), dims.flops(5000, 2048));
        // Not gated: two matrices.
        let plain = Layer::new(8, Mixer::attention(1, 1, 8, None), Mlp::Dense { intermediate: 32, gated: false });
        assert_eq!(plain.weights(), 256 + 512);
    }

    #[test]
    fn a_layer_of_deepseek_v3() {
        // 7168*1536 + 1536*128*192 + 7168*576 + 128*128*7168, and the expansion 512*128*256.
        let mixer = 11_010_048 + 37_748_736 + 4_128_768 + 117_440_512 + 16_777_216;
        // The router 7168*256, an expert 3*7168*2048.
        let (router, expert) = (1_835_008, 44_040_192);
        assert_eq!(DEEPSEEK.mixer_weights(), mixer);
        assert_eq!(DEEPSEEK.active_weights(), mixer + router + 9 * expert);
        assert_eq!(DEEPSEEK.weights(), mixer + router + 257 * expert);
        assert_eq!(DEEPSEEK.kv_elements(), 576);
        assert_eq!((DEEPSEEK.pair_flops(), DEEPSEEK.decode_pair_flops()), (2 * 128 * 320, 2 * 128 * 1088));
        let absorbed = Layer { mixer: Mixer::latent(128, 1536, 512, 128, 64, 128, true), ..DEEPSEEK };
        assert_eq!((absorbed.history_flops(), absorbed.token_flops()), (0, DEEPSEEK.token_flops()));
        // Absorbed is the cheaper below 171 new tokens, at long histories.
        let dearer = |x| absorbed.flops(9_000_000, x) > DEEPSEEK.flops(9_000_000, x);
        assert!(!dearer(170) && dearer(171));
    }

    #[test]
    fn windows_and_states() {
        for (history, x, window) in [(0, 10, 4), (3, 4, 5), (100, 7, 4), (0, 3, 100), (9_999_000, 1000, 4096)] {
            let slow: u128 = (1..=x).map(|i| u128::from((history + i).min(window))).sum();
            assert_eq!(windowed_pairs(history, x, window), slow);
        }
        let linear = Layer::new(2048, Mixer::linear(16, 128, 256, 6, 64), Mlp::gated(4096));
        // 2*2048*16*384; 6*16*128*256 for the state, 2*16*64*384 inside a block.
        assert_eq!(linear.mixer_weights(), 25_165_824);
        assert_eq!(linear.token_flops(), 2 * (25_165_824 + 25_165_824) + 3_145_728 + 786_432);
        assert_eq!((linear.state_elements(), linear.kv_elements(), linear.flops(10_000_000, 1)), (524_288, 0, linear.token_flops()));
    }

    #[test]
    fn ten_million_tokens_do_not_overflow_and_giants_saturate() {
        assert!(DEEPSEEK.flops(10_000_000, 1_000_000) < 1 << 80);
        let most = u32::MAX;
        let giant = Layer::new(most, Mixer::latent(most, most, most, most, most, most, false), Mlp::experts(most, most, most, most, most));
        assert_eq!(giant.flops(most, most), u128::MAX);
    }
}
