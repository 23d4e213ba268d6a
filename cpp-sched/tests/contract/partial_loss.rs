//! Partial loss: one batch is lost while others live; it and what depends on it roll back, the rest goes on.

use cpp_sched::{Admission, BatchId, CompleteError, PreemptedOutput, WaitReason};

use crate::bench::{Bench, request, tokens_of};

fn chunked(stages: u32) -> Bench {
    Bench::new(|c| (c.stages, c.max_batch_tokens) = (stages, 8))
}

#[test]
fn it_and_the_later_chunks_of_the_same_request_roll_back_and_what_came_before_stands() {
    let mut bench = chunked(4);
    bench.submit(1, 32, 1);
    bench.fill();
    bench.lose(1);
    assert_eq!(
        (bench.committed(1), bench.scheduler.num_computed_tokens(cpp_sched::RequestId(1))),
        (0, Some(8)),
        "the first one is still in flight"
    );
    bench.complete();
    assert_eq!(bench.committed(1), 8);
    assert_eq!(bench.step(), [(1, 8, 16)], "from where the lost one began");
    // The void chunks come back; they bring nothing.
    bench.complete().complete();
    assert_eq!(bench.events(), []);
    assert_eq!(bench.committed(1), 8);
    bench.complete();
    assert_eq!(bench.committed(1), 16);
    assert_eq!(tokens_of(&bench.finish()), [(1, 1032)]);
    assert_eq!((bench.stats().batches_lost, bench.stats().recomputed_tokens), (1, 24));
}

#[test]
fn other_requests_go_on() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 8, 3).submit(2, 16, 3);
    assert_eq!(bench.fill(), [[(1, 0, 8)], [(2, 0, 8)], [(2, 8, 16)]]);
    bench.lose(1);
    bench.complete();
    assert_eq!(bench.tokens(), [(1, 1008)]);
    assert_eq!(bench.step(), [(1, 8, 9), (2, 0, 7)], "the one is not touched, the other starts again");
    let events = bench.finish();
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 1).count(), 2);
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 2).map(|(_, token)| *token).collect::<Vec<_>>(), [1016, 1017, 1018]);
}

#[test]
fn the_oldest_one_makes_room_in_the_pipeline_at_once_and_a_later_one_in_its_turn() {
    let mut bench = chunked(3);
    bench.submit(1, 24, 1);
    bench.fill();
    bench.lose(2);
    assert_eq!((bench.scheduler.in_flight(), bench.why(1)), (3, Some(WaitReason::PipelineFull)));
    bench.lose(0);
    assert_eq!((bench.scheduler.in_flight(), bench.committed(1)), (2, 0), "that of the middle is void with it, but still in flight");
    bench.complete();
    assert_eq!(bench.scheduler.in_flight(), 0, "with it goes the lost one behind it");
    bench.finish();
}

#[test]
fn a_batch_that_is_not_in_flight_cannot_be_lost() {
    let mut bench = chunked(3);
    bench.submit(1, 24, 1);
    bench.fill();
    bench.complete();
    bench.lose(1);
    let before = bench.state();
    for batch in [0, 2, 3, u64::MAX] {
        assert_eq!(bench.scheduler.lose(BatchId(batch)), Err(CompleteError::Unknown(BatchId(batch))), "done, lost or never scheduled");
    }
    assert_eq!(bench.scheduler.complete(BatchId(2), &[]), Err(CompleteError::Early { batch: BatchId(2), oldest: BatchId(1) }));
    assert_eq!(bench.state(), before);
}

#[test]
fn a_lost_step_takes_those_that_ran_ahead_of_its_token_with_it() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (4, true));
    bench.submit(1, 4, 9).submit(2, 4, 2);
    assert_eq!(bench.fill(), [vec![(1, 0, 4), (2, 0, 4)], vec![(1, 4, 5), (2, 4, 5)], vec![(1, 5, 6)], vec![(1, 6, 7)]]);
    bench.lose(2);
    bench.complete();
    assert_eq!(bench.tokens(), [(1, 1004), (2, 1004)]);
    assert_eq!(bench.step(), [(1, 5, 6)], "behind the step that stands, whose token is still to come");
    assert_eq!(bench.assumed, 1);
    let events = bench.finish();
    assert_eq!(
        tokens_of(&events).iter().filter(|(id, _)| *id == 1).map(|(_, token)| *token).collect::<Vec<_>>(),
        (1005..1013).collect::<Vec<_>>()
    );
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 2).count(), 1);
}

