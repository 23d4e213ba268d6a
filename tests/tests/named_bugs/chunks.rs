//! Chunks, decodes and drafts.

use crate::play::*;

#[test]
fn the_next_chunk_waits_for_the_result_of_the_one_before() {
    // ROCm/ATOM#1552, NVIDIA/TensorRT-LLM#9308
    let mut play = Play::new(|c| (c.stages, c.max_batch_tokens) = (3, 4));
    play.submit([shape(1, 20, 1)]).ops([Op::Fill]);
    assert_eq!(play.batches(), [[(1, 0, 4)], [(1, 4, 4)], [(1, 8, 4)]]);
    assert_eq!(*play.last(), Line::Empty(EmptyReason::PipelineFull));
}

#[test]
fn a_middle_chunk_yields_a_token_or_blocks_the_request() {
    // vllm-project/vllm#38726
    let mut play = Play::new(|c| (c.stages, c.max_batch_tokens) = (4, 4));
    play.submit([shape(1, 16, 2)]).ops([Op::Fill]);
    let samples = play.0.records().iter().filter_map(|r| if let Line::Batch(rows, _) = &r.line { Some(rows[0].samples) } else { None });
    assert_eq!(samples.collect::<Vec<_>>(), [false, false, false, true]);
    play.drain();
    assert_eq!(play.stats().output_tokens, 2);
}

#[test]
fn only_one_prompt_may_be_half_done() {
    // sgl-project/sglang#12676
    let mut play = Play::new(|c| {
        (c.max_batch_tokens, c.stages) = (12, 2);
        c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) };
    });
    play.submit((1..=3).map(|id| shape(id, 20, 1))).ops([Op::Fill]);
    assert_eq!(play.batches()[1], [(1, 4, 4), (2, 4, 4), (3, 4, 4)]);
}

#[test]
fn a_continuing_chunk_needs_another_slot() {
    // sgl-project/sglang#23006, #30295
    let mut play = Play::new(|c| (c.max_batch_tokens, c.max_requests) = (4, 1));
    play.submit([shape(1, 12, 1), shape(2, 4, 1)]).drain();
    assert_eq!(play.batches(), [[(1, 0, 4)], [(1, 4, 4)], [(1, 8, 4)], [(2, 0, 4)]]);
}

#[test]
fn outputs_depend_on_how_the_prompt_was_cut() {
    // InternLM/lmdeploy#2457: the driver compares every token with the truth, whatever the budget.
    for budget in [1, 2, 3, 5, 7, 64] {
        for chunks in [1, 3] {
            let mut play = Play::new(|c| (c.max_batch_tokens, c.chunks_per_batch, c.stages) = (budget, chunks, 3));
            play.submit([shape(1, 23, 6), shape(2, 9, 4)]).drain();
            assert_eq!((play.reason(1), play.reason(2)), (Some(FinishReason::Length), Some(FinishReason::Length)));
        }
    }
}

#[test]
fn a_decode_is_scheduled_before_its_token_is_known() {
    // vllm-project/vllm#52071: not even with drafts to offer
    let mut play = Play::new(|c| c.stages = 4);
    play.submit([Shape { drafts: 3, ..shape(1, 4, 8) }]).ops([Op::Fill, Op::Complete, Op::Fill]);
    assert_eq!(play.batches(), [vec![(1, 0, 4)], vec![(1, 4, 4)]], "one batch at a time, though four may be in flight");
}

#[test]
fn rejected_drafts_stay_in_the_cursor() {
    let mut play = Play::new(|_| {});
    play.submit([Shape { drafts: 3, accept: [0, 2], ..shape(1, 4, 12) }]).drain();
    assert_eq!(play.stats().output_tokens, 12);
    assert!(play.stats().accepted_draft_tokens < play.stats().draft_tokens);
}

#[test]
fn accepted_drafts_behind_a_stop_token_are_delivered() {
    let mut play = Play::new(|_| {});
    play.submit([Shape { drafts: 3, accept: [3, 3], stop_at: Some(2), ..shape(1, 4, 12) }]).drain();
    assert_eq!((play.reason(1), play.stats().output_tokens), (Some(FinishReason::Stop), 3));
}

#[test]
fn asynchronous_steps_run_past_the_end() {
    // vllm-project/vllm#27922
    let mut play = Play::new(|c| (c.stages, c.async_scheduling) = (4, true));
    play.submit([shape(1, 4, 3)]).ops([Op::Fill]);
    assert_eq!(play.batches(), [[(1, 0, 4)], [(1, 4, 1)], [(1, 5, 1)]]);
    play.drain();
    // A stop cannot be foreseen: what was run too far is thrown away.
    let mut play = Play::new(|c| (c.stages, c.async_scheduling) = (4, true));
    play.submit([Shape { stop_at: Some(1), ..shape(1, 4, 9) }]).drain();
    assert_eq!((play.reason(1), play.stats().output_tokens), (Some(FinishReason::Stop), 2));
}

#[test]
fn a_stream_of_prompts_starves_decodes() {
    // sgl-project/sglang#32549
    let mut play = Play::new(|c| c.max_batch_tokens = 8);
    play.submit([shape(0, 4, 20)]);
    for id in 1..40 {
        play.submit([shape(id, 8, 1)]).ops([Op::Schedule, Op::Complete]);
    }
    let batches = play.batches();
    let decodes: Vec<usize> = (0..batches.len()).filter(|&n| batches[n].iter().any(|&(id, start, _)| id == 0 && start >= 4)).collect();
    assert!(decodes.windows(2).all(|pair| pair[1] - pair[0] == 1), "{decodes:?}");
    assert_eq!(decodes.len(), 19);
}

#[test]
fn decodes_that_fill_every_batch_starve_prompts() {
    let mut play = Play::new(|c| (c.max_batch_requests, c.max_prompt_wait) = (2, 3));
    play.submit((1..=2).map(|id| shape(id, 2, 60))).ops([Op::Schedule, Op::Complete]).submit([shape(3, 4, 1)]);
    for _ in 0..6 {
        play.ops([Op::Schedule, Op::Complete]);
    }
    let waited = play.batches().iter().skip(1).position(|rows| rows.iter().any(|row| row.0 == 3));
    assert_eq!(waited, Some(3));
}
