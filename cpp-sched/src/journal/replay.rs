//! A run again, from its journal.

use alloc::boxed::Box;
use core::fmt;

use super::format::MOST_BLOCKS;
use super::{Answer, DecisionDigest, Decisions, JournalError, JournalReader, JournalWriter, Record};
use crate::ids::BatchId;
use crate::policy::Policy;
use crate::scheduler::Scheduler;

/// What came of a run from a journal.
#[derive(Debug)]
pub struct Replay {
    /// The scheduler after the last input.
    pub scheduler: Scheduler,
    /// Inputs applied.
    pub inputs: u64,
    /// Batches that were scheduled.
    pub batches: u64,
    /// The digest of all of them, and of those before the journal's start.
    pub digest: DecisionDigest,
    /// The first batch that differs from the journal's; the run ended there.
    pub difference: Option<Difference>,
    decisions: Decisions,
}

impl Replay {
    /// A new journal that starts from where this one has ended.
    #[must_use]
    pub fn go_on(&self) -> JournalWriter {
        JournalWriter::from_snapshot(&self.scheduler, self.decisions.clone())
    }
}

/// Where a run differs from its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// This batch is another one.
    Batch(BatchId),
    /// This batch is not in the journal.
    Additional(BatchId),
    /// The journal has this batch, the run has none there.
    Missing(BatchId),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(batch) => write!(f, "{batch} differs"),
            Self::Additional(batch) => write!(f, "{batch} is not in the journal"),
            Self::Missing(batch) => write!(f, "{batch} of the journal was not scheduled"),
        }
    }
}

/// Runs a journal of inputs again and compares every batch with what it was. It ends at the end of the journal, or at the first difference.
///
/// # Errors
/// The journal cannot be read, or is damaged on the way; inputs before that were applied for nothing.
pub fn replay(journal: &[u8]) -> Result<Replay, JournalError> {
    run(journal, None, MOST_BLOCKS)
}

/// The same for a journal of a scheduler with a policy of the caller's: the same policy, in the state that it had at the start of the journal.
///
/// # Errors
/// As [`replay`], and another policy than the journal's.
pub fn replay_with_policy(journal: &[u8], policy: Box<dyn Policy>) -> Result<Replay, JournalError> {
    run(journal, Some(policy), MOST_BLOCKS)
}

/// The same for a journal that is trusted with `most_blocks` blocks at its start, 64 bytes of memory each, in place of 2^26: fewer for one from
/// elsewhere, which may be a few bytes that ask for gigabytes. `policy` as for [`replay_with_policy`], if it has one.
///
/// # Errors
/// As [`replay_with_policy`].
pub fn replay_within(journal: &[u8], policy: Option<Box<dyn Policy>>, most_blocks: u32) -> Result<Replay, JournalError> {
    run(journal, policy, most_blocks)
}

fn run(journal: &[u8], policy: Option<Box<dyn Policy>>, most_blocks: u32) -> Result<Replay, JournalError> {
    let mut reader = JournalReader::new(journal)?;
    let (mut scheduler, mut decisions) = reader.start().clone().scheduler_within(policy, most_blocks)?;
    let (mut inputs, mut batches, mut difference) = (0, 0, None);
    // A batch that was scheduled and that the journal has not named yet.
    let mut open = None;
    while let Some(record) = reader.next_record()? {
        match (record, open.take()) {
            (Record::Batch { batch, digest }, Some(scheduled)) => {
                if batch != scheduled || digest != decisions.digest().value() {
                    difference = Some(Difference::Batch(scheduled));
                }
            }
            (Record::Batch { batch, .. }, None) => difference = Some(Difference::Missing(batch)),
            (Record::Input(_), Some(scheduled)) => difference = Some(Difference::Additional(scheduled)),
            (Record::Input(input), None) => {
                inputs += 1;
                if let Answer::Batch(batch) = input.apply(&mut scheduler) {
                    batches += 1;
                    decisions.add(&batch);
                    open = Some(batch.id());
                }
                scheduler.kv_events().for_each(drop);
                scheduler.events().for_each(drop);
            }
        }
        if difference.is_some() {
            break;
        }
    }
    Ok(Replay { scheduler, inputs, batches, digest: decisions.digest(), difference, decisions })
}
