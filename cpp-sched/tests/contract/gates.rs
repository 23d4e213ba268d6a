//! Gates: a request waits for something outside, keeps its place, and is in nobody's way.

use cpp_sched::{EmptyReason, Event, Gate, GateSet, Outcome, Prompt, RequestId, Role, WaitReason};

use crate::bench::{Bench, common, request, tokens_of};

const ALL: [Gate; 5] = [Gate::Other, Gate::Grammar, Gate::Kv, Gate::Input, Gate::Adapter];

fn gated(id: u64, len: u32, gates: GateSet) -> cpp_sched::Request {
    let mut request = request(id, len, 3);
    request.gates = gates;
    request
}

#[test]
fn a_driver_sees_who_waits_for_what() {
    let mut bench = Bench::new(|_| {});
    let both = GateSet::from(Gate::Grammar).with(Gate::Adapter);
    bench.take(gated(9, 4, both)).take(gated(3, 4, Gate::Kv.into())).submit(5, 4, 1);
    assert_eq!(bench.scheduler.gated(), [(RequestId(9), both), (RequestId(3), Gate::Kv.into())], "in the order of submission");
    assert_eq!((bench.why(9), bench.why(5)), (Some(WaitReason::Gated), Some(WaitReason::Runnable)));
    let waiting = bench.stats().waiting_for;
    assert_eq!((waiting.gates, waiting.gate_grammar, waiting.gate_adapter, waiting.gate_kv, waiting.gate_other), (2, 1, 1, 1, 0));
    assert_eq!(bench.round(), [(5, 0, 4)]);
    assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
    // The last gate that opens makes it runnable.
    assert!(bench.scheduler.open(RequestId(9), Gate::Grammar).is_applied());
    assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
    assert!(bench.scheduler.open(RequestId(9), Gate::Adapter).is_applied());
    assert_eq!(bench.round(), [(9, 0, 4)]);
    assert!(bench.scheduler.ready(RequestId(3)).is_applied(), "or all at once");
    bench.finish();
    assert_eq!(bench.scheduler.gated(), []);
}

#[test]
fn answers_that_change_nothing_are_told() {
    let mut bench = Bench::new(|_| {});
    bench.submit(1, 4, 3);
    let before = bench.state();
    for gate in ALL {
        assert_eq!(bench.scheduler.open(RequestId(1), gate), Outcome::Already, "it is not shut");
        let answers = [bench.scheduler.open(RequestId(2), gate), bench.scheduler.shut(RequestId(2), gate)];
        assert_eq!(answers, [Outcome::NotAlive; 2], "nobody has this id");
    }
    assert_eq!([1, 2].map(|id| bench.scheduler.ready(RequestId(id))), [Outcome::Already, Outcome::NotAlive]);
    assert_eq!(bench.state(), before);
    assert_eq!([(); 2].map(|()| bench.scheduler.shut(RequestId(1), Gate::Kv)), [Outcome::Applied, Outcome::Already]);
    assert_eq!((bench.scheduler.gates(RequestId(1)), bench.scheduler.gates(RequestId(2))), (Some(Gate::Kv.into()), None));
}

#[test]
fn its_place_in_the_order_is_kept() {
    let mut bench = Bench::new(|c| c.max_batch_tokens = 4);
    bench.take(gated(1, 4, Gate::Other.into())).submit(2, 8, 1).submit(3, 4, 1);
    assert_eq!(bench.round(), [(2, 0, 4)]);
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    assert_eq!(bench.round(), [(1, 0, 4)], "it came first");
    bench.finish();
}

#[test]
fn for_every_kind_others_pass_and_a_gate_shut_on_the_way_keeps_what_is_computed() {
    for gate in ALL {
        let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (2, 8));
        bench.submit(1, 20, 2);
        assert_eq!(bench.step(), [(1, 0, 8)]);
        assert!(bench.scheduler.shut(RequestId(1), gate).is_applied());
        bench.submit(2, 4, 1);
        assert_eq!(bench.step(), [(2, 0, 4)], "nothing more of it is scheduled");
        bench.complete().complete();
        assert_eq!((bench.committed(1), bench.table(1).len()), (8, 2), "what was in flight has come home");
        assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
        assert!(bench.scheduler.open(RequestId(1), gate).is_applied());
        assert_eq!(bench.step(), [(1, 8, 16)]);
        bench.finish();
    }
}

#[test]
fn a_token_in_flight_is_delivered_behind_a_shut_gate() {
    let mut bench = Bench::new(|_| {});
    bench.submit(1, 4, 3);
    bench.step();
    assert!(bench.scheduler.shut(RequestId(1), Gate::Grammar).is_applied());
    bench.complete();
    assert_eq!((bench.tokens(), bench.empty()), (vec![(1, 1004)], EmptyReason::WaitingForExternal));
    assert!(bench.scheduler.open(RequestId(1), Gate::Grammar).is_applied());
    assert_eq!(bench.step(), [(1, 4, 5)]);
}

#[test]
fn it_takes_no_slot_and_no_partial_prefill_from_others() {
    for (slots, partial) in [(1, None), (4, Some(1))] {
        let mut bench = Bench::new(|c| (c.max_batch_tokens, c.max_requests, c.max_partial_prefills) = (4, slots, partial));
        bench.submit(1, 12, 2).submit(2, 8, 2);
        assert_eq!(bench.round(), [(1, 0, 4)]);
        assert!(bench.scheduler.shut(RequestId(1), Gate::Adapter).is_applied());
        assert_eq!(bench.round(), [(2, 0, 4)], "{slots} slots, {partial:?} partial prefills");
        assert!(bench.scheduler.open(RequestId(1), Gate::Adapter).is_applied());
        // It goes on where it was once there is room, and computes nothing twice.
        bench.finish();
        assert_eq!((bench.stats().recomputed_tokens, bench.stats().preemptions), (0, 0));
    }
}

