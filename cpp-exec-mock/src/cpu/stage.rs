//! The layers of one stage.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cpp_sched::{BlockId, Config, RequestId, TokenId};

use super::matrix::Matrix;
use super::memory::KvMemory;
use super::rounding::Rounding;
use super::sampling::Sampling;
use crate::model::{LlamaConfig, ModelError, Weights, to_bf16};
use crate::runtime::{Device, RowSample, Work, WorkRow};

/// Which part of a model a stage runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a stage, of how many, and its layers")]
pub struct Part {
    /// The stage, from 0 on.
    pub stage: usize,
    /// Stages that there are.
    pub stages: usize,
    /// Its layers.
    pub layers: Range<usize>,
}

impl Part {
    /// Whether it embeds tokens.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.stage == 0
    }

    /// Whether it samples.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.stage + 1 == self.stages
    }
}

/// How much memory for keys and values there is: the scheduler's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "two numbers of the scheduler's configuration")]
pub struct KvShape {
    /// Positions of a block.
    pub block_size: u32,
    /// Blocks.
    pub num_blocks: u32,
}

impl From<&Config> for KvShape {
    fn from(config: &Config) -> Self {
        Self { block_size: config.block_size, num_blocks: config.num_blocks }
    }
}

/// Why a batch cannot be run. Whoever made the batch is wrong; no key or value was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuError {
    /// The stage before has put out activations of another number of tokens than the batch has.
    Input {
        /// Numbers that there must be.
        expected: usize,
        /// Numbers that there are.
        found: usize,
    },
    /// A row's tokens, drafts or block table do not fit its length, or a block is none of this memory's.
    Row(RequestId),
    /// A token that the model does not have.
    Token(TokenId),
    /// A block to copy that is none of this memory's.
    Copy(BlockId),
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { expected, found } => write!(f, "{found} numbers came from the stage before, the batch needs {expected}"),
            Self::Row(request) => write!(f, "the row of {request} does not fit: tokens, drafts, or blocks beyond this stage's memory"),
            Self::Token(token) => write!(f, "token {token} is beyond the model's vocabulary"),
            Self::Copy(block) => write!(f, "{block} is to be copied and is beyond this stage's memory"),
        }
    }
}

impl std::error::Error for CpuError {}

/// A linear map with or without a bias.
#[derive(Debug)]
struct Linear {
    matrix: Matrix,
    bias: Option<Vec<f32>>,
}

impl Linear {
    fn apply(&self, rows: &[f32], out: &mut Vec<f32>, rounding: Rounding) {
        self.matrix.multiply(rows, out);
        rounding.store(out);
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                add(row, bias);
            }
        }
    }
}

#[derive(Debug)]
struct Layer {
    input_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    output: Linear,
    inner_norm: Vec<f32>,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

#[derive(Debug)]
struct Head {
    norm: Vec<f32>,
    matrix: Arc<Matrix>,
}

/// Room that is used again from batch to batch.
#[derive(Debug, Default)]
struct Scratch {
    normed: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    attended: Vec<f32>,
    projected: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    scores: Vec<f32>,
    /// Cosine and sine of each pair, token after token.
    angles: Vec<(f32, f32)>,
}

/// A stage on the processor; see the [module](super).
#[derive(Debug)]
pub struct CpuStage {
    config: LlamaConfig,
    rounding: Rounding,
    frequencies: Vec<f64>,
    attention_factor: f64,
    embedding: Option<Arc<Matrix>>,
    layers: Vec<Layer>,
    head: Option<Head>,
    memory: KvMemory,
    scratch: Scratch,
}

impl CpuStage {
    /// Loads the layers of a part. `progress` is called with the bytes of weights that were read since the last call. O(its weights).
    ///
    /// # Errors
    /// What is missing or wrong in the weights.
    pub fn load(config: &LlamaConfig, weights: &Weights, part: &Part, kv: KvShape, progress: impl FnMut(u64)) -> Result<Self, ModelError> {
        Self::load_rounding(config, weights, part, kv, Rounding::F32, progress)
    }

