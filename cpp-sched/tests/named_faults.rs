//! Faults that random worlds have found, each as the few calls that show it.

use cpp_sched::wire::{Encoder, Mirror, MirrorError};
use cpp_sched::{
    Admission, Attos, BatchId, Chunking, Config, CostModel, Event, Fork, Gate, KvGroup, KvGroups, PolicyKind, Request, RequestId, Role,
    Sample, Schedule, Scheduler, Span, WaitReason,
};

fn request(id: u64, tokens: u32, outputs: u32) -> Request {
    Request::new(RequestId(id), (0..tokens).map(|at| at + 100 * id as u32).collect(), outputs)
}

fn schedule(scheduler: &mut Scheduler) -> Option<BatchId> {
    match scheduler.schedule() {
        Schedule::Batch(batch) => Some(batch.id()),
        Schedule::Empty(_) => None,
    }
}

fn complete(scheduler: &mut Scheduler) {
    let batch = scheduler.oldest_in_flight().expect("something is in flight");
    let (id, rows) = (batch.id(), batch.rows().to_vec());
    let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[7] }).collect();
    scheduler.complete(id, &samples).unwrap();
    scheduler.check_invariants().unwrap();
}

/// Runs everything to its end; transfers that are wanted arrive at once.
fn run_out(scheduler: &mut Scheduler) {
    for _ in 0..500 {
        let wanted: Vec<_> =
            scheduler.events().filter_map(|event| if let Event::KvWanted { request, .. } = event { Some(request) } else { None }).collect();
        for request in wanted {
            _ = scheduler.kv_arrived(request);
        }
        while schedule(scheduler).is_some() {}
        scheduler.check_invariants().unwrap();
        if scheduler.is_idle() {
            return;
        }
        if scheduler.in_flight() > 0 {
            complete(scheduler);
        }
    }
    let left: Vec<_> = scheduler.unfinished().into_iter().map(|id| (id, scheduler.why(id))).collect();
    panic!("never done: {left:?}, {:?}", scheduler.kv_usage());
}

#[test]
fn a_fork_without_room_for_a_copy_shares_whole_blocks_alone() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.admission) = (4, 2, Admission::NoEvict);
    config.prefix_caching = true;
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 4, 4)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    // The longest run of the child takes both blocks, so a copy of the first has no place, ever.
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 4)).unwrap();
    assert_eq!(scheduler.block_table(RequestId(2)).map(<[_]>::len), Some(0));
    run_out(&mut scheduler);
}

#[test]
fn a_fork_whose_parent_has_ended_needs_no_copy() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks) = (4, 3);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 3, 5)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 5)).unwrap();
    assert_eq!(scheduler.block_table(RequestId(2)).map(<[_]>::len), Some(1));
    run_out(&mut scheduler);
}

/// Its parent has set aside what it needs, and would lack the block that a copy takes.
#[test]
fn under_no_evict_a_fork_shares_whole_blocks_alone() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.admission) = (4, 6, Admission::NoEvict);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 6, 5)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 5)).unwrap();
    assert_eq!(scheduler.block_table(RequestId(2)), scheduler.block_table(RequestId(1)).map(|table| &table[..1]));
    let batch = scheduler.schedule().batch().unwrap();
    let rows: Vec<_> = batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.num_scheduled_tokens)).collect();
    assert_eq!((rows, batch.copies()), (vec![(1, 6, 1), (2, 4, 2)], &[][..]));
    run_out(&mut scheduler);
}

#[test]
fn a_fork_shares_no_block_that_is_still_being_copied() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.stages) = (3, 19, 3);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 2, 6)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    let mut gated = Fork::new(RequestId(2), 4);
    gated.gates = Gate::Other.into();
    scheduler.fork(RequestId(1), gated).unwrap();
    let before = scheduler.block_table(RequestId(1)).unwrap()[0];
    let batch = scheduler.schedule().batch().unwrap();
    assert_eq!(batch.copies().len(), 1, "the parent writes into a block of its own");
    let own = scheduler.block_table(RequestId(1)).unwrap()[0];
    assert_ne!(own, before);
    scheduler.fork(RequestId(1), Fork::new(RequestId(3), 4)).unwrap();
    assert!(!scheduler.block_table(RequestId(3)).unwrap().contains(&own), "what is in it is lost with the batch");
    scheduler.fail();
    assert!(scheduler.ready(RequestId(2)).is_applied());
    run_out(&mut scheduler);
}

