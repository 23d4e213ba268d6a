//! A batch as the kernels read it: ragged lists of numbers, computed and checked on the host before anything is launched.
//!
//! How a row's keys are split depends on that row alone, so that its attention does not change with what it is batched with.

use std::fmt;

use cpp_exec_mock::runtime::{Work, WorkRow};
use cpp_sched::{BlockId, RequestId, TokenId};

/// Packed query rows of a tile of `attention_decode`: heads of a group times tokens.
const DECODE_ROWS: u32 = 16;
/// Packed query rows of a tile of `attention_prefill`.
const PREFILL_ROWS: u32 = 64;

/// A row of a batch; `kernels/common.cuh` has its twin.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the kernels' own form")]
pub struct Row {
    /// Place of its first token in the batch.
    pub first: i32,
    /// Its tokens.
    pub len: i32,
    /// Position of its first token.
    pub start: i32,
    /// Where its block table begins.
    pub table: i32,
}

/// What a block of `attention_prefill` does: 64 packed query rows of a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the kernels' own form")]
pub struct Tile {
    /// The row of the batch.
    pub row: i32,
    /// Its first packed query row.
    pub first: i32,
}

/// What a block of `attention_decode` does: some keys of a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the kernels' own form")]
pub struct Split {
    /// The row of the batch.
    pub row: i32,
    /// Its first key.
    pub begin: i32,
    /// One past its last key.
    pub end: i32,
    /// Where what it has seen is kept for `attention_merge`; -1: it is the row's only split.
    pub slot: i32,
}

/// What a block of `attention_merge` does: the splits of a row that has several.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "the kernels' own form")]
pub struct Merge {
    /// The row of the batch.
    pub row: i32,
    /// Its first slot.
    pub slot: i32,
    /// Its slots.
    pub count: i32,
}

/// What a batch must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "numbers of a model and of a device's memory")]
pub struct LayoutLimits {
    /// Positions of a block of KV: a power of two.
    pub block_size: u32,
    /// Blocks of KV.
    pub num_blocks: u32,
    /// Heads of queries for each head of keys.
    pub group: u32,
    /// Tokens that the model has.
    pub vocabulary: u32,
    /// Positions that there are angles for.
    pub positions: u32,
    /// Tokens of a batch.
    pub tokens: u32,
    /// Rows of a batch.
    pub rows: u32,
    /// Keys of a split; a multiple of 64, so that four warps have equal work.
    pub split_keys: u32,
}

/// Why a batch, or a device's limits, cannot be. Whoever made it is wrong; nothing was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayoutError {
    /// A limit that the kernels cannot have.
    Limit {
        /// Which.
        limit: &'static str,
        /// What it is.
        found: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// More tokens than the device has room for.
    Tokens {
        /// Those of the batch.
        found: usize,
        /// The room.
        room: u32,
    },
    /// More rows than the device has room for.
    Rows {
        /// Those of the batch.
        found: usize,
        /// The room.
        room: u32,
    },
    /// A row's tokens, drafts, positions or block table do not fit, or a block is none of this memory's.
    Row(RequestId),
    /// A token that the model does not have.
    Token(TokenId),
    /// A block to copy that is none of this memory's.
    Copy(BlockId),
    /// More blocks to copy than there are.
    Copies {
        /// Those of the batch.
        found: usize,
        /// Blocks that there are.
        room: u32,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit { limit, found, rule } => write!(f, "{limit} is {found}: it must be {rule}"),
            Self::Tokens { found, room } => write!(f, "a batch of {found} tokens came to a device with room for {room}"),
            Self::Rows { found, room } => write!(f, "a batch of {found} rows came to a device with room for {room}"),
            Self::Row(request) => write!(f, "the row of {request} does not fit: tokens, drafts, positions, or blocks beyond this memory"),
            Self::Token(token) => write!(f, "token {token} is beyond the model's vocabulary"),
            Self::Copies { found, room } => write!(f, "{found} blocks are to be copied, and there are {room}"),
            Self::Copy(block) => write!(f, "{block} is to be copied and is beyond this memory"),
        }
    }
}

