//! Why a run ended before its end.

use std::fmt;

use cpp_sched::{CompleteError, ConfigError, EmptyReason, RequestId};

/// Why a run failed. All but [`Config`](Self::Config) mean that scheduler and simulator contradict each other: a bug in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// The configuration is not valid.
    Config(ConfigError),
    /// A [`Machine`](super::Machine) has one cost model a stage.
    Stages {
        /// Stages of the configuration.
        config: u32,
        /// Stages of the machine.
        machine: usize,
    },
    /// There are more requests than the simulator can number.
    TooManyRequests,
    /// Requests are alive, nothing is in flight, nobody arrives any more, and the scheduler answers with an empty batch.
    Stuck {
        /// Virtual time, in nanoseconds.
        now_ns: u64,
        /// Requests alive.
        unfinished: u32,
        /// The scheduler's reason.
        reason: EmptyReason,
    },
    /// The scheduler refused a result that it should have taken.
    Complete(CompleteError),
    /// The driver stopped for another reason, in its words.
    Driver(String),
    /// A row does not continue where its request's row before it has ended.
    Gap {
        /// Whose row.
        request: RequestId,
        /// Where the request stands.
        expected: u32,
        /// Where the row starts.
        start: u32,
    },
    /// The journal could not be written.
    Journal(String),
    /// The token account does not balance: computed - recomputed = prompt - cached + output - (one per request).
    Account(super::TokenTally),
    /// Busy and idle time of a stage do not make up the window of the run.
    StageAccount {
        /// Which stage.
        stage: usize,
        /// Its time.
        sum_ns: u64,
        /// That of the run.
        window_ns: u64,
    },
    /// Two counters that say the same have different values.
    Counter {
        /// What they count.
        what: &'static str,
        /// The scheduler's value.
        scheduler: u64,
        /// The simulator's value.
        simulator: u64,
    },
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => write!(f, "configuration: {error}"),
            Self::Stages { config, machine } => {
                write!(f, "the configuration has {config} stages, the machine costs for {machine}: give both the same number")
            }
            Self::TooManyRequests => write!(f, "a workload has at most {} requests: use a limit", u32::MAX),
            Self::Stuck { now_ns, unfinished, reason } => {
                write!(f, "bug: at {now_ns} ns {unfinished} requests are alive, nothing is in flight and nothing is scheduled ({reason:?})")
            }
            Self::Complete(error) => write!(f, "bug: the scheduler refuses a result: {error}"),
            Self::Driver(problem) => write!(f, "bug: {problem}"),
            Self::Gap { request, expected, start } => {
                write!(f, "bug: {request} stands at position {expected}, its next row starts at {start}")
            }
            Self::Journal(error) => write!(f, "the journal could not be written: {error}"),
            Self::Account(t) => write!(
                f,
                "bug: the token account does not balance: computed {} - recomputed {} is not prompt {} - cached {} + output {} - requests {}",
                t.computed, t.recomputed, t.prompt, t.cached, t.output, t.requests
            ),
            Self::StageAccount { stage, sum_ns, window_ns } => {
                write!(f, "bug: the time of stage {stage} sums up to {sum_ns} ns of {window_ns} ns")
            }
            Self::Counter { what, scheduler, simulator } => {
                write!(f, "bug: the scheduler counts {scheduler} {what}, the simulator {simulator}")
            }
        }
    }
}

impl std::error::Error for SimError {}

impl From<ConfigError> for SimError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<CompleteError> for SimError {
    fn from(error: CompleteError) -> Self {
        Self::Complete(error)
    }
}