    /// As [`load`](Self::load), rounding as is said.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_rounding(
        config: &LlamaConfig,
        weights: &Weights,
        part: &Part,
        kv: KvShape,
        rounding: Rounding,
        mut progress: impl FnMut(u64),
    ) -> Result<Self, ModelError> {
        let (hidden, inner, q, kv_size) = (config.hidden_size, config.intermediate_size, config.q_size(), config.kv_size());
        let mut matrix = |name: &str, outputs: usize, inputs: usize| {
            let tensor = weights.tensor(name, &[outputs, inputs])?;
            let matrix = match tensor.to_bf16()? {
                Some(halves) => Matrix::from_bf16(&halves, inputs),
                None if rounding == Rounding::Bf16AtOpBorders => {
                    Matrix::from_bf16(&tensor.to_f32()?.into_iter().map(to_bf16).collect::<Vec<_>>(), inputs)
                }
                None => Matrix::from_f32(&tensor.to_f32()?, inputs),
            };
            progress((outputs * inputs) as u64 * if tensor.format() == crate::model::Format::F32 { 4 } else { 2 });
            Ok::<_, ModelError>(matrix)
        };
        let vector = |name: &str, size: usize| {
            let mut numbers = weights.tensor(name, &[size])?.to_f32()?;
            rounding.store(&mut numbers);
            Ok::<_, ModelError>(numbers)
        };

        let mut embed = None;
        if part.is_first() || part.is_last() && config.tied {
            embed = Some(Arc::new(matrix("model.embed_tokens.weight", config.vocab_size, hidden)?));
        }
        let mut layers = Vec::with_capacity(part.layers.len());
        for layer in part.layers.clone() {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let mut linear = |projection: &str, outputs: usize, inputs: usize, biased: bool| {
                let name = |kind: &str| name(&format!("self_attn.{projection}_proj.{kind}"));
                let bias = biased.then(|| vector(&name("bias"), outputs)).transpose()?;
                Ok::<_, ModelError>(Linear { matrix: matrix(&name("weight"), outputs, inputs)?, bias })
            };
            layers.push(Layer {
                q: linear("q", q, hidden, config.qkv_bias)?,
                k: linear("k", kv_size, hidden, config.qkv_bias)?,
                v: linear("v", kv_size, hidden, config.qkv_bias)?,
                output: linear("o", hidden, q, config.output_bias)?,
                input_norm: vector(&name("input_layernorm.weight"), hidden)?,
                inner_norm: vector(&name("post_attention_layernorm.weight"), hidden)?,
                gate: matrix(&name("mlp.gate_proj.weight"), inner, hidden)?,
                up: matrix(&name("mlp.up_proj.weight"), inner, hidden)?,
                down: matrix(&name("mlp.down_proj.weight"), hidden, inner)?,
            });
        }
        let head = if part.is_last() {
            weights.check_tied(config)?;
            let matrix = match &embed {
                Some(embedding) if config.tied => Arc::clone(embedding),
                _ => Arc::new(matrix("lm_head.weight", config.vocab_size, hidden)?),
            };
            Some(Head { norm: vector("model.norm.weight", hidden)?, matrix })
        } else {
            None
        };
        let (frequencies, attention_factor) = config.rope.frequencies(config.head_dim);
        Ok(Self {
            frequencies,
            attention_factor,
            embedding: embed.filter(|_| part.is_first()),
            memory: KvMemory::new(layers.len(), kv.num_blocks as usize, kv.block_size as usize, config.num_kv_heads, config.head_dim),
            layers,
            head,
            config: config.clone(),
            rounding,
            scratch: Scratch::default(),
        })
    }

    /// The logits after a token whose activations come out of the last layer. `None` but on a last stage. O(hidden · vocabulary).
    #[must_use]
    pub fn logits(&self, activations: &[f32]) -> Option<Vec<f32>> {
        let head = self.head.as_ref()?;
        let (mut normed, mut logits) = (Vec::new(), Vec::new());
        norm(activations, &head.norm, self.config.norm_eps, &mut normed);
        self.rounding.store(&mut normed);
        head.matrix.multiply(&normed, &mut logits);
        Some(logits)
    }

    /// Runs the layers over the tokens of a batch: `x` becomes what comes out of the last of them.
    fn forward(&mut self, work: &Work, x: &mut [f32]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        self.turn(work, &mut scratch.angles);
        for index in 0..self.layers.len() {
            self.layer(index, work, x, &mut scratch);
        }
        self.scratch = scratch;
    }

