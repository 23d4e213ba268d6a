//! Speculative decoding: drafts are verified in the batch that they ride in.

use std::collections::BTreeSet;

use cpp_sched::{Admission, Attos, Chunking, CostModel, EmptyReason, FinishReason, Prompt, RequestId, Row, RowKind, WaitReason};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

/// So many drafts are right, as far as there are as many.
fn right(accepted: u32) -> impl Fn(&Row) -> Vec<u32> {
    move |row| {
        let first = 1000 + row.end() - row.num_draft_tokens;
        (first..=first + accepted.min(row.num_draft_tokens)).collect()
    }
}

/// A request after its first token.
fn decoding(mut bench: Bench, id: u64, len: u32, max_tokens: u32, drafts: u32) -> Bench {
    bench.with(request(id, len, max_tokens), |r| r.drafts = drafts);
    bench.round();
    bench.events();
    bench
}

#[test]
fn their_number_may_change_from_step_to_step() {
    let mut bench = decoding(Bench::new(|_| {}), 1, 4, 30, 2);
    let mut at = 4;
    for drafts in [2, 0, 5, 1] {
        assert!(bench.scheduler.set_drafts(RequestId(1), drafts).is_applied());
        assert_eq!(bench.step(), [(1, at, at + 1 + drafts)]);
        assert_eq!((bench.last().rows()[0].num_draft_tokens, bench.last().rows()[0].kind), (drafts, RowKind::Decode));
        bench.complete_with(right(drafts));
        at += 1 + drafts;
    }
    assert!(!bench.scheduler.set_drafts(RequestId(2), 1).is_applied(), "nobody has this id");
    bench.finish();
}

#[test]
fn rejected_ones_are_taken_off_the_rows_own_snapshot() {
    for accepted in 0..=3 {
        let mut bench = decoding(Bench::new(|_| {}), 1, 4, 30, 3);
        assert_eq!(bench.step(), [(1, 4, 8)]);
        assert_eq!(bench.scheduler.num_computed_tokens(RequestId(1)), Some(8), "all count as computed while they are in flight");
        bench.complete_with(right(accepted));
        assert_eq!(bench.committed(1), 5 + accepted);
        assert_eq!(bench.step(), [(1, 5 + accepted, 9 + accepted)], "the next row overwrites what was rejected");
        assert_eq!(bench.tokens().len() as u32, 1 + accepted);
        assert_eq!((bench.stats().draft_tokens, bench.stats().accepted_draft_tokens), (6, accepted.into()));
    }
}

#[test]
fn right_drafts_behind_the_end_are_not_delivered() {
    let mut bench = Bench::new(|_| {});
    bench.with(request(1, 4, 30), |r| (r.stop_tokens, r.drafts) = (vec![77], 3));
    bench.round();
    bench.step();
    bench.events();
    bench.complete_with(|_| vec![5, 77, 6, 7]);
    let events = bench.events();
    assert_eq!((tokens_of(&events), ends_of(&events)), (vec![(1, 5), (1, 77)], vec![(1, FinishReason::Stop)]));
    bench.assert_no_leak();
    // By length nothing is proposed past the last output in the first place.
    let mut bench = decoding(Bench::new(|_| {}), 1, 4, 3, 9);
    assert_eq!(bench.step(), [(1, 4, 6)], "two outputs are left: one draft and the token behind it");
    bench.complete_with(right(1));
    assert_eq!(ends_of(&bench.events()), [(1, FinishReason::Length)]);
}

#[test]
fn a_block_with_a_rejected_draft_in_it_is_never_found() {
    for (accepted, stored) in [(0, 1), (2, 1), (3, 2)] {
        let mut bench = Bench::new(|c| (c.prefix_caching, c.kv_events) = (true, true));
        bench.with(common(1, 4, 30), |r| r.drafts = 3);
        bench.round();
        assert_eq!(bench.step(), [(1, 4, 8)], "the second block is full while the drafts are in it");
        bench.complete_with(right(accepted));
        let mut known = BTreeSet::new();
        bench.follow(&mut known);
        assert_eq!(known.len(), stored, "{accepted} were right");
    }
}

#[test]
fn budget_and_model_length_cut_them() {
    let mut bench = Bench::new(|c| c.max_batch_tokens = 8);
    bench.with(request(1, 4, 30), |r| r.drafts = 4).with(request(2, 4, 30), |r| r.drafts = 4);
    bench.round();
    assert_eq!(bench.step(), [(1, 4, 9), (2, 4, 7)], "what is left is two drafts for the second");
    bench.complete();
    let mut bench = decoding(Bench::new(|c| c.max_model_len = Some(8)), 1, 4, 30, 9);
    assert_eq!(bench.step(), [(1, 4, 7)], "the last output has no position to be run");
}

