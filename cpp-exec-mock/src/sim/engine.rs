//! The event loop: arrivals, decisions, results.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Instant;

use cpp_sched::journal::Decisions;
use cpp_sched::{BatchId, Config, Event, Request, RequestId, RowKind, Sample, Schedule, Scheduler, SubmitError};

use super::journal::Recorder;
use super::metrics::Samples;
use super::pieces::terms;
use super::record::{NEVER, Record, TokenTally};
use super::watch::{BatchBack, RequestArrived, RequestDone, Watch};
use super::{Machine, Outcome, Progress, Rejection, RequestCounts, SimError, Slo};
use crate::pipeline::{Cause, Granularity, Piece, Pipe, Scheduling};
use crate::workload::Workload;

/// Batches between two calls of the progress function.
const PROGRESS_EVERY: u64 = 4096;

/// Runs a workload to its end.
///
/// `config` is what the scheduler knows, `machine` what batches cost; both must have the same number of stages. `slo` gives every request its
/// targets, for the policies that look at them and for the goodput. `progress` is called every few thousand batches.
///
/// Linear in the rows of all batches, with about 150 bytes a request and a few MiB besides the workload and the kernel's own memory.
///
/// # Errors
/// A configuration that is not valid; anything else means a bug, see [`SimError`].
pub fn simulate(
    workload: &Workload,
    machine: &Machine,
    config: Config,
    slo: Slo,
    progress: &mut dyn FnMut(Progress),
) -> Result<Outcome, SimError> {
    simulate_with(workload, machine, config, slo, progress, Extras::default())
}

/// What a run may have besides.
#[derive(Default)]
pub struct Extras<'a> {
    /// Every input of the scheduler is written there as a journal ([`cpp_sched::journal`]), from which [`replay`](cpp_sched::journal::replay) runs the
    /// same decisions again.
    pub journal: Option<&'a mut dyn Write>,
    /// Who looks at the run.
    pub watch: Vec<&'a mut dyn Watch>,
}

/// As [`simulate`], with more.
///
/// # Errors
/// As [`simulate`]; or the journal cannot be written.
pub fn simulate_with<'a>(
    workload: &'a Workload,
    machine: &'a Machine,
    config: Config,
    slo: Slo,
    progress: &mut dyn FnMut(Progress),
    extras: Extras<'a>,
) -> Result<Outcome, SimError> {
    let mut engine = Engine::new(workload, machine, config, slo, extras)?;
    engine.run(progress)?;
    if let Some(journal) = &mut engine.journal {
        journal.flush(true)?;
    }
    engine.finish()
}

/// Durations that are sampled during a run.
#[derive(Default)]
struct Measured {
    ttft: Samples,
    ttft_long: Samples,
    tpot: Samples,
    itl: Samples,
    e2e: Samples,
    queue: Samples,
    schedule_real: Samples,
    complete_real: Samples,
    within_slo: u64,
}

struct Engine<'a> {
    workload: &'a Workload,
    machine: &'a Machine,
    slo: Slo,
    scheduler: Scheduler,
    pipe: Pipe,
    depth: usize,
    now_ns: u64,
    next_arrival: usize,
    /// When the newest piece was prepared.
    prepared_ns: u64,
    last_result_ns: u64,
    records: Vec<Record>,
    counts: RequestCounts,
    rejected: BTreeMap<&'static str, Rejection>,
    tokens: TokenTally,
    scheduled_tokens: u64,
    delivered_tokens: u64,
    measured: Measured,
    digest: Decisions,
    journal: Option<Recorder<'a>>,
    /// Prompts longer than this count as long.
    long_prompt: u64,
    stage_ns: Vec<u64>,
    samples: Vec<Sample<'static>>,
    watch: Vec<&'a mut dyn Watch>,
}

