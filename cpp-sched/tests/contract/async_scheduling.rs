//! Asynchronous scheduling: decodes are scheduled before the token that they continue is known.

use std::collections::BTreeSet;

use cpp_sched::{Admission, EmptyReason, FinishReason, PreemptedOutput, WaitReason};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

fn deep(stages: u32) -> Bench {
    Bench::new(|c| (c.stages, c.async_scheduling) = (stages, true))
}

#[test]
fn decodes_run_ahead_of_their_tokens_as_deep_as_the_pipeline() {
    let mut bench = deep(4);
    bench.submit(1, 5, 10);
    assert_eq!(bench.fill(), [[(1, 0, 5)], [(1, 5, 6)], [(1, 6, 7)], [(1, 7, 8)]]);
    assert_eq!(bench.assumed, 1, "the worker is told whose sample the position holds");
    // Each result makes room for one more; tokens come one by one, in order.
    bench.complete();
    assert_eq!((bench.fill(), bench.tokens()), (vec![vec![(1, 8, 9)]], vec![(1, 1005)]));
    assert_eq!(tokens_of(&bench.finish()), (1006..1015).map(|token| (1, token)).collect::<Vec<_>>());

    let mut without = Bench::new(|c| c.stages = 4);
    without.submit(1, 5, 10);
    assert_eq!((without.fill(), without.empty()), (vec![vec![(1, 0, 5)]], EmptyReason::WaitingForResults));
}

#[test]
fn no_step_lies_surely_past_the_last_output() {
    for (max_tokens, model_len, steps) in [(1, 100, 1), (3, 100, 3), (100, 8, 3), (100, 6, 1)] {
        let mut bench = Bench::new(|c| {
            (c.stages, c.async_scheduling, c.max_model_len) = (6, true, Some(model_len));
        });
        bench.submit(1, 5, max_tokens);
        assert_eq!(bench.fill().len(), steps, "{max_tokens} outputs, {model_len} positions");
        assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::WaitingForResults, Some(WaitReason::WaitingForResult)));
        assert_eq!(tokens_of(&bench.finish()).len(), steps);
        assert_eq!(bench.stats().batches as usize, steps);
    }
}

#[test]
fn what_was_run_past_a_stop_that_was_found_late_is_discarded() {
    let mut bench = deep(4);
    bench.with(request(1, 5, 10), |r| r.stop_tokens = vec![7]);
    bench.fill();
    bench.complete_with(|_| vec![7]);
    assert_eq!(bench.events().len(), 2, "the token, and the end");
    assert_eq!(bench.why(1), None, "its id is free at once");
    assert_eq!((bench.usage().fenced, bench.usage().held), (2, 0), "its blocks are not, while rows in flight have them");
    // The next request under this id is another one: the results of the first do not reach it.
    bench.submit(1, 5, 3);
    assert_eq!(bench.fill(), [[(1, 0, 5)]]);
    bench.complete().complete().complete();
    assert_eq!(bench.events(), []);
    assert_eq!(bench.usage().fenced, 0);
    assert_eq!(tokens_of(&bench.finish()), [(1, 1005), (1, 1006), (1, 1007)]);
}

#[test]
fn only_blocks_of_confirmed_tokens_are_found() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling, c.prefix_caching, c.kv_events) = (4, true, true, true));
    bench.take(common(1, 3, 20));
    assert_eq!(bench.fill(), [[(1, 0, 3)], [(1, 3, 4)], [(1, 4, 5)], [(1, 5, 6)]]);
    let mut known = BTreeSet::new();
    // The first block is scheduled in full; its last token is a sample that is not back.
    bench.follow(&mut known);
    assert_eq!(known.len(), 0);
    bench.complete_with(|_| vec![3]);
    bench.follow(&mut known);
    assert_eq!((known.len(), bench.committed(1)), (0, 3), "the token is known, its KV is still in flight");
    bench.complete();
    bench.follow(&mut known);
    assert_eq!((known.len(), bench.committed(1)), (1, 4));
    // It is what the text says: the same text hits it, another one does not.
    bench.take(common(2, 6, 1));
    bench.with(common(3, 3, 1), |r| r.prompt = cpp_sched::Prompt::Tokens(vec![0, 1, 2, 9, 4, 5]));
    let rows = bench.step();
    assert!(rows.contains(&(2, 4, 6)) && rows.contains(&(3, 0, 6)), "{rows:?}");
}

