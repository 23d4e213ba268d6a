//! The layers of one stage on a GPU.
//!
//! One stream runs everything in order; the stage runtime's threads overlap it with what comes and goes. Activations go from stage to stage through
//! the host, widened to f32, so that any link of the runtime carries them. Nothing is allocated after [`CudaStage::load`] but lists on the host.

use std::sync::Arc;

use cpp_exec_mock::cpu::{KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, from_bf16, to_bf16};
use cpp_exec_mock::runtime::{Device, RowSample, Work};
use cudarc::driver::CudaSlice;

use super::error::CudaError;
use super::gpu::{Argument, Gpu, Output, Pointer, Queue};
use super::layout::{Layout, LayoutLimits};
use super::numbers::Numbers;
use super::sample::Sampler;
use super::weights::{Halves, Layer, StageWeights, WeightSource};

/// Threads of kernels that take any number of them.
const THREADS: u32 = 128;
/// Threads of the norms and of attention, as their kernels have them.
const NORM_THREADS: u32 = 256;
const ATTENTION_THREADS: u32 = 128;
/// Keys of a split of a decode's: long enough to be worth a block, short enough that one request fills a GPU.
const SPLIT_KEYS: u32 = 512;
/// Packed query rows of `attention_decode`.
const DECODE_ROWS: usize = 16;

/// What a stage has room for, beside its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "three numbers of the scheduler's configuration")]
pub struct Room {
    /// Positions of a request, at most the model's. What splits of decodes have seen takes 64 bytes · `rows` · heads of keys · numbers of a head for each
    /// 512 of them: 32 MiB for 64 rows of 4096 positions over 8 heads of 128.
    pub positions: u32,
    /// Tokens of a batch, drafts included.
    pub tokens: u32,
    /// Rows of a batch.
    pub rows: u32,
}

/// A batch's lists on the device, as large as any batch's can be.
#[derive(Debug)]
struct Lists {
    tokens: CudaSlice<i32>,
    positions: CudaSlice<i32>,
    slots: CudaSlice<i32>,
    rows: CudaSlice<i32>,
    tables: CudaSlice<i32>,
    tiles: CudaSlice<i32>,
    splits: CudaSlice<i32>,
    merges: CudaSlice<i32>,
    copies: CudaSlice<i32>,
}

/// Room that layers use one after the other.
#[derive(Debug)]
struct Scratch {
    residual: Halves,
    normed: Halves,
    qkv: Halves,
    attended: Halves,
    projected: Halves,
    gate_up: Halves,
    inner: Halves,
    seen_out: CudaSlice<f32>,
    seen_weight: CudaSlice<f32>,
}

/// A stage on a GPU.
#[derive(Debug)]
pub struct CudaStage {
    queue: Queue,
    config: LlamaConfig,
    first: bool,
    kv: KvShape,
    room: Room,
    kernels: Numbers,
    weights: StageWeights,
    /// Of each layer the keys of all blocks, then the values.
    memory: Halves,
    angles: CudaSlice<f32>,
    layout: Layout,
    lists: Lists,
    scratch: Scratch,
    sampler: Option<Sampler>,
    host: Vec<u16>,
}