impl<'a> Engine<'a> {
    fn new(workload: &'a Workload, machine: &'a Machine, config: Config, slo: Slo, extras: Extras<'a>) -> Result<Self, SimError> {
        let mut scheduler = Scheduler::new(config)?;
        if machine.stage_costs.len() != config.stages as usize {
            return Err(SimError::Stages { config: config.stages, machine: machine.stage_costs.len() });
        }
        if u32::try_from(workload.items().len()).is_err() {
            return Err(SimError::TooManyRequests);
        }
        let first_arrival_ns = workload.items().first().map_or(0, |item| item.arrival_ns);
        let mut journal = extras.journal.map(|sink| Recorder::new(&config, sink));
        // A scheduler that is told the truth about one stage is told it about all.
        let costs = &machine.stage_costs;
        if config.cost.is_some_and(|cost| costs.contains(&cost) && costs.iter().any(|other| *other != cost)) {
            scheduler.set_stage_costs(costs)?;
            if let Some(journal) = &mut journal {
                journal.stage_costs(costs);
            }
        }
        Ok(Self {
            workload,
            machine,
            slo,
            scheduler,
            pipe: Pipe::new(config.stages, machine.links, machine.return_ns, first_arrival_ns),
            depth: config.depth() as usize,
            now_ns: first_arrival_ns,
            next_arrival: 0,
            prepared_ns: 0,
            last_result_ns: first_arrival_ns,
            records: vec![Record::new(); workload.items().len()],
            counts: RequestCounts::default(),
            rejected: BTreeMap::new(),
            tokens: TokenTally::default(),
            scheduled_tokens: 0,
            delivered_tokens: 0,
            measured: Measured::default(),
            digest: Decisions::default(),
            journal,
            long_prompt: 2 * u64::from(config.max_batch_tokens),
            stage_ns: Vec::with_capacity(config.stages as usize),
            samples: Vec::new(),
            watch: extras.watch,
        })
    }

    fn run(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), SimError> {
        let mut batches = 0u64;
        loop {
            self.complete_results()?;
            self.submit_arrivals();
            let full = self.pipe.in_flight() >= self.depth;
            let stage_0 = self.stage_0_decides().filter(|&free_ns| !full && free_ns > self.now_ns);
            if !full && stage_0.is_none() && self.schedule_one()? {
                batches += 1;
                if batches.is_multiple_of(PROGRESS_EVERY) {
                    progress(self.progress());
                }
                continue;
            }
            self.tell_why_stage_0_waits(full);
            let arrival = self.workload.items().get(self.next_arrival).map(|item| item.arrival_ns);
            match [arrival, self.pipe.next_result_ns(), stage_0].into_iter().flatten().min() {
                Some(next) => self.advance_to(next),
                None => break,
            }
        }
        progress(self.progress());
        Ok(())
    }

    /// When stage 0 has run out of pieces, if decisions wait for that.
    fn stage_0_decides(&self) -> Option<u64> {
        (self.machine.scheduling == Scheduling::Sync).then(|| self.pipe.first_stage_free_ns())
    }

    /// For the time until the next event.
    fn tell_why_stage_0_waits(&mut self, full: bool) {
        match self.pipe.oldest_leaves_ns() {
            Some(leaves_ns) if full => {
                self.pipe.waits(self.now_ns, Cause::Downstream);
                self.pipe.waits(leaves_ns.max(self.now_ns), Cause::Communication);
            }
            _ => self.pipe.waits(self.now_ns, Cause::Dependency),
        }
    }

    fn progress(&self) -> Progress {
        Progress { done: self.counts.finished + self.counts.rejected, total: self.workload.items().len() as u64, now_ns: self.now_ns }
    }

    /// Time never runs back: what was due during a decision is handled after it.
    fn advance_to(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
    }

