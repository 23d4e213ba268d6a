//! One state of a tiny world: the scheduler, the memory of its executor, and what the caller has seen.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use cpp_sched::{BatchId, Config, Event, FinishReason, Request, RequestId, Row, Sample, Schedule, Scheduler, TokenId};

use super::Action;
use crate::truth::mix;

/// Which world: a configuration and the requests that come, in this order.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The scheduler's configuration.
    pub config: Config,
    /// Prompt lengths and output tokens.
    pub requests: Vec<(u32, u32)>,
    /// Tokens that all prompts begin with.
    pub shared: u32,
    /// Faults and aborts that may happen.
    pub faults: u8,
}

impl Setup {
    /// The token at a position of a request's text.
    fn token(&self, request: u64, position: u32) -> TokenId {
        let of = if position < self.shared { 0 } else { 1 + request };
        (mix(of, position.into()) % 1000) as TokenId
    }

    /// What a KV slot holds: everything up to the position.
    fn chain(&self, request: u64, position: u32) -> u64 {
        (0..=position).fold(1, |chain, at| mix(chain, self.token(request, at).into()))
    }

    fn request(&self, number: u8) -> Request {
        let (len, outputs) = self.requests[usize::from(number)];
        let mut request = Request::new(RequestId(number.into()), (0..len).map(|at| self.token(number.into(), at)).collect(), outputs);
        // The later ones are the more urgent, so that they preempt where the policy looks at it.
        request.priority = -i64::from(number);
        request
    }
}

/// What the caller knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Alive { delivered: u32, life: u8 },
    Finished,
    Aborted,
}

/// A batch in flight, as its executor has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flight {
    id: u64,
    lost: bool,
    rows: Vec<Written>,
}

/// A row in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Written {
    request: u64,
    /// How often the request had been preempted.
    life: u8,
    end: u32,
    samples: bool,
    /// It was lost, or a row that it continues was.
    void: bool,
    /// The slots of memory that it wrote.
    slots: Vec<usize>,
}

/// One state.
#[derive(Clone, Debug)]
pub struct World {
    scheduler: Scheduler,
    /// The state of the scheduler as text, statistics apart.
    key: String,
    /// What each slot of KV memory holds; 0 = nothing that may be read.
    memory: Vec<u64>,
    flights: VecDeque<Flight>,
    requests: Vec<Status>,
    faults: u8,
    fault: Option<String>,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
            && self.memory == other.memory
            && self.flights == other.flights
            && self.requests == other.requests
            && self.faults == other.faults
            && self.fault == other.fault
    }
}

impl Eq for World {}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.key, &self.memory, &self.flights, &self.requests, self.faults, &self.fault).hash(state);
    }
}