#[test]
fn what_was_lent_is_not_owed_for_ever_after_a_reset_of_all_kv() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_requests) = (2, 3, 1);
    (config.role, config.admission, config.lookahead_tokens) = (Role::Decode, Admission::NoEvict, 1);
    config.kv_lease_ns = Some(5000);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 1, 23)).unwrap();
    scheduler.submit(request(2, 1, 38)).unwrap();
    scheduler.tick(22_305);
    scheduler.reset_all_kv();
    scheduler.submit(request(3, 3, 18)).unwrap();
    schedule(&mut scheduler);
    scheduler.submit(request(4, 3, 7)).unwrap();
    scheduler.tick(90_000);
    scheduler.reset_all_kv();
    run_out(&mut scheduler);
}

#[test]
fn what_was_final_before_a_reset_is_not_published_when_its_grain_ends() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.prefix_caching) = (4, 64, true);
    config.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::State { grain: 12 }]).unwrap();
    config.kv_events = true;
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 9, 10)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    scheduler.reset_prefix_cache();
    for _ in 0..6 {
        schedule(&mut scheduler).unwrap();
        complete(&mut scheduler);
    }
    assert!(scheduler.num_committed_tokens(RequestId(1)).unwrap() > 12);
    assert!(scheduler.kv_events().all(|event| !format!("{event:?}").starts_with("Stored")), "nothing of before the reset is found");
}

#[test]
fn a_gated_request_that_has_lost_everything_keeps_neither_slot_nor_blocks() {
    let (full, cross) = (vec![KvGroup::Full], vec![KvGroup::Full, KvGroup::Cross]);
    for (groups, admission) in
        [(&full, Admission::Lazy), (&cross, Admission::Lazy), (&full, Admission::NoEvict), (&cross, Admission::NoEvict)]
    {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.max_requests, config.admission) = (4, 8, 1, admission);
        config.kv_groups = KvGroups::new(groups).unwrap();
        let mut scheduler = Scheduler::new(config).unwrap();
        let mut first = request(1, 6, 3);
        first.cross_tokens = if groups.len() > 1 { 4 } else { 0 };
        scheduler.submit(first).unwrap();
        schedule(&mut scheduler).unwrap();
        assert!(scheduler.shut(RequestId(1), Gate::Grammar).is_applied());
        scheduler.fail();
        scheduler.submit(request(2, 12, 3)).unwrap();
        assert!(schedule(&mut scheduler).is_some(), "{groups:?} {admission:?}: {:?}", scheduler.why(RequestId(2)));
        assert_eq!(scheduler.why(RequestId(1)), Some(WaitReason::Gated));
        assert!(scheduler.ready(RequestId(1)).is_applied());
        run_out(&mut scheduler);
    }
}

#[test]
fn requests_behind_shut_gates_keep_no_slots_when_fewer_are_allowed() {
    let mut config = Config::default();
    config.max_requests = 3;
    let mut scheduler = Scheduler::new(config).unwrap();
    for id in 1..=3 {
        scheduler.submit(request(id, 8, 3)).unwrap();
    }
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    (1..=3).for_each(|id| assert!(scheduler.shut(RequestId(id), Gate::Other).is_applied()));
    config.max_requests = 1;
    scheduler.reconfigure(config).unwrap();
    scheduler.submit(request(4, 8, 1)).unwrap();
    assert!(schedule(&mut scheduler).is_some(), "{:?}", scheduler.why(RequestId(4)));
    (1..=3).for_each(|id| assert!(scheduler.ready(RequestId(id)).is_applied()));
    run_out(&mut scheduler);
}

#[test]
fn a_budget_lowered_under_a_batch_that_encodes_more_breaks_nothing() {
    let mut config = Config::default();
    config.encoder_budget_tokens = Some(30);
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut images = request(1, 20, 2);
    images.spans = vec![Span::encoded(2, 4, 15, [1; 16]), Span::encoded(8, 4, 15, [2; 16])];
    scheduler.submit(images).unwrap();
    schedule(&mut scheduler).unwrap();
    config.encoder_budget_tokens = Some(20);
    scheduler.reconfigure(config).unwrap();
    scheduler.check_invariants().unwrap();
    scheduler.fail();
    // From now on each batch encodes one of them.
    assert_eq!(scheduler.schedule().batch().map(|batch| batch.rows()[0].end()), Some(8));
    complete(&mut scheduler);
    run_out(&mut scheduler);
}

