//! An abort in every state: no token after it, one end, no block left behind, and the id may be used again.

use cpp_sched::{Admission, Event, FinishReason, Fork, Gate, Outcome, Prompt, Request, RequestId, Role};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

const ONE: RequestId = RequestId(1);

type World = (&'static str, fn() -> Bench);

fn session(mut request: Request) -> Request {
    request.session = true;
    request
}

/// Worlds with a request 1 in each state that there is, and a request 9 beside it where that makes a difference.
fn unified() -> Vec<World> {
    vec![
        ("waiting", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 6, 3);
            bench
        }),
        ("waiting for blocks", || {
            let mut bench = Bench::new(|c| (c.num_blocks, c.stages) = (3, 2));
            bench.submit(9, 8, 2).submit(1, 8, 3);
            bench.step();
            bench
        }),
        ("gated before its first chunk", || {
            let mut bench = Bench::new(|_| {});
            bench.with(request(1, 6, 3), |r| r.gates = Gate::Grammar.into());
            bench
        }),
        ("half its prompt in flight", || {
            let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 4));
            bench.submit(1, 30, 3);
            bench.fill();
            bench
        }),
        ("half its prompt done", || {
            let mut bench = Bench::new(|c| c.max_batch_tokens = 4);
            bench.submit(1, 30, 3);
            bench.round();
            bench
        }),
        ("gated in its prompt", || {
            let mut bench = Bench::new(|c| c.max_batch_tokens = 4);
            bench.submit(1, 30, 3);
            bench.round();
            assert!(bench.scheduler.shut(ONE, Gate::Adapter).is_applied());
            bench
        }),
        ("set aside by a shut gate", || {
            let mut bench = Bench::new(|c| (c.max_batch_tokens, c.max_requests) = (4, 1));
            bench.submit(1, 30, 3).submit(9, 4, 3);
            bench.round();
            assert!(bench.scheduler.shut(ONE, Gate::Adapter).is_applied());
            bench.step();
            bench
        }),
        ("ready to decode", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 6, 3);
            bench.round();
            bench
        }),
        ("a decode with drafts in flight", || {
            let mut bench = Bench::new(|c| c.stages = 2);
            bench.with(request(1, 6, 9), |r| r.drafts = 3);
            bench.round();
            bench.step();
            bench
        }),
        ("its last step in flight", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 6, 1);
            bench.step();
            bench
        }),
        ("steps ahead in flight", || {
            let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (4, true));
            bench.submit(1, 6, 9).submit(9, 6, 9);
            bench.fill();
            bench
        }),
        ("several chunks in one batch", || {
            let mut bench = Bench::new(|c| {
                (c.chunks_per_batch, c.stages, c.max_prompt_tokens_per_batch) = (3, 2, Some(12));
                c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) };
            });
            bench.submit(1, 30, 3);
            bench.fill();
            bench
        }),
        ("preempted with a late result", || {
            let mut bench = Bench::new(|c| {
                (c.stages, c.num_blocks, c.async_scheduling, c.admission) = (3, 4, true, Admission::Lazy);
            });
            bench.submit(9, 8, 4).submit(1, 8, 4);
            bench.fill();
            assert_eq!(bench.stats().preemptions, 1);
            bench
        }),
        ("preempted", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 8, 4);
            bench.round();
            bench.scheduler.reset_all_kv();
            bench
        }),
        ("a paused session", || {
            let mut bench = Bench::new(|_| {});
            bench.take(session(request(1, 6, 1)));
            bench.round();
            bench
        }),
        ("a session that paused with steps ahead in flight", || {
            let mut bench = Bench::new(|c| (c.stages, c.async_scheduling) = (3, true));
            bench.with(session(request(1, 6, 9)), |r| r.stop_tokens = vec![1006]);
            bench.fill();
            bench.complete();
            bench
        }),
        ("a session with new input", || {
            let mut bench = Bench::new(|_| {});
            bench.take(session(request(1, 6, 1)));
            bench.round();
            bench.scheduler.extend(ONE, Prompt::Tokens(vec![1, 2]), 2).unwrap();
            bench
        }),
        ("a fork that has not run", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(9, 6, 5);
            bench.round();
            bench.scheduler.fork(RequestId(9), Fork::new(RequestId(1), 3)).unwrap();
            bench
        }),
        ("a fork whose copy is in flight", || {
            let mut bench = Bench::new(|c| c.stages = 2);
            bench.submit(9, 6, 5);
            bench.round();
            bench.scheduler.fork(RequestId(9), Fork::new(RequestId(1), 3)).unwrap();
            bench.step();
            bench
        }),
        ("a parent whose child shares its blocks", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 6, 5);
            bench.round();
            bench.scheduler.fork(ONE, Fork::new(RequestId(9), 3)).unwrap();
            bench
        }),
        ("void rows of a lost batch in flight", || {
            let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (3, 4));
            bench.submit(1, 30, 3);
            bench.fill();
            bench.lose(1);
            bench
        }),
        ("an embedding in flight", || {
            let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (2, 4));
            bench.with(request(1, 6, 0), |r| r.pooling = true);
            bench.fill();
            bench
        }),
        ("paused by the operator", || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 6, 3);
            bench.round();
            bench.scheduler.pause(cpp_sched::Pause::All);
            bench
        }),
        ("behind a prefix hit", || {
            let mut bench = Bench::new(|c| c.prefix_caching = true);
            bench.take(common(9, 12, 1));
            bench.round();
            bench.take(common(1, 14, 3));
            bench.step();
            bench
        }),
    ]
}