/// Rules of the kernels that a model may break.
fn check_shape(config: &LlamaConfig, room: Room) -> Result<(), CudaError> {
    if room.positions as usize > config.max_position {
        return Err(CudaError::Shape { what: "max_position_embeddings", found: config.max_position, rule: "at least the longest request" });
    }
    for (what, found) in [("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)] {
        if found % 8 != 0 {
            return Err(CudaError::Shape { what, found, rule: "a multiple of 8" });
        }
    }
    Ok(())
}

impl CudaStage {
    /// Loads the layers of a part and reserves all memory. `progress` is called with the bytes of weights copied since the last call.
    ///
    /// # Errors
    /// A model that the kernels cannot run, files that are wrong, memory that does not suffice.
    pub fn load<'a>(
        gpu: &Arc<Gpu>,
        config: &LlamaConfig,
        weights: impl Into<WeightSource<'a>>,
        part: &Part,
        kv: KvShape,
        room: Room,
        progress: impl FnMut(u64),
    ) -> Result<Self, CudaError> {
        check_shape(config, room)?;
        let kernels = Numbers::new(config.head_dim)?;
        let limits = LayoutLimits {
            block_size: kv.block_size,
            num_blocks: kv.num_blocks,
            group: (config.num_heads / config.num_kv_heads) as u32,
            vocabulary: config.vocab_size as u32,
            positions: room.positions,
            tokens: room.tokens,
            rows: room.rows,
            split_keys: SPLIT_KEYS,
        };
        let layout = Layout::new(limits)?;
        let queue = Queue::new(gpu)?;
        let weights = StageWeights::load(&queue, config, weights.into(), part, progress)?;
        let (tokens, rows, kv_heads) = (room.tokens as usize, room.rows as usize, config.num_kv_heads);
        let blocks_of_row = room.positions.div_ceil(kv.block_size.max(1)) as usize;
        let splits_of_row = room.positions.div_ceil(SPLIT_KEYS) as usize;
        let block = kv.block_size as usize * kv_heads * config.head_dim;
        let halves = |columns: usize| queue.zeros::<u16>(tokens * columns);
        let ints = |numbers: usize| queue.zeros::<i32>(numbers);
        let sampled = Sampler::ROWS.min(tokens);
        Ok(Self {
            memory: queue.zeros(weights.layers.len() * 2 * kv.num_blocks as usize * block)?,
            angles: queue.upload(&angles(config, room.positions as usize))?,
            lists: Lists {
                tokens: ints(tokens)?,
                positions: ints(tokens)?,
                slots: ints(tokens)?,
                rows: ints(rows * 4)?,
                tables: ints(rows * blocks_of_row)?,
                tiles: ints((tokens + rows) * limits.group as usize * 2)?,
                splits: ints(rows * splits_of_row * 4)?,
                merges: ints(rows * 3)?,
                copies: ints(kv.num_blocks as usize * 2)?,
            },
            scratch: Scratch {
                residual: halves(config.hidden_size)?,
                normed: halves(config.hidden_size)?,
                qkv: halves(config.q_size() + 2 * config.kv_size())?,
                attended: halves(config.q_size())?,
                projected: halves(config.hidden_size)?,
                gate_up: halves(2 * config.intermediate_size)?,
                inner: halves(config.intermediate_size)?,
                seen_out: queue.zeros(rows * splits_of_row * kv_heads * DECODE_ROWS * config.head_dim)?,
                seen_weight: queue.zeros(rows * splits_of_row * kv_heads * DECODE_ROWS * 2)?,
            },
            sampler: part.is_last().then(|| Sampler::new(&queue, sampled, config.hidden_size, config.vocab_size)).transpose()?,
            queue,
            config: config.clone(),
            first: part.is_first(),
            kv,
            room,
            kernels,
            weights,
            layout,
            host: Vec::new(),
        })
    }

    /// What it has room for.
    #[must_use]
    pub const fn room(&self) -> Room {
        self.room
    }

    /// Copies the batch's lists to the device.
    fn send_lists(&mut self) -> Result<(), CudaError> {
        let (queue, layout, lists) = (&self.queue, &self.layout, &mut self.lists);
        queue.write(&layout.tokens, &mut lists.tokens)?;
        queue.write(&layout.positions, &mut lists.positions)?;
        queue.write(&layout.slots, &mut lists.slots)?;
        queue.write(&layout.tables, &mut lists.tables)?;
        let flat = |numbers: &mut Vec<i32>, list: &mut dyn Iterator<Item = i32>| {
            numbers.clear();
            numbers.extend(list);
        };
        let mut numbers = Vec::new();
        flat(&mut numbers, &mut layout.rows.iter().flat_map(|row| [row.first, row.len, row.start, row.table]));
        queue.write(&numbers, &mut lists.rows)?;
        flat(&mut numbers, &mut layout.tiles.iter().flat_map(|tile| [tile.row, tile.first]));
        queue.write(&numbers, &mut lists.tiles)?;
        flat(&mut numbers, &mut layout.splits.iter().flat_map(|split| [split.row, split.begin, split.end, split.slot]));
        queue.write(&numbers, &mut lists.splits)?;
        flat(&mut numbers, &mut layout.merges.iter().flat_map(|merge| [merge.row, merge.slot, merge.count]));
        queue.write(&numbers, &mut lists.merges)
    }

    /// Copies blocks, as many in one launch as may run in any order.
    fn copy_blocks(&mut self) -> Result<(), CudaError> {
        let block = self.kv.block_size as usize * self.config.kv_size();
        let mut first = 0;
        for &last in &self.layout.copy_launches {
            let room = self.kv.num_blocks as usize;
            for copies in self.layout.copies[first..last].chunks(room) {
                let numbers: Vec<i32> = copies.iter().flatten().copied().collect();
                self.queue.write(&numbers, &mut self.lists.copies)?;
                let arguments =
                    [self.queue.pointer(&self.memory).into(), self.queue.pointer(&self.lists.copies).into(), block.into(), room.into()];
                self.queue.launch(self.kernels.copy, [copies.len(), self.weights.layers.len(), 2], THREADS, &arguments)?;
            }
            first = last;
        }
        Ok(())
    }

    /// residual += x + bias, then the norm of it into `normed`.
    fn norm(&self, x: Pointer, bias: Option<&Halves>, weight: &Halves) -> Result<(), CudaError> {
        let (queue, scratch) = (&self.queue, &self.scratch);
        let arguments = [
            queue.pointer(&scratch.normed).into(),
            queue.pointer(&scratch.residual).into(),
            x.into(),
            bias.map_or(Pointer::NULL, |bias| queue.pointer(bias)).into(),
            queue.pointer(weight).into(),
            self.config.hidden_size.into(),
            Argument::Float(self.config.norm_eps as f32),
        ];
        queue.launch(self.kernels.norm, [self.layout.positions.len(), 1, 1], NORM_THREADS, &arguments)
    }

    /// One layer; what it adds last is left in `projected`.
    fn layer(&self, index: usize, layer: &Layer, x: Pointer) -> Result<(), CudaError> {
        let (queue, config, scratch) = (&self.queue, &self.config, &self.scratch);
        let tokens = self.layout.positions.len();
        let (hidden, inner, q) = (config.hidden_size, config.intermediate_size, config.q_size());
        let columns = q + 2 * config.kv_size();
        let at = |memory: &Halves| queue.pointer(memory);
        let product = |rows: &Halves, weights: &Halves, outputs: usize, inputs: usize, out: &Halves| {
            queue.multiply((at(rows), tokens), (at(weights), outputs, inputs), (at(out), Output::Bf16))
        };
        self.norm(x, None, &layer.input_norm)?;
        product(&scratch.normed, &layer.qkv, columns, hidden, &scratch.qkv)?;
        self.attend(index, layer)?;
        product(&scratch.attended, &layer.output, hidden, q, &scratch.projected)?;
        self.norm(at(&scratch.projected), layer.output_bias.as_ref(), &layer.inner_norm)?;
        product(&scratch.normed, &layer.gate_up, 2 * inner, hidden, &scratch.gate_up)?;
        let arguments = [at(&scratch.inner).into(), at(&scratch.gate_up).into(), inner.into()];
        queue.launch(self.kernels.swiglu, [tokens, 1, 1], THREADS, &arguments)?;
        product(&scratch.inner, &layer.down, hidden, inner, &scratch.projected)
    }

    /// Rotation, keys and values into their blocks, and attention over them.
    fn attend(&self, index: usize, layer: &Layer) -> Result<(), CudaError> {
        let (queue, config, scratch, lists, layout) = (&self.queue, &self.config, &self.scratch, &self.lists, &self.layout);
        let half = 2 * self.kv.num_blocks as usize * self.kv.block_size as usize * config.kv_size();
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
            queue.pointer(&lists.positions).into(),
            queue.pointer(&lists.slots).into(),
            heads[0],
            heads[1],
            config.head_dim.into(),
            shift,
        ];
        queue.launch(self.kernels.rotate, [layout.positions.len(), 1, 1], THREADS, &rotate)?;

        let scale = Argument::Float(std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt());
        let out = queue.pointer(&scratch.attended).into();
        let rows = queue.pointer(&lists.rows).into();
        let read = [qkv.into(), keys.into(), values.into(), queue.pointer(&lists.tables).into(), rows];
        let seen = [queue.pointer(&scratch.seen_out).into(), queue.pointer(&scratch.seen_weight).into()];
        let sizes = [heads[0], heads[1], shift, scale];
        let prefill = [&[out][..], &read, &[queue.pointer(&lists.tiles).into()], &sizes].concat();
        queue.launch(self.kernels.prefill, [layout.tiles.len(), config.num_kv_heads, 1], ATTENTION_THREADS, &prefill)?;
        let decode = [&[out][..], &seen, &read, &[queue.pointer(&lists.splits).into()], &sizes].concat();
        queue.launch(self.kernels.decode, [layout.splits.len(), config.num_kv_heads, 1], ATTENTION_THREADS, &decode)?;
        let merge = [&[out][..], &seen, &[rows, queue.pointer(&lists.merges).into(), heads[0], heads[1], config.head_dim.into()]].concat();
        queue.launch(self.kernels.merge, [layout.merges.len(), config.num_kv_heads, 1], THREADS, &merge)
    }

    /// What the stage begins with: the tokens' embeddings, or what came from the stage before.
    fn begin(&mut self, input: &[f32]) -> Result<(), CudaError> {
        if let (true, Some(embedding)) = (self.first, &self.weights.embedding) {
            let (queue, scratch) = (&self.queue, &self.scratch);
            let arguments = [
                queue.pointer(&scratch.residual).into(),
                queue.pointer(embedding).into(),
                queue.pointer(&self.lists.tokens).into(),
                self.config.hidden_size.into(),
            ];
            return queue.launch(self.kernels.embed, [self.layout.positions.len(), 1, 1], THREADS, &arguments);
        }
        self.host.clear();
        self.host.extend(input.iter().map(|&number| to_bf16(number)));
        self.queue.write(&self.host, &mut self.scratch.residual)
    }

    /// What goes on to the next stage.
    fn put_out(&mut self, output: &mut Vec<f32>) -> Result<(), CudaError> {
        self.host.clear();
        self.host.resize(self.layout.positions.len() * self.config.hidden_size, 0);
        self.queue.read(&self.scratch.residual, 0, &mut self.host)?;
        output.clear();
        output.extend(self.host.iter().map(|&bits| from_bf16(bits)));
        Ok(())
    }

    /// The final norm, logits of the rows that sample, and their tokens.
    fn sample(&mut self, work: &Work, x: Pointer, samples: &mut Vec<RowSample>) -> Result<(), CudaError> {
        let (Some(norm), Some(head)) = (&self.weights.norm, self.weights.head.as_ref().or(self.weights.embedding.as_ref())) else {
            return Ok(());
        };
        self.norm(x, None, norm)?;
        let Some(sampler) = &mut self.sampler else { return Ok(()) };
        sampler.run(&self.queue, &self.kernels, &self.layout.samples, work, &self.scratch.normed, head, samples)
    }
}

