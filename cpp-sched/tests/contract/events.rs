//! Events and statistics, in an engine's terms.

use std::collections::BTreeSet;

use cpp_sched::{
    Admission, Attos, CostModel, Event, FinishReason, Fork, Gate, KvEvent, Request, RequestId, Role, Schedule, Stats, Waiting,
};

use crate::bench::{Bench, common, ends_of, request};

const ONE: RequestId = RequestId(1);

#[test]
fn a_token_comes_before_the_end_that_it_brings_and_each_end_once() {
    let mut bench = Bench::new(|c| c.stages = 2);
    bench.submit(1, 4, 2).submit(2, 4, 1).submit(3, 4, 9);
    bench.fill();
    assert!(bench.abort(3).is_applied());
    assert_eq!(bench.events(), [], "an abort is told when its last batch is back");
    bench.complete();
    assert_eq!(
        bench.events(),
        [
            Event::Token { request: ONE, index: 0, token: 1004 },
            Event::Token { request: RequestId(2), index: 0, token: 1004 },
            Event::Finished { request: RequestId(2), reason: FinishReason::Length },
            Event::Finished { request: RequestId(3), reason: FinishReason::Aborted },
        ]
    );
    assert_eq!(ends_of(&bench.finish()), [(1, FinishReason::Length)]);
    bench.scheduler.submit(request(4, 1000, 1)).unwrap_err();
    let Stats { submitted, finished, aborted, rejected, output_tokens, .. } = bench.stats();
    assert_eq!((submitted, finished, aborted, rejected, output_tokens), (3, 2, 1, 1, 3));
}

#[test]
fn a_router_that_follows_kv_events_knows_what_is_found() {
    let mut bench = Bench::new(|c| (c.num_blocks, c.prefix_caching, c.kv_events, c.max_batch_tokens) = (10, true, true, 16));
    let (mut known, mut most) = (BTreeSet::new(), 0);
    for round in 0..40u32 {
        let id = u64::from(round) + 1;
        // Not the whole of a prompt, or its last block would be there twice under one name.
        let shared = (round % 5 * 3).min(7);
        bench.with(request(id, 8 + round % 9, 2), |r| {
            r.prompt = cpp_sched::Prompt::Tokens((0..8 + round % 9).map(|at| if at < shared { at } else { round * 50 + at }).collect());
        });
        bench.finish();
        if round % 13 == 12 {
            bench.scheduler.reset_prefix_cache();
        }
        bench.follow(&mut known);
        assert_eq!(known.len() as u32, bench.usage().cached, "round {round}: with nobody there, what is found is what is cached");
        most = most.max(known.len());
    }
    assert!(most > 8, "the pool was full, and had to forget");
}

#[test]
fn kv_events_name_a_prefix_and_its_beginning() {
    let mut bench = Bench::new(|c| (c.prefix_caching, c.kv_events) = (true, true));
    bench.take(common(1, 9, 1));
    bench.round();
    let events: Vec<_> = bench.scheduler.kv_events().collect();
    let [KvEvent::Stored { digest, parent: None, .. }, KvEvent::Stored { parent: Some(parent), digest: second, .. }] = events[..] else {
        panic!("two blocks are whole: {events:?}")
    };
    assert_eq!(parent, digest);
    // The same text computed twice is found once, under the same name.
    bench.with(common(2, 9, 1), |r| r.skip_cache_read = true);
    bench.round();
    assert_eq!(bench.scheduler.kv_events().count(), 0);
    bench.with(common(3, 9, 1), |r| r.cache_salt = vec![1]);
    bench.round();
    let salted: Vec<_> = bench.scheduler.kv_events().collect();
    assert!(matches!(salted[..], [KvEvent::Stored { digest: other, .. }, _] if other != digest && other != second));
    bench.scheduler.reset_prefix_cache();
    assert_eq!(bench.scheduler.kv_events().collect::<Vec<_>>(), [KvEvent::Cleared]);
    // Without a listener nothing piles up.
    let mut silent = Bench::new(|c| c.prefix_caching = true);
    silent.take(common(1, 9, 1));
    silent.finish();
    assert_eq!((silent.scheduler.kv_events().count(), silent.usage().cached), (0, 2));
}

#[test]
fn cache_hits_are_counted_once_an_admission_however_often_it_was_tried() {
    let mut bench = Bench::new(|c| (c.num_blocks, c.prefix_caching) = (8, true));
    bench.take(common(1, 8, 1));
    bench.finish();
    bench.submit(2, 16, 9);
    bench.round();
    let before = bench.stats();
    // Six blocks beyond its hit are not there for a while.
    bench.take(common(3, 28, 1));
    for _ in 0..8 {
        assert_eq!(bench.stats().cache_queried_tokens, before.cache_queried_tokens);
        bench.round();
    }
    assert_eq!(bench.round(), [(3, 8, 28)]);
    let after = bench.stats();
    assert_eq!(after.cache_queried_tokens - before.cache_queried_tokens, 28);
    assert_eq!((after.cache_hit_tokens - before.cache_hit_tokens, after.admissions - before.admissions), (8, 1));
}

#[test]
fn hits_after_a_preemption_are_counted_apart() {
    let mut bench = Bench::new(|c| (c.num_blocks, c.prefix_caching) = (8, true));
    bench.take(common(1, 8, 9));
    bench.round();
    assert!(bench.scheduler.shut(ONE, Gate::Other).is_applied());
    bench.with(request(2, 28, 1), |r| r.prompt = Request::with_lengths(r.id, 28, vec![], 1).prompt);
    bench.round();
    assert_eq!((bench.stats().preemptions, bench.stats().preempted_tokens), (1, 8));
    assert!(bench.scheduler.ready(ONE).is_applied());
    let hit = bench.round()[0].1;
    assert_eq!(hit, 4, "the other one took all but one block");
    let stats = bench.stats();
    assert_eq!((stats.cache_queried_tokens, stats.cache_hit_tokens, stats.cache_hit_tokens_resumed), (8, 0, hit.into()));
    assert_eq!(stats.recomputed_tokens, 4, "what the cache has kept is not computed again");
}

