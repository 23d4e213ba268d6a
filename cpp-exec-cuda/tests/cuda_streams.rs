//! Several batches under way on each of several stages, whatever takes how long: every batch says what one stage alone says of it.
//!
//! See `cuda_device.rs` for what it runs on. Delays, counts and failures are those of the stand-in for the driver. `emulation/faults.py` runs the first
//! test with one wait or check left out at a time.
#![cfg(all(feature = "cuda", unix))]

mod support;

use std::sync::Arc;
use std::time::Duration;

use cpp_exec_cuda::cuda::{CudaStage, Room};
use cpp_exec_mock::cpu::KvShape;
use cpp_exec_mock::runtime::{Device, RuntimeError, Work};
use cpp_sched::BatchId;

use support::fake::{Fake, take_turns};
use support::world::{World, replay, run, smallest, start};
use support::{Model, Text, gpu};

/// CUDA_ERROR_INVALID_VALUE: a call that was refused, after which all is well.
const REFUSED: i32 = 1;
/// CUDA_ERROR_LAUNCH_FAILED: nothing works after it.
const LAUNCH_FAILED: i32 = 719;

/// Three stages, with an edge on the device and one through the host, in an order that changes with the seed.
fn world(seed: u64) -> World {
    World {
        stages: 3,
        // More batches than slots: a stage must wait until one is free.
        depth: 6,
        slots: (seed % 2) as u32,
        through_host: 1 << (seed % 2),
        asynchronous: seed.is_multiple_of(3),
        graphs: seed % 4 < 2,
        // Not enough for all: somebody is preempted.
        blocks: 14,
        requests: 6,
        outputs: 6,
    }
}

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("CPP_STREAM_SEEDS").ok();
    let parsed = given.as_deref().map(|text| text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?)));
    parsed.map_or(1..5, |seeds| seeds.expect("CPP_STREAM_SEEDS is A..B"))
}

#[test]
fn whatever_takes_how_long_each_batch_says_what_one_stage_says() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let model = Arc::new(Model::new("streams", smallest(3)));
    let fake = Fake::find();
    if fake.is_none() {
        println!("not tested: delays and lost batches, which need the stand-in for the driver");
    }
    let mut preemptions = 0;
    for seed in seeds() {
        let world = world(seed);
        if let Some(fake) = &fake {
            fake.seed(seed);
        }
        #[cfg(feature = "planted-faults")]
        if let Ok(place) = std::env::var("CPP_PLANTED_FAULT") {
            assert!(cpp_exec_cuda::cuda::plant_fault(Some(&place)), "CPP_PLANTED_FAULT is file:line");
        }
        let (mut driver, record) = start(&world, &model, &gpu, Duration::from_secs(20));
        let mut lost = 0;
        let outcome = run(&world, &mut driver, |tokens| {
            // A launch is refused somewhere in what comes next: batches are lost, on all stages.
            if let (Some(fake), true) = (&fake, tokens >= 8 * (lost + 1) && lost < 3) {
                lost += 1;
                fake.fail(c"launch", seed % 5 * 3 + lost as u64, REFUSED);
            }
        });
        preemptions += driver.scheduler().stats().preemptions;
        drop(driver);
        #[cfg(feature = "planted-faults")]
        cpp_exec_cuda::cuda::plant_fault(None);
        assert!(!outcome.gave_up, "seed {seed}: {:?}", outcome.failures);
        for failure in &outcome.failures {
            assert!(
                matches!(failure, RuntimeError::Stage { problem, .. } if problem.contains("starting a kernel")),
                "seed {seed}: {failure}"
            );
        }
        assert!(outcome.failures.len() <= lost);
        assert_eq!(outcome.tokens.len(), world.requests as usize);
        for (request, tokens) in &outcome.tokens {
            let whole = if *request == 1 { 2..=6 } else { 6..=6 };
            assert!(whole.contains(&tokens.len()), "seed {seed}: request {request} has {tokens:?}");
        }
        let compared =
            replay(&world, &model, &gpu, &record.lock().unwrap()).unwrap_or_else(|difference| panic!("seed {seed}: {difference}"));
        println!("seed {seed}: {compared} batches say what one stage says; {} were lost", outcome.failures.len());
        assert!(compared >= 10);
    }
    assert!(preemptions > 0);
}

