//! Why there is no batch, and why a request does not run: each reason in the smallest world that has it.

use cpp_sched::{Admission, Config, EmptyReason, Gate, Pause, Pipelining, Prompt, RequestId, Role, Span, WaitReason};

use crate::bench::{Bench, request};

const ONE: RequestId = RequestId(1);

#[test]
fn every_reason_of_an_empty_answer() {
    let mut bench = Bench::new(|c| c.stages = 2);
    assert_eq!(bench.empty(), EmptyReason::Idle);
    bench.submit(1, 4, 2);
    bench.step();
    assert_eq!(bench.empty(), EmptyReason::WaitingForResults);
    bench.submit(2, 4, 1);
    bench.step();
    assert_eq!(bench.empty(), EmptyReason::PipelineFull);
    bench.scheduler.pause(Pause::All);
    bench.complete();
    assert_eq!(bench.empty(), EmptyReason::Paused);
    bench.scheduler.pause(Pause::Off);
    bench.finish();
    bench.with(request(3, 4, 1), |r| r.gates = Gate::Kv.into());
    assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
    let mut bench = Bench::new(|c| (c.stages, c.num_blocks) = (2, 3));
    bench.submit(1, 10, 1).submit(2, 10, 1);
    bench.step();
    assert_eq!(bench.empty(), EmptyReason::NoBlocks);
}

#[test]
fn every_reason_of_a_waiting_request() {
    type World = fn() -> Bench;
    let worlds: [(WaitReason, World); 16] = [
        (WaitReason::Runnable, || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 4, 1);
            bench
        }),
        (WaitReason::PipelineFull, || {
            let mut bench = Bench::new(|c| c.max_batch_tokens = 4);
            bench.submit(1, 8, 1);
            bench.step();
            bench
        }),
        (WaitReason::WaitingForResult, || {
            let mut bench = Bench::new(|c| c.stages = 2);
            bench.submit(1, 4, 2);
            bench.step();
            bench
        }),
        (WaitReason::WaitingForLateResult, || {
            let mut bench = Bench::new(|c| (c.stages, c.num_blocks, c.async_scheduling) = (3, 4, true));
            bench.submit(2, 8, 4).submit(1, 8, 4);
            bench.fill();
            bench
        }),
        (WaitReason::Gated, || {
            let mut bench = Bench::new(|_| {});
            assert!(bench.submit(1, 4, 1).scheduler.shut(ONE, Gate::Grammar).is_applied());
            bench
        }),
        (WaitReason::SessionPaused, || {
            let mut bench = Bench::new(|_| {});
            bench.with(request(1, 4, 1), |r| r.session = true);
            bench.round();
            bench
        }),
        (WaitReason::Paused, || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 4, 1).scheduler.pause(Pause::New);
            bench
        }),
        (WaitReason::WaitingForTransferBlocks, || {
            let mut bench = Bench::new(|c| (c.role, c.num_blocks) = (Role::Decode, 3));
            bench.submit(2, 8, 1).submit(1, 8, 1);
            bench
        }),
        (WaitReason::WaitingForKv, || {
            let mut bench = Bench::new(|c| c.role = Role::Decode);
            bench.submit(1, 8, 1);
            bench
        }),
        (WaitReason::Sending, || {
            let mut bench = Bench::new(|c| c.role = Role::Prefill);
            bench.submit(1, 8, 1);
            bench.round();
            bench
        }),
        (WaitReason::NoBlocks, || {
            let mut bench = Bench::new(|c| (c.stages, c.num_blocks) = (2, 3));
            bench.submit(2, 8, 2).submit(1, 8, 1);
            bench.step();
            bench
        }),
        (WaitReason::NoEncoder, || {
            let mut bench = Bench::new(|c| (c.stages, c.encoder_cache_tokens) = (2, Some(10)));
            for id in [2, 1] {
                bench.with(request(id, 8, 2), |r| r.spans = vec![Span::encoded(0, 4, 8, [id as u8; 16])]);
            }
            bench.step();
            bench
        }),
        (WaitReason::NoSlot, || {
            let mut bench = Bench::new(|c| (c.stages, c.max_requests) = (2, 1));
            bench.submit(2, 4, 2).submit(1, 4, 1);
            bench.step();
            bench
        }),
        (WaitReason::PartialPrefillLimit, || {
            let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens, c.max_partial_prefills) = (2, 4, Some(1)));
            bench.submit(2, 12, 1).submit(1, 4, 1);
            bench.step();
            bench
        }),
        (WaitReason::BehindOthers, || {
            let mut bench = Bench::new(|c| (c.stages, c.num_blocks) = (2, 4));
            bench.submit(3, 8, 2).submit(2, 12, 1).submit(1, 4, 1);
            bench.step();
            bench
        }),
        (WaitReason::Aborting, || {
            let mut bench = Bench::new(|_| {});
            bench.submit(1, 4, 1);
            bench.step();
            assert!(bench.abort(1).is_applied());
            bench
        }),
    ];
    for (reason, world) in worlds {
        let bench = world();
        assert_eq!(bench.why(1), Some(reason));
        assert!(!reason.as_str().is_empty());
        assert_eq!(bench.why(99), None, "nobody has this id");
    }
}