impl Device for CudaStage {
    type Activations = Vec<f32>;
    type Error = CudaError;

    fn run(&mut self, work: &Work, input: &Vec<f32>, output: &mut Vec<f32>, samples: &mut Vec<RowSample>) -> Result<(), CudaError> {
        self.layout.check(work, self.first)?;
        let expected = if self.first { 0 } else { work.rows.iter().map(|row| row.len as usize).sum::<usize>() * self.config.hidden_size };
        if !self.first && input.len() != expected {
            return Err(CudaError::Input { expected, found: input.len() });
        }
        self.layout.fill(work, self.first)?;
        self.copy_blocks()?;
        self.send_lists()?;
        self.begin(input)?;
        let mut x = Pointer::NULL;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            self.layer(index, layer, x)?;
            x = self.queue.pointer(&self.scratch.projected);
        }
        let tokens = self.layout.positions.len();
        output.clear();
        if self.sampler.is_some() {
            return self.sample(work, x, samples);
        }
        if x.is_some() {
            let arguments = [self.queue.pointer(&self.scratch.residual).into(), x.into(), self.config.hidden_size.into()];
            self.queue.launch(self.kernels.add, [tokens, 1, 1], NORM_THREADS, &arguments)?;
        }
        self.put_out(output)
    }
}

/// For each position the cosines of all pairs, then their sines.
fn angles(config: &LlamaConfig, positions: usize) -> Vec<f32> {
    let (frequencies, factor) = config.rope.frequencies(config.head_dim);
    let mut angles = Vec::with_capacity(positions * config.head_dim);
    for position in 0..positions {
        let turn = |frequency: &f64| position as f64 * frequency;
        angles.extend(frequencies.iter().map(|frequency| (turn(frequency).cos() * factor) as f32));
        angles.extend(frequencies.iter().map(|frequency| (turn(frequency).sin() * factor) as f32));
    }
    angles
}
