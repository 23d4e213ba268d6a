//! Sessions: a request that pauses at its end and goes on with new input, keeping its KV.

use cpp_sched::wire::{Encoder, Mirror, Origin};
use cpp_sched::{
    Attos, Chunking, Config, CostModel, EmptyReason, Event, ExtendError, FinishReason, PolicyKind, Prompt, Request, RequestId, Sample,
    Schedule, Scheduler, Span, WaitReason,
};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

const ONE: RequestId = RequestId(1);

fn session(mut request: Request) -> Request {
    request.session = true;
    request
}

fn input(len: u32) -> Prompt {
    Prompt::Tokens((0..len).map(|at| 50_000 + at).collect())
}

/// A session after its first turn: a prompt of six tokens and two outputs, of which the last has no KV.
fn paused(set: impl FnOnce(&mut Config)) -> Bench {
    let mut bench = Bench::new(set);
    bench.take(session(request(1, 6, 2)));
    bench.run();
    bench
}

#[test]
fn it_keeps_its_kv_and_goes_on_behind_it() {
    let mut bench = Bench::new(|_| {});
    bench.take(session(request(1, 6, 2)));
    let events = bench.run();
    assert_eq!(events.last(), Some(&Event::Paused { request: ONE, reason: FinishReason::Length }));
    assert_eq!((tokens_of(&events).len(), ends_of(&events)), (2, vec![]));
    assert_eq!((bench.committed(1), bench.table(1).len(), bench.why(1)), (7, 2, Some(WaitReason::SessionPaused)));
    let table = bench.table(1);
    bench.scheduler.extend(ONE, input(5), 3).unwrap();
    assert_eq!(bench.checked().round(), [(1, 7, 13)], "its last output and the new input");
    assert_eq!(bench.table(1)[..2], table);
    let events = bench.run();
    let indices: Vec<_> = events.iter().filter_map(|e| if let Event::Token { index, .. } = e { Some(*index) } else { None }).collect();
    assert_eq!(indices, [0, 1, 2], "each turn counts its outputs from 0");
    assert_eq!(bench.stats().recomputed_tokens, 0);
    assert!(bench.abort(1).is_applied());
    bench.finish();
}

#[test]
fn it_may_take_many_turns_by_stop_or_length() {
    let mut bench = Bench::new(|c| c.num_blocks = 200);
    bench.with(session(request(1, 4, 3)), |r| r.stop_tokens = vec![7]);
    let mut known = 4;
    for turn in 0..20 {
        if turn > 0 {
            bench.scheduler.extend(ONE, input(3), 3).unwrap();
            known += 3;
        }
        let stops = turn % 2 == 0;
        let reason = loop {
            bench.step();
            bench.complete_with(|row| vec![if stops { 7 } else { 1000 + row.end() }]);
            known += 1;
            if let Some(Event::Paused { reason, .. }) = bench.events().last() {
                break *reason;
            }
        };
        assert_eq!(reason, if stops { FinishReason::Stop } else { FinishReason::Length });
        assert_eq!(bench.committed(1), known - 1);
    }
    assert!(bench.abort(1).is_applied());
    bench.finish();
}

#[test]
fn paused_it_takes_no_slot_and_its_blocks_are_for_whoever_needs_them() {
    let mut bench = paused(|c| (c.num_blocks, c.max_requests) = (6, 1));
    assert_eq!((bench.stats().running, bench.stats().waiting, bench.stats().waiting_for.input), (0, 1, 1));
    assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
    bench.submit(2, 20, 1);
    assert_eq!(bench.round(), [(2, 0, 20)]);
    assert_eq!(bench.events()[0], Event::Preempted { request: ONE });
    bench.scheduler.extend(ONE, input(2), 2).unwrap();
    assert_eq!(bench.round(), [(1, 0, 10)], "all that it knows is computed again");
    let events = bench.run();
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Paused { .. })).count(), 1);
}

