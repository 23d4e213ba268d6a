//! What every KV slot must hold, and what it does hold: texts that know their own past, and a paged memory that remembers who wrote it.
//!
//! The *chain* at a position is a hash over all tokens up to it (and the salt), so two slots hold the same chain only if the whole text before
//! them is the same. A slot also remembers its position. Whatever goes wrong with positions, block tables, sharing or re-use puts a chain
//! where another one is expected. Written without a look at the kernel's own bookkeeping.

use cpp_exec_mock::splitmix;
use cpp_sched::{BatchId, BlockId, Span, TokenId};

use crate::op::{Shape, random_spans};

const VOCABULARY: u64 = 1 << 20;

/// A value goes into a state: good enough to tell texts apart.
#[must_use]
pub fn mix(state: u64, value: u64) -> u64 {
    splitmix::next(&mut (state.rotate_left(23) ^ value))
}

/// The whole text of a request, prompt and all that would ever follow, whatever the schedule.
#[derive(Clone, Debug)]
pub struct Text {
    tokens: Vec<TokenId>,
    chains: Vec<u64>,
    /// What is before the first token: salt and adapter.
    root: u64,
    /// Requests over one prompt go different ways.
    branch: u64,
    /// What of it stands for images and the like, in order.
    given: Vec<Span>,
    /// The same under the names that the kernel has for it.
    spans: Vec<Span>,
}

impl Text {
    /// The text of a request of this shape.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        let root = mix(mix(77, shape.salt.into()), shape.extras.adapter.map_or(0, |adapter| 1 + u64::from(adapter)));
        let mut text = Self { tokens: Vec::new(), chains: Vec::new(), root, branch: 0, given: shape.spans(), spans: shape.spans() };
        for i in 0..shape.len {
            let seed = if i < shape.shared { u64::from(shape.family) } else { 1000 + shape.author };
            text.push(mix(seed, i.into()) % VOCABULARY);
        }
        text
    }

    fn push(&mut self, token: u64) {
        let mut before = self.chains.last().copied().unwrap_or(self.root);
        let position = self.tokens.len() as u32;
        if let Some(span) = self.given.iter().find(|span| (span.start..span.end()).contains(&position)) {
            before = mix(mix(mix(before, span.digest[0].into()), span.len.into()), (position - span.start).into());
        }
        self.tokens.push(u32::try_from(token).expect("a token is below the vocabulary's size"));
        self.chains.push(mix(before, token));
    }

    fn reach(&mut self, position: u32) {
        while self.tokens.len() <= position as usize {
            let next = self.chains.last().map_or(0, |chain| mix(*chain, 1 + self.branch) % VOCABULARY);
            self.push(next);
        }
    }

    /// Another text with the same beginning: what follows the first `len` tokens is its own.
    #[must_use]
    pub fn fork(&mut self, len: u32, branch: u64) -> Self {
        self.reach(len - 1);
        let (tokens, chains) = (self.tokens[..len as usize].to_vec(), self.chains[..len as usize].to_vec());
        Self { tokens, chains, root: self.root, branch, given: self.given.clone(), spans: self.spans.clone() }
    }

    /// What stands for images and the like, in order, as the kernel names it.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The same as it was handed in.
    #[must_use]
    pub fn given_spans(&self) -> &[Span] {
        &self.given
    }

    /// The kernel's names for the spans.
    pub fn name_spans(&mut self, named: &[Span]) {
        self.spans = named.to_vec();
    }

    /// After the first `known` tokens comes something new, with its spans; those count from its first token.
    pub fn extend(&mut self, known: u32, len: u32, author: u64, spans: &[Span]) -> Vec<TokenId> {
        self.reach(known - 1);
        self.tokens.truncate(known as usize);
        self.chains.truncate(known as usize);
        self.given.extend(spans.iter().map(|span| {
            let mut span = *span;
            span.start += known;
            span
        }));
        for i in 0..len {
            self.push(mix(5000 + author, i.into()) % VOCABULARY);
        }
        self.tokens[known as usize..].to_vec()
    }

    /// The spans of new input.
    #[must_use]
    pub fn new_spans(len: u32, author: u64) -> Vec<Span> {
        random_spans(len, |at| mix(900 + author, at.into()))
    }

    /// The token at a position.
    pub fn token(&mut self, position: u32) -> TokenId {
        self.reach(position);
        self.tokens[position as usize]
    }

    /// The hash of everything up to a position.
    pub fn chain(&mut self, position: u32) -> u64 {
        self.reach(position);
        self.chains[position as usize]
    }

    /// The first `len` tokens.
    pub fn prefix(&mut self, len: u32) -> Vec<TokenId> {
        if len > 0 {
            self.reach(len - 1);
        }
        self.tokens[..len as usize].to_vec()
    }

    /// A digest of the prefix of each whole block in the first `len` tokens, for requests that hand in lengths.
    pub fn digests(&mut self, len: u32, block_size: u32) -> Vec<[u8; 16]> {
        let digest = |chain: u64| u128::from(chain).wrapping_mul(0x1_0000_0001_0000_0001).to_le_bytes();
        (1..=len / block_size).map(|block| digest(self.chain(block * block_size - 1))).collect()
    }
}

