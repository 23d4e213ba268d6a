//! A model into stages, with a bar.

use std::sync::Arc;
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::runtime::{ChannelLink, Patience, Pipeline, SocketLink, Threads};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Scheduler};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::{GenerateArgs, Links, SplitBy};
use crate::failure::Failure;

/// A driver over processor stages.
pub(crate) type Runtime = Driver<Pipeline<Threads<CpuStage>>>;

/// Patience enough for a large model on a busy processor.
const PATIENCE: Patience = Patience { batch: Duration::from_secs(600), abort: Duration::from_secs(60) };

/// Which layers each stage gets.
pub(crate) fn parts(args: &GenerateArgs, model: &LlamaConfig) -> Result<Vec<Part>, Failure> {
    let split = match args.split {
        SplitBy::Even => Split::Even,
        // A share of one in sixteen: short prompts and answers.
        SplitBy::Cost => Split::Cost { sampled_millionths: 62_500 },
    };
    let stages = args.stages as usize;
    let layers = split.layers(model, stages)?;
    Ok(layers.into_iter().enumerate().map(|(stage, layers)| Part { stage, stages, layers }).collect())
}

/// Loads the stages and starts their workers.
pub(crate) fn start(args: &GenerateArgs, model: &LlamaConfig, config: Config, parts: Vec<Part>) -> Result<Runtime, Failure> {
    let weights = Arc::new(Weights::open(&args.model)?);
    let kv = KvShape::from(&config);
    let bar = bar(weights.num_bytes());
    let (of_stages, config_of_model) = (bar.clone(), model.clone());
    let factory = move |stage: usize| Ok(CpuStage::load(&config_of_model, &weights, &parts[stage], kv, |bytes| of_stages.inc(bytes))?);
    let factory = Box::new(factory);
    let threads = match args.link {
        Links::Channel => Threads::start(&config, factory, ChannelLink, PATIENCE.abort)?,
        Links::Socket => {
            let max_numbers = config.max_batch_tokens as usize * model.hidden_size;
            Threads::start(&config, factory, SocketLink { max_numbers }, PATIENCE.abort)?
        }
    };
    bar.finish_and_clear();
    let scheduler = Scheduler::new(config).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(Driver::new(scheduler, Pipeline::new(&config, threads, PATIENCE)))
}

/// Shows itself only if stderr is a terminal.
fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    match ProgressStyle::with_template("loading {wide_bar} {bytes} of {total_bytes}, {eta} left") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
