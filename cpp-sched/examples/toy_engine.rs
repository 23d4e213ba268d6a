//! An engine around the kernel, small but whole: three stages in threads of their own, each with paged KV memory; outputs streamed to a channel
//! for each request; clients that hang up; a batch that is lost on the way; a prefix that requests share.
//!
//! The "model" is a hash over everything that it reads through the block tables, so a wrong position or a block that is shared by mistake would
//! change the text. At the end every output is compared with one computed without pages, batches and chunks.
//!
//! `cargo run -p cpp-sched --example toy_engine`

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use cpp_sched::driver::{Driver, Executor, Progress, Samples, Step};
use cpp_sched::{BatchId, BlockId, Config, Event, FinishReason, Request, RequestId, Scheduled, Scheduler, SubmitError, TokenId};

const STAGES: u64 = 3;
const BLOCK_SIZE: u32 = 4;
const NUM_BLOCKS: u32 = 40;

// ---- The model: per stage and position one number, computed from all positions before it.

/// What `stage` makes of the position whose KV is the last of `kv`.
fn attend(stage: u64, kv: impl Iterator<Item = u64>) -> u64 {
    kv.fold(stage + 1, |sum, value| (sum ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23))
}

fn to_token(hidden: u64) -> TokenId {
    (hidden % 50_000) as TokenId
}

/// The same model without pages, chunks and batches: what the engine must answer.
fn reference(prompt: &[TokenId], outputs: usize) -> Vec<TokenId> {
    let mut tokens = prompt.to_vec();
    for _ in 0..outputs {
        let mut hidden: Vec<u64> = tokens.iter().map(|token| u64::from(*token)).collect();
        for stage in 0..STAGES {
            hidden = (0..hidden.len()).map(|at| attend(stage, hidden[..=at].iter().copied())).collect();
        }
        tokens.push(to_token(hidden[hidden.len() - 1]));
    }
    tokens.split_off(prompt.len())
}

// ---- The executor: one thread a stage, batches travel from one to the next. The driver asks it for results.

struct WorkRow {
    request: RequestId,
    start: u32,
    blocks: Vec<BlockId>,
    hidden: Vec<u64>,
    samples: bool,
}

struct Work {
    batch: BatchId,
    rows: Vec<WorkRow>,
    lost: bool,
}

/// Runs one stage until its input ends. `dies_at`: the number of a batch that it loses.
fn run_stage(stage: u64, dies_at: Option<BatchId>, input: &Receiver<Work>, output: &Sender<Work>) {
    let mut kv = vec![0; (BLOCK_SIZE * NUM_BLOCKS) as usize];
    for mut work in input {
        work.lost |= dies_at == Some(work.batch);
        for row in work.rows.iter_mut().filter(|_| !work.lost) {
            let slot = |at: u32| (row.blocks[(at / BLOCK_SIZE) as usize].0 * BLOCK_SIZE + at % BLOCK_SIZE) as usize;
            for (at, hidden) in (row.start..).zip(&mut row.hidden) {
                kv[slot(at)] = *hidden;
                *hidden = attend(stage, (0..=at).map(|before| kv[slot(before)]));
            }
        }
        if output.send(work).is_err() {
            return;
        }
    }
}

/// Why the pipeline lost its batches.
#[derive(Debug)]
enum Lost {
    /// A stage lost this one. What is behind it in the pipeline read its rubbish.
    Batch(BatchId),
    /// A stage is gone.
    Stage,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(batch) => write!(f, "{batch} was lost"),
            Self::Stage => f.write_str("a stage is gone"),
        }
    }
}

impl Error for Lost {}

/// The stages, seen from outside.
struct Pipeline {
    to_first_stage: Sender<Work>,
    from_last_stage: Receiver<Work>,
    under_way: usize,
    /// Prompt and outputs of each request: the rows of a batch name positions, their tokens are looked up here.
    tokens: BTreeMap<RequestId, Vec<TokenId>>,
}

impl Pipeline {
    fn new(dies_at: BatchId) -> Self {
        let (to_first_stage, mut input) = channel();
        for stage in 0..STAGES {
            let (output, next_input) = channel();
            let dies_at = (stage == 1).then_some(dies_at);
            thread::spawn(move || run_stage(stage, dies_at, &input, &output));
            input = next_input;
        }
        Self { to_first_stage, from_last_stage: input, under_way: 0, tokens: BTreeMap::new() }
    }

    fn result(&mut self, work: &Work, samples: &mut Samples) -> Result<Option<BatchId>, Lost> {
        self.under_way -= 1;
        if work.lost {
            return Err(Lost::Batch(work.batch));
        }
        for row in work.rows.iter().filter(|row| row.samples) {
            samples.push(row.request, &[to_token(row.hidden[row.hidden.len() - 1])]);
        }
        Ok(Some(work.batch))
    }
}

impl Executor for Pipeline {
    type Error = Lost;

    fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Lost> {
        let rows = batch.rows().iter().map(|row| WorkRow {
            request: row.request,
            start: row.num_computed_tokens,
            blocks: batch.blocks(row).to_vec(),
            hidden: self.tokens[&row.request][row.num_computed_tokens as usize..row.end() as usize]
                .iter()
                .map(|token| u64::from(*token))
                .collect(),
            samples: row.samples,
        });
        let work = Work { batch: batch.id(), rows: rows.collect(), lost: false };
        self.to_first_stage.send(work).map_err(|_| Lost::Stage)?;
        self.under_way += 1;
        Ok(())
    }

    fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Lost> {
        match self.from_last_stage.try_recv() {
            Ok(work) => self.result(&work, samples),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Lost::Stage),
        }
    }

    fn wait(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Lost> {
        let work = self.from_last_stage.recv().map_err(|_| Lost::Stage)?;
        self.result(&work, samples)
    }

    /// Lets everything run out: afterwards no stage writes into a block that may be given out anew.
    fn fail(&mut self) -> Result<(), Lost> {
        while self.under_way > 0 {
            self.from_last_stage.recv().map_err(|_| Lost::Stage)?;
            self.under_way -= 1;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Token { request, token, .. } => {
                if let Some(tokens) = self.tokens.get_mut(request) {
                    tokens.push(*token);
                }
            }
            // Nothing more of it will be scheduled: its tokens will not be asked for again.
            Event::Finished { request, .. } => drop(self.tokens.remove(request)),
            _ => {}
        }
    }
}

// ---- The engine: the driver, and who waits for what.

#[derive(Debug, PartialEq)]
enum Output {
    Token(TokenId),
    End(FinishReason),
}

struct Engine {
    driver: Driver<Pipeline>,
    clients: BTreeMap<RequestId, Sender<Output>>,
    next_id: u64,
}

impl Engine {
    fn new(dies_at: BatchId) -> Result<Self, Box<dyn Error>> {
        let mut config = Config::default();
        config.stages = STAGES as u32;
        config.block_size = BLOCK_SIZE;
        config.num_blocks = NUM_BLOCKS;
        config.max_batch_tokens = 16;
        config.prefix_caching = true;
        // A real engine draws `hash_key` at random, so that nobody can forge the prefix of somebody else.
        let driver = Driver::new(Scheduler::new(config)?, Pipeline::new(dies_at));
        Ok(Self { driver, clients: BTreeMap::new(), next_id: 0 })
    }

    /// Takes a request in. Its outputs come out of the channel; who drops the channel aborts the request.
    fn submit(&mut self, prompt: &[TokenId], max_tokens: u32) -> Result<(RequestId, Receiver<Output>), SubmitError> {
        let id = RequestId(self.next_id);
        self.driver.submit(Request::new(id, prompt.to_vec(), max_tokens))?;
        self.driver.executor_mut().tokens.insert(id, prompt.to_vec());
        self.next_id += 1;
        let (stream, outputs) = channel();
        self.clients.insert(id, stream);
        Ok((id, outputs))
    }

    /// One step of the driver; its events go to the clients. False when there is nothing left to do.
    fn step(&mut self) -> Result<bool, Box<dyn Error>> {
        let step = self.driver.step()?;
        match &step {
            Step::Progress(Progress::Failed(failure)) => println!("{failure}"),
            Step::Progress(Progress::RolledBack(batches)) => println!("{batches} batches run again"),
            _ => {}
        }
        let mut hung_up = Vec::new();
        for event in self.driver.events() {
            match event {
                Event::Token { request, token, .. } => {
                    let client = self.clients.get(&request);
                    hung_up.extend(client.and_then(|client| client.send(Output::Token(token)).err()).map(|_| request));
                }
                Event::Finished { request, reason } => {
                    if let Some(client) = self.clients.remove(&request) {
                        let _ = client.send(Output::End(reason));
                    }
                }
                _ => {}
            }
        }
        for request in hung_up {
            println!("{request} hung up: {}", self.driver.abort(request).as_str());
        }
        Ok(step.is_progress())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut engine = Engine::new(BatchId(4))?;
    let system: Vec<TokenId> = (100..120).collect();
    let prompt = |user: &[TokenId]| [&system[..], user].concat();
    // One after the other, so that the later ones find the system prompt in the cache.
    let mut open = Vec::new();
    let users: [Vec<TokenId>; 4] = [vec![7, 8, 9], (0..40).collect(), vec![], vec![3; 10]];
    for (user, outputs) in users.iter().zip([6, 5, 12, 8]) {
        let (id, stream) = engine.submit(&prompt(user), outputs)?;
        open.push((id, prompt(user), outputs as usize, stream));
        for _ in 0..3 {
            engine.step()?;
        }
    }
    // This client reads one token and goes away; this one asks for more than the memory could ever hold.
    let (_, impatient) = engine.submit(&prompt(&[5; 6]), 100)?;
    while impatient.try_recv().is_err() {
        engine.step()?;
    }
    drop(impatient);
    println!("refused: {}", engine.submit(&[1; 160], 1).unwrap_err());

    while engine.step()? {}
    for (id, prompt, outputs, stream) in open {
        let mut expected: Vec<_> = reference(&prompt, outputs).into_iter().map(Output::Token).collect();
        expected.push(Output::End(FinishReason::Length));
        let got: Vec<_> = stream.try_iter().collect();
        println!("{id}: {} prompt tokens, then {got:?}", prompt.len());
        assert_eq!(got, expected, "{id} differs from the reference");
    }
    let stats = engine.driver.scheduler().stats();
    println!("{} batches, {} lost, {} prompt tokens from the cache", stats.batches, stats.batches_lost, stats.cache_hit_tokens);
    Ok(())
}
