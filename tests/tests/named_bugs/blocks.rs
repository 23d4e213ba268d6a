//! The prefix cache, aborts, lost batches and transfers.

use crate::play::*;

#[test]
fn what_is_being_computed_is_hit() {
    // NVIDIA/TensorRT-LLM#13318, ROCm/ATOM#939
    let mut play = Play::new(cached);
    play.submit([sharing(1, 12, 12), sharing(2, 12, 13)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[0], [(1, 0, 12), (2, 0, 13)]);
    play.ops([Op::Complete]).submit([sharing(3, 12, 13)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(3, 12, 1)]);
    play.drain();
}

#[test]
fn a_full_hit_leaves_nothing_to_compute() {
    let mut play = Play::new(cached);
    play.submit([sharing(1, 12, 12)]).drain().submit([sharing(2, 12, 12)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 8, 4)]);
    play.drain();
}

#[test]
fn a_failed_batch_leaves_hits_behind() {
    // vllm-project/vllm#54962
    let mut play = Play::new(cached);
    play.submit([sharing(1, 12, 12)]).ops([Op::Schedule, Op::Fail, Op::Abort(1)]).submit([sharing(2, 12, 13)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 13)]);
    play.drain();
}

#[test]
fn what_was_scheduled_before_a_reset_is_hit_after_it() {
    let mut play = Play::new(cached);
    play.submit([sharing(1, 12, 12)]).ops([Op::Schedule, Op::ResetPrefixCache, Op::Complete]);
    play.submit([sharing(2, 12, 13)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 13)]);
    play.drain();
}

#[test]
fn tenants_find_each_others_prefixes() {
    let mut play = Play::new(cached);
    play.submit([sharing(1, 12, 12)]).drain().submit([Shape { salt: 1, ..sharing(2, 12, 13) }]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 13)]);
    play.drain();
}

#[test]
fn the_last_result_of_a_request_publishes_blocks_that_it_has_given_up() {
    // Ours: a panic where the token that ended the request also made a block whole.
    let mut play = Play::new(cached);
    play.submit([Shape { max_tokens: 5, ..sharing(1, 8, 8) }]).drain();
    assert_eq!(play.0.scheduler().kv_usage().cached, 3);
}

#[test]
fn a_token_leaks_after_an_abort() {
    // vllm-project/vllm#29987, sgl-project/sglang#34112
    let mut play = Play::new(|c| c.stages = 2);
    play.submit([shape(1, 4, 1)]).ops([Op::Schedule, Op::Abort(1), Op::Complete]);
    assert_eq!(play.events(), [Event::Finished { request: RequestId(1), reason: FinishReason::Aborted }]);
}

#[test]
fn an_abort_does_not_find_requests_in_later_batches() {
    // sgl-project/sglang#29405, vllm-project/vllm#6586
    for victim in 1..=4 {
        let mut play = Play::new(|c| (c.stages, c.max_batch_requests) = (4, 1));
        play.submit((1..=4).map(|id| shape(id, 4, 3))).ops([Op::Fill, Op::Abort(victim)]).drain();
        assert_eq!(play.reason(victim), Some(FinishReason::Aborted));
        assert_eq!(play.stats().finished, 3);
    }
}

#[test]
fn a_result_of_a_former_request_goes_to_the_new_one_of_the_same_id() {
    let mut play = Play::new(|c| (c.stages, c.async_scheduling) = (3, true));
    play.submit([Shape { stop_at: Some(0), ..shape(1, 4, 9) }]).ops([Op::Fill, Op::Complete]);
    // It has ended, two more steps of it are in flight, and its name is used again.
    assert_eq!(play.0.scheduler().in_flight(), 2);
    play.submit([Shape { author: 77, ..shape(1, 6, 2) }]).drain();
    assert_eq!(play.stats().output_tokens, 3);
}

#[test]
fn a_refusal_is_inherited_by_the_next_request_in_the_same_slot() {
    // Ours: the memo of a head without blocks outlived the request.
    let mut play = Play::new(|c| (c.block_size, c.num_blocks, c.stages) = (8, 5, 4));
    play.submit([shape(1, 30, 1)]).ops([Op::Schedule]).submit([shape(2, 25, 1)]).ops([Op::Schedule, Op::Abort(2)]);
    play.submit([shape(3, 4, 1)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(3, 0, 4)]);
    play.drain();
}

