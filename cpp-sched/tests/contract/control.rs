//! Control: pauses, drain, new budgets and costs, resets; each takes effect between two batches.

use std::collections::BTreeSet;

use cpp_sched::{
    Admission, Attos, Chunking, Config, ConfigError, CostModel, EmptyReason, Event, Fork, HashKey, KvGroup, KvGroups, Pause, Pipelining,
    PolicyKind, PreemptedOutput, Prompt, RequestId, Role, SubmitError, WaitReason,
};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

const ONE: RequestId = RequestId(1);

fn cost(c0: u64, c1: u64) -> CostModel {
    let mut cost = CostModel::default();
    (cost.c0, cost.c1) = (Attos::from_ns(c0), Attos::from_ns(c1));
    cost
}

// ---- pauses ------------------------------------------------------------------------------------------------------------------

#[test]
fn pause_new_admits_nobody_and_lets_the_admitted_run() {
    let mut bench = Bench::new(|c| c.max_batch_tokens = 8);
    bench.submit(1, 12, 2).submit(2, 4, 1);
    assert_eq!(bench.round(), [(1, 0, 8)]);
    bench.scheduler.pause(Pause::New);
    assert_eq!((bench.scheduler.paused(), bench.why(1), bench.why(2)), (Pause::New, Some(WaitReason::Runnable), Some(WaitReason::Paused)));
    assert_eq!((bench.round(), bench.round()), (vec![(1, 8, 12)], vec![(1, 12, 13)]));
    assert_eq!(bench.empty(), EmptyReason::Paused, "somebody could be admitted, were it not for the pause");
    bench.scheduler.pause(Pause::Off);
    assert_eq!(bench.round(), [(2, 0, 4)]);
    bench.finish();
}

#[test]
fn pause_new_holds_whoever_holds_blocks_without_being_admitted_too() {
    let mut bench = Bench::new(|_| {});
    bench.submit(1, 6, 5);
    bench.round();
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 2)).unwrap();
    bench.with(request(3, 4, 1), |r| r.session = true);
    bench.scheduler.pause(Pause::New);
    assert_eq!(bench.round(), [(1, 6, 7)]);
    bench.scheduler.pause(Pause::Off);
    assert_eq!(bench.step().len(), 3);
    bench.complete();
    bench.run();
    bench.scheduler.pause(Pause::New);
    bench.scheduler.extend(RequestId(3), Prompt::Tokens(vec![1]), 1).unwrap();
    assert_eq!((bench.empty(), bench.why(3)), (EmptyReason::Paused, Some(WaitReason::Paused)));
}

#[test]
fn pause_all_schedules_nothing_and_takes_results() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 20, 2);
    bench.step();
    bench.step();
    bench.scheduler.pause(Pause::All);
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::Paused, Some(WaitReason::Paused)));
    bench.complete().complete();
    assert_eq!((bench.committed(1), bench.empty()), (16, EmptyReason::Paused));
    // Requests still come in, and are still aborted.
    bench.submit(2, 4, 1);
    assert!(bench.abort(2).is_applied());
    bench.scheduler.pause(Pause::Off);
    assert_eq!(bench.step(), [(1, 16, 20)]);
    bench.complete();
    bench.finish();
}

#[test]
fn with_nobody_there_a_paused_scheduler_is_idle() {
    let mut bench = Bench::new(|_| {});
    for pause in [Pause::Off, Pause::New, Pause::All] {
        bench.scheduler.pause(pause);
        assert_eq!((bench.empty(), bench.scheduler.is_idle()), (EmptyReason::Idle, true), "{pause:?}");
    }
    // A full pipeline says so first, and what waits outside does so in a pause as well.
    bench.scheduler.pause(Pause::Off);
    bench.submit(1, 4, 2);
    bench.step();
    bench.scheduler.pause(Pause::All);
    assert_eq!(bench.empty(), EmptyReason::PipelineFull);
    bench.complete();
    assert_eq!(bench.empty(), EmptyReason::Paused);
}

#[test]
fn a_drain_takes_nobody_in_and_lets_all_run_out() {
    let mut bench = Bench::new(|_| {});
    bench.submit(1, 4, 3).submit(2, 4, 2);
    bench.round();
    bench.scheduler.drain(true);
    assert_eq!(bench.scheduler.submit(request(3, 4, 1)), Err(SubmitError::Draining(RequestId(3))));
    assert!(bench.scheduler.fork(ONE, Fork::new(RequestId(4), 1)).is_err(), "a fork is a new request");
    assert_eq!(ends_of(&bench.finish()).len(), 2);
    assert_eq!(bench.stats().rejected, 1);
    bench.scheduler.drain(false);
    bench.submit(3, 4, 1);
    bench.finish();
}

// ---- budgets -----------------------------------------------------------------------------------------------------------------

