//! An engine around the kernel, small but whole: three stages in threads of their own, each with paged KV memory; outputs streamed to a channel
//! for each request; clients that hang up; a batch that is lost on the way; a prefix that requests share.
//!
//! The "model" is a hash over everything that it reads through the block tables, so a wrong position or a block that is shared by mistake would
//! change the text. At the end every output is compared with one computed without pages, batches and chunks.
//!
//! `cargo run -p cpp-sched --example toy_engine`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use cpp_sched::{BatchId, BlockId, Config, Event, FinishReason, Request, RequestId, Sample, Schedule, Scheduler, SubmitError, TokenId};

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

// ---- The executor: one thread a stage, batches travel from one to the next.

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

// ---- The engine: the kernel, the executor, and who waits for what.

#[derive(Debug, PartialEq)]
enum Output {
    Token(TokenId),
    End(FinishReason),
}

struct Client {
    /// Prompt and outputs: the rows of a batch name positions, their tokens are looked up here.
    tokens: Vec<TokenId>,
    stream: Sender<Output>,
}

struct Engine {
    scheduler: Scheduler,
    clients: BTreeMap<RequestId, Client>,
    next_id: u64,
    to_first_stage: Sender<Work>,
    from_last_stage: Receiver<Work>,
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
        let (to_first_stage, mut input) = channel();
        for stage in 0..STAGES {
            let (output, next_input) = channel();
            let dies_at = (stage == 1).then_some(dies_at);
            thread::spawn(move || run_stage(stage, dies_at, &input, &output));
            input = next_input;
        }
        let scheduler = Scheduler::new(config)?;
        Ok(Self { scheduler, clients: BTreeMap::new(), next_id: 0, to_first_stage, from_last_stage: input })
    }

    /// Takes a request in. Its outputs come out of the channel; who drops the channel aborts the request.
    fn submit(&mut self, prompt: &[TokenId], max_tokens: u32) -> Result<(RequestId, Receiver<Output>), SubmitError> {
        let id = RequestId(self.next_id);
        self.scheduler.submit(Request::new(id, prompt.to_vec(), max_tokens))?;
        self.next_id += 1;
        let (stream, outputs) = channel();
        self.clients.insert(id, Client { tokens: prompt.to_vec(), stream });
        Ok((id, outputs))
    }

    /// One round: fills the pipeline, waits for the oldest batch, delivers. False when there is nothing left to do.
    fn step(&mut self) -> Result<bool, Box<dyn Error>> {
        while let Schedule::Batch(batch) = self.scheduler.schedule() {
            let rows = batch.rows().iter().map(|row| WorkRow {
                request: row.request,
                start: row.num_computed_tokens,
                blocks: batch.blocks(row).to_vec(),
                hidden: self.clients[&row.request].tokens[row.num_computed_tokens as usize..row.end() as usize]
                    .iter()
                    .map(|token| u64::from(*token))
                    .collect(),
                samples: row.samples,
            });
            self.to_first_stage.send(Work { batch: batch.id(), rows: rows.collect(), lost: false })?;
        }
        if self.scheduler.in_flight() == 0 {
            return Ok(false);
        }
        let work = self.from_last_stage.recv()?;
        if work.lost {
            self.recover(work.batch)?;
        } else {
            let sampled = work.rows.iter().filter(|row| row.samples);
            let sampled: Vec<_> = sampled.filter_map(|row| Some((row.request, to_token(*row.hidden.last()?)))).collect();
            let samples: Vec<_> =
                sampled.iter().map(|(request, token)| Sample { request: *request, tokens: std::slice::from_ref(token) }).collect();
            self.scheduler.complete(work.batch, &samples)?;
        }
        self.deliver();
        Ok(true)
    }

    /// A stage lost a batch. What is behind it in the pipeline read its rubbish: all of it is thrown away and runs again.
    ///
    /// The pipeline is emptied first, because after `fail` the blocks of the lost batches may be given out anew.
    fn recover(&mut self, lost: BatchId) -> Result<(), Box<dyn Error>> {
        for _ in 1..self.scheduler.in_flight() {
            self.from_last_stage.recv()?;
        }
        println!("{lost} was lost: {} batches run again", self.scheduler.fail());
        Ok(())
    }

    fn deliver(&mut self) {
        let mut hung_up = Vec::new();
        for event in self.scheduler.events() {
            match event {
                Event::Token { request, token, .. } => {
                    if let Some(client) = self.clients.get_mut(&request) {
                        client.tokens.push(token);
                        if client.stream.send(Output::Token(token)).is_err() {
                            hung_up.push(request);
                        }
                    }
                }
                Event::Finished { request, reason } => {
                    // Nothing of the request is in flight any more: its tokens will not be asked for again.
                    if let Some(client) = self.clients.remove(&request) {
                        let _ = client.stream.send(Output::End(reason));
                    }
                }
                _ => {}
            }
        }
        for request in hung_up {
            println!("{request} hung up: aborted");
            self.scheduler.abort(request);
        }
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
    let stats = engine.scheduler.stats();
    println!("{} batches, {} lost, {} prompt tokens from the cache", stats.batches, stats.batches_lost, stats.cache_hit_tokens);
    Ok(())
}
