//! Hunts for faults with random worlds: `cargo run -p cpp-sched-tests --example worlds -- --seeds 0..100000 --seconds 480`.
//!
//! Prints every world whose run breaks a rule, made small, and goes on. Exit 1 if there was one. `--focus shared` runs short worlds in which
//! sessions and forks share blocks while batches in flight are lost, outputs end late and requests give way.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cpp_sched::{Config, Gate, KvGroups, Pause, Role};
use cpp_sched_tests::driver::Driver;
use cpp_sched_tests::op::{Extras, GENE, Op, Shape};
use cpp_sched_tests::truth::mix;
use cpp_sched_tests::world::{HEADER, Kind, World};

fn world(seed: u64) -> World {
    let genes = 20 + mix(seed, 1) % 180;
    let bytes: Vec<u8> = (0..HEADER as u64 + genes * GENE as u64).map(|i| mix(seed ^ 0x5eed, i).to_le_bytes()[4]).collect();
    World::from_bytes(Kind::Any, &bytes)
}

/// Few requests that share blocks, and everything that takes one back to a block that it has left.
fn shared(seed: u64) -> World {
    let mut world = world(seed);
    let c = &mut world.config;
    (c.role, c.kv_groups) = (Role::Unified, KvGroups::default());
    c.stages = 1 + (mix(seed, 2) % 4) as u32;
    c.async_scheduling = mix(seed, 3) % 4 < 3;
    c.block_size = [2, 3, 4, 8][(mix(seed, 4) % 4) as usize];
    if c.validate().is_err() {
        return world;
    }
    let ops = 10 + mix(seed, 5) % 40;
    world.ops = (0..ops).map(|at| shared_op(mix(seed, 100 + at), world.config.block_size)).collect();
    world
}

fn shared_op(bits: u64, block_size: u32) -> Op {
    let part = |shift: u64, most: u64| (bits >> shift) % most;
    let (id, author) = (part(8, 4), part(12, 250));
    let shape = || {
        let mut shape = Shape::new(id, 1 + part(20, u64::from(2 * block_size)) as u32, 1 + part(26, 10) as u32);
        shape.author = author;
        shape.stop_at = (part(30, 2) == 1).then(|| part(32, 6) as u32).filter(|stop| *stop < shape.max_tokens);
        shape.gated = part(35, 4) == 3;
        (shape.drafts, shape.accept) = (part(37, 8).saturating_sub(5) as u32, [part(40, 4) as u8, part(42, 4) as u8]);
        shape.extras = Extras { session: part(44, 2) == 1, ..Extras::default() };
        shape
    };
    match part(0, 64) {
        0..=5 => Op::Submit(shape()),
        6..=21 => Op::Schedule,
        22..=35 => Op::Complete,
        36..=42 => Op::Fork { parent: part(50, 4), child: shape() },
        43..=48 => Op::Extend { id, len: 1 + part(20, 9) as u32, max_tokens: 1 + part(26, 6) as u32, author },
        49..=52 => Op::Lose(part(20, 4) as u32),
        53 => Op::Fail,
        54 => Op::Abort(id),
        55 => Op::Shut(id, Gate::Grammar),
        56 | 57 => Op::Open(id, Gate::Grammar),
        58 => Op::Ready(id),
        59 => Op::ResetPrefixCache,
        60 => Op::Pause([Pause::New, Pause::Off][part(20, 2) as usize]),
        61 => Op::Kill,
        62 => Op::SetDrafts(id, part(20, 3) as u32),
        _ => Op::Fill,
    }
}

/// What is wrong, with its numbers and without them.
fn fault(world: &World) -> Option<(String, String)> {
    let run = || Driver::run(world).err().map(|failure| failure.text);
    let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Some(format!("panic: {}", text.unwrap_or_default()))
    })?;
    let words = text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    let signature = words.take(8).collect::<Vec<_>>().join(" ");
    Some((text, signature))
}

fn shrink(world: &World, signature: &str) -> World {
    let mut best = world.clone();
    let mut run = best.ops.len() / 2;
    while run > 0 {
        let (before, mut at) = (best.ops.len(), 0);
        while at < best.ops.len() {
            let mut candidate = best.clone();
            candidate.ops.drain(at..(at + run).min(best.ops.len()));
            if fault(&candidate).is_some_and(|(_, found)| found == signature) {
                best = candidate;
            } else {
                at += run;
            }
        }
        if run > 1 || best.ops.len() == before {
            run /= 2;
        }
    }
    simplify(best, signature)
}

/// Each field of the configuration goes back to its default, where the fault stays.
fn simplify(mut best: World, signature: &str) -> World {
    let value = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (fields, default) = (value(&best.config), value(&Config::default()));
    for name in fields.as_object().into_iter().flatten().map(|(name, _)| name) {
        let mut config = value(&best.config);
        config[name] = default[name].clone();
        let Some(config) = serde_json::from_value::<Config>(config).ok().filter(|config| config.validate().is_ok()) else { continue };
        let candidate = World { config, ops: best.ops.clone() };
        if fault(&candidate).is_some_and(|(_, found)| found == signature) {
            best = candidate;
        }
    }
    best
}

/// The last calls before the fault, and who waits for what.
fn last_calls(world: &World) -> String {
    let Ok(mut driver) = Driver::new(world.config) else { return String::new() };
    let run = |driver: &mut Driver| world.ops.iter().try_for_each(|op| driver.apply(op)).and_then(|()| driver.drain());
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&mut driver)));
    let records = driver.records();
    let calls: Vec<_> =
        records[records.len().saturating_sub(8)..].iter().map(|record| format!("  {:?} {:?}", record.line, record.kv)).collect();
    let s = driver.scheduler();
    let waits: Vec<_> =
        s.unfinished().into_iter().map(|id| format!("  {id}: {:?}, {:?} computed", s.why(id), s.num_computed_tokens(id))).collect();
    format!("last calls:\n{}\nalive:\n{}\n", calls.join("\n"), waits.join("\n"))
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut seeds, mut seconds, mut make) = (0..u64::MAX, 480, world as fn(u64) -> World);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (argument.as_str(), value.split_once(".."), value.parse::<u64>()) {
            ("--seeds", Some((from, to)), _) => match (from.parse(), to.parse()) {
                (Ok(from), Ok(to)) => seeds = from..to,
                _ => return ExitCode::from(2),
            },
            ("--seconds", _, Ok(n)) => seconds = n,
            ("--focus", ..) if value == "shared" => make = shared,
            _ => {
                eprintln!("usage: worlds [--seeds A..B] [--seconds N] [--focus shared]");
                return ExitCode::from(2);
            }
        }
    }
    // Panics of the scheduler are reported with their seed.
    std::panic::set_hook(Box::new(|_| {}));
    let (start, mut ran, mut seen) = (Instant::now(), 0u64, std::collections::BTreeMap::<String, u64>::new());
    for seed in seeds {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        let world = make(seed);
        ran += 1;
        if let Some((text, signature)) = fault(&world) {
            let times = seen.entry(signature.clone()).or_default();
            *times += 1;
            if *times == 1 {
                let small = shrink(&world, &signature);
                println!("seed {seed}: {text}\n{small:?}\n{}", last_calls(&small));
            }
        }
    }
    println!("{ran} worlds in {:.1} s, {} failed", start.elapsed().as_secs_f64(), seen.values().sum::<u64>());
    for (signature, times) in &seen {
        println!("{times} times: {signature}");
    }
    if seen.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
