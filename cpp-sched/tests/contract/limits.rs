//! Limits of a batch and of the admitted requests, and who may pass whom because of them.

use cpp_sched::{Admission, Attos, Balance, Chunking, Config, CostModel, EmptyReason, Gate, PolicyKind, Request, RequestId, WaitReason};

use crate::bench::{Bench, request};

fn with_adapter(id: u64, len: u32, adapter: u32) -> Request {
    let mut request = request(id, len, 2);
    request.adapter = Some(adapter);
    request
}

#[test]
fn an_adapter_too_many_waits_for_the_next_batch_and_blocks_nobody_be_it_admitted_or_not() {
    let mut bench = Bench::new(|c| (c.max_adapters_per_batch, c.max_batch_tokens) = (Some(1), 16));
    // The head is not admitted yet; those behind it are.
    bench.take(with_adapter(1, 20, 7)).take(with_adapter(2, 4, 8)).take(with_adapter(3, 4, 7)).submit(4, 4, 1);
    assert_eq!(bench.round(), [(1, 0, 16)]);
    assert_eq!(bench.round(), [(1, 16, 20), (3, 0, 4), (4, 0, 4)]);
    assert_eq!(bench.why(2), Some(WaitReason::Runnable), "nothing but the order and the batch stands before it");
    bench.finish();
}

#[test]
fn who_was_passed_for_its_adapter_is_not_passed_for_ever() {
    let mut bench = Bench::new(|c| (c.max_adapters_per_batch, c.max_batch_tokens, c.max_prompt_wait) = (Some(1), 8, 3));
    bench.take(with_adapter(1, 4, 7));
    bench.round();
    bench.with(with_adapter(2, 4, 8), |r| r.max_tokens = 1);
    // The first one decodes in each batch with its adapter, and has far to go.
    let rounds = (0..40).position(|_| bench.round().iter().any(|(id, ..)| *id == 2));
    assert!(rounds.is_some_and(|rounds| rounds <= 4), "{rounds:?}");
}

#[test]
fn one_prompt_takes_no_more_of_a_batch_than_its_share() {
    let mut bench = Bench::new(|c| (c.max_batch_tokens, c.max_prompt_tokens_per_batch) = (16, Some(6)));
    bench.submit(1, 20, 1).submit(2, 20, 1).submit(3, 20, 1);
    assert_eq!(bench.step(), [(1, 0, 6), (2, 0, 6), (3, 0, 4)]);
    bench.complete();
    bench.finish();
}

#[test]
fn no_more_prompts_are_half_done_than_allowed() {
    let mut bench = Bench::new(|c| (c.max_batch_tokens, c.max_prompt_tokens_per_batch, c.max_partial_prefills) = (16, Some(4), Some(2)));
    bench.submit(1, 8, 2).submit(2, 12, 2).submit(3, 8, 2);
    assert_eq!(bench.round(), [(1, 0, 4), (2, 0, 4)]);
    assert_eq!(bench.why(3), Some(WaitReason::PartialPrefillLimit));
    assert_eq!(bench.round(), [(1, 4, 8), (2, 4, 8), (3, 0, 4)], "the first one's prompt is done with this batch");
    // One whose prompt fits into one batch is never half done, and still takes its turn.
    bench.submit(4, 2, 1);
    assert_eq!(bench.round(), [(1, 8, 9), (2, 8, 12), (3, 4, 8), (4, 0, 2)]);
    bench.finish();
}

#[test]
fn a_bounded_number_of_others_passes_a_head_that_lacks_blocks() {
    for bypass in 0..3 {
        let mut bench = Bench::new(|c| (c.num_blocks, c.max_bypass) = (8, bypass));
        bench.submit(1, 20, 3);
        bench.round();
        // Two heads that lack blocks, and one that does not.
        bench.submit(2, 16, 1).submit(3, 16, 1).submit(4, 4, 1);
        let passed = bench.step().iter().any(|(id, ..)| *id == 4);
        assert_eq!(passed, bypass == 2, "a bypass of {bypass}");
        assert_eq!(bench.stats().preemptions, 0);
        bench.complete();
        bench.finish();
    }
}

#[test]
fn slots_and_rows_are_limits_of_their_own() {
    let mut bench = Bench::new(|c| (c.stages, c.max_requests, c.max_batch_requests) = (2, 3, 2));
    for id in 1..=4 {
        bench.submit(id, 4, 2);
    }
    assert_eq!(bench.step(), [(1, 0, 4), (2, 0, 4)]);
    assert_eq!(bench.step(), [(3, 0, 4)]);
    bench.complete();
    assert_eq!(bench.why(4), Some(WaitReason::NoSlot));
    bench.complete();
    assert_eq!(bench.step(), [(1, 4, 5), (2, 4, 5)]);
    bench.complete();
    assert_eq!(bench.step(), [(3, 4, 5), (4, 0, 4)]);
    bench.complete();
    bench.finish();
}

