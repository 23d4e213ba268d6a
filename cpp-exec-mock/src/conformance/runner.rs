//! Plays the script of a scenario on a [`Scheduler`], with the [`Model`] as its executor, and writes the log.
//!
//! The executor stands for a worker on another machine: all that it (and the log) knows of a batch comes out of a [`Mirror`] that is fed with
//! the encoded bytes of the plan.

use std::fmt;
use std::io::{self, Write};

use cpp_sched::wire::{Encoder, Mirror};
use cpp_sched::{BatchId, BlockId, Event, Request, RequestId, Sample, Schedule, Scheduler};

use super::fields::narrow;
use super::log::{Blocked, Line, LineEvent, LineItem};
use super::model::{Item, Model, ModelError};
use super::scenario::{Op, RequestSpec, Scenario, Step};

/// Prompt tokens that a run hands to the scheduler at most (4 bytes each, there and here). Longer prompts are given by their length alone,
/// so that a segment of 2^32 - 1 tokens takes no memory; nothing of them is found in the prefix cache.
const MAX_GIVEN_TOKENS: u64 = 1 << 24;

/// Why a run ends early. The scenario is good; the run failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RunError {
    /// The log cannot be written.
    Write(io::Error),
    /// The executor cannot go on.
    Model(ModelError),
    /// The scheduler broke its own contract: what it answered, or which of its invariants does not hold.
    Scheduler(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(error) => write!(f, "the log cannot be written: {error}"),
            Self::Model(error) => error.fmt(f),
            Self::Scheduler(what) => write!(f, "the scheduler broke its contract: {what}"),
        }
    }
}

impl std::error::Error for RunError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Write(error) => Some(error),
            Self::Model(error) => Some(error),
            Self::Scheduler(_) => None,
        }
    }
}

impl From<io::Error> for RunError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

impl From<ModelError> for RunError {
    fn from(error: ModelError) -> Self {
        Self::Model(error)
    }
}

/// A transfer of prompt KV to this scheduler that is under way.
#[derive(Debug)]
struct Transfer {
    start: u32,
    end: u32,
    table: Vec<BlockId>,
}

/// What the caller of the scheduler knows of one request.
#[derive(Debug, Default)]
struct Known {
    submitted: bool,
    delivered: u32,
    transfer: Option<Transfer>,
}

/// One run of one scenario. Equal scenarios give equal logs.
#[derive(Debug)]
pub struct Runner<'a, W> {
    scenario: &'a Scenario,
    scheduler: Scheduler,
    encoder: Encoder,
    mirror: Mirror,
    message: Vec<u8>,
    model: Model<'a>,
    known: Vec<Known>,
    tokens_left: u64,
    check_invariants: bool,
    log: W,
}

impl<'a, W: Write> Runner<'a, W> {
    /// A run that writes its log to `log`, line by line: give it a buffer.
    ///
    /// # Errors
    /// The scheduler refuses the configuration, which a parsed scenario has had checked.
    pub fn new(scenario: &'a Scenario, log: W) -> Result<Self, RunError> {
        let scheduler = Scheduler::new(scenario.config).map_err(|error| RunError::Scheduler(error.to_string()))?;
        let model = Model::new(&scenario.requests, scenario.config.block_size);
        let known = scenario.requests.iter().map(|_| Known::default()).collect();
        let (encoder, mirror) = (Encoder::new(&scenario.config), Mirror::new(&scenario.config));
        Ok(Self {
            scenario,
            scheduler,
            encoder,
            mirror,
            message: Vec::new(),
            model,
            known,
            tokens_left: MAX_GIVEN_TOKENS,
            check_invariants: false,
            log,
        })
    }

    /// Also asks the scheduler after every call whether its invariants hold; O(all its state) each time, for tests.
    #[must_use]
    pub fn check_invariants(mut self, check: bool) -> Self {
        self.check_invariants = check;
        self
    }

