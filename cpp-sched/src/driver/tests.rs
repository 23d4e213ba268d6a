//! A scripted executor asserts the order of calls, rule by rule.

mod scripted;

use alloc::string::ToString;
#[cfg(feature = "journal")]
use alloc::vec;
use alloc::vec::Vec;

use super::{Driver, Failure, GaveUp, Progress, Step};
use crate::config::Role;
use crate::error::CompleteError;
use crate::event::{Event, FinishReason};
use crate::gate::Gate;
use crate::ids::{BatchId, RequestId};
use crate::scheduler::{Pause, Scheduler};

use Call::{Fail, Finished, Flush, Poll, Preempted, Submit, Wait};
use scripted::{Broken, Call, Scripted, Trick, calls, config, driver, request, run_out, steps};

#[test]
fn r91_the_pipeline_is_filled_before_anybody_waits() {
    let mut driver = driver(config(3), Scripted::blocking());
    driver.submit(request(1, 64, 1)).unwrap();
    let expected = [
        Step::Progress(Progress::Submitted(BatchId(0))),
        Step::Progress(Progress::Submitted(BatchId(1))),
        Step::Progress(Progress::Submitted(BatchId(2))),
        Step::Progress(Progress::Received(BatchId(0))),
        Step::Progress(Progress::Completed(BatchId(0))),
        Step::Progress(Progress::Submitted(BatchId(3))),
        Step::Progress(Progress::Received(BatchId(1))),
    ];
    assert_eq!(steps(&mut driver, 7), expected);
    assert_eq!(calls(&mut driver), [Submit(0), Poll, Submit(1), Poll, Submit(2), Poll, Wait, Poll, Submit(3), Poll, Wait]);
}

#[test]
fn r91_a_pipeline_that_cannot_be_filled_is_waited_for() {
    let mut driver = driver(config(3), Scripted::blocking());
    driver.submit(request(1, 8, 2)).unwrap();
    assert_eq!(steps(&mut driver, 2)[1], Step::Progress(Progress::Received(BatchId(0))));
    assert_eq!(calls(&mut driver), [Submit(0), Poll, Wait]);
}

#[test]
fn r92_nobody_waits_on_an_empty_pipeline() {
    let mut driver = driver(config(2), Scripted::blocking());
    assert_eq!(steps(&mut driver, 2), [Step::Idle, Step::Idle]);
    let mut gated = request(1, 3, 1);
    gated.gates = Gate::Other.into();
    driver.submit(gated).unwrap();
    assert_eq!(driver.step(), Ok(Step::WaitingForExternal));
    assert_eq!(calls(&mut driver), []);
    assert!(driver.ready(RequestId(1)).is_applied());
    assert_eq!(run_out(&mut driver), [(1, 3)]);
}

#[test]
fn r92_a_transfer_that_holds_all_blocks_is_told_apart() {
    let mut config = config(1);
    (config.role, config.num_blocks) = (Role::Prefill, 2);
    let mut driver = driver(config, Scripted::blocking());
    driver.submit(request(1, 7, 1)).unwrap();
    driver.submit(request(2, 7, 1)).unwrap();
    let end = driver.run(|driver| driver.events().for_each(drop));
    assert_eq!(end, Ok(Step::NoBlocks));
    assert!(driver.kv_sent(RequestId(1)).is_applied());
    assert_eq!(driver.run(|_| {}), Ok(Step::WaitingForExternal));
    assert!(driver.kv_sent(RequestId(2)).is_applied());
    assert_eq!(driver.step(), Ok(Step::Idle));
}

#[test]
fn r92_with_a_result_or_a_command_there_is_no_sleep() {
    let mut driver = driver(config(2), Scripted::default());
    driver.submit(request(1, 8, 2)).unwrap();
    let submitted = Step::Progress(Progress::Submitted(BatchId(0)));
    assert_eq!(steps(&mut driver, 3), [submitted, Step::WaitingForResults, Step::WaitingForResults]);
    // A command makes work: it is handed out at once.
    driver.submit(request(2, 8, 1)).unwrap();
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Submitted(BatchId(1)))));
    assert_eq!(driver.step(), Ok(Step::WaitingForResults));
    driver.executor_mut().ready = 2;
    let expected = [0, 1].map(|batch| Step::Progress(Progress::Completed(BatchId(batch))));
    assert_eq!(driver.step().as_ref(), Ok(&expected[0]));
    assert_eq!(driver.step().as_ref(), Ok(&expected[1]));
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Submitted(BatchId(2)))));
}