    /// Completes every batch whose result is back.
    fn complete_results(&mut self) -> Result<(), SimError> {
        while let Some(id) = self.pipe.take_result(self.now_ns) {
            self.scheduler.tick(self.now_ns);
            self.samples.clear();
            self.show_batch(id);
            let rows = self.scheduler.batch(id).map_or(&[][..], |batch| batch.rows());
            if self.machine.granularity != Granularity::Batch {
                // A token counts when its piece is back, though the scheduler hears of it with the whole batch.
                let pieces = self.machine.granularity.pieces(rows).zip(self.pipe.taken_pieces_back_ns());
                for (rows, &back_ns) in pieces {
                    rows.iter().filter(|row| row.samples).for_each(|row| self.records[index(row.request)].piece_back_ns = back_ns);
                }
            }
            self.samples.extend(rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[0] }));
            if let Some(journal) = &mut self.journal {
                journal.tick(self.now_ns);
                journal.complete(id, &self.samples);
                journal.flush(false)?;
            }
            let started = Instant::now();
            let result = self.scheduler.complete(id, &self.samples);
            self.measured.complete_real.push(real_ns(started));
            result?;
            self.last_result_ns = self.now_ns;
            self.take_events();
            if self.scheduler.is_idle() {
                self.pipe.work_ended(self.now_ns);
            }
        }
        Ok(())
    }

    /// To those who look at the run; before the batch is completed.
    fn show_batch(&mut self, id: BatchId) {
        if self.watch.is_empty() {
            return;
        }
        let stats = self.scheduler.stats();
        let back = BatchBack {
            batch: id,
            rows: self.scheduler.batch(id).map_or(&[][..], |batch| batch.rows()),
            granularity: self.machine.granularity,
            slices: self.pipe.taken_slices(),
            now_ns: self.now_ns,
            waiting: stats.waiting,
            running: stats.running,
            kv: self.scheduler.kv_usage(),
        };
        self.watch.iter_mut().for_each(|watch| watch.batch(&back));
    }

    fn take_events(&mut self) {
        let whole = self.machine.granularity == Granularity::Batch;
        for event in self.scheduler.events() {
            match event {
                Event::Token { request, .. } => {
                    self.delivered_tokens += 1;
                    let record = &mut self.records[index(request)];
                    let now_ns = if whole { self.now_ns } else { record.piece_back_ns };
                    if record.outputs == 0 {
                        record.first_token_ns = now_ns;
                    } else {
                        self.measured.itl.push(now_ns - record.last_token_ns);
                    }
                    record.last_token_ns = now_ns;
                    record.outputs += 1;
                }
                Event::Finished { request, .. } => {
                    let item = &self.workload.items()[index(request)];
                    let record = &self.records[index(request)];
                    self.counts.finished += 1;
                    record.add_to(item.input_tokens, &mut self.tokens);
                    let long = u64::from(item.input_tokens) > self.long_prompt;
                    self.measured.finished(record, item.arrival_ns, long, self.slo);
                    let done = RequestDone {
                        index: index(request),
                        input_tokens: item.input_tokens,
                        output_tokens: record.outputs,
                        arrival_ns: item.arrival_ns,
                        ttft_ns: record.first_token_ns - item.arrival_ns,
                        e2e_ns: record.last_token_ns - item.arrival_ns,
                    };
                    self.watch.iter_mut().for_each(|watch| watch.request(&done));
                }
                // Preemptions come with the batch; the others belong to roles that are not simulated.
                _ => {}
            }
        }
    }

    fn submit_arrivals(&mut self) {
        let block_size = self.scheduler.config().block_size;
        let prefix_caching = self.scheduler.config().prefix_caching;
        while let Some(item) = self.workload.items().get(self.next_arrival)
            && item.arrival_ns <= self.now_ns
        {
            let digests = if prefix_caching { self.workload.digests(self.next_arrival, block_size) } else { Vec::new() };
            let id = RequestId(self.next_arrival as u64);
            let mut request = Request::with_lengths(id, item.input_tokens, digests, item.output_tokens);
            request.priority = item.priority;
            request.arrival_ns = Some(item.arrival_ns);
            request.ttft_slo_ns = self.slo.ttft_ns;
            request.tbt_slo_ns = self.slo.tpot_ns;
            request.tenant = item.tenant.map(|tenant| u64::from(tenant.0));
            self.next_arrival += 1;
            self.counts.submitted += 1;
            self.scheduler.tick(self.now_ns);
            if let Some(journal) = &mut self.journal {
                journal.tick(self.now_ns);
                journal.submit(&request);
            }
            match self.scheduler.submit(request) {
                Ok(()) => {
                    self.pipe.work_came(self.now_ns);
                    let (index, input_tokens, arrival_ns) = (self.next_arrival - 1, item.input_tokens, item.arrival_ns);
                    self.watch.iter_mut().for_each(|watch| watch.arrived(&RequestArrived { index, input_tokens, arrival_ns }));
                }
                Err(error) => {
                    self.counts.rejected += 1;
                    let rejection = self.rejected.entry(reason(&error)).or_insert_with(|| Rejection { count: 0, first: error.to_string() });
                    rejection.count += 1;
                }
            }
        }
    }

    /// Asks for one batch and hands it to the pipeline; false: there is none now.
    fn schedule_one(&mut self) -> Result<bool, SimError> {
        self.scheduler.tick(self.now_ns);
        if let Some(journal) = &mut self.journal {
            journal.tick(self.now_ns);
            journal.schedule();
        }
        let started = Instant::now();
        let answer = self.scheduler.schedule();
        let took = real_ns(started);
        let scheduled = match answer {
            Schedule::Batch(scheduled) => scheduled,
            Schedule::Empty(reason) => {
                self.measured.schedule_real.push(took);
                let nothing_comes = self.pipe.in_flight() == 0 && self.next_arrival == self.workload.items().len();
                if nothing_comes && !self.scheduler.is_idle() {
                    let unfinished = self.scheduler.num_unfinished();
                    return Err(SimError::Stuck { now_ns: self.now_ns, unfinished, reason });
                }
                return Ok(false);
            }
        };
        self.measured.schedule_real.push(took);
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
            self.stage_ns.extend(machine.stage_costs.iter().map(|cost| cost.cost(&terms).to_ns()));
            if let Some(last) = self.stage_ns.last_mut().filter(|_| rows.iter().any(|row| row.samples)) {
                *last = last.saturating_add(machine.sampling_ns);
            }
            let piece = Piece {
                not_before_ns: self.prepared_ns.max(tokens_ns),
                stage_ns: &self.stage_ns,
                transmit_ns: machine.hop.transmit_ns(terms.tokens),
                latency_ns: machine.hop.latency_ns,
            };
            let back_ns = self.pipe.push(batch.id(), &piece).back_ns;
            for row in rows.iter().filter(|row| row.samples) {
                self.records[index(row.request)].token_back_ns = back_ns;
            }
        }
        self.now_ns = decided_ns;
        Ok(true)
    }

    /// Checks the books and sums up.
    fn finish(mut self) -> Result<Outcome, SimError> {
        let stats = self.scheduler.stats();
        self.counts.unfinished = u64::from(self.scheduler.num_unfinished());
        if !self.tokens.balances() {
            return Err(SimError::Account(self.tokens));
        }
        for (what, scheduler, simulator) in [
            ("finished requests", stats.finished, self.counts.finished),
            ("rejected requests", stats.rejected, self.counts.rejected),
            ("scheduled tokens", stats.scheduled_tokens, self.scheduled_tokens),
            ("output tokens", stats.output_tokens, self.delivered_tokens),
        ] {
            if scheduler != simulator {
                return Err(SimError::Counter { what, scheduler, simulator });
            }
        }
        let first_arrival_ns = self.workload.items().first().map_or(0, |item| item.arrival_ns);
        let window_ns = self.last_result_ns - first_arrival_ns;
        let (stages, tail) = self.pipe.finish(first_arrival_ns, self.last_result_ns);
        self.watch.iter_mut().for_each(|watch| watch.end(&tail));
        if let Some(stage) = stages.iter().position(|stage| stage.sum_ns() != window_ns) {
            return Err(SimError::StageAccount { stage, sum_ns: stages[stage].sum_ns(), window_ns });
        }
        let m = self.measured;
        Ok(Outcome {
            config: *self.scheduler.config(),
            requests: self.counts,
            rejected: self.rejected,
            tokens: self.tokens,
            duration_ns: window_ns,
            within_slo: self.slo.is_set().then_some(m.within_slo),
            ttft: m.ttft.distribution(),
            ttft_long: m.ttft_long.distribution(),
            tpot: m.tpot.distribution(),
            itl: m.itl.distribution(),
            e2e: m.e2e.distribution(),
            queue: m.queue.distribution(),
            stages,
            decision_digest: self.digest.digest(),
            schedule_real: m.schedule_real.distribution(),
            complete_real: m.complete_real.distribution(),
            stats,
        })
    }
}

