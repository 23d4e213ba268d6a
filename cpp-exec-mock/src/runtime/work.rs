//! A batch as a device runs it: a ragged list of tokens.

use cpp_sched::{BatchId, BlockId, RequestId, TokenId};
use serde::{Deserialize, Serialize};

use crate::cpu::Sampling;

/// A batch, taken apart: prefill chunks and decodes are rows of one list of tokens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Work {
    /// The batch.
    pub batch: BatchId,
    /// Blocks to copy (from, to) before the rows run.
    pub copies: Vec<(BlockId, BlockId)>,
    /// The input of each position, row after row.
    pub tokens: Vec<TokenId>,
    /// The rows.
    pub rows: Vec<WorkRow>,
    /// The rows' block tables, row after row.
    pub blocks: Vec<BlockId>,
}

/// One row: positions `start..start + len` of one request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkRow {
    /// Whose.
    pub request: RequestId,
    /// Place of its first token in [`Work::tokens`].
    pub first: usize,
    /// Position of its first token.
    pub start: u32,
    /// Its tokens, drafts included.
    pub len: u32,
    /// How many of them are drafts (the last ones).
    pub drafts: u32,
    /// Where its block table begins in [`Work::blocks`].
    pub table: usize,
    /// How its tokens are chosen: its last position yields one, and each draft that is right one more. `None`: it yields none.
    pub sampling: Option<Sampling>,
}

impl WorkRow {
    /// One past its last position.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.start + self.len
    }
}

impl Work {
    /// A batch without rows.
    #[must_use]
    pub const fn new(batch: BatchId) -> Self {
        Self { batch, copies: Vec::new(), tokens: Vec::new(), rows: Vec::new(), blocks: Vec::new() }
    }

    /// Adds a row that computes `tokens` from position `start` on, the last `drafts` of them drafts, with its block table over `0..end`. It
    /// yields tokens if it has a `sampling`.
    pub fn push(&mut self, request: RequestId, start: u32, tokens: &[TokenId], drafts: u32, table: &[BlockId], sampling: Option<Sampling>) {
        let (first, len) = (self.tokens.len(), tokens.len() as u32);
        self.rows.push(WorkRow { request, first, start, len, drafts, table: self.blocks.len(), sampling });
        self.tokens.extend_from_slice(tokens);
        self.blocks.extend_from_slice(table);
    }

    /// Empties it for another batch and keeps its room.
    pub fn clear(&mut self, batch: BatchId) {
        self.batch = batch;
        self.copies.clear();
        self.tokens.clear();
        self.rows.clear();
        self.blocks.clear();
    }

    /// The block table of a row over `0..end`.
    #[must_use]
    pub fn table(&self, row: &WorkRow) -> &[BlockId] {
        &self.blocks[row.table..]
    }
}

/// What one row sampled: its number in the batch, the accepted drafts and the token that follows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "a row and its tokens")]
pub struct RowSample {
    /// The row, from 0 on.
    pub row: u32,
    /// 1 to 1 + drafts tokens.
    pub tokens: Vec<TokenId>,
}

/// What has become of a batch that was to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "it has run, it runs, or it cannot yet")]
pub enum Started {
    /// It has run.
    Done,
    /// It runs; [`Device::finished`] will tell when it is through.
    UnderWay,
    /// There is no room for it yet: to be started again when something is finished, or a little later. Nothing has changed.
    Full,
}

/// A batch that is through, on a device that has several under way.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "what a batch gives")]
pub struct Finished<A> {
    /// The batch.
    pub batch: BatchId,
    /// What its rows sampled; of the last stage.
    pub samples: Vec<RowSample>,
    /// What goes to the next stage, unless [`Device::start`] has given that already.
    pub output: Option<A>,
}

/// What runs the layers of one stage.
///
/// A first stage embeds [`Work::tokens`]; every other one takes what the stage before it has put out. A last stage samples.
///
/// A device that computes while it is called has [`run`](Self::run) alone. One that works by itself (a GPU) has batches under way, in the order in
/// which they were [started](Self::start), and says which are [finished](Self::finished); if it passes activations on to the next stage by itself
/// as well, what goes over the link is a header: an empty output, given at the start.
pub trait Device: Send {
    /// Activations of a batch, on their way from one stage to the next.
    type Activations: Default + Send + 'static;
    /// Why a batch cannot be run.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Runs a batch: reads `input` unless it is the first stage, fills `output` unless it is the last, which fills `samples` (empty until then),
    /// one for each row that samples, in their order. Keys and values are written to the blocks of the rows, and nowhere else.
    ///
    /// # Errors
    /// The batch does not fit the device; nothing that other batches rely on has changed.
    fn run(
        &mut self,
        work: &Work,
        input: &Self::Activations,
        output: &mut Self::Activations,
        samples: &mut Vec<RowSample>,
    ) -> Result<(), Self::Error>;

    /// Begins a batch: may return before it has run. What is put into `output` goes to the next stage at once; `samples` counts if it is
    /// [`Started::Done`].
    ///
    /// # Errors
    /// As [`run`](Self::run). Batches that were started before are lost as well: [`reset`](Self::reset) follows.
    fn start(
        &mut self,
        work: &Work,
        input: &Self::Activations,
        output: &mut Option<Self::Activations>,
        samples: &mut Vec<RowSample>,
    ) -> Result<Started, Self::Error> {
        let mut activations = Self::Activations::default();
        self.run(work, input, &mut activations, samples)?;
        *output = Some(activations);
        Ok(Started::Done)
    }

    /// The oldest batch under way, if it is through. Never waits; called often while there are some.
    ///
    /// # Errors
    /// It has failed, and all behind it with it: [`reset`](Self::reset) follows.
    fn finished(&mut self) -> Result<Option<Finished<Self::Activations>>, Self::Error> {
        Ok(None)
    }

    /// Forgets every batch under way, and returns when none of them reads or writes anything any more. What is started from now on belongs to this
    /// generation: how often the pipeline has been aborted. Called before the first batch as well.
    ///
    /// # Errors
    /// It is of no more use: another one must take its place.
    fn reset(&mut self, generation: u64) -> Result<(), Self::Error> {
        let _ = generation;
        Ok(())
    }

    /// Whether it has something to do by itself though no batch is under way: then [`finished`](Self::finished) is called all the same.
    fn is_busy(&self) -> bool {
        false
    }
}
