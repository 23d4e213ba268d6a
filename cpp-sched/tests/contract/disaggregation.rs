//! Prefill and decode on different machines: announcing, pinning, acknowledging, receiving.

use cpp_sched::{Config, ConfigError, EmptyReason, Event, FinishReason, Fork, Outcome, Request, RequestId, Role, SubmitError, WaitReason};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

const ONE: RequestId = RequestId(1);

fn prefill(set: impl FnOnce(&mut Config)) -> Bench {
    Bench::new(|c| {
        c.role = Role::Prefill;
        set(c);
    })
}

fn decode(set: impl FnOnce(&mut Config)) -> Bench {
    Bench::new(|c| {
        c.role = Role::Decode;
        set(c);
    })
}

fn announced(events: &[Event]) -> Vec<(u64, u32, u32)> {
    let range = |event: &Event| if let Event::KvReady { request, start, end } = event { Some((request.0, *start, *end)) } else { None };
    events.iter().filter_map(range).collect()
}

fn wanted(events: &[Event]) -> Vec<(u64, u32, u32)> {
    let range = |event: &Event| if let Event::KvWanted { request, start, end } = event { Some((request.0, *start, *end)) } else { None };
    events.iter().filter_map(range).collect()
}

// ---- role prefill ------------------------------------------------------------------------------------------------------------

#[test]
fn ranges_are_announced_as_batches_complete_and_tile_the_prompt() {
    let mut bench = prefill(|c| (c.stages, c.max_batch_tokens) = (3, 6));
    bench.submit(1, 21, 5);
    bench.fill();
    assert_eq!(announced(&bench.events()), [], "nothing is final while it is in flight");
    let mut ranges = Vec::new();
    while ranges.last().is_none_or(|(_, _, end)| *end < 21) {
        bench.complete();
        bench.fill();
        ranges.extend(announced(&bench.events()));
    }
    assert_eq!(ranges, [(1, 0, 4), (1, 4, 12), (1, 12, 16), (1, 16, 21)], "whole blocks, and with the last chunk the rest");
    assert_eq!(bench.why(1), Some(WaitReason::Sending));
}

#[test]
fn what_was_hit_is_announced_too() {
    let mut bench = prefill(|c| c.prefix_caching = true);
    bench.take(common(1, 12, 1));
    bench.round();
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    bench.events();
    bench.take(common(2, 14, 1));
    assert_eq!(bench.round(), [(2, 12, 14)]);
    assert_eq!(announced(&bench.events()), [(2, 0, 14)]);
}

#[test]
fn one_token_is_delivered_whatever_the_request_asks_for() {
    let mut bench = prefill(|_| {});
    bench.with(request(1, 6, 50), |r| r.stop_tokens = vec![1006]);
    bench.round();
    let events = bench.events();
    assert_eq!((tokens_of(&events), ends_of(&events)), (vec![(1, 1006)], vec![]), "no end before its KV is handed over");
    assert_eq!(bench.empty(), EmptyReason::WaitingForExternal);
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    assert_eq!(ends_of(&bench.events()), [(1, FinishReason::HandedOver)]);
}