    fn layer(&mut self, index: usize, work: &Work, x: &mut [f32], scratch: &mut Scratch) {
        let (config, layer, rounding) = (&self.config, &self.layers[index], self.rounding);
        norm(x, &layer.input_norm, config.norm_eps, &mut scratch.normed);
        rounding.store(&mut scratch.normed);
        for (linear, out) in [(&layer.q, &mut scratch.q), (&layer.k, &mut scratch.k), (&layer.v, &mut scratch.v)] {
            linear.apply(&scratch.normed, out, rounding);
        }
        rotate(&mut scratch.q, &scratch.angles, config.num_heads, config.head_dim);
        rotate(&mut scratch.k, &scratch.angles, config.num_kv_heads, config.head_dim);
        for stored in [&mut scratch.q, &mut scratch.k, &mut scratch.v] {
            rounding.store(stored);
        }
        // All keys are there before anybody attends: a later row of the same request reads those of an earlier one.
        let kv = config.kv_size();
        for row in &work.rows {
            for token in 0..row.len as usize {
                let of_token = (row.first + token) * kv..(row.first + token + 1) * kv;
                let (keys, values) = (&scratch.k[of_token.clone()], &scratch.v[of_token]);
                self.memory.write(index, work.table(row), row.start as usize + token, keys, values);
            }
        }
        scratch.attended.clear();
        scratch.attended.resize(scratch.q.len(), 0.0);
        for row in &work.rows {
            for token in 0..row.len as usize {
                let of_token = (row.first + token) * config.q_size()..(row.first + token + 1) * config.q_size();
                let (q, out) = (&scratch.q[of_token.clone()], &mut scratch.attended[of_token]);
                self.attend(index, work.table(row), row.start as usize + token + 1, q, out, &mut scratch.scores);
            }
        }
        rounding.store(&mut scratch.attended);
        let layer = &self.layers[index];
        layer.output.apply(&scratch.attended, &mut scratch.projected, rounding);
        add(x, &scratch.projected);
        rounding.store(x);

        norm(x, &layer.inner_norm, self.config.norm_eps, &mut scratch.normed);
        rounding.store(&mut scratch.normed);
        layer.gate.multiply(&scratch.normed, &mut scratch.gate);
        layer.up.multiply(&scratch.normed, &mut scratch.up);
        rounding.store(&mut scratch.gate);
        rounding.store(&mut scratch.up);
        for (gate, up) in scratch.gate.iter_mut().zip(&scratch.up) {
            *gate = *gate / (1.0 + libm::expf(-*gate)) * up;
        }
        rounding.store(&mut scratch.gate);
        layer.down.multiply(&scratch.gate, &mut scratch.projected);
        rounding.store(&mut scratch.projected);
        add(x, &scratch.projected);
        rounding.store(x);
    }

    /// One token's heads over the first `context` positions of its request.
    fn attend(&self, layer: usize, table: &[BlockId], context: usize, q: &[f32], out: &mut [f32], scores: &mut Vec<f32>) {
        let (dim, group) = (self.config.head_dim, self.config.num_heads / self.config.num_kv_heads);
        let scale = 1.0 / (dim as f32).sqrt();
        let blocks = &table[..context.div_ceil(self.memory.block_size())];
        for (head, (q, out)) in q.chunks_exact(dim).zip(out.chunks_exact_mut(dim)).enumerate() {
            scores.clear();
            for &block in blocks {
                let (keys, _) = self.memory.block(layer, block, head / group);
                let left = context - scores.len();
                scores.extend(keys.chunks_exact(dim).take(left).map(|key| dot(q, key) * scale));
            }
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for score in scores.iter_mut() {
                let weight = libm::expf(*score - most);
                sum += weight;
                *score = self.rounding.stored(weight);
            }
            let mut weights = scores.iter();
            for &block in blocks {
                let (_, values) = self.memory.block(layer, block, head / group);
                for (value, weight) in values.chunks_exact(dim).zip(weights.by_ref()) {
                    for (out, value) in out.iter_mut().zip(value) {
                        *out += weight * value;
                    }
                }
            }
            out.iter_mut().for_each(|out| *out /= sum);
        }
    }

