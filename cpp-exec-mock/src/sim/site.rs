//! A pipeline in virtual time as the executor of a driver: batches into pieces, pieces into results, and the books of both.

use std::collections::VecDeque;
use std::time::Instant;

use cpp_sched::driver::{self, Driver, Executor, Failure, Progress, Step};
use cpp_sched::journal::{DecisionDigest, Decisions, JournalWriter};
use cpp_sched::{BatchId, Config, KvUsage, RequestId, Row, RowKind, Scheduled, Scheduler, TokenId};

use super::metrics::Samples;
use super::pieces::terms;
use super::record::{NEVER, Record};
use super::watch::{BatchBack, Watch};
use super::{Machine, SimError};
use crate::pipeline::{Cause, Granularity, Piece, Pipe, Scheduling};

/// The token that ends a request whose end the scheduler does not know.
pub(crate) const STOP: TokenId = 1;

/// A pipeline in virtual time, and the books of the requests that it has seen, by [`index`]. The [`Driver`] around the scheduler fills it and
/// takes results from it; whoever steps the driver sets the clock.
pub(crate) struct Site<'a> {
    pub(crate) pipe: Pipe,
    pub(crate) machine: &'a Machine,
    /// The clock of the scheduler's one thread.
    pub(crate) now_ns: u64,
    pub(crate) last_result_ns: u64,
    pub(crate) records: Vec<Record>,
    pub(crate) scheduled_tokens: u64,
    pub(crate) delivered_tokens: u64,
    pub(crate) schedule_real: Samples,
    pub(crate) complete_real: Samples,
    /// Chunks of prompts that were pushed, where that is of interest.
    pub(crate) ran: Option<Vec<Ran>>,
    /// Who looks at the run.
    pub(crate) watch: Vec<&'a mut dyn Watch>,
    /// Of the scheduler, for those: as it was before the step.
    pub(crate) gauges: Gauges,
    /// Whose rows were in batches that were lost, as often as they were there.
    pub(crate) lost: Vec<RequestId>,
    depth: usize,
    /// When the newest piece was prepared.
    prepared_ns: u64,
    digest: Decisions,
    stage_ns: Vec<u64>,
    collective_ns: Vec<u64>,
    /// The rows of the batches under way, oldest first, and room for more of them.
    rows: VecDeque<Vec<Row>>,
    spare: Vec<Vec<Row>>,
    /// When the part of a step began that is the scheduler's own.
    since: Instant,
}

/// What a [`Watch`] is told of the scheduler.
#[derive(Clone, Copy, Default)]
pub(crate) struct Gauges {
    pub(crate) waiting: u32,
    pub(crate) running: u32,
    pub(crate) kv: KvUsage,
}

/// A chunk of a prompt on its way through the stages.
pub(crate) struct Ran {
    pub(crate) request: RequestId,
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// Its beginning and end on each stage.
    pub(crate) steps: Vec<(u64, u64)>,
}

/// A scheduler that is idle from `start_ns` on, its pipeline behind it, for so many requests at most.
pub(crate) fn drive<'a>(
    machine: &'a Machine,
    config: Config,
    requests: usize,
    start_ns: u64,
    journal: bool,
) -> Result<Driver<Site<'a>>, SimError> {
    let scheduler = Scheduler::new(config)?;
    let costs = &machine.stage_costs;
    if costs.len() != config.stages as usize {
        return Err(SimError::Stages { config: config.stages, machine: costs.len() });
    }
    if u32::try_from(requests).is_err() {
        return Err(SimError::TooManyRequests);
    }
    let site = Site {
        pipe: Pipe::new(config.stages, machine.links, machine.return_ns, start_ns),
        machine,
        now_ns: start_ns,
        last_result_ns: start_ns,
        records: vec![Record::new(); requests],
        scheduled_tokens: 0,
        delivered_tokens: 0,
        schedule_real: Samples::default(),
        complete_real: Samples::default(),
        ran: None,
        watch: Vec::new(),
        gauges: Gauges::default(),
        lost: Vec::new(),
        depth: config.depth() as usize,
        prepared_ns: 0,
        digest: Decisions::default(),
        stage_ns: Vec::with_capacity(costs.len()),
        collective_ns: Vec::new(),
        rows: VecDeque::new(),
        spare: Vec::new(),
        since: Instant::now(),
    };
    let mut driver = Driver::new(scheduler, site);
    // What goes wrong here is a bug, and no accident of a machine.
    driver.set_max_failures(0);
    if journal {
        driver.record(JournalWriter::new(&config));
    }
    // A scheduler that is told the truth about one stage is told it about all.
    if config.cost.is_some_and(|cost| costs.contains(&cost) && costs.iter().any(|other| *other != cost)) {
        driver.set_stage_costs(costs)?;
    }
    Ok(driver)
}

/// The next step at the time that the site has, and what it took in real time.
pub(crate) fn step(driver: &mut Driver<Site<'_>>) -> Result<Step<SimError>, SimError> {
    let site = driver.executor();
    let (due, decides) = (site.result_is_due(), !site.is_full() && site.stage_0_decides().is_none());
    if due || decides {
        driver.tick(driver.executor().now_ns);
    }
    if due && !driver.executor().watch.is_empty() {
        look(driver);
    }
    driver.executor_mut().since = Instant::now();
    let step = driver.step().map_err(|gave_up| match gave_up.cause {
        Failure::Executor(error) => error,
        Failure::Result(error) => SimError::Complete(error),
        cause => SimError::Driver(cause.to_string()),
    })?;
    let site = driver.executor_mut();
    match step {
        Step::Progress(Progress::Completed(_)) => site.complete_real.push(real_ns(site.since)),
        Step::Progress(_) | Step::WaitingForResults | Step::WaitingForExecutor => {}
        // Asked in vain, with nothing in flight.
        _ => site.schedule_real.push(real_ns(site.since)),
    }
    Ok(step)
}

