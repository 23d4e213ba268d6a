//! The event loop of two pools.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use cpp_sched::driver::{Driver, Progress, Step};
use cpp_sched::{Config, Event, FinishReason, Request, RequestId, Role, SubmitError};

use super::link::{Links, Part};
use super::{Handover, KvTransfers, PoolOutcome, PoolsOutcome};
use crate::sim::measured::Measured;
use crate::sim::metrics::Samples;
use crate::sim::site::{Ran, Site, drive, index, rest, step};
use crate::sim::{Machine, RequestCounts, SimError, Slo};
use crate::workload::Workload;

/// Runs a workload through a pool for prompts and one for outputs. The roles are set here; requests that a scheduler refuses count as rejected.
///
/// Prompts are not looked for in caches, clients do not hang up, and requests that follow others arrive at the time of the first of them.
///
/// # Errors
/// A configuration that is not valid; anything else means a bug, see [`SimError`].
pub fn simulate_pools(
    workload: &Workload,
    prefill: (&Machine, Config),
    decode: (&Machine, Config),
    transfers: &KvTransfers,
) -> Result<PoolsOutcome, SimError> {
    let start_ns = workload.items().first().map_or(0, |item| item.arrival_ns);
    let requests = workload.items().len();
    let mut pools = Pools {
        workload,
        transfers,
        prefill: pool(prefill.0, prefill.1, Role::Prefill, requests, start_ns)?,
        decode: pool(decode.0, decode.1, Role::Decode, requests, start_ns)?,
        links: Links::new(transfers.link, prefill.0.stage_costs.len(), transfers.layers.into(), start_ns),
        ways: vec![Way::default(); requests],
        there: BinaryHeap::new(),
        given_up: BinaryHeap::new(),
        hangs: transfers.hangs_ns.iter().copied().collect(),
        next_arrival: 0,
        now_ns: start_ns,
        counts: RequestCounts::default(),
        output_tokens: 0,
        failed: 0,
        measured: Measured::default(),
        handover: Samples::default(),
        events: Vec::new(),
    };
    if transfers.handover == Handover::Layer {
        pools.prefill.executor_mut().ran = Some(Vec::new());
    }
    pools.run()?;
    pools.finish(start_ns)
}

/// Hands in a request, now.
fn submit(pool: &mut Driver<Site<'_>>, request: Request) -> Result<(), SubmitError> {
    pool.tick(pool.executor().now_ns);
    pool.submit(request)?;
    let site = pool.executor_mut();
    site.pipe.work_came(site.now_ns);
    Ok(())
}

fn pool(machine: &Machine, mut config: Config, role: Role, requests: usize, start_ns: u64) -> Result<Driver<Site<'_>>, SimError> {
    config.role = role;
    config.prefix_caching = false;
    drive(machine, config, requests, start_ns, false)
}

/// The way of one request's KV.
#[derive(Clone, Debug, Default)]
struct Way {
    /// The decode pool has blocks for it.
    wanted: bool,
    /// All of it is final.
    announced: bool,
    /// Parts that wait for blocks.
    waiting: Vec<Part>,
    /// Parts offered to links, or on them.
    under_way: u32,
    /// When the latest part that was sent is there.
    there_ns: u64,
}

struct Pools<'a> {
    workload: &'a Workload,
    transfers: &'a KvTransfers,
    prefill: Driver<Site<'a>>,
    decode: Driver<Site<'a>>,
    links: Links,
    ways: Vec<Way>,
    /// Requests whose KV is there: (when, which).
    there: BinaryHeap<Reverse<(u64, u32)>>,
    /// Transfers that are given up: (when, which).
    given_up: BinaryHeap<Reverse<(u64, u32)>>,
    hangs: VecDeque<u64>,
    next_arrival: usize,
    now_ns: u64,
    counts: RequestCounts,
    output_tokens: u64,
    failed: u64,
    measured: Measured,
    handover: Samples,
    events: Vec<Event>,
}

impl<'a> Pools<'a> {
    fn run(&mut self) -> Result<(), SimError> {
        loop {
            self.results()?;
            self.transmit();
            self.arrivals();
            self.schedule()?;
            match self.next_ns() {
                Some(next_ns) => self.now_ns = self.now_ns.max(next_ns),
                None => break,
            }
        }
        for pool in [&self.prefill, &self.decode] {
            if !pool.scheduler().is_idle() {
                let (now_ns, unfinished) = (self.now_ns, pool.scheduler().num_unfinished());
                return Err(SimError::Stuck { now_ns, unfinished, reason: cpp_sched::EmptyReason::WaitingForExternal });
            }
        }
        Ok(())
    }

    /// The next time at which anything happens. A scheduler that decides is free again when it has decided.
    fn next_ns(&self) -> Option<u64> {
        let arrival = self.workload.items().get(self.next_arrival).map(|item| item.arrival_ns);
        let sites = [&self.prefill, &self.decode].map(Driver::executor);
        let sites = sites.map(|site| if site.now_ns > self.now_ns { Some(site.now_ns) } else { site.next_ns() });
        let heap = |heap: &BinaryHeap<Reverse<(u64, u32)>>| heap.peek().map(|&Reverse((ns, _))| ns);
        let links = [self.links.next_ns(), heap(&self.there), heap(&self.given_up)];
        sites.into_iter().chain(links).chain([arrival]).flatten().min()
    }