impl std::error::Error for LayoutError {}

/// A batch in the kernels' form. Used again from batch to batch: it keeps its room.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layout {
    limits: LayoutLimits,
    /// The input of each position.
    pub tokens: Vec<i32>,
    /// The position of each token.
    pub positions: Vec<i32>,
    /// Where each token's key and value go: block · block size + position in the block.
    pub slots: Vec<i32>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Their block tables.
    pub tables: Vec<i32>,
    /// The work of `attention_prefill`.
    pub tiles: Vec<Tile>,
    /// The work of `attention_decode`.
    pub splits: Vec<Split>,
    /// The work of `attention_merge`.
    pub merges: Vec<Merge>,
    /// Slots that splits use.
    pub num_slots: usize,
    /// Tokens whose logits are wanted, row after row.
    pub samples: Vec<i32>,
    /// Pairs of blocks to copy (from, to), and after how many of them each launch ends: within one no block is written that another copy
    /// reads or writes.
    pub copies: Vec<[i32; 2]>,
    /// See `copies`.
    pub copy_launches: Vec<usize>,
}

impl Layout {
    /// An empty one.
    ///
    /// # Errors
    /// A limit that the kernels cannot have.
    pub fn new(limits: LayoutLimits) -> Result<Self, LayoutError> {
        let slots = u64::from(limits.block_size) * u64::from(limits.num_blocks);
        let rules = [
            ("block_size", u64::from(limits.block_size), limits.block_size.is_power_of_two(), "a power of two"),
            ("block_size · num_blocks", slots, slots <= i32::MAX as u64, "below 2^31"),
            ("group", limits.group.into(), limits.group > 0, "at least 1"),
            ("tokens", limits.tokens.into(), u64::from(limits.tokens) * u64::from(limits.group) <= i32::MAX as u64, "below 2^31 / group"),
            ("positions", limits.positions.into(), limits.positions <= i32::MAX as u32, "below 2^31"),
            ("vocabulary", limits.vocabulary.into(), limits.vocabulary <= i32::MAX as u32, "below 2^31"),
            ("split_keys", limits.split_keys.into(), limits.split_keys > 0 && limits.split_keys.is_multiple_of(64), "a multiple of 64"),
        ];
        if let Some((limit, found, _, rule)) = rules.into_iter().find(|(_, _, holds, _)| !holds) {
            return Err(LayoutError::Limit { limit, found, rule });
        }
        Ok(Self {
            limits,
            tokens: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            rows: Vec::new(),
            tables: Vec::new(),
            tiles: Vec::new(),
            splits: Vec::new(),
            merges: Vec::new(),
            num_slots: 0,
            samples: Vec::new(),
            copies: Vec::new(),
            copy_launches: Vec::new(),
        })
    }

    /// Becomes a batch. `embeds`: the tokens are looked at, as on a first stage. O(tokens + blocks + splits + copies²).
    ///
    /// # Errors
    /// The batch does not fit; then it is what it was before.
    pub fn fill(&mut self, work: &Work, embeds: bool) -> Result<(), LayoutError> {
        self.check(work, embeds)?;
        self.clear();
        for row in &work.rows {
            self.push_row(work, row);
        }
        if embeds {
            self.tokens.extend(work.tokens.iter().map(|&token| token as i32));
        }
        self.push_copies(&work.copies);
        Ok(())
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.tiles.clear();
        self.splits.clear();
        self.merges.clear();
        self.copies.clear();
        let lists = [&mut self.tokens, &mut self.positions, &mut self.slots, &mut self.tables, &mut self.samples];
        lists.into_iter().for_each(Vec::clear);
        self.copy_launches.clear();
        self.num_slots = 0;
    }