/// Those who look at the run see the scheduler as it is now.
pub(crate) fn look(driver: &mut Driver<Site<'_>>) {
    let (stats, kv) = (driver.scheduler().stats(), driver.scheduler().kv_usage());
    driver.executor_mut().gauges = Gauges { waiting: stats.waiting, running: stats.running, kv };
}

/// To be called when all events were taken: with nobody there, stages are idle for want of work.
pub(crate) fn rest(driver: &mut Driver<Site<'_>>) {
    if driver.scheduler().is_idle() {
        let site = driver.executor_mut();
        site.pipe.work_ended(site.now_ns);
    }
}

impl Site<'_> {
    /// Time never runs back: what was due during a decision is handled after it.
    pub(crate) fn advance_to(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// Hash over every decision so far.
    pub(crate) fn digest(&self) -> DecisionDigest {
        self.digest.digest()
    }

    /// Whether the oldest result is back by now.
    pub(crate) fn result_is_due(&self) -> bool {
        self.pipe.next_result_ns().is_some_and(|back_ns| back_ns <= self.now_ns)
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

    /// A batch does not come back: its rows, and the end of its way.
    pub(crate) fn lose(&mut self, batch: BatchId) {
        self.last_result_ns = self.now_ns;
        let rows = self.rows.pop_front().unwrap_or_default();
        self.lost.extend(rows.iter().map(|row| row.request));
        self.show(batch, &rows, |watch, back| watch.lost(back));
        self.give_back(rows);
    }

    /// The batch that the pipeline gave back last, for those who look at the run.
    fn show(&mut self, batch: BatchId, rows: &[Row], tell: impl Fn(&mut dyn Watch, &BatchBack<'_>)) {
        let Gauges { waiting, running, kv } = self.gauges;
        let (granularity, slices, now_ns) = (self.machine.granularity, self.pipe.taken_slices(), self.now_ns);
        let back = BatchBack { batch, rows, granularity, slices, now_ns, waiting, running, kv };
        self.watch.iter_mut().for_each(|watch| tell(&mut **watch, &back));
    }

    fn give_back(&mut self, mut rows: Vec<Row>) {
        rows.clear();
        self.spare.push(rows);
    }

    /// A token is delivered; answers with when it counts.
    pub(crate) fn token(&mut self, request: RequestId) -> u64 {
        self.delivered_tokens += 1;
        if self.machine.granularity == Granularity::Batch { self.now_ns } else { self.records[index(request)].piece_back_ns }
    }
}

impl Executor for Site<'_> {
    type Error = SimError;

    fn has_room(&mut self) -> bool {
        self.stage_0_decides().is_none()
    }

    /// A batch takes its way: when each stage will have run it is known from now on.
    fn submit(&mut self, scheduled: &Scheduled<'_>) -> Result<(), SimError> {
        self.schedule_real.push(real_ns(self.since));
        let batch = scheduled.batch();
        let decided_ns = self.now_ns.saturating_add(self.machine.scheduler_ns);
        self.pipe.waits(self.now_ns, Cause::Scheduler);
        for request in batch.preempted() {
            self.records[index(*request)].preempted();
        }
        self.digest.add(scheduled);
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
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.extend_from_slice(batch.rows());
        self.rows.push_back(rows);
        self.now_ns = decided_ns;
        Ok(())
    }

    fn poll(&mut self, samples: &mut driver::Samples) -> Result<Option<BatchId>, SimError> {
        let taken = self.pipe.take_result(self.now_ns);
        if let Some(batch) = taken {
            let rows = self.rows.pop_front().unwrap_or_default();
            self.show(batch, &rows, |watch, back| watch.batch(back));
            if self.machine.granularity != Granularity::Batch {
                // A token counts when its piece is back, though the scheduler hears of it with the whole batch.
                let pieces = self.machine.granularity.pieces(&rows).zip(self.pipe.taken_pieces_back_ns());
                for (rows, &back_ns) in pieces {
                    rows.iter().filter(|row| row.samples).for_each(|row| self.records[index(row.request)].piece_back_ns = back_ns);
                }
            }
            for row in rows.iter().filter(|row| row.samples) {
                let last = self.records[index(row.request)].is_last_output();
                samples.push(row.request, if last { &[STOP] } else { &[0] });
            }
            self.give_back(rows);
            self.last_result_ns = self.now_ns;
        }
        self.since = Instant::now();
        Ok(taken)
    }

    /// Time does not pass here: nothing comes that was not there when it was polled.
    fn wait(&mut self, _: &mut driver::Samples) -> Result<Option<BatchId>, SimError> {
        if !self.is_full() && self.stage_0_decides().is_none() {
            self.schedule_real.push(real_ns(self.since));
        }
        Ok(None)
    }

    fn fail(&mut self) -> Result<(), SimError> {
        while let Some(batch) = self.pipe.lose_oldest(self.now_ns) {
            self.lose(batch);
        }
        self.last_result_ns = self.now_ns;
        Ok(())
    }
}

/// A request's place in the workload: the simulator names requests so.
pub(crate) const fn index(request: RequestId) -> usize {
    request.0 as usize
}

fn real_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
