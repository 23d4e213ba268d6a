//! One scheduler and its pipeline: decisions into pieces, results into completions, and the books of both.

use std::io::Write;
use std::time::Instant;

use cpp_sched::journal::{DecisionDigest, Decisions, Input};
use cpp_sched::{BatchId, Config, EmptyReason, Request, RequestId, RowKind, Sample, Schedule, Scheduler, SubmitError, TokenId};

use super::journal::Recorder;
use super::metrics::Samples;
use super::pieces::terms;
use super::record::{NEVER, Record};
use super::watch::BatchBack;
use super::{Machine, SimError};
use crate::pipeline::{Cause, Granularity, Piece, Pipe, Scheduling};

/// The token that ends a request whose end the scheduler does not know.
pub(crate) const STOP: TokenId = 1;

/// A scheduler, its pipeline and the requests that it has seen, by [`index`].
pub(crate) struct Site<'a> {
    pub(crate) scheduler: Scheduler,
    pub(crate) pipe: Pipe,
    pub(crate) machine: &'a Machine,
    /// The clock of its one thread.
    pub(crate) now_ns: u64,
    pub(crate) last_result_ns: u64,
    pub(crate) records: Vec<Record>,
    pub(crate) journal: Option<Recorder<'a>>,
    pub(crate) scheduled_tokens: u64,
    pub(crate) delivered_tokens: u64,
    pub(crate) schedule_real: Samples,
    pub(crate) complete_real: Samples,
    /// Chunks of prompts that were pushed, where that is of interest.
    pub(crate) ran: Option<Vec<Ran>>,
    depth: usize,
    /// When the newest piece was prepared.
    prepared_ns: u64,
    digest: Decisions,
    stage_ns: Vec<u64>,
    collective_ns: Vec<u64>,
    samples: Vec<Sample<'static>>,
}

/// A chunk of a prompt on its way through the stages.
pub(crate) struct Ran {
    pub(crate) request: RequestId,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Its beginning and end on each stage.
    pub(crate) steps: Vec<(u64, u64)>,
}

/// What came of trying to schedule.
pub(crate) enum Tried {
    /// A batch is on its way.
    Batch,
    /// It has to wait: as many batches as may be are in flight, or stage 0 still works.
    Later,
    /// The scheduler has none.
    Empty(EmptyReason),
}

impl<'a> Site<'a> {
    /// A site that may see so many requests, idle from `start_ns` on.
    pub(crate) fn new(
        machine: &'a Machine,
        config: Config,
        requests: usize,
        start_ns: u64,
        journal: Option<&'a mut dyn Write>,
    ) -> Result<Self, SimError> {
        let mut scheduler = Scheduler::new(config)?;
        let costs = &machine.stage_costs;
        if costs.len() != config.stages as usize {
            return Err(SimError::Stages { config: config.stages, machine: costs.len() });
        }
        if u32::try_from(requests).is_err() {
            return Err(SimError::TooManyRequests);
        }
        let mut journal = journal.map(|sink| Recorder::new(&config, sink));
        // A scheduler that is told the truth about one stage is told it about all.
        if config.cost.is_some_and(|cost| costs.contains(&cost) && costs.iter().any(|other| *other != cost)) {
            scheduler.set_stage_costs(costs)?;
            if let Some(journal) = &mut journal {
                journal.stage_costs(costs);
            }
        }
        Ok(Self {
            scheduler,
            pipe: Pipe::new(config.stages, machine.links, machine.return_ns, start_ns),
            machine,
            now_ns: start_ns,
            last_result_ns: start_ns,
            records: vec![Record::new(); requests],
            journal,
            scheduled_tokens: 0,
            delivered_tokens: 0,
            schedule_real: Samples::default(),
            complete_real: Samples::default(),
            ran: None,
            depth: config.depth() as usize,
            prepared_ns: 0,
            digest: Decisions::default(),
            stage_ns: Vec::with_capacity(costs.len()),
            collective_ns: Vec::new(),
            samples: Vec::new(),
        })
    }

