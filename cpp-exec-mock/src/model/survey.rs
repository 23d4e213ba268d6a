//! All tensors of a folder against its configuration, with everything that is wrong at once.

use std::collections::{BTreeMap, BTreeSet};

use super::config::LlamaConfig;
use super::error::ModelError;
use super::weights::{Format, Weights};

/// What a folder has.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Survey {
    /// Tensors that the model needs.
    pub needed: usize,
    /// How many of them hold numbers of which kind.
    pub formats: BTreeMap<Format, usize>,
    /// What is wrong with the others, in the order of the layers.
    pub problems: Vec<ModelError>,
    /// Tensors that are there and not needed.
    pub unused: Vec<String>,
}

impl LlamaConfig {
    /// The tensors that a model of this configuration has, and their shapes, from the embedding to the head.
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner, q, kv) = (self.hidden_size, self.intermediate_size, self.q_size(), self.kv_size());
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_layers {
            let mut add = |name: &str, shape: &[usize]| tensors.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            add("input_layernorm.weight", &[hidden]);
            for (projection, outputs, inputs, biased) in [
                ("q", q, hidden, self.qkv_bias),
                ("k", kv, hidden, self.qkv_bias),
                ("v", kv, hidden, self.qkv_bias),
                ("o", hidden, q, self.output_bias),
            ] {
                add(&format!("self_attn.{projection}_proj.weight"), &[outputs, inputs]);
                if biased {
                    add(&format!("self_attn.{projection}_proj.bias"), &[outputs]);
                }
            }
            add("post_attention_layernorm.weight", &[hidden]);
            add("mlp.gate_proj.weight", &[inner, hidden]);
            add("mlp.up_proj.weight", &[inner, hidden]);
            add("mlp.down_proj.weight", &[hidden, inner]);
        }
        tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
        if !self.tied {
            tensors.push(("lm_head.weight".to_owned(), vec![self.vocab_size, hidden]));
        }
        tensors
    }
}

impl Weights {
    /// Whether every tensor that the model needs is there, with its shape and in a format that is read. Numbers are not looked at. O(tensors), and
    /// the head's numbers if it is tied and there all the same.
    #[must_use]
    pub fn survey(&self, config: &LlamaConfig) -> Survey {
        let needed = config.tensors();
        let mut survey = Survey { needed: needed.len(), ..Survey::default() };
        for (name, shape) in &needed {
            match self.tensor(name, shape) {
                Ok(tensor) => *survey.formats.entry(tensor.format()).or_default() += 1,
                Err(problem) => survey.problems.push(problem),
            }
        }
        survey.problems.extend(self.check_tied(config).err());
        let needed: BTreeSet<&str> = needed.iter().map(|(name, _)| name.as_str()).collect();
        survey.unused = self.names().filter(|name| !needed.contains(name)).map(ToOwned::to_owned).collect();
        survey
    }
}
