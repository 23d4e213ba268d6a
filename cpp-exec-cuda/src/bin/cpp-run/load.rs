//! A model into stages, with a bar.

use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::runtime::process::Processes;
use cpp_exec_mock::runtime::{ChannelLink, Control, Crew, Patience, Pipeline, Report, RuntimeError, SocketLink, Threads};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Scheduler};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{GenerateArgs, Links, SplitBy};
use crate::failure::Failure;
use crate::processes;

/// A driver over processor stages.
pub(crate) type Runtime = Driver<Pipeline<Stages>>;

/// Where the stages are.
#[allow(clippy::large_enum_variant, reason = "there is one")]
pub(crate) enum Stages {
    Threads(Threads<CpuStage>),
    Processes(Processes),
}

impl Crew for Stages {
    fn stages(&self) -> usize {
        match self {
            Self::Threads(crew) => crew.stages(),
            Self::Processes(crew) => crew.stages(),
        }
    }

    fn tell(&mut self, stage: usize, control: Control) -> bool {
        match self {
            Self::Threads(crew) => crew.tell(stage, control),
            Self::Processes(crew) => crew.tell(stage, control),
        }
    }

    fn listen(&mut self, timeout: Duration) -> Option<Report> {
        match self {
            Self::Threads(crew) => crew.listen(timeout),
            Self::Processes(crew) => crew.listen(timeout),
        }
    }

    fn replace(&mut self, dead: &[usize], generation: u64) -> Result<Vec<usize>, RuntimeError> {
        match self {
            Self::Threads(crew) => crew.replace(dead, generation),
            Self::Processes(crew) => crew.replace(dead, generation),
        }
    }
}

/// Patience enough for a large model on a busy processor.
const PATIENCE: Patience = Patience { batch: Duration::from_secs(600), abort: Duration::from_secs(60) };

/// Which layers each stage gets.
pub(crate) fn parts(args: &GenerateArgs, model: &LlamaConfig, stages: usize) -> Result<Vec<Part>, Failure> {
    let split = match args.split {
        SplitBy::Even => Split::Even,
        // A share of one in sixteen: short prompts and answers.
        SplitBy::Cost => Split::Cost { sampled_millionths: 62_500 },
    };
    let layers = split.layers(model, stages)?;
    Ok(layers.into_iter().enumerate().map(|(stage, layers)| Part { stage, stages, layers }).collect())
}

/// Loads the stages and starts their workers.
pub(crate) fn start(args: &GenerateArgs, model: &LlamaConfig, config: Config, parts: Vec<Part>) -> Result<Runtime, Failure> {
    let scheduler = Scheduler::new(config).map_err(|error| Failure::Usage(error.to_string()))?;
    let weights = Weights::open(&args.model)?;
    let bar = bar(weights.num_bytes());
    let stages = match args.processes {
        Some(launcher) => Stages::Processes(processes::start(args, launcher, (model, &weights), &config, &parts, bar.clone())?),
        None => Stages::Threads(threads(args, model, weights, &config, parts, bar.clone())?),
    };
    bar.finish_and_clear();
    Ok(Driver::new(scheduler, Pipeline::new(&config, stages, PATIENCE)))
}

fn threads(
    args: &GenerateArgs,
    model: &LlamaConfig,
    weights: Weights,
    config: &Config,
    parts: Vec<Part>,
    bar: ProgressBar,
) -> Result<Threads<CpuStage>, RuntimeError> {
    let (model, kv) = (model.clone(), KvShape::from(config));
    let max_numbers = config.max_batch_tokens as usize * model.hidden_size;
    let factory = Box::new(move |stage: usize| Ok(CpuStage::load(&model, &weights, &parts[stage], kv, |bytes| bar.inc(bytes))?));
    match args.link {
        Links::Channel => Threads::start(config, factory, ChannelLink, PATIENCE.abort),
        Links::Socket => Threads::start(config, factory, SocketLink { max_numbers }, PATIENCE.abort),
    }
}

/// Shows itself only if stderr is a terminal.
fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    match ProgressStyle::with_template("loading {wide_bar} {bytes} of {total_bytes}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