/// The first request knows nine tokens, of which the cache has eight; it is not admitted, and two rounds have passed.
fn one_token_behind_a_hit(set: impl FnOnce(&mut Config)) -> Bench {
    let mut bench = Bench::new(|c| {
        (c.num_blocks, c.prefix_caching, c.policy, c.lookahead_tokens) = (8, true, PolicyKind::Priority, 1);
        set(c);
    });
    bench.submit(1, 4, 9);
    while bench.committed(1) < 8 {
        bench.round();
    }
    assert!(bench.scheduler.shut(RequestId(1), Gate::Other).is_applied());
    bench.with(Request::with_lengths(RequestId(2), 24, vec![], 1), |_| {});
    while bench.why(2).is_some() {
        bench.round();
    }
    assert_eq!((bench.stats().preemptions, bench.stats().running), (1, 0));
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    bench
}

#[test]
fn a_first_chunk_of_one_token_behind_the_prompt_costs_what_a_decode_costs() {
    let mut cost = CostModel::default();
    (cost.c1, cost.c3) = (Attos::from_ns(1), Attos::from_ns(1));
    let chunked = |target_ns| Chunking::Cost { target_ns, align: 1, min: 1 };
    for (target, together) in [(24, true), (23, false)] {
        let mut bench = one_token_behind_a_hit(|c| (c.cost, c.chunking) = (Some(cost), chunked(200)));
        let mut config = *bench.scheduler.config();
        config.chunking = chunked(target);
        bench.scheduler.reconfigure(config).unwrap();
        // An urgent prompt of 15 tokens costs 15; the decode costs 1 for its token and 8 for its context.
        bench.with(request(3, 15, 1), |r| r.priority = -1);
        let rows = bench.step();
        assert_eq!(rows, if together { vec![(3, 0, 15), (1, 8, 9)] } else { vec![(3, 0, 15)] }, "target {target}");
        assert_eq!(bench.last().cost_ns(), if together { 24 } else { 15 });
        bench.complete();
        bench.finish();
    }
}

#[test]
fn a_first_row_of_one_token_is_not_admitted_without_room_for_the_drafter_behind_it() {
    let mut bench = one_token_behind_a_hit(|c| (c.stages, c.lookahead_tokens) = (2, 4));
    // Of its four blocks two are found, and one is left.
    bench.with(request(3, 17, 2), |r| r.priority = -1);
    assert_eq!(bench.step(), [(3, 0, 17)]);
    assert_eq!((bench.usage().free, bench.usage().cached), (1, 2));
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::NoBlocks, Some(WaitReason::NoBlocks)));
    assert_eq!(bench.stats().running, 1);
    bench.complete();
    bench.finish();
}

#[test]
fn admission_sets_aside_what_it_says() {
    for (admission, admitted) in [(Admission::Lazy, 3), (Admission::ReservePrompt, 2), (Admission::NoEvict, 1)] {
        let mut bench = Bench::new(|c| (c.num_blocks, c.max_batch_tokens, c.admission) = (8, 12, admission));
        // Prompts of three blocks, longest runs of six.
        for id in 1..=3 {
            bench.submit(id, 12, 13);
        }
        let mut config = *bench.scheduler.config();
        config.max_prompt_tokens_per_batch = Some(4);
        bench.scheduler.reconfigure(config).unwrap();
        bench.round();
        assert_eq!(bench.stats().running, admitted, "{admission:?}");
        bench.finish();
        assert_eq!(bench.stats().preemptions > 0, admission != Admission::NoEvict, "{admission:?}");
    }
}

#[test]
fn decodes_share_the_batches_in_flight_by_what_they_cost() {
    for cost in [None, Some(Attos::from_ns(1))] {
        let mut bench = Bench::new(|c| {
            (c.stages, c.balance) = (2, Balance::Cost);
            c.cost = cost.map(|per_position| {
                let mut model = CostModel::default();
                model.c3 = per_position;
                model
            });
        });
        bench.submit(1, 40, 6).submit(2, 4, 6).submit(3, 4, 6).submit(4, 4, 6);
        assert_eq!(bench.round().len(), 4, "the prompts");
        // Contexts of 40 and three of 4: half of their sum is less than the first one alone.
        assert_eq!(bench.step(), [(1, 40, 41)]);
        assert_eq!(bench.step(), [(2, 4, 5), (3, 4, 5), (4, 4, 5)]);
        bench.complete();
        bench.complete();
        bench.finish();
    }
}