/// Under `lars` a request's slack is measured against the price of its whole prompt: with new prices both must be new.
#[test]
fn new_prices_price_the_whole_prompt_too() {
    let model = |c1: u64| {
        let mut model = CostModel::default();
        (model.c0, model.c1) = (Attos::from_ns(1), Attos::from_ns(c1));
        model
    };
    let order = |first: CostModel, then: CostModel| {
        let mut config = Config::default();
        (config.policy, config.cost, config.max_batch_tokens, config.max_batch_requests) = (PolicyKind::Lars, Some(first), 64, 1);
        let mut scheduler = Scheduler::new(config).unwrap();
        for (id, tokens, slo) in [(1, 40, 10_000), (2, 10, 4_000)] {
            let mut request = request(id, tokens, 1);
            request.ttft_slo_ns = Some(slo);
            scheduler.submit(request).unwrap();
        }
        scheduler.set_cost_model(then).unwrap();
        let mut late = request(3, 20, 1);
        late.ttft_slo_ns = Some(6_000);
        scheduler.submit(late).unwrap();
        let mut order = Vec::new();
        while schedule(&mut scheduler).is_some() {
            order.push(scheduler.oldest_in_flight().unwrap().rows()[0].request.0);
            complete(&mut scheduler);
        }
        order
    };
    assert_eq!(order(model(1), model(90)), order(model(90), model(90)));
}

/// The third comes first and lacks blocks; its two images do not fit into the encoder cache together. The first, which could have the blocks of the
/// second, needs the encoder as well: nothing that got no row takes it from others.
#[test]
fn who_lacks_blocks_does_not_close_the_encoder_to_others() {
    for (policy, most_wait) in [(PolicyKind::Fcfs, Some(1)), (PolicyKind::Srpf, None)] {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.admission) = (4, 4, Admission::Lazy);
        (config.max_batch_tokens, config.max_prompt_tokens_per_batch) = (16, Some(8));
        (config.policy, config.latency.max_prefill_wait_ns, config.encoder_cache_tokens) = (policy, most_wait, Some(5));
        let mut scheduler = Scheduler::new(config).unwrap();
        let mut first = request(1, 14, 1);
        first.spans = vec![Span::encoded(8, 4, 3, [1; 16])];
        scheduler.submit(first).unwrap();
        scheduler.submit(request(2, 15, 1)).unwrap();
        let mut third = request(3, 6, 1);
        third.spans = vec![Span::encoded(0, 2, 3, [2; 16]), Span::encoded(4, 2, 3, [3; 16])];
        if most_wait.is_some() {
            scheduler.submit(third.clone()).unwrap();
        }
        scheduler.tick(5);
        let batch = scheduler.schedule().batch().unwrap();
        assert_eq!(batch.rows().iter().map(|row| (row.request.0, row.end())).collect::<Vec<_>>(), [(1, 8), (2, 8)]);
        complete(&mut scheduler);
        if most_wait.is_none() {
            scheduler.submit(third).unwrap();
        }
        scheduler.tick(6);
        let batch = scheduler.schedule().batch();
        let row = batch.map(|batch| (batch.rows()[0].request.0, batch.rows()[0].num_computed_tokens));
        assert_eq!(row, Some((1, 8)), "{policy:?}: {:?}", scheduler.why(RequestId(1)));
        run_out(&mut scheduler);
    }
}

/// The second, on time, leaves room in each batch to the first, which is late anyway; until the first takes its blocks as well. It starts anew in
/// the same batch, and what was set aside for it is not its own any more.
#[test]
fn a_prompt_that_shares_a_batch_and_is_preempted_by_it_is_not_placed_there_twice() {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1000);
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.admission) = (4, 6, Admission::Lazy);
    (config.cost, config.chunking) = (Some(cost), Chunking::Cost { target_ns: 1_000_000, align: 1, min: 1 });
    (config.relegation, config.latency.space_sharing, config.max_prompt_tokens_per_batch) = (true, true, Some(4));
    let mut scheduler = Scheduler::new(config).unwrap();
    for (id, slo) in [(1, 1), (2, 60_000_000)] {
        let mut request = request(id, 20, 1);
        request.ttft_slo_ns = Some(slo);
        scheduler.submit(request).unwrap();
    }
    let mut preempted = 0;
    while let Schedule::Batch(batch) = scheduler.schedule() {
        preempted += batch.preempted().len();
        for id in [1, 2] {
            let rows: Vec<_> = batch.rows().iter().filter(|row| row.request == RequestId(id)).collect();
            assert!(rows.len() <= 1, "{id} has several rows in one batch: {rows:?}");
        }
        complete(&mut scheduler);
    }
    assert!(preempted > 0, "the first takes blocks of the second");
    assert!(scheduler.is_idle());
}

