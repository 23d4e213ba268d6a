//! Records: framing, hashes, versions.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use super::{Answer, DecisionDigest, Decisions, Input};
use crate::batch::Scheduled;
use crate::config::Config;
use crate::error::ConfigError;
use crate::ids::BatchId;
use crate::policy::Policy;
use crate::scheduler::{RestoreError, Scheduler, Snapshot};

const MAGIC: &[u8; 9] = b"cppsched\x02";

/// Length and hash before each record's contents.
const HEAD: usize = 8;

/// What a journal starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// A scheduler with nothing in it.
    Empty(Box<Config>),
    /// A scheduler in the middle of its work, and what it had decided before.
    Snapshot(Box<Snapshot>, Decisions),
    /// A scheduler with nothing in it and a policy of the caller's, by its name.
    Policy(Box<Config>, String),
}

impl Start {
    /// The scheduler that the journal starts from, and the digest of what it decided before. Memory is allocated only for what is in the
    /// journal, and up to 2^26 blocks of 64 bytes; more are refused, in a configuration as in a snapshot.
    ///
    /// # Errors
    /// A configuration that is not valid or too large, or a snapshot that was damaged.
    pub fn scheduler(self) -> Result<(Scheduler, Decisions), JournalError> {
        self.scheduler_with(None)
    }

    /// The same with the policy that the journal was written with, if it was the caller's own; `policy_name` says which.
    ///
    /// # Errors
    /// As [`scheduler`](Self::scheduler), and another policy than the journal's.
    pub fn scheduler_with(self, policy: Option<Box<dyn Policy>>) -> Result<(Scheduler, Decisions), JournalError> {
        self.scheduler_within(policy, MOST_BLOCKS)
    }

    /// The same, with `most_blocks` in place of 2^26: a few bytes of a journal ask for 64 bytes of memory a block.
    ///
    /// # Errors
    /// As [`scheduler_with`](Self::scheduler_with).
    pub fn scheduler_within(self, policy: Option<Box<dyn Policy>>, most_blocks: u32) -> Result<(Scheduler, Decisions), JournalError> {
        let named = self.policy_name().map(ToString::to_string);
        let given = policy.as_ref().map(|policy| policy.name().to_string());
        if named != given {
            return Err(JournalError::Snapshot(RestoreError::Policy { saved: named, given }));
        }
        let num_blocks = match &self {
            Self::Empty(config) | Self::Policy(config, _) => config.num_blocks,
            Self::Snapshot(snapshot, _) => snapshot.num_blocks(),
        };
        if num_blocks > most_blocks {
            return Err(JournalError::TooLarge { num_blocks, most_blocks });
        }
        match self {
            Self::Empty(config) | Self::Policy(config, _) => {
                let scheduler = match policy {
                    Some(policy) => Scheduler::with_policy(*config, policy),
                    None => Scheduler::new(*config),
                };
                Ok((scheduler.map_err(JournalError::Config)?, Decisions::default()))
            }
            Self::Snapshot(snapshot, decisions) => {
                let scheduler = match policy {
                    Some(policy) => Scheduler::restore_with_policy(*snapshot, policy),
                    None => Scheduler::restore(*snapshot),
                };
                Ok((scheduler.map_err(JournalError::Snapshot)?, decisions))
            }
        }
    }

    /// The name of the policy that the journal was written with, if it was the caller's own.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        match self {
            Self::Empty(_) => None,
            Self::Policy(_, name) => Some(name),
            Self::Snapshot(snapshot, _) => snapshot.policy_name(),
        }
    }
}

/// Blocks that a journal may ask for, unless the reader says otherwise.
pub(super) const MOST_BLOCKS: u32 = 1 << 26;

/// What a journal holds after its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// A call.
    Input(Input),
    /// What the call before decided.
    Batch {
        /// Its number.
        batch: BatchId,
        /// The digest of all batches up to it.
        #[serde(with = "crate::wide")]
        digest: u128,
    },
}

/// Writes a journal, into memory; [`take`](Self::take) hands over what there is, to be stored wherever the caller likes.
///
/// ```
/// use cpp_sched::journal::{Input, JournalWriter, replay};
/// use cpp_sched::{Config, Request, RequestId, Scheduler};
/// let config = Config::default();
/// let (mut scheduler, mut journal) = (Scheduler::new(config)?, JournalWriter::new(&config));
/// for input in [Input::Submit(Box::new(Request::new(RequestId(1), vec![5; 40], 4))), Input::Schedule] {
///     journal.apply(&input, &mut scheduler);
/// }
/// let replay = replay(&journal.take())?;
/// assert_eq!((replay.batches, replay.difference), (1, None));
/// assert_eq!(replay.scheduler.snapshot(), scheduler.snapshot());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct JournalWriter {
    bytes: Vec<u8>,
    decisions: Decisions,
}