impl Measured {
    /// Adds what is known of a request when its last token is out.
    fn finished(&mut self, record: &Record, arrival_ns: u64, long: bool, slo: Slo) {
        let ttft_ns = record.first_token_ns - arrival_ns;
        let e2e_ns = record.last_token_ns - arrival_ns;
        self.ttft.push(ttft_ns);
        if long {
            self.ttft_long.push(ttft_ns);
        }
        self.e2e.push(e2e_ns);
        self.queue.push(record.first_scheduled_ns - arrival_ns);
        let mut tpot_ns = 0;
        if let Some(gaps) = record.outputs.checked_sub(1).filter(|&gaps| gaps > 0).map(u64::from) {
            tpot_ns = (e2e_ns - ttft_ns + gaps / 2) / gaps;
            self.tpot.push(tpot_ns);
        }
        let meets = |limit: Option<u64>, value| limit.is_none_or(|limit| value <= limit);
        if meets(slo.ttft_ns, ttft_ns) && meets(slo.tpot_ns, tpot_ns) {
            self.within_slo += 1;
        }
    }
}

/// A request's place in the workload: the simulator names requests so.
const fn index(request: RequestId) -> usize {
    request.0 as usize
}

/// A stable word for a refusal.
const fn reason(error: &SubmitError) -> &'static str {
    match error {
        SubmitError::TooLong { .. } => "too_long",
        SubmitError::NeverFits { .. } => "never_fits",
        SubmitError::EmptyPrompt(_) => "empty_prompt",
        SubmitError::ZeroMaxTokens(_) => "no_output",
        _ => "invalid",
    }
}

fn real_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
