//! A pipeline of CUDA stages over a tiny model, and what it must say: each batch, computed again by one stage alone, one batch at a time.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpp_exec_cuda::cuda::{CudaError, CudaStage, Ends, Gpu, InProcessEdge, Room};
use cpp_exec_mock::cpu::{KvShape, Sampling};
use cpp_exec_mock::model::{Format, TinyLlama};
use cpp_exec_mock::runtime::{ChannelLink, Device, Finished, Patience, Pipeline, RowSample, RuntimeError, Started, Threads, Work};
use cpp_sched::driver::{Driver, Failure, Progress, Step};
use cpp_sched::{Admission, BatchId, Config, Event, Request, RequestId, Scheduler, TokenId};

use super::Model;

/// As small as kernels take it.
pub fn smallest(layers: usize) -> TinyLlama {
    TinyLlama {
        seed: 5,
        hidden_size: 32,
        intermediate_size: 32,
        num_layers: layers,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 32,
        vocab_size: 64,
        format: Format::Bf16,
        ..TinyLlama::default()
    }
}

/// What is run, and how.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub stages: u32,
    /// Batches in the pipeline.
    pub depth: u32,
    /// Batches that a stage has room for, beside one more.
    pub slots: u32,
    /// Edges that go through the host, bit by bit; all others are on the device.
    pub through_host: u32,
    pub asynchronous: bool,
    pub graphs: bool,
    /// Blocks of KV.
    pub blocks: u32,
    pub requests: u32,
    pub outputs: u32,
}

impl World {
    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.stages = self.stages;
        config.max_in_flight = Some(self.depth);
        config.block_size = 4;
        config.num_blocks = self.blocks;
        config.max_batch_tokens = 8;
        config.admission = Admission::Lazy;
        config.async_scheduling = self.asynchronous;
        config
    }

    pub fn room(&self) -> Room {
        let config = self.config();
        Room { positions: 60, tokens: config.max_batch_tokens, rows: config.max_batch_tokens, batches: self.slots }
    }

    fn prompt(number: u32) -> Vec<TokenId> {
        (0..3 + number * 9 % 23).map(|i| (i * (number + 3) + number * 17) % 64).collect()
    }

    fn sampling(number: u32) -> Sampling {
        let warm = Sampling { temperature: 1.5, seed: number.into(), ..Sampling::default() };
        // Several in a batch that choose among all tokens.
        match number % 6 {
            0 => Sampling::default(),
            1 => Sampling { top_k: 5, ..warm },
            _ => warm,
        }
    }
}

/// What the first stage was given, in order, and what the last one said of each batch.
#[derive(Default)]
pub struct Record {
    works: Vec<Work>,
    samples: BTreeMap<BatchId, Vec<RowSample>>,
}

/// A stage that is written down.
pub struct Recorded {
    stage: CudaStage,
    first: bool,
    last: bool,
    record: Arc<Mutex<Record>>,
}

impl Device for Recorded {
    type Activations = Vec<f32>;
    type Error = CudaError;

    fn run(&mut self, _: &Work, _: &Vec<f32>, _: &mut Vec<f32>, _: &mut Vec<RowSample>) -> Result<(), CudaError> {
        unreachable!("it has batches under way")
    }

    fn start(
        &mut self,
        work: &Work,
        input: &Vec<f32>,
        output: &mut Option<Vec<f32>>,
        samples: &mut Vec<RowSample>,
    ) -> Result<Started, CudaError> {
        let started = self.stage.start(work, input, output, samples)?;
        if self.first && started == Started::UnderWay {
            self.record.lock().unwrap().works.push(work.clone());
        }
        Ok(started)
    }

    fn finished(&mut self) -> Result<Option<Finished<Vec<f32>>>, CudaError> {
        let finished = self.stage.finished()?;
        if let (true, Some(finished)) = (self.last, &finished) {
            self.record.lock().unwrap().samples.insert(finished.batch, finished.samples.clone());
        }
        Ok(finished)
    }

    fn reset(&mut self, generation: u64) -> Result<(), CudaError> {
        self.stage.reset(generation)
    }

    fn is_busy(&self) -> bool {
        self.stage.is_busy()
    }
}

pub type Runtime = Driver<Pipeline<Threads<Recorded>>>;