#[test]
fn in_every_state_of_a_request_that_does_both() {
    for (name, world) in unified() {
        let mut bench = world();
        bench.events();
        assert!(bench.abort(1).is_applied(), "{name}");
        let mut events = bench.events();
        let at_once = !bench.flight.iter().flat_map(|batch| batch.rows()).any(|row| row.request == ONE);
        assert_eq!(ends_of(&events), if at_once { vec![(1, FinishReason::Aborted)] } else { vec![] }, "{name}");
        assert!(!bench.abort(1).is_applied(), "{name}: a second time");
        bench.scheduler.pause(cpp_sched::Pause::Off);
        events.extend(bench.finish());
        assert!(tokens_of(&events).iter().all(|(id, _)| *id != 1), "{name}: a token after the abort");
        let ends = ends_of(&events).into_iter().filter(|(id, _)| *id == 1).collect::<Vec<_>>();
        assert_eq!(ends, [(1, FinishReason::Aborted)], "{name}");
        assert_eq!(bench.stats().aborted, 1, "{name}");
        bench.submit(1, 6, 2);
        assert_eq!(tokens_of(&bench.finish()), [(1, 1006), (1, 1007)], "{name}: the id is free");
    }
}

#[test]
fn with_all_batches_lost_behind_it_no_block_and_no_end_is_missing() {
    for (name, world) in unified() {
        let mut bench = world();
        bench.events();
        assert!(bench.abort(1).is_applied());
        let mut events = bench.events();
        // Batches that were lost one by one may leave as soon as the aborted request has nothing else.
        let lost = bench.scheduler.fail();
        bench.flight.clear();
        assert!(lost <= 4);
        bench.scheduler.pause(cpp_sched::Pause::Off);
        events.extend(bench.finish());
        let ends = ends_of(&events).into_iter().filter(|(id, _)| *id == 1).collect::<Vec<_>>();
        assert_eq!(ends, [(1, FinishReason::Aborted)], "{name}");
    }
}

/// How a transfer ends after an abort.
const ENDS: [fn(&mut Bench); 3] = [
    |bench| assert!(bench.scheduler.kv_sent(ONE).is_applied() || bench.scheduler.kv_arrived(ONE).is_applied()),
    |bench| assert!(bench.scheduler.kv_send_failed(ONE).is_applied() || bench.scheduler.kv_failed(ONE).is_applied()),
    |bench| bench.scheduler.tick(1_000_000),
];

