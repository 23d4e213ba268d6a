//! A workload through the scheduler and a pipeline, in virtual time.
//!
//! [`simulate`] runs the real kernel ([`cpp_sched::Scheduler`]) against a [`Pipe`](crate::pipeline::Pipe): requests arrive when the workload says,
//! batches take as long as the machine's cost model says, and nothing but the kernel's own run time is measured with a real clock. Two runs of
//! equal inputs make the same decisions, which [`Outcome::decision_digest`] shows.
//!
//! # What happens when
//!
//! The scheduler is one thread. At every instant, in this order:
//!
//! 1. Results that are back are completed, oldest first. A token counts as delivered at that moment.
//! 2. Faults that are due happen or are noticed (see [`Faults`]), clients hang up, and requests that have arrived are submitted.
//! 3. With fewer than D batches in flight, one batch is scheduled: the pipeline is filled before anything is waited for, whether stage 0 is
//!    free or not (as engines with a queue of batches do). The decision takes [`Machine::scheduler_ns`]; then the batch is handed to stage 0, and 1
//!    to 3 happen again.
//! 4. With nothing to schedule, time jumps to the next arrival or result.
//!
//! A decision never delays batches that are in the pipeline already. What it delays is the next step of a request whose result has just come
//! back; with asynchronous scheduling that step was decided before, so its decision time is hidden. It then waits in front of stage 0 until the token
//! is back, and what was scheduled after it waits behind it: stages run batches in order.
//!
//! Tokens are made up (all 0) and there are no stop tokens: a request ends after as many outputs as the workload says, or at the model length.

mod arrivals;
mod collectives;
mod cost_table;
mod coverage;
mod engine;
mod error;
mod faults;
mod journal;
mod measured;
mod metrics;
mod mode;
mod pieces;
mod pools;
mod record;
mod regret;
mod site;
mod watch;

pub use collectives::Collectives;
pub use cost_table::{CostTable, CostTableError};
pub use cpp_sched::journal::DecisionDigest;
pub use engine::{Extras, simulate, simulate_with};
pub use error::SimError;
pub use faults::{Fault, FaultError, FaultKind, FaultOutcome, FaultSpec, Faults, Incident};
pub use metrics::{Distribution, Samples};
pub use mode::{Mode, UnknownMode};
pub use pools::{Handover, KvLink, KvTransfers, PoolOutcome, PoolsOutcome, simulate_pools};
pub use record::TokenTally;

pub use crate::pipeline::StageTime;
pub use regret::{Regret, RegretMeter};
pub use watch::{BatchBack, RequestArrived, RequestDone, Watch};

use std::collections::BTreeMap;

use cpp_sched::{Config, CostModel, Stats};
use serde::Serialize;

use crate::pipeline::{Granularity, Links, Scheduling};
use crate::profile::{Hop, Profile, ProfileError};

/// The machine that batches run on: what they really cost, whatever the scheduler believes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// One cost model a stage, at least one.
    pub stage_costs: Vec<CostModel>,
    /// Measured times that hold for every stage in place of the models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<CostTable>,
    /// From one stage to the next.
    pub hop: Hop,
    /// Whether a transfer keeps stages from working, and how much waits in front of one.
    pub links: Links,
    /// Whether a batch is decided while stage 0 is at work.
    pub scheduling: Scheduling,
    /// CPU time of one decision, in nanoseconds.
    pub scheduler_ns: u64,
    /// What passes the stages as one: a batch, or parts of it. Each piece pays the constant of the cost model.
    pub granularity: Granularity,
    /// CPU time to prepare one piece for stage 0, in nanoseconds; one after the other.
    pub piece_ns: u64,
    /// What sampling adds to the last stage's time for a piece of which a token is sampled, in nanoseconds.
    pub sampling_ns: u64,
    /// From the end of the last stage until a result is with the scheduler, in nanoseconds.
    pub return_ns: u64,
    /// All-reduces between the devices of a stage; none: it has one, or the costs say it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collectives: Option<Collectives>,
    /// What goes wrong.
    #[serde(skip_serializing_if = "Faults::is_empty")]
    pub faults: Faults,
}