/// Runs a world and says what the stand-in has counted since so many tokens had come.
fn counted(world: &World, since: usize, counts: &[&'static std::ffi::CStr]) -> Option<Vec<u64>> {
    let gpu = gpu()?;
    let Some(fake) = Fake::find() else {
        println!("not tested: the stand-in for the driver counts");
        return None;
    };
    let model = Arc::new(Model::new(&format!("steady-{}-{}", world.through_host, world.graphs), smallest(3)));
    fake.seed(77);
    let (mut driver, record) = start(world, &model, &gpu, Duration::from_secs(20));
    let (mut before, mut last) = (None, Vec::new());
    let outcome = run(world, &mut driver, |tokens| {
        let now: Vec<u64> = counts.iter().map(|what| fake.count(what)).collect();
        if tokens >= since {
            before.get_or_insert_with(|| now.clone());
        }
        last = now;
    });
    drop(driver);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    replay(world, &model, &gpu, &record.lock().unwrap()).unwrap();
    let before = before?;
    Some(last.iter().zip(&before).map(|(last, before)| last - before).collect())
}

/// Room for everybody.
fn roomy(through_host: u32, graphs: bool) -> World {
    World { stages: 3, depth: 3, slots: 3, through_host, asynchronous: false, graphs, blocks: 60, requests: 6, outputs: 10 }
}

#[test]
fn in_the_loop_nothing_is_reserved_and_nothing_waits() {
    let _turn = take_turns();
    for (through_host, graphs) in [(0, false), (0, true), (3, false)] {
        let Some(counts) = counted(&roomy(through_host, graphs), 10, &[c"alloc", c"free", c"wait", c"lazy", c"launch", c"graph"]) else {
            return;
        };
        println!("through the host {through_host}, graphs {graphs}: {counts:?}");
        assert_eq!(counts[..4], [0; 4], "memory reserved, given back, waits of the host, kernels loaded");
        assert!(counts[4] > 100 && (counts[5] > 0) == graphs);
    }
}

#[test]
fn every_kernel_has_run_before_the_first_batch() {
    let _turn = take_turns();
    let world = World { blocks: 14, slots: 1, depth: 6, ..roomy(0, false) };
    let Some(counts) = counted(&world, 0, &[c"first", c"launch"]) else { return };
    assert!(counts[0] == 0 && counts[1] > 200, "{counts:?}");
    let lazy = Fake::find().map_or(0, |fake| fake.count(c"lazy"));
    assert_eq!(lazy, 0, "kernels are loaded with their module");
    for (variable, value) in [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_DEVICE_MAX_CONNECTIONS", "32")] {
        assert_eq!(std::env::var(variable).as_deref(), Ok(value));
    }
}

#[test]
fn activations_come_and_go_while_kernels_run() {
    let _turn = take_turns();
    let Some(counts) = counted(&roomy(0, false), 0, &[c"overlap"]) else { return };
    println!("{} copies between stages met a kernel", counts[0]);
    assert!(counts[0] > 0);
}

#[test]
fn a_device_that_is_gone_is_given_up_with_its_reason() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let Some(fake) = Fake::find() else {
        println!("not tested: the stand-in for the driver fails when it is told to");
        return;
    };
    let model = Arc::new(Model::new("gone", smallest(3)));
    let world = world(1);
    let (mut driver, record) = start(&world, &model, &gpu, Duration::from_secs(20));
    let mut told = false;
    let outcome = run(&world, &mut driver, |tokens| {
        if tokens >= 4 && !std::mem::replace(&mut told, true) {
            fake.fail(c"kernel", 3, LAUNCH_FAILED);
        }
    });
    let said = format!("{:?}", outcome.failures);
    drop(driver);
    fake.mend();
    assert!(outcome.gave_up && said.contains("LAUNCH_FAILED"), "{said}");
    // Until then everything was right. The context keeps what has happened to it, so another one looks.
    let gpu = support::gpu().unwrap();
    assert!(replay(&world, &model, &gpu, &record.lock().unwrap()).unwrap() > 0);
}

