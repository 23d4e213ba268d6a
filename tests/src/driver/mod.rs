//! Drives a real [`Scheduler`] with operations, plays the executor, and judges every answer.
//!
//! The driver keeps its own record of every request (`tracked`) and of every KV slot ([`truth`](crate::truth)). After each call it checks
//!
//! - the batch: positions, tables, contents (`rows`), limits (`limits`), costs (`costs`), in all KV groups (`groups`),
//! - what the encoder is to do, and that no row runs what is not encoded (`encodings`),
//! - the events: which tokens, in which order, one end for each request (`results`),
//! - what is told about the prefix cache: exactly that is found (`shadow`),
//! - the messages of the batches: two workers that know nothing else must see the same batches (`mirrors`),
//! - everything that can be asked: blocks, cursors, reasons, and the kernel's own `check_invariants` (`audit`), counters and gauges (`gauges`),
//! - the journal of all calls: it brings back the same scheduler, in the middle (`recorder`) and at the end.
//!
//! A call that must be refused is checked to have changed nothing.

mod audit;
mod calls;
mod control;
mod costs;
mod deliveries;
mod encodings;
mod flight;
mod gauges;
mod groups;
mod limits;
mod loss;
mod mirrors;
mod recorder;
mod results;
mod rows;
mod schedule;
mod sessions;
mod shadow;
mod tracked;
mod transfers;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use cpp_sched::{
    Admission, BatchId, Config, ConfigError, CostModel, EmptyReason, Event, KvUsage, Pause, Policy, PolicyKind, RequestId, Role, RowKind,
    Scheduler, SubmitError,
};

pub use self::audit::Observation;
pub use self::deliveries::{Delivery, told};
use self::encodings::Encodings;
use self::flight::Flight;
use self::gauges::Counts;
use self::mirrors::Mirrors;
pub use self::mirrors::Seen;
use self::recorder::Recorder;
use self::shadow::Shadow;
pub use self::tracked::Tracked;
use crate::op::Op;
use crate::truth::Memory;
use crate::world::World;

/// Ends the check with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use ensure;

/// A rule was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The number of the operation; `None` = while draining.
    pub op: Option<usize>,
    /// Which rule, and what was found.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            Some(op) => write!(f, "operation {op}: {}", self.text),
            None => write!(f, "while draining: {}", self.text),
        }
    }
}

/// A row, as far as it is the same on every machine: without block numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedRow {
    /// Whose.
    pub request: RequestId,
    /// `num_computed_tokens`.
    pub start: u32,
    /// `num_scheduled_tokens`.
    pub len: u32,
    /// Drafts among them.
    pub drafts: u32,
    /// Prefill or decode.
    pub kind: RowKind,
    /// Whether it samples.
    pub samples: bool,
}

/// What one call answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Of `submit`.
    Submit(RequestId, Result<(), SubmitError>),
    /// Of `schedule`: rows and preempted requests.
    Batch(Vec<LoggedRow>, Vec<RequestId>),
    /// Of `schedule`.
    Empty(EmptyReason),
    /// Of `complete`.
    Complete(Option<BatchId>),
    /// Of `fail`: batches lost.
    Fail(u32),
    /// Of a call on one request: whether it had an effect.
    Effect(&'static str, RequestId, bool),
    /// Of a call without an answer.
    Done(&'static str),
}

/// One call: what it answered, the events after it, and the blocks after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its answer.
    pub line: Line,
    /// What it reported.
    pub events: Vec<Event>,
    /// The pool afterwards.
    pub kv: KvUsage,
}

/// A scheduler, the machine that it schedules, and the judge of both.
#[derive(Debug)]
pub struct Driver {
    scheduler: Scheduler,
    config: Config,
    memory: Memory,
    /// Every request ever submitted and accepted.
    requests: Vec<Tracked>,
    /// Index of the living one of an id.
    alive: BTreeMap<RequestId, usize>,
    flight: VecDeque<Flight>,
    next_batch: u64,
    completed: Vec<BatchId>,
    /// Preempted since the last batch.
    preempted: Vec<RequestId>,
    /// Writes to the memory before the last reset of the prefix cache.
    writes_at_reset: u64,
    now_ns: u64,
    pause: Pause,
    draining: bool,
    /// Budgets changed while requests lived: what was decided under the old ones stands.
    reconfigured: bool,
    shadow: Shadow,
    /// Whose blocks the present call may publish.
    publishers: Vec<usize>,
    calls: u64,
    counts: Counts,
    records: Vec<Record>,
    mirrors: Mirrors,
    encodings: Encodings,
    recorder: Recorder,
    /// How often something was met, for tests that ask whether it was.
    met: RefCell<BTreeMap<&'static str, u64>>,
    /// What a batch costs on each stage, or one model for all.
    stages: Vec<CostModel>,
}

