//! What is measured: a model's shape, and how much of everything.

use cpp_exec_mock::cpu::{KvShape, Part};
use cpp_exec_mock::model::{Format, LlamaConfig, TinyLlama};

use crate::cuda::Room;

/// Sizes of the measurements.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) model: LlamaConfig,
    /// Rows and columns of the product that gives the FLOP rate.
    pub(super) product: usize,
    /// bf16 numbers of the copy that gives the bandwidth.
    pub(super) copied: usize,
    /// How often product and copy are repeated.
    pub(super) repeats: u32,
    /// Tokens of a chunk of the prompt, and its chunks.
    pub(super) chunk: u32,
    pub(super) chunks: u32,
    /// Requests that decode, their context, and steps.
    pub(super) requests: u32,
    pub(super) context: u32,
    pub(super) steps: u32,
}

impl Shape {
    pub(super) const BLOCK: u32 = 16;

    /// Llama 3's with 8 billion weights.
    pub(super) fn full() -> Self {
        let model = TinyLlama {
            hidden_size: 4096,
            intermediate_size: 14_336,
            num_layers: 32,
            num_heads: 32,
            num_kv_heads: 8,
            head_dim: 128,
            vocab_size: 128_256,
            tied: false,
            format: Format::Bf16,
            ..TinyLlama::default()
        };
        Self {
            model: with_positions(&model, 32_768),
            product: 8192,
            copied: 1 << 30,
            repeats: 20,
            chunk: 4096,
            chunks: 4,
            requests: 64,
            context: 4096,
            steps: 32,
        }
    }

    /// So small that an emulation runs it in seconds. Its figures mean nothing.
    pub(super) fn tiny() -> Self {
        let model = TinyLlama { num_layers: 2, num_heads: 4, num_kv_heads: 2, head_dim: 32, format: Format::Bf16, ..TinyLlama::default() };
        Self {
            model: with_positions(&model, 512),
            product: 64,
            copied: 1 << 16,
            repeats: 2,
            chunk: 32,
            chunks: 2,
            requests: 4,
            context: 40,
            steps: 3,
        }
    }

    pub(super) const fn part(&self) -> Part {
        Part { stage: 0, stages: 1, layers: 0..self.model.num_layers }
    }

    /// Blocks of a request's table.
    pub(super) const fn blocks(&self) -> u32 {
        (self.context + self.steps + 8).div_ceil(Self::BLOCK)
    }

    pub(super) fn kv(&self) -> KvShape {
        let prompt = (self.chunk * self.chunks).div_ceil(Self::BLOCK);
        KvShape { block_size: Self::BLOCK, num_blocks: (self.requests * self.blocks()).max(prompt) }
    }

    pub(super) fn room(&self) -> Room {
        let positions = (self.chunk * self.chunks).max(self.context + self.steps + 8);
        Room { positions, tokens: self.chunk.max(self.context).max(self.requests), rows: self.requests, batches: 1 }
    }

    /// Weights that every token is multiplied with, those of the head left out.
    const fn linear(&self) -> u64 {
        let model = &self.model;
        let attention = model.hidden_size * (2 * model.q_size() + 2 * model.kv_size());
        (model.num_layers * (attention + 3 * model.hidden_size * model.intermediate_size)) as u64
    }

    const fn head(&self) -> u64 {
        (self.model.hidden_size * self.model.vocab_size) as u64
    }

    /// Floating point operations of a prompt of so many tokens, one of which samples: two for each weight and token, and four for each number of a query and
    /// each key that it sees.
    pub(super) const fn prefill_flops(&self, tokens: u64) -> u64 {
        let seen = tokens * (tokens + 1) / 2;
        2 * self.linear() * tokens + 2 * self.head() + 4 * (self.model.num_layers * self.model.q_size()) as u64 * seen
    }

    /// Bytes that a step of the decodes cannot but read: all weights, and the keys and values of all contexts.
    pub(super) const fn decode_bytes(&self, context: u64) -> u64 {
        let kv = 2 * (self.model.num_layers * self.model.kv_size()) as u64 * context * self.requests as u64;
        2 * (self.linear() + self.head() + kv)
    }
}

fn with_positions(model: &TinyLlama, positions: usize) -> LlamaConfig {
    let mut config = model.config();
    config.max_position = positions;
    config
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn an_8b_model_has_its_weights_and_flops() {
        let shape = Shape::full();
        // Llama 3 8B has 8.03 billion, 0.53 of them in the embedding, which is only looked up.
        assert_eq!(shape.linear() + shape.head(), 7_504_658_432);
        assert_eq!(shape.prefill_flops(1), 2 * 7_504_658_432 + 4 * 32 * 4096);
        // 131,072 bytes for each position.
        assert_eq!(shape.decode_bytes(4096) - shape.decode_bytes(0), 64 * 4096 * 131_072);
        let (room, kv) = (shape.room(), shape.kv());
        assert!(room.positions >= 16_384 && room.tokens >= 4096 && kv.num_blocks * kv.block_size >= 64 * (4096 + 40));
    }
}
