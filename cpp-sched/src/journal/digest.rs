//! One number that says whether two runs decided the same.

use alloc::vec::Vec;
use core::fmt;
use core::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::batch::{Row, Scheduled};
use crate::ids::BlockId;

/// SipHash-2-4 with 128 bits and a fixed key over every batch in order: its number, who was preempted for it, the blocks copied for it, what it encodes and frees of encoder outputs, and of
/// each row the request, its positions, drafts, whether it samples, and its blocks. The digest of each batch covers that of those before it.
/// All numbers are hashed in little-endian order: digests are equal on any machine.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct DecisionDigest(#[cfg_attr(feature = "serde", serde(with = "crate::wide"))] u128);

impl DecisionDigest {
    /// The digest as a number; 0 = no batch.
    #[must_use]
    pub const fn value(self) -> u128 {
        self.0
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for DecisionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for DecisionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DecisionDigest({self})")
    }
}

/// Digests the batches of one scheduler.
///
/// A row's block table is that of the request's row before and some blocks more, until its work is given up; so each row adds the new blocks
/// only, and equal digests mean equal tables all the same.
///
/// ```
/// use cpp_sched::journal::Decisions;
/// use cpp_sched::{Config, Request, RequestId, Schedule, Scheduler};
/// let run = |prompt: usize| {
///     let mut scheduler = Scheduler::new(Config::default()).unwrap();
///     scheduler.submit(Request::new(RequestId(1), vec![5; prompt], 4)).unwrap();
///     let mut decisions = Decisions::default();
///     if let Schedule::Batch(batch) = scheduler.schedule() {
///         decisions.add(&batch);
///     }
///     decisions.digest()
/// };
/// assert_eq!(run(20), run(20));
/// assert_ne!(run(20), run(21));
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Decisions {
    digest: DecisionDigest,
    /// By slot: its epoch, and the blocks of its table that the digest has.
    hashed: Vec<(u32, u32)>,
    /// The batch that is being added; empty between calls.
    #[cfg_attr(feature = "serde", serde(skip))]
    bytes: Vec<u8>,
}

impl Decisions {
    /// A batch was scheduled. O(rows + new blocks), without allocation once it has grown.
    pub fn add(&mut self, batch: &Scheduled<'_>) {
        self.number(batch.id().0);
        self.number(batch.preempted().len() as u64);
        for id in batch.preempted() {
            self.number(id.0);
        }
        self.number(batch.copies().len() as u64);
        for (from, to) in batch.copies() {
            self.pair(from.0, to.0);
        }
        self.number(batch.rows().len() as u64);
        for row in batch.rows() {
            self.row(row, batch.blocks(row));
        }
        // Batches that have nothing to do with an encoder are digested as if there were none.
        if !batch.encoder_inputs().is_empty() || !batch.encoder_freed().is_empty() {
            self.pair(batch.encoder_inputs().len() as u32, batch.encoder_freed().len() as u32);
            for input in batch.encoder_inputs() {
                self.number(input.request.0);
                self.number(input.span.into());
            }
            for item in batch.encoder_freed() {
                self.bytes.extend_from_slice(&item.digest);
                self.number(item.encoder_tokens.into());
            }
        }
        let mut hasher = SipHasher24::new_with_key(b"decisions of cpp");
        hasher.write(&self.digest.0.to_le_bytes());
        hasher.write(&self.bytes);
        self.digest = DecisionDigest(hasher.finish128().as_u128());
        self.bytes.clear();
    }

    fn row(&mut self, row: &Row, blocks: &[BlockId]) {
        self.number(row.request.0);
        self.pair(row.num_computed_tokens, row.num_scheduled_tokens);
        self.pair(row.num_draft_tokens, row.samples.into());
        let at = row.slot as usize;
        if self.hashed.len() <= at {
            self.hashed.resize(at + 1, (0, 0));
        }
        let len = blocks.len() as u32;
        let (epoch, hashed) = core::mem::replace(&mut self.hashed[at], (row.epoch, len));
        let first = if epoch == row.epoch { hashed.min(len) } else { 0 };
        self.pair(first, len);
        for block in &blocks[first as usize..] {
            self.bytes.extend_from_slice(&block.0.to_le_bytes());
        }
    }

    /// The digest of all batches so far.
    #[must_use]
    pub const fn digest(&self) -> DecisionDigest {
        self.digest
    }

    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn pair(&mut self, first: u32, second: u32) {
        self.number(u64::from(first) << 32 | u64::from(second));
    }
}

/// Two are equal if they have the same digest and will go on equally.
impl PartialEq for Decisions {
    fn eq(&self, other: &Self) -> bool {
        (self.digest, &self.hashed) == (other.digest, &other.hashed)
    }
}

impl Eq for Decisions {}
