//! A stand-in for model and executor: real paged memory, and outputs that depend on every KV slot that is read.
//!
//! KV slot `p` of a request holds the token at position `p`; after position `p` the next token is `5 + h mod 31991`, `h` the 64-bit FNV-1a over
//! the tokens `0..=p` as read through the row's block table. So a wrong position, table or sharing changes the output.
//!
//! The executor is as nasty as a pipeline of overlapping batches may be, so that a block that is re-used under its fence shows in the tokens:
//! a batch writes its slots when it is scheduled, reads at its completion, and then its slow last stage writes the same slots once more. What
//! a batch knows of requests is what was in the batch: it reads through the tables as they were when it was scheduled, and nothing is cached
//! between batches but the tokens that were sampled.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use cpp_sched::wire::Token;
use cpp_sched::{BatchId, BlockId, TokenId};

use super::scenario::RequestSpec;

/// KV slots that the memory may hold at most: 1 GiB of them. Scenarios are small; a mistyped length shall not take the machine down.
pub const MAX_SLOTS: u64 = 1 << 28;

/// What a slot holds that was never written, or that a lost batch was to write. No token has this number.
const RUBBISH: TokenId = TokenId::MAX;

/// One row of a batch, as the executor gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Whose: place in the scenario.
    pub request: usize,
    /// Positions computed before this row.
    pub start: u32,
    /// Positions that it computes, drafts included.
    pub len: u32,
    /// How many of them are drafts (the last ones).
    pub drafts: u32,
    /// How many of the drafts, from the first on, the drafter gets right.
    pub right_drafts: u32,
    /// Whether it samples.
    pub samples: bool,
    /// The block table over `0..start + len`.
    pub table: Vec<BlockId>,
    /// The token of each position, as the plan tells it; where it is left out, the model's own memory counts.
    pub tokens: Vec<Token>,
}

impl Item {
    const fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Where its drafts begin.
    const fn base(&self) -> u32 {
        self.end() - self.drafts
    }
}

/// What one sampling row yields: accepted drafts, then the token that follows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Whose.
    pub request: usize,
    /// One token, and one more for each draft that was right.
    pub tokens: Vec<TokenId>,
}

/// Why the executor cannot run a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelError {
    /// The memory would hold more than [`MAX_SLOTS`].
    Memory,
    /// A block table does not cover a position that the row is to write.
    Table {
        /// Place of the request in the scenario.
        request: usize,
        /// The position.
        position: u32,
    },
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => write!(f, "the scenario would fill more than {MAX_SLOTS} KV slots, which this executor does not keep"),
            Self::Table { request, position } => write!(f, "no block for position {position} of requests[{request}] in its block table"),
        }
    }
}

impl std::error::Error for ModelError {}

#[derive(Debug)]
struct Row {
    item: Item,
    /// What the drafter proposed.
    drafts: Vec<TokenId>,
    /// Positions whose token an earlier batch in flight has yet to sample.
    unknown: Vec<u32>,
}

/// The executor. Batches are handed in as they are scheduled and come back oldest first.
#[derive(Debug)]
pub struct Model<'a> {
    requests: &'a [RequestSpec],
    block_size: u32,
    /// The slots of each block, as far as they were written.
    memory: HashMap<BlockId, Vec<TokenId>>,
    slots: u64,
    /// What was sampled, by request and position: the input of the next step.
    sampled: Vec<HashMap<u32, TokenId>>,
    /// The first token that each sampling row has yielded.
    yielded: HashMap<(BatchId, u32), TokenId>,
    in_flight: VecDeque<(BatchId, Vec<Row>)>,
}

impl<'a> Model<'a> {
    /// Empty memory.
    #[must_use]
    pub fn new(requests: &'a [RequestSpec], block_size: u32) -> Self {
        let sampled = vec![HashMap::new(); requests.len()];
        Self { requests, block_size, memory: HashMap::new(), slots: 0, sampled, yielded: HashMap::new(), in_flight: VecDeque::new() }
    }

    /// A batch enters the pipeline: writes its slots. O(its tokens), and for a row with drafts O(its context).
    ///
    /// # Errors
    /// The memory is full, or a table is too short.
    pub fn schedule(&mut self, batch: BatchId, items: Vec<Item>) -> Result<(), ModelError> {
        let mut rows = Vec::with_capacity(items.len());
        for item in items {
            let mut row = Row { drafts: Vec::new(), unknown: Vec::new(), item };
            for position in row.item.start..row.item.base() {
                match self.input(&row, position) {
                    Some(token) => self.write(&row.item, position, token)?,
                    None => row.unknown.push(position),
                }
            }
            self.propose(&mut row);
            for position in row.item.base()..row.item.end() {
                let token = self.input(&row, position).unwrap_or(RUBBISH);
                self.write(&row.item, position, token)?;
            }
            rows.push(row);
        }
        self.in_flight.push_back((batch, rows));
        Ok(())
    }

