//! Fixed work for an instruction counter: `instructions CASE STEPS`. `.ci/instructions.sh` counts two runs of different length under callgrind;
//! their difference is what the steps between cost, without start and warm-up.
//!
//! | case | a step |
//! |---|---|
//! | `decode-N` | schedule and complete N running decodes, prompt lengths spread over the block size, prefix caching on |
//! | `lockstep-N` | the same with equal lengths: all need a block in the same step |
//! | `waiting-N` | schedule and complete 256 running decodes with N requests waiting |
//! | `abort-N` | abort one of N waiting requests, and submit another |
//! | `submit-N` | submit a prompt of N tokens, every block hashed, and abort it |
//! | `prefill` | schedule and complete one chunk of a prompt of 4 million tokens, through eight stages |

use std::hint::black_box;
use std::process::ExitCode;

use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(case), Some(Ok(steps))) = (args.next(), args.next().map(|steps| steps.parse::<u32>())) else {
        eprintln!("usage: instructions CASE STEPS");
        return ExitCode::from(2);
    };
    let (kind, number) = case.split_once('-').unwrap_or((&case, "0"));
    let Ok(number) = number.parse::<u32>() else {
        eprintln!("{case}: behind the dash comes a number");
        return ExitCode::from(2);
    };
    match kind {
        "decode" => decode(number, true, 0, steps),
        "lockstep" => decode(number, false, 0, steps),
        "waiting" => decode(256, true, number, steps),
        "abort" => abort(number, steps),
        "submit" => submit(number, steps),
        "prefill" => prefill(steps),
        _ => {
            eprintln!("{case}: no such case");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Outputs of a decode: more than any count asks for.
const OUTPUTS: u32 = 1000;

fn decode(running: u32, spread: bool, waiting: u32, steps: u32) {
    let mut config = Config::default();
    config.num_blocks = running * ((97 + 16 + OUTPUTS) / config.block_size + 1);
    config.max_requests = running;
    config.max_batch_requests = running;
    config.max_batch_tokens = running * (97 + 16);
    config.prefix_caching = true;
    let mut scheduler = Scheduler::new(config).expect("a valid configuration");
    for id in 0..running {
        let len = 97 + if spread { id % config.block_size } else { 0 };
        let prompt = (0..len).map(|at| id.wrapping_mul(0x9e37_79b9).wrapping_add(at)).collect();
        scheduler.submit(Request::new(RequestId(id.into()), prompt, OUTPUTS)).expect("a request that fits");
    }
    step(&mut scheduler, 0);
    for id in 0..waiting {
        wait(&mut scheduler, u64::from(running + id));
    }
    (1..64 + steps).for_each(|token| step(&mut scheduler, token));
}

/// What is counted: one batch made and completed, its tokens taken.
#[inline(never)]
fn step(scheduler: &mut Scheduler, token: u32) {
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("work is left") };
    let id = batch.id();
    let token = [token];
    let samples: Vec<Sample<'_>> =
        batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &token }).collect();
    scheduler.complete(id, &samples).expect("a right result");
    black_box(scheduler.events().count());
}

fn wait(scheduler: &mut Scheduler, id: u64) {
    scheduler.submit(Request::with_lengths(RequestId(id), 500, Vec::new(), 100)).expect("a request that fits");
}

fn abort(waiting: u32, steps: u32) {
    let mut scheduler = Scheduler::new(Config::default()).expect("a valid configuration");
    (0..u64::from(waiting)).for_each(|id| wait(&mut scheduler, id));
    for turn in 0..u64::from(steps) {
        // A large odd step visits places all over the queue, none twice.
        assert!(scheduler.abort(RequestId(turn * 7919 % u64::from(waiting))).is_applied());
        wait(&mut scheduler, u64::from(waiting) + turn);
        black_box(scheduler.events().count());
    }
}

fn submit(len: u32, steps: u32) {
    let mut config = Config::default();
    config.num_blocks = len / config.block_size + 1;
    config.prefix_caching = true;
    let mut scheduler = Scheduler::new(config).expect("a valid configuration");
    for turn in 0..steps {
        let prompt: Vec<u32> = (turn..turn + len).collect();
        scheduler.submit(Request::new(RequestId(0), prompt, 1)).expect("a request that fits");
        _ = scheduler.abort(RequestId(0));
        black_box(scheduler.events().count());
    }
}

fn prefill(steps: u32) {
    let len = 4 << 20;
    let mut config = Config::default();
    config.stages = 8;
    config.max_batch_tokens = 1024;
    config.num_blocks = len / config.block_size + 1;
    let mut scheduler = Scheduler::new(config).expect("a valid configuration");
    scheduler.submit(Request::with_lengths(RequestId(0), len, Vec::new(), 1)).expect("a request that fits");
    for _ in 0..8 + steps {
        while let Schedule::Batch(_) = scheduler.schedule() {}
        let oldest = scheduler.oldest_in_flight().expect("a full pipeline").id();
        scheduler.complete(oldest, &[]).expect("a chunk in the middle");
    }
}