/// With what is set aside for the second no chunk of the first fits; and the second, which comes later where blocks are concerned, lacks them.
#[test]
fn an_empty_batch_is_not_kept_for_one_that_shares_it_and_lacks_blocks() {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1000);
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.admission) = (4, 6, Admission::Lazy);
    (config.cost, config.chunking) = (Some(cost), Chunking::Cost { target_ns: 1_000_000, align: 1, min: 4 });
    (config.relegation, config.latency.space_sharing, config.max_batch_tokens) = (true, true, 6);
    let mut scheduler = Scheduler::new(config).unwrap();
    for (id, slo) in [(1, 1), (2, 60_000_000)] {
        let mut request = request(id, 20, 1);
        request.ttft_slo_ns = Some(slo);
        scheduler.submit(request).unwrap();
        for _ in 0..2 {
            schedule(&mut scheduler).unwrap();
            complete(&mut scheduler);
        }
        assert_eq!(scheduler.block_table(RequestId(id)).map(<[_]>::len), Some(3));
    }
    assert!(schedule(&mut scheduler).is_some(), "{:?} {:?}", scheduler.why(RequestId(1)), scheduler.why(RequestId(2)));
    run_out(&mut scheduler);
}

#[test]
fn a_fork_is_admitted_once_its_parent_leaves_it_the_shared_block() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.stages) = (4, 3, 2);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 3, 2)).unwrap();
    scheduler.submit(request(2, 5, 4)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    schedule(&mut scheduler).unwrap();
    // No block is left for a copy of what its parent is writing into.
    scheduler.fork(RequestId(1), Fork::new(RequestId(3), 2)).unwrap();
    assert!(schedule(&mut scheduler).is_none());
    assert_eq!(scheduler.why(RequestId(3)), Some(WaitReason::NoBlocks));
    complete(&mut scheduler);
    assert!(scheduler.events().any(|event| matches!(event, Event::Finished { request: RequestId(1), .. })));
    // Nobody shares its block any more, so there is nothing to copy.
    assert_eq!(scheduler.why(RequestId(3)), Some(WaitReason::Runnable));
    let batch = scheduler.schedule().batch().unwrap();
    assert!(batch.rows().iter().any(|row| row.request == RequestId(3)), "{:?}", batch.rows());
    run_out(&mut scheduler);
    assert_eq!(scheduler.stats().preemptions, 0);
}

#[test]
fn received_kv_is_kept_behind_a_gate_though_its_room_was_lent() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.role, config.admission) = (1, 10, Role::Decode, Admission::NoEvict);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 1, 5)).unwrap();
    assert!(scheduler.kv_failed(RequestId(1)).is_applied());
    scheduler.reset_all_kv();
    let before = scheduler.stats().preemptions;
    scheduler.submit(request(2, 3, 8)).unwrap();
    assert!(schedule(&mut scheduler).is_none(), "all blocks are set aside for the KV on its way");
    assert!(scheduler.kv_arrived(RequestId(2)).is_applied());
    assert!(scheduler.shut(RequestId(2), Gate::Grammar).is_applied());
    assert!(schedule(&mut scheduler).is_none());
    assert_eq!(scheduler.block_table(RequestId(2)).map(<[_]>::len), Some(3), "it keeps what it has received");
    assert!(scheduler.open(RequestId(2), Gate::Grammar).is_applied());
    run_out(&mut scheduler);
    assert_eq!(scheduler.stats().preemptions, before);
}

#[cfg(feature = "serde")]
#[test]
fn a_fork_aborted_in_flight_is_restored() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks) = (1, 64);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(request(1, 3, 12)).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    // It computes the last position of its prompt again, in a block that counts as published, and has no block once it is aborted.
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 5)).unwrap();
    schedule(&mut scheduler).unwrap();
    assert!(scheduler.abort(RequestId(2)).is_applied());
    let mut restored = Scheduler::restore(scheduler.snapshot()).unwrap();
    assert_eq!(restored.snapshot(), scheduler.snapshot());
    run_out(&mut restored);
}

