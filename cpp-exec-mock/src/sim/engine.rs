//! The event loop: arrivals, decisions, results.

use std::collections::BTreeMap;
use std::io::Write;

use cpp_sched::driver::{self, Driver, Step};
use cpp_sched::{Config, EmptyReason, Event, FinishReason, Request, RequestId, SubmitError};

use super::arrivals::Arrivals;
use super::faults::Drive;
use super::journal::Sink;
use super::measured::Measured;
use super::record::TokenTally;
use super::site::{STOP, Site, drive, index, rest, step};
use super::watch::{RequestArrived, RequestDone, Watch};
use super::{Machine, Outcome, Progress, Rejection, RequestCounts, SimError, Slo};
use crate::pipeline::Cause;
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
        journal.flush(&mut engine.driver, true)?;
    }
    engine.finish()
}

/// A run.
pub(crate) struct Engine<'a> {
    pub(crate) driver: Driver<Site<'a>>,
    pub(crate) faults: Option<Drive>,
    journal: Option<Sink<'a>>,
    workload: &'a Workload,
    slo: Slo,
    start_ns: u64,
    arrivals: Arrivals<'a>,
    /// Kept for its memory.
    events: Vec<Event>,
    counts: RequestCounts,
    rejected: BTreeMap<&'static str, Rejection>,
    tokens: TokenTally,
    aborted_tokens: u64,
    measured: Measured,
    /// Prompts longer than this count as long.
    long_prompt: u64,
}

impl<'a> Engine<'a> {
    fn new(workload: &'a Workload, machine: &'a Machine, config: Config, slo: Slo, extras: Extras<'a>) -> Result<Self, SimError> {
        let start_ns = workload.items().first().map_or(0, |item| item.arrival_ns);
        let mut driver = drive(machine, config, workload.items().len(), start_ns, extras.journal.is_some())?;
        let site = driver.executor_mut();
        site.watch = extras.watch;
        let faults = (!machine.faults.is_empty()).then(|| Drive::new(&machine.faults, &mut site.pipe, start_ns));
        Ok(Self {
            driver,
            faults,
            journal: extras.journal.map(Sink::new),
            workload,
            slo,
            start_ns,
            arrivals: Arrivals::new(workload),
            events: Vec::new(),
            counts: RequestCounts::default(),
            rejected: BTreeMap::new(),
            tokens: TokenTally::default(),
            aborted_tokens: 0,
            measured: Measured::default(),
            long_prompt: 2 * u64::from(config.max_batch_tokens),
        })
    }

    fn run(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), SimError> {
        let mut batches = 0u64;
        loop {
            self.notice_lost_results()?;
            if !self.site().result_is_due() {
                self.handle_faults()?;
                self.hang_up();
                self.submit_arrivals();
                if let Some(drive) = &mut self.faults {
                    drive.recovery.look(self.driver.executor().now_ns);
                }
            }
            let stuck = match step(&mut self.driver)? {
                Step::Progress(driver::Progress::Submitted(_)) => {
                    batches += 1;
                    if batches.is_multiple_of(PROGRESS_EVERY) {
                        progress(self.progress());
                    }
                    continue;
                }
                Step::Progress(_) => {
                    if let Some(journal) = &mut self.journal {
                        journal.flush(&mut self.driver, false)?;
                    }
                    self.take_events();
                    continue;
                }
                Step::WaitingForExternal => Some(EmptyReason::WaitingForExternal),
                Step::NoBlocks => Some(EmptyReason::NoBlocks),
                Step::Paused => Some(EmptyReason::Paused),
                _ => None,
            };
            if let Some(reason) = stuck.filter(|_| self.arrivals.next_ns().is_none()) {
                return Err(SimError::Stuck { now_ns: self.site().now_ns, unfinished: self.driver.scheduler().num_unfinished(), reason });
            }
            let Self { driver, arrivals, faults, .. } = self;
            let site = driver.executor_mut();
            site.tell_why_stage_0_waits();
            if faults.as_ref().is_some_and(Drive::is_losing) {
                site.pipe.waits(site.now_ns, Cause::Fault);
            }
            let Some(next_ns) = arrivals.next_ns().into_iter().chain(site.next_ns()).min() else { break };
            let hang_up = arrivals.next_hang_up_ns(|item| !site.records[item].ended);
            let fault = faults.as_ref().and_then(|drive| drive.next_ns(&site.pipe));
            site.advance_to(hang_up.into_iter().chain(fault).fold(next_ns, u64::min));
        }
        progress(self.progress());
        Ok(())
    }