/// One KV slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Position and chain; none = nothing, or rubbish.
    pub content: Option<(u32, u64)>,
    /// Which write it was, over the whole memory; 0 = none.
    pub written: u64,
    /// The batch that wrote it; none = a transfer, or nobody.
    pub batch: Option<BatchId>,
}

/// The KV memory of the machine.
#[derive(Clone, Debug)]
pub struct Memory {
    block_size: u32,
    slots: Vec<Slot>,
    writes: u64,
}

impl Memory {
    /// Nothing written yet.
    #[must_use]
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        let empty = Slot { content: None, written: 0, batch: None };
        Self { block_size, slots: vec![empty; num_blocks as usize * block_size as usize], writes: 0 }
    }

    fn index(&self, table: &[BlockId], position: u32) -> usize {
        let block = table[(position / self.block_size) as usize].0;
        block as usize * self.block_size as usize + (position % self.block_size) as usize
    }

    /// Writes of all kinds so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Writes one slot, through a block table. `chain` none: rubbish.
    pub fn write(&mut self, table: &[BlockId], position: u32, chain: Option<u64>, batch: Option<BatchId>) {
        let index = self.index(table, position);
        self.writes += 1;
        self.slots[index] = Slot { content: chain.map(|chain| (position, chain)), written: self.writes, batch };
    }

    /// What a lost batch wrote to a slot is rubbish. Batches run in order: what a later one has written there stands.
    pub fn lose(&mut self, table: &[BlockId], position: u32, lost: BatchId) {
        self.lose_in(table[(position / self.block_size) as usize], position % self.block_size, lost);
    }

    /// The same, by block and offset.
    pub fn lose_in(&mut self, block: BlockId, offset: u32, lost: BatchId) {
        let index = block.0 as usize * self.block_size as usize + offset as usize;
        if self.slots[index].batch.is_none_or(|by| by <= lost) {
            self.writes += 1;
            self.slots[index] = Slot { content: None, written: self.writes, batch: None };
        }
    }

    /// The slot of a position, through a block table.
    #[must_use]
    pub fn slot(&self, table: &[BlockId], position: u32) -> Slot {
        self.slots[self.index(table, position)]
    }

    /// Copies a whole block. What was in flight in it stays as it was written.
    pub fn copy(&mut self, from: BlockId, to: BlockId, batch: BatchId) {
        let size = self.block_size as usize;
        for offset in 0..size {
            let content = self.slots[from.0 as usize * size + offset].content;
            self.writes += 1;
            self.slots[to.0 as usize * size + offset] = Slot { content, written: self.writes, batch: Some(batch) };
        }
    }

    /// Nothing of worth is in the block.
    pub fn spoil(&mut self, block: BlockId) {
        let size = self.block_size as usize;
        self.writes += 1;
        let rubbish = Slot { content: None, written: self.writes, batch: None };
        self.slots[block.0 as usize * size..(block.0 as usize + 1) * size].fill(rubbish);
    }

    /// The last position in a block and the chain there, if its slots hold consecutive positions from a block's beginning.
    #[must_use]
    pub fn whole(&self, block: BlockId) -> Option<(u32, u64)> {
        let size = self.block_size as usize;
        let slots = &self.slots[block.0 as usize * size..(block.0 as usize + 1) * size];
        let (first, _) = slots[0].content?;
        let consecutive = (first..).zip(slots).all(|(position, slot)| slot.content.is_some_and(|(p, _)| p == position));
        slots[size - 1].content.filter(|_| consecutive && first.is_multiple_of(self.block_size))
    }

    /// A slot by block and place in it.
    #[must_use]
    pub fn slot_of(&self, block: BlockId, place: u32) -> Slot {
        self.slots[block.0 as usize * self.block_size as usize + place as usize]
    }

    /// Writes a slot by block and place in it.
    pub fn write_to(&mut self, block: BlockId, place: u32, content: Option<(u32, u64)>, batch: Option<BatchId>) {
        self.writes += 1;
        self.slots[block.0 as usize * self.block_size as usize + place as usize] = Slot { content, written: self.writes, batch };
    }

    /// The first of the positions that does not hold the text, if there is one.
    pub fn first_wrong(&self, table: &[BlockId], positions: std::ops::Range<u32>, text: &mut Text) -> Option<u32> {
        positions.into_iter().find(|&p| self.slot(table, p).content != Some((p, text.chain(p))))
    }
}
