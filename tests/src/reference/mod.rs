//! A second scheduler, slow and obvious: plain vectors, linear scans, everything that can be computed is computed again at each call.
//!
//! It says in few lines what the kernel does with heaps, rings and counters, and the two must agree on every batch, event and block count. It knows
//! the policies fcfs and priority, chunking by tokens, every admission, pipelining mode and budget, prefix caching, preemption, fences, gates,
//! aborts, failures and asynchronous scheduling; no drafts, costs, roles, sessions or forks. Block numbers are its own.

mod blocks;
mod results;

use std::collections::VecDeque;

use cpp_sched::{Admission, BatchId, Chunking, Config, EmptyReason, Event, Pipelining, PolicyKind, PreemptedOutput, RequestId, RowKind};

use self::blocks::Pool;
use crate::driver::{Line, LoggedRow};
use crate::op::Shape;
use crate::truth::Text;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Aborting,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Demand {
    Nothing,
    Prompt,
    Decode,
}

/// Smaller first: the policy's number, then the order of submission.
type Key = (i64, usize);

#[derive(Debug)]
struct Request {
    id: RequestId,
    shape: Shape,
    text: Text,
    prompt_len: u32,
    max_out: u32,
    outputs: u32,
    gated: bool,
    state: State,
    epoch: u32,
    scheduled: u32,
    committed: u32,
    table: Vec<usize>,
    /// Blocks set aside and not taken yet.
    reserved: u32,
    /// Blocks of the table that were published, or never will be.
    published: u32,
}

impl Request {
    fn known(&self) -> u32 {
        self.prompt_len + self.outputs
    }
}

#[derive(Clone, Debug)]
struct Row {
    who: usize,
    epoch: u32,
    start: u32,
    end: u32,
    samples: bool,
}

#[derive(Debug)]
struct Batch {
    id: u64,
    rows: VecDeque<Row>,
    preempted: Vec<RequestId>,
}

/// The batch under construction.
#[derive(Debug, Default)]
struct Build {
    rows: Vec<Row>,
    tokens_left: u32,
    rows_left: u32,
    /// Admitted requests whose prompt work was looked at.
    visited: Vec<usize>,
    /// Fenced blocks that somebody waits for already.
    claims: u32,
    no_blocks: bool,
}

impl Build {
    fn is_full(&self) -> bool {
        self.tokens_left == 0 || self.rows_left == 0
    }
}

/// How a waiting request would be admitted.
struct Plan {
    hits: Vec<usize>,
    reserve: u32,
    free: u32,
}

/// Why it cannot be.
enum Refusal {
    Limit,
    NoBlocks,
}

/// The reference scheduler; see the [module](self).
#[derive(Debug)]
pub struct Reference {
    config: Config,
    requests: Vec<Request>,
    pool: Pool,
    flight: VecDeque<Batch>,
    next_batch: u64,
    /// Requests whose next step is a decode, longest waiting first.
    ready: Vec<usize>,
    /// The first of the admitted requests that lacked a block when last looked at: nobody that comes after it is admitted.
    lacking: Option<(Key, usize)>,
    /// Batches in a row in which decodes left nothing for prompt work that waited.
    prompt_wait: u32,
    /// Batches before this one are not published.
    publish_from: u64,
    preempted: Vec<RequestId>,
    events: Vec<Event>,
    build: Build,
}