    /// Takes the results that are back at a scheduler that is free.
    fn results(&mut self) -> Result<(), SimError> {
        for decodes in [false, true] {
            if self.pool(decodes).executor().now_ns > self.now_ns {
                continue;
            }
            let now_ns = self.now_ns;
            self.pool(decodes).executor_mut().advance_to(now_ns);
            while self.pool(decodes).executor().result_is_due() {
                step(self.pool(decodes)).map(drop)?;
                self.take_events(decodes);
            }
        }
        Ok(())
    }

    fn pool(&mut self, decodes: bool) -> &mut Driver<Site<'a>> {
        if decodes { &mut self.decode } else { &mut self.prefill }
    }

    fn take_events(&mut self, decodes: bool) {
        let mut events = std::mem::take(&mut self.events);
        // What is done about one may cause another.
        while {
            events.extend(self.pool(decodes).events());
            !events.is_empty()
        } {
            events.drain(..).for_each(|event| self.take_event(event, decodes));
        }
        self.events = events;
        rest(self.pool(decodes));
    }

    fn take_event(&mut self, event: Event, decodes: bool) {
        match event {
            Event::Token { request, .. } => {
                let at_ns = self.pool(decodes).executor_mut().token(request);
                self.measured.token(&mut self.prefill.executor_mut().records[index(request)], at_ns);
            }
            Event::KvReady { request, start, end } => self.announced(index(request), start, end),
            Event::KvWanted { request, .. } => {
                let way = &mut self.ways[index(request)];
                way.wanted = true;
                let granted_ns = self.decode.executor().now_ns;
                for mut part in std::mem::take(&mut way.waiting) {
                    (part.first_ns, part.last_ns) = (part.first_ns.max(granted_ns), part.last_ns.max(granted_ns));
                    self.links.offer(part);
                }
                self.look(index(request));
            }
            Event::Finished { request, reason } => self.ended(index(request), reason, decodes),
            _ => {}
        }
    }

    /// Positions have become final in the prefill pool.
    fn announced(&mut self, i: usize, start: u32, end: u32) {
        let item = &self.workload.items()[i];
        let now_ns = self.prefill.executor().now_ns;
        let done = end == item.input_tokens;
        let from = match self.transfers.handover {
            Handover::End => done.then_some(0),
            Handover::Chunk => Some(start),
            Handover::Layer => None,
        };
        if let Some(from) = from.filter(|_| item.output_tokens > 1) {
            self.hand_in(i, u64::from(end - from), |_| (now_ns, now_ns));
        }
        self.ways[i].announced |= done;
        self.look(i);
    }

    /// Chunks that were pushed: their layers can be sent as they run.
    fn send_layers(&mut self) {
        let layers = u64::from(self.transfers.layers.max(1));
        for Ran { request, start, end, steps } in std::mem::take(&mut self.prefill.executor_mut().ran).unwrap_or_default() {
            let i = index(request);
            if self.workload.items()[i].output_tokens > 1 {
                let first = |(from_ns, to_ns): (u64, u64)| from_ns + (to_ns - from_ns) / layers;
                self.hand_in(i, u64::from(end - start), |stage| (first(steps[stage]), steps[stage].1));
            }
        }
        self.prefill.executor_mut().ran = Some(Vec::new());
    }

    /// A part of every stage.
    fn hand_in(&mut self, request: usize, tokens: u64, ready: impl Fn(usize) -> (u64, u64)) {
        let way = &mut self.ways[request];
        for stage in 0..self.links.busy_ns.len() {
            let (first_ns, last_ns) = ready(stage);
            let part = Part { request, stage, tokens, first_ns, last_ns };
            way.under_way += 1;
            if way.wanted {
                self.links.offer(part);
            } else {
                way.waiting.push(part);
            }
        }
    }

    /// Sends what is ready, and tells both sides what has arrived or never will.
    fn transmit(&mut self) {
        while let Some((part, there_ns)) = self.links.send(self.now_ns) {
            let way = &mut self.ways[part.request];
            way.under_way -= 1;
            way.there_ns = way.there_ns.max(there_ns);
            self.look(part.request);
        }
        while let Some(&Reverse((_, i))) = self.there.peek().filter(|&&Reverse((ns, _))| ns <= self.now_ns) {
            self.there.pop();
            self.handover.push(self.now_ns - self.prefill.executor().records[i as usize].first_token_ns);
            self.end_transfer(i, true);
        }
        while let Some(&Reverse((_, i))) = self.given_up.peek().filter(|&&Reverse((ns, _))| ns <= self.now_ns) {
            self.given_up.pop();
            self.failed += 1;
            self.end_transfer(i, false);
        }
    }

    fn end_transfer(&mut self, i: u32, arrived: bool) {
        let request = RequestId(i.into());
        for pool in [&mut self.prefill, &mut self.decode] {
            pool.executor_mut().advance_to(self.now_ns);
            pool.tick(pool.executor().now_ns);
        }
        // Either end may be gone by now, with a client that hung up.
        if arrived {
            _ = self.prefill.kv_sent(request);
            _ = self.decode.kv_arrived(request);
        } else {
            _ = self.prefill.kv_send_failed(request);
            _ = self.decode.kv_failed(request);
        }
        self.take_events(false);
        self.take_events(true);
    }

    /// Whether a request's KV is on its way as a whole, or none of it is needed.
    fn look(&mut self, i: usize) {
        let way = &self.ways[i];
        if !way.announced || way.under_way > 0 {
            return;
        }
        if self.workload.items()[i].output_tokens == 1 {
            _ = self.prefill.kv_sent(RequestId(i as u64));
            return;
        }
        let there_ns = way.there_ns.max(self.now_ns);
        // Once only.
        self.ways[i].announced = false;
        if self.hangs.front().is_some_and(|&at_ns| at_ns <= there_ns) {
            self.hangs.pop_front();
            self.given_up.push(Reverse((there_ns.saturating_add(self.transfers.timeout_ns), i as u32)));
        } else {
            self.there.push(Reverse((there_ns, i as u32)));
        }
    }

    fn ended(&mut self, i: usize, reason: FinishReason, decodes: bool) {
        if reason == FinishReason::Aborted {
            return;
        }
        if decodes || self.workload.items()[i].output_tokens == 1 {
            self.counts.finished += 1;
            let record = &self.prefill.executor().records[i];
            self.output_tokens += u64::from(record.outputs);
            self.measured.finished(record, false, Slo::default());
        }
    }

    fn arrivals(&mut self) {
        while let Some(item) = self.workload.items().get(self.next_arrival).filter(|item| item.arrival_ns <= self.now_ns) {
            let (i, id) = (self.next_arrival, RequestId(self.next_arrival as u64));
            self.next_arrival += 1;
            self.counts.submitted += 1;
            self.prefill.executor_mut().records[i].arrival_ns = item.arrival_ns;
            let request = |tokens, outputs| {
                let mut request = Request::with_lengths(id, tokens, Vec::new(), outputs);
                (request.priority, request.arrival_ns) = (item.priority, Some(item.arrival_ns));
                request
            };
            for pool in [&mut self.prefill, &mut self.decode] {
                pool.executor_mut().advance_to(self.now_ns);
            }
            // The prompt and the first token are what the decode pool continues.
            let decodes = item.output_tokens > 1;
            let taken = !decodes || submit(&mut self.decode, request(item.input_tokens.saturating_add(1), item.output_tokens - 1)).is_ok();
            if !taken || submit(&mut self.prefill, request(item.input_tokens, 1)).is_err() {
                self.counts.rejected += 1;
                if taken && decodes {
                    _ = self.decode.abort(id);
                }
            }
            self.take_events(true);
        }
    }

    fn schedule(&mut self) -> Result<(), SimError> {
        for decodes in [false, true] {
            loop {
                let now_ns = self.now_ns;
                let pool = self.pool(decodes);
                if pool.executor().now_ns > now_ns {
                    break;
                }
                pool.executor_mut().advance_to(now_ns);
                match step(pool)? {
                    Step::Progress(Progress::Submitted(_)) if !decodes && self.transfers.handover == Handover::Layer => self.send_layers(),
                    Step::Progress(Progress::Submitted(_)) => {}
                    // Of a batch that takes no time.
                    Step::Progress(_) => self.take_events(decodes),
                    _ => {
                        self.pool(decodes).executor_mut().tell_why_stage_0_waits();
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(self, start_ns: u64) -> Result<PoolsOutcome, SimError> {
        let both = [self.prefill, self.decode];
        let end_ns = both.iter().map(|pool| pool.executor().last_result_ns).max().unwrap_or(start_ns);
        let duration_ns = end_ns - start_ns;
        let mut pools = Vec::new();
        for pool in both {
            let (scheduler, mut site) = pool.into_parts();
            let (stages, _) = site.pipe.finish(start_ns, end_ns);
            if let Some(stage) = stages.iter().position(|stage| stage.sum_ns() != duration_ns) {
                return Err(SimError::StageAccount { stage, sum_ns: stages[stage].sum_ns(), window_ns: duration_ns });
            }
            pools.push(PoolOutcome { stages, stats: scheduler.stats(), decision_digest: site.digest() });
        }
        let (Some(decode), Some(prefill)) = (pools.pop(), pools.pop()) else { unreachable!("two pools were pushed") };
        Ok(PoolsOutcome {
            requests: self.counts,
            duration_ns,
            output_tokens: self.output_tokens,
            ttft: self.measured.ttft.distribution(),
            tpot: self.measured.tpot.distribution(),
            e2e: self.measured.e2e.distribution(),
            handover: self.handover.distribution(),
            transfers_failed: self.failed,
            prefill,
            decode,
            links_busy_ns: self.links.busy_ns,
        })
    }
}