#[test]
fn r93_results_are_applied_oldest_first_or_not_at_all() {
    let mut driver = driver(config(2), Scripted::blocking());
    driver.submit(request(1, 16, 2)).unwrap();
    driver.executor_mut().tricks.push_back(Trick::NewestFirst);
    let early = Failure::Result(CompleteError::Early { batch: BatchId(1), oldest: BatchId(0) });
    assert_eq!(steps(&mut driver, 3)[2], Step::Progress(Progress::Received(BatchId(1))));
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Failed(early))));
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::RolledBack(2))));
    assert_eq!(run_out(&mut driver), [(1, 16), (1, 17)]);
    let in_order = driver.executor().returned[1..].is_sorted();
    assert!(in_order);
}

#[test]
fn r94_the_next_batch_goes_out_before_the_last_ones_sample_is_waited_for() {
    let mut driver = driver(config(2), Scripted::blocking());
    driver.submit(request(1, 8, 3)).unwrap();
    driver.submit(request(2, 8, 3)).unwrap();
    let _ = steps(&mut driver, 2);
    assert_eq!(calls(&mut driver), [Submit(0), Poll, Submit(1)], "batch 0 samples, batch 1 is out all the same");
    assert_eq!(steps(&mut driver, 3)[2], Step::Progress(Progress::Submitted(BatchId(2))));
    assert_eq!(calls(&mut driver), [Poll, Wait, Poll, Submit(2)]);
}

#[test]
fn r95_middle_chunks_bring_no_sample_and_are_not_waited_for() {
    let mut driver = driver(config(4), Scripted::default());
    driver.submit(request(1, 64, 1)).unwrap();
    let mut completed = 0;
    for _ in 0..11 {
        // Each result is there as soon as its batch is: the loop never has to wait before the last chunk.
        driver.executor_mut().ready = driver.executor().pipeline.len();
        if let Step::Progress(Progress::Completed(batch)) = driver.step().unwrap() {
            assert_eq!(driver.events().count(), 0, "{batch} is a middle chunk");
            completed += 1;
        }
    }
    assert_eq!(completed, 5);
    assert!(!calls(&mut driver).contains(&Wait));
}

#[test]
fn r96_the_executor_never_has_more_than_depth_batches() {
    for depth in 1..5 {
        let mut config = config(2);
        config.max_in_flight = Some(depth);
        let mut driver = driver(config, Scripted::blocking());
        for id in 0..6 {
            driver.submit(request(id, 20, 4)).unwrap();
        }
        assert_eq!(run_out(&mut driver).len(), 24);
        assert_eq!(driver.executor().most, depth as usize);
    }
}

#[test]
fn r97_what_is_unsent_is_flushed_before_the_rest() {
    let mut driver = driver(config(2), Scripted::blocking());
    for id in 0..2 {
        driver.submit(request(id, 4, 1)).unwrap();
        assert_eq!(run_out(&mut driver).len(), 1);
        assert_eq!(driver.step(), Ok(Step::Idle));
        assert_eq!(calls(&mut driver), [Submit(id), Poll, Wait, Finished(id), Flush], "once, after the last result");
    }
}

#[test]
fn r99_every_batch_is_returned_or_lost_exactly_once() {
    let mut driver = driver(config(3), Scripted::blocking());
    driver.executor_mut().tricks.extend([Trick::LoseResult, Trick::LoseSubmit, Trick::LoseResult]);
    for id in 0..5 {
        driver.submit(request(id, 30, 5)).unwrap();
    }
    let tokens = run_out(&mut driver);
    let expected: Vec<_> = (0..5).map(|id| (id, (30..35).collect::<Vec<_>>())).collect();
    let got: Vec<_> = (0..5).map(|id| (id, tokens.iter().filter(|t| t.0 == id).map(|t| t.1).collect::<Vec<_>>())).collect();
    assert_eq!(got, expected);
    let executor = driver.executor();
    let mut ended: Vec<_> = executor.returned.iter().chain(&executor.lost).map(|batch| batch.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..driver.scheduler().stats().batches).collect::<Vec<_>>());
    assert_eq!(driver.scheduler().stats().batches_lost, executor.lost.len() as u64);
}

#[test]
fn r37_a_command_comes_before_the_result_that_was_waited_for() {
    let mut driver = driver(config(1), Scripted::blocking());
    driver.submit(request(1, 4, 1)).unwrap();
    assert_eq!(steps(&mut driver, 2)[1], Step::Progress(Progress::Received(BatchId(0))));
    // The last token is there, and the client goes: it is an abort, not an end by length.
    assert!(driver.abort(RequestId(1)).is_applied());
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Completed(BatchId(0)))));
    let events: Vec<_> = driver.events().collect();
    assert_eq!(events, [Event::Finished { request: RequestId(1), reason: FinishReason::Aborted }]);
}

