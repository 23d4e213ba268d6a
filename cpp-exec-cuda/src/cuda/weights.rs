//! The weights of a stage in device memory, as bf16; what is multiplied with the same rows lies together.

use cpp_exec_mock::cpu::Part;
use cpp_exec_mock::model::{LlamaConfig, ModelError, Weights, to_bf16};
use cudarc::driver::CudaSlice;

use super::error::CudaError;
use super::gpu::Queue;

/// Where a stage's weights come from.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_enums, reason = "a model or none")]
pub enum WeightSource<'a> {
    /// A model's files.
    Files(&'a Weights),
    /// Random numbers from this seed, small enough for activations to stay finite: for measurements of a model's shape.
    Random(u64),
}

impl<'a> From<&'a Weights> for WeightSource<'a> {
    fn from(weights: &'a Weights) -> Self {
        Self::Files(weights)
    }
}

impl WeightSource<'_> {
    /// Tensors as bf16 on the device, one behind the other; other formats are rounded. Random ones are made there, of a million numbers each.
    fn upload(self, queue: &Queue, tensors: &[(&str, Vec<usize>)]) -> Result<Halves, CudaError> {
        match self {
            Self::Files(weights) => {
                let mut numbers = Vec::new();
                for (name, shape) in tensors {
                    numbers.extend(read(weights, name, shape)?);
                }
                queue.upload(&numbers)
            }
            Self::Random(seed) => {
                let stretch = |(name, shape): &(&str, Vec<usize>)| (random(seed, name, shape), shape.iter().product());
                queue.repeat(&tensors.iter().map(stretch).collect::<Vec<_>>())
            }
        }
    }
}

fn read(weights: &Weights, name: &str, shape: &[usize]) -> Result<Vec<u16>, ModelError> {
    match weights.tensor(name, shape)?.to_bf16()? {
        Some(halves) => Ok(halves),
        None => Ok(weights.tensor(name, shape)?.to_f32()?.into_iter().map(to_bf16).collect()),
    }
}

/// Numbers between -a and a, with a such that products keep the size of what is multiplied; a million of them at most.
fn random(seed: u64, name: &str, shape: &[usize]) -> Vec<u16> {
    let count: usize = shape.iter().product();
    let most = if shape.len() > 1 { (3.0 / shape[shape.len() - 1] as f32).sqrt() } else { 1.0 };
    let mut state = name.bytes().fold(seed | 1, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)) | 1;
    let mut next = || {
        // xorshift64 (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        to_bf16(((state >> 40) as f32 / 8_388_608.0 - 1.0) * most)
    };
    (0..count.min(1 << 20)).map(|_| next()).collect()
}

/// bf16 numbers on a device.
pub(super) type Halves = CudaSlice<u16>;

/// One layer. Matrices have a row for each output.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) input_norm: Halves,
    /// Queries, keys and values.
    pub(super) qkv: Halves,
    pub(super) qkv_bias: Option<Halves>,
    pub(super) output: Halves,
    pub(super) output_bias: Option<Halves>,
    pub(super) inner_norm: Halves,
    /// The gate, then up.
    pub(super) gate_up: Halves,
    pub(super) down: Halves,
}

/// What a stage needs.
#[derive(Debug)]
pub(super) struct StageWeights {
    /// On a first stage; on a last one, if it is the head as well.
    pub(super) embedding: Option<Halves>,
    pub(super) layers: Vec<Layer>,
    /// On a last stage.
    pub(super) norm: Option<Halves>,
    /// On a last stage whose head is not the embedding.
    pub(super) head: Option<Halves>,
}

struct Loader<'a, P: FnMut(u64)> {
    queue: &'a Queue,
    weights: WeightSource<'a>,
    progress: P,
}

impl<P: FnMut(u64)> Loader<'_, P> {
    /// Tensors of `outputs` rows each, one behind the other.
    fn stack(&mut self, names: &[(&str, usize)], inputs: Option<usize>) -> Result<Halves, CudaError> {
        let shape = |outputs: usize| [outputs].into_iter().chain(inputs).collect();
        let tensors: Vec<(&str, Vec<usize>)> = names.iter().map(|&(name, outputs)| (name, shape(outputs))).collect();
        let memory = self.weights.upload(self.queue, &tensors)?;
        (self.progress)(2 * memory.len() as u64);
        Ok(memory)
    }

    fn matrix(&mut self, name: &str, outputs: usize, inputs: usize) -> Result<Halves, CudaError> {
        self.stack(&[(name, outputs)], Some(inputs))
    }

    fn vector(&mut self, name: &str, size: usize) -> Result<Halves, CudaError> {
        self.stack(&[(name, size)], None)
    }
}

impl StageWeights {
    /// Reads the weights of a part. `progress` is called with the bytes that were copied since the last call. O(its weights).
    pub(super) fn load(
        queue: &Queue,
        config: &LlamaConfig,
        weights: WeightSource<'_>,
        part: &Part,
        progress: impl FnMut(u64),
    ) -> Result<Self, CudaError> {
        let (hidden, inner, q, kv) = (config.hidden_size, config.intermediate_size, config.q_size(), config.kv_size());
        let mut loader = Loader { queue, weights, progress };
        let mut embedding = None;
        if part.is_first() || part.is_last() && config.tied {
            embedding = Some(loader.matrix("model.embed_tokens.weight", config.vocab_size, hidden)?);
        }
        let mut layers = Vec::with_capacity(part.layers.len());
        for layer in part.layers.clone() {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let qkv = |kind: &str| ["q", "k", "v"].map(|one| name(&format!("self_attn.{one}_proj.{kind}")));
            let [q_name, k_name, v_name] = qkv("weight");
            let [q_bias, k_bias, v_bias] = qkv("bias");
            let biases = [(&q_bias[..], q), (&k_bias, kv), (&v_bias, kv)];
            layers.push(Layer {
                input_norm: loader.vector(&name("input_layernorm.weight"), hidden)?,
                qkv: loader.stack(&[(&q_name, q), (&k_name, kv), (&v_name, kv)], Some(hidden))?,
                qkv_bias: config.qkv_bias.then(|| loader.stack(&biases, None)).transpose()?,
                output: loader.matrix(&name("self_attn.o_proj.weight"), hidden, q)?,
                output_bias: config.output_bias.then(|| loader.vector(&name("self_attn.o_proj.bias"), hidden)).transpose()?,
                inner_norm: loader.vector(&name("post_attention_layernorm.weight"), hidden)?,
                gate_up: loader.stack(&[(&name("mlp.gate_proj.weight"), inner), (&name("mlp.up_proj.weight"), inner)], Some(hidden))?,
                down: loader.matrix(&name("mlp.down_proj.weight"), hidden, inner)?,
            });
        }
        let norm = part.is_last().then(|| loader.vector("model.norm.weight", hidden)).transpose()?;
        let own_head = part.is_last() && !config.tied;
        let head = own_head.then(|| loader.matrix("lm_head.weight", config.vocab_size, hidden)).transpose()?;
        Ok(Self { embedding, layers, norm, head })
    }
}
