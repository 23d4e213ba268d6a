//! What goes together, and what is refused.

use cpp_sched::{Config, ConfigError, Event, FinishReason, KvGroup, KvGroups, Request, RequestId, Role, Sample, Scheduler};

use super::bench::{Bench, FULL, state, window};

#[test]
fn what_does_not_go_together_is_refused() {
    let error = |groups: &[KvGroup]| KvGroups::new(groups).unwrap_err().to_string();
    assert_eq!(error(&[]), "kv_groups: the first group must be Full");
    assert_eq!(error(&[window(4)]), "kv_groups: the first group must be Full");
    assert_eq!(error(&[FULL; 9]), "kv_groups (their number) must be at most 8");
    assert_eq!(error(&[FULL, window(0)]), "kv_groups (tokens or grain) must be at least 1");
    assert_eq!(error(&[FULL, state(8), state(16)]), "kv_groups: all State groups must have one grain");
    assert_eq!(error(&[FULL, KvGroup::Cross, KvGroup::Cross]), "kv_groups: at most one group may be Cross");

    let refused = |groups: &[KvGroup], set: fn(&mut Config)| {
        let mut config = Config::default();
        (config.block_size, config.kv_groups) = (4, KvGroups::new(groups).unwrap());
        set(&mut config);
        matches!(Scheduler::new(config), Err(ConfigError::KvGroups { .. }))
    };
    assert!(!refused(&[FULL, state(8)], |_| {}));
    assert!(refused(&[FULL, state(6)], |_| {}));
    assert!(refused(&[FULL, state(8)], |c| c.max_batch_tokens = 7));
    assert!(refused(&[FULL, state(8)], |c| c.chunks_per_batch = 2));
    assert!(refused(&[FULL, state(8)], |c| c.max_prompt_tokens_per_batch = Some(7)));
    assert!(refused(&[FULL, state(8)], |c| c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) }));
    assert!(refused(&[FULL, window(8)], |c| c.role = Role::Prefill));
    assert!(refused(&[FULL, window(8)], |c| c.role = Role::Decode));
}

#[test]
fn one_group_named_is_the_default() {
    assert_eq!(KvGroups::new(&[FULL]).unwrap(), KvGroups::default());
    let mut bench = Bench::new(&[FULL], |_| {});
    bench.submit(1, 9, 1);
    bench.step();
    assert_eq!(bench.0.group_table(RequestId(1), 0).map(|(first, blocks)| (first, blocks.len())), Some((0, 2)));
    assert_eq!(bench.0.group_table(RequestId(1), 1), None);
    bench.run_to_end();
}

#[test]
fn windows_are_not_moved_by_a_stop_that_drafts_ran_past() {
    // The row of a decode with three drafts is final up to its end, but a session goes on from the stop token.
    let mut bench = Bench::new(&[FULL, window(2)], |c| c.max_batch_tokens = 32);
    let mut request = Request::new(RequestId(1), (0..6).collect(), 20);
    (request.session, request.stop_tokens, request.drafts) = (true, vec![77], 6);
    bench.take(request);
    bench.step();
    bench.complete();
    assert_eq!(bench.step(), [(1, 6, 13)]);
    let batch = bench.0.oldest_in_flight().unwrap().id();
    bench.0.complete(batch, &[Sample { request: RequestId(1), tokens: &[77, 1, 2, 3, 4, 5, 6] }]).unwrap();
    bench.checked();
    assert!(bench.0.events().any(|event| matches!(event, Event::Paused { reason: FinishReason::Stop, .. })));
    // Eight are final; position 8 reads 7..=8, though 13 were computed.
    assert_eq!((bench.committed(1), bench.held(1, 1).0), (8, 1));
    assert!(bench.0.abort(RequestId(1)).is_applied());
    bench.run_to_end();
}
