//! The layers of one stage: what is put on the stream of kernels for a batch.

use cpp_exec_mock::cpu::KvShape;
use cpp_exec_mock::model::LlamaConfig;
use cudarc::driver::CudaSlice;

use super::error::CudaError;
use super::gpu::{Argument, Output, Pointer, Queue};
use super::lists::{Places, Shape};
use super::numbers::Numbers;
use super::sample::{Chosen, Sampler};
use super::weights::{Halves, Layer, StageWeights};

/// Threads of kernels that take any number of them.
const THREADS: u32 = 128;
/// Threads of the norms and of attention, as their kernels have them.
const NORM_THREADS: u32 = 256;
const ATTENTION_THREADS: u32 = 128;
/// Threads of a block that has so much work for single threads: as many as are of use, so that each waits for memory as seldom as can be.
const fn threads_for(work: usize) -> u32 {
    let whole = work.next_multiple_of(32);
    if whole < 32 {
        32
    } else if whole > 512 {
        512
    } else {
        whole as u32
    }
}

/// Packed query rows of `attention_decode`.
const DECODE_ROWS: usize = 16;

/// Room that layers use one after the other, and batches as well: they are computed in order.
#[derive(Debug)]
pub(super) struct Scratch {
    normed: Halves,
    qkv: Halves,
    attended: Halves,
    projected: Halves,
    gate_up: Halves,
    inner: Halves,
    seen_out: CudaSlice<f32>,
    seen_weight: CudaSlice<f32>,
    /// Zeros, for ever.
    nothing: CudaSlice<i32>,
}

impl Scratch {
    /// Room for so many tokens, and for what is nobody's; `slots` of splits.
    pub(super) fn new(queue: &Queue, config: &LlamaConfig, tokens: usize, slots: usize) -> Result<Self, CudaError> {
        let halves = |columns: usize| queue.zeros::<u16>((tokens + 1) * columns);
        let seen = slots * config.num_kv_heads * DECODE_ROWS;
        Ok(Self {
            normed: halves(config.hidden_size)?,
            qkv: halves(config.q_size() + 2 * config.kv_size())?,
            attended: halves(config.q_size())?,
            projected: halves(config.hidden_size)?,
            gate_up: halves(2 * config.intermediate_size)?,
            inner: halves(config.intermediate_size)?,
            seen_out: queue.zeros(seen * config.head_dim)?,
            seen_weight: queue.zeros(seen * 2)?,
            nothing: queue.zeros(4)?,
        })
    }
}

/// What is the same for all batches.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) queue: Queue,
    pub(super) config: LlamaConfig,
    pub(super) first: bool,
    pub(super) kv: KvShape,
    pub(super) kernels: Numbers,
    pub(super) weights: StageWeights,
    /// Of each layer the keys of all blocks and of one that is nobody's, then the values.
    pub(super) memory: Halves,
    pub(super) angles: CudaSlice<f32>,
    pub(super) scratch: Scratch,
    pub(super) sampler: Option<Sampler>,
}

/// A batch on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    pub(super) shape: Shape,
    pub(super) places: Places,
    /// Its lists.
    pub(super) lists: Pointer,
    /// Its activations: what the stage before has put out, and what this one does, in the same place.
    pub(super) x: Pointer,
    /// The most likely token of each position that is sampled.
    pub(super) best: Pointer,
}

impl Batch {
    fn list(&self, place: usize) -> Pointer {
        self.lists.plus(4 * place)
    }
}

impl Layers {
    /// Copies blocks, as many in one launch as may run in any order: `launches` are the ends of each.
    pub(super) fn copy_blocks(&self, batch: &Batch, launches: &[usize]) -> Result<(), CudaError> {
        let block = self.kv.block_size as usize * self.config.kv_size();
        let (room, mut first) = (self.kv.num_blocks as usize + 1, 0);
        for &last in launches {
            let copies = batch.list(batch.places.copies + 2 * first);
            let arguments = [self.queue.pointer(&self.memory).into(), copies.into(), block.into(), room.into()];
            self.queue.launch(self.kernels.copy, [last - first, self.weights.layers.len(), 2], THREADS, &arguments)?;
            first = last;
        }
        Ok(())
    }

