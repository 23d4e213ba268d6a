//! `config.json`: the dimensions of a model of the Llama family.

use std::path::Path;

use super::error::ModelError;
use super::fields::{Fields, read_json};
use super::rope::Rope;

/// What a model looks like, as far as it must be known to run it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LlamaConfig {
    /// Numbers per token between layers.
    pub hidden_size: usize,
    /// Numbers per token within the feed-forward part.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Heads of queries.
    pub num_heads: usize,
    /// Heads of keys and values; each serves `num_heads / num_kv_heads` heads of queries.
    pub num_kv_heads: usize,
    /// Numbers per head; even.
    pub head_dim: usize,
    /// Tokens that there are.
    pub vocab_size: usize,
    /// Positions that the model was made for.
    pub max_position: usize,
    /// What is added to the mean square before its root is taken.
    pub norm_eps: f64,
    /// Rotary embedding.
    pub rope: Rope,
    /// The head is the embedding, transposed.
    pub tied: bool,
    /// Queries, keys and values have biases.
    pub qkv_bias: bool,
    /// The projection of the attention's output has a bias.
    pub output_bias: bool,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
}

impl LlamaConfig {
    /// Reads `config.json` of a folder, and the end tokens of its `generation_config.json` if there is one.
    ///
    /// # Errors
    /// The first field that is missing, wrong, or speaks of another kind of model.
    pub fn read(folder: &Path) -> Result<Self, ModelError> {
        if !folder.is_dir() {
            return Err(ModelError::NoFolder(folder.to_owned()));
        }
        let path = folder.join("config.json");
        if !path.is_file() {
            return Err(ModelError::Missing {
                folder: folder.to_owned(),
                file: "config.json".to_owned(),
                hint: "give the folder of a Hugging Face model",
            });
        }
        let value = read_json(&path)?;
        let mut config = Self::parse(&path, &Fields::new(&path, &value)?)?;
        let generation = folder.join("generation_config.json");
        if generation.is_file() {
            let value = read_json(&generation)?;
            let eos = Fields::new(&generation, &value)?.tokens("eos_token_id")?;
            if !eos.is_empty() {
                config.eos = eos;
            }
        }
        Ok(config)
    }

    fn parse(path: &Path, fields: &Fields<'_>) -> Result<Self, ModelError> {
        let family = fields.text("model_type")?.ok_or_else(|| fields.error("model_type", "is missing"))?;
        if !["llama", "mistral", "qwen2"].contains(&family) {
            let what = format!("model_type {family}");
            return Err(ModelError::unsupported(path, what, "llama, mistral and qwen2 run"));
        }
        Self::refuse(path, fields, family)?;

        let hidden_size = fields.need_size("hidden_size")?;
        let num_heads = fields.need_size("num_attention_heads")?;
        let num_kv_heads = fields.size("num_key_value_heads")?.unwrap_or(num_heads);
        if num_heads % num_kv_heads != 0 {
            let problem = format!("is {num_kv_heads}, which does not divide num_attention_heads, {num_heads}");
            return Err(fields.error("num_key_value_heads", problem));
        }
        let head_dim = match fields.size("head_dim")? {
            Some(given) => given,
            None if hidden_size % num_heads == 0 => hidden_size / num_heads,
            None => {
                let problem =
                    format!("is {hidden_size}, which is no multiple of num_attention_heads, {num_heads}, and head_dim is not given");
                return Err(fields.error("hidden_size", problem));
            }
        };
        if head_dim % 2 != 0 {
            return Err(fields.error("head_dim", format!("is {head_dim}: it must be even, since positions turn pairs")));
        }
        let max_position = fields.size("max_position_embeddings")?.unwrap_or(2048);
        let attention_bias = fields.flag("attention_bias", family == "qwen2")?;
        Ok(Self {
            hidden_size,
            intermediate_size: fields.need_size("intermediate_size")?,
            num_layers: fields.need_size("num_hidden_layers")?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: fields.need_size("vocab_size")?,
            max_position,
            norm_eps: fields.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope: Rope::parse(fields, max_position)?,
            tied: fields.flag("tie_word_embeddings", false)?,
            qkv_bias: attention_bias,
            output_bias: attention_bias && family == "llama",
            eos: fields.tokens("eos_token_id")?,
        })
    }

    /// What would give other numbers than the model's own, if it were passed over.
    fn refuse(path: &Path, fields: &Fields<'_>, family: &str) -> Result<(), ModelError> {
        let activation = fields.text("hidden_act")?.unwrap_or("silu");
        if !["silu", "swish"].contains(&activation) {
            return Err(ModelError::unsupported(path, format!("hidden_act {activation}"), "models with silu run"));
        }
        if fields.get("quantization_config").is_some() {
            return Err(ModelError::unsupported(path, "quantization_config", "give the model in BF16, F16 or F32"));
        }
        if fields.flag("mlp_bias", false)? {
            return Err(ModelError::unsupported(path, "mlp_bias", "models without biases in the feed-forward part run"));
        }
        let windowed = if family == "qwen2" { fields.flag("use_sliding_window", false)? } else { fields.get("sliding_window").is_some() };
        if windowed {
            return Err(ModelError::unsupported(path, "sliding_window", "models that attend to all positions run"));
        }
        if fields.number("partial_rotary_factor")?.is_some_and(|part| part < 1.0) {
            return Err(ModelError::unsupported(path, "partial_rotary_factor", "models whose whole heads are turned run"));
        }
        Ok(())
    }

    /// Numbers of all heads of queries.
    #[must_use]
    pub const fn q_size(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Numbers of all heads of keys, or of values.
    #[must_use]
    pub const fn kv_size(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Weights that a layer multiplies with: what it costs per token without attention.
    #[must_use]
    pub const fn layer_weights(&self) -> u64 {
        let attention = self.hidden_size * (2 * self.q_size() + 2 * self.kv_size());
        (attention + 3 * self.hidden_size * self.intermediate_size) as u64
    }

    /// Weights that the head multiplies with.
    #[must_use]
    pub const fn head_weights(&self) -> u64 {
        (self.hidden_size * self.vocab_size) as u64
    }
}