    /// Whether a batch fits, without becoming it. O(tokens + blocks).
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, work: &Work, embeds: bool) -> Result<(), LayoutError> {
        let limits = &self.limits;
        if work.rows.len() > limits.rows as usize {
            return Err(LayoutError::Rows { found: work.rows.len(), room: limits.rows });
        }
        if work.copies.len() > limits.num_blocks as usize {
            return Err(LayoutError::Copies { found: work.copies.len(), room: limits.num_blocks });
        }
        let known = |block: &BlockId| block.0 < limits.num_blocks;
        if let Some(block) = work.copies.iter().flat_map(|(from, to)| [from, to]).find(|block| !known(block)) {
            return Err(LayoutError::Copy(*block));
        }
        let mut next = 0;
        for row in &work.rows {
            let end = u64::from(row.start) + u64::from(row.len);
            let blocks = end.div_ceil(limits.block_size.into()) as usize;
            let table = work.blocks.get(row.table..).and_then(|table| table.get(..blocks));
            let fits = row.first == next
                && row.drafts < row.len
                && end <= limits.positions.into()
                && table.is_some_and(|table| table.iter().all(known));
            if !fits {
                return Err(LayoutError::Row(row.request));
            }
            next += row.len as usize;
        }
        if next > limits.tokens as usize || embeds && work.tokens.len() != next {
            return Err(LayoutError::Tokens { found: next.max(work.tokens.len()), room: limits.tokens });
        }
        let unknown = work.tokens.iter().find(|token| embeds && **token >= limits.vocabulary);
        unknown.map_or(Ok(()), |token| Err(LayoutError::Token(*token)))
    }

    fn push_row(&mut self, work: &Work, row: &WorkRow) {
        let (number, shift) = (self.rows.len() as i32, self.limits.block_size.trailing_zeros());
        let table = work.table(row);
        self.rows.push(Row { first: row.first as i32, len: row.len as i32, start: row.start as i32, table: self.tables.len() as i32 });
        self.tables.extend(table[..row.end().div_ceil(self.limits.block_size) as usize].iter().map(|block| block.0 as i32));
        for position in row.start..row.end() {
            let offset = position & (self.limits.block_size - 1);
            self.positions.push(position as i32);
            self.slots.push((table[(position >> shift) as usize].0 << shift | offset) as i32);
        }
        if row.sampling.is_some() {
            let last = row.first + row.len as usize;
            self.samples.extend((last - 1 - row.drafts as usize..last).map(|token| token as i32));
        }
        let packed = row.len * self.limits.group;
        if packed > DECODE_ROWS {
            self.tiles.extend((0..packed).step_by(PREFILL_ROWS as usize).map(|first| Tile { row: number, first: first as i32 }));
            return;
        }
        let count = row.end().div_ceil(self.limits.split_keys) as usize;
        let slot = self.num_slots as i32;
        if count > 1 {
            self.merges.push(Merge { row: number, slot, count: count as i32 });
            self.num_slots += count;
        }
        for split in 0..count as u32 {
            let (begin, end) = (split * self.limits.split_keys, row.end().min((split + 1).saturating_mul(self.limits.split_keys)));
            let slot = if count > 1 { slot + split as i32 } else { -1 };
            self.splits.push(Split { row: number, begin: begin as i32, end: end as i32, slot });
        }
    }

    /// In their order; a launch ends before a copy that would meet another one of it.
    fn push_copies(&mut self, copies: &[(BlockId, BlockId)]) {
        let mut launch = 0;
        for &(from, to) in copies {
            let (from, to) = (from.0 as i32, to.0 as i32);
            let meets = |[source, target]: &[i32; 2]| *target == from || *source == to || *target == to;
            if self.copies[launch..].iter().any(meets) {
                self.copy_launches.push(self.copies.len());
                launch = self.copies.len();
            }
            self.copies.push([from, to]);
        }
        if !copies.is_empty() {
            self.copy_launches.push(self.copies.len());
        }
    }
}

#[cfg(test)]
mod tests;