#[test]
fn a_duplicate_id_harms_the_living_one() {
    let mut play = Play::new(|_| {});
    play.submit([shape(1, 8, 3), shape(1, 3, 1)]).drain();
    assert_eq!((play.stats().rejected, play.stats().output_tokens), (1, 3));
}

#[test]
fn a_request_is_in_two_batches_although_one_is_allowed() {
    let mut play = Play::new(|c| (c.stages, c.max_batch_tokens, c.pipelining) = (4, 4, Pipelining::Request));
    play.submit([shape(1, 12, 1), shape(2, 12, 1)]).ops([Op::Fill]);
    assert_eq!(play.batches(), [[(1, 0, 4)], [(2, 0, 4)]]);
    play.drain();
}

#[test]
fn a_failure_loses_or_repeats_tokens() {
    let mut play = Play::new(|c| (c.stages, c.max_batch_tokens, c.prefix_caching) = (3, 6, true));
    play.submit([Shape { drafts: 2, accept: [1, 0], ..shape(1, 10, 9) }, shape(2, 7, 5)]);
    for _ in 0..8 {
        play.ops([Op::Fill, Op::Complete, Op::Fill, Op::Fail]);
    }
    play.drain();
    assert_eq!(play.stats().output_tokens, 14);
    let decodes = play.0.records().iter().filter_map(|r| if let Line::Batch(rows, _) = &r.line { Some(rows) } else { None });
    assert!(decodes.flatten().any(|row| row.kind == RowKind::Decode && row.drafts > 0));
}

#[test]
fn requests_that_hold_received_blocks_and_one_that_lacks_them_wait_for_each_other() {
    // Ours: role decode. The head was preempted, and those behind it hold what it needs.
    let mut play = Play::new(|c| (c.num_blocks, c.admission, c.role) = (2, Admission::Lazy, Role::Decode));
    play.submit([shape(0, 1, 5), shape(17, 3, 5), shape(1, 1, 1), shape(2, 1, 1)]).drain();
    assert_eq!(play.stats().finished, 4);
    // The same without a preemption: its KV did not come.
    let mut play = Play::new(|c| (c.num_blocks, c.admission, c.role) = (2, Admission::NoEvict, Role::Decode));
    play.submit([shape(13, 1, 1), shape(0, 1, 1), shape(1, 1, 1)]).ops([Op::KvFailed(13)]).drain();
    assert_eq!(play.stats().finished, 3);
}

#[test]
fn a_gated_request_keeps_the_blocks_that_another_one_needs() {
    let mut play = Play::new(|c| (c.num_blocks, c.admission, c.role) = (18, Admission::Lazy, Role::Decode));
    play.submit([Shape { gated: true, ..shape(0, 9, 1) }]).ops([Op::KvArrived(0)]);
    play.submit([shape(1, 57, 5)]).ops([Op::KvArrived(1)]);
    for _ in 0..8 {
        play.ops([Op::Schedule, Op::Complete]);
    }
    assert_eq!(play.reason(1), Some(FinishReason::Length), "nobody has opened the gate of the other one");
    play.drain();
}

#[test]
fn blocks_are_given_away_while_they_are_sent() {
    // ai-dynamo/dynamo#826, sgl-project/sglang#24527
    let mut play = Play::new(|c| (c.num_blocks, c.role) = (4, Role::Prefill));
    play.submit([shape(1, 15, 1)]).ops([Op::Schedule, Op::Complete, Op::Abort(1)]).submit([shape(2, 4, 1)]).ops([Op::Schedule]);
    assert!(matches!(play.last(), Line::Empty(_)));
    play.ops([Op::KvSent(1), Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 4)]);
    play.drain();
}

#[test]
fn why_is_asked_before_the_first_batch() {
    // Ours: a division by zero.
    let mut play = Play::new(|c| (c.num_blocks, c.admission) = (2, Admission::Lazy));
    play.submit([shape(1, 5, 1)]);
    assert!(play.0.scheduler().why(RequestId(1)).is_some());
}
