//! How well the stage runtime overlaps, against the simulator's arithmetic.
//!
//! `cargo run --release -p cpp-exec-mock --example runtime_overlap`: devices that take given times, links that take theirs; one prompt in chunks over four
//! stages. If receiving, computing and sending overlap, the run takes what the recurrence of the simulated pipeline says; if a stage waited for its
//! links, each hop would come on top of each batch.
//! Each row is run several times, since a busy machine wakes threads late: the best, the median and the worst. Where others are at work, let the system
//! wake these first (Linux): `chrt -f 10 target/release/examples/runtime_overlap`.
//!
//! `cargo run --release -p cpp-exec-mock --example runtime_overlap DIR`: a real model over one and two stages of the processor; the prediction
//! is the recurrence over the times that stages were measured to take.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part};
use cpp_exec_mock::model::{LlamaConfig, Split, Weights};
use cpp_exec_mock::pipeline::recurrence::makespan;
use cpp_exec_mock::runtime::{ChannelLink, DelayedLink, Device, Factory, Link, Patience, Pipeline, Stub, Threads, Timing};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Request, RequestId, Scheduler, TokenId};

const STAGES: u32 = 4;
const RUNS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        None => stubs(),
        Some(folder) => model(Path::new(&folder)),
    }
}

fn stubs() -> Result<(), Box<dyn Error>> {
    println!(
        "{:>6} {:>8} {:>6} | {:>10} | {:>9} {:>7} {:>7} {:>7} | {:>10}",
        "chunks", "stage", "hop", "predicted", "best", "", "median", "worst", "no overlap"
    );
    for (chunk, chunks, hop_ms) in [(256, 16, 0), (256, 16, 10), (512, 8, 20), (128, 64, 5)] {
        let hop = Duration::from_millis(hop_ms);
        let time = stub(false).time(chunk as usize);
        let given = vec![[ns(time); STAGES as usize]; chunks as usize];
        let serial = vec![[ns(time + hop); STAGES as usize]; chunks as usize];
        let (predicted, serial) = (makespan(&given, ns(hop)), makespan(&serial, 0));
        let mut measured = Vec::new();
        for _ in 0..RUNS {
            let factory = Box::new(|stage| Ok(stub(stage + 1 == STAGES as usize)));
            let timings = run(STAGES, chunk, chunks, factory, DelayedLink { link: ChannelLink, delay: hop }, 1 << 10)?;
            measured.push(whole(&timings));
        }
        measured.sort_unstable();
        let excess = |measured: u64| (measured as f64 / predicted as f64 - 1.0) * 100.0;
        let (best, median) = (measured[0], measured[RUNS / 2]);
        println!(
            "{chunks:>6} {:>5.1} ms {hop_ms:>3} ms | {:>7.1} ms | {:>6.1} ms {:>5.1} % {:>5.1} % {:>5.1} % | {:>7.1} ms",
            ms(ns(time)),
            ms(predicted),
            ms(best),
            excess(best),
            excess(median),
            excess(measured[RUNS - 1]),
            ms(serial)
        );
    }
    Ok(())
}

fn stub(samples: bool) -> Stub {
    Stub { per_batch: Duration::from_millis(2), per_token: Duration::from_micros(80), samples }
}

fn model(folder: &Path) -> Result<(), Box<dyn Error>> {
    let (chunk, chunks) = (32, 8);
    println!("{:>6} | {:>10} {:>10} {:>7} | {:>22}", "stages", "measured", "predicted", "excess", "time in the stages");
    for stages in [1u32, 2] {
        let (config, weights) = (LlamaConfig::read(folder)?, Weights::open(folder)?);
        let vocabulary = config.vocab_size as TokenId;
        let layers = Split::Cost { sampled_millionths: 10_000 }.layers(&config, stages as usize)?;
        let kv = KvShape { block_size: Config::default().block_size, num_blocks: chunk * chunks / Config::default().block_size + 1 };
        let factory = Box::new(move |stage: usize| {
            let part = Part { stage, stages: layers.len(), layers: layers[stage].clone() };
            Ok(CpuStage::load(&config, &weights, &part, kv, |_| {})?)
        });
        let timings = run(stages, chunk, chunks, factory, ChannelLink, vocabulary)?;
        let taken: Vec<Vec<u64>> =
            timings.iter().map(|timing| timing.stages.iter().map(|span| span.end_ns - span.start_ns).collect()).collect();
        let (measured, predicted) = (whole(&timings), makespan(&taken, 0));
        let sums: Vec<String> = (0..stages as usize).map(|s| format!("{:.0} ms", ms(taken.iter().map(|times| times[s]).sum()))).collect();
        println!(
            "{stages:>6} | {:>7.0} ms {:>7.0} ms {:>5.1} % | {:>22}",
            ms(measured),
            ms(predicted),
            (measured as f64 / predicted as f64 - 1.0) * 100.0,
            sums.join(" + ")
        );
    }
    Ok(())
}

/// One prompt of so many chunks; when the stages ran which.
fn run<D: Device + 'static>(
    stages: u32,
    chunk: u32,
    chunks: u32,
    factory: Factory<D>,
    link: impl Link<D::Activations> + 'static,
    vocabulary: TokenId,
) -> Result<Vec<Timing>, Box<dyn Error>> {
    let mut config = Config::default();
    config.stages = stages;
    // A chunk on its way between two stages is in no stage: with one batch a stage alone the first would wait for it.
    config.max_in_flight = Some(2 * stages);
    config.max_batch_tokens = chunk;
    config.num_blocks = chunk * chunks / config.block_size + 1;
    let threads = Threads::start(&config, factory, link, Duration::from_secs(1))?;
    let mut driver = Driver::new(Scheduler::new(config)?, Pipeline::new(&config, threads, Patience::default()));
    let prompt = (0..chunk * chunks).map(|at| at * 31 % vocabulary.min(1 << 15)).collect();
    driver.submit(Request::new(RequestId(1), prompt, 1))?;
    while driver.step()?.is_progress() {}
    Ok(driver.executor_mut().timings())
}

/// From the first batch's beginning on the first stage to the last one's end on the last.
fn whole(timings: &[Timing]) -> u64 {
    let start = timings.first().and_then(|timing| timing.stages.first()).map_or(0, |span| span.start_ns);
    timings.last().and_then(|timing| timing.stages.last()).map_or(0, |span| span.end_ns - start)
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}
