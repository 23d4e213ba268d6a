//! What the calls of a scheduler cost, in a steady state: `cargo bench -p cpp-sched`, and `cargo bench -p cpp-sched -- submit` for some of it.
//!
//! Every sample is one call (or one step), so that what an executor and its clients do in between (deliver tokens, submit the next request) is
//! not in the time. A sample contains one reading of the clock; `-- --timer tsc` reads a cheaper one where the processor has it.
//!
//! The population is constant: whoever ends is replaced before the next step. Under `cargo test --benches` each case runs once.

use std::cell::RefCell;

use cpp_sched::{Config, Event, Request, RequestId, Sample, Schedule, Scheduler, TokenId};
use divan::Bencher;
use divan::counter::ItemsCount;

fn main() {
    divan::main();
}

/// Requests that run, one row each in every batch.
const RUNNING: [u32; 6] = [16, 64, 256, 1024, 4096, 8192];
/// Requests in the queue, where there is one.
const WAITING: u32 = 100_000;
/// Outputs of each request.
const OUTPUTS: u32 = 512;
/// The shortest prompt of a decode. The others are up to a block longer, so that block borders lie evenly over the steps.
const PROMPT: u32 = 97;
/// What every row samples.
const SAMPLED: &[TokenId] = &[7];

/// Decodes with prefix caching, a long queue behind them or none.
struct Decodes {
    scheduler: Scheduler,
    samples: Vec<Sample<'static>>,
    next_id: u64,
    running: u32,
}

impl Decodes {
    /// Ends are spread evenly over the steps from the start. After the warm-up every request has been replaced, some twice, and the pool has been
    /// through once, so that new blocks are taken from the prefix cache.
    fn new(running: u32, waiting: u32) -> Self {
        let mut config = Config::default();
        let longest = PROMPT + config.block_size + OUTPUTS;
        config.num_blocks = running * (longest / config.block_size + 1);
        config.max_requests = running;
        config.max_batch_requests = running;
        config.max_batch_tokens = running * (PROMPT + config.block_size);
        config.prefix_caching = true;
        let scheduler = Scheduler::new(config).expect("a valid configuration");
        let mut decodes = Self { scheduler, samples: Vec::new(), next_id: 0, running };
        for at in 0..running {
            decodes.submit(1 + at * OUTPUTS / running);
        }
        for _ in 0..waiting {
            decodes.submit(OUTPUTS);
        }
        // `cargo test` asks whether it runs, not how fast.
        let warm_up = if std::env::args().any(|arg| arg == "--bench") { 2 * OUTPUTS } else { 2 };
        for _ in 0..warm_up {
            decodes.step();
            decodes.replace();
        }
        decodes
    }

    /// A prompt that begins like no other.
    fn submit(&mut self, outputs: u32) {
        let id = self.next_id;
        self.next_id += 1;
        let len = PROMPT + (id % 16) as u32;
        let request = Request::new(RequestId(id), prompt(id, len), outputs);
        self.scheduler.submit(request).expect("a request that fits");
    }

    /// What is measured: one batch made, its samples listed in the order of its rows, and taken.
    fn step(&mut self) {
        let Schedule::Batch(batch) = self.scheduler.schedule() else { panic!("work is left") };
        assert_eq!(batch.rows().len(), self.running as usize, "every request has a row");
        let id = batch.id();
        self.samples.clear();
        let sampling = batch.rows().iter().filter(|row| row.samples);
        self.samples.extend(sampling.map(|row| Sample { request: row.request, tokens: SAMPLED }));
        self.scheduler.complete(id, &self.samples).expect("a right result");
    }

    /// Takes the events, and submits one request for each that has ended: so many are admitted in the next step.
    fn replace(&mut self) -> usize {
        let ended = self.scheduler.events().filter(|event| matches!(event, Event::Finished { .. })).count();
        for _ in 0..ended {
            self.submit(OUTPUTS);
        }
        ended
    }

    /// Goes on to the next step of a kind: it admits somebody, or nobody. With so many that somebody ends in every step all are of one kind.
    fn go_on_to(&mut self, admits: bool) {
        while (self.replace() > 0) != admits && self.running < OUTPUTS {
            self.step();
        }
    }
}

/// Tokens of request `id`; the factor is odd, so that 2^32 of them all begin differently.
fn prompt(id: u64, len: u32) -> Vec<TokenId> {
    let first = (id as u32).wrapping_mul(0x9e37_79b9);
    (0..len).map(|at| first.wrapping_add(at)).collect()
}

