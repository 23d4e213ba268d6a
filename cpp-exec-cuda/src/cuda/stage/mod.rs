//! A stage on a GPU: several batches under way, ordered by events.
//!
//! ```text
//!  S_io    lists(k+1) ▸ meta_ready
//!  S_recv  x(k+1) from the stage before ▸ recv_done
//!  S_comp  waits meta_ready, recv_done; layers(k) ▸ comp_done
//!  S_send  waits comp_done; x(k-1) to the next stage, or tokens to the host ▸ out_done
//! ```
//!
//! Batches go through a ring of slots, one more than are in the pipeline. A slot is used again when its `out_done` is complete; all before it is then
//! complete as well. The host puts batches on the streams as far as it can, and asks events: in the loop nothing waits and nothing is reserved. An
//! event is recorded behind an edge's operation only when that is on its stream ([`EdgeEnd::poll`](super::edge::EdgeEnd::poll)); until then
//! nothing that waits for it is put on any stream.

mod flow;
mod warm;

use std::sync::Arc;
use std::time::Duration;

use cpp_exec_mock::cpu::{KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, from_bf16, to_bf16};
use cpp_exec_mock::runtime::{Device, Finished, RowSample, Started, Work};

use super::blas::bind_to_drop;
use super::edge::{ReceiveEnd, SendEnd};
use super::error::{CudaError, Doing};
use super::gpu::{Gpu, Queue};
use super::graphs::{Graphs, shapes};
use super::in_process::InProcessEdge;
use super::layers::{Layers, Scratch, angles};
use super::layout::{Layout, LayoutLimits};
use super::lists::{Nobody, Places, Shape};
use super::numbers::Numbers;
use super::planted::is_due;
use super::sample::Sampler;
use super::slot::{Slot, SlotRoom};
use super::stream::{Event, Priority, Stream};
use super::weights::{StageWeights, WeightSource};

/// Keys of a split of a decode's: long enough to be worth a block, short enough that one request fills a GPU.
const SPLIT_KEYS: u32 = 512;
/// How long what is on the streams may take to run dry when everything is to be forgotten.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a stage has room for, beside its KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "four numbers of the scheduler's configuration")]
pub struct Room {
    /// Positions of a request, at most the model's. What splits of decodes have seen takes 64 bytes · `rows` · heads of keys · numbers of a head for each
    /// 512 of them: 32 MiB for 64 rows of 4096 positions over 8 heads of 128.
    pub positions: u32,
    /// Tokens of a batch, drafts included.
    pub tokens: u32,
    /// Rows of a batch.
    pub rows: u32,
    /// Batches in the pipeline at once (`Config::depth`). Each takes room for its lists and activations, and so does one more.
    pub batches: u32,
}

/// What carries a stage's activations; without an end they go through the host, with the frames of the runtime.
#[derive(Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "two ends")]
pub struct Ends {
    /// From the stage before.
    pub up: Option<Box<dyn ReceiveEnd>>,
    /// To the next one.
    pub down: Option<Box<dyn SendEnd>>,
}

impl Ends {
    /// Those of a stage among others on one device, with an edge behind each but the last; none of no edges.
    #[must_use]
    pub fn of(edges: &[InProcessEdge], stage: usize) -> Self {
        let up = stage.checked_sub(1).and_then(|before| edges.get(before)).map(InProcessEdge::receiver);
        Self { up, down: edges.get(stage).map(InProcessEdge::sender) }
    }
}

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Apart,
    Connected,
    Warming,
    Ready,
}

/// How many batches have come so far: each is at most the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Their lists are on their way.
    started: u64,
    /// What they begin with is on the stream that receives.
    received: u64,
    /// Their layers are on the stream of kernels.
    computed: u64,
    /// What they put out is on the stream that sends.
    sent: u64,
    /// They were told to be finished.
    reported: u64,
    /// Their slots are free.
    freed: u64,
}

/// A stage on a GPU.
#[derive(Debug)]
pub struct CudaStage {
    // Ends go first: they may refer to the streams.
    ends: Ends,
    layers: Layers,
    layout: Layout,
    first: bool,
    last: bool,
    room: Room,
    nobody: Nobody,
    io: Stream,
    recv: Stream,
    send: Stream,
    slots: Vec<Slot>,
    graphs: Graphs,
    drained: Event,
    counts: Counts,
    /// An operation of an end is not on its stream yet.
    receiving: bool,
    sending: bool,
    generation: u64,
    links: [Link; 2],
}