#[test]
fn its_blocks_are_there_for_whoever_needs_them() {
    for in_flight in [false, true] {
        let mut bench = Bench::new(|c| (c.num_blocks, c.max_batch_tokens, c.stages) = (7, 16, 2));
        bench.submit(1, 14, 2);
        bench.round();
        assert!(bench.scheduler.shut(RequestId(1), Gate::Input).is_applied());
        if in_flight {
            bench.submit(3, 4, 1);
            bench.step();
        }
        bench.submit(2, 15, 2);
        assert_eq!(bench.step(), [(2, 0, 15)], "though it came later, and at once");
        assert!(bench.events().contains(&Event::Preempted { request: RequestId(1) }));
        assert!(bench.scheduler.ready(RequestId(1)).is_applied());
        let events = bench.finish();
        assert!(tokens_of(&events).contains(&(1, 1015)), "it starts again, behind its one output");
    }
}

#[test]
fn a_look_up_that_answers_later_counts_nothing_before_it_has_answered() {
    let mut bench = Bench::new(|c| c.prefix_caching = true);
    bench.take(common(1, 9, 1));
    bench.finish();
    let before = bench.stats().cache_queried_tokens;
    bench.with(common(2, 12, 1), |r| r.gates = Gate::Kv.into()).submit(3, 4, 3);
    for _ in 0..3 {
        bench.round();
    }
    assert_eq!(bench.stats().cache_queried_tokens - before, 4, "the other one's alone");
    assert!(bench.scheduler.open(RequestId(2), Gate::Kv).is_applied());
    let hits = bench.stats().cache_hit_tokens;
    assert!(bench.step().contains(&(2, 8, 12)), "what is here is found meanwhile");
    assert_eq!((bench.stats().cache_queried_tokens - before, bench.stats().cache_hit_tokens - hits), (16, 8));
}

#[test]
fn never_two_unconfirmed_tokens_of_a_grammar() {
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (4, true));
    bench.with(request(1, 4, 5), |r| r.constrained = true).submit(2, 4, 5);
    // The other one runs ahead in the same batches.
    assert_eq!(bench.fill(), [vec![(1, 0, 4), (2, 0, 4)], vec![(2, 4, 5)], vec![(2, 5, 6)], vec![(2, 6, 7)]]);
    assert_eq!(bench.why(1), Some(WaitReason::PipelineFull));
    bench.complete();
    assert!(bench.step().contains(&(1, 4, 5)), "with its token the mask can be made");
    for _ in 0..40 {
        let unconfirmed = bench.flight.iter().flat_map(|batch| batch.rows()).filter(|row| row.request == RequestId(1) && row.samples);
        assert!(unconfirmed.count() <= 1);
        if bench.scheduler.in_flight() > 0 {
            bench.complete();
        }
        bench.fill();
    }
    assert!(bench.scheduler.is_idle());
}

#[test]
fn never_two_unconfirmed_tokens_of_a_grammar_with_drafts() {
    // Drafts were checked against the grammar by whoever proposed them; the token behind them is the one unconfirmed.
    let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (3, true));
    bench.with(request(1, 4, 9), |r| (r.constrained, r.drafts) = (true, 2));
    assert_eq!(bench.fill(), [[(1, 0, 4)]]);
    bench.complete();
    assert_eq!(bench.fill(), [[(1, 4, 7)]]);
    bench.complete();
    assert_eq!(bench.fill(), [[(1, 5, 8)]]);
    bench.finish();
}

#[test]
fn a_gate_shut_in_a_pause_holds_the_next_turn() {
    let mut bench = Bench::new(|_| {});
    bench.with(request(1, 4, 1), |r| r.session = true);
    bench.round();
    assert!(bench.scheduler.shut(RequestId(1), Gate::Adapter).is_applied());
    assert_eq!(bench.why(1), Some(WaitReason::SessionPaused));
    assert_eq!((bench.stats().waiting_for.input, bench.stats().waiting_for.gates, bench.stats().waiting_for.gate_adapter), (1, 0, 1));
    bench.scheduler.extend(RequestId(1), Prompt::Tokens(vec![1, 2, 3]), 2).unwrap();
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::WaitingForExternal, Some(WaitReason::Gated)));
    assert_eq!((bench.stats().waiting_for.input, bench.stats().waiting_for.gates, bench.stats().waiting_for.gate_adapter), (0, 1, 1));
    assert!(bench.scheduler.open(RequestId(1), Gate::Adapter).is_applied());
    assert_eq!(bench.step(), [(1, 4, 8)]);
}

#[test]
fn kv_may_arrive_behind_a_shut_gate() {
    let mut bench = Bench::new(|c| c.role = Role::Decode);
    bench.take(gated(1, 8, Gate::Grammar.into()));
    assert_eq!(bench.events(), [Event::KvWanted { request: RequestId(1), start: 0, end: 8 }], "its transfer does not wait");
    assert_eq!(bench.why(1), Some(WaitReason::WaitingForKv));
    assert!(bench.scheduler.kv_arrived(RequestId(1)).is_applied());
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::WaitingForExternal, Some(WaitReason::Gated)));
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    assert_eq!(bench.step(), [(1, 7, 8)]);
}
