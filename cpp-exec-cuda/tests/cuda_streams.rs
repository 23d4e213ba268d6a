//! Several batches under way on each of several stages, whatever takes how long: every batch says what one stage alone says of it.
//!
//! See `cuda_device.rs` for what it runs on. Delays, counts and failures are those of the stand-in for the driver. `emulation/faults.py` runs the first
//! test with one wait or check left out at a time.
#![cfg(all(feature = "cuda", unix))]

mod support;

use std::sync::Arc;
use std::time::Duration;

use cpp_exec_mock::runtime::RuntimeError;

use support::fake::Fake;
use support::world::{World, replay, run, smallest, start};
use support::{Model, gpu};

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
        slots: 1 + (seed % 3) as u32 / 2,
        through_host: 1 << (seed % 2),
        asynchronous: seed % 3 == 0,
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