/// Steps of one kind: a median over two kinds that are about as frequent is that of neither, and says nothing when it is compared.
fn steps(bencher: Bencher<'_, '_>, running: u32, waiting: u32, admits: bool) {
    let decodes = RefCell::new(Decodes::new(running, waiting));
    bencher
        .counter(ItemsCount::new(running))
        .with_inputs(|| decodes.borrow_mut().go_on_to(admits))
        .bench_local_values(|()| decodes.borrow_mut().step());
}

/// `schedule` and `complete` of N running decodes. With 16 to 256 only those steps are sampled that admit nobody.
#[divan::bench(args = RUNNING, sample_size = 1, sample_count = 1000)]
fn decode(bencher: Bencher<'_, '_>, running: u32) {
    steps(bencher, running, 0, false);
}

/// The same with 100,000 requests waiting; whoever ends makes room for the first of them.
#[divan::bench(args = RUNNING, sample_size = 1, sample_count = 1000)]
fn decode_and_100_000_waiting(bencher: Bencher<'_, '_>, running: u32) {
    steps(bencher, running, WAITING, false);
}

/// The other steps of 256: one that has ended is replaced, by the only one that waits, submitted just before, or by one of 100,001 that came long ago.
#[divan::bench(args = [0, WAITING], sample_size = 1, sample_count = 1000)]
fn decode_256_and_admit_one(bencher: Bencher<'_, '_>, waiting: u32) {
    steps(bencher, 256, waiting, true);
}

/// What a step of N decodes costs whoever schedules them: the memory that the interface alone has written and read. No decision is taken, no block.
#[derive(Default)]
struct Floor {
    records: Vec<Record>,
    tokens: Vec<Vec<TokenId>>,
    /// Who decodes next, in order.
    ready: Vec<usize>,
    rows: Vec<FloorRow>,
    samples: Vec<Sample<'static>>,
    events: Vec<Event>,
}

/// One line of the cache for each request.
#[repr(align(64))]
struct Record {
    id: RequestId,
    computed: u32,
    in_flight: u32,
    outputs: u32,
}

/// As large as a [`cpp_sched::Row`].
struct FloorRow {
    request: RequestId,
    slot: usize,
    start: u32,
    _rest: [u32; 11],
}

const _: () = assert!(size_of::<FloorRow>() >= size_of::<cpp_sched::Row>());

impl Floor {
    fn new(running: u32) -> Self {
        let record = |id| Record { id: RequestId(id), computed: 0, in_flight: 0, outputs: 0 };
        let tokens = |_| Vec::with_capacity((PROMPT + OUTPUTS) as usize);
        Self {
            records: (0..u64::from(running)).map(record).collect(),
            tokens: (0..running).map(tokens).collect(),
            ready: (0..running as usize).collect(),
            ..Self::default()
        }
    }

    fn step(&mut self) {
        self.rows.clear();
        for slot in self.ready.drain(..) {
            let record = &mut self.records[slot];
            self.rows.push(FloorRow { request: record.id, slot, start: record.computed, _rest: [0; 11] });
            (record.computed, record.in_flight) = (record.computed + 1, record.in_flight + 1);
        }
        self.samples.clear();
        self.samples.extend(self.rows.iter().map(|row| Sample { request: row.request, tokens: SAMPLED }));
        for (row, sample) in self.rows.iter().zip(&self.samples) {
            let record = &mut self.records[row.slot];
            assert!(row.request == sample.request && record.computed == row.start + 1, "its own sample");
            let (index, token) = (record.outputs, sample.tokens[0]);
            (record.in_flight, record.outputs) = (record.in_flight - 1, index + 1);
            self.tokens[row.slot].push(token);
            self.events.push(Event::Token { request: row.request, index, token });
            self.ready.push(row.slot);
        }
    }

    fn take_events(&mut self) {
        divan::black_box(self.events.drain(..).count());
        if self.tokens[0].len() == self.tokens[0].capacity() {
            self.tokens.iter_mut().for_each(Vec::clear);
        }
    }
}

/// See [`Floor`].
#[divan::bench(args = RUNNING, sample_size = 1, sample_count = 1000)]
fn floor(bencher: Bencher<'_, '_>, running: u32) {
    let floor = RefCell::new(Floor::new(running));
    bencher
        .counter(ItemsCount::new(running))
        .with_inputs(|| floor.borrow_mut().take_events())
        .bench_local_values(|()| floor.borrow_mut().step());
}