impl CudaStage {
    /// Whether the kernels can run a model. O(1).
    ///
    /// # Errors
    /// A size that they do not take, and what it must be.
    pub fn check_model(config: &LlamaConfig) -> Result<(), CudaError> {
        for (what, found) in [("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)] {
            if found % 8 != 0 {
                return Err(CudaError::Shape { what, found, rule: "a multiple of 8" });
            }
        }
        Numbers::new(config.head_dim).map(drop)
    }

    /// Loads the layers of a part and reserves all memory. `progress` is called with the bytes of weights copied since the last call. Activations go
    /// through the host.
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
        Self::load_with(gpu, config, weights, part, kv, room, Ends::default(), progress)
    }

    /// As [`load`](Self::load), with ends that carry activations.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[allow(clippy::too_many_arguments, reason = "what a stage is made of, each once")]
    pub fn load_with<'a>(
        gpu: &Arc<Gpu>,
        config: &LlamaConfig,
        weights: impl Into<WeightSource<'a>>,
        part: &Part,
        kv: KvShape,
        room: Room,
        ends: Ends,
        progress: impl FnMut(u64),
    ) -> Result<Self, CudaError> {
        Self::check_model(config)?;
        if room.positions as usize > config.max_position {
            let rule = "at least the longest request";
            return Err(CudaError::Shape { what: "max_position_embeddings", found: config.max_position, rule });
        }
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
        let (tokens, rows) = (room.tokens as usize, room.rows as usize);
        let splits_of_row = room.positions.div_ceil(SPLIT_KEYS) as usize;
        let block = kv.block_size as usize * config.kv_size();
        let (first, last) = (part.is_first(), part.is_last());
        let sampler = last.then(|| Sampler::new(&queue, Sampler::ROWS.min(tokens), config.hidden_size, config.vocab_size)).transpose()?;
        let context = gpu.context();
        let slot = SlotRoom {
            lists: room_of_lists(&limits, splits_of_row),
            values: tokens * config.hidden_size,
            on_host: ends.up.is_none() && !first || ends.down.is_none() && !last,
            sampled: last.then_some((tokens, config.vocab_size)),
        };
        let mut stage = Self {
            ends,
            slots: (0..=room.batches).map(|_| Slot::new(&queue, slot)).collect::<Result<_, _>>()?,
            layers: Layers {
                memory: queue.zeros(weights.layers.len() * 2 * (kv.num_blocks as usize + 1) * block)?,
                angles: queue.upload(&angles(config, room.positions as usize))?,
                scratch: Scratch::new(&queue, config, tokens, rows * splits_of_row)?,
                sampler,
                queue,
                config: config.clone(),
                first,
                kv,
                kernels,
                weights,
            },
            layout,
            first,
            last,
            room,
            nobody: Nobody { token: tokens, block: kv.num_blocks, slot: kv.num_blocks * kv.block_size },
            io: Stream::new(context, Priority::Usual)?,
            recv: Stream::new(context, Priority::Highest)?,
            send: Stream::new(context, Priority::Highest)?,
            graphs: Graphs::default(),
            drained: Event::new(context)?,
            counts: Counts::default(),
            receiving: false,
            sending: false,
            generation: 0,
            links: [Link::Apart; 2],
        };
        stage.warm_up()?;
        Ok(stage)
    }

    /// What it has room for.
    #[must_use]
    pub const fn room(&self) -> Room {
        self.room
    }

    /// After a [`run`](Device::run): the logits of the positions that it sampled, 256 at most, one after the other. `None` but on a last stage. Waits for
    /// the device: for comparisons, not for serving.
    ///
    /// # Errors
    /// The driver's.
    pub fn logits(&self, positions: usize) -> Result<Option<Vec<f32>>, CudaError> {
        self.layers.sampler.as_ref().map(|sampler| sampler.read_logits(&self.layers.queue, positions)).transpose()
    }

    /// Captures graphs for decodes of 1, 2, 4 .. 64 rows, and runs them from now on. How many. At start only.
    ///
    /// # Errors
    /// The driver's.
    pub fn capture_graphs(&mut self) -> Result<usize, CudaError> {
        let splits = self.room.positions.div_ceil(SPLIT_KEYS) as usize;
        let blocks = self.room.positions.div_ceil(self.layers.kv.block_size) as usize;
        let shapes = shapes(self.room.rows.min(self.room.tokens) as usize, splits, blocks, self.last);
        self.graphs = Graphs::capture(&self.layers, &self.slots, shapes)?;
        self.layers.queue.wait()?;
        Ok(self.graphs.len())
    }
}

/// The place of a batch in the ring.
const fn place(batch: u64, slots: usize) -> usize {
    (batch % slots as u64) as usize
}

/// Numbers that the lists of the largest batch take, or of the largest graph.
fn room_of_lists(limits: &LayoutLimits, splits_of_row: usize) -> usize {
    let (tokens, rows, group) = (limits.tokens as usize, limits.rows as usize, limits.group as usize);
    let blocks_of_row = limits.positions.div_ceil(limits.block_size) as usize;
    Places::of(&Shape {
        tokens,
        rows: rows + 1,
        tiles: tokens * group / 64 + rows,
        splits: rows * splits_of_row,
        merges: rows,
        samples: tokens,
        copies: limits.num_blocks as usize,
        tables: rows * blocks_of_row + 1,
    })
    .end
}

