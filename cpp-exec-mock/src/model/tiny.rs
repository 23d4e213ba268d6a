//! Tiny random models, for tests and benches: the same numbers from the same seed on any machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::config::LlamaConfig;
use super::rope::{Rope, RopeScaling};
use super::weights::{Format, to_bf16};

/// A model to be made. The default has four layers of 64 numbers, four heads over two of keys, and a token for each byte.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by struct update from its default")]
pub struct TinyLlama {
    /// What the weights are drawn from.
    pub seed: u64,
    /// Numbers per token between layers.
    pub hidden_size: usize,
    /// Numbers per token within the feed-forward part.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Numbers per head.
    pub head_dim: usize,
    /// Tokens that there are.
    pub vocab_size: usize,
    /// `rope_scaling` of its configuration.
    pub rope_scaling: Value,
    /// The head is the embedding.
    pub tied: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// How the weights are written.
    pub format: Format,
    /// Files that the weights are spread over; with more than one there is an index.
    pub shards: usize,
}

impl Default for TinyLlama {
    fn default() -> Self {
        Self {
            seed: 1,
            hidden_size: 64,
            intermediate_size: 96,
            num_layers: 4,
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 16,
            vocab_size: 256,
            rope_scaling: Value::Null,
            tied: true,
            qkv_bias: false,
            format: Format::F32,
            shards: 1,
        }
    }
}

/// The theta of tiny models.
const THETA: f64 = 10_000.0;

impl TinyLlama {
    /// Its configuration, without the scaling of positions.
    #[must_use]
    pub fn config(&self) -> LlamaConfig {
        LlamaConfig {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_layers: self.num_layers,
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            max_position: 2048,
            norm_eps: 1e-5,
            rope: Rope { theta: THETA, scaling: RopeScaling::None },
            tied: self.tied,
            qkv_bias: self.qkv_bias,
            output_bias: false,
            eos: vec![0],
        }
    }

    /// `config.json`, as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "architectures": [if self.qkv_bias { "Qwen2ForCausalLM" } else { "LlamaForCausalLM" }],
            "model_type": if self.qkv_bias { "qwen2" } else { "llama" },
            "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size, "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads, "num_key_value_heads": self.num_kv_heads, "head_dim": self.head_dim,
            "vocab_size": self.vocab_size, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": THETA,
            "rope_scaling": self.rope_scaling, "tie_word_embeddings": self.tied, "hidden_act": "silu", "eos_token_id": 0,
        })
    }

    /// Its weights by name: shape and numbers. Those of matrices are drawn so that activations keep their size from layer to layer.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
        let mut weights = BTreeMap::new();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut draw = |name: String, shape: &[usize], middle: f32, spread: f32| {
            let number = |_| {
                let uniform = (rng.next_u32() >> 8) as f32 / 8_388_608.0 - 1.0;
                let number = middle + spread * uniform;
                if self.format == Format::Bf16 { super::weights::from_bf16(to_bf16(number)) } else { number }
            };
            let numbers = (0..shape.iter().product::<usize>()).map(number).collect();
            weights.insert(name, (shape.to_vec(), numbers));
        };
        let (hidden, inner, q, kv) =
            (self.hidden_size, self.intermediate_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        // Uniform in ±spread has the variance spread² / 3.
        let spread = |inputs: usize| (3.0 / inputs as f32).sqrt();
        draw("model.embed_tokens.weight".to_owned(), &[self.vocab_size, hidden], 0.0, 1.0);
        draw("model.norm.weight".to_owned(), &[hidden], 1.0, 0.3);
        if !self.tied {
            draw("lm_head.weight".to_owned(), &[self.vocab_size, hidden], 0.0, spread(hidden));
        }
        for layer in 0..self.num_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            draw(name("input_layernorm.weight"), &[hidden], 1.0, 0.3);
            draw(name("post_attention_layernorm.weight"), &[hidden], 1.0, 0.3);
            for (part, outputs) in [("q", q), ("k", kv), ("v", kv)] {
                draw(name(&format!("self_attn.{part}_proj.weight")), &[outputs, hidden], 0.0, 2.0 * spread(hidden));
                if self.qkv_bias {
                    draw(name(&format!("self_attn.{part}_proj.bias")), &[outputs], 0.0, 0.5);
                }
            }
            draw(name("self_attn.o_proj.weight"), &[hidden, q], 0.0, spread(q));
            draw(name("mlp.gate_proj.weight"), &[inner, hidden], 0.0, spread(hidden));
            draw(name("mlp.up_proj.weight"), &[inner, hidden], 0.0, spread(hidden));
            draw(name("mlp.down_proj.weight"), &[hidden, inner], 0.0, spread(inner));
        }
        weights
    }

    /// Writes it as a folder that Hugging Face's tools read too: configuration, weights, and a tokenizer with a token for each byte.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("config.json"), self.json().to_string())?;
        fs::write(folder.join("tokenizer.json"), byte_tokenizer(self.vocab_size).to_string())?;
        let weights = self.weights();
        if self.shards < 2 {
            return fs::write(folder.join("model.safetensors"), self.file(weights.iter().map(|(name, tensor)| (name.as_str(), tensor))));
        }
        let mut index = serde_json::Map::new();
        for shard in 0..self.shards {
            let file = format!("model-{:05}-of-{:05}.safetensors", shard + 1, self.shards);
            let part = || weights.iter().skip(shard).step_by(self.shards);
            index.extend(part().map(|(name, _)| (name.clone(), file.clone().into())));
            fs::write(folder.join(&file), self.file(part().map(|(name, tensor)| (name.as_str(), tensor))))?;
        }
        fs::write(folder.join("model.safetensors.index.json"), json!({ "metadata": {}, "weight_map": index }).to_string())
    }

    fn file<'a>(&self, tensors: impl Iterator<Item = (&'a str, &'a (Vec<usize>, Vec<f32>))>) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, (shape, numbers)) in tensors {
            let start = data.len();
            let dtype = match self.format {
                Format::Bf16 => {
                    numbers.iter().for_each(|number| data.extend(to_bf16(*number).to_le_bytes()));
                    "BF16"
                }
                _ => {
                    numbers.iter().for_each(|number| data.extend(number.to_le_bytes()));
                    "F32"
                }
            };
            header.insert(name.to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.into_bytes());
        file.extend(data);
        file
    }
}

/// `tokenizer.json` of a byte-level tokenizer without merges: token `b` is the byte `b`.
fn byte_tokenizer(vocab_size: usize) -> Value {
    // Byte-level vocabularies write each byte as one printable character: itself, or from U+0100 on.
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let mut vocab = serde_json::Map::new();
    for byte in 0..256u32 {
        let code = if printable(byte) { Some(byte) } else { others.next() };
        if let Some(character) = code.and_then(char::from_u32) {
            vocab.insert(character.to_string(), byte.into());
        }
    }
    for token in 256..vocab_size {
        vocab.insert(format!("<{token}>"), token.into());
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [],
        },
    })
}