#[test]
fn what_is_told_is_true_for_whoever_could_run() {
    // Whatever the world, one who is said to be runnable with nothing else about stands in the next batch.
    let set: [fn(&mut Config); 4] = [
        |_| {},
        |c| c.admission = Admission::Lazy,
        |c| c.pipelining = Pipelining::Request,
        |c| (c.lookahead_tokens, c.num_blocks) = (3, 5),
    ];
    for set in set {
        let mut bench = Bench::new(|c| {
            (c.stages, c.max_batch_tokens) = (3, 8);
            set(c);
        });
        bench.submit(1, 14, 3);
        for _ in 0..40 {
            match bench.why(1) {
                None => break,
                Some(WaitReason::Runnable) => assert!(bench.step().iter().all(|(id, ..)| *id == 1)),
                Some(reason) => {
                    assert!(matches!(reason, WaitReason::PipelineFull | WaitReason::WaitingForResult), "{reason:?}");
                    bench.empty();
                    bench.complete();
                }
            }
        }
        assert!(bench.scheduler.is_idle());
    }
}

#[test]
fn a_paused_session_that_goes_on_waits_for_its_turn_like_others() {
    let mut bench = Bench::new(|c| c.max_requests = 1);
    bench.with(request(1, 4, 1), |r| r.session = true);
    bench.round();
    bench.submit(2, 4, 3);
    bench.round();
    bench.scheduler.extend(ONE, Prompt::Tokens(vec![1]), 1).unwrap();
    assert_eq!(bench.why(1), Some(WaitReason::NoSlot));
    bench.run();
    assert_eq!(bench.why(1), Some(WaitReason::SessionPaused));
}

#[test]
fn a_session_that_would_fit_stands_behind_one_that_does_not() {
    let mut bench = Bench::new(|c| (c.stages, c.block_size, c.num_blocks) = (2, 4, 5));
    for id in [1, 2] {
        bench.with(request(id, 3, 1), |r| r.session = true);
        bench.step();
        bench.complete();
    }
    bench.submit(3, 4, 2);
    bench.step();
    // Each keeps a block, and two are free: the first one lacks one, the second one none.
    bench.scheduler.extend(RequestId(1), Prompt::Tokens(vec![7; 12]), 1).unwrap();
    bench.scheduler.extend(RequestId(2), Prompt::Tokens(vec![7; 1]), 1).unwrap();
    assert_eq!(bench.scheduler.why(RequestId(1)), Some(WaitReason::NoBlocks));
    assert_eq!(bench.scheduler.why(RequestId(2)), Some(WaitReason::BehindOthers));
}
