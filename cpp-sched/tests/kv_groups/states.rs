//! States: where chunks end, and what is computed again.

use cpp_sched::{BatchId, Prompt, Request, RequestId};

use super::bench::{Bench, FULL, state, window};

#[test]
fn chunks_end_on_the_grain_or_at_the_end() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (4, 12));
    bench.submit(1, 29, 1);
    assert_eq!(bench.fill(), [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 24)], [(1, 24, 29)]]);
    bench.run_to_end();
    // Four tokens are left of the first batch: not for a chunk that would end at 4.
    bench.submit(2, 8, 1).submit(3, 13, 1);
    assert_eq!(bench.fill(), [[(2, 0, 8)], [(3, 0, 8)], [(3, 8, 13)]]);
    bench.run_to_end();
}

#[test]
fn chunks_by_cost_end_on_the_grain_too() {
    use cpp_sched::{Attos, Chunking, CostModel};
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (Attos::from_ns(10), Attos::from_ns(1), Attos::from_ns(1));
    for chunking in [Chunking::Cost { target_ns: 400, align: 6, min: 1 }, Chunking::Adaptive] {
        let mut bench = Bench::new(&[FULL, state(8)], |c| {
            (c.stages, c.max_batch_tokens, c.cost, c.chunking, c.num_blocks) = (4, 64, Some(cost), chunking, 400);
        });
        bench.submit(1, 301, 3);
        let mut ends = 0;
        while bench.0.num_unfinished() > 0 {
            for (_, start, end) in bench.fill().concat() {
                assert!(end % 8 == 0 || end >= 301, "{start}..{end} of {chunking:?}");
                ends += 1;
            }
            bench.complete();
        }
        assert!(ends > 5, "{ends} rows");
        bench.run_to_end();
    }
}

#[test]
fn drafts_that_cannot_ride_keep_nobody_from_going_ahead() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.async_scheduling) = (3, true));
    bench.submit(1, 8, 12);
    assert!(bench.0.set_drafts(RequestId(1), 3).is_applied());
    assert_eq!([bench.step(), bench.step(), bench.step()], [[(1, 0, 8)], [(1, 8, 9)], [(1, 9, 10)]]);
    assert_eq!(bench.0.stats().draft_tokens, 0);
    bench.run_to_end();
}

#[test]
fn after_a_failure_a_state_is_computed_again_from_its_last_grain() {
    let mut bench = Bench::new(&[FULL, state(8), window(4)], |c| (c.stages, c.max_batch_tokens, c.async_scheduling) = (3, 16, true));
    bench.submit(1, 10, 12);
    let mut tokens = Vec::new();
    // The prompt, then three decodes that do not wait for each other.
    for _ in 0..4 {
        bench.fill();
        bench.complete();
    }
    // 13 positions are final; two more decodes are in flight and have written to the state of 8..16.
    assert_eq!((bench.committed(1), bench.0.in_flight(), bench.held(1, 1)), (13, 2, (0, 2)));
    assert_eq!(bench.0.fail(), 2);
    bench.checked();
    assert_eq!((bench.committed(1), bench.0.num_computed_tokens(RequestId(1))), (8, Some(8)));
    // What is known is computed again in one chunk from the state at 8; what was delivered is not delivered again.
    assert_eq!(bench.step(), [(1, 8, 14)]);
    tokens.extend(bench.run());
    let delivered: Vec<u32> = tokens.iter().map(|(_, token)| *token).collect();
    assert_eq!(delivered, (1010..1022).collect::<Vec<_>>());
    assert!(bench.0.is_idle());
}

#[test]
fn after_a_failure_on_the_grain_nothing_is_computed_again() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 40, 1);
    bench.fill();
    bench.complete();
    bench.fill();
    bench.complete();
    bench.0.fail();
    bench.checked();
    assert_eq!(bench.committed(1), 16);
    assert_eq!(bench.step(), [(1, 16, 24)]);
    bench.run_to_end();
}

#[test]
fn a_window_keeps_what_a_state_can_go_back_to() {
    // Without the state, the window of position 15 would begin at 12; but a loss goes back to 8, which reads 5..=8.
    let mut bench = Bench::new(&[FULL, state(8), window(4)], |c| c.max_batch_tokens = 8);
    bench.submit(1, 9, 8);
    for _ in 0..8 {
        bench.step();
        bench.complete();
    }
    assert_eq!((bench.committed(1), bench.held(1, 2).0), (15, 1));
    bench.step();
    bench.complete();
    assert!(bench.0.is_idle());
}

#[test]
fn with_one_batch_lost_a_state_goes_back_to_the_last_grain_before_it() {
    // Batches 0..=3 run 8 positions each; 2 is lost. 0 and 1 end on the grain and stand.
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (4, 8));
    bench.submit(1, 40, 1);
    bench.fill();
    bench.0.lose(BatchId(2)).unwrap();
    bench.checked();
    assert_eq!(bench.0.num_computed_tokens(RequestId(1)), Some(16));
    bench.complete();
    assert_eq!(bench.step(), [(1, 16, 24)]);
    bench.run_to_end();

    // Decodes of positions 10, 11 and 12 in flight; that of 11 is lost, and the state behind 8 with it: that of 10 runs again as well.
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.async_scheduling) = (3, true));
    bench.submit(1, 10, 12);
    bench.fill();
    bench.complete();
    bench.fill();
    bench.complete();
    bench.fill();
    assert_eq!((bench.committed(1), bench.0.in_flight()), (10, 3));
    bench.0.lose(BatchId(3)).unwrap();
    bench.checked();
    assert_eq!((bench.committed(1), bench.0.num_computed_tokens(RequestId(1))), (8, Some(8)));
    // The results of the batches that live come back, and are not taken.
    let delivered: Vec<u32> = bench.run().into_iter().map(|(_, token)| token).collect();
    assert_eq!(delivered, (1010..1022).collect::<Vec<_>>());
    assert!(bench.0.is_idle());
}

#[test]
fn a_session_that_ran_past_its_end_goes_on_from_the_last_grain() {
    for (asynchronous, start) in [(true, 8), (false, 11)] {
        let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.async_scheduling) = (3, asynchronous));
        let mut request = Request::new(RequestId(1), (0..10).collect(), 9);
        (request.session, request.stop_tokens) = (true, vec![1011]);
        bench.take(request);
        bench.run();
        assert_eq!(bench.committed(1), start);
        bench.0.extend(RequestId(1), Prompt::Tokens(vec![5; 3]), 2).unwrap();
        assert_eq!(bench.checked().step(), [(1, start, 15)]);
        bench.run();
        assert!(bench.0.abort(RequestId(1)).is_applied());
        bench.run_to_end();
    }
}

#[test]
fn drafts_do_not_ride_with_a_state() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| c.max_batch_tokens = 32);
    let mut request = Request::new(RequestId(1), (0..10).collect(), 9);
    request.drafts = 3;
    bench.take(request);
    bench.step();
    bench.complete();
    assert_eq!(bench.step(), [(1, 10, 11)]);
    assert_eq!(bench.0.stats().draft_tokens, 0);
    bench.run_to_end();
}