#[test]
fn preemption_is_told_before_the_batch_that_follows_from_it() {
    let mut config = config(1);
    (config.num_blocks, config.max_batch_tokens) = (3, 64);
    let mut driver = driver(config, Scripted::blocking());
    driver.submit(request(1, 4, 6)).unwrap();
    driver.submit(request(2, 4, 6)).unwrap();
    assert_eq!(run_out(&mut driver).len(), 12);
    let calls = calls(&mut driver);
    let at = calls.iter().position(|call| *call == Preempted(2)).expect("two requests of 3 blocks do not fit into 3");
    let (before, after) = (&calls[at - 1], &calls[at + 1]);
    assert!(matches!((before, after), (Poll | Finished(_) | Wait, Submit(_))), "{calls:?}");
}

#[test]
fn failures_are_tried_again_as_often_as_the_caller_says() {
    for most in [0, 2] {
        let mut driver = driver(config(2), Scripted::blocking());
        driver.set_max_failures(most);
        driver.executor_mut().tricks.extend([Trick::LoseSubmit; 5]);
        driver.submit(request(1, 8, 1)).unwrap();
        let mut steps = 0;
        let gave_up = driver.run(|_| steps += 1).unwrap_err();
        assert_eq!(gave_up, GaveUp { failures: most + 1, cause: Failure::Executor(Broken) });
        assert_eq!(
            gave_up.to_string(),
            alloc::format!("gave up after {} failures in a row: the executor failed: stage 1 is gone", most + 1)
        );
        assert_eq!(steps, 1 + 2 * most, "failed and rolled back, each time");
        // Nothing is lost: with another executor's luck it goes on.
        driver.executor_mut().tricks.clear();
        assert_eq!(run_out(&mut driver), [(1, 8)]);
    }
}

#[test]
fn a_completed_batch_forgives_earlier_failures() {
    let mut driver = driver(config(1), Scripted::blocking());
    driver.set_max_failures(1);
    driver.submit(request(1, 4, 30)).unwrap();
    for _ in 0..20 {
        driver.executor_mut().tricks.push_back(Trick::LoseResult);
        while !matches!(driver.step().unwrap(), Step::Progress(Progress::Completed(_))) {}
    }
    assert_eq!(driver.scheduler().stats().batches_lost, 20);
}

#[test]
fn blocks_are_not_given_out_before_the_executor_has_let_go() {
    let mut driver = driver(config(2), Scripted::blocking());
    driver.submit(request(1, 16, 1)).unwrap();
    driver.executor_mut().tricks.extend([Trick::LoseResult, Trick::CannotFail, Trick::CannotFail]);
    let failed = Step::Progress(Progress::Failed(Failure::Executor(Broken)));
    assert_eq!(steps(&mut driver, 5)[2..], [failed.clone(), failed.clone(), failed]);
    assert_eq!(driver.scheduler().in_flight(), 2, "not rolled back yet");
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::RolledBack(2))));
    assert_eq!(calls(&mut driver), [Submit(0), Poll, Submit(1), Poll, Wait, Fail, Fail, Fail]);
    assert_eq!(run_out(&mut driver), [(1, 16)]);
}

#[test]
fn a_result_of_a_lost_batch_is_thrown_away() {
    let mut driver = driver(config(2), Scripted::blocking());
    driver.submit(request(1, 16, 1)).unwrap();
    driver.executor_mut().tricks.extend([Trick::LoseResult, Trick::Stale(1)]);
    let got = steps(&mut driver, 8);
    let discarded = [Progress::Received(BatchId(1)), Progress::Discarded(BatchId(1))].map(Step::Progress);
    assert_eq!(got[3], Step::Progress(Progress::RolledBack(2)));
    assert_eq!(got[6..], discarded);
    assert_eq!(run_out(&mut driver), [(1, 16)]);
}

#[test]
fn one_batch_may_be_lost_while_others_live() {
    let mut driver = driver(config(3), Scripted::blocking());
    driver.submit(request(1, 16, 1)).unwrap();
    driver.submit(request(2, 8, 1)).unwrap();
    let _ = steps(&mut driver, 3);
    assert_eq!(driver.lose(BatchId(0)), Ok(()));
    // It comes all the same; its request runs again from the start, the other one goes on.
    let tokens = run_out(&mut driver);
    assert_eq!(tokens, [(2, 8), (1, 16)]);
    assert_eq!(driver.executor().lost, []);
    assert_eq!(driver.lose(BatchId(0)), Err(CompleteError::Unknown(BatchId(0))));
}