/// `submit` of a prompt with prefix caching: every block is hashed. The one before it is aborted outside the time.
#[divan::bench(args = [8 << 10, 128 << 10], sample_size = 1, sample_count = 300)]
fn submit(bencher: Bencher<'_, '_>, tokens: u32) {
    let mut config = Config::default();
    config.num_blocks = tokens / config.block_size + 1;
    config.prefix_caching = true;
    let scheduler = RefCell::new(Scheduler::new(config).expect("a valid configuration"));
    let mut turn = 0;
    bencher
        .counter(ItemsCount::new(tokens))
        .with_inputs(|| {
            let mut scheduler = scheduler.borrow_mut();
            assert!(scheduler.abort(RequestId(turn)).is_applied());
            scheduler.events().for_each(drop);
            turn += 1;
            Request::new(RequestId(turn), prompt(turn, tokens), 1)
        })
        .bench_local_values(|request| scheduler.borrow_mut().submit(request).expect("a request that fits"));
}

/// `abort` of one of so many that wait, somewhere in the queue. Another takes its place outside the time.
#[divan::bench(args = [WAITING], sample_size = 1, sample_count = 1000)]
fn abort(bencher: Bencher<'_, '_>, waiting: u32) {
    let scheduler = RefCell::new(Scheduler::new(Config::default()).expect("a valid configuration"));
    let wait = |id| {
        let request = Request::with_lengths(RequestId(id), 500, Vec::new(), 100);
        scheduler.borrow_mut().submit(request).expect("a request that fits");
    };
    let waiting = u64::from(waiting);
    (0..waiting).for_each(wait);
    let mut turn = 0;
    bencher
        .with_inputs(|| {
            scheduler.borrow_mut().events().for_each(drop);
            wait(waiting + turn);
            turn += 1;
            // A large prime step visits places all over the queue, none twice.
            RequestId(turn * 7919 % waiting)
        })
        .bench_local_values(|id| assert!(scheduler.borrow_mut().abort(id).is_applied(), "{id} waits"));
}

/// Where in the long prompt the chunks lie.
#[derive(Clone, Copy, Debug)]
enum Quarter {
    First,
    Last,
}

/// A prompt of 2^20 tokens through eight stages, in chunks of 4096 tokens.
struct Prefill {
    scheduler: Scheduler,
    scheduled: u32,
}

impl Prefill {
    const PROMPT: u32 = 1 << 20;
    const CHUNK: u32 = 4096;

    fn new(id: u64) -> Self {
        let mut config = Config::default();
        config.stages = 8;
        config.max_batch_tokens = Self::CHUNK;
        config.num_blocks = Self::PROMPT / config.block_size + 1;
        config.prefix_caching = true;
        let mut scheduler = Scheduler::new(config).expect("a valid configuration");
        scheduler.submit(Request::new(RequestId(id), prompt(id, Self::PROMPT), 1)).expect("a request that fits");
        let mut prefill = Self { scheduler, scheduled: 0 };
        // A full pipeline, so that from now on one chunk ends for each that is scheduled.
        (0..8).for_each(|_| prefill.schedule());
        prefill
    }

    /// What is measured.
    fn schedule(&mut self) {
        let Schedule::Batch(batch) = self.scheduler.schedule() else { panic!("a place in the pipeline and tokens are left") };
        self.scheduled = batch.rows()[0].end();
    }

    fn complete(&mut self) {
        let oldest = self.scheduler.oldest_in_flight().expect("a full pipeline").id();
        self.scheduler.complete(oldest, &[]).expect("a chunk in the middle");
    }
}

/// `schedule` of one chunk, early and late in the prompt. A prompt whose quarter is through makes way for the next, outside the time.
#[divan::bench(args = [Quarter::First, Quarter::Last], sample_size = 1, sample_count = 600)]
fn schedule_a_chunk_of_1m(bencher: Bencher<'_, '_>, quarter: Quarter) {
    let (from, to) = match quarter {
        Quarter::First => (0, Prefill::PROMPT / 4),
        Quarter::Last => (Prefill::PROMPT / 4 * 3, Prefill::PROMPT),
    };
    let mut id = 0;
    let prefill = RefCell::new(Prefill::new(id));
    bencher
        .with_inputs(|| {
            let mut prefill = prefill.borrow_mut();
            if prefill.scheduled >= to {
                id += 1;
                *prefill = Prefill::new(id);
            }
            prefill.complete();
            while prefill.scheduled < from {
                prefill.schedule();
                prefill.complete();
            }
        })
        .bench_local_values(|()| prefill.borrow_mut().schedule());
}
