//! Corners of several features at once, each of which no other test came to.

use cpp_sched::{Admission, Event, Gate, RequestId, Role, WaitReason};

use crate::bench::{Bench, common, request};

const ONE: RequestId = RequestId(1);

/// Who may fetch its KV now.
fn wanted(bench: &mut Bench) -> Vec<u64> {
    bench.events().iter().filter_map(|event| if let Event::KvWanted { request, .. } = event { Some(request.0) } else { None }).collect()
}

#[test]
fn blocks_that_an_abort_frees_go_to_the_next_transfer_at_once() {
    let mut bench = Bench::new(|c| (c.role, c.num_blocks) = (Role::Decode, 3));
    bench.submit(2, 8, 1).submit(1, 8, 1);
    assert_eq!((wanted(&mut bench), bench.why(1)), (vec![2], Some(WaitReason::WaitingForTransferBlocks)));
    let _ = bench.scheduler.kv_arrived(RequestId(2));
    assert!(bench.abort(2).is_applied());
    assert_eq!(wanted(&mut bench), [1]);
}

#[test]
fn a_gate_that_opens_lets_its_transfer_begin_where_nobody_is_preempted() {
    let mut bench = Bench::new(|c| (c.role, c.admission) = (Role::Decode, Admission::NoEvict));
    bench.with(request(1, 8, 1), |r| r.gates = Gate::Grammar.into());
    assert_eq!(wanted(&mut bench), [], "blocks would be lent to one that may wait for ever");
    let _ = bench.scheduler.open(ONE, Gate::Grammar);
    assert_eq!(wanted(&mut bench), [1]);
}

#[test]
fn a_batch_from_before_a_reset_publishes_nothing_later_either() {
    // The prompt fills its blocks, so that nothing of it is left to compute when the cache is on again.
    let mut bench = Bench::new(|c| c.prefix_caching = true);
    bench.take(common(1, 16, 12));
    bench.step();
    bench.scheduler.reset_prefix_cache();
    bench.complete();
    for _ in 0..6 {
        bench.round();
    }
    bench.take(common(2, 16, 1));
    assert!(bench.step().contains(&(2, 0, 16)), "what is found was computed before the reset");
}

#[test]
fn drafts_leave_room_for_what_a_row_takes_beside_them() {
    let mut bench = Bench::new(|c| (c.draft_slots, c.max_batch_tokens) = (2, 8));
    bench.with(request(1, 4, 12), |r| r.drafts = 8);
    bench.round();
    assert_eq!(bench.step(), [(1, 4, 10)], "one token, five drafts, and two more that the drafter writes");
}

#[test]
fn drafts_ride_on_blocks_that_are_set_aside_for_their_request() {
    let mut bench = Bench::new(|c| (c.admission, c.num_blocks) = (Admission::NoEvict, 4));
    bench.with(request(1, 4, 12), |r| r.drafts = 6);
    bench.round();
    assert_eq!(bench.step(), [(1, 4, 11)], "all blocks are its own");
}

#[test]
fn what_was_set_aside_is_set_aside_again_after_a_loss() {
    let mut bench = Bench::new(|c| (c.admission, c.num_blocks) = (Admission::NoEvict, 6));
    // Four blocks each at their longest, of six.
    bench.submit(1, 8, 8).submit(2, 8, 8);
    assert_eq!(bench.step(), [(1, 0, 8)]);
    bench.fail();
    assert_eq!(bench.step(), [(1, 0, 8)]);
    bench.complete();
    assert_eq!(bench.why(2), Some(WaitReason::NoBlocks));
    bench.finish();
}
