//! How well the stage runtime overlaps: devices that take given times, links that take theirs, against the simulator's arithmetic.
//!
//! `cargo run --release -p cpp-exec-mock --example runtime_overlap`
//!
//! One prompt in chunks over four stages. If receiving, computing and sending overlap, the run takes what the recurrence of the simulated pipeline
//! says; if a stage waited for its links, each hop would come on top of each batch.

use std::error::Error;
use std::time::Duration;

use cpp_exec_mock::pipeline::recurrence::makespan;
use cpp_exec_mock::runtime::{ChannelLink, DelayedLink, Patience, Pipeline, Stub, Threads};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Request, RequestId, Scheduler};

const STAGES: u32 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:>7} {:>9} {:>7} | {:>10} {:>10} {:>7} | {:>10} {:>7} | no overlap",
        "chunks", "stage", "hop", "measured", "given", "excess", "slept", "excess"
    );
    for (chunk, chunks, hop_ms) in [(256, 16, 0), (256, 16, 10), (512, 8, 20), (128, 64, 5)] {
        let run = run(chunk, chunks, Duration::from_millis(hop_ms))?;
        let excess = |predicted: f64| (run.measured / predicted - 1.0) * 100.0;
        println!(
            "{chunks:>7} {:>6.1} ms {hop_ms:>4} ms | {:>7.1} ms {:>7.1} ms {:>5.1} % | {:>7.1} ms {:>5.1} % | {:>7.1} ms",
            stub(false).time(chunk as usize).as_secs_f64() * 1e3,
            run.measured * 1e3,
            run.given * 1e3,
            excess(run.given),
            run.slept * 1e3,
            excess(run.slept),
            run.serial * 1e3,
        );
    }
    println!(
        "given: the recurrence over the times that stages were to take; slept: over those that the system let them sleep, which is longer"
    );
    Ok(())
}

fn stub(samples: bool) -> Stub {
    Stub { per_batch: Duration::from_millis(2), per_token: Duration::from_micros(80), samples }
}

/// How long a run took, and would take, in seconds.
struct Run {
    measured: f64,
    /// By the recurrence over the times that were to be taken.
    given: f64,
    /// By the recurrence over the times that stages did take.
    slept: f64,
    /// If stages waited for their links.
    serial: f64,
}

fn run(chunk: u32, chunks: u32, hop: Duration) -> Result<Run, Box<dyn Error>> {
    let mut config = Config::default();
    config.stages = STAGES;
    // A chunk on its way between two stages is in no stage: with one batch a stage alone the first would wait for it.
    config.max_in_flight = Some(2 * STAGES);
    config.max_batch_tokens = chunk;
    config.num_blocks = chunk * chunks / config.block_size + 1;
    let factory = Box::new(move |stage| Ok(stub(stage + 1 == STAGES as usize)));
    let threads = Threads::start(&config, factory, DelayedLink { link: ChannelLink, delay: hop }, Duration::from_secs(1))?;
    let mut driver = Driver::new(Scheduler::new(config)?, Pipeline::new(&config, threads, Patience::default()));
    driver.submit(Request::new(RequestId(1), vec![7; (chunk * chunks) as usize], 1))?;
    while driver.step()?.is_progress() {}

    let timings = driver.executor_mut().timings();
    let (first, last) = (timings.first().ok_or("no batch")?, timings.last().ok_or("no batch")?);
    let measured = last.stages[STAGES as usize - 1].end_ns - first.stages[0].start_ns;
    let time = |duration: Duration| duration.as_nanos() as u64;
    let given = vec![[time(stub(false).time(chunk as usize)); STAGES as usize]; chunks as usize];
    let slept: Vec<Vec<u64>> =
        timings.iter().map(|timing| timing.stages.iter().map(|span| span.end_ns - span.start_ns).collect()).collect();
    let serial: Vec<_> = given.iter().map(|times| times.map(|time_ns| time_ns + time(hop))).collect();
    let seconds = |ns: u64| ns as f64 / 1e9;
    Ok(Run {
        measured: seconds(measured),
        given: seconds(makespan(&given, time(hop))),
        slept: seconds(makespan(&slept, time(hop))),
        serial: seconds(makespan(&serial, 0)),
    })
}
