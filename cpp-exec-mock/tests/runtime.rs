//! A tiny model over real stages: whatever happens on the way, every request gets the tokens of one pass over its whole prompt, alone, on one stage.

#[path = "common/folder.rs"]
mod folder;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuError, CpuStage, KvShape, Part, Sampling};
use cpp_exec_mock::model::{LlamaConfig, Split, TinyLlama, Weights};
use cpp_exec_mock::runtime::{ChannelLink, Device, Link, Patience, Pipeline, RowSample, RuntimeError, Threads, Work};
use cpp_sched::driver::{Driver, Failure, Progress, Step};
use cpp_sched::{BatchId, BlockId, Config, Event, FinishReason, Request, RequestId, Scheduler, TokenId};
use folder::Folder;

struct Model {
    config: LlamaConfig,
    weights: Weights,
    _folder: Folder,
}

impl Model {
    fn new() -> Arc<Self> {
        let folder = Folder::new();
        TinyLlama::default().write(folder.path()).unwrap();
        let config = LlamaConfig::read(folder.path()).unwrap();
        Arc::new(Self { config, weights: Weights::open(folder.path()).unwrap(), _folder: folder })
    }

    fn stage(&self, stage: usize, stages: usize, kv: KvShape) -> CpuStage {
        let layers = Split::Even.layers(&self.config, stages).unwrap()[stage].clone();
        CpuStage::load(&self.config, &self.weights, &Part { stage, stages, layers }, kv, |_| {}).unwrap()
    }

    /// One pass over the whole prompt, then token after token, alone.
    fn expected(&self, prompt: &[TokenId], outputs: usize, sampling: Sampling) -> Vec<TokenId> {
        let mut device = self.stage(0, 1, KvShape { block_size: 256, num_blocks: 1 });
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
enum Fault {
    Panic,
    Error,
    Hang,
}

/// What goes wrong: at which stage, in which of its runs.
type Faults = Arc<Mutex<Vec<(usize, u32, Fault)>>>;

/// A device that fails when it is told to.
struct Frail {
    device: CpuStage,
    stage: usize,
    runs: u32,
    faults: Faults,
}

#[derive(Debug)]
enum FrailError {
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
            Some(Fault::Hang) => std::thread::sleep(Duration::from_millis(1500)),
            None => {}
        }
        self.device.run(work, input, output, samples).map_err(FrailError::Cpu)
    }
}

type Runtime = Driver<Pipeline<Threads<Frail>>>;

fn start(model: &Arc<Model>, config: Config, faults: &Faults, link: impl Link<Vec<f32>> + 'static) -> Runtime {
    let (model, faults, kv, stages) = (Arc::clone(model), Arc::clone(faults), KvShape::from(&config), config.stages as usize);
    let factory = move |stage| Ok(Frail { device: model.stage(stage, stages, kv), stage, runs: 0, faults: Arc::clone(&faults) });
    let patience = Patience { batch: Duration::from_millis(700), abort: Duration::from_millis(300) };
    let threads = Threads::start(&config, Box::new(factory), link, patience.abort).unwrap();
    Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, patience))
}

fn config(stages: u32) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 4;
    config.num_blocks = 64;
    config.max_batch_tokens = 9;
    config.prefix_caching = true;
    config
}

struct Case {
    prompt: Vec<TokenId>,
    outputs: u32,
    drafts: u32,
    sampling: Sampling,
    /// Aborted after so many tokens.
    abort_after: Option<usize>,
}

/// Prompts that share prefixes, repeat themselves, and fill several chunks.
fn cases() -> Vec<Case> {
    let prompt = |own: u32, len: u32| (0..18).chain((0..len).map(|at| (at * (own + 3) + own * 17) % 256)).collect();
    let warm = Sampling { temperature: 1.2, top_k: 40, top_p: 0.95, seed: 77 };
    (0..7u32)
        .map(|number| Case {
            prompt: prompt(number % 5, 2 + number * 5 % 23),
            outputs: 5 + number * 3 % 8,
            drafts: if number % 3 == 1 { 2 } else { 0 },
            sampling: if number % 2 == 1 { Sampling { seed: u64::from(number), ..warm } } else { Sampling::default() },
            abort_after: (number == 4).then_some(2),
        })
        .collect()
}

/// What came of a run.
#[derive(Default)]
struct Outcome {
    tokens: BTreeMap<RequestId, Vec<TokenId>>,
    ends: BTreeMap<RequestId, FinishReason>,
    failures: Vec<RuntimeError>,
    recovered: u32,
}

fn run(driver: &mut Runtime, cases: &[Case], drafting: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for (id, case) in (0..).map(RequestId).zip(cases) {
        let mut request = Request::new(id, case.prompt.clone(), case.outputs);
        request.drafts = if drafting { case.drafts } else { 0 };
        driver.submit(request).unwrap();
        driver.executor_mut().set_sampling(id, case.sampling);
        // The later ones come when the first are under way.
        step(driver, cases, &mut outcome);
    }
    while step(driver, cases, &mut outcome) {}
    driver.scheduler().check_invariants().unwrap();
    outcome
}

fn step(driver: &mut Runtime, cases: &[Case], outcome: &mut Outcome) -> bool {
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
    gone.into_iter().for_each(|request| assert!(driver.abort(request)));
    step.is_progress()
}