fn transfers() -> Vec<World> {
    vec![
        ("announced in part", || {
            let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens, c.kv_lease_ns) = (Role::Prefill, 8, Some(50)));
            bench.submit(1, 20, 1);
            bench.round();
            bench
        }),
        ("announced in part, and chunks in flight", || {
            let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens, c.kv_lease_ns, c.stages) = (Role::Prefill, 8, Some(50), 2));
            bench.submit(1, 20, 1);
            bench.fill();
            bench.complete();
            bench.fill();
            bench
        }),
        ("announced and gated", || {
            let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens, c.kv_lease_ns) = (Role::Prefill, 8, Some(50)));
            bench.submit(1, 20, 1);
            bench.round();
            assert!(bench.scheduler.shut(ONE, Gate::Other).is_applied());
            bench
        }),
        ("sending", || {
            let mut bench = Bench::new(|c| (c.role, c.kv_lease_ns) = (Role::Prefill, Some(50)));
            bench.submit(1, 20, 1);
            bench.round();
            bench
        }),
        ("sending, one of two consumers done", || {
            let mut bench = Bench::new(|c| (c.role, c.kv_lease_ns, c.kv_consumers) = (Role::Prefill, Some(50), 2));
            bench.submit(1, 20, 1);
            bench.round();
            assert!(bench.scheduler.kv_sent_by(ONE, 1).is_applied());
            bench
        }),
        ("receiving", || {
            let mut bench = Bench::new(|c| (c.role, c.kv_lease_ns) = (Role::Decode, Some(50)));
            bench.submit(1, 20, 3);
            bench
        }),
        ("receiving behind a hit", || {
            let mut bench = Bench::new(|c| (c.role, c.kv_lease_ns, c.prefix_caching) = (Role::Decode, Some(50), true));
            bench.take(common(9, 12, 1));
            assert!(bench.scheduler.kv_arrived(RequestId(9)).is_applied());
            bench.finish();
            bench.take(common(1, 14, 3));
            bench
        }),
    ]
}

#[test]
fn under_a_transfer_blocks_stay_pinned_until_it_has_ended() {
    for (name, world) in transfers() {
        for (how, end) in ENDS.into_iter().enumerate() {
            let mut bench = world();
            bench.events();
            let announced = bench.usage().pinned.max(1);
            assert!(bench.abort(1).is_applied(), "{name}");
            while bench.scheduler.in_flight() > 0 {
                bench.complete();
            }
            assert_eq!(bench.events(), [], "{name}: the peer still reads or writes");
            assert!(bench.usage().pinned >= announced && bench.usage().held == 0, "{name}: {:?}", bench.usage());
            end(&mut bench);
            assert_eq!(bench.checked().events(), [Event::Finished { request: ONE, reason: FinishReason::Aborted }], "{name}, {how}");
            bench.assert_no_leak();
            // What the peer says later reaches nobody.
            let reports = [bench.scheduler.kv_sent(ONE), bench.scheduler.kv_send_failed(ONE), bench.scheduler.kv_arrived(ONE)];
            assert_eq!(reports.map(Outcome::is_applied), [false; 3], "{name}, {how}");
            bench.finish();
        }
    }
}

#[test]
fn without_a_transfer_under_way_an_abort_in_either_role_ends_at_once() {
    let worlds: [World; 5] = [
        ("prefill, nothing announced", || {
            let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens) = (Role::Prefill, 3));
            bench.submit(1, 20, 1);
            bench.round();
            bench
        }),
        ("decode, no blocks yet", || {
            let mut bench = Bench::new(|c| (c.role, c.num_blocks) = (Role::Decode, 5));
            bench.submit(9, 16, 1).submit(1, 16, 1);
            bench
        }),
        ("decode, arrived", || {
            let mut bench = Bench::new(|c| c.role = Role::Decode);
            bench.submit(1, 16, 3);
            assert!(bench.scheduler.kv_arrived(ONE).is_applied());
            bench
        }),
        ("decode, arrived and gated", || {
            let mut bench = Bench::new(|c| c.role = Role::Decode);
            bench.with(request(1, 16, 3), |r| r.gates = Gate::Grammar.into());
            assert!(bench.scheduler.kv_arrived(ONE).is_applied());
            bench
        }),
        ("decode, failed and half computed", || {
            let mut bench = Bench::new(|c| (c.role, c.max_batch_tokens) = (Role::Decode, 8));
            bench.submit(1, 16, 3);
            assert!(bench.scheduler.kv_failed(ONE).is_applied());
            bench.round();
            bench
        }),
    ];
    for (name, world) in worlds {
        let mut bench = world();
        bench.events();
        assert!(bench.abort(1).is_applied(), "{name}");
        assert!(ends_of(&bench.events()).contains(&(1, FinishReason::Aborted)), "{name}");
        _ = bench.scheduler.kv_arrived(RequestId(9));
        bench.finish();
    }
}