impl Device for CudaStage {
    type Activations = Vec<f32>;
    type Error = CudaError;

    /// Starts a batch and waits for it: for a stage without neighbours on the device.
    fn run(&mut self, work: &Work, input: &Vec<f32>, output: &mut Vec<f32>, samples: &mut Vec<RowSample>) -> Result<(), CudaError> {
        let mut given = None;
        while self.start(work, input, &mut given, samples)? == Started::Full {
            std::thread::yield_now();
        }
        loop {
            if let Some(finished) = self.finished()? {
                samples.extend(finished.samples);
                output.clear();
                output.extend(finished.output.into_iter().flatten());
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    fn start(
        &mut self,
        work: &Work,
        input: &Vec<f32>,
        output: &mut Option<Vec<f32>>,
        _: &mut Vec<RowSample>,
    ) -> Result<Started, CudaError> {
        self.layout.check(work, self.first)?;
        let hidden = self.layers.config.hidden_size;
        let tokens: usize = work.rows.iter().map(|row| row.len as usize).sum();
        let expected = if self.first || self.ends.up.is_some() { 0 } else { tokens * hidden };
        if input.len() != expected && !self.first {
            return Err(CudaError::Input { expected, found: input.len() });
        }
        if !self.connect()? {
            return Ok(Started::Full);
        }
        self.advance()?;
        if !is_due(self.counts.started - self.counts.freed < self.slots.len() as u64) {
            return Ok(Started::Full);
        }
        self.layout.fill(work, self.first)?;
        let number = place(self.counts.started, self.slots.len());
        let slot = &mut self.slots[number];
        let exact = Shape::of(&self.layout);
        let graph = if work.rows.iter().all(|row| row.len == 1) { self.graphs.shape_for(&exact) } else { None };
        slot.graph = graph.map(|(graph, _)| graph);
        let numbers = slot.fill(work, &self.layout, graph.map_or(exact, |(_, shape)| shape), self.nobody, hidden);
        if let (Some(host), false) = (&mut slot.host, self.first) {
            host.as_mut_slice().iter_mut().zip(input).for_each(|(to, number)| *to = to_bf16(*number));
        }
        if let Some(chosen) = &mut slot.chosen {
            chosen.begin(work, self.layers.config.vocab_size);
        }
        self.io.copy_in(&slot.meta, numbers, self.layers.queue.pointer(&slot.lists).address())?;
        slot.meta_ready.record(&self.io).doing("copying a batch to the device")?;
        self.counts.started += 1;
        self.advance()?;
        if self.ends.down.is_some() {
            // The next stage receives what is put out: all that it must be told is that it comes.
            *output = Some(Vec::new());
        }
        Ok(Started::UnderWay)
    }

    fn finished(&mut self) -> Result<Option<Finished<Vec<f32>>>, CudaError> {
        if !self.connect()? {
            return Ok(None);
        }
        self.advance()?;
        if !self.is_through()? {
            self.look_at_ends()?;
            return Ok(None);
        }
        let slot = &self.slots[place(self.counts.reported, self.slots.len())];
        let samples = slot.chosen.as_ref().map_or_else(Vec::new, |chosen| chosen.samples(&slot.work, self.layers.config.vocab_size));
        let on_host = if self.last || self.ends.down.is_some() { None } else { slot.host.as_ref() };
        let output = on_host.map(|host| host.as_slice()[..slot.values].iter().map(|&bits| from_bf16(bits)).collect());
        let batch = slot.work.batch;
        self.counts.reported += 1;
        self.free()?;
        Ok(Some(Finished { batch, samples, output }))
    }

    fn reset(&mut self, generation: u64) -> Result<(), CudaError> {
        self.abort()?;
        self.generation = generation;
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.ends.up.is_some() && self.links[0] != Link::Ready || self.ends.down.is_some() && self.links[1] != Link::Ready
    }
}

impl Drop for CudaStage {
    fn drop(&mut self) {
        // Memory is given back on whatever thread this is.
        bind_to_drop(self.layers.queue.gpu().context());
        if self.free().is_ok() && self.counts.freed == self.counts.started && !self.is_busy() {
            // The end of a run: in order, as far as the other stages are still there.
            let _ = self.ends.up.as_mut().map(|up| up.close());
            let _ = self.ends.down.as_mut().map(|down| down.close());
        }
        // Memory is given back behind this: nothing may read or write it then. Nobody is left to be told.
        let _ = self.abort();
    }
}