#[test]
fn lost_drafts_leave_nothing_behind() {
    let mut bench = Bench::new(|c| c.stages = 3);
    bench.with(request(1, 4, 12), |r| r.drafts = 3).submit(2, 6, 6);
    bench.round();
    bench.events();
    assert_eq!(bench.step(), [(1, 4, 8), (2, 6, 7)]);
    bench.lose(0);
    assert_eq!((bench.scheduler.in_flight(), bench.committed(1)), (0, 4));
    assert_eq!(bench.step(), [(1, 4, 8), (2, 6, 7)]);
    bench.complete_with(|row| (0..=row.num_draft_tokens).map(|at| 1000 + at).collect());
    assert_eq!(bench.tokens().len(), 5);
    bench.finish();
}

#[test]
fn a_late_result_that_is_lost_is_sampled_again() {
    for output in [PreemptedOutput::Deliver, PreemptedOutput::Drop] {
        let mut bench = Bench::new(|c| {
            (c.stages, c.async_scheduling, c.admission, c.num_blocks, c.preempted_output) = (3, true, Admission::Lazy, 4, output);
        });
        bench.submit(1, 7, 4).submit(2, 6, 4);
        assert_eq!(bench.fill(), [[(1, 0, 7), (2, 0, 6)], [(1, 7, 8), (2, 6, 7)]]);
        assert_eq!(bench.stats().preemptions, 1);
        bench.lose(1);
        bench.complete();
        let first = bench.tokens();
        assert_eq!(first, if output == PreemptedOutput::Deliver { vec![(1, 1007), (2, 1006)] } else { vec![(1, 1007)] });
        let all: Vec<_> = first.into_iter().chain(tokens_of(&bench.finish())).collect();
        for (id, from) in [(1, 1007), (2, 1006)] {
            let tokens: Vec<_> = all.iter().filter(|(request, _)| *request == id).map(|(_, token)| *token).collect();
            assert_eq!(tokens, (from..from + 4).collect::<Vec<_>>(), "request {id}");
        }
    }
}

#[test]
fn blocks_of_void_rows_wait_for_their_batch() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens, c.num_blocks) = (3, 8, 6));
    bench.submit(1, 23, 1);
    bench.fill();
    bench.lose(1);
    assert!(bench.abort(1).is_applied());
    // The lost batch and the void one behind it may still write.
    bench.submit(2, 23, 1);
    assert_eq!((bench.usage().fenced, bench.usage().free), (6, 0));
    bench.complete();
    bench.complete();
    assert_eq!((bench.usage().fenced, bench.usage().free), (0, 6));
    bench.finish();
}

#[test]
fn a_session_that_had_paused_loses_nothing() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (3, true));
    bench.with(request(1, 4, 9), |r| (r.session, r.stop_tokens) = (true, vec![7]));
    bench.fill();
    bench.complete_with(|_| vec![7]);
    bench.lose(1);
    assert_eq!(bench.committed(1), 4);
    bench.scheduler.extend(cpp_sched::RequestId(1), cpp_sched::Prompt::Tokens(vec![1, 2]), 1).unwrap();
    assert_eq!(bench.step(), [(1, 4, 7)]);
}

#[test]
fn then_all_may_be_lost_and_each_batch_counts_once() {
    let mut bench = chunked(4);
    bench.submit(1, 32, 1);
    bench.fill();
    bench.lose(2);
    bench.fail();
    assert_eq!((bench.stats().batches_lost, bench.committed(1)), (4, 0));
    assert_eq!(tokens_of(&bench.finish()), [(1, 1032)]);
}