    /// Plays the whole script and gives the log back.
    ///
    /// # Errors
    /// The log cannot be written, the memory is full, or the scheduler broke its contract.
    pub fn run(mut self) -> Result<W, RunError> {
        for step in &self.scenario.script {
            self.play(step)?;
        }
        self.log.flush()?;
        Ok(self.log)
    }

    fn play(&mut self, step: &'a Step) -> Result<(), RunError> {
        let label = step.label.as_deref();
        match step.op {
            Op::Submit(request) => self.submit(request, label),
            Op::Schedule => self.schedule(label).map(|_| ()),
            Op::Complete => self.complete(label),
            Op::Drain { max } => self.drain(max),
            Op::Fail => {
                self.scheduler.fail();
                self.model.fail()?;
                self.finish(Line::of("fail", label))
            }
            Op::Tick { now_ns } => {
                self.scheduler.tick(now_ns);
                self.finish(Line { now_ns: Some(now_ns), ..Line::of("tick", label) })
            }
            Op::ResetPrefixCache => {
                self.scheduler.reset_prefix_cache();
                self.finish(Line::of("reset_prefix_cache", label))
            }
            // Whether a call had an effect shows in its events.
            Op::Abort(request) => {
                _ = self.scheduler.abort(id_of(request));
                self.finish(self.named("abort", label, request))
            }
            Op::Ready(request) => {
                _ = self.scheduler.ready(id_of(request));
                self.finish(self.named("ready", label, request))
            }
            Op::KvSent(request) => {
                _ = self.scheduler.kv_sent(id_of(request));
                self.finish(self.named("kv_sent", label, request))
            }
            Op::KvSendFailed(request) => {
                _ = self.scheduler.kv_send_failed(id_of(request));
                self.finish(self.named("kv_send_failed", label, request))
            }
            Op::KvArrived(request) => {
                self.transfer_ends(request, true)?;
                _ = self.scheduler.kv_arrived(id_of(request));
                self.finish(self.named("kv_arrived", label, request))
            }
            Op::KvFailed(request) => {
                self.transfer_ends(request, false)?;
                _ = self.scheduler.kv_failed(id_of(request));
                self.finish(self.named("kv_failed", label, request))
            }
        }
    }

    fn submit(&mut self, request: usize, label: Option<&'a str>) -> Result<(), RunError> {
        let answer = if std::mem::replace(&mut self.known[request].submitted, true) {
            Err("this id was submitted before".to_owned())
        } else {
            let request = self.request(request);
            self.scheduler.submit(request).map_err(|error| error.to_string())
        };
        let result = if answer.is_ok() { "accepted" } else { "rejected" };
        self.finish(Line { result: Some(result), reason: answer.err(), ..self.named("submit", label, request) })
    }

    /// The request as the scheduler takes it.
    fn request(&mut self, place: usize) -> Request {
        let RequestSpec { prompt, max_tokens, .. } = &self.scenario.requests[place];
        let config = &self.scenario.config;
        let capacity = u64::from(config.model_len()).min(u64::from(config.block_size) * u64::from(config.num_blocks));
        let mut request = if prompt.len() <= capacity.min(self.tokens_left) {
            self.tokens_left -= prompt.len();
            Request::new(id_of(place), prompt.tokens().collect(), *max_tokens)
        } else {
            Request::with_lengths(id_of(place), narrow(prompt.len()), Vec::new(), *max_tokens)
        };
        let spec = &self.scenario.requests[place];
        request.stop_tokens.clone_from(&spec.stop_tokens);
        request.priority = spec.priority;
        request.arrival_ns = spec.arrival_ns;
        request.ttft_slo_ns = spec.ttft_slo_ns;
        request.tbt_slo_ns = spec.tbt_slo_ns;
        request.tenant = spec.tenant.as_ref().map(|tenant| self.tenant_number(tenant));
        request.weight_millionths = spec.weight_millionths;
        // No salt and the empty salt are two.
        request.cache_salt = spec.cache_salt.iter().flat_map(|salt| std::iter::once(b'=').chain(salt.bytes())).collect();
        request.gates = if spec.gated { cpp_sched::GateSet::from(cpp_sched::Gate::Other) } else { cpp_sched::GateSet::NONE };
        request.drafts = spec.drafts;
        request
    }

