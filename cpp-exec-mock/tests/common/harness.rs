//! A model over real stages that fail when they are told to, and the tokens that must come out.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuError, CpuStage, KvShape, Part, Sampling};
use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::runtime::{Crew, Device, Link, Patience, Pipeline, RowSample, RuntimeError, Threads, Work};
use cpp_sched::driver::{Driver, Failure, Progress, Step};
use cpp_sched::{BatchId, BlockId, Config, Event, FinishReason, Request, RequestId, Scheduler, TokenId};

pub(crate) struct Model {
    pub(crate) config: LlamaConfig,
    pub(crate) weights: Weights,
}

impl Model {
    pub(crate) fn open(folder: &Path) -> Arc<Self> {
        Arc::new(Self { config: LlamaConfig::read(folder).unwrap(), weights: Weights::open(folder).unwrap() })
    }

    /// A stage that fails when it is told to.
    pub(crate) fn frail(&self, stage: usize, stages: usize, kv: KvShape, faults: &Faults) -> Frail {
        Frail { device: self.stage(stage, stages, kv), stage, runs: 0, faults: Arc::clone(faults) }
    }

    fn stage(&self, stage: usize, stages: usize, kv: KvShape) -> CpuStage {
        let layers = Split::Even.layers(&self.config, stages).unwrap()[stage].clone();
        CpuStage::load(&self.config, &self.weights, &Part { stage, stages, layers }, kv, |_| {}).unwrap()
    }

    /// One pass over the whole prompt, then token after token, alone.
    pub(crate) fn expected(&self, prompt: &[TokenId], outputs: usize, sampling: Sampling) -> Vec<TokenId> {
        let mut device = self.stage(0, 1, KvShape { block_size: 1024, num_blocks: 1 });
        let (mut known, mut start) = (prompt.to_vec(), 0);
        for _ in 0..outputs {
            let mut work = Work::new(BatchId(0));
            work.push(RequestId(0), start as u32, &known[start..], 0, &[BlockId(0)], Some(sampling));
            let mut samples = Vec::new();
            device.run(&work, &Vec::new(), &mut Vec::new(), &mut samples).unwrap();
            start = known.len();
            known.extend(&samples[0].tokens);
        }
        known.split_off(prompt.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Panic,
    Error,
    Hang,
}

/// What goes wrong: at which stage, in which of its runs.
pub(crate) type Faults = Arc<Mutex<Vec<(usize, u32, Fault)>>>;

/// A device that fails when it is told to.
pub(crate) struct Frail {
    device: CpuStage,
    stage: usize,
    runs: u32,
    faults: Faults,
}

#[derive(Debug)]
pub(crate) enum FrailError {
    Cpu(CpuError),
    Fault,
}

impl fmt::Display for FrailError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(error) => error.fmt(f),
            Self::Fault => f.write_str("as told"),
        }
    }
}

impl std::error::Error for FrailError {}

impl Device for Frail {
    type Activations = Vec<f32>;
    type Error = FrailError;

    fn run(&mut self, work: &Work, input: &Vec<f32>, output: &mut Vec<f32>, samples: &mut Vec<RowSample>) -> Result<(), FrailError> {
        self.runs += 1;
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let due = faults.iter().position(|(stage, run, _)| (*stage, *run) == (self.stage, self.runs));
            due.map(|at| faults.remove(at).2)
        };
        match fault {
            Some(Fault::Panic) => panic!("the device is gone, as told"),
            Some(Fault::Error) => return Err(FrailError::Fault),
            Some(Fault::Hang) => std::thread::sleep(Duration::from_secs(15)),
            None => {}
        }
        self.device.run(work, input, output, samples).map_err(FrailError::Cpu)
    }
}

pub(crate) type Runtime = Driver<Pipeline<Threads<Frail>>>;

