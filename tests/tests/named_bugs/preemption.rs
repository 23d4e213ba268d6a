//! Preemption, fences, late results, and who comes first.

use crate::play::*;

#[test]
fn everybody_is_preempted_because_the_first_victim_is_fenced() {
    // vllm-project/vllm#49674
    let mut play = Play::new(|c| (c.num_blocks, c.stages, c.admission) = (6, 2, Admission::Lazy));
    play.submit((1..=3).map(|id| shape(id, 8, 8)));
    for _ in 0..6 {
        play.ops([Op::Fill, Op::Complete]);
    }
    let most = play.0.records().iter().map(|r| r.events.iter().filter(|e| matches!(e, Event::Preempted { .. })).count()).max();
    assert_eq!(most, Some(1), "one victim a call");
    play.drain();
    assert_eq!(play.stats().finished, 3);
}

#[test]
fn blocks_of_an_aborted_request_are_used_under_its_running_batch() {
    // vllm-project/vllm-ascend#14055
    let mut play = Play::new(|c| (c.num_blocks, c.stages) = (4, 2));
    play.submit([shape(1, 15, 1)]).ops([Op::Schedule, Op::Abort(1)]).submit([shape(2, 15, 1)]).ops([Op::Schedule]);
    assert_eq!(*play.last(), Line::Empty(EmptyReason::NoBlocks));
    play.ops([Op::Complete, Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 15)]);
    play.drain();
}

#[test]
fn a_late_result_is_lost_or_counted_twice() {
    // vllm-project/vllm#49620, sgl-project/sglang#39645
    for output in [PreemptedOutput::Deliver, PreemptedOutput::Drop] {
        let mut play = Play::new(|c| {
            (c.num_blocks, c.block_size, c.stages) = (6, 2, 3);
            (c.admission, c.preempted_output) = (Admission::Lazy, output);
        });
        play.submit((1..=3).map(|id| shape(id, 4, 6))).drain();
        assert!(play.stats().preemptions > 0);
        assert_eq!((play.stats().output_tokens, play.stats().finished), (18, 3), "{output:?}");
    }
}

#[test]
fn a_request_that_fills_the_pool_never_ends() {
    // sgl-project/sglang#19881
    for admission in [Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict] {
        let mut play = Play::new(|c| (c.num_blocks, c.admission, c.stages) = (4, admission, 3));
        play.submit([shape(1, 10, 7), shape(2, 4, 4)]).drain();
        assert_eq!(play.stats().finished, 2, "{admission:?}");
    }
}

#[test]
fn what_is_accepted_could_not_run_alone() {
    // sgl-project/sglang#29249, #5081, vllm-project/vllm#1534
    for admission in [Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict] {
        for len in 1..20 {
            for max_tokens in [1, 2, 5, 100] {
                let mut play = Play::new(|c| (c.num_blocks, c.max_model_len, c.admission) = (4, Some(19), admission));
                // The driver knows which ones must be refused, and drains the others.
                play.submit([shape(1, len, max_tokens)]).drain();
            }
        }
    }
}

#[test]
fn prompts_are_admitted_chunk_by_chunk_and_thrown_out_again() {
    // vllm-project/vllm#21793, #25538, ai-dynamo/dynamo#9718
    let mut play = Play::new(|c| (c.num_blocks, c.max_batch_tokens, c.stages) = (12, 4, 4));
    play.submit((1..=4).map(|id| shape(id, 15, 1))).drain();
    assert_eq!(play.stats().preemptions, 0);
}

#[test]
fn blocks_freed_for_one_request_go_to_its_victim() {
    // Ours: two requests under a policy whose order is not that of victims took turns for ever.
    for policy in [PolicyKind::Lars, PolicyKind::Srpf, PolicyKind::Fair] {
        let mut play = Play::new(|c| {
            (c.block_size, c.num_blocks, c.max_batch_requests, c.max_in_flight) = (1, 21, 1, Some(2));
            (c.admission, c.policy, c.max_prompt_tokens_per_batch) = (Admission::Lazy, policy, Some(6));
        });
        let urgent = |id, len, max_tokens| Shape { ttft_slo_ns: Some(100), ..shape(id, len, max_tokens) };
        play.submit([shape(5, 19, 1), urgent(6, 1, 1), urgent(2, 15, 1)]).ops([Op::Schedule]);
        play.submit([urgent(8, 14, 3)]).drain();
        assert_eq!(play.stats().finished, 4, "{policy:?}");
    }
}

#[test]
fn a_small_request_passes_the_head_that_waits_for_blocks() {
    // vllm-project/vllm#31731
    let mut play = Play::new(|c| c.num_blocks = 8);
    play.submit([shape(1, 16, 4), shape(2, 30, 1), shape(3, 2, 1)]).ops([Op::Schedule, Op::Complete, Op::Schedule]);
    assert!(play.batches().iter().flatten().all(|row| row.0 == 1), "{:?}", play.batches());
    // It may, where the configuration says so.
    let mut play = Play::new(|c| (c.num_blocks, c.max_bypass) = (8, 1));
    play.submit([shape(1, 16, 4), shape(2, 30, 1), shape(3, 2, 1)]).ops([Op::Schedule]);
    assert_eq!(play.batches()[0], [(1, 0, 16), (3, 0, 2)]);
    play.drain();
}

#[test]
fn a_long_prompt_of_low_priority_eats_the_whole_budget() {
    // vllm-project/vllm#24365
    let mut play = Play::new(|c| (c.policy, c.max_batch_tokens) = (PolicyKind::Priority, 8));
    play.submit([Shape { priority: 9, ..shape(1, 100, 1) }]).ops([Op::Schedule, Op::Complete]);
    play.submit([Shape { priority: 1, ..shape(2, 6, 1) }]).ops([Op::Schedule]);
    assert_eq!(play.batches()[1], [(2, 0, 6), (1, 8, 2)]);
}

#[test]
fn equal_priorities_are_compared_by_chance() {
    // vllm-project/vllm#29764
    let mut play = Play::new(|c| (c.policy, c.max_batch_requests) = (PolicyKind::Priority, 1));
    play.submit([7, 3, 9, 1].map(|id| shape(id, 4, 1))).drain();
    let order: Vec<u64> = play.batches().iter().map(|rows| rows[0].0).collect();
    assert_eq!(order, [7, 3, 9, 1]);
}