    /// Everything from what comes in to what goes out; on a last stage to the most likely tokens, of as many positions as the sampler takes at
    /// once. What a graph has.
    pub(super) fn run(&self, batch: &Batch) -> Result<(), CudaError> {
        if let (true, Some(embedding)) = (self.first, &self.weights.embedding) {
            let arguments = [
                batch.x.into(),
                self.queue.pointer(embedding).into(),
                batch.list(batch.places.tokens).into(),
                self.config.hidden_size.into(),
            ];
            self.queue.launch(self.kernels.embed, [batch.shape.tokens, 1, 1], THREADS, &arguments)?;
        }
        let mut x = Pointer::NULL;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.layer(batch, index, layer, x)?;
            x = self.queue.pointer(&self.scratch.projected);
        }
        if let Some(norm) = &self.weights.norm {
            self.norm(batch, x, None, norm)?;
            return self.best(batch, 0);
        }
        if x.is_some() {
            let arguments = [batch.x.into(), x.into(), self.config.hidden_size.into()];
            self.queue.launch(self.kernels.add, [batch.shape.tokens, 1, 1], NORM_THREADS, &arguments)?;
        }
        Ok(())
    }

    /// Multiplies every weight of a layer, and the head, with rows of so many tokens that mean nothing: cuBLAS loads what a size needs when it comes to
    /// it first. Layers are alike, so one stands for all.
    pub(super) fn products(&self, tokens: usize) -> Result<(), CudaError> {
        let (config, scratch) = (&self.config, &self.scratch);
        let (hidden, inner, q) = (config.hidden_size, config.intermediate_size, config.q_size());
        if let Some(layer) = self.weights.layers.first() {
            self.product(tokens, &scratch.normed, (&layer.qkv, q + 2 * config.kv_size(), hidden), &scratch.qkv)?;
            self.product(tokens, &scratch.attended, (&layer.output, hidden, q), &scratch.projected)?;
            self.product(tokens, &scratch.normed, (&layer.gate_up, 2 * inner, hidden), &scratch.gate_up)?;
            self.product(tokens, &scratch.inner, (&layer.down, hidden, inner), &scratch.projected)?;
        }
        match (&self.sampler, self.head()) {
            (Some(sampler), Some(head)) if tokens <= sampler.rows => sampler.multiply(&self.queue, tokens, head),
            _ => Ok(()),
        }
    }

    fn product(
        &self,
        tokens: usize,
        rows: &Halves,
        (weights, outputs, inputs): (&Halves, usize, usize),
        out: &Halves,
    ) -> Result<(), CudaError> {
        let at = |memory: &Halves| self.queue.pointer(memory);
        self.queue.multiply((at(rows), tokens), (at(weights), outputs, inputs), (at(out), Output::Bf16))
    }

    /// What makes logits.
    fn head(&self) -> Option<&Halves> {
        self.weights.head.as_ref().or(self.weights.embedding.as_ref())
    }

    /// Positions whose logits are computed at once.
    fn at_once(&self) -> usize {
        self.sampler.as_ref().map_or(usize::MAX, |sampler| sampler.rows)
    }

    /// Logits and most likely tokens from position `first` on.
    fn best(&self, batch: &Batch, first: usize) -> Result<(), CudaError> {
        let (Some(sampler), Some(head)) = (&self.sampler, self.head()) else {
            return Ok(());
        };
        let count = (batch.shape.samples - first).min(sampler.rows);
        if count == 0 {
            return Ok(());
        }
        let places = (batch.list(batch.places.samples + first), count);
        sampler.best(&self.queue, &self.kernels, places, &self.scratch.normed, head, batch.best.plus(4 * first))
    }

    /// Runs the kernel that puts splits together, on nothing: where no request is long enough for several it would not run before it is needed.
    pub(super) fn merge_nothing(&self, batch: &Batch) -> Result<(), CudaError> {
        let (queue, scratch) = (&self.queue, &self.scratch);
        let arguments = [
            queue.pointer(&scratch.attended).into(),
            queue.pointer(&scratch.seen_out).into(),
            queue.pointer(&scratch.seen_weight).into(),
            batch.list(batch.places.rows).into(),
            // Zeros: the first row, and no splits.
            queue.pointer(&scratch.nothing).into(),
            self.config.num_heads.into(),
            self.config.num_kv_heads.into(),
            self.config.head_dim.into(),
        ];
        queue.launch(self.kernels.merge, [1, 1, 1], 32, &arguments)
    }

    /// What else is wanted of the positions, behind [`run`](Self::run); `wanted` are those of the batch, which its shape may exceed.
    pub(super) fn sample(&self, batch: &Batch, chosen: &mut Chosen, wanted: usize) -> Result<(), CudaError> {
        let mut first = 0;
        while first < wanted {
            if first > 0 {
                self.best(batch, first)?;
            }
            let count = (wanted - first).min(self.at_once());
            if let Some(sampler) = &self.sampler {
                sampler.others(&self.queue, &self.kernels, chosen, first, count)?;
            }
            first += count;
        }
        Ok(())
    }

    /// x += more + bias, then the norm of it into `normed`.
    fn norm(&self, batch: &Batch, more: Pointer, bias: Option<&Halves>, weight: &Halves) -> Result<(), CudaError> {
        let queue = &self.queue;
        let arguments = [
            queue.pointer(&self.scratch.normed).into(),
            batch.x.into(),
            more.into(),
            bias.map_or(Pointer::NULL, |bias| queue.pointer(bias)).into(),
            queue.pointer(weight).into(),
            self.config.hidden_size.into(),
            Argument::Float(self.config.norm_eps as f32),
        ];
        queue.launch(self.kernels.norm, [batch.shape.tokens, 1, 1], NORM_THREADS, &arguments)
    }

    /// One layer; what it adds last is left in `projected`.
    fn layer(&self, batch: &Batch, index: usize, layer: &Layer, x: Pointer) -> Result<(), CudaError> {
        let (queue, config, scratch) = (&self.queue, &self.config, &self.scratch);
        let tokens = batch.shape.tokens;
        let (hidden, inner, q) = (config.hidden_size, config.intermediate_size, config.q_size());
        let columns = q + 2 * config.kv_size();
        let at = |memory: &Halves| queue.pointer(memory);
        self.norm(batch, x, None, &layer.input_norm)?;
        self.product(tokens, &scratch.normed, (&layer.qkv, columns, hidden), &scratch.qkv)?;
        self.attend(batch, index, layer)?;
        self.product(tokens, &scratch.attended, (&layer.output, hidden, q), &scratch.projected)?;
        self.norm(batch, at(&scratch.projected), layer.output_bias.as_ref(), &layer.inner_norm)?;
        self.product(tokens, &scratch.normed, (&layer.gate_up, 2 * inner, hidden), &scratch.gate_up)?;
        let arguments = [at(&scratch.inner).into(), at(&scratch.gate_up).into(), inner.into()];
        queue.launch(self.kernels.swiglu, [tokens, 1, 1], threads_for(inner / 8), &arguments)?;
        self.product(tokens, &scratch.inner, (&layer.down, hidden, inner), &scratch.projected)
    }

    /// Rotation, keys and values into their blocks, and attention over them.
    fn attend(&self, batch: &Batch, index: usize, layer: &Layer) -> Result<(), CudaError> {
        let (queue, config, scratch, shape, places) = (&self.queue, &self.config, &self.scratch, &batch.shape, &batch.places);
        let half = 2 * (self.kv.num_blocks as usize + 1) * self.kv.block_size as usize * config.kv_size();
        let keys = queue.pointer(&self.memory).plus(index * 2 * half);
        let values = keys.plus(half);
        let heads = [config.num_heads.into(), config.num_kv_heads.into()];
        let shift = Argument::Int(self.kv.block_size.trailing_zeros() as i32);
        let qkv = queue.pointer(&scratch.qkv);
        let rotate = [
            qkv.into(),
            keys.into(),
            values.into(),
            queue.pointer(&self.angles).into(),
            layer.qkv_bias.as_ref().map_or(Pointer::NULL, |bias| queue.pointer(bias)).into(),
            batch.list(places.positions).into(),
            batch.list(places.slots).into(),
            heads[0],
            heads[1],
            config.head_dim.into(),
            shift,
        ];
        queue.launch(self.kernels.rotate, [shape.tokens, 1, 1], THREADS, &rotate)?;

        let scale = Argument::Float(std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt());
        let out = queue.pointer(&scratch.attended).into();
        let rows = batch.list(places.rows).into();
        let read = [qkv.into(), keys.into(), values.into(), batch.list(places.tables).into(), rows];
        let seen = [queue.pointer(&scratch.seen_out).into(), queue.pointer(&scratch.seen_weight).into()];
        let sizes = [heads[0], heads[1], shift, scale];
        let prefill = [&[out][..], &read, &[batch.list(places.tiles).into()], &sizes].concat();
        queue.launch(self.kernels.prefill, [shape.tiles, config.num_kv_heads, 1], ATTENTION_THREADS, &prefill)?;
        let decode = [&[out][..], &seen, &read, &[batch.list(places.splits).into()], &sizes].concat();
        queue.launch(self.kernels.decode, [shape.splits, config.num_kv_heads, 1], ATTENTION_THREADS, &decode)?;
        let merge = [&[out][..], &seen, &[rows, batch.list(places.merges).into(), heads[0], heads[1], config.head_dim.into()]].concat();
        let threads = threads_for(config.num_heads / config.num_kv_heads * config.head_dim);
        queue.launch(self.kernels.merge, [shape.merges, config.num_kv_heads, 1], threads, &merge)
    }
}

/// For each position the cosines of all pairs, then their sines.
pub(super) fn angles(config: &LlamaConfig, positions: usize) -> Vec<f32> {
    let (frequencies, factor) = config.rope.frequencies(config.head_dim);
    let mut angles = Vec::with_capacity(positions * config.head_dim);
    for position in 0..positions {
        let turn = |frequency: &f64| position as f64 * frequency;
        angles.extend(frequencies.iter().map(|frequency| (turn(frequency).cos() * factor) as f32));
        angles.extend(frequencies.iter().map(|frequency| (turn(frequency).sin() * factor) as f32));
    }
    angles
}
