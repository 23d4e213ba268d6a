//! Batches in flight, as the driver remembers them.

use cpp_sched::{BatchId, BlockId, EncoderItem, RowKind};

use super::Tracked;

/// A row in flight, as the driver remembers it.
#[derive(Clone, Debug)]
pub(super) struct Flying {
    /// Index of the request.
    pub(super) who: usize,
    pub(super) epoch: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) drafts: u32,
    /// How many of the drafts are right.
    pub(super) accepted: u32,
    /// Behind this position its request goes another way meanwhile.
    pub(super) until: u32,
    /// It was lost, or builds on what was lost: it brings nothing.
    pub(super) void: bool,
    pub(super) samples: bool,
    pub(super) kind: RowKind,
    pub(super) table: Vec<BlockId>,
    /// The tables of further KV groups, from entry 0 on.
    pub(super) groups: Vec<Vec<BlockId>>,
}

impl Flying {
    /// One past the last token that is no draft.
    pub(super) fn base(&self) -> u32 {
        self.end - self.drafts
    }
}

/// The block tables of a row: of the first KV group, and of the further ones.
pub(super) type Tables = (Vec<BlockId>, Vec<Vec<BlockId>>);

/// A batch in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: BatchId,
    pub(super) rows: Vec<Flying>,
    /// Whom it told the workers to forget.
    pub(super) preempted: Vec<cpp_sched::RequestId>,
    /// Copies that it made for forks.
    pub(super) copies: Vec<CopyOf>,
    /// What it encodes.
    pub(super) inputs: Vec<EncoderItem>,
    pub(super) cost_ns: u64,
    /// It was lost, and others before it are in flight still.
    pub(super) lost: bool,
}

/// A block that a request got by a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyOf {
    pub(super) who: usize,
    pub(super) epoch: u32,
    /// Its place in the table.
    pub(super) index: u32,
    pub(super) to: BlockId,
}

impl CopyOf {
    /// Whether the request has still got the block, in whatever epoch.
    pub(super) fn is_of(&self, who: usize, request: &Tracked) -> bool {
        self.who == who && request.is_alive() && request.table.get(self.index as usize) == Some(&self.to)
    }
}
