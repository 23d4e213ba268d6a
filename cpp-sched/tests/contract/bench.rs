//! A scheduler, the stream of its plans, and a worker's mirror of it; invariants and mirror are checked at every step.

use std::collections::{BTreeSet, VecDeque};

use cpp_sched::wire::{Encoder, Mirror, Token};
use cpp_sched::{
    Batch, Config, EmptyReason, Event, FinishReason, KvUsage, Outcome, Request, RequestId, Row, Sample, Schedule, Scheduler, Stats,
    WaitReason,
};

/// A row: whose, from, to.
pub(crate) type Cell = (u64, u32, u32);

/// Rounds after which something that should have ended has not.
const MOST_ROUNDS: u32 = 2000;

/// A request with a prompt that no other id has.
pub(crate) fn request(id: u64, len: u32, max_tokens: u32) -> Request {
    Request::new(RequestId(id), (0..len).map(|at| 100_000 * id as u32 + at).collect(), max_tokens)
}

/// A request whose prompt is the beginning of one text that all of these share.
pub(crate) fn common(id: u64, len: u32, max_tokens: u32) -> Request {
    Request::new(RequestId(id), (0..len).collect(), max_tokens)
}

/// The token that a row samples where a test does not say otherwise: its position.
fn sampled(row: &Row) -> Vec<u32> {
    vec![1000 + row.end() - row.num_draft_tokens]
}

#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) scheduler: Scheduler,
    encoder: Encoder,
    mirror: Mirror,
    /// Batches in flight as they were scheduled.
    pub(crate) flight: VecDeque<Batch>,
    /// Positions of the last batch whose token another batch samples.
    pub(crate) assumed: u32,
}