#[test]
fn nothing_is_decided_while_the_executor_has_no_room() {
    let mut driver = driver(config(3), Scripted::default());
    driver.submit(request(1, 64, 1)).unwrap();
    driver.executor_mut().closed = true;
    assert_eq!(
        steps(&mut driver, 2),
        [Step::WaitingForExecutor, Step::WaitingForExecutor],
        "nothing is under way that could be waited for"
    );
    driver.executor_mut().closed = false;
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Submitted(BatchId(0)))));
    driver.executor_mut().closed = true;
    assert_eq!(driver.step(), Ok(Step::WaitingForResults));
    assert_eq!(driver.scheduler().stats().batches, 1, "a late decision is not made early");
    // A result is taken all the same.
    driver.executor_mut().ready = 1;
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::Completed(BatchId(0)))));
    (driver.executor_mut().closed, driver.executor_mut().blocking) = (false, true);
    assert_eq!(run_out(&mut driver), [(1, 64)]);
}

#[test]
fn a_failure_that_somebody_else_has_noticed_is_rolled_back_by_the_next_step() {
    let mut driver = driver(config(2), Scripted::blocking());
    driver.set_max_failures(0);
    driver.submit(request(1, 16, 1)).unwrap();
    assert_eq!(steps(&mut driver, 3)[2], Step::Progress(Progress::Received(BatchId(0))));
    driver.fail();
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::RolledBack(2))), "what was received goes with the rest");
    assert_eq!(calls(&mut driver), [Submit(0), Poll, Submit(1), Poll, Wait, Fail]);
    assert_eq!(run_out(&mut driver), [(1, 16)]);
    // With nothing under way it is told all the same.
    driver.fail();
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::RolledBack(0))));
}

#[cfg(feature = "journal")]
#[test]
fn a_journal_of_a_driver_replays_to_the_same_decisions_and_the_same_state() {
    use crate::journal::{JournalWriter, replay};
    let mut driver = driver(config(3), Scripted::blocking());
    driver.record(JournalWriter::new(&config(3)));
    driver.executor_mut().tricks.extend([Trick::LoseResult, Trick::LoseSubmit]);
    for id in 0..6 {
        driver.submit(request(id, 20 + id as usize, 4)).unwrap();
    }
    assert!(driver.submit(request(0, 4, 1)).is_err());
    let mut rotated = None;
    for step in 0..200 {
        driver.tick(step / 3);
        match step {
            10 => assert!(driver.abort(RequestId(2)).is_applied()),
            14 => driver.lose(driver.scheduler().oldest_in_flight().unwrap().id()).unwrap(),
            20 => driver.fail(),
            30 => {
                let pending = driver.scheduler().snapshot();
                let bytes = driver.journal().unwrap().take();
                let replay = replay(&bytes).unwrap();
                assert_eq!(replay.difference, None);
                assert_eq!(replay.scheduler.snapshot(), pending);
                assert_eq!(driver.rotate_journal(), Some(vec![]), "all of it was taken");
                rotated = Some(replay.batches);
            }
            _ => {}
        }
        let _ = driver.step().unwrap();
        driver.events().for_each(drop);
    }
    assert!(driver.scheduler().is_idle());
    let replay = replay(&driver.journal().unwrap().take()).unwrap();
    assert_eq!((replay.difference, replay.scheduler.snapshot()), (None, driver.scheduler().snapshot()));
    let batches = driver.scheduler().stats().batches;
    assert!(rotated.is_some_and(|before| before > 0 && before + replay.batches == batches), "{rotated:?} {} {batches}", replay.batches);
}

#[test]
fn a_pause_is_told_apart() {
    let mut driver = driver(config(1), Scripted::blocking());
    driver.submit(request(1, 4, 1)).unwrap();
    driver.pause(Pause::All);
    assert_eq!(driver.step(), Ok(Step::Paused));
    driver.pause(Pause::Off);
    assert_eq!(run_out(&mut driver), [(1, 4)]);
}

#[test]
fn what_another_executor_had_is_rolled_back_first() {
    let mut scheduler = Scheduler::new(config(2)).unwrap();
    scheduler.submit(request(1, 16, 1)).unwrap();
    while scheduler.schedule().batch().is_some() {}
    let mut driver = Driver::new(scheduler, Scripted::blocking());
    assert_eq!(driver.step(), Ok(Step::Progress(Progress::RolledBack(2))));
    assert_eq!(run_out(&mut driver), [(1, 16)]);
}

#[test]
fn room_for_samples_is_kept() {
    let mut driver = driver(config(1), Scripted::blocking());
    driver.submit(request(1, 4, 4)).unwrap();
    run_out(&mut driver);
    assert!(driver.borrowed.capacity() > 0);
    let room = driver.borrowed.as_ptr();
    driver.submit(request(2, 4, 4)).unwrap();
    run_out(&mut driver);
    assert_eq!(driver.borrowed.as_ptr(), room);
}