pub(crate) fn start(
    model: &Arc<Model>,
    config: Config,
    faults: &Faults,
    link: impl Link<Vec<f32>> + 'static,
    patience: Patience,
) -> Runtime {
    let (model, faults, kv, stages) = (Arc::clone(model), Arc::clone(faults), KvShape::from(&config), config.stages as usize);
    let factory = move |stage| Ok(model.frail(stage, stages, kv, &faults));
    let threads = Threads::start(&config, Box::new(factory), link, patience.abort).unwrap();
    Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, patience))
}

pub(crate) struct Case {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) outputs: u32,
    pub(crate) drafts: u32,
    pub(crate) sampling: Sampling,
    /// Aborted after so many tokens.
    pub(crate) abort_after: Option<usize>,
}

/// What came of a run.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: BTreeMap<RequestId, Vec<TokenId>>,
    pub(crate) ends: BTreeMap<RequestId, FinishReason>,
    pub(crate) failures: Vec<RuntimeError>,
    pub(crate) recovered: u32,
}

pub(crate) fn run<C: Crew>(driver: &mut Driver<Pipeline<C>>, cases: &[Case], drafting: bool) -> Outcome {
    run_with(driver, cases, drafting, |_, _| {})
}

/// As [`run`]; `between` is called after each step with the tokens that have come so far.
pub(crate) fn run_with<C: Crew>(
    driver: &mut Driver<Pipeline<C>>,
    cases: &[Case],
    drafting: bool,
    mut between: impl FnMut(&mut Driver<Pipeline<C>>, usize),
) -> Outcome {
    let mut outcome = Outcome::default();
    for (id, case) in (0..).map(RequestId).zip(cases) {
        let mut request = Request::new(id, case.prompt.clone(), case.outputs);
        request.drafts = if drafting { case.drafts } else { 0 };
        driver.submit(request).unwrap();
        driver.executor_mut().set_sampling(id, case.sampling);
        // The later ones come when the first are under way.
        step(driver, cases, &mut outcome);
    }
    while step(driver, cases, &mut outcome) {
        between(driver, outcome.tokens.values().map(Vec::len).sum());
    }
    driver.scheduler().check_invariants().unwrap();
    outcome
}

fn step<C: Crew>(driver: &mut Driver<Pipeline<C>>, cases: &[Case], outcome: &mut Outcome) -> bool {
    let step = driver.step().expect("not more failures in a row than are tried again");
    match &step {
        Step::Progress(Progress::Failed(Failure::Executor(error))) => outcome.failures.push(error.clone()),
        Step::Progress(Progress::Failed(other)) => panic!("{other}"),
        Step::Progress(Progress::RolledBack(_)) => outcome.recovered += u32::from(Pipeline::recover(driver)),
        Step::Progress(_) => {}
        end => assert_eq!(end, &Step::Idle),
    }
    let mut gone = Vec::new();
    for event in driver.events() {
        match event {
            Event::Token { request, token, index } => {
                let tokens = outcome.tokens.entry(request).or_default();
                assert_eq!(tokens.len(), index as usize);
                tokens.push(token);
                if cases[request.0 as usize].abort_after == Some(tokens.len()) {
                    gone.push(request);
                }
            }
            Event::Finished { request, reason } => {
                assert!(outcome.ends.insert(request, reason).is_none());
            }
            _ => {}
        }
    }
    gone.into_iter().for_each(|request| assert!(driver.abort(request).is_applied()));
    step.is_progress()
}

pub(crate) fn check(model: &Model, cases: &[Case], outcome: &Outcome) {
    for (id, case) in (0..).map(RequestId).zip(cases) {
        let expected = model.expected(&case.prompt, case.outputs as usize, case.sampling);
        let (tokens, end) = (&outcome.tokens[&id], outcome.ends[&id]);
        match case.abort_after {
            None => assert_eq!((tokens, end), (&expected, FinishReason::Length), "{id}"),
            Some(after) => {
                // Drafts that were right come together with the token that they follow.
                assert!(tokens.len() >= after && expected.starts_with(tokens), "{id}: {tokens:?}, not {expected:?}");
                assert_eq!(end, FinishReason::Aborted, "{id}");
            }
        }
    }
}

pub(crate) fn no_faults() -> Faults {
    Faults::default()
}