    /// A tenant is known by the first request that names it.
    fn tenant_number(&self, tenant: &str) -> u64 {
        let first = self.scenario.requests.iter().position(|request| request.tenant.as_deref() == Some(tenant));
        first.unwrap_or_default() as u64
    }

    /// Asks for a batch and hands it to the executor; whether there was one.
    fn schedule(&mut self, label: Option<&'a str>) -> Result<bool, RunError> {
        let requests = &self.scenario.requests;
        let with_flops = self.scenario.config.model.is_some();
        let mut line = Line { batch: Some(None), ..Line::of("schedule", label) };
        let mut items = Vec::new();
        let mut executed = Vec::new();
        if let Schedule::Batch(batch) = self.scheduler.schedule() {
            self.message.clear();
            self.encoder.encode(&batch, &mut self.message).map_err(|error| broken(error.to_string()))?;
            let applied = self.mirror.apply(&self.message).map_err(|error| broken(error.to_string()))?;
            let plan = applied.plan().ok_or_else(|| broken("the message of a batch is no plan".to_owned()))?;
            for (row, costs) in plan.rows().zip(batch.rows()) {
                let place = place_of(row.request(), requests)?;
                let spec = &requests[place];
                items.push(LineItem {
                    id: &spec.id,
                    start: row.num_computed_tokens(),
                    len: row.num_scheduled_tokens(),
                    drafts: row.num_draft_tokens(),
                    samples: row.samples(),
                    flops: with_flops.then_some(costs.flops),
                    blocks: row.blocks().iter().map(|block| block.0).collect(),
                });
                let next = self.known[place].delivered as usize % spec.draft_accept.len();
                executed.push(Item {
                    request: place,
                    start: row.num_computed_tokens(),
                    len: row.num_scheduled_tokens(),
                    drafts: row.num_draft_tokens(),
                    right_drafts: spec.draft_accept[next],
                    samples: row.samples(),
                    table: row.blocks().to_vec(),
                    tokens: row.tokens().collect(),
                });
            }
            line.batch = Some(Some(batch.id().0));
            line.cost_ns = Some(batch.cost_ns());
            line.flops = with_flops.then_some(batch.flops());
        }
        let batch = line.batch.flatten();
        match batch {
            Some(number) => self.model.schedule(BatchId(number), executed)?,
            None => line.blocked = Some(self.blocked()?),
        }
        line.items = Some(items);
        line.preempted = Some(Vec::new());
        self.finish(line)?;
        Ok(batch.is_some())
    }

