//! A model into stages, with a bar.

use std::time::Duration;

use cpp_exec_mock::cpu::{KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::runtime::{ChannelLink, Crew, Device, Factory, Patience, Pipeline, RuntimeError, SocketLink, Threads};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Scheduler};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{GenerateArgs, Links, SplitBy};
use crate::device::{Chosen, cpu_stages};
use crate::failure::Failure;
use crate::processes;

/// A driver over stages, wherever they are and whatever they run on.
pub(crate) type Runtime = Driver<Pipeline<Box<dyn Crew>>>;

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
pub(crate) fn start(
    args: &GenerateArgs,
    model: &LlamaConfig,
    config: Config,
    parts: Vec<Part>,
    device: Chosen,
) -> Result<Runtime, Failure> {
    let scheduler = Scheduler::new(config).map_err(|error| Failure::Usage(error.to_string()))?;
    let weights = Weights::open(&args.model)?;
    let bar = bar(weights.num_bytes());
    let progress = {
        let bar = bar.clone();
        move |bytes| bar.inc(bytes)
    };
    let kv = KvShape::from(&config);
    let crew: Box<dyn Crew> = match (args.processes, device) {
        (Some(launcher), device) => {
            Box::new(processes::start(args, launcher, (model, &weights), &config, &parts, (bar.clone(), device.name()))?)
        }
        (None, Chosen::Cpu) => {
            threads(args, model, &config, cpu_stages(model.clone(), weights, parts, (kv, args.rounding.rounding()), progress))?
        }
        #[cfg(all(feature = "cuda", unix))]
        (None, Chosen::Cuda(gpus)) => {
            threads(args, model, &config, crate::device::gpu_stages(gpus, model.clone(), weights, parts, &config, progress))?
        }
    };
    bar.finish_and_clear();
    Ok(Driver::new(scheduler, Pipeline::new(&config, crew, PATIENCE)))
}

fn threads<D: Device<Activations = Vec<f32>> + 'static>(
    args: &GenerateArgs,
    model: &LlamaConfig,
    config: &Config,
    factory: Factory<D>,
) -> Result<Box<dyn Crew>, RuntimeError> {
    let max_numbers = config.max_batch_tokens as usize * model.hidden_size;
    Ok(match args.link.unwrap_or(Links::Channel) {
        Links::Nccl | Links::Channel => Box::new(Threads::start(config, factory, ChannelLink, PATIENCE.abort)?),
        Links::Socket => Box::new(Threads::start(config, factory, SocketLink { max_numbers }, PATIENCE.abort)?),
    })
}

/// Shows itself only if stderr is a terminal.
fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    match ProgressStyle::with_template("loading {wide_bar} {bytes} of {total_bytes}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