/// Whatever a stage has is given back without a word, on a thread that has no context yet.
#[test]
fn a_stage_whose_device_is_gone_is_dropped_in_peace() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let Some(fake) = Fake::find() else {
        println!("not tested: the stand-in for the driver fails when it is told to");
        return;
    };
    let model = Model::new("dropped", smallest(2));
    for (after, graphs) in [(0, false), (3, true)] {
        let unbound = fake.count(c"unbound");
        let mut stage = model.cuda(&gpu, 0, 1);
        if graphs {
            stage.capture_graphs().unwrap();
        }
        fake.fail(c"kernel", after, LAUNCH_FAILED);
        let mut work = Work::new(BatchId(0));
        Text::new(0, 20, 40).push(&mut work, 20, &[]);
        work.tokens.iter_mut().for_each(|token| *token %= 64);
        let error = stage.run(&work, &Vec::new(), &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("LAUNCH_FAILED"), "{error}");
        std::thread::spawn(move || drop(stage)).join().expect("dropping a stage does not panic");
        assert_eq!(fake.count(c"unbound"), unbound, "every call had a context");
        fake.mend();
    }
}

#[test]
fn a_call_of_each_kind_may_be_refused_once() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let Some(fake) = Fake::find() else {
        println!("not tested: the stand-in for the driver fails when it is told to");
        return;
    };
    let model = Arc::new(Model::new("refused", smallest(3)));
    for (number, what) in [c"launch", c"copy", c"record", c"wait", c"graph"].into_iter().enumerate() {
        let world = World { graphs: what == c"graph", ..world(number as u64) };
        fake.seed(number as u64);
        let (mut driver, record) = start(&world, &model, &gpu, Duration::from_secs(20));
        let mut told = false;
        let outcome = run(&world, &mut driver, |tokens| {
            if tokens >= 6 && !std::mem::replace(&mut told, true) {
                fake.fail(what, 2, REFUSED);
            }
        });
        drop(driver);
        assert!(!outcome.gave_up && outcome.failures.len() == 1, "{what:?}: {:?}", outcome.failures);
        replay(&world, &model, &gpu, &record.lock().unwrap()).unwrap();
    }
}

#[test]
fn decodes_of_any_number_and_length_are_the_same_as_graphs() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let model = Model::new("graphs", smallest(2));
    // Three splits at most; room for eight rows, so graphs are for 1, 2, 4 and 8.
    let room = Room { positions: 1100, tokens: 200, rows: 8, batches: 1 };
    let kv = KvShape { block_size: 16, num_blocks: 800 };
    let load = || CudaStage::load(&gpu, &model.tiny.config(), &model.weights, &model.part(0, 1), kv, room, |_| ()).unwrap();
    let (mut with, mut without) = (load(), load());
    assert_eq!(with.capture_graphs().unwrap(), 2 * 4 * 2, "of two slots, four sizes, with one split and with several");
    let fake = Fake::find();
    let mut texts: Vec<Text> = [700, 3, 40, 520, 9].into_iter().enumerate().map(|(id, len)| Text::new(id as u64, len, 720)).collect();
    texts.iter_mut().flat_map(|text| &mut text.tokens).for_each(|token| *token %= 64);
    let mut batch = 0;
    let mut both = |work: &mut Work| {
        batch += 1;
        work.batch = BatchId(batch);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        with.run(work, &Vec::new(), &mut Vec::new(), &mut one).unwrap();
        without.run(work, &Vec::new(), &mut Vec::new(), &mut other).unwrap();
        assert_eq!(one, other, "batch {batch}");
        one
    };
    for text in &mut texts {
        while text.tokens.len() as u32 > text.done {
            let mut work = Work::new(BatchId(0));
            let len = (text.tokens.len() as u32 - text.done).min(200);
            text.push(&mut work, len, &[]);
            if let [sample] = &both(&mut work)[..] {
                text.tokens.extend(&sample.tokens);
                break;
            }
        }
    }
    let before = fake.as_ref().map_or(0, |fake| fake.count(c"graph"));
    for rows in [1, 2, 3, 5, 4] {
        let mut work = Work::new(BatchId(0));
        // From the first, whose keys are split, or from the second.
        let chosen = texts.iter_mut().skip(rows % 2).take(rows);
        let mut pushed: Vec<&mut Text> = chosen.collect();
        pushed.iter_mut().for_each(|text| text.push(&mut work, 1, &[]));
        for (text, sample) in pushed.iter_mut().zip(both(&mut work)) {
            text.tokens.extend(sample.tokens);
        }
    }
    if let Some(fake) = fake {
        assert_eq!(fake.count(c"graph") - before, 5, "every decode was a graph");
    }
}