    /// Why each unfinished request is not in a batch.
    fn blocked(&self) -> Result<Vec<Blocked<'a>>, RunError> {
        let requests = &self.scenario.requests;
        let blocked = |id: RequestId| {
            let spec = &requests[place_of(id, requests)?];
            let why = self.scheduler.why(id).ok_or_else(|| broken(format!("{} is unfinished, and not alive", spec.id)))?;
            Ok(Blocked { id: &spec.id, reason: why.as_str() })
        };
        self.scheduler.unfinished().into_iter().map(blocked).collect()
    }

    fn complete(&mut self, label: Option<&'a str>) -> Result<(), RunError> {
        let oldest = self.scheduler.oldest_in_flight().map(cpp_sched::Batch::id);
        let done = self.model.complete()?;
        if done.as_ref().map(|(batch, _)| *batch) != oldest {
            return Err(broken(format!("the oldest batch in flight is {oldest:?}, the executor has {done:?}")));
        }
        if let Some((batch, sampled)) = done {
            let samples: Vec<Sample<'_>> =
                sampled.iter().map(|sampled| Sample { request: id_of(sampled.request), tokens: &sampled.tokens }).collect();
            self.scheduler.complete(batch, &samples).map_err(|error| broken(error.to_string()))?;
        }
        self.finish(Line { batch: Some(oldest.map(|batch| batch.0)), ..Line::of("complete", label) })
    }

    fn drain(&mut self, max: u32) -> Result<(), RunError> {
        let depth = self.scenario.config.depth();
        for _ in 0..max {
            if self.scheduler.num_unfinished() == 0 && self.scheduler.in_flight() == 0 {
                break;
            }
            while self.scheduler.in_flight() < depth && self.schedule(None)? {}
            if self.scheduler.in_flight() == 0 {
                break;
            }
            self.complete(None)?;
        }
        Ok(())
    }

    /// The peer has written the prompt's KV, or gave up half way; nothing if it was never asked to.
    fn transfer_ends(&mut self, request: usize, right: bool) -> Result<(), RunError> {
        if let Some(Transfer { start, end, table }) = self.known[request].transfer.take() {
            self.model.transfer(request, start, end, table, right)?;
        }
        Ok(())
    }

    fn named(&self, op: &'static str, label: Option<&'a str>, request: usize) -> Line<'a> {
        Line { id: Some(&self.scenario.requests[request].id), ..Line::of(op, label) }
    }

    /// Adds to the line what every line carries, and writes it.
    fn finish(&mut self, mut line: Line<'a>) -> Result<(), RunError> {
        let requests = &self.scenario.requests;
        let events: Vec<Event> = self.scheduler.events().collect();
        for event in events {
            let place = place_of(request_of(&event)?, requests)?;
            let spec = &requests[place];
            match event {
                Event::Preempted { .. } => match &mut line.preempted {
                    Some(preempted) => preempted.push(&spec.id),
                    None => return Err(broken(format!("{} is preempted by {}", spec.id, line.op))),
                },
                Event::Token { .. } => self.known[place].delivered += 1,
                Event::KvWanted { request, start, end } => {
                    self.message.clear();
                    let encoded = self.encoder.transfer(&self.scheduler, request, start, end, &mut self.message);
                    encoded.map_err(|error| broken(error.to_string()))?;
                    let applied = self.mirror.apply(&self.message).map_err(|error| broken(error.to_string()))?;
                    let wanted = applied.transfer().ok_or_else(|| broken("the message of a transfer is none".to_owned()))?;
                    self.known[place].transfer = Some(Transfer { start: wanted.start, end: wanted.end, table: wanted.blocks.to_vec() });
                }
                _ => {}
            }
            let blocks = || self.known[place].transfer.iter().flat_map(|transfer| &transfer.table).map(|block| block.0).collect();
            line.events.extend(LineEvent::of(&event, &spec.id, blocks));
        }
        line.kv = self.scheduler.kv_usage();
        line.in_flight = self.scheduler.in_flight();
        serde_json::to_writer(&mut self.log, &line).map_err(io::Error::from)?;
        self.log.write_all(b"\n")?;
        if self.check_invariants {
            self.scheduler.check_invariants().map_err(|violation| broken(format!("after {}: {violation:?}", line.op)))?;
        }
        Ok(())
    }
}

const fn id_of(place: usize) -> RequestId {
    RequestId(place as u64)
}

fn place_of(id: RequestId, requests: &[RequestSpec]) -> Result<usize, RunError> {
    let place = usize::try_from(id.0).ok().filter(|&place| place < requests.len());
    place.ok_or_else(|| broken(format!("{id} was never submitted")))
}

fn request_of(event: &Event) -> Result<RequestId, RunError> {
    match *event {
        Event::Token { request, .. }
        | Event::Finished { request, .. }
        | Event::Preempted { request }
        | Event::KvReady { request, .. }
        | Event::KvWanted { request, .. } => Ok(request),
        _ => Err(broken(format!("an event that the log has no form for: {event:?}"))),
    }
}

fn broken(what: String) -> RunError {
    RunError::Scheduler(what)
}