    /// The angles of each token's position.
    fn turn(&self, work: &Work, angles: &mut Vec<(f32, f32)>) {
        angles.clear();
        for position in work.rows.iter().flat_map(|row| row.start..row.end()) {
            angles.extend(self.frequencies.iter().map(|frequency| {
                let angle = f64::from(position) * frequency;
                ((libm::cos(angle) * self.attention_factor) as f32, (libm::sin(angle) * self.attention_factor) as f32)
            }));
        }
    }

    /// Whether a batch fits: everything that running it would index with.
    fn check(&self, work: &Work, input: &[f32]) -> Result<(), CpuError> {
        let known = |block: &BlockId| (block.0 as usize) < self.memory.num_blocks();
        if let Some(block) = work.copies.iter().flat_map(|(from, to)| [from, to]).find(|block| !known(block)) {
            return Err(CpuError::Copy(*block));
        }
        let mut next = 0;
        for row in &work.rows {
            let blocks = (row.end() as usize).div_ceil(self.memory.block_size());
            let table = work.blocks.get(row.table..).and_then(|table| table.get(..blocks));
            let fits = row.first == next && row.drafts < row.len && table.is_some_and(|table| table.iter().all(known));
            if !fits {
                return Err(CpuError::Row(row.request));
            }
            next += row.len as usize;
        }
        match &self.embedding {
            Some(embedding) => {
                if work.tokens.len() != next {
                    return Err(CpuError::Input { expected: next, found: work.tokens.len() });
                }
                let unknown = work.tokens.iter().find(|token| **token as usize >= embedding.outputs());
                unknown.map_or(Ok(()), |token| Err(CpuError::Token(*token)))
            }
            None => {
                let expected = next * self.config.hidden_size;
                if input.len() == expected { Ok(()) } else { Err(CpuError::Input { expected, found: input.len() }) }
            }
        }
    }

    /// The tokens of one row: drafts are compared with what is chosen in their place.
    fn sample(&self, work: &Work, row: &WorkRow, sampling: &Sampling, x: &[f32]) -> Vec<TokenId> {
        let hidden = self.config.hidden_size;
        let base = (row.len - row.drafts) as usize;
        let mut tokens = Vec::with_capacity(1);
        for place in base - 1..row.len as usize {
            let at = (row.first + place) * hidden;
            let position = row.start + place as u32 + 1;
            let token = self.logits(&x[at..at + hidden]).map_or(0, |logits| sampling.choose(&logits, position));
            tokens.push(token);
            if place + 1 < row.len as usize && work.tokens.get(row.first + place + 1) != Some(&token) {
                break;
            }
        }
        tokens
    }
}

impl Device for CpuStage {
    type Activations = Vec<f32>;
    type Error = CpuError;

    fn run(&mut self, work: &Work, input: &Vec<f32>, output: &mut Vec<f32>, samples: &mut Vec<RowSample>) -> Result<(), CpuError> {
        self.check(work, input)?;
        for &(from, to) in &work.copies {
            self.memory.copy(from, to);
        }
        output.clear();
        match &self.embedding {
            Some(embedding) => work.tokens.iter().for_each(|token| embedding.push_row(*token as usize, output)),
            None => output.extend_from_slice(input),
        }
        self.forward(work, output);
        if self.head.is_some() {
            for (number, row) in (0..).zip(&work.rows) {
                if let Some(sampling) = &row.sampling {
                    samples.push(RowSample { row: number, tokens: self.sample(work, row, sampling, output) });
                }
            }
        }
        Ok(())
    }
}

/// Each row over the root of its mean square, times the weights.
fn norm(rows: &[f32], weights: &[f32], eps: f64, out: &mut Vec<f32>) {
    out.clear();
    for row in rows.chunks_exact(weights.len()) {
        let mean = dot(row, row) / row.len() as f32;
        let scale = 1.0 / (mean + eps as f32).sqrt();
        out.extend(row.iter().zip(weights).map(|(number, weight)| number * scale * weight));
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Sixteen sums over every sixteenth product, then their sum: one order, and work for vector registers.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    let (a_chunks, b_chunks) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Turns the pairs of each head by the angles of their token.
fn rotate(rows: &mut [f32], angles: &[(f32, f32)], heads: usize, dim: usize) {
    for (row, angles) in rows.chunks_exact_mut(heads * dim).zip(angles.chunks_exact(dim / 2)) {
        for head in row.chunks_exact_mut(dim) {
            let (first, second) = head.split_at_mut(dim / 2);
            for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}