#[test]
fn new_budgets_hold_from_the_next_batch_on() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (4, 16));
    bench.submit(1, 60, 2).submit(2, 8, 2);
    bench.step();
    let in_flight = bench.last().clone();
    let mut config = *bench.scheduler.config();
    config.max_batch_tokens = 8;
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!(bench.checked().scheduler.oldest_in_flight(), Some(&in_flight), "what is in flight stays as it is");
    assert_eq!(bench.step(), [(1, 16, 24)]);
    config.chunking = Chunking::Tokens { max: Some(3) };
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!(bench.step(), [(1, 24, 27), (2, 0, 3)]);
    config.max_batch_requests = 1;
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!(bench.step(), [(1, 27, 30)]);
    bench.finish();
}

#[test]
fn fewer_slots_preempt_nobody() {
    let mut bench = Bench::new(|_| {});
    for id in 1..=3 {
        bench.submit(id, 4, 2 + id as u32);
    }
    bench.round();
    let mut config = *bench.scheduler.config();
    config.max_requests = 2;
    bench.scheduler.reconfigure(config).unwrap();
    bench.submit(4, 4, 1);
    assert_eq!((bench.round().len(), bench.why(4)), (3, Some(WaitReason::NoSlot)));
    assert_eq!((bench.stats().running, bench.stats().preemptions), (3, 0));
    bench.round();
    bench.round();
    assert!(bench.step().contains(&(4, 0, 4)), "two have ended");
    bench.complete();
    bench.finish();
}

#[test]
fn what_shapes_the_pool_or_what_is_in_flight_cannot_change() {
    type Change = fn(&mut Config);
    let changes: [(&str, Change); 18] = [
        ("block_size", |c| (c.block_size, c.max_model_len) = (8, Some(256))),
        ("num_blocks", |c| (c.num_blocks, c.max_model_len) = (65, Some(256))),
        ("max_model_len", |c| c.max_model_len = Some(9)),
        ("stages", |c| (c.stages, c.max_in_flight) = (3, Some(2))),
        ("max_in_flight", |c| c.max_in_flight = Some(5)),
        ("pipelining", |c| c.pipelining = Pipelining::Request),
        ("policy", |c| c.policy = PolicyKind::Edf),
        ("admission", |c| c.admission = Admission::NoEvict),
        ("prefix_caching", |c| c.prefix_caching = true),
        ("async_scheduling", |c| c.async_scheduling = true),
        ("role", |c| c.role = Role::Decode),
        ("preempted_output", |c| c.preempted_output = PreemptedOutput::Drop),
        ("kv_consumers", |c| c.kv_consumers = 2),
        ("kv_events", |c| c.kv_events = true),
        ("encoder_cache_tokens", |c| c.encoder_cache_tokens = Some(9)),
        ("lookahead_tokens", |c| c.lookahead_tokens = 2),
        ("hash_key", |c| c.hash_key = HashKey([1; 16])),
        ("kv_groups", |c| c.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 4 }]).unwrap()),
    ];
    let mut bench = Bench::new(|c| c.stages = 2);
    bench.submit(1, 6, 3);
    bench.step();
    let before = bench.state();
    for (field, change) in changes {
        let mut config = *bench.scheduler.config();
        change(&mut config);
        assert_eq!(bench.scheduler.reconfigure(config), Err(ConfigError::Fixed { field }));
    }
    let mut config = *bench.scheduler.config();
    config.cost = Some(cost(1, 1));
    assert_eq!(bench.scheduler.reconfigure(config), Err(ConfigError::CostFixed));
    config.max_batch_tokens = 0;
    assert_eq!(bench.scheduler.reconfigure(config), Err(ConfigError::Zero { field: "max_batch_tokens" }));
    assert_eq!(bench.state(), before, "a refused call changes nothing");
}

#[test]
fn a_new_cost_model_prices_the_next_batch_and_not_those_in_flight() {
    let mut bench = Bench::new(|c| {
        (c.stages, c.cost) = (3, Some(cost(5, 10)));
        c.chunking = Chunking::Cost { target_ns: 85, align: 1, min: 1 };
    });
    bench.submit(1, 60, 1);
    assert_eq!((bench.step(), bench.last().cost_ns()), (vec![(1, 0, 8)], 85));
    bench.scheduler.set_cost_model(cost(5, 20)).unwrap();
    assert_eq!(bench.checked().stats().in_flight_cost_ns, 85);
    assert_eq!((bench.step(), bench.last().cost_ns()), (vec![(1, 8, 12)], 85));
    let mut config = *bench.scheduler.config();
    config.cost = Some(cost(65, 1));
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!((bench.step(), bench.last().cost_ns()), (vec![(1, 12, 32)], 85));
    bench.finish();
}