impl Machine {
    /// The machine of a profile, its model spread over `stages` stages.
    ///
    /// # Errors
    /// If the profile does not allow so many stages.
    pub fn new(profile: &Profile, stages: u32) -> Result<Self, ProfileError> {
        let cost = profile.stage_cost(stages)?;
        Ok(Self::of(profile, vec![cost; stages as usize]))
    }

    /// The machine of a profile, with so many layers on each stage; see [`Profile::split_costs`].
    ///
    /// # Errors
    /// If the layers are not those of the profile's model.
    pub fn split(profile: &Profile, layers: &[u32]) -> Result<Self, ProfileError> {
        Ok(Self::of(profile, profile.split_costs(layers)?))
    }

    /// The same stages with each layer shared by several devices: [`Collectives::share`] of the costs, and the all-reduces.
    #[must_use]
    pub fn tensor_parallel(mut self, collectives: Collectives) -> Self {
        self.stage_costs.iter_mut().for_each(|cost| *cost = collectives.share(cost));
        self.collectives = Some(collectives);
        self
    }

    fn of(profile: &Profile, stage_costs: Vec<CostModel>) -> Self {
        Self { stage_costs, hop: profile.hop, scheduler_ns: profile.scheduler_ns, return_ns: profile.return_ns, ..Self::default() }
    }
}

/// What a request must meet to count for the goodput; `None` is always met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Time to the first token at most, in nanoseconds.
    pub ttft_ns: Option<u64>,
    /// Time per output token after the first at most, in nanoseconds.
    pub tpot_ns: Option<u64>,
}

impl Slo {
    /// Whether there is anything to meet.
    #[must_use]
    pub const fn is_set(&self) -> bool {
        self.ttft_ns.is_some() || self.tpot_ns.is_some()
    }
}

/// How far a run is; handed to a caller now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Requests finished or rejected.
    pub done: u64,
    /// Requests of the workload.
    pub total: u64,
    /// Virtual time, in nanoseconds.
    pub now_ns: u64,
}

/// Requests by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All of the workload that arrived.
    pub submitted: u64,
    /// Ran to their last token.
    pub finished: u64,
    /// Ended by an abort.
    pub aborted: u64,
    /// Refused at submit, see [`Outcome::rejected`].
    pub rejected: u64,
    /// Alive at the end of the run.
    pub unfinished: u64,
}

/// Requests refused at submit for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// How many.
    pub count: u64,
    /// The scheduler's words for the first of them.
    pub first: String,
}

/// What a run has measured. Times are nanoseconds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The configuration that ran.
    pub config: Config,
    /// Requests by how they ended.
    pub requests: RequestCounts,
    /// Why requests were refused, by a word for the reason.
    pub rejected: BTreeMap<&'static str, Rejection>,
    /// Tokens over the finished requests.
    pub tokens: TokenTally,
    /// Positions that batches ran for requests that were aborted.
    pub aborted_tokens: u64,
    /// From the first arrival to the last result.
    pub duration_ns: u64,
    /// Requests that met the SLO; `None` without one.
    pub within_slo: Option<u64>,
    /// Arrival to first token.
    pub ttft: Distribution,
    /// The same, over requests whose prompt is longer than twice the token budget of a batch.
    pub ttft_long: Distribution,
    /// (E2E - TTFT) / (outputs - 1), requests with one output left out.
    pub tpot: Distribution,
    /// Gaps between tokens, of all requests together.
    pub itl: Distribution,
    /// Arrival to last token.
    pub e2e: Distribution,
    /// Arrival to the decision of the first batch.
    pub queue: Distribution,
    /// Where each stage's time went.
    pub stages: Vec<StageTime>,
    /// What faults cost; none without any.
    pub faults: Option<FaultOutcome>,
    /// Hash over every decision.
    pub decision_digest: DecisionDigest,
    /// Real time of each call of `schedule`.
    pub schedule_real: Distribution,
    /// Real time of each call of `complete`.
    pub complete_real: Distribution,
    /// The kernel's own counters.
    pub stats: Stats,
}
