//! Ends, preemption, forks.

use cpp_sched::{Admission, Event, Fork, KvGroup, Prompt, Request, RequestId, WaitReason};

use super::bench::{Bench, FULL, local, state, window};

const MIXED: [KvGroup; 5] = [FULL, window(6), local(8), state(8), KvGroup::Cross];

fn mixed(id: u64, len: u32, max_tokens: u32) -> Request {
    let mut request = Request::new(RequestId(id), (0..len).map(|i| i * id as u32).collect(), max_tokens);
    request.cross_tokens = 5;
    request
}

#[test]
fn an_abort_at_any_moment_frees_all() {
    let mut aborted = 0;
    for moment in 0..30 {
        let mut bench = Bench::new(&MIXED, |c| (c.stages, c.max_batch_tokens, c.prefix_caching) = (3, 16, true));
        bench.take(mixed(1, 30, 8)).take(mixed(2, 9, 4));
        for _ in 0..moment {
            if bench.step().is_empty() && bench.0.in_flight() > 0 {
                bench.complete();
            }
        }
        aborted += u32::from(bench.0.abort(RequestId(1)).is_applied());
        bench.checked().run_to_end();
        bench.0.reset_prefix_cache();
        assert_eq!(bench.0.kv_usage().free, 100);
    }
    assert!(aborted >= 15, "{aborted} aborts");
}

#[test]
fn a_preempted_request_gives_all_groups_back_and_starts_again() {
    let mut bench = Bench::new(&MIXED, |c| {
        (c.num_blocks, c.admission, c.max_batch_tokens, c.stages) = (40, Admission::Lazy, 16, 2);
    });
    for id in 1..5 {
        bench.take(mixed(id, 16, 24));
    }
    let mut restarted = 0;
    while bench.0.num_unfinished() > 0 {
        while bench.0.in_flight() < 2 {
            let rows = bench.step();
            if rows.is_empty() {
                break;
            }
        }
        restarted += bench.0.events().filter(|event| matches!(event, Event::Preempted { .. })).count();
        bench.complete();
    }
    assert!(restarted > 0, "the pool is too small for four");
    bench.run_to_end();
    assert_eq!(bench.0.stats().output_tokens, 4 * 24);
}

#[test]
fn a_fork_shares_whole_blocks_of_all_groups_and_copies_none() {
    let mut bench = Bench::new(&[FULL, window(6), state(8)], |c| (c.max_batch_tokens, c.num_blocks) = (32, 60));
    bench.submit(1, 21, 20);
    bench.step();
    bench.complete();
    let before = bench.0.kv_usage().held;
    bench.0.fork(RequestId(1), Fork::new(RequestId(2), 4)).unwrap();
    bench.checked();
    assert_eq!(bench.0.kv_usage().held, before, "it shares, and takes nothing");
    assert_eq!((bench.held(2, 0), bench.held(2, 1), bench.held(2, 2)), ((0, 4), (2, 4), (1, 2)));
    let rows = bench.step();
    assert_eq!(rows, [(1, 21, 22), (2, 16, 21)]);
    assert!(bench.0.oldest_in_flight().unwrap().copies().is_empty());
    bench.run_to_end();
}

#[test]
fn a_fork_of_a_parent_that_has_moved_on_begins_at_the_beginning() {
    let mut bench = Bench::new(&[FULL, window(6)], |c| (c.max_batch_tokens, c.num_blocks) = (32, 60));
    bench.submit(1, 21, 30);
    while bench.committed(1) < 32 {
        bench.step();
        bench.complete();
    }
    bench.0.fork(RequestId(1), Fork::new(RequestId(2), 4)).unwrap();
    assert_eq!(bench.checked().held(2, 0), (0, 0));
    assert_eq!(bench.step(), [(1, 32, 33), (2, 0, 21)]);
    bench.run_to_end();
}

#[test]
fn a_session_that_comes_back_waits_for_the_blocks_of_its_new_input_in_all_groups() {
    // 40 positions more are 10 blocks of full attention and a window's; while the other one holds 15 of 24, they are not there.
    let mut bench = Bench::new(&[FULL, window(6)], |c| c.num_blocks = 24);
    let mut first = Request::new(RequestId(1), (0..8).collect(), 2);
    first.session = true;
    bench.take(first);
    bench.run();
    bench.submit(2, 40, 1);
    assert_eq!(bench.step(), [(2, 0, 8)]);
    bench.0.extend(RequestId(1), Prompt::Tokens((0..40).collect()), 1).unwrap();
    for start in [8, 16, 24, 32] {
        bench.complete();
        assert_eq!(bench.0.why(RequestId(1)), Some(WaitReason::NoBlocks));
        assert_eq!(bench.step(), [(2, start, start + 8)]);
    }
    bench.complete();
    assert_eq!(bench.step(), [(1, 9, 17)], "the other one has ended");
    bench.complete();
    bench.run();
    assert_eq!(bench.0.stats().preemptions, 0);
    assert!(bench.0.abort(RequestId(1)).is_applied());
    bench.run_to_end();
}
