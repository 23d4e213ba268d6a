//! The definition of a Llama model, in double precision and as short as can be.

use std::collections::BTreeMap;

use cpp_exec_mock::model::{LlamaConfig, TinyLlama};
use cpp_sched::TokenId;

pub(crate) struct Plain<'a> {
    config: &'a LlamaConfig,
    weights: BTreeMap<String, Vec<f64>>,
}

impl<'a> Plain<'a> {
    pub(crate) fn new(tiny: &TinyLlama, config: &'a LlamaConfig) -> Self {
        let weights = tiny.weights().into_iter().map(|(name, (_, numbers))| (name, numbers.into_iter().map(f64::from).collect()));
        Self { config, weights: weights.collect() }
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weights = &self.weights[&format!("{name}.weight")];
        let mut y: Vec<f64> = weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect();
        if let Some(bias) = self.weights.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + self.config.norm_eps).sqrt();
        x.iter().zip(&self.weights[&format!("{name}.weight")]).map(|(x, w)| x * scale * w).collect()
    }

    fn rotate(&self, x: &mut [f64], position: usize) {
        let (frequencies, factor) = self.config.rope.frequencies(self.config.head_dim);
        let half = self.config.head_dim / 2;
        for head in x.chunks_mut(2 * half) {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (a, b) = (head[pair], head[pair + half]);
                (head[pair], head[pair + half]) = (factor * (a * cos - b * sin), factor * (b * cos + a * sin));
            }
        }
    }

    /// The logits after each of the tokens.
    pub(crate) fn logits(&self, tokens: &[TokenId]) -> Vec<Vec<f64>> {
        let c = self.config;
        let embedding = &self.weights["model.embed_tokens.weight"];
        let mut xs: Vec<Vec<f64>> =
            tokens.iter().map(|token| embedding[*token as usize * c.hidden_size..][..c.hidden_size].to_vec()).collect();
        for layer in 0..c.num_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, x) in xs.iter_mut().enumerate() {
                let y = self.norm(&name("input_layernorm"), x);
                let mut q = self.linear(&name("self_attn.q_proj"), &y);
                let mut k = self.linear(&name("self_attn.k_proj"), &y);
                self.rotate(&mut q, position);
                self.rotate(&mut k, position);
                keys.push(k);
                values.push(self.linear(&name("self_attn.v_proj"), &y));
                let mut attended = Vec::new();
                for (head, q) in q.chunks(c.head_dim).enumerate() {
                    let kv = head / (c.num_heads / c.num_kv_heads) * c.head_dim;
                    let score = |k: &Vec<f64>| q.iter().zip(&k[kv..]).map(|(q, k)| q * k).sum::<f64>() / (c.head_dim as f64).sqrt();
                    let weights: Vec<f64> = keys.iter().map(|k| score(k).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    attended.extend((0..c.head_dim).map(|at| weights.iter().zip(&values).map(|(w, v)| w * v[kv + at]).sum::<f64>() / sum));
                }
                x.iter_mut().zip(self.linear(&name("self_attn.o_proj"), &attended)).for_each(|(x, o)| *x += o);
                let y = self.norm(&name("post_attention_layernorm"), x);
                let gate = self.linear(&name("mlp.gate_proj"), &y);
                let up = self.linear(&name("mlp.up_proj"), &y);
                let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                x.iter_mut().zip(self.linear(&name("mlp.down_proj"), &inner)).for_each(|(x, down)| *x += down);
            }
        }
        let head = if c.tied { "model.embed_tokens" } else { "lm_head" };
        xs.iter().map(|x| self.linear(head, &self.norm("model.norm", x))).collect()
    }
}
