//! What goes wrong in a run, when, and what becomes of it.
//!
//! | kind | what happens | what the scheduler is told |
//! |---|---|---|
//! | `stall` | a stage stands still for a time, then goes on with what it had | nothing |
//! | `slow:X` | a stage takes X times as long for a time | nothing |
//! | `die` | a stage is gone with its part of the KV, and back after a time, empty | at the timeout: `fail`, then `reset_all_kv` |
//! | `lose` | the next result that should come back does not | at the timeout: `lose` |
//! | `hang` | the next transfer from a stage to the one behind it never ends | at the timeout: `fail` |
//!
//! The timeout ([`Faults::timeout_ns`]) is how long it takes until somebody notices. Until then the other stages go on, and results of what had passed
//! the fault come back. All of it is known before the run, or drawn from a seed, so two runs are equal.

mod draw;
mod drive;
mod incident;
mod spec;

use serde::{Serialize, Serializer};

pub(crate) use drive::Drive;
pub(crate) use incident::Recovery;
pub use incident::{FaultOutcome, Incident};
pub use spec::{FaultError, FaultSpec};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A stage stands still.
    Stall,
    /// A stage runs slower: what takes 1000 ns takes so many.
    Slow(u32),
    /// A stage is gone with its memory, and comes back without it.
    Die,
    /// A result does not come back.
    Lose,
    /// A transfer to the next stage never ends.
    Hang,
}

impl FaultKind {
    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Slow(_) => "slow",
            Self::Die => "die",
            Self::Lose => "lose",
            Self::Hang => "hang",
        }
    }

    /// Whether it lasts a time of its own.
    const fn lasts(self) -> bool {
        matches!(self, Self::Stall | Self::Slow(_) | Self::Die)
    }
}

impl Serialize for FaultKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Slow(thousandths) => serializer.collect_str(&format_args!("slow:{}.{:03}", thousandths / 1000, thousandths % 1000)),
            kind => serializer.serialize_str(kind.name()),
        }
    }
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// When, in nanoseconds from the start of the workload. For a lost result and a transfer that hangs: the first one from then on.
    pub at_ns: u64,
    /// Which stage; of a transfer the one that sends. Without meaning for a lost result.
    pub stage: u32,
    /// What.
    pub kind: FaultKind,
    /// How long; 0 for a lost result and a transfer.
    pub for_ns: u64,
}

/// All faults of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    list: Vec<Fault>,
    /// How long it takes until a stage that is gone, a result that is lost, or a transfer that never ends is noticed, in nanoseconds.
    pub timeout_ns: u64,
}

impl Faults {
    /// The timeout where none is given: one second.
    pub const TIMEOUT_NS: u64 = 1_000_000_000;

    /// The faults in order of time.
    #[must_use]
    pub fn list(&self) -> &[Fault] {
        &self.list
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The faults of some specifications on a pipeline of `stages` stages. Those that come at random are drawn from `seed`, each specification from a
    /// stream of its own, up to `horizon_ns` unless they say until when.
    ///
    /// # Errors
    /// A stage that is not there, a transfer behind the last stage, a time to draw from that is empty, or more than 100,000 faults.
    pub fn new(specs: &[FaultSpec], stages: u32, seed: u64, horizon_ns: u64, timeout_ns: u64) -> Result<Self, FaultError> {
        let mut list = Vec::new();
        for (number, spec) in (0..).zip(specs) {
            spec.check(stages)?;
            draw::faults(spec, stages, seed, number, horizon_ns, &mut list)?;
        }
        list.sort_by_key(|fault: &Fault| (fault.at_ns, fault.stage));
        Ok(Self { list, timeout_ns })
    }
}