#[test]
fn a_new_cost_model_prices_whole_prompts_too() {
    let mut bench = Bench::new(|c| (c.max_batch_tokens, c.policy, c.cost) = (16, PolicyKind::Lars, Some(cost(0, 1))));
    bench.with(request(1, 16, 1), |r| r.ttft_slo_ns = Some(2000));
    bench.scheduler.set_cost_model(cost(0, 10)).unwrap();
    // Slack over the whole: (2000 - 160) / 160 against (6400 - 320) / 320.
    bench.with(request(2, 32, 1), |r| r.ttft_slo_ns = Some(6400));
    assert_eq!(bench.round(), [(1, 0, 16)]);
    bench.finish();
}

#[test]
fn the_work_of_the_busy_period_is_counted_anew_when_chunking_becomes_adaptive() {
    let mut bench = Bench::new(|c| {
        (c.stages, c.cost, c.max_batch_tokens) = (2, Some(cost(5, 10)), 8);
    });
    bench.submit(1, 40, 1).submit(2, 12, 1).with(request(3, 30, 1), |r| r.gates = cpp_sched::Gate::Other.into());
    bench.step();
    assert_eq!(bench.scheduler.adaptive_rest(), 0, "nobody asks for it");
    let mut config = *bench.scheduler.config();
    config.chunking = Chunking::Adaptive;
    config.adaptive.align = 1;
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!(bench.checked().scheduler.adaptive_rest(), 32 + 12, "what could be scheduled now");
    bench.step();
    assert!(bench.scheduler.adaptive_target() > Attos::ZERO);
    config.chunking = Chunking::default();
    bench.scheduler.reconfigure(config).unwrap();
    assert_eq!(bench.checked().scheduler.adaptive_rest(), 0);
    assert!(bench.scheduler.ready(RequestId(3)).is_applied());
    bench.finish();
}

// ---- resets ------------------------------------------------------------------------------------------------------------------

#[test]
fn a_reset_hides_the_cache_and_preempts_nobody() {
    let mut bench = Bench::new(|c| (c.stages, c.prefix_caching, c.kv_events) = (2, true, true));
    bench.take(common(1, 8, 1));
    bench.finish();
    bench.take(common(2, 12, 4)).submit(4, 8, 1);
    assert_eq!(bench.step(), [(2, 8, 12), (4, 0, 8)]);
    bench.scheduler.reset_prefix_cache();
    let mut known = BTreeSet::new();
    bench.follow(&mut known);
    assert_eq!((known.len(), bench.usage().cached), (0, 0));
    bench.take(common(3, 12, 1));
    assert_eq!(bench.step(), [(3, 0, 12)], "nothing is found, also what a request still holds");
    bench.complete();
    bench.follow(&mut known);
    assert_eq!(known.len(), 0, "a batch from before the reset publishes nothing");
    bench.complete();
    bench.follow(&mut known);
    assert_eq!((known.len(), bench.stats().preemptions), (3, 0));
    assert_eq!(tokens_of(&bench.finish()).len(), 4 + 1 + 1);
}

#[test]
fn a_reset_of_all_kv_computes_everything_anew_and_delivers_no_token_twice() {
    for asynchronous in [false, true] {
        let mut bench = Bench::new(|c| (c.stages, c.prefix_caching, c.async_scheduling) = (3, true, asynchronous));
        bench.take(common(1, 8, 6)).take(common(2, 9, 6)).with(common(3, 4, 1), |r| r.session = true);
        bench.fill();
        bench.complete();
        bench.fill();
        let mut events = bench.events();
        bench.scheduler.reset_all_kv();
        let reset = bench.checked().events();
        assert_eq!(reset.iter().filter(|event| matches!(event, Event::Preempted { .. })).count(), 3);
        assert_eq!((bench.usage().held, bench.usage().cached), (0, 0));
        assert!((1..=3).all(|id| bench.why(id) != Some(WaitReason::WaitingForLateResult)), "old results are dropped");
        let rows = bench.try_step().unwrap_or_default();
        assert!(rows.iter().all(|(_, from, _)| *from == 0), "{rows:?}");
        events.extend(bench.run());
        for (id, outputs) in [(1, 6), (2, 6), (3, 1)] {
            assert_eq!(tokens_of(&events).iter().filter(|(request, _)| *request == id).count(), outputs, "request {id}");
        }
        assert!(bench.abort(3).is_applied());
        bench.finish();
    }
}

#[test]
fn a_reset_of_all_kv_leaves_transfers_alone() {
    let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens) = (Role::Prefill, 8));
    bench.submit(1, 12, 1);
    bench.round();
    bench.scheduler.reset_all_kv();
    bench.checked().round();
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    assert_eq!(bench.stats().preemptions, 0);
    bench.finish();
}