impl JournalWriter {
    /// A journal of a scheduler with this configuration and nothing in it yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec(), decisions: Decisions::default() };
        writer.record(&Start::Empty(Box::new(*config)));
        writer
    }

    /// A journal of a scheduler with this configuration, a policy of the caller's, and nothing in it yet.
    #[must_use]
    pub fn with_policy(config: &Config, policy: &str) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec(), decisions: Decisions::default() };
        writer.record(&Start::Policy(Box::new(*config), policy.to_string()));
        writer
    }

    /// A journal that starts from a scheduler in the middle of its work, and from the digest of what it has decided.
    #[must_use]
    pub fn from_snapshot(scheduler: &Scheduler, decisions: Decisions) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec(), decisions };
        writer.record(&Start::Snapshot(Box::new(scheduler.snapshot()), writer.decisions.clone()));
        writer
    }

    /// Ends this journal and begins a new one that starts from the scheduler as it is now: whoever has the new one needs the old one no more.
    /// Returns what was written to the old one since the last [`take`](Self::take).
    pub fn rotate(&mut self, scheduler: &Scheduler) -> Vec<u8> {
        let new = Self::from_snapshot(scheduler, core::mem::take(&mut self.decisions));
        core::mem::replace(self, new).bytes
    }

    /// Writes an input that the caller applies itself. A batch that comes of it is written by [`batch`](Self::batch).
    pub fn input(&mut self, input: &Input) {
        self.record(&Record::Input(input.clone()));
    }

    /// Writes the batch that the last `schedule` gave.
    pub fn batch(&mut self, batch: &Scheduled<'_>) {
        self.decisions.add(batch);
        self.record(&Record::Batch { batch: batch.id(), digest: self.decisions.digest().value() });
    }

    /// Applies an input and writes it, with the batch that comes of it.
    pub fn apply<'s>(&mut self, input: &Input, scheduler: &'s mut Scheduler) -> Answer<'s> {
        self.input(input);
        let answer = input.apply(scheduler);
        if let Answer::Batch(batch) = &answer {
            self.batch(batch);
        }
        answer
    }

    /// The digest of all batches so far.
    #[must_use]
    pub fn digest(&self) -> DecisionDigest {
        self.decisions.digest()
    }

    /// What was written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.bytes)
    }

    fn record(&mut self, contents: &impl Serialize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEAD]);
        // Writing into memory cannot fail; were it to, the record would be empty, and its reader would say so.
        if let Ok(bytes) = postcard::to_extend(contents, core::mem::take(&mut self.bytes)) {
            self.bytes = bytes;
        }
        let contents = self.bytes.get(start + HEAD..).unwrap_or_default();
        let head = [(contents.len() as u32).to_le_bytes(), hash(contents).to_le_bytes()].concat();
        if let Some(place) = self.bytes.get_mut(start..start + HEAD) {
            place.copy_from_slice(&head);
        }
    }
}

/// FNV-1a, 32 bits: it finds damage, it is no protection against forgery.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Reads a journal record by record.
#[derive(Clone, Debug)]
pub struct JournalReader<'a> {
    bytes: &'a [u8],
    at: usize,
    start: Start,
}

impl<'a> JournalReader<'a> {
    /// Reads the head of a journal.
    ///
    /// # Errors
    /// It is no journal, or of another version, or its start cannot be read.
    pub fn new(bytes: &'a [u8]) -> Result<Self, JournalError> {
        match bytes.get(..MAGIC.len()) {
            Some(magic) if magic == MAGIC => {}
            Some(magic) if magic[..8] == MAGIC[..8] => return Err(JournalError::Version { found: magic[8], known: MAGIC[8] }),
            _ => return Err(JournalError::NoJournal),
        }
        let mut reader = Self { bytes, at: MAGIC.len(), start: Start::Empty(Box::default()) };
        reader.start = reader.record()?.ok_or(JournalError::CutOff { at: MAGIC.len() })?;
        Ok(reader)
    }

    /// What the journal starts from.
    #[must_use]
    pub fn start(&self) -> &Start {
        &self.start
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// The record is cut off or damaged.
    pub fn next_record(&mut self) -> Result<Option<Record>, JournalError> {
        self.record()
    }

    fn record<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, JournalError> {
        let at = self.at;
        let rest = self.bytes.get(at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let cut_off = JournalError::CutOff { at };
        let number = |from: usize| rest.get(from..from + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let (Some(len), Some(expected)) = (number(0), number(4)) else { return Err(cut_off) };
        let end = HEAD.checked_add(len as usize);
        let contents = end.and_then(|end| rest.get(HEAD..end)).ok_or(cut_off)?;
        if hash(contents) != expected {
            return Err(JournalError::Damaged { at, what: "its hash does not fit".to_string() });
        }
        match postcard::take_from_bytes(contents) {
            Ok((record, [])) => {
                self.at = at + HEAD + contents.len();
                Ok(Some(record))
            }
            Ok(_) => Err(JournalError::Damaged { at, what: "it is longer than its contents".to_string() }),
            Err(error) => Err(JournalError::Damaged { at, what: error.to_string() }),
        }
    }
}

/// Why a journal cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JournalError {
    /// It does not begin as one.
    NoJournal,
    /// It was written in another version of the format.
    Version {
        /// Its version.
        found: u8,
        /// The version that is read.
        known: u8,
    },
    /// Its configuration is not valid.
    Config(ConfigError),
    /// Its configuration, or that of its snapshot, asks for more blocks than a journal is trusted with.
    TooLarge {
        /// How many.
        num_blocks: u32,
        /// At most.
        most_blocks: u32,
    },
    /// Its snapshot cannot be restored.
    Snapshot(RestoreError),
    /// It ends within a record; what is before it can be read.
    CutOff {
        /// Where the record begins, in bytes.
        at: usize,
    },
    /// A record is not what was written.
    Damaged {
        /// Where it begins, in bytes.
        at: usize,
        /// What is wrong.
        what: String,
    },
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoJournal => f.write_str("not a journal of inputs"),
            Self::Version { found, known } => write!(f, "a journal of version {found}, this reads version {known}"),
            Self::Config(error) => write!(f, "the journal's configuration: {error}"),
            Self::TooLarge { num_blocks, most_blocks } => {
                write!(f, "a journal with {num_blocks} blocks, at most {most_blocks} are taken: allow more if you trust it (replay_within)")
            }
            Self::Snapshot(error) => write!(f, "the journal's snapshot: {error}"),
            Self::CutOff { at } => write!(f, "cut off within the record at byte {at}"),
            Self::Damaged { at, what } => write!(f, "the record at byte {at} is damaged: {what}"),
        }
    }
}

impl core::error::Error for JournalError {}