#[test]
fn forks_look_nothing_up() {
    let mut bench = Bench::new(|c| c.prefix_caching = true);
    bench.take(common(1, 10, 4));
    bench.round();
    let before = bench.stats();
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 2)).unwrap();
    bench.finish();
    let after = bench.stats();
    assert_eq!((after.cache_queried_tokens, after.cache_hit_tokens), (before.cache_queried_tokens, before.cache_hit_tokens));
    assert_eq!(after.admissions - before.admissions, 1);
}

#[test]
fn recomputed_tokens_are_those_that_were_scheduled_and_given_up() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 30, 2);
    bench.fill();
    bench.complete();
    assert_eq!(bench.stats().recomputed_tokens, 0);
    bench.fail();
    assert_eq!(bench.stats().batches_lost, 2);
    bench.step();
    assert_eq!(bench.stats().recomputed_tokens, 8);
    bench.finish();
    let stats = bench.stats();
    assert_eq!((stats.recomputed_tokens, stats.scheduled_tokens), (16, 31 + 16));
}

#[test]
fn gauges_of_what_is_in_flight() {
    let mut cost = CostModel::default();
    (cost.c0, cost.c1) = (Attos::from_ns(100), Attos::from_ns(3));
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens, c.cost) = (3, 8, Some(cost)));
    bench.submit(1, 20, 1);
    bench.fill();
    let gauges = |bench: &Bench| {
        let stats = bench.stats();
        (stats.in_flight_batches, stats.in_flight_tokens, stats.in_flight_cost_ns)
    };
    assert_eq!(gauges(&bench), (3, 20, 360));
    bench.complete();
    assert_eq!(gauges(&bench), (2, 12, 236));
    bench.fail();
    assert_eq!(gauges(&bench), (0, 0, 0));
}

#[test]
fn each_request_alive_waits_for_one_thing_or_runs() {
    let mut bench = Bench::new(|c| {
        (c.stages, c.num_blocks, c.max_requests, c.admission) = (2, 8, 3, Admission::Lazy);
    });
    let counts = |bench: &Bench| {
        let Stats { running, waiting, waiting_for: w, .. } = bench.stats();
        let Waiting { admission, gates, late_results, transfer_blocks, kv, consumers, input, abort, .. } = w;
        let alive = admission + late_results + transfer_blocks + kv + consumers + input + abort;
        // Gates may be shut on admitted requests.
        assert!(waiting >= alive && waiting <= alive + gates, "{w:?}");
        assert_eq!(bench.scheduler.num_unfinished(), running + waiting);
        (running, admission, gates, late_results, input, abort, w.again)
    };
    bench.submit(1, 8, 9).with(request(2, 8, 9), |r| r.session = true).submit(3, 8, 1).submit(4, 4, 1);
    bench.with(request(5, 4, 1), |r| r.gates = Gate::Grammar.into());
    assert_eq!(counts(&bench), (0, 4, 1, 0, 0, 0, 0));
    bench.step();
    assert_eq!(counts(&bench), (3, 1, 1, 0, 0, 0, 0));
    assert!(bench.abort(3).is_applied());
    assert_eq!(counts(&bench), (2, 1, 1, 0, 0, 1, 0));
    bench.complete();
    assert_eq!(counts(&bench), (2, 1, 1, 0, 0, 0, 0));
    assert!(bench.scheduler.shut(ONE, Gate::Other).is_applied());
    assert_eq!(counts(&bench), (2, 1, 2, 0, 0, 0, 0));
    assert!(bench.scheduler.ready(ONE).is_applied());
    bench.step();
    bench.scheduler.reset_all_kv();
    // Those that were admitted before wait for it again.
    let again = bench.stats().waiting_for;
    assert_eq!((again.again, bench.stats().running), (3, 0));
    assert!(bench.scheduler.ready(RequestId(5)).is_applied());
    bench.run();
    assert_eq!(counts(&bench), (0, 0, 0, 0, 1, 0, 0));
}

#[test]
fn transfers_are_gauged_by_what_they_wait_for() {
    let mut bench = Bench::new(|c| (c.role, c.num_blocks) = (Role::Decode, 3));
    bench.submit(1, 8, 1).submit(2, 8, 1);
    let w = bench.stats().waiting_for;
    assert_eq!((w.kv, w.transfer_blocks, bench.stats().waiting), (1, 1, 2));
    assert!(bench.abort(1).is_applied());
    assert_eq!((bench.stats().waiting_for.abort, bench.stats().waiting_for.kv), (1, 0));
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    assert_eq!((bench.stats().waiting_for.kv, bench.stats().waiting_for.transfer_blocks), (1, 0));

    let mut bench = Bench::new(|c| c.role = Role::Prefill);
    bench.submit(1, 8, 1);
    bench.round();
    assert_eq!((bench.stats().waiting_for.consumers, bench.stats().running), (1, 0));
}

#[test]
fn a_batch_names_who_has_ended_and_who_was_preempted_before_it() {
    let mut bench = Bench::new(|c| (c.num_blocks, c.max_batch_tokens) = (4, 16));
    bench.submit(1, 7, 3).submit(2, 7, 3);
    bench.round();
    bench.round();
    // The first needs a third block; the other one goes.
    let Schedule::Batch(batch) = bench.scheduler.schedule() else { panic!("the first can run") };
    assert_eq!((batch.preempted(), batch.ended().count()), (&[RequestId(2)][..], 0));
}