fn check(model: &Model, cases: &[Case], outcome: &Outcome) {
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

fn no_faults() -> Faults {
    Faults::default()
}

#[test]
fn stages_and_links_change_no_token() {
    let (model, cases) = (Model::new(), cases());
    for stages in [1, 2, 4] {
        let mut driver = start(&model, config(stages), &no_faults(), ChannelLink);
        check(&model, &cases, &run(&mut driver, &cases, false));
        let stats = driver.scheduler().stats();
        assert!(stats.cache_hit_tokens > 0 && stats.batches > 20, "{stats:?}");
        let timings = driver.executor_mut().timings();
        assert_eq!(timings.len() as u64, stats.batches);
        for timing in &timings {
            assert!(timing.stages.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns), "a stage begins when the one before is done");
        }
        for stage in 0..stages as usize {
            assert!(timings.windows(2).all(|pair| pair[0].stages[stage].end_ns <= pair[1].stages[stage].start_ns), "in order");
        }
        #[cfg(unix)]
        {
            let link = cpp_exec_mock::runtime::SocketLink { max_numbers: 9 * 64 };
            let mut driver = start(&model, config(stages), &no_faults(), link);
            check(&model, &cases, &run(&mut driver, &cases, false));
        }
    }
}

#[test]
fn preemption_drafts_and_asynchronous_scheduling_change_no_token() {
    let (model, cases) = (Model::new(), cases());
    for stages in [1, 2, 4] {
        for (asynchronous, drafting) in [(false, true), (true, false), (true, true)] {
            let mut config = config(stages);
            config.num_blocks = 20;
            config.async_scheduling = asynchronous;
            config.admission = cpp_sched::Admission::Lazy;
            let mut driver = start(&model, config, &no_faults(), ChannelLink);
            check(&model, &cases, &run(&mut driver, &cases, drafting));
            assert!(driver.scheduler().stats().preemptions > 0, "{:?}", driver.scheduler().stats());
        }
    }
}

#[test]
fn a_stage_that_fails_lives_and_its_batches_run_again() {
    let (model, cases) = (Model::new(), cases());
    let faults: Faults = Arc::new(Mutex::new(vec![(0, 3, Fault::Error), (1, 9, Fault::Error), (2, 20, Fault::Error)]));
    let mut driver = start(&model, config(3), &faults, ChannelLink);
    let outcome = run(&mut driver, &cases, true);
    check(&model, &cases, &outcome);
    let stages: Vec<_> = outcome.failures.iter().map(|error| matches!(error, RuntimeError::Stage { .. })).collect();
    assert_eq!((stages, outcome.recovered), (vec![true; 3], 0), "{:?}", outcome.failures);
    assert!(driver.scheduler().stats().batches_lost >= 3);
}

#[test]
fn a_stage_that_dies_is_replaced_and_its_memory_computed_anew() {
    let (model, cases) = (Model::new(), cases());
    for asynchronous in [false, true] {
        let faults: Faults = Arc::new(Mutex::new(vec![(1, 7, Fault::Panic), (0, 20, Fault::Panic), (3, 25, Fault::Panic)]));
        let mut config = config(4);
        config.async_scheduling = asynchronous;
        let mut driver = start(&model, config, &faults, ChannelLink);
        let outcome = run(&mut driver, &cases, true);
        check(&model, &cases, &outcome);
        assert_eq!(outcome.recovered, 3, "{:?}", outcome.failures);
        assert!(outcome.failures.iter().all(|error| matches!(error, RuntimeError::Died { .. })), "{:?}", outcome.failures);
    }
}

#[test]
fn a_stage_that_hangs_is_found_by_the_deadline_and_left_alone() {
    let (model, cases) = (Model::new(), cases());
    let faults: Faults = Arc::new(Mutex::new(vec![(1, 10, Fault::Hang)]));
    let mut driver = start(&model, config(2), &faults, ChannelLink);
    let outcome = run(&mut driver, &cases, false);
    check(&model, &cases, &outcome);
    assert!(matches!(outcome.failures[..], [RuntimeError::Deadline { stage: 1, .. }]), "{:?}", outcome.failures);
    assert_eq!(outcome.recovered, 1);
}

#[test]
fn who_does_not_recover_is_told_so() {
    let model = Model::new();
    let faults: Faults = Arc::new(Mutex::new(vec![(0, 2, Fault::Panic)]));
    let mut driver = start(&model, config(1), &faults, ChannelLink);
    driver.submit(Request::new(RequestId(0), vec![1; 30], 2)).unwrap();
    let gave_up = driver.run(|_| {}).unwrap_err();
    assert_eq!(gave_up.cause, Failure::Executor(RuntimeError::NotRecovered));
    // Nothing is lost all the same.
    assert!(matches!(driver.step().unwrap(), Step::Progress(Progress::RolledBack(_))));
    assert!(Pipeline::recover(&mut driver));
    let mut tokens = Vec::new();
    let end = driver.run(|driver| {
        tokens.extend(driver.events().filter_map(|event| if let Event::Token { token, .. } = event { Some(token) } else { None }));
    });
    assert_eq!((end.unwrap(), tokens), (Step::Idle, model.expected(&[1; 30], 2, Sampling::default())));
}