impl Bench {
    /// 64 blocks of 4 tokens, batches of 64 tokens, one stage, and what `set` changes.
    pub(crate) fn new(set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.max_batch_tokens) = (4, 64, 64);
        set(&mut config);
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            encoder: Encoder::new(&config),
            mirror: Mirror::new(&config),
            flight: VecDeque::new(),
            assumed: 0,
        }
    }

    pub(crate) fn submit(&mut self, id: u64, len: u32, max_tokens: u32) -> &mut Self {
        self.take(request(id, len, max_tokens))
    }

    pub(crate) fn take(&mut self, request: Request) -> &mut Self {
        self.scheduler.submit(request).unwrap();
        self.checked()
    }

    /// A request that `set` changes.
    pub(crate) fn with(&mut self, mut request: Request, set: impl FnOnce(&mut Request)) -> &mut Self {
        set(&mut request);
        self.take(request)
    }

    pub(crate) fn checked(&mut self) -> &mut Self {
        self.scheduler.check_invariants().unwrap();
        self
    }

    /// The next batch; why there is none.
    pub(crate) fn try_step(&mut self) -> Result<Vec<Cell>, EmptyReason> {
        let answer = match self.scheduler.schedule() {
            Schedule::Empty(reason) => Err(reason),
            Schedule::Batch(batch) => {
                let mut message = Vec::new();
                self.encoder.encode(&batch, &mut message).unwrap();
                let plan = self.mirror.apply(&message).unwrap().plan().unwrap();
                assert_eq!((plan.batch(), plan.copies(), plan.len()), (batch.id(), batch.copies(), batch.rows().len()));
                let (forth, mut back): (Vec<_>, Vec<_>) =
                    (plan.rows().map(|row| row.request()).collect(), plan.rows().rev().map(|row| row.request()).collect());
                back.reverse();
                assert_eq!((&forth, plan.is_empty()), (&back, forth.is_empty()));
                let names: BTreeSet<_> = plan.rows().map(|row| (row.request(), row.handle())).collect();
                let handles: BTreeSet<_> = plan.rows().map(|row| row.handle()).collect();
                assert_eq!(names.len(), handles.len(), "each request has a handle, and no other has it");
                self.assumed = 0;
                for (planned, row) in plan.rows().zip(batch.rows()) {
                    let (expected, got) = (
                        (row.request, row.num_computed_tokens, row.end(), row.samples),
                        (planned.request(), planned.num_computed_tokens(), planned.end(), planned.samples()),
                    );
                    assert_eq!((got, planned.blocks()), (expected, batch.blocks(row)), "the mirror differs");
                    self.assumed += planned.tokens().filter(|token| matches!(token, Token::Sampled { .. })).count() as u32;
                }
                self.flight.push_back(batch.batch().clone());
                Ok(batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect())
            }
        };
        self.checked();
        answer
    }

    /// The next batch, which there must be.
    pub(crate) fn step(&mut self) -> Vec<Cell> {
        self.try_step().unwrap_or_else(|reason| panic!("no batch: {reason:?}"))
    }

    /// There must be no batch.
    pub(crate) fn empty(&mut self) -> EmptyReason {
        match self.try_step() {
            Err(reason) => reason,
            Ok(rows) => panic!("there is a batch: {rows:?}"),
        }
    }

    /// Batches until there is none.
    pub(crate) fn fill(&mut self) -> Vec<Vec<Cell>> {
        std::iter::from_fn(|| self.try_step().ok()).collect()
    }

    /// The rows of the batch scheduled last.
    pub(crate) fn last(&self) -> &Batch {
        self.flight.back().expect("a batch in flight")
    }

    /// The oldest batch comes back; each row that samples yields one token.
    pub(crate) fn complete(&mut self) -> &mut Self {
        self.complete_with(sampled)
    }

    /// The oldest batch comes back with these tokens for each row that samples.
    pub(crate) fn complete_with(&mut self, tokens: impl Fn(&Row) -> Vec<u32>) -> &mut Self {
        let id = self.scheduler.oldest_in_flight().expect("a batch in flight").id();
        // Those that were lost have no result.
        while self.flight.front().is_some_and(|batch| batch.id() < id) {
            self.flight.pop_front();
        }
        let batch = self.flight.pop_front().expect("a batch in flight");
        assert_eq!(batch.id(), id);
        let results: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| (row.request, tokens(row))).collect();
        let samples: Vec<_> = results.iter().map(|(request, tokens)| Sample { request: *request, tokens }).collect();
        self.scheduler.complete(id, &samples).unwrap();
        self.checked()
    }

    /// One batch there and back.
    pub(crate) fn round(&mut self) -> Vec<Cell> {
        let rows = self.step();
        self.complete();
        rows
    }

    /// All batches in flight are lost.
    pub(crate) fn fail(&mut self) -> &mut Self {
        let lost = self.scheduler.fail();
        assert_eq!(lost as usize, self.flight.len());
        self.flight.clear();
        self.checked()
    }

    /// The `at`th batch in flight is lost.
    pub(crate) fn lose(&mut self, at: usize) -> &mut Self {
        let id = self.scheduler.oldest_in_flight().expect("a batch in flight").id();
        self.scheduler.lose(cpp_sched::BatchId(id.0 + at as u64)).unwrap();
        self.checked()
    }

    pub(crate) fn abort(&mut self, id: u64) -> Outcome {
        let done = self.scheduler.abort(RequestId(id));
        self.checked();
        done
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.scheduler.events().collect()
    }

    /// Tokens since events were taken last: whose, and which.
    pub(crate) fn tokens(&mut self) -> Vec<(u64, u32)> {
        tokens_of(&self.events())
    }

    /// Runs on until nothing is left that could run; what happened.
    pub(crate) fn run(&mut self) -> Vec<Event> {
        let mut events = self.events();
        for _ in 0..MOST_ROUNDS {
            self.fill();
            events.extend(self.events());
            if self.scheduler.in_flight() == 0 {
                return events;
            }
            self.complete();
            events.extend(self.events());
        }
        panic!("no end after {MOST_ROUNDS} rounds");
    }

    /// Runs everything to its end; no block may leak.
    pub(crate) fn finish(&mut self) -> Vec<Event> {
        let events = self.run();
        assert_eq!(self.scheduler.unfinished(), [], "they wait for {:?}", self.stats().waiting_for);
        self.assert_no_leak();
        events
    }

    pub(crate) fn assert_no_leak(&self) {
        let KvUsage { total, free, cached, .. } = self.usage();
        assert_eq!(free + cached, total, "blocks leak: {:?}", self.usage());
    }

    pub(crate) fn usage(&self) -> KvUsage {
        self.scheduler.kv_usage()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.scheduler.stats()
    }

    pub(crate) fn why(&self, id: u64) -> Option<WaitReason> {
        self.scheduler.why(RequestId(id))
    }

    pub(crate) fn table(&self, id: u64) -> Vec<u32> {
        self.scheduler.block_table(RequestId(id)).expect("it is alive").iter().map(|block| block.0).collect()
    }

    pub(crate) fn committed(&self, id: u64) -> u32 {
        self.scheduler.num_committed_tokens(RequestId(id)).expect("it is alive")
    }

    /// All that the scheduler is, to be compared: a refused call leaves it as it was.
    pub(crate) fn state(&self) -> String {
        format!("{:?}", self.scheduler)
    }

    /// The prefix cache as a router knows it, after all that was told: stored less removed, since the last clearing.
    pub(crate) fn follow(&mut self, known: &mut std::collections::BTreeSet<[u8; 16]>) {
        use cpp_sched::KvEvent::{Cleared, Removed, Stored};
        for event in self.scheduler.kv_events() {
            match event {
                Stored { digest, parent, .. } => {
                    assert!(parent.is_none_or(|parent| known.contains(&parent)), "a prefix is stored before its beginning");
                    assert!(known.insert(digest), "stored twice");
                }
                Removed { digest } => assert!(known.remove(&digest), "removed, but never stored"),
                Cleared => known.clear(),
                other => panic!("unknown {other:?}"),
            }
        }
    }
}

pub(crate) fn tokens_of(events: &[Event]) -> Vec<(u64, u32)> {
    let token = |event: &Event| if let Event::Token { request, token, .. } = event { Some((request.0, *token)) } else { None };
    events.iter().filter_map(token).collect()
}

/// Who has ended, in order, and why.
pub(crate) fn ends_of(events: &[Event]) -> Vec<(u64, FinishReason)> {
    let end = |event: &Event| if let Event::Finished { request, reason } = event { Some((request.0, *reason)) } else { None };
    events.iter().filter_map(end).collect()
}