    /// Time never runs back: what was due during a decision is handled after it.
    pub(crate) fn advance_to(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// Hash over every decision so far.
    pub(crate) fn digest(&self) -> DecisionDigest {
        self.digest.digest()
    }

    fn tick(&mut self) {
        self.scheduler.tick(self.now_ns);
        if let Some(journal) = &mut self.journal {
            journal.tick(self.now_ns);
        }
    }

    /// Makes a call that the journal is to know, now.
    pub(crate) fn call<T>(&mut self, input: impl FnOnce() -> Input, call: impl FnOnce(&mut Scheduler) -> T) -> T {
        self.tick();
        if let Some(journal) = &mut self.journal {
            journal.input(&input());
        }
        call(&mut self.scheduler)
    }

    /// Hands in a request.
    pub(crate) fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        self.tick();
        if let Some(journal) = &mut self.journal {
            journal.submit(&request);
        }
        self.scheduler.submit(request)?;
        self.pipe.work_came(self.now_ns);
        Ok(())
    }

    /// When stage 0 has run out of pieces, if decisions wait for that.
    fn stage_0_decides(&self) -> Option<u64> {
        let free_ns = (self.machine.scheduling == Scheduling::Sync).then(|| self.pipe.first_stage_free_ns());
        free_ns.filter(|&free_ns| !self.is_full() && free_ns > self.now_ns)
    }

    fn is_full(&self) -> bool {
        self.pipe.in_flight() >= self.depth
    }