/// A parent is behind a gate and has given up its slot, with all that it will need; its fork, which lacks blocks, gives back the one that they share.
#[test]
fn under_no_evict_a_fork_gives_back_the_block_that_a_parent_without_a_slot_writes_next() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_requests, config.admission) = (8, 3, 1, Admission::NoEvict);
    (config.lookahead_tokens, config.policy) = (1, PolicyKind::Priority);
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut parent = request(3, 4, 5);
    parent.priority = 2;
    scheduler.submit(parent).unwrap();
    schedule(&mut scheduler).unwrap();
    complete(&mut scheduler);
    assert!(scheduler.shut(RequestId(3), Gate::Other).is_applied());
    let mut child = Fork::new(RequestId(1), 12);
    child.priority = -1;
    scheduler.fork(RequestId(3), child).unwrap();
    scheduler.events().for_each(drop);
    schedule(&mut scheduler);
    let preempted: Vec<_> = scheduler.events().filter(|event| matches!(event, Event::Preempted { .. })).collect();
    assert!(!preempted.contains(&Event::Preempted { request: RequestId(3) }), "{preempted:?}");
    assert!(scheduler.open(RequestId(3), Gate::Other).is_applied());
    run_out(&mut scheduler);
}

/// A session stops long before its `max_tokens`: between two inputs nothing is set aside for it, or under `no_evict` others would wait for it for ever.
#[test]
fn a_paused_session_has_nothing_set_aside() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.admission) = (2, 11, Admission::NoEvict);
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut session = request(11, 1, 16);
    (session.session, session.stop_tokens) = (true, vec![7]);
    scheduler.submit(session).unwrap();
    let batch = schedule(&mut scheduler).unwrap();
    scheduler.complete(batch, &[Sample { request: RequestId(11), tokens: &[7] }]).unwrap();
    assert!(scheduler.events().any(|event| matches!(event, Event::Paused { .. })));
    scheduler.submit(request(2, 2, 7)).unwrap();
    assert!(schedule(&mut scheduler).is_some(), "{:?}, {:?}", scheduler.why(RequestId(2)), scheduler.kv_usage());
    scheduler.check_invariants().unwrap();
}

/// Two leaders took over without a batch in between, and a worker missed the second one's resync: both streams began with the same digest, so it took
/// the row of one request for that of another.
#[test]
fn a_worker_that_missed_the_resync_of_a_new_leader_refuses_its_plans() {
    let mut config = Config::default();
    config.num_blocks = 64;
    let mut scheduler = Scheduler::new(config).unwrap();
    for id in 1..=2 {
        scheduler.submit(Request::new(RequestId(id), vec![3; 20], 9)).unwrap();
    }
    let id = scheduler.schedule().batch().expect("a batch").id();
    let tokens = [4];
    scheduler.complete(id, &[1, 2].map(|id| Sample { request: RequestId(id), tokens: &tokens })).unwrap();

    let mut worker = Mirror::new(&config);
    let mut message = Vec::new();
    Encoder::attach(&scheduler).resync(&scheduler, &mut message);
    worker.apply(&message).unwrap();
    assert!(scheduler.abort(RequestId(1)).is_applied());
    let mut leader = Encoder::attach(&scheduler);
    let mut resync = Vec::new();
    leader.resync(&scheduler, &mut resync);

    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("request 2 goes on") };
    let row = batch.rows()[0].request;
    message.clear();
    leader.encode(&batch, &mut message).unwrap();
    assert_eq!(row, RequestId(2));
    assert_eq!(worker.apply(&message).map(drop), Err(MirrorError::Digest));
    worker.apply(&resync).unwrap();
    let told = worker.apply(&message).unwrap().plan().expect("a plan").rows().next().expect("a row").request();
    assert_eq!(told, row);
}

#[test]
fn who_is_urgent_follows_new_prices() {
    let price = |ns| {
        let mut price = CostModel::default();
        price.c1 = Attos::from_ns(ns);
        price
    };
    // Whether the long prompt can still be on time behind the short one depends on what a token costs.
    for (cheaper, first) in [(false, 2), (true, 1)] {
        let mut config = Config::default();
        (config.cost, config.feasibility_guard, config.policy) = (Some(price(1000)), true, PolicyKind::Srpf);
        config.max_batch_tokens = 8;
        let mut scheduler = Scheduler::new(config).unwrap();
        scheduler.submit(request(1, 8, 1)).unwrap();
        let mut long = request(2, 16, 1);
        long.ttft_slo_ns = Some(20_000);
        scheduler.submit(long).unwrap();
        if cheaper {
            scheduler.set_cost_model(price(10)).unwrap();
        }
        scheduler.tick(10_000);
        let batch = scheduler.schedule().batch().expect("work").rows()[0].request;
        assert_eq!(batch, RequestId(first), "cheaper: {cheaper}");
        scheduler.check_invariants().unwrap();
    }
}