    /// The oldest batch leaves the pipeline: what its rows sampled, in their order. O(sum of the contexts of its sampling rows).
    ///
    /// # Errors
    /// A table is too short.
    pub fn complete(&mut self) -> Result<Option<(BatchId, Vec<Sampled>)>, ModelError> {
        let Some((batch, rows)) = self.in_flight.pop_front() else { return Ok(None) };
        for row in &rows {
            for &position in &row.unknown {
                self.write_input(row, position)?;
            }
        }
        let mut samples = Vec::new();
        for (row, number) in rows.iter().zip(0..).filter(|(row, _)| row.item.samples) {
            let tokens = self.sample(&row.item);
            self.yielded.insert((batch, number), tokens[0]);
            let places = row.item.base()..;
            self.sampled[row.item.request].extend(places.zip(tokens.iter().copied()));
            samples.push(Sampled { request: row.item.request, tokens });
        }
        for row in &rows {
            for position in row.item.start..row.item.end() {
                self.write_input(row, position)?;
            }
        }
        Ok(Some((batch, samples)))
    }

    /// Every batch in flight is lost, and leaves rubbish in the slots that it was to write.
    ///
    /// # Errors
    /// A table is too short.
    pub fn fail(&mut self) -> Result<(), ModelError> {
        for (_, rows) in std::mem::take(&mut self.in_flight) {
            for row in rows {
                for position in row.item.start..row.item.end() {
                    self.write(&row.item, position, RUBBISH)?;
                }
            }
        }
        Ok(())
    }

    /// A transfer of prompt KV ends: `right`, or with rubbish.
    ///
    /// # Errors
    /// The memory is full, or the table is too short.
    pub fn transfer(&mut self, request: usize, start: u32, end: u32, table: Vec<BlockId>, right: bool) -> Result<(), ModelError> {
        let item = Item { request, start, len: end - start, drafts: 0, right_drafts: 0, samples: false, table, tokens: Vec::new() };
        for position in start..end {
            let token = if right { self.requests[request].prompt.token(position.into()) } else { RUBBISH };
            self.write(&item, position, token)?;
        }
        Ok(())
    }

    /// The token that a row has at a position: prompt, sampled before, or draft; none if it is not sampled yet.
    fn input(&self, row: &Row, position: u32) -> Option<TokenId> {
        if let Some(draft) = position.checked_sub(row.item.base()) {
            return row.drafts.get(draft as usize).copied();
        }
        match row.item.tokens.get((position - row.item.start) as usize) {
            Some(Token::Known(token)) => return Some(*token),
            Some(Token::Sampled { plan, row }) => return self.yielded.get(&(*plan, *row)).copied(),
            _ => {}
        }
        let prompt = &self.requests[row.item.request].prompt;
        if u64::from(position) < prompt.len() {
            return Some(prompt.token(position.into()));
        }
        self.sampled[row.item.request].get(&position).copied()
    }

    /// The drafter: the true continuation as far as it is right, then the right token + 1.
    fn propose(&self, row: &mut Row) {
        if row.item.drafts == 0 {
            return;
        }
        let mut hash = self.read(&row.item.table, row.item.base());
        for draft in 0..row.item.drafts {
            let right = next_token(hash);
            row.drafts.push(if draft < row.item.right_drafts { right } else { right + 1 });
            hash = fold(hash, right);
        }
    }

    /// What a row samples: drafts are compared, as they stand in memory, with what the model itself yields.
    fn sample(&self, item: &Item) -> Vec<TokenId> {
        let mut hash = self.read(&item.table, item.base());
        let mut tokens = vec![next_token(hash)];
        for position in item.base()..item.end() {
            let draft = self.slot(&item.table, position);
            if tokens.last() != Some(&draft) {
                break;
            }
            hash = fold(hash, draft);
            tokens.push(next_token(hash));
        }
        tokens
    }

    /// FNV-1a over the first `len` slots of a table.
    fn read(&self, table: &[BlockId], len: u32) -> u64 {
        let mut hash = FNV_OFFSET;
        let mut left = len as usize;
        for block in table {
            let in_block = left.min(self.block_size as usize);
            let written = self.memory.get(block).map_or(&[][..], |slots| &slots[..in_block.min(slots.len())]);
            hash = written.iter().fold(hash, |hash, &token| fold(hash, token));
            hash = (written.len()..in_block).fold(hash, |hash, _| fold(hash, RUBBISH));
            left -= in_block;
            if left == 0 {
                break;
            }
        }
        hash
    }

    fn slot(&self, table: &[BlockId], position: u32) -> TokenId {
        let block = table.get((position / self.block_size) as usize);
        let slots = block.and_then(|block| self.memory.get(block));
        slots.and_then(|slots| slots.get((position % self.block_size) as usize)).copied().unwrap_or(RUBBISH)
    }

    fn write_input(&mut self, row: &Row, position: u32) -> Result<(), ModelError> {
        let token = self.input(row, position).unwrap_or(RUBBISH);
        self.write(&row.item, position, token)
    }

    fn write(&mut self, item: &Item, position: u32, token: TokenId) -> Result<(), ModelError> {
        let block = item.table.get((position / self.block_size) as usize);
        let block = *block.ok_or(ModelError::Table { request: item.request, position })?;
        let slots = self.memory.entry(block).or_default();
        let slot = (position % self.block_size) as usize;
        if slot >= slots.len() {
            self.slots += (slot + 1 - slots.len()) as u64;
            if self.slots > MAX_SLOTS {
                return Err(ModelError::Memory);
            }
            slots.resize(slot + 1, RUBBISH);
        }
        slots[slot] = token;
        Ok(())
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// One token more: four little-endian bytes of 64-bit FNV-1a.
fn fold(hash: u64, token: TokenId) -> u64 {
    token.to_le_bytes().iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME))
}

fn next_token(hash: u64) -> TokenId {
    5 + TokenId::try_from(hash % 31991).unwrap_or_default()
}