#[test]
fn a_cost_target_cuts_them() {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(10);
    let mut bench = Bench::new(|c| {
        c.cost = Some(cost);
        c.chunking = Chunking::Cost { target_ns: 40, align: 1, min: 1 };
    });
    bench.with(request(1, 4, 30), |r| r.drafts = 9);
    bench.round();
    bench.step();
    assert_eq!((bench.last().rows()[0].num_draft_tokens, bench.last().cost_ns()), (3, 40));
}

#[test]
fn nobody_is_preempted_for_them() {
    // Three blocks: the first has two of them, the second the third.
    let mut bench = Bench::new(|c| c.num_blocks = 3);
    bench.with(request(1, 6, 6), |r| r.drafts = 5).submit(2, 3, 2);
    assert_eq!(bench.round(), [(1, 0, 6), (2, 0, 3)]);
    assert_eq!(bench.step(), [(1, 6, 8), (2, 3, 4)], "as many as the block has room for");
    assert_eq!(bench.stats().preemptions, 0);
    bench.complete();
    bench.finish();
}

#[test]
fn a_drafter_finds_blocks_behind_the_decode_that_it_follows() {
    let mut bench = decoding(Bench::new(|c| c.lookahead_tokens = 6), 1, 4, 30, 0);
    assert_eq!(bench.step(), [(1, 4, 5)]);
    assert_eq!(bench.table(1).len(), 3, "positions up to 11, of which the batch runs one");
    bench.complete();
    // No further than the longest run, and no block is left behind.
    let mut bench = decoding(Bench::new(|c| (c.lookahead_tokens, c.max_model_len) = (6, Some(7))), 1, 4, 30, 0);
    bench.step();
    assert_eq!(bench.table(1).len(), 2);
    bench.complete();
    bench.finish();
}

#[test]
fn a_drafter_finds_blocks_behind_a_first_row_of_one_token_too() {
    let mut bench = Bench::new(|c| (c.lookahead_tokens, c.num_blocks, c.prefix_caching) = (4, 8, true));
    bench.submit(1, 4, 9);
    while bench.committed(1) < 8 {
        bench.round();
    }
    // It waits for something outside, and loses its blocks to somebody who needs them; the whole ones stay in the cache.
    assert!(bench.scheduler.shut(RequestId(1), cpp_sched::Gate::Other).is_applied());
    bench.with(request(2, 24, 1), |r| r.prompt = cpp_sched::Request::with_lengths(r.id, 24, vec![], 1).prompt);
    assert_eq!(bench.round(), [(2, 0, 24)]);
    assert_eq!((bench.stats().preemptions, bench.why(2)), (1, None));
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    assert_eq!(bench.step(), [(1, 8, 9)], "all but one of its tokens are found");
    assert_eq!((bench.last().rows()[0].kind, bench.table(1).len()), (RowKind::Decode, 4), "with room for four positions behind it");
    bench.complete();
    bench.finish();
}

#[test]
fn they_ride_beside_the_chunks_of_other_prompts() {
    let mut bench = decoding(Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 10)), 1, 4, 12, 3);
    bench.submit(2, 40, 1);
    // One row of the decode is in flight at a time; the prompt fills the rest of all batches.
    assert_eq!(bench.fill(), [vec![(1, 4, 8), (2, 0, 6)], vec![(2, 6, 16)], vec![(2, 16, 26)]]);
    bench.complete_with(right(1));
    assert_eq!(bench.fill(), [[(1, 6, 10), (2, 26, 32)]]);
    bench.finish();
}

#[test]
fn a_victim_keeps_the_drafts_that_were_right() {
    let mut bench = Bench::new(|c| (c.stages, c.num_blocks, c.admission) = (2, 4, Admission::Lazy));
    bench.submit(1, 8, 6).with(request(2, 5, 8), |r| r.drafts = 2);
    assert_eq!(bench.round(), [(1, 0, 8), (2, 0, 5)]);
    bench.events();
    // The second one's row with drafts is in flight when the first takes its blocks.
    assert!(bench.scheduler.shut(RequestId(1), cpp_sched::Gate::Other).is_applied());
    assert_eq!(bench.step(), [(2, 5, 8)]);
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    bench.empty();
    assert_eq!(bench.stats().preemptions, 1);
    bench.complete_with(right(1));
    assert_eq!(bench.tokens(), [(2, 1006), (2, 1007)], "late, but one draft was right");
    let events = bench.finish();
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 2).count(), 5);
}

#[test]
fn with_async_scheduling_a_request_with_drafts_waits_for_its_token_and_others_go_ahead() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (3, true));
    bench.with(request(1, 4, 30), |r| r.drafts = 3).submit(2, 4, 30);
    assert_eq!(bench.fill(), [vec![(1, 0, 4), (2, 0, 4)], vec![(2, 4, 5)], vec![(2, 5, 6)]]);
    bench.complete();
    assert_eq!(bench.fill(), [[(2, 6, 7), (1, 4, 8)]], "its token is known: three drafts ride behind it");
    bench.complete();
    assert_eq!(bench.fill(), [[(2, 7, 8)]], "how far it will be is not known before its drafts are verified");
    bench.complete();
    assert_eq!(bench.fill(), [[(2, 8, 9)]]);
    bench.complete_with(right(2));
    assert_eq!(bench.fill(), [[(2, 9, 10), (1, 7, 11)]]);
    let events = bench.finish();
    assert_eq!(tokens_of(&events).iter().filter(|(id, _)| *id == 1).count(), 30);
}