#[test]
fn a_block_that_was_filled_past_a_stop_is_never_found() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling, c.prefix_caching, c.kv_events) = (4, true, true, true));
    bench.with(common(1, 3, 20), |r| r.stop_tokens = vec![3]);
    assert_eq!(bench.fill().len(), 4);
    bench.complete_with(|_| vec![3]);
    bench.finish();
    let mut known = BTreeSet::new();
    bench.follow(&mut known);
    assert_eq!(known.len(), 0, "the position after the stop token was never confirmed");
    assert_eq!(bench.usage().cached, 0);
}

#[test]
fn a_decode_keeps_its_distance_from_the_batch_that_samples_its_token() {
    let mut bench = Bench::new(|c| {
        (c.stages, c.max_in_flight, c.async_scheduling, c.async_distance) = (2, Some(3), true, 2);
    });
    bench.submit(1, 4, 10);
    assert_eq!(bench.step(), [(1, 0, 4)]);
    // One batch after the other would wait in front of the first stage for its own token.
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::WaitingForResults, Some(WaitReason::WaitingForResult)));
    bench.submit(2, 4, 1);
    assert_eq!(bench.step(), [(2, 0, 4)]);
    assert_eq!(bench.step(), [(1, 4, 5)], "two batches later it may");
    bench.finish();
}

#[test]
fn results_of_a_request_preempted_with_steps_ahead_are_delivered_or_dropped() {
    for output in [PreemptedOutput::Deliver, PreemptedOutput::Drop] {
        let mut bench = Bench::new(|c| {
            (c.stages, c.async_scheduling, c.admission, c.num_blocks) = (3, true, Admission::Lazy, 4);
            c.preempted_output = output;
        });
        bench.submit(1, 7, 6).submit(2, 6, 6);
        // Two samples of the second are in flight when the first needs its block.
        assert_eq!(bench.fill(), [[(1, 0, 7), (2, 0, 6)], [(1, 7, 8), (2, 6, 7)]]);
        let deliver = output == PreemptedOutput::Deliver;
        assert_eq!(bench.why(2), Some(if deliver { WaitReason::WaitingForLateResult } else { WaitReason::NoBlocks }));
        bench.complete().complete();
        let late: Vec<_> = bench.tokens().into_iter().filter(|(id, _)| *id == 2).collect();
        assert_eq!(late, if deliver { vec![(2, 1006), (2, 1007)] } else { vec![] });
        // None comes twice and none is left out, however it went.
        let events = bench.finish();
        let all: Vec<_> = late.into_iter().chain(tokens_of(&events).into_iter().filter(|(id, _)| *id == 2)).collect();
        assert_eq!(all, (1006..1012).map(|token| (2, token)).collect::<Vec<_>>());
        assert_eq!(ends_of(&events).len(), 2);
        assert!(ends_of(&events).iter().all(|(_, reason)| *reason == FinishReason::Length));
        // What was dropped is computed and sampled once more; what was delivered is not sampled again.
        assert_eq!(bench.stats().output_tokens, 12);
    }
}

#[test]
fn chunks_of_prompts_and_steps_ahead_share_the_pipeline() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling, c.max_batch_tokens) = (3, true, 8));
    bench.submit(1, 4, 6).submit(2, 30, 2);
    assert_eq!(bench.fill(), [[(1, 0, 4), (2, 0, 4)], [(1, 4, 5), (2, 4, 11)], [(1, 5, 6), (2, 11, 18)]]);
    let events = bench.finish();
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 1).count(), 6);
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 2).map(|(_, token)| *token).collect::<Vec<_>>(), [1030, 1031]);
}

#[test]
fn a_loss_takes_all_steps_ahead_with_it_and_no_token_twice() {
    let mut bench = deep(3);
    bench.submit(1, 4, 6);
    bench.fill();
    bench.complete();
    bench.fill();
    assert_eq!(bench.tokens(), [(1, 1004)]);
    bench.fail();
    assert_eq!(bench.committed(1), 4);
    assert_eq!(bench.step(), [(1, 4, 5)], "from what is committed, with the token that is known");
    assert_eq!(bench.assumed, 0);
    assert_eq!(tokens_of(&bench.finish()), (1005..1010).map(|token| (1, token)).collect::<Vec<_>>());
    assert_eq!(bench.stats().recomputed_tokens, 3);
}