impl Reference {
    /// Nothing in it yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            requests: Vec::new(),
            pool: Pool::new(config.num_blocks),
            flight: VecDeque::new(),
            next_batch: 0,
            ready: Vec::new(),
            lacking: None,
            prompt_wait: 0,
            publish_from: 0,
            preempted: Vec::new(),
            events: Vec::new(),
            build: Build::default(),
        }
    }

    /// A request that the kernel has accepted.
    pub fn submit(&mut self, shape: &Shape) {
        self.requests.push(Request {
            id: RequestId(shape.id),
            shape: shape.clone(),
            text: Text::new(shape),
            prompt_len: shape.len,
            max_out: shape.max_tokens.min(self.config.model_len() - shape.len),
            outputs: 0,
            gated: shape.gated,
            state: State::Waiting,
            epoch: 0,
            scheduled: 0,
            committed: 0,
            table: Vec::new(),
            reserved: 0,
            published: 0,
        });
    }

    /// The living request of an id.
    fn find(&self, id: RequestId) -> Option<usize> {
        self.requests.iter().position(|r| r.id == id && r.state != State::Ended)
    }

    fn key(&self, who: usize) -> Key {
        let priority = if self.config.policy == PolicyKind::Priority { self.requests[who].shape.priority } else { 0 };
        (priority, who)
    }

    fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.config.block_size)
    }

    // ---- what is computed again each time ----------------------------------------------------------------------------------

    /// Rows of a request in flight, the batch under construction included.
    fn rows(&self, who: usize) -> impl Iterator<Item = &Row> {
        self.flight.iter().flat_map(|batch| &batch.rows).chain(&self.build.rows).filter(move |row| row.who == who)
    }

    fn live_rows(&self, who: usize) -> impl Iterator<Item = &Row> {
        self.rows(who).filter(move |row| row.epoch == self.requests[who].epoch)
    }

    /// Samples in flight of the present epoch.
    fn live(&self, who: usize) -> u32 {
        self.live_rows(who).filter(|row| row.samples).count() as u32
    }

    fn delivers_late(&self) -> bool {
        self.config.preempted_output == PreemptedOutput::Deliver
    }

    /// Whether results of the epoch before are still to be delivered.
    fn is_stale(&self, who: usize) -> bool {
        self.delivers_late() && self.rows(who).any(|row| row.samples && row.epoch + 1 == self.requests[who].epoch)
    }

    fn is_waiting(&self, who: usize) -> bool {
        let r = &self.requests[who];
        r.state == State::Waiting && !r.gated && !self.is_stale(who)
    }

    fn demand(&self, who: usize, asynchronous: bool) -> Demand {
        let (r, live) = (&self.requests[who], self.live(who));
        let limit = r.known() + if asynchronous && r.outputs + live < r.max_out { live } else { 0 };
        if r.state != State::Running || limit <= r.scheduled {
            Demand::Nothing
        } else if r.scheduled < r.prompt_len || limit - r.scheduled > 1 {
            Demand::Prompt
        } else {
            Demand::Decode
        }
    }

    /// What may be scheduled of an admitted request now.
    fn wants(&self, who: usize) -> Demand {
        let at_rest = self.config.pipelining != Pipelining::Request || self.live_rows(who).next().is_none();
        if at_rest { self.demand(who, self.config.async_scheduling) } else { Demand::Nothing }
    }

    fn admitted(&self) -> u32 {
        self.requests.iter().filter(|r| r.state == State::Running).count() as u32
    }

    fn partial(&self) -> u32 {
        (0..self.requests.len()).filter(|&who| self.demand(who, false) == Demand::Prompt).count() as u32
    }

    /// Blocks that can be taken and that nobody has set aside.
    fn unreserved(&self) -> u32 {
        self.pool.available() - self.requests.iter().map(|r| r.reserved).sum::<u32>()
    }

    // ---- schedule ----------------------------------------------------------------------------------------------------------

    /// The next batch.
    pub fn schedule(&mut self) -> Line {
        if self.flight.len() >= self.config.depth() as usize {
            return Line::Empty(EmptyReason::PipelineFull);
        }
        self.build = Build { tokens_left: self.config.max_batch_tokens, rows_left: self.config.max_batch_requests, ..Build::default() };
        let due = self.ready.clone();
        let starved = if self.prompt_wait >= self.config.max_prompt_wait {
            let starved = self.add_prompts();
            self.add_decodes(&due);
            starved
        } else {
            self.add_decodes(&due);
            self.add_prompts()
        };
        self.prompt_wait = if starved { self.prompt_wait + 1 } else { 0 };
        let build = std::mem::take(&mut self.build);
        if build.rows.is_empty() {
            let idle = self.requests.iter().all(|r| r.state == State::Ended) && self.flight.is_empty();
            return Line::Empty(match (idle, build.no_blocks, self.flight.is_empty()) {
                (true, ..) => EmptyReason::Idle,
                (_, true, _) => EmptyReason::NoBlocks,
                (_, _, false) => EmptyReason::WaitingForResults,
                (_, _, true) => EmptyReason::WaitingForExternal,
            });
        }
        let mut preempted: Vec<RequestId> = Vec::new();
        for request in self.preempted.drain(..) {
            if !preempted.contains(&request) {
                preempted.push(request);
            }
        }
        let line = Line::Batch(build.rows.iter().map(|row| self.logged(row)).collect(), preempted.clone());
        self.flight.push_back(Batch { id: self.next_batch, rows: build.rows.into(), preempted });
        self.next_batch += 1;
        line
    }

    fn logged(&self, row: &Row) -> LoggedRow {
        let r = &self.requests[row.who];
        let kind = if row.end - row.start == 1 && row.start >= r.prompt_len { RowKind::Decode } else { RowKind::Prefill };
        LoggedRow { request: r.id, start: row.start, len: row.end - row.start, drafts: 0, kind, samples: row.samples }
    }

    /// Decodes, longest waiting first. What becomes ready meanwhile is due for the next batch.
    fn add_decodes(&mut self, due: &[usize]) {
        for &who in due {
            if self.build.is_full() {
                break;
            }
            let room = self.requests[who].table.len() as u32 * self.config.block_size;
            let preempted = !self.ready.contains(&who);
            if preempted || (self.requests[who].scheduled >= room && !self.get_blocks(who, 1)) {
                continue;
            }
            self.push_row(who, 1);
            self.ready.retain(|&other| other != who);
            self.queue_decode(who);
        }
    }

    /// The request stands in line for its next decode, if that is what it wants.
    fn queue_decode(&mut self, who: usize) {
        if self.wants(who) == Demand::Decode && !self.ready.contains(&who) {
            self.ready.push(who);
        }
    }

    /// Prompt work in the order of the policy, of admitted and waiting requests alike. Whether decodes left it no room.
    fn add_prompts(&mut self) -> bool {
        let rows_before = self.build.rows.len();
        let (mut open, mut passed, mut starved) = (true, Vec::new(), false);
        loop {
            let everybody = 0..self.requests.len();
            let admitted = everybody.clone().filter(|&who| self.wants(who) == Demand::Prompt && !self.build.visited.contains(&who));
            let waiting = everybody.filter(|&who| open && self.is_waiting(who) && !passed.contains(&who));
            let Some(who) = admitted.chain(waiting).min_by_key(|&who| self.key(who)) else { break };
            let is_admitted = self.requests[who].state == State::Running;
            if self.build.is_full() {
                starved = is_admitted || self.plan(who).is_ok();
                break;
            }
            if is_admitted {
                self.add_chunks(who);
                continue;
            }
            match self.plan(who).and_then(|plan| self.first_chunk_fits(who, &plan).then_some(plan).ok_or(Refusal::NoBlocks)) {
                Ok(plan) => {
                    self.admit(who, plan);
                    self.add_chunks(who);
                }
                Err(refusal) => {
                    self.build.no_blocks |= matches!(refusal, Refusal::NoBlocks);
                    passed.push(who);
                    open = passed.len() <= self.config.max_bypass as usize && self.admitted() < self.config.max_requests;
                }
            }
        }
        starved && self.build.rows.len() <= rows_before
    }

    /// Tokens of the next chunk as far as the budgets go; `taken` = what this batch has of the prompt already.
    fn chunk(&self, who: usize, start: u32, taken: u32) -> u32 {
        let most = match self.config.chunking {
            Chunking::Tokens { max } => max.unwrap_or(u32::MAX),
            _ => u32::MAX,
        };
        let prompt = self.config.max_prompt_tokens_per_batch.map_or(u32::MAX, |most| most.saturating_sub(taken));
        (self.requests[who].known() - start).min(self.build.tokens_left).min(most).min(prompt)
    }

    fn plan(&mut self, who: usize) -> Result<Plan, Refusal> {
        if self.admitted() >= self.config.max_requests || self.config.max_partial_prefills.is_some_and(|most| self.partial() >= most) {
            return Err(Refusal::Limit);
        }
        if self.lacking.is_some_and(|(key, _)| key < self.key(who)) {
            return Err(Refusal::NoBlocks);
        }
        let hits = self.find_prefix(who);
        let r = &self.requests[who];
        let wanted = match self.config.admission {
            Admission::ReservePrompt => self.blocks(r.known()),
            Admission::NoEvict => self.blocks(r.prompt_len + r.max_out - 1),
            _ => 0,
        };
        let reserve = wanted.saturating_sub(hits.len() as u32);
        let taken = hits.iter().filter(|&&block| self.pool.is_available(block)).count() as u32;
        match self.unreserved().checked_sub(taken) {
            Some(free) if reserve <= free => Ok(Plan { hits, reserve, free }),
            _ => Err(Refusal::NoBlocks),
        }
    }

    /// With lazy admission there must be a block for the first token.
    fn first_chunk_fits(&self, who: usize, plan: &Plan) -> bool {
        let hits = plan.hits.len() as u32;
        self.config.admission != Admission::Lazy || plan.free > 0 || self.chunk(who, hits * self.config.block_size, 0) == 0
    }

    fn admit(&mut self, who: usize, plan: Plan) {
        let hits = plan.hits.len() as u32;
        for &block in &plan.hits {
            self.pool.hold(block);
        }
        let r = &mut self.requests[who];
        r.state = State::Running;
        r.reserved = plan.reserve;
        (r.scheduled, r.committed, r.published) = (hits * self.config.block_size, hits * self.config.block_size, hits);
        r.table = plan.hits;
    }

    /// As many chunks of an admitted request as this batch may hold.
    fn add_chunks(&mut self, who: usize) {
        self.build.visited.push(who);
        let mut taken = 0;
        for _ in 0..self.config.chunks_per_batch {
            if self.build.is_full() || self.live(who) > 0 || self.demand(who, false) == Demand::Nothing {
                break;
            }
            let (start, held) = (self.requests[who].scheduled, self.requests[who].table.len() as u32);
            let mut tokens = self.chunk(who, start, taken);
            if self.config.admission == Admission::Lazy {
                // As much as there are blocks for; others give way for one token, not for more.
                let room = (held + self.unreserved()) * self.config.block_size - start;
                tokens = tokens.min(room.max(1));
            }
            let missing = self.blocks(start + tokens).saturating_sub(held);
            if tokens == 0 || (missing > 0 && !self.get_blocks(who, missing)) {
                break;
            }
            self.push_row(who, tokens);
            taken += tokens;
        }
        if taken > 0 {
            self.queue_decode(who);
        }
    }

    fn push_row(&mut self, who: usize, tokens: u32) {
        let (start, known, live) = (self.requests[who].scheduled, self.requests[who].known(), self.live(who));
        let r = &mut self.requests[who];
        r.scheduled += tokens;
        let row = Row { who, epoch: r.epoch, start, end: start + tokens, samples: start + tokens == known + live };
        self.build.rows.push(row);
        self.build.tokens_left -= tokens;
        self.build.rows_left -= 1;
    }

    /// The number of the oldest batch in flight.
    fn oldest(&self) -> u64 {
        self.flight.front().map_or(self.next_batch, |batch| batch.id)
    }

    /// The next batch's number.
    #[must_use]
    pub fn next_complete(&self) -> Option<BatchId> {
        self.flight.front().map(|batch| BatchId(batch.id))
    }
}