#[test]
fn what_the_cache_kept_of_a_lost_pause_is_found_and_counted_apart() {
    let mut bench = Bench::new(|c| (c.num_blocks, c.prefix_caching) = (6, true));
    bench.take(session(common(1, 8, 1)));
    bench.run();
    let looked_up = bench.stats().cache_queried_tokens;
    bench.with(request(2, 16, 1), |r| r.prompt = Request::with_lengths(r.id, 16, vec![], 1).prompt);
    bench.round();
    assert_eq!(bench.stats().preemptions, 0, "there was room");
    bench.scheduler.extend(ONE, input(2), 1).unwrap();
    assert_eq!(bench.round(), [(1, 8, 11)]);
    assert_eq!(bench.stats().cache_queried_tokens, looked_up, "who holds its blocks looks nothing up");
    bench.with(request(3, 20, 1), |r| r.prompt = Request::with_lengths(r.id, 20, vec![], 1).prompt);
    bench.round();
    assert_eq!(bench.stats().preemptions, 1);
    bench.scheduler.extend(ONE, input(2), 1).unwrap();
    let rows = bench.round();
    let hit = rows[0].1;
    assert_eq!((bench.stats().cache_queried_tokens, bench.stats().cache_hit_tokens), (looked_up, 0));
    assert_eq!(bench.stats().cache_hit_tokens_resumed, hit.into());
}

#[test]
fn what_was_run_past_its_end_is_void() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (4, true));
    bench.with(session(request(1, 6, 9)), |r| r.stop_tokens = vec![7]);
    assert_eq!(bench.fill().len(), 4);
    bench.complete_with(|_| vec![7]);
    assert_eq!(bench.events().last(), Some(&Event::Paused { request: ONE, reason: FinishReason::Stop }));
    assert_eq!((bench.committed(1), bench.scheduler.num_computed_tokens(ONE)), (6, Some(6)));
    // The next turn starts while rows of the last one are still in flight.
    bench.scheduler.extend(ONE, input(3), 2).unwrap();
    assert_eq!(bench.step(), [(1, 6, 10)]);
    bench.complete().complete().complete();
    assert_eq!(bench.events(), [], "results of void rows reach nobody");
    bench.complete();
    assert_eq!(bench.tokens(), [(1, 1010)]);
}

#[test]
fn right_drafts_behind_a_stop_are_no_part_of_the_next_turn() {
    let mut bench = Bench::new(|_| {});
    bench.with(session(request(1, 6, 9)), |r| (r.stop_tokens, r.drafts) = (vec![7], 3));
    bench.round();
    assert_eq!(bench.step(), [(1, 6, 10)]);
    bench.complete_with(|_| vec![5, 7, 8, 9]);
    assert_eq!(bench.committed(1), 9, "up to the stop token, which was a right draft itself");
    bench.scheduler.extend(ONE, input(2), 2).unwrap();
    assert_eq!(bench.round(), [(1, 9, 11)]);
}

#[test]
fn wrong_extensions_change_nothing() {
    let mut bench = paused(|c| (c.max_model_len, c.num_blocks) = (Some(40), 5));
    bench.with(request(2, 3, 1), |r| r.gates = cpp_sched::Gate::Other.into());
    let lengths = Prompt::Lengths { len: 3, block_hashes: vec![] };
    let before = bench.state();
    let mut extend = |id: u64, input: Prompt, outputs: u32| bench.scheduler.extend(RequestId(id), input, outputs).unwrap_err();
    assert_eq!(extend(9, input(1), 1), ExtendError::Unknown(RequestId(9)));
    assert_eq!(extend(2, input(1), 1), ExtendError::NotPaused(RequestId(2)));
    assert_eq!(extend(1, input(0), 1), ExtendError::Empty(ONE));
    assert_eq!(extend(1, input(1), 0), ExtendError::Empty(ONE));
    assert_eq!(extend(1, lengths, 1), ExtendError::OtherPrompt(ONE));
    assert_eq!(extend(1, input(32), 1), ExtendError::TooLong { request: ONE, prompt_tokens: 40, max_model_len: 40 });
    assert_eq!(extend(1, input(12), 2), ExtendError::NeverFits { request: ONE, needed: 6, num_blocks: 5 });
    let misplaced = [Span::atomic(1, 3, [0; 16])];
    assert!(matches!(bench.scheduler.extend_with(ONE, input(3), &misplaced, 1), Err(ExtendError::Span(_))));
    assert_eq!(bench.state(), before);
    bench.scheduler.extend(ONE, input(12), 1).unwrap();
    assert_eq!(bench.checked().scheduler.extend(ONE, input(1), 1), Err(ExtendError::NotPaused(ONE)), "one input at a time");
    bench.step();
    assert!(bench.scheduler.abort(ONE).is_applied());
    assert_eq!(bench.checked().scheduler.extend(ONE, input(1), 1), Err(ExtendError::Ended(ONE)), "no wait brings its Paused event");
}