impl World {
    /// Nothing has happened yet.
    ///
    /// # Panics
    /// If the configuration is refused.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let scheduler = Scheduler::new(setup.config).expect("a valid configuration");
        let slots = setup.config.block_size as usize * setup.config.num_blocks as usize;
        let mut world = Self {
            scheduler,
            key: String::new(),
            memory: vec![0; slots],
            flights: VecDeque::new(),
            requests: Vec::new(),
            faults: setup.faults,
            fault: None,
        };
        world.judge(setup);
        world
    }

    /// What is wrong in this state, if anything is.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    pub(super) fn may_submit(&self, setup: &Setup) -> bool {
        self.requests.len() < setup.requests.len()
    }

    pub(super) fn in_flight(&self) -> u8 {
        self.flights.len() as u8
    }

    /// Batches in flight that are not lost yet, by their place.
    pub(super) fn losable(&self) -> impl Iterator<Item = u8> + '_ {
        (0..).zip(&self.flights).filter(|(_, flight)| !flight.lost).map(|(at, _)| at)
    }

    pub(super) fn faults_left(&self) -> u8 {
        self.faults
    }

    pub(super) fn alive(&self) -> impl Iterator<Item = u8> + '_ {
        (0..).zip(&self.requests).filter(|(_, status)| matches!(status, Status::Alive { .. })).map(|(number, _)| number)
    }

    pub(super) fn is_over(&self, setup: &Setup) -> bool {
        !self.may_submit(setup) && self.alive().next().is_none() && self.flights.is_empty()
    }

    pub(super) fn apply(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Submit => self.submit(setup),
            Action::Schedule => {
                self.schedule(setup);
            }
            Action::Complete => self.complete(setup),
            Action::Abort(number) => {
                self.faults -= 1;
                if !self.scheduler.abort(RequestId(number.into())).is_applied() {
                    self.accuse(format!("request {number} is alive and cannot be aborted"));
                }
                self.requests[usize::from(number)] = Status::Aborted;
            }
            Action::Lose(index) => {
                self.faults -= 1;
                self.lose(usize::from(index));
            }
            Action::Fail => {
                self.faults -= 1;
                self.scheduler.fail();
                let flights = std::mem::take(&mut self.flights);
                flights.iter().flat_map(|flight| &flight.rows).flat_map(|row| &row.slots).for_each(|&slot| self.memory[slot] = 0);
            }
        }
        self.judge(setup);
    }

    fn submit(&mut self, setup: &Setup) {
        let number = self.requests.len() as u8;
        if let Err(error) = self.scheduler.submit(setup.request(number)) {
            self.accuse(format!("request {number} is refused: {error}"));
        }
        self.requests.push(Status::Alive { delivered: 0, life: 0 });
    }

    /// Makes a batch and runs it. Returns whether there was one.
    fn schedule(&mut self, setup: &Setup) -> bool {
        let Self { scheduler, memory, flights, .. } = self;
        let Schedule::Batch(batch) = scheduler.schedule() else { return false };
        let size = setup.config.block_size;
        let slot = |row: &Row, position: u32| {
            let block = batch.blocks(row)[(position / size) as usize];
            (block.0 * size + position % size) as usize
        };
        let mut rows = Vec::new();
        for row in batch.rows() {
            let slots: Vec<usize> = (row.num_computed_tokens..row.end()).map(|position| slot(row, position)).collect();
            for (position, &slot) in (row.num_computed_tokens..).zip(&slots) {
                memory[slot] = setup.chain(row.request.0, position);
            }
            rows.push(Written { request: row.request.0, life: 0, end: row.end(), samples: row.samples, void: false, slots });
        }
        let wrong = batch.rows().iter().find_map(|row| {
            (0..row.end())
                .find(|&position| memory[slot(row, position)] != setup.chain(row.request.0, position))
                .map(|position| format!("request {} reads something else at {position}", row.request.0))
        });
        flights.push_back(Flight { id: batch.id().0, lost: false, rows });
        // Whoever was preempted for this batch is not in it, or in its next life.
        self.take_events(setup);
        for row in self.flights.back_mut().into_iter().flat_map(|flight| &mut flight.rows) {
            if let Status::Alive { life, .. } = self.requests[row.request as usize] {
                row.life = life;
            }
        }
        if let Some(wrong) = wrong {
            self.accuse(wrong);
        }
        true
    }

    fn complete(&mut self, setup: &Setup) {
        let Some(flight) = self.flights.pop_front() else { return };
        let sampling = flight.rows.iter().filter(|row| row.samples);
        let tokens: Vec<(u64, [TokenId; 1])> = sampling.map(|row| (row.request, [setup.token(row.request, row.end)])).collect();
        let samples: Vec<Sample<'_>> = tokens.iter().map(|(request, tokens)| Sample { request: RequestId(*request), tokens }).collect();
        if let Err(error) = self.scheduler.complete(BatchId(flight.id), &samples) {
            self.accuse(format!("batch {}: {error}", flight.id));
        }
        self.drop_lost();
    }

    /// One batch is lost: its rows, and the later ones of the same lives, have written nothing that may be read.
    fn lose(&mut self, at: usize) {
        let id = self.flights[at].id;
        if let Err(error) = self.scheduler.lose(BatchId(id)) {
            self.accuse(format!("batch {id} is in flight and cannot be lost: {error}"));
        }
        self.flights[at].lost = true;
        let lost: Vec<(u64, u8)> = self.flights[at].rows.iter().filter(|row| !row.void).map(|row| (row.request, row.life)).collect();
        for row in self.flights.iter_mut().skip(at).flat_map(|flight| &mut flight.rows) {
            if !row.void && lost.contains(&(row.request, row.life)) {
                row.void = true;
                row.slots.iter().for_each(|&slot| self.memory[slot] = 0);
            }
        }
        self.drop_lost();
    }

    fn drop_lost(&mut self) {
        while self.flights.front().is_some_and(|flight| flight.lost) {
            self.flights.pop_front();
        }
    }

    /// Takes events, and compares everything with what it must be.
    fn judge(&mut self, setup: &Setup) {
        self.take_events(setup);
        if let Err(violation) = self.scheduler.check_invariants() {
            self.accuse(violation.to_string());
        }
        let state = serde_json::to_value(self.scheduler.snapshot()).and_then(|mut state| {
            state["state"]["stats"].take();
            serde_json::to_string(&state)
        });
        match state {
            Ok(key) => self.key = key,
            Err(error) => self.accuse(error.to_string()),
        }
    }

    fn take_events(&mut self, setup: &Setup) {
        let events: Vec<Event> = self.scheduler.events().collect();
        for event in events {
            if let Err(wrong) = self.take(setup, event) {
                self.accuse(wrong);
            }
        }
    }

    fn take(&mut self, setup: &Setup, event: Event) -> Result<(), String> {
        match event {
            Event::Token { request, index, token } => {
                let (len, _) = setup.requests[request.0 as usize];
                match &mut self.requests[request.0 as usize] {
                    Status::Alive { delivered, .. } if *delivered == index && token == setup.token(request.0, len + index) => {
                        *delivered += 1
                    }
                    other => return Err(format!("token {index} of request {} came when it was {other:?}", request.0)),
                }
            }
            Event::Preempted { request } => {
                if let Status::Alive { life, .. } = &mut self.requests[request.0 as usize] {
                    *life = life.saturating_add(1);
                }
            }
            Event::Finished { request, reason } => {
                let (_, outputs) = setup.requests[request.0 as usize];
                let status = &mut self.requests[request.0 as usize];
                match (*status, reason) {
                    (Status::Alive { delivered, .. }, FinishReason::Length) if delivered == outputs => *status = Status::Finished,
                    (Status::Aborted, FinishReason::Aborted) => {}
                    _ => return Err(format!("request {} finished by {reason:?} when it was {status:?}", request.0)),
                }
            }
            _ => return Err(format!("an event that nothing here leads to: {event:?}")),
        }
        Ok(())
    }

    fn accuse(&mut self, what: String) {
        self.fault.get_or_insert(what);
    }

    /// Plays on without further faults: everything comes, is scheduled and completed.
    ///
    /// # Errors
    /// Who has not ended after more rounds than any run needs, or what is wrong on the way.
    pub fn ends(&self, setup: &Setup) -> Result<(), String> {
        let mut world = self.clone();
        while world.may_submit(setup) {
            world.apply(setup, Action::Submit);
        }
        let work: u32 = setup.requests.iter().map(|(len, outputs)| len + outputs).sum();
        // Each request may be preempted by each other one, and starts anew.
        let rounds = work * (setup.requests.len() as u32 + 2) * 2;
        for _ in 0..rounds {
            while world.fault.is_none() && world.schedule(setup) {}
            if let Some(fault) = world.fault {
                return Err(fault);
            }
            if world.is_over(setup) {
                return world.is_clean(setup);
            }
            world.apply(setup, Action::Complete);
        }
        Err(format!("not over after {rounds} rounds: {:?}", world.requests))
    }

    /// At the end nothing is held, and who was not aborted has all its tokens.
    fn is_clean(&self, setup: &Setup) -> Result<(), String> {
        let usage = self.scheduler.kv_usage();
        if usage.free + usage.cached != setup.config.num_blocks {
            return Err(format!("blocks are kept at the end: {usage:?}"));
        }
        if !self.scheduler.is_idle() {
            return Err("not idle at the end".to_owned());
        }
        Ok(())
    }
}