/// A pipeline, and what is written down of it.
pub fn start(world: &World, model: &Arc<Model>, gpu: &Arc<Gpu>, patience: Duration) -> (Runtime, Arc<Mutex<Record>>) {
    let (config, room, stages) = (world.config(), world.room(), world.stages as usize);
    let record = Arc::new(Mutex::new(Record::default()));
    let edges: Vec<Option<InProcessEdge>> =
        (0..stages - 1).map(|edge| (world.through_host >> edge & 1 == 0).then(|| InProcessEdge::new(gpu).unwrap())).collect();
    let (model, gpu, written, graphs) = (Arc::clone(model), Arc::clone(gpu), Arc::clone(&record), world.graphs);
    let factory = move |stage: usize| {
        let part = model.part(stage, stages);
        let up = stage.checked_sub(1).and_then(|edge| edges[edge].as_ref()).map(InProcessEdge::receiver);
        let down = edges.get(stage).and_then(Option::as_ref).map(InProcessEdge::sender);
        let kv = KvShape::from(&config);
        let mut made = CudaStage::load_with(&gpu, &model.tiny.config(), &model.weights, &part, kv, room, Ends { up, down }, |_| ())?;
        if graphs {
            made.capture_graphs()?;
        }
        Ok(Recorded { stage: made, first: stage == 0, last: stage + 1 == stages, record: Arc::clone(&written) })
    };
    let patience = Patience { batch: patience, abort: patience };
    let threads = Threads::start(&config, Box::new(factory), ChannelLink, patience.abort).unwrap();
    (Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, patience)), record)
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub tokens: BTreeMap<u64, Vec<TokenId>>,
    pub failures: Vec<RuntimeError>,
    pub gave_up: bool,
}

/// Runs all requests, one of which is aborted; `between` is called after each step with the number of tokens that have come.
pub fn run(world: &World, driver: &mut Runtime, mut between: impl FnMut(usize)) -> Outcome {
    let mut outcome = Outcome::default();
    for number in 0..world.requests {
        let id = RequestId(number.into());
        driver.submit(Request::new(id, World::prompt(number), world.outputs)).unwrap();
        driver.executor_mut().set_sampling(id, World::sampling(number));
    }
    loop {
        match driver.step() {
            Err(_) => {
                outcome.gave_up = true;
                return outcome;
            }
            Ok(Step::Progress(Progress::Failed(Failure::Executor(error)))) => outcome.failures.push(error),
            Ok(Step::Progress(Progress::Failed(other))) => panic!("{other}"),
            Ok(Step::Progress(Progress::RolledBack(_))) => drop(Pipeline::recover(driver)),
            Ok(Step::Progress(_)) => {}
            Ok(Step::Idle) => break,
            Ok(other) => panic!("{other:?}"),
        }
        let mut aborted = false;
        for event in driver.events() {
            if let Event::Token { request, token, .. } = event {
                let tokens = outcome.tokens.entry(request.0).or_default();
                tokens.push(token);
                aborted |= request.0 == 1 && tokens.len() == 2;
            }
        }
        if aborted {
            assert!(driver.abort(RequestId(1)).is_applied());
        }
        between(outcome.tokens.values().map(Vec::len).sum());
    }
    driver.scheduler().check_invariants().unwrap();
    outcome
}

/// What was said against what one stage says that is given the same batches, one at a time. `Err`: the first batch that differs.
pub fn replay(world: &World, model: &Model, gpu: &Arc<Gpu>, record: &Record) -> Result<usize, String> {
    let (room, kv) = (Room { batches: 1, ..world.room() }, KvShape::from(&world.config()));
    let mut alone = CudaStage::load(gpu, &model.tiny.config(), &model.weights, &model.part(0, 1), kv, room, |_| ()).unwrap();
    let mut compared = 0;
    for work in &record.works {
        let mut samples = Vec::new();
        alone.run(work, &Vec::new(), &mut Vec::new(), &mut samples).unwrap();
        if let Some(said) = record.samples.get(&work.batch) {
            compared += 1;
            if *said != samples {
                return Err(format!("{}: {said:?}, and one stage alone says {samples:?}", work.batch));
            }
        }
    }
    Ok(compared)
}