#[test]
fn its_output_is_cut_at_the_model_length() {
    let mut bench = paused(|c| c.max_model_len = Some(12));
    bench.scheduler.extend(ONE, input(2), 100).unwrap();
    assert_eq!(tokens_of(&bench.run()).len(), 2, "eight tokens and two of input leave two");
    assert_eq!(
        bench.scheduler.extend(ONE, input(1), 1).unwrap_err(),
        ExtendError::TooLong { request: ONE, prompt_tokens: 13, max_model_len: 12 }
    );
}

#[test]
fn a_session_whose_tokens_the_caller_keeps_is_extended_by_length() {
    let mut bench = Bench::new(|_| {});
    bench.take(session(Request::with_lengths(ONE, 6, vec![], 2)));
    bench.run();
    bench.scheduler.extend(ONE, Prompt::Lengths { len: 4, block_hashes: vec![] }, 1).unwrap();
    assert_eq!(bench.round(), [(1, 7, 12)]);
}

#[test]
fn its_place_is_that_of_its_submit_and_its_deadline_counts_from_the_new_input() {
    let mut bench = Bench::new(|c| (c.max_batch_tokens, c.policy) = (8, PolicyKind::Edf));
    bench.with(session(request(1, 4, 1)), |r| r.ttft_slo_ns = Some(1000));
    bench.run();
    bench.scheduler.tick(5000);
    bench.with(request(2, 8, 1), |r| r.ttft_slo_ns = Some(500));
    bench.scheduler.extend(ONE, input(4), 1).unwrap();
    assert_eq!(bench.round(), [(2, 0, 8)], "due at 5500, the session at 6000");
    assert_eq!(bench.round(), [(1, 4, 9)]);

    let mut bench = paused(|c| c.max_batch_tokens = 8);
    bench.submit(2, 16, 1);
    bench.scheduler.extend(ONE, input(4), 1).unwrap();
    assert_eq!(bench.round(), [(1, 7, 12), (2, 0, 3)], "first come, first served");
}

#[test]
fn a_worker_that_joined_in_the_pause_is_told_the_next_turn_as_a_new_epoch() {
    let mut config = Config::default();
    (config.block_size, config.stages) = (4, 2);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(session(request(1, 6, 1))).unwrap();
    let id = scheduler.schedule().batch().unwrap().id();
    scheduler.complete(id, &[Sample { request: ONE, tokens: &[9] }]).unwrap();
    let (mut encoder, mut mirror, mut message) = (Encoder::attach(&scheduler), Mirror::new(&config), Vec::new());
    encoder.resync(&scheduler, &mut message);
    mirror.apply(&message).unwrap();
    scheduler.extend(ONE, input(3), 2).unwrap();
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("a turn is due") };
    message.clear();
    encoder.encode(&batch, &mut message).unwrap();
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    let row = plan.row(0).unwrap();
    assert_eq!((row.origin(), row.num_computed_tokens(), row.end(), row.prompt_len()), (Origin::Extended, 6, 10, 10));
    assert_eq!(row.blocks(), batch.blocks(&batch.rows()[0]));
}

#[test]
fn a_failure_in_a_later_turn_takes_back_no_earlier_one() {
    let mut bench = paused(|c| (c.stages, c.max_batch_tokens) = (3, 4));
    bench.scheduler.extend(ONE, input(9), 2).unwrap();
    assert_eq!(bench.fill(), [[(1, 7, 11)], [(1, 11, 15)], [(1, 15, 17)]]);
    bench.complete();
    bench.fail();
    assert_eq!(bench.committed(1), 11);
    assert_eq!(tokens_of(&bench.run()), [(1, 1017), (1, 1018)]);
}

#[test]
fn batches_are_cut_for_the_first_token_of_its_next_turn_too() {
    let mut cost = CostModel::default();
    (cost.c0, cost.c1) = (Attos::from_ns(10), Attos::from_ns(100));
    for slo in [None, Some(20_000)] {
        let mut bench = Bench::new(|c| {
            (c.block_size, c.num_blocks, c.stages, c.max_batch_tokens) = (64, 2000, 4, 100_000);
            (c.cost, c.chunking, c.adaptive.align) = (Some(cost), Chunking::Adaptive, 1);
        });
        bench.with(session(Request::with_lengths(ONE, 4, vec![], 1)), |r| r.ttft_slo_ns = slo);
        bench.run();
        bench.scheduler.extend(ONE, Prompt::Lengths { len: 100_000, block_hashes: vec![] }, 1).unwrap();
        bench.step();
        // A half of its target, over four stages and one more: 2000 ns.
        assert_eq!(bench.last().cost_ns() <= 2000, slo.is_some(), "{} ns", bench.last().cost_ns());
    }
}