#[test]
fn blocks_stay_pinned_until_every_consumer_has_acknowledged() {
    let mut bench = prefill(|c| (c.kv_consumers, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 12, 1);
    bench.round();
    assert_eq!(bench.scheduler.kv_sent_by(ONE, 0), Outcome::TooEarly, "not all is announced yet");
    bench.round();
    bench.events();
    assert!(bench.scheduler.kv_sent_by(ONE, 0).is_applied() && bench.scheduler.kv_sent_by(ONE, 2).is_applied());
    assert_eq!(bench.scheduler.kv_sent_by(ONE, 2), Outcome::Already, "a repetition counts once");
    assert_eq!([3, 64].map(|consumer| bench.scheduler.kv_sent_by(ONE, consumer)), [Outcome::NoConsumer; 2], "there are three of them");
    assert_eq!((bench.checked().usage().pinned, bench.events()), (3, vec![]));
    assert!(bench.scheduler.kv_sent_by(ONE, 1).is_applied());
    assert_eq!((bench.checked().usage().pinned, ends_of(&bench.events())), (0, vec![(1, FinishReason::HandedOver)]));
    for late in 0..3 {
        assert_eq!(bench.scheduler.kv_sent_by(ONE, late), Outcome::NotAlive, "too late does no harm");
    }
    bench.finish();
    let mut config = Config::default();
    (config.role, config.kv_consumers) = (Role::Prefill, 65);
    assert_eq!(config.validate(), Err(ConfigError::TooLarge { field: "kv_consumers", most: 64 }));
}

#[test]
fn a_report_that_comes_twice_or_too_early_changes_nothing() {
    let mut bench = prefill(|c| c.max_batch_tokens = 8);
    bench.submit(1, 12, 1);
    let before = bench.state();
    let unknown = [bench.scheduler.kv_sent(RequestId(2)), bench.scheduler.kv_send_failed(RequestId(2))];
    assert_eq!((bench.scheduler.kv_sent(ONE), unknown), (Outcome::TooEarly, [Outcome::NotAlive; 2]));
    assert_eq!(
        [bench.scheduler.kv_arrived(ONE), bench.scheduler.kv_failed(ONE)],
        [Outcome::WrongRole; 2],
        "those are reports of the other role"
    );
    assert_eq!(bench.state(), before);
    bench.round();
    assert_eq!(bench.scheduler.kv_sent(ONE), Outcome::TooEarly, "the rest is not announced yet");
    bench.round();
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    let after = bench.state();
    assert!(!bench.scheduler.kv_sent(ONE).is_applied() && !bench.scheduler.kv_send_failed(ONE).is_applied());
    assert_eq!(bench.state(), after);
    // Nor does it reach the next request of the same id, which has announced nothing.
    bench.submit(1, 12, 1);
    assert!(!bench.scheduler.kv_sent(ONE).is_applied());
    bench.round();
    bench.round();
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    bench.finish();
}

#[test]
fn a_failed_transfer_ends_the_request_wherever_it_is() {
    for rounds in 0..3 {
        let mut bench = prefill(|c| c.max_batch_tokens = 8);
        bench.submit(1, 20, 1);
        (0..rounds).for_each(|_| drop(bench.round()));
        bench.step();
        bench.events();
        assert!(bench.scheduler.kv_send_failed(ONE).is_applied());
        assert_eq!(ends_of(&bench.events()), [(1, FinishReason::TransferFailed)], "after {rounds} chunks");
        assert_eq!((bench.checked().usage().pinned, bench.usage().held), (0, 0));
        bench.complete();
        bench.finish();
    }
}

#[test]
fn a_lease_ends_a_transfer_that_nobody_reports() {
    let mut bench = prefill(|c| (c.max_batch_tokens, c.kv_lease_ns) = (8, Some(100)));
    bench.submit(1, 12, 1);
    bench.round();
    bench.scheduler.tick(1000);
    assert_eq!(bench.why(1), Some(WaitReason::Runnable), "the prompt is not done: nobody is late yet");
    bench.round();
    bench.events();
    bench.scheduler.tick(1099);
    assert_eq!(bench.events(), []);
    bench.scheduler.tick(1100);
    assert_eq!(ends_of(&bench.events()), [(1, FinishReason::TransferFailed)]);
    assert!(!bench.scheduler.kv_sent(ONE).is_applied(), "the report comes too late");
    bench.finish();
}

#[test]
fn a_lost_batch_announces_nothing_and_nothing_twice() {
    let mut bench = prefill(|c| (c.stages, c.max_batch_tokens) = (2, 8));
    bench.submit(1, 20, 1);
    bench.fill();
    bench.complete();
    bench.fill();
    bench.fail();
    let first = announced(&bench.events());
    let events = bench.run();
    assert_eq!([first, announced(&events)].concat(), [(1, 0, 8), (1, 8, 16), (1, 16, 20)]);
    assert_eq!(tokens_of(&events), [(1, 1020)]);
    assert!(bench.scheduler.kv_sent(ONE).is_applied());
    bench.finish();
}

#[test]
fn a_request_that_waits_for_its_peer_takes_no_slot_and_no_new_blocks() {
    let mut bench = prefill(|c| (c.max_requests, c.num_blocks) = (1, 6));
    bench.submit(1, 12, 1).submit(2, 12, 1).submit(3, 12, 1);
    assert_eq!((bench.round(), bench.round()), (vec![(1, 0, 12)], vec![(2, 0, 12)]));
    assert_eq!((bench.empty(), bench.why(3)), (EmptyReason::NoBlocks, Some(WaitReason::NoBlocks)));
    assert_eq!((bench.stats().waiting_for.consumers, bench.stats().waiting_for.admission), (2, 1));
    assert!(bench.scheduler.kv_sent(RequestId(2)).is_applied());
    assert_eq!(bench.step(), [(3, 0, 12)], "blocks come back in any order");
}

#[test]
fn requests_that_do_not_go_with_a_role_are_refused() {
    for role in [Role::Prefill, Role::Decode] {
        let mut bench = Bench::new(|c| c.role = role);
        for (field, set) in [("pooling", (|r| r.pooling = true) as fn(&mut Request)), ("session", |r| r.session = true)] {
            let mut request = request(1, 4, 1);
            set(&mut request);
            assert_eq!(bench.scheduler.submit(request), Err(SubmitError::Role { request: ONE, field }));
        }
    }
}

// ---- role decode -------------------------------------------------------------------------------------------------------------

#[test]
fn blocks_are_reserved_at_submit_and_the_last_position_is_computed_again() {
    let mut bench = decode(|_| {});
    bench.submit(1, 10, 3);
    assert_eq!(wanted(&bench.events()), [(1, 0, 10)]);
    assert_eq!((bench.usage().pinned, bench.why(1), bench.empty()), (3, Some(WaitReason::WaitingForKv), EmptyReason::WaitingForExternal));
    let table = bench.table(1);
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    assert_eq!((bench.checked().usage().pinned, bench.usage().held, bench.table(1)), (0, 3, table));
    assert_eq!(bench.round(), [(1, 9, 10)], "for its token");
    assert_eq!(tokens_of(&bench.finish()), [(1, 1010), (1, 1011), (1, 1012)]);
}

#[test]
fn who_finds_no_blocks_wants_them_later_in_the_order_of_the_policy() {
    let mut bench = decode(|c| (c.num_blocks, c.policy) = (6, cpp_sched::PolicyKind::Priority));
    bench.submit(1, 16, 1).with(request(2, 12, 1), |r| r.priority = 5).with(request(3, 12, 1), |r| r.priority = 1);
    assert_eq!(wanted(&bench.events()), [(1, 0, 16)]);
    assert_eq!(bench.why(3), Some(WaitReason::WaitingForTransferBlocks));
    let waiting = bench.stats().waiting_for;
    assert_eq!((waiting.kv, waiting.transfer_blocks), (1, 2));
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    bench.round();
    assert_eq!(wanted(&bench.events()), [(3, 0, 12), (2, 0, 12)]);
}

#[test]
fn kv_that_fails_or_is_late_is_computed_here() {
    for lease in [false, true] {
        let mut bench = decode(|c| (c.max_batch_tokens, c.kv_lease_ns) = (8, lease.then_some(50)));
        bench.submit(1, 10, 2);
        let table = bench.table(1);
        if lease {
            bench.scheduler.tick(49);
            assert_eq!(bench.why(1), Some(WaitReason::WaitingForKv));
            bench.scheduler.tick(50);
        } else {
            assert!(bench.scheduler.kv_failed(ONE).is_applied());
        }
        assert_eq!(bench.checked().table(1), table, "in the blocks that it has");
        let before = bench.state();
        assert!(
            !bench.scheduler.kv_arrived(ONE).is_applied() && !bench.scheduler.kv_failed(ONE).is_applied(),
            "what comes now comes too late"
        );
        assert_eq!(bench.state(), before);
        assert_eq!((bench.round(), bench.round()), (vec![(1, 0, 8)], vec![(1, 8, 10)]));
        assert_eq!(tokens_of(&bench.finish()), [(1, 1010), (1, 1011)]);
    }
}

#[test]
fn an_arrival_that_is_told_twice_counts_once() {
    let mut bench = decode(|_| {});
    bench.submit(1, 10, 5);
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    let before = bench.state();
    assert!(!bench.scheduler.kv_arrived(ONE).is_applied() && !bench.scheduler.kv_failed(ONE).is_applied());
    assert_eq!(bench.state(), before);
    bench.round();
    assert!(!bench.scheduler.kv_arrived(ONE).is_applied());
    assert_eq!(tokens_of(&bench.finish()).len(), 5);
    assert!(!bench.scheduler.kv_arrived(ONE).is_applied() && !bench.scheduler.kv_failed(ONE).is_applied());
    assert_eq!(
        [bench.scheduler.kv_sent(ONE), bench.scheduler.kv_send_failed(ONE)],
        [Outcome::WrongRole; 2],
        "those are reports of the other role"
    );
}

#[test]
fn what_arrives_is_found_by_others_only_then_and_shortens_their_range() {
    let mut bench = decode(|c| c.prefix_caching = true);
    bench.take(common(1, 10, 1)).take(common(2, 10, 1));
    assert_eq!(wanted(&bench.events()), [(1, 0, 10), (2, 0, 10)], "what is on the way is not here");
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    bench.take(common(3, 14, 1));
    assert_eq!(wanted(&bench.events()), [(3, 8, 14)]);
    assert_eq!(bench.table(3)[..2], bench.table(1)[..2]);
    // What it had found stays when the rest does not come.
    assert!(bench.scheduler.kv_failed(RequestId(3)).is_applied());
    assert!(bench.scheduler.kv_failed(RequestId(2)).is_applied());
    assert!(bench.step().contains(&(3, 8, 14)));
    bench.complete();
    bench.finish();
}

#[test]
fn a_transfer_that_holds_all_blocks_is_told_apart() {
    let mut bench = decode(|c| c.num_blocks = 4);
    bench.submit(1, 8, 2).submit(2, 8, 1);
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    assert_eq!(bench.round(), [(1, 7, 8)]);
    // Its next position needs a block, and all are under the transfer to the other one.
    assert_eq!((bench.empty(), bench.why(1)), (EmptyReason::NoBlocks, Some(WaitReason::NoBlocks)));
    assert!(bench.scheduler.kv_arrived(RequestId(2)).is_applied());
    assert!(!bench.step().is_empty());
    bench.complete();
    bench.finish();
}

#[test]
fn received_kv_is_given_up_and_computed_again_like_any_other() {
    let mut bench = decode(|c| c.num_blocks = 5);
    bench.submit(1, 8, 8).submit(2, 8, 8);
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    assert!(bench.scheduler.kv_arrived(RequestId(2)).is_applied());
    let events = bench.finish();
    assert!(bench.stats().preemptions > 0);
    assert_eq!(tokens_of(&events).len(), 16);
    assert_eq!(wanted(&events).len(), 2, "nobody is asked for it again");
}

#[test]
fn a_fork_takes_the_kv_that_its_parent_has_received() {
    let mut bench = decode(|_| {});
    bench.submit(1, 10, 4);
    assert!(bench.scheduler.kv_arrived(ONE).is_applied());
    bench.round();
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 2)).unwrap();
    assert_eq!(bench.checked().why(2), Some(WaitReason::Runnable));
    assert!(bench.step().contains(&(2, 9, 10)));
    bench.complete();
    bench.finish();
}