#[test]
fn with_async_scheduling_they_ride_whatever_the_distance() {
    for distance in 1..=4 {
        let mut bench = Bench::new(|c| (c.stages, c.async_scheduling, c.async_distance) = (4, true, distance));
        bench.with(request(1, 4, 13), |r| r.drafts = 3);
        assert_eq!(bench.fill(), [[(1, 0, 4)]]);
        bench.complete();
        for at in [4, 8, 12] {
            assert_eq!((bench.fill(), bench.empty()), (vec![vec![(1, at, at + 4)]], EmptyReason::WaitingForResults), "distance {distance}");
            bench.complete_with(right(3));
        }
        assert_eq!((bench.stats().draft_tokens, bench.tokens().len()), (9, 13));
        bench.assert_no_leak();
    }
}

#[test]
fn with_async_scheduling_a_request_goes_ahead_while_it_has_none() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (4, true));
    bench.submit(1, 4, 30);
    assert_eq!(bench.fill(), [[(1, 0, 4)], [(1, 4, 5)], [(1, 5, 6)], [(1, 6, 7)]]);
    bench.complete();
    // It stands in line for the next one when it gets a drafter.
    assert!(bench.scheduler.set_drafts(RequestId(1), 2).is_applied());
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::WaitingForResults, Some(WaitReason::WaitingForResult)));
    assert!(bench.scheduler.set_drafts(RequestId(1), 0).is_applied());
    assert_eq!(bench.step(), [(1, 7, 8)]);
    assert!(bench.scheduler.set_drafts(RequestId(1), 2).is_applied());
    bench.complete().complete().complete();
    assert_eq!(bench.empty(), EmptyReason::WaitingForResults, "one of its steps ahead is still in flight");
    bench.complete();
    assert_eq!(bench.fill(), [[(1, 8, 11)]]);
    // Without a drafter it waits for what is in flight, and goes ahead after that.
    assert!(bench.scheduler.set_drafts(RequestId(1), 0).is_applied());
    assert_eq!(bench.empty(), EmptyReason::WaitingForResults);
    bench.complete_with(right(1));
    assert_eq!(bench.fill(), [[(1, 10, 11)], [(1, 11, 12)], [(1, 12, 13)], [(1, 13, 14)]]);
    bench.finish();
}

#[test]
fn a_new_number_of_them_costs_a_decode_with_a_known_token_no_place() {
    for asynchronous in [false, true] {
        let mut bench = Bench::new(|c| (c.async_scheduling, c.max_batch_tokens) = (asynchronous, 8));
        bench.submit(1, 4, 30).submit(2, 4, 30);
        bench.round();
        assert!(bench.scheduler.set_drafts(RequestId(1), 3).is_applied());
        assert_eq!(bench.step(), [(1, 4, 8), (2, 4, 5)]);
        bench.complete();
        bench.finish();
    }
}

#[test]
fn steps_ahead_that_are_lost_come_back_with_drafts_behind_a_known_token() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (3, true));
    bench.submit(1, 4, 12);
    bench.fill();
    bench.complete();
    assert!(bench.scheduler.set_drafts(RequestId(1), 3).is_applied());
    bench.fail();
    assert_eq!(bench.fill(), [[(1, 4, 8)]]);
    bench.complete_with(right(3));
    bench.finish();
}

#[test]
fn a_lost_batch_leaves_none_of_them_behind() {
    let mut bench = decoding(Bench::new(|c| c.stages = 2), 1, 4, 12, 3);
    bench.step();
    bench.fail();
    assert_eq!((bench.committed(1), bench.scheduler.num_computed_tokens(RequestId(1))), (4, Some(4)));
    assert_eq!(bench.step(), [(1, 4, 8)]);
    bench.complete_with(right(3));
    assert_eq!(bench.tokens().len(), 4);
    bench.finish();
}

#[test]
fn tokens_that_the_caller_keeps_are_drafted_all_the_same() {
    let mut bench = Bench::new(|_| {});
    bench.with(request(1, 6, 9), |r| {
        r.prompt = Prompt::Lengths { len: 6, block_hashes: vec![] };
        r.drafts = 2;
    });
    bench.round();
    assert_eq!(bench.step(), [(1, 6, 9)]);
    bench.complete_with(right(1));
    assert_eq!(bench.step(), [(1, 8, 11)]);
    bench.complete();
    bench.finish();
}