    /// When something happens here by itself: a result is back, or stage 0 wants a decision.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        [self.pipe.next_result_ns(), self.stage_0_decides()].into_iter().flatten().min()
    }

    /// Says why stage 0 has no piece, for the time until the next event.
    pub(crate) fn tell_why_stage_0_waits(&mut self) {
        if self.pipe.hung_since_ns().is_some_and(|since_ns| since_ns <= self.now_ns) {
            return self.pipe.waits(self.now_ns, Cause::Fault);
        }
        match self.pipe.oldest_leaves_ns() {
            Some(leaves_ns) if self.is_full() => {
                self.pipe.waits(self.now_ns, Cause::Downstream);
                let held = if self.machine.faults.is_empty() { None } else { self.pipe.oldest_is_held_ns() };
                if let Some((from_ns, to_ns)) = held.filter(|&(_, to_ns)| to_ns > self.now_ns) {
                    self.pipe.waits(from_ns.max(self.now_ns), Cause::Fault);
                    self.pipe.waits(to_ns, Cause::Downstream);
                }
                self.pipe.waits(leaves_ns.max(self.now_ns), Cause::Communication);
            }
            _ => self.pipe.waits(self.now_ns, Cause::Dependency),
        }
    }

    /// Takes the oldest result that is back; before it is completed, `show` sees it. None: none is back.
    pub(crate) fn complete_oldest(&mut self, show: impl FnOnce(&BatchBack<'_>)) -> Result<Option<BatchId>, SimError> {
        let Some(id) = self.pipe.take_result(self.now_ns) else { return Ok(None) };
        self.tick();
        show(&self.taken(id));
        self.samples.clear();
        let rows = self.scheduler.batch(id).map_or(&[][..], |batch| batch.rows());
        if self.machine.granularity != Granularity::Batch {
            // A token counts when its piece is back, though the scheduler hears of it with the whole batch.
            let pieces = self.machine.granularity.pieces(rows).zip(self.pipe.taken_pieces_back_ns());
            for (rows, &back_ns) in pieces {
                rows.iter().filter(|row| row.samples).for_each(|row| self.records[index(row.request)].piece_back_ns = back_ns);
            }
        }
        let records = &self.records;
        self.samples.extend(rows.iter().filter(|row| row.samples).map(|row| {
            let last = records[index(row.request)].is_last_output();
            Sample { request: row.request, tokens: if last { &[STOP] } else { &[0] } }
        }));
        if let Some(journal) = &mut self.journal {
            journal.complete(id, &self.samples);
            journal.flush(false)?;
        }
        let started = Instant::now();
        let result = self.scheduler.complete(id, &self.samples);
        self.complete_real.push(real_ns(started));
        result?;
        self.last_result_ns = self.now_ns;
        Ok(Some(id))
    }

    /// The batch that the pipeline gave back last, for those who look at the run.
    pub(crate) fn taken(&self, id: BatchId) -> BatchBack<'_> {
        let stats = self.scheduler.stats();
        BatchBack {
            batch: id,
            rows: self.scheduler.batch(id).map_or(&[][..], |batch| batch.rows()),
            granularity: self.machine.granularity,
            slices: self.pipe.taken_slices(),
            now_ns: self.now_ns,
            waiting: stats.waiting,
            running: stats.running,
            kv: self.scheduler.kv_usage(),
        }
    }

    /// To be called when all events were taken.
    pub(crate) fn rest(&mut self) {
        if self.scheduler.is_idle() {
            self.pipe.work_ended(self.now_ns);
        }
    }

    /// A token is delivered; answers with when it counts.
    pub(crate) fn token(&mut self, request: RequestId) -> u64 {
        self.delivered_tokens += 1;
        if self.machine.granularity == Granularity::Batch { self.now_ns } else { self.records[index(request)].piece_back_ns }
    }

    /// Asks for one batch and hands it to the pipeline.
    pub(crate) fn try_schedule(&mut self) -> Result<Tried, SimError> {
        if self.is_full() || self.stage_0_decides().is_some() {
            return Ok(Tried::Later);
        }
        self.tick();
        if let Some(journal) = &mut self.journal {
            journal.schedule();
        }
        let started = Instant::now();
        let answer = self.scheduler.schedule();
        self.schedule_real.push(real_ns(started));
        let scheduled = match answer {
            Schedule::Batch(scheduled) => scheduled,
            Schedule::Empty(reason) => return Ok(Tried::Empty(reason)),
        };
        let batch = scheduled.batch();
        let decided_ns = self.now_ns.saturating_add(self.machine.scheduler_ns);
        self.pipe.waits(self.now_ns, Cause::Scheduler);
        for request in batch.preempted() {
            self.records[index(*request)].preempted();
        }
        self.digest.add(&scheduled);
        if let Some(journal) = &mut self.journal {
            journal.batch(&scheduled);
        }
        for row in batch.rows() {
            let record = &mut self.records[index(row.request)];
            record.runs(row.num_computed_tokens, row.end()).map_err(|expected| SimError::Gap {
                request: row.request,
                expected,
                start: row.num_computed_tokens,
            })?;
            if record.first_scheduled_ns == NEVER {
                record.first_scheduled_ns = self.now_ns;
            }
        }
        self.scheduled_tokens += batch.num_tokens();
        let machine = self.machine;
        for rows in machine.granularity.pieces(batch.rows()) {
            let terms = if rows.len() == batch.rows().len() { *batch.terms() } else { terms(rows) };
            let from_ns = match machine.scheduling {
                Scheduling::Ahead => decided_ns.max(self.prepared_ns),
                Scheduling::Sync => decided_ns.max(self.pipe.first_stage_free_ns()),
            };
            self.prepared_ns = from_ns.saturating_add(machine.piece_ns);
            let decodes = rows.iter().filter(|row| row.kind == RowKind::Decode);
            let tokens_ns = decodes.map(|row| self.records[index(row.request)].token_back_ns).max().unwrap_or(0);
            self.pipe.waits(decided_ns, Cause::Scheduler);
            self.pipe.waits(self.prepared_ns, Cause::Dependency);
            self.stage_ns.clear();
            match &machine.table {
                Some(table) => self.stage_ns.resize(machine.stage_costs.len(), table.ns(&terms)),
                None => self.stage_ns.extend(machine.stage_costs.iter().map(|cost| cost.cost(&terms).to_ns())),
            }
            if let Some(last) = self.stage_ns.last_mut().filter(|_| rows.iter().any(|row| row.samples)) {
                *last = last.saturating_add(machine.sampling_ns);
            }
            let piece = Piece {
                not_before_ns: self.prepared_ns.max(tokens_ns),
                stage_ns: &self.stage_ns,
                transmit_ns: machine.hop.transmit_ns(terms.tokens),
                latency_ns: machine.hop.latency_ns,
            };
            if let Some(collectives) = &machine.collectives {
                self.collective_ns.clear();
                self.collective_ns.extend((0..self.stage_ns.len()).map(|stage| collectives.stage_ns(stage, terms.tokens)));
            }
            let passage = self.pipe.push_with(batch.id(), &piece, &self.collective_ns);
            let back_ns = passage.back_ns;
            if let Some(ran) = &mut self.ran {
                for row in rows.iter().filter(|row| row.kind == RowKind::Prefill) {
                    let steps = passage.steps.iter().map(|step| (step.start_ns, step.end_ns)).collect();
                    ran.push(Ran { request: row.request, start: row.num_computed_tokens, end: row.end(), steps });
                }
            }
            for row in rows.iter().filter(|row| row.samples) {
                self.records[index(row.request)].token_back_ns = back_ns;
            }
        }
        self.now_ns = decided_ns;
        Ok(Tried::Batch)
    }
}

/// A request's place in the workload: the simulator names requests so.
pub(crate) const fn index(request: RequestId) -> usize {
    request.0 as usize
}

fn real_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
