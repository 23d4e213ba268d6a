//! One number that says whether two runs decided the same.

use std::fmt;
use std::hash::Hasher;

use cpp_sched::{Batch, BlockId, Row};
use siphasher::sip128::{Hasher128, SipHasher24};

/// SipHash-2-4 with 128 bits and a fixed key over every batch in order: its number, who was preempted for it, and of each row the request, its
/// positions, drafts, whether it samples, and its blocks.
///
/// A row's block table is that of the request's row before and some blocks more, until a preemption; so each row adds the new blocks only, and
/// equal digests mean equal tables all the same. All numbers are hashed in little-endian order: digests are equal on any machine.
#[derive(Clone)]
pub struct DecisionDigest {
    hasher: SipHasher24,
    bytes: Vec<u8>,
}

impl DecisionDigest {
    /// The digest of no batch.
    #[must_use]
    pub fn new() -> Self {
        Self { hasher: SipHasher24::new_with_key(b"decisions of cpp"), bytes: Vec::new() }
    }

    /// Begins a batch. Its rows follow, each by [`row`](Self::row), and then [`end`](Self::end).
    pub(crate) fn begin(&mut self, batch: &Batch) {
        self.bytes.clear();
        self.number(batch.id().0);
        self.number(batch.preempted().len() as u64);
        for id in batch.preempted() {
            self.number(id.0);
        }
        self.number(batch.rows().len() as u64);
    }

    /// A row, and the blocks of its request from `first` on; those before were in rows before.
    pub(crate) fn row(&mut self, row: &Row, first: u32, blocks: &[BlockId]) {
        self.number(row.request.0);
        self.number(u64::from(row.num_computed_tokens) << 32 | u64::from(row.num_scheduled_tokens));
        self.number(u64::from(row.num_draft_tokens) << 32 | u64::from(row.samples));
        self.number(u64::from(first) << 32 | blocks.len() as u64);
        for block in blocks {
            self.bytes.extend_from_slice(&block.0.to_le_bytes());
        }
    }

    /// Ends a batch.
    pub(crate) fn end(&mut self) {
        self.hasher.write(&self.bytes);
    }

    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }
}

impl Default for DecisionDigest {
    fn default() -> Self {
        Self::new()
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for DecisionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.hasher.finish128();
        write!(f, "{:016x}{:016x}", hash.h1, hash.h2)
    }
}

impl fmt::Debug for DecisionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecisionDigest({self})")
    }
}

impl PartialEq for DecisionDigest {
    fn eq(&self, other: &Self) -> bool {
        self.hasher.finish128() == other.hasher.finish128()
    }
}

impl Eq for DecisionDigest {}
