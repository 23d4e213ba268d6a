//! A tiny model over real stages: whatever happens on the way, every request gets the tokens of one pass over its whole prompt, alone, on one stage.

#[path = "common/by_itself.rs"]
mod by_itself;
#[path = "common/folder.rs"]
mod folder;
#[path = "common/harness.rs"]
mod harness;
#[path = "common/small.rs"]
mod small;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cpp_exec_mock::cpu::KvShape;
use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{ChannelLink, Patience, Pipeline, RuntimeError, Threads};
use cpp_sched::driver::{Driver, Failure, Progress, Step};
use cpp_sched::{Event, Request, RequestId, Scheduler};

use by_itself::ByItself;
use harness::{Case, Fault, Faults, check, no_faults, run, start};
use small::{config, tiny};

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

#[test]
fn stages_and_links_change_no_token() {
    let (model, cases) = (tiny(1), cases());
    for stages in [1, 2, 4] {
        let mut driver = start(&model, config(stages), &no_faults(), ChannelLink, Patience::default());
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
            let mut driver = start(&model, config(stages), &no_faults(), link, Patience::default());
            check(&model, &cases, &run(&mut driver, &cases, false));
        }
    }
}

#[test]
fn preemption_drafts_and_asynchronous_scheduling_change_no_token() {
    let (model, cases) = (tiny(1), cases());
    for stages in [1, 2, 4] {
        for (asynchronous, drafting) in [(false, true), (true, false), (true, true)] {
            let mut config = config(stages);
            config.num_blocks = 20;
            config.async_scheduling = asynchronous;
            config.admission = cpp_sched::Admission::Lazy;
            let mut driver = start(&model, config, &no_faults(), ChannelLink, Patience::default());
            check(&model, &cases, &run(&mut driver, &cases, drafting));
            assert!(driver.scheduler().stats().preemptions > 0, "{:?}", driver.scheduler().stats());
        }
    }
}

#[test]
fn a_stage_that_fails_lives_and_its_batches_run_again() {
    let (model, cases) = (tiny(1), cases());
    let faults: Faults = Arc::new(Mutex::new(vec![(0, 3, Fault::Error), (1, 9, Fault::Error), (2, 20, Fault::Error)]));
    let mut driver = start(&model, config(3), &faults, ChannelLink, Patience::default());
    let outcome = run(&mut driver, &cases, true);
    check(&model, &cases, &outcome);
    let stages: Vec<_> = outcome.failures.iter().map(|error| matches!(error, RuntimeError::Stage { .. })).collect();
    assert_eq!((stages, outcome.recovered), (vec![true; 3], 0), "{:?}", outcome.failures);
    assert!(driver.scheduler().stats().batches_lost >= 3);
}

#[test]
fn a_stage_that_dies_is_replaced_and_its_memory_computed_anew() {
    let (model, cases) = (tiny(1), cases());
    for asynchronous in [false, true] {
        let faults: Faults = Arc::new(Mutex::new(vec![(1, 7, Fault::Panic), (0, 20, Fault::Panic), (3, 25, Fault::Panic)]));
        let mut config = config(4);
        config.async_scheduling = asynchronous;
        let mut driver = start(&model, config, &faults, ChannelLink, Patience::default());
        let outcome = run(&mut driver, &cases, true);
        check(&model, &cases, &outcome);
        assert_eq!(outcome.recovered, 3, "{:?}", outcome.failures);
        assert!(outcome.failures.iter().all(|error| matches!(error, RuntimeError::Died { .. })), "{:?}", outcome.failures);
    }
}

#[test]
fn a_stage_that_hangs_is_found_by_the_deadline_and_left_alone() {
    let (model, cases) = (tiny(1), cases());
    let faults: Faults = Arc::new(Mutex::new(vec![(1, 10, Fault::Hang)]));
    let patience = Patience { batch: Duration::from_secs(5), abort: Duration::from_secs(1) };
    let mut driver = start(&model, config(2), &faults, ChannelLink, patience);
    let outcome = run(&mut driver, &cases, false);
    check(&model, &cases, &outcome);
    assert!(matches!(outcome.failures[..], [RuntimeError::Deadline { stage: 1, .. }]), "{:?}", outcome.failures);
    assert_eq!(outcome.recovered, 1);
}

#[test]
fn who_does_not_recover_is_told_so() {
    let model = tiny(1);
    let faults: Faults = Arc::new(Mutex::new(vec![(0, 2, Fault::Panic)]));
    let mut driver = start(&model, config(1), &faults, ChannelLink, Patience::default());
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

#[test]
fn devices_that_work_by_themselves_change_no_token_and_lose_what_they_lose() {
    let (model, cases) = (tiny(1), cases());
    for stages in [1, 2, 4] {
        let mut config = config(stages);
        // More batches than a device has room for.
        config.max_in_flight = Some(stages + 3);
        let faults: Faults =
            Arc::new(Mutex::new(vec![(0, 5, Fault::Error), (stages as usize - 1, 12, Fault::Panic), (0, 30, Fault::Error)]));
        let (told, held) = (Arc::clone(&model), Arc::clone(&faults));
        let kv = KvShape::from(&config);
        let factory = move |stage| Ok(ByItself::new(told.frail(stage, stages as usize, kv, &held)));
        let patience = Patience::default();
        let threads = Threads::start(&config, Box::new(factory), ChannelLink, patience.abort).unwrap();
        let mut driver = Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, patience));
        let outcome = run(&mut driver, &cases, true);
        check(&model, &cases, &outcome);
        // Who has panicked cannot be asked to forget: another one takes its place.
        assert_eq!((outcome.failures.len(), outcome.recovered), (3, 1), "{:?}", outcome.failures);
        assert!(faults.lock().unwrap().is_empty());
    }
}