impl Driver {
    /// A fresh scheduler.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn new(config: Config) -> Result<Self, cpp_sched::ConfigError> {
        refuses_what_does_not_go_together(config);
        Ok(Self::around(Scheduler::new(config)?))
    }

    /// A fresh scheduler with a policy of the test's.
    ///
    /// # Errors
    /// The configuration is not valid.
    pub fn with_policy(config: Config, policy: Box<dyn Policy>) -> Result<Self, cpp_sched::ConfigError> {
        Ok(Self::around(Scheduler::with_policy(config, policy)?))
    }

    fn around(scheduler: Scheduler) -> Self {
        let config = *scheduler.config();
        Self {
            scheduler,
            config,
            memory: Memory::new(config.num_blocks, config.block_size),
            requests: Vec::new(),
            alive: BTreeMap::new(),
            flight: VecDeque::new(),
            next_batch: 0,
            completed: Vec::new(),
            preempted: Vec::new(),
            writes_at_reset: 0,
            now_ns: 0,
            pause: Pause::Off,
            draining: false,
            reconfigured: false,
            shadow: Shadow::default(),
            publishers: Vec::new(),
            calls: 0,
            counts: Counts::default(),
            records: Vec::new(),
            mirrors: Mirrors::new(&config),
            encodings: Encodings::default(),
            met: RefCell::default(),
            recorder: Recorder::new(&config),
            stages: config.cost.into_iter().collect(),
        }
    }

    /// Runs a world to its end, drain included, and hands out what every call answered.
    ///
    /// # Errors
    /// The first rule that was broken.
    pub fn run(world: &World) -> Result<Vec<Record>, Failure> {
        Self::new(world.config).map_err(|error| Failure { op: None, text: error.to_string() })?.run_through(world)
    }

    /// As [`run`](Self::run), with this driver, which has done nothing yet.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_through(mut self, world: &World) -> Result<Vec<Record>, Failure> {
        let driver = &mut self;
        for (number, op) in world.ops.iter().enumerate() {
            driver.apply(op).map_err(|text| Failure { op: Some(number), text })?;
        }
        driver.drain().map_err(|text| Failure { op: None, text })?;
        Ok(self.records)
    }

    /// Does one operation and judges the answer.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Submit(shape) => self.submit(shape),
            Op::Schedule => self.schedule().map(drop),
            Op::Fill => self.fill().map(drop),
            Op::Complete => self.complete(),
            Op::CompleteWrong(wrong) => self.complete_wrong(*wrong),
            Op::Fail => self.fail(),
            Op::Abort(id) => self.abort(RequestId(*id)),
            Op::Ready(id) => self.ready(RequestId(*id)),
            Op::SetDrafts(id, drafts) => self.set_drafts(RequestId(*id), *drafts),
            Op::Tick(now_ns) => self.tick(*now_ns),
            Op::ResetPrefixCache => self.reset_prefix_cache(),
            Op::KvSent(id) => self.kv_sent(RequestId(*id)),
            Op::KvSendFailed(id) => self.kv_send_failed(RequestId(*id)),
            Op::KvArrived(id) => self.kv_arrived(RequestId(*id)),
            Op::KvFailed(id) => self.kv_failed(RequestId(*id)),
            Op::Open(id, gate) => self.open(RequestId(*id), *gate),
            Op::Shut(id, gate) => self.shut(RequestId(*id), *gate),
            Op::Pause(pause) => self.pause(*pause),
            Op::Drain(drain) => self.refuse_new(*drain),
            Op::Reconfigure(knob) => self.reconfigure(*knob),
            Op::ResetAllKv => self.reset_all_kv(),
            Op::Lose(nth) => self.lose(*nth),
            Op::Extend { id, len, max_tokens, author } => {
                let id = self.aim(RequestId(*id), *author, |r| r.paused);
                self.extend(id, *len, *max_tokens, *author)
            }
            Op::Fork { parent, child } => {
                let parent = self.aim(RequestId(*parent), child.author, |r| r.done >= r.prompt_len);
                self.fork(parent, child)
            }
            Op::KvSentBy(id, consumer) => self.kv_sent_by(RequestId(*id), *consumer),
            Op::Pass(ns) => self.tick(self.now_ns.saturating_add(*ns)),
            Op::SetCosts(models, seed) => self.set_costs(*models, *seed),
            Op::Kill => self.kill(),
            Op::Rotate => self.rotate(),
            Op::Join(leader) => self.join(*leader),
        }
    }

    /// Schedules until there is no batch; how many there were.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn fill(&mut self) -> Result<u32, String> {
        let mut batches = 0;
        while self.schedule()? {
            batches += 1;
            ensure!(batches <= self.config.depth(), "{batches} batches in a row, but only {} may be in flight", self.config.depth());
        }
        Ok(batches)
    }

    /// Ends the pause, opens all gates, serves all transfers, ends sessions at their next pause, and runs until nothing is left: every accepted
    /// request must finish.
    ///
    /// # Errors
    /// The rule that was broken.
    pub fn drain(&mut self) -> Result<(), String> {
        self.pause(Pause::Off)?;
        for (id, who) in self.living_in_order() {
            if !self.requests[who].gates.is_empty() {
                self.ready(id)?;
            }
        }
        // Generous: every token ever asked for, one a batch, and everything thrown away a few times.
        let tokens: u64 = self.requests.iter().map(|r| u64::from(r.prompt_len) + u64::from(r.max_out)).sum();
        for _ in 0..1000 + 20 * tokens {
            self.serve_transfers()?;
            self.end_sessions()?;
            let scheduled = self.fill()?;
            if self.flight.is_empty() {
                if scheduled == 0 && self.serve_transfers()? == 0 {
                    break;
                }
            } else {
                self.complete()?;
            }
        }
        let left: Vec<_> = self.alive.keys().map(|id| (*id, self.scheduler.why(*id))).collect();
        ensure!(left.is_empty(), "not finished: {left:?}");
        ensure!(self.scheduler.is_idle(), "nothing is left, but the scheduler is not idle");
        let kv = self.scheduler.kv_usage();
        ensure!(kv.free + kv.cached == kv.total, "blocks leak after the drain: {kv:?}");
        if self.config.policy == PolicyKind::Custom { Ok(()) } else { self.replayed().map(drop) }
    }

    /// An id for a call that few requests fit: this one if it fits, else mostly one of those that do. The choice does not hang on names.
    fn aim(&self, id: RequestId, seed: u64, fits: impl Fn(&Tracked) -> bool) -> RequestId {
        let fits = |who: usize| self.requests[who].is_alive() && fits(&self.requests[who]);
        let fitting: Vec<_> = self.living_in_order().into_iter().filter(|(_, who)| fits(*who)).collect();
        if seed % 8 == 7 || fitting.is_empty() || self.alive.get(&id).is_some_and(|&who| fits(who)) {
            return id;
        }
        fitting[seed as usize / 8 % fitting.len()].0
    }

    fn end_sessions(&mut self) -> Result<(), String> {
        for (id, who) in self.living_in_order() {
            if self.requests[who].paused && self.requests[who].is_alive() {
                self.abort(id)?;
            }
        }
        Ok(())
    }

    /// What every call so far answered.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What the workers that follow the messages have met so far.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.mirrors.seen
    }

    /// From now on keeps what is sent to workers.
    pub fn record_deliveries(&mut self) {
        self.mirrors.sent.get_or_insert_default();
    }

    /// What was sent to workers since [`record_deliveries`](Self::record_deliveries).
    #[must_use]
    pub fn deliveries(&self) -> &[Delivery] {
        self.mirrors.sent.as_deref().unwrap_or_default()
    }

    /// What has been met so far, and how often.
    #[must_use]
    pub fn met(&self) -> BTreeMap<&'static str, u64> {
        self.met.borrow().clone()
    }

    fn meet(&self, what: &'static str) {
        *self.met.borrow_mut().entry(what).or_default() += 1;
    }

    /// Something that is met with several KV groups is another case than with one.
    fn meet_grouped(&self, grouped: &'static str, single: &'static str) {
        self.meet(if self.config.kv_groups.is_single() { single } else { grouped });
    }

    /// The scheduler, to ask it something.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Every request that was accepted, in the order of their submits.
    #[must_use]
    pub fn requests(&self) -> &[Tracked] {
        &self.requests
    }

    /// Takes the events of a call, audits everything and writes the record.
    fn end_call(&mut self, line: Line, events: Vec<Event>) -> Result<(), String> {
        for event in &events {
            self.mirrors.wanted(&self.scheduler, event)?;
        }
        self.end_kv_events();
        self.audit()?;
        let living = |seq: u64| self.requests.get(seq as usize).filter(|request| request.is_alive()).map(|request| request.id);
        self.mirrors.check_resync(&self.scheduler, living)?;
        self.calls += 1;
        self.records.push(Record { line, events, kv: self.scheduler.kv_usage() });
        Ok(())
    }

    /// Living requests in the order of their submits: their names must decide nothing here either.
    fn living_in_order(&self) -> Vec<(RequestId, usize)> {
        let mut living: Vec<_> = self.alive.iter().map(|(id, who)| (*id, *who)).collect();
        living.sort_unstable_by_key(|(_, who)| *who);
        living
    }

    fn take_events(&mut self) -> Result<Vec<Event>, String> {
        self.take_kv_events()?;
        Ok(self.scheduler.events().collect())
    }
}

/// What the documentation says not to go together is refused, with the reason.
fn refuses_what_does_not_go_together(config: Config) {
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = config;
        change(&mut config);
        Scheduler::new(config).map(drop)
    };
    if !config.kv_groups.is_single() && config.validate().is_ok() {
        for role in [Role::Prefill, Role::Decode] {
            let error = refused(&|c| (c.role, c.admission) = (role, Admission::NoEvict));
            assert_eq!(error, Err(ConfigError::KvGroups { what: "more than one group goes with role unified alone" }));
        }
    }
    if config.validate().is_ok() {
        let error = refused(&|c| (c.role, c.admission) = (Role::Prefill, Admission::Lazy));
        assert_eq!(error, Err(ConfigError::LazyPrefill));
        if groups::grain(&config).is_some() {
            let error = refused(&|c| c.chunks_per_batch = 2);
            assert!(matches!(error, Err(ConfigError::KvGroups { .. })), "{error:?}");
        }
    }
}