    /// The pipeline, and what is known of each request.
    pub(crate) fn site(&self) -> &Site<'a> {
        self.driver.executor()
    }

    pub(crate) fn site_mut(&mut self) -> &mut Site<'a> {
        self.driver.executor_mut()
    }

    /// The scheduler is to know what time it is.
    pub(crate) fn tick(&mut self) {
        self.driver.tick(self.driver.executor().now_ns);
    }

    fn progress(&self) -> Progress {
        let done = self.counts.finished + self.counts.aborted + self.counts.rejected;
        Progress { done, total: self.workload.items().len() as u64, now_ns: self.site().now_ns }
    }

    pub(crate) fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        events.extend(self.driver.events());
        for event in events.drain(..) {
            match event {
                Event::Token { request, .. } => {
                    let site = self.driver.executor_mut();
                    let at_ns = site.token(request);
                    let record = &mut site.records[index(request)];
                    if self.measured.token(record, at_ns)
                        && let Some(drive) = &mut self.faults
                    {
                        drive.recovery.first_token(record.arrival_ns, at_ns);
                    }
                }
                Event::Finished { request, reason } => self.ended(request, reason),
                // Preemptions come with the batch; the others belong to roles and sessions that are not simulated here.
                _ => {}
            }
        }
        self.events = events;
        rest(&mut self.driver);
    }

    fn ended(&mut self, request: RequestId, reason: FinishReason) {
        let Site { now_ns, records, watch, .. } = self.driver.executor_mut();
        let now_ns = *now_ns;
        let item = &self.workload.items()[index(request)];
        let record = &mut records[index(request)];
        record.ended = true;
        self.arrivals.ended(index(request), now_ns);
        if reason == FinishReason::Aborted {
            self.counts.aborted += 1;
            self.aborted_tokens += record.computed;
            watch.iter_mut().for_each(|watch| watch.aborted(index(request), now_ns));
            if record.outputs == 0
                && let Some(drive) = &mut self.faults
            {
                drive.recovery.served(now_ns);
            }
            return;
        }
        self.counts.finished += 1;
        record.add_to(item.input_tokens, &mut self.tokens);
        let long = u64::from(item.input_tokens) > self.long_prompt;
        self.measured.finished(record, long, self.slo);
        let done = RequestDone {
            index: index(request),
            input_tokens: item.input_tokens,
            output_tokens: record.outputs,
            arrival_ns: record.arrival_ns,
            ttft_ns: record.first_token_ns - record.arrival_ns,
            e2e_ns: record.last_token_ns - record.arrival_ns,
        };
        watch.iter_mut().for_each(|watch| watch.request(&done));
    }

    /// Clients that hang up now.
    fn hang_up(&mut self) {
        while let Some(item) = self.arrivals.take_hang_up(self.site().now_ns) {
            if !self.site().records[item].ended {
                self.tick();
                if self.driver.abort(RequestId(item as u64)).is_applied() {
                    self.take_events();
                }
            }
        }
    }

    fn submit_arrivals(&mut self) {
        while let Some((item, arrival_ns)) = self.arrivals.take(self.site().now_ns) {
            let request = self.request(item, arrival_ns);
            self.counts.submitted += 1;
            self.tick();
            let answer = self.driver.submit(request);
            let site = self.driver.executor_mut();
            match answer {
                Ok(()) => {
                    site.pipe.work_came(site.now_ns);
                    let arrived = RequestArrived { index: item, input_tokens: self.workload.items()[item].input_tokens, arrival_ns };
                    site.watch.iter_mut().for_each(|watch| watch.arrived(&arrived));
                    if let Some(drive) = &mut self.faults {
                        drive.recovery.came(site.now_ns);
                    }
                }
                Err(error) => {
                    self.counts.rejected += 1;
                    site.records[item].ended = true;
                    self.arrivals.ended(item, site.now_ns);
                    let rejection = self.rejected.entry(reason(&error)).or_insert_with(|| Rejection { count: 0, first: error.to_string() });
                    rejection.count += 1;
                }
            }
        }
    }

    fn request(&mut self, index: usize, arrival_ns: u64) -> Request {
        let config = self.driver.scheduler().config();
        let item = &self.workload.items()[index];
        let digests = if config.prefix_caching { self.workload.digests(index, config.block_size) } else { Vec::new() };
        let record = &mut self.driver.executor_mut().records[index];
        record.arrival_ns = arrival_ns;
        // The scheduler may know when a request ends, or only how far it may go.
        let max_tokens = match self.workload.max_tokens() {
            Some(most) => {
                record.stop_after = item.output_tokens.min(most);
                most
            }
            None => item.output_tokens,
        };
        let mut request = Request::with_lengths(RequestId(index as u64), item.input_tokens, digests, max_tokens);
        if self.workload.max_tokens().is_some() {
            request.stop_tokens = vec![STOP];
        }
        request.priority = item.priority;
        request.arrival_ns = Some(arrival_ns);
        request.ttft_slo_ns = self.slo.ttft_ns;
        request.tbt_slo_ns = self.slo.tpot_ns;
        request.tenant = item.tenant.map(|tenant| u64::from(tenant.0));
        request
    }

    /// Checks the books and sums up.
    fn finish(mut self) -> Result<Outcome, SimError> {
        let (scheduler, mut site) = self.driver.into_parts();
        let stats = scheduler.stats();
        self.counts.unfinished = u64::from(scheduler.num_unfinished());
        if !self.tokens.balances() {
            return Err(SimError::Account(self.tokens));
        }
        for (what, scheduler, simulator) in [
            ("finished requests", stats.finished, self.counts.finished),
            ("aborted requests", stats.aborted, self.counts.aborted),
            ("rejected requests", stats.rejected, self.counts.rejected),
            ("scheduled tokens", stats.scheduled_tokens, site.scheduled_tokens),
            ("output tokens", stats.output_tokens, site.delivered_tokens),
        ] {
            if scheduler != simulator {
                return Err(SimError::Counter { what, scheduler, simulator });
            }
        }
        let window_ns = site.last_result_ns - self.start_ns;
        let (stages, tail) = site.pipe.finish(self.start_ns, site.last_result_ns);
        site.watch.iter_mut().for_each(|watch| watch.end(&tail));
        if let Some(stage) = stages.iter().position(|stage| stage.sum_ns() != window_ns) {
            return Err(SimError::StageAccount { stage, sum_ns: stages[stage].sum_ns(), window_ns });
        }
        let decision_digest = site.digest();
        let m = self.measured;
        Ok(Outcome {
            config: *scheduler.config(),
            requests: self.counts,
            rejected: self.rejected,
            tokens: self.tokens,
            aborted_tokens: self.aborted_tokens,
            duration_ns: window_ns,
            within_slo: self.slo.is_set().then_some(m.within_slo),
            ttft: m.ttft.distribution(),
            ttft_long: m.ttft_long.distribution(),
            tpot: m.tpot.distribution(),
            itl: m.itl.distribution(),
            e2e: m.e2e.distribution(),
            queue: m.queue.distribution(),
            stages,
            faults: self.faults.map(|drive| drive.recovery.outcome()),
            decision_digest,
            schedule_real: site.schedule_real.distribution(),
            complete_real: site.complete_real.distribution(),
            stats,
        })
    }
}

/// A stable word for a refusal.
pub(crate) const fn reason(error: &SubmitError) -> &'static str {
    match error {
        SubmitError::TooLong { .. } => "too_long",
        SubmitError::NeverFits { .. } => "never_fits",
        SubmitError::EmptyPrompt(_) => "empty_prompt",
        SubmitError::ZeroMaxTokens(_) => "no_output",
        _ => "invalid",
    }
}
