//! One test for each bug that other engines had, or that this kernel had on its way: named after what must not happen again.
//!
//! The driver judges every call here as everywhere; these tests say in addition what must come out.

use cpp_sched::{
    Admission, Attos, Chunking, Config, CostModel, EmptyReason, Event, FinishReason, Gate, KvGroup, KvGroups, Pipelining, PolicyKind,
    PreemptedOutput, RequestId, Role, RowKind,
};
use cpp_sched_tests::driver::{Driver, Line, LoggedRow};
use cpp_sched_tests::op::{Extras, Op, Shape};

/// A run under a configuration.
struct Play(Driver);

impl Play {
    fn new(set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        (config.block_size, config.num_blocks) = (4, 64);
        set(&mut config);
        Self(Driver::new(config).expect("a valid configuration"))
    }

    fn ops(&mut self, ops: impl IntoIterator<Item = Op>) -> &mut Self {
        for op in ops {
            self.0.apply(&op).unwrap_or_else(|text| panic!("{op:?}: {text}"));
        }
        self
    }

    fn submit(&mut self, shapes: impl IntoIterator<Item = Shape>) -> &mut Self {
        self.ops(shapes.into_iter().map(Op::Submit))
    }

    fn drain(&mut self) -> &mut Self {
        self.0.drain().unwrap_or_else(|text| panic!("while draining: {text}"));
        self
    }

    /// Rows of the batches so far: (request, start, length).
    fn batches(&self) -> Vec<Vec<(u64, u32, u32)>> {
        let rows = |rows: &[LoggedRow]| rows.iter().map(|row| (row.request.0, row.start, row.len)).collect();
        self.0
            .records()
            .iter()
            .filter_map(|record| if let Line::Batch(batch, _) = &record.line { Some(rows(batch)) } else { None })
            .collect()
    }

    fn last(&self) -> &Line {
        &self.0.records().last().expect("a call").line
    }

    fn events(&self) -> Vec<Event> {
        self.0.records().iter().flat_map(|record| record.events.iter().copied()).collect()
    }

    fn reason(&self, id: u64) -> Option<FinishReason> {
        self.events().into_iter().find_map(|event| match event {
            Event::Finished { request, reason } if request == RequestId(id) => Some(reason),
            _ => None,
        })
    }

    fn stats(&self) -> cpp_sched::Stats {
        self.0.scheduler().stats()
    }
}

fn shape(id: u64, len: u32, max_tokens: u32) -> Shape {
    Shape::new(id, len, max_tokens)
}

/// The first `shared` of `len` tokens are those of family 0.
fn sharing(id: u64, shared: u32, len: u32) -> Shape {
    Shape { shared, ..shape(id, len, 1) }
}

// ---- chunks ------------------------------------------------------------------------------------------------------------------

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

// ---- decodes and drafts ------------------------------------------------------------------------------------------------------

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

// ---- preemption, fences, late results ----------------------------------------------------------------------------------------

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

// ---- order -------------------------------------------------------------------------------------------------------------------

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

// ---- prefix cache ------------------------------------------------------------------------------------------------------------

fn cached(config: &mut Config) {
    config.prefix_caching = true;
    config.stages = 2;
}

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

// ---- aborts and ids ----------------------------------------------------------------------------------------------------------

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

// ---- pipelining and failures -------------------------------------------------------------------------------------------------

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

// ---- transfers ---------------------------------------------------------------------------------------------------------------

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

// ---- a prompt that leaves room to others --------------------------------------------------------------------------------------

/// One nanosecond a token, batches of `target_ns`, and prompts that are early leave room.
fn sharing_space(config: &mut Config, target_ns: u64) {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1);
    (config.cost, config.latency.space_sharing) = (Some(cost), true);
    config.chunking = Chunking::Cost { target_ns, align: 1, min: 1 };
}

fn due(shape: Shape, ttft_slo_ns: u64) -> Shape {
    Shape { ttft_slo_ns: Some(ttft_slo_ns), ..shape }
}

#[test]
fn all_wait_for_a_prompt_that_leaves_room_and_lacks_a_block() {
    let mut play = Play::new(|c| {
        sharing_space(c, 1000);
        c.chunking = Chunking::Cost { target_ns: 1000, align: 2, min: 1 };
        (c.block_size, c.num_blocks, c.max_model_len, c.max_batch_tokens, c.draft_slots) = (3, 23, Some(74), 3, 1);
        (c.admission, c.policy, c.max_requests) = (Admission::Lazy, PolicyKind::Lars, 2);
        (c.lookahead_tokens, c.stages, c.pipelining, c.chunks_per_batch) = (1, 4, Pipelining::None, 2);
        c.cost = c.cost.map(|mut cost| {
            (cost.c2, cost.prefill_read) = (Attos(3_300_000_007), Attos(700_000_000));
            cost
        });
    });
    // The second one comes first and keeps all of the batch for itself; the block that it lacks is the first one's to give back.
    play.submit([due(shape(1, 59, 1), 60_000), due(shape(2, 61, 1), 60_000)]).drain();
}

#[test]
fn a_prompt_that_leaves_room_brings_an_adapter_too_many() {
    let with = |id: u64, len: u32, adapter: u32| {
        let shape = due(shape(id, len, 1), 60_000);
        Shape { extras: Extras { adapter: Some(adapter), ..Extras::default() }, ..shape }
    };
    let mut play = Play::new(|c| {
        sharing_space(c, 10);
        (c.max_adapters_per_batch, c.stages) = (Some(1), 2);
    });
    play.submit([with(1, 40, 1)]).ops([Op::Schedule, Op::Complete]).submit([with(2, 3, 2)]).drain();
}

#[test]
fn those_that_got_the_room_shut_the_encoder_to_the_one_that_left_it() {
    let with = |spans: u8, shape: Shape| Shape { extras: Extras { spans, ..Extras::default() }, ..shape };
    let mut play = Play::new(|c| {
        sharing_space(c, 60);
        (c.block_size, c.num_blocks, c.encoder_cache_tokens) = (2, 66, Some(5));
        (c.admission, c.policy, c.chunks_per_batch, c.stages) = (Admission::Lazy, PolicyKind::Priority, 4, 2);
        c.cost = c.cost.map(|mut cost| {
            (cost.c3, cost.c4) = (Attos::from_ns(7), Attos(250_000_000));
            cost
        });
    });
    let first = Shape { shared: 16, gated: true, drafts: 3, accept: [1, 0], ..due(shape(11, 78, 10), 5000) };
    let second = Shape { shared: 76, family: 2, salt: 1, priority: -1, ..due(shape(2, 76, 3), 60_000) };
    play.submit([with(70, first), with(97, second)]).drain();
}

// ---- forks --------------------------------------------------------------------------------------------------------------------

#[test]
fn what_a_lost_copy_held_is_computed_again_and_counted_once() {
    let mut play = Play::new(|c| c.block_size = 16);
    play.submit([shape(1, 5, 20)]).ops([Op::Schedule, Op::Complete, Op::Fork { parent: 1, child: shape(2, 1, 17) }]);
    play.ops([Op::Schedule, Op::Fail]).drain();
}

#[test]
fn a_fork_that_waits_holds_the_block_that_its_parent_needs_for_a_copy() {
    let mut play = Play::new(|c| {
        (c.num_blocks, c.lookahead_tokens, c.admission) = (6, 3, Admission::NoEvict);
    });
    play.submit([Shape { drafts: 3, accept: [2, 1], ..shape(6, 17, 37) }]).ops([Op::Schedule, Op::Complete, Op::Schedule, Op::Complete]);
    play.ops([Op::Fork { parent: 6, child: shape(12, 6, 1) }]).drain();
}

#[test]
fn a_copy_for_a_fork_takes_a_block_that_its_parent_has_set_aside() {
    let mut play = Play::new(|c| {
        (c.block_size, c.num_blocks, c.max_requests) = (2, 7, 1);
        (c.admission, c.role) = (Admission::NoEvict, Role::Decode);
    });
    // All seven are set aside: five for the first one, which has the only slot, and two for the second one.
    play.submit([shape(1, 1, 10), shape(2, 1, 3)]).ops([Op::KvFailed(1), Op::Schedule, Op::Complete]);
    play.ops([Op::Fork { parent: 1, child: shape(3, 1, 2) }]).drain();
    assert_eq!(play.stats().preemptions, 0);
}

#[test]
fn a_fork_that_got_a_slot_without_a_row_and_gave_it_up_again_is_not_counted_among_those_that_wait_again() {
    let mut play = Play::new(|c| (c.num_blocks, c.max_requests, c.stages, c.admission) = (2, 3, 2, Admission::Lazy));
    play.submit([shape(1, 3, 3), shape(2, 3, 2)]).ops([Op::Schedule, Op::Complete, Op::Schedule]);
    // No block is left for a copy of what it shares, so it is admitted and gets no row.
    play.ops([Op::Fork { parent: 1, child: shape(3, 3, 2) }, Op::Schedule]);
    assert_eq!((play.last(), play.stats().admissions), (&Line::Empty(EmptyReason::NoBlocks), 3));
    play.ops([Op::Shut(3, Gate::Grammar)]).submit([shape(4, 3, 2)]).ops([Op::Schedule]);
    assert_eq!((play.stats().running, play.stats().waiting_for.again), (2, 1));
    play.drain();
    assert_eq!(play.stats().admissions, 5, "the fork twice");
}

#[test]
fn a_fork_writes_into_a_block_of_a_row_in_flight_of_its_preempted_parent() {
    let gated = |shape: Shape| Shape { gated: true, ..shape };
    let mut play = Play::new(|c| {
        (c.block_size, c.num_blocks, c.stages) = (1, 15, 2);
        (c.admission, c.policy, c.max_batch_tokens) = (Admission::Lazy, PolicyKind::Priority, 6);
    });
    play.submit([Shape { drafts: 3, accept: [3, 1], ..shape(22, 2, 20) }]);
    play.ops([Op::Schedule, Op::Complete, Op::Schedule, Op::Complete]);
    play.submit([gated(Shape { priority: -1, ..shape(20, 5, 40) })]);
    play.ops([Op::Fork { parent: 22, child: gated(Shape { priority: -1, ..shape(18, 1, 18) }) }, Op::Schedule, Op::Complete]);
    play.drain();
}

/// A request of 14 tokens that is two blocks far, forked by another behind a gate: its first block is shared, and it writes into the second.
fn forked_while_ahead(parent: Shape) -> Play {
    let mut play = Play::new(|c| (c.block_size, c.async_scheduling, c.stages) = (16, true, 4));
    play.submit([parent]).ops([Op::Schedule, Op::Schedule, Op::Complete, Op::Schedule]);
    play.ops([Op::Fork { parent: 1, child: Shape { gated: true, ..shape(2, 1, 6) } }, Op::Schedule]);
    assert_eq!(play.batches().concat(), [(1, 0, 14), (1, 14, 1), (1, 15, 1), (1, 16, 1)]);
    play
}

#[test]
fn a_failure_takes_a_parent_back_into_the_block_that_its_fork_holds() {
    forked_while_ahead(shape(1, 14, 10)).ops([Op::Fail, Op::Schedule]).drain();
}

#[test]
fn a_lost_batch_takes_a_parent_back_into_the_block_that_its_fork_holds() {
    forked_while_ahead(shape(1, 14, 10)).ops([Op::Lose(0), Op::Schedule]).drain();
}

#[test]
fn a_stop_takes_a_session_back_into_the_block_that_its_fork_holds() {
    let session = Shape { stop_at: Some(1), extras: Extras { session: true, ..Extras::default() }, ..shape(1, 14, 10) };
    let mut play = forked_while_ahead(session);
    play.ops([Op::Complete, Op::Extend { id: 1, len: 3, max_tokens: 3, author: 8 }, Op::Schedule]).drain();
}

#[test]
fn a_row_that_ran_before_a_lost_copy_is_no_reason_to_believe_in_it() {
    let mut play = Play::new(|c| (c.block_size, c.async_scheduling, c.stages) = (16, true, 3));
    play.submit([shape(1, 5, 20)]).ops([Op::Schedule, Op::Schedule, Op::Complete]);
    play.ops([Op::Fork { parent: 1, child: Shape { gated: true, ..shape(2, 1, 6) } }, Op::Schedule, Op::Lose(1), Op::Complete]);
    play.drain();
}

/// A session whose output has ended while a batch is in flight that copies the block for it which it shares with a fork behind a gate.
fn paused_with_a_copy_under_way() -> Play {
    let mut play = Play::new(|c| (c.block_size, c.async_scheduling, c.stages) = (16, true, 3));
    play.submit([Shape { stop_at: Some(1), extras: Extras { session: true, ..Extras::default() }, ..shape(1, 5, 20) }]);
    play.ops([Op::Schedule, Op::Schedule, Op::Complete]);
    play.ops([Op::Fork { parent: 1, child: Shape { gated: true, ..shape(2, 1, 6) } }, Op::Schedule, Op::Complete]);
    assert!(matches!(play.events().last(), Some(Event::Paused { .. })));
    play
}

fn more(id: u64) -> Op {
    Op::Extend { id, len: 9, max_tokens: 2, author: 24 }
}

#[test]
fn a_paused_session_believes_in_a_copy_that_was_lost() {
    for lost in [Op::Fail, Op::Lose(0)] {
        paused_with_a_copy_under_way().ops([lost, more(1), Op::Schedule]).drain();
    }
}

#[test]
fn a_session_that_goes_on_believes_in_a_copy_that_was_lost() {
    for lost in [Op::Fail, Op::Lose(0)] {
        paused_with_a_copy_under_way().ops([more(1), lost, Op::Schedule]).drain();
    }
    for lost in [Op::Fail, Op::Lose(0)] {
        paused_with_a_copy_under_way().ops([more(1), Op::Schedule, lost, Op::Schedule]).drain();
    }
}

#[test]
fn a_fork_writes_into_the_block_that_its_parent_leaves_by_a_copy_and_runs_on_in_a_batch_before() {
    let mut play = Play::new(|c| (c.block_size, c.async_scheduling, c.stages) = (16, true, 3));
    play.submit([shape(1, 5, 7)]).ops([Op::Schedule, Op::Schedule, Op::Complete]);
    play.ops([Op::Fork { parent: 1, child: shape(2, 1, 6) }, Op::Schedule]);
    assert_eq!(play.batches()[2], [(1, 6, 1), (2, 4, 1)]);
    play.drain();
}

#[test]
fn what_a_prompt_leaves_to_others_raises_the_target() {
    // It keeps the smallest chunk, a grain, which costs more than the whole target: what is left cannot be less than nothing.
    let mut play = Play::new(|c| {
        sharing_space(c, 200);
        c.chunking = Chunking::Cost { target_ns: 200, align: 3, min: 3 };
        c.cost = c.cost.map(|mut cost| {
            (cost.c1, cost.c2, cost.c3, cost.prefill_read) =
                (Attos::from_ns(10), Attos(3_300_000_007), Attos::from_ns(7), Attos(700_000_000));
            cost
        });
        (c.block_size, c.num_blocks, c.max_batch_requests) = (16, 256, 2);
        (c.latency.max_prefill_wait_ns, c.latency.max_decode_wait) = (Some(1), 1);
        c.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::State { grain: 16 }]).expect("two groups");
    });
    let first = Shape { shared: 4, salt: 1, stop_at: Some(3), priority: -1, ..due(shape(35, 62, 7), 60_000) };
    let second = Shape { shared: 12, salt: 1, priority: 1, ..due(shape(3, 60, 12), 60_000) };
    let third = Shape { lengths: true, hashed: false, ..due(shape(15, 5, 58), 100) };
    play.submit([first]).ops([Op::Schedule]).submit([second, third]).drain();
}

// ---- sessions -----------------------------------------------------------------------------------------------------------------

#[test]
fn a_lost_row_of_a_session_that_goes_on_is_held_against_one_that_ran_past_its_end() {
    let mut play = Play::new(|c| (c.async_scheduling, c.stages, c.max_batch_tokens) = (true, 4, 1));
    play.submit([Shape { stop_at: Some(0), extras: Extras { session: true, ..Extras::default() }, ..shape(1, 2, 8) }]);
    play.ops([Op::Schedule, Op::Complete, Op::Schedule, Op::Schedule, Op::Schedule, Op::Complete]);
    // The token behind the prompt is known by now; a batch in flight has written it, and the next one does so again.
    play.ops([more(1), Op::Schedule, Op::Lose(2), Op::Complete]).drain();
}

#[test]
fn sessions_that_go_on_hold_what_each_other_lacks_where_nobody_is_preempted() {
    let session = |shape: Shape| Shape { extras: Extras { session: true, ..Extras::default() }, ..shape };
    let mut play = Play::new(|c| (c.block_size, c.num_blocks, c.admission) = (8, 5, Admission::NoEvict));
    play.submit([session(shape(1, 16, 1)), session(shape(2, 24, 1))]).ops([Op::Fill, Op::Complete, Op::Fill, Op::Complete]);
    play.ops([more(1), more(2)]).drain();
}

#[test]
fn a_request_that_has_lost_all_its_rows_and_gives_its_slot_away_starts_again_for_workers_too() {
    let mut play = Play::new(|c| {
        (c.admission, c.block_size, c.max_model_len, c.max_requests) = (Admission::NoEvict, 1, Some(8), 1);
        c.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Full, KvGroup::State { grain: 3 }, KvGroup::Cross]).expect("four groups");
    });
    play.submit([Shape { extras: Extras { pooling: true, ..Extras::default() }, ..shape(2, 1, 7) }]);
    play.ops([Op::Schedule, Op::Shut(2, Gate::Grammar), Op::Fail]).submit([shape(3, 7, 9)]).ops([Op::Fill]).drain();
}

#[test]
fn a_request_that_starts_anew_after_it_has_given_its_slot_away_has_no_blocks_for_workers() {
    let session = |shape: Shape| Shape { extras: Extras { session: true, ..Extras::default() }, ..shape };
    let mut play = Play::new(|c| (c.block_size, c.max_requests, c.prefix_caching) = (3, 1, true));
    play.submit([session(shape(0, 5, 1))]).ops([Op::Schedule, Op::Shut(0, Gate::Grammar)]);
    play.submit([Shape { stop_at: Some(1), ..session(shape(3, 6, 8)) }]).ops([Op::Fail, Op::Schedule]).drain();
}

#[test]
fn what_a_session_writes_after_a_lost_batch_that_ran_past_its_end_stands() {
    let mut play = Play::new(|c| {
        (c.async_scheduling, c.async_distance, c.block_size, c.max_prompt_tokens_per_batch) = (true, 2, 2, Some(2));
        (c.stages, c.max_in_flight) = (4, Some(6));
    });
    play.submit([Shape { stop_at: Some(1), extras: Extras { session: true, ..Extras::default() }, ..shape(1, 3, 8) }]);
    play.ops([Op::Schedule, Op::Schedule, Op::Complete, Op::Complete, Op::Schedule, Op::Fork { parent: 1, child: shape(3, 1, 2) }]);
    play.ops([Op::Schedule, Op::Schedule, Op::Complete, Op::Schedule, Op::Extend { id: 1, len: 5, max_tokens: 2, author: 16 }]);
    play.ops([Op::Schedule, Op::Lose(1)]).drain();
}

#[test]
fn a_request_whose_first_row_is_a_decode_may_use_what_is_set_aside_for_it() {
    let mut play = Play::new(|c| {
        (c.admission, c.block_size, c.num_blocks, c.lookahead_tokens, c.max_batch_tokens) = (Admission::Lazy, 3, 6, 3, 1);
        (c.policy, c.prefix_caching, c.stages) = (PolicyKind::Fair, true, 2);
        c.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::ChunkedLocal { tokens: 1 }]).expect("two groups");
        let mut cost = CostModel::default();
        (cost.c1, cost.c3, cost.c5, cost.prefill_read) = (Attos::from_ns(10), Attos::from_ns(7), Attos::from_ns(20), Attos(700_000_000));
        c.cost = Some(cost);
    });
    let constrained = |session| Extras { constrained: true, session, ..Extras::default() };
    let tenant = |shape: Shape| Shape { tenant: Some(2), accept: [0, 2], ..shape };
    let first = Shape {
        shared: 2,
        gated: true,
        lengths: true,
        hashed: true,
        drafts: 3,
        stop_at: Some(4),
        extras: constrained(false),
        ..shape(8, 2, 5)
    };
    let second = Shape { shared: 1, family: 1, drafts: 1, weight_millionths: 3_000_000, extras: constrained(true), ..shape(2, 1, 3) };
    let third = Shape { gated: true, drafts: 3, accept: [1, 0], extras: constrained(true), ..shape(4, 2, 3) };
    play.submit([tenant(first), tenant(second), third]).ops([Op::Schedule]).drain();
}

#[test]
fn what_others_had_encoded_is_looked_for_after_they_have_given_way() {
    let mut play = Play::new(|c| {
        (c.admission, c.block_size, c.num_blocks, c.chunking) = (Admission::Lazy, 4, 17, Chunking::Tokens { max: Some(10) });
        (c.encoder_budget_tokens, c.max_adapters_per_batch, c.max_batch_requests) = (Some(5), Some(1), 4);
        (c.stages, c.max_in_flight, c.pipelining) = (4, Some(2), Pipelining::Request);
        (c.policy, c.prefix_caching) = (PolicyKind::Lars, true);
        let mut cost = CostModel::default();
        (cost.c1, cost.c2, cost.c4) = (Attos::from_ns(1), Attos(500_000_000), Attos(250_000_000));
        (cost.linear_floor, cost.prefill_read) = (Attos::from_ns(90), Attos(700_000_000));
        c.cost = Some(cost);
    });
    let extras = |spans, adapter| Extras { spans, adapter, ..Extras::default() };
    play.submit([
        Shape { shared: 48, priority: 1, drafts: 3, accept: [1, 0], extras: extras(175, None), ..shape(9, 53, 2) },
        Shape {
            shared: 35,
            family: 1,
            lengths: true,
            extras: Extras { constrained: true, pooling: true, ..extras(23, Some(1)) },
            ..shape(25, 45, 2)
        },
        Shape {
            shared: 15,
            family: 1,
            ttft_slo_ns: Some(5000),
            extras: Extras { skip_cache_read: true, ..extras(200, Some(2)) },
            ..shape(16, 15, 4)
        },
        Shape {
            shared: 13,
            family: 2,
            salt: 1,
            extras: Extras { constrained: true, session: true, ..extras(244, None) },
            ..shape(23, 13, 3)
        },
        Shape {
            shared: 8,
            family: 1,
            ttft_slo_ns: Some(60_000),
            extras: Extras { constrained: true, ..extras(89, None) },
            ..shape(28, 16, 4)
        },
        Shape {
            shared: 21,
            family: 2,
            ttft_slo_ns: Some(5000),
            extras: Extras { constrained: true, ..extras(53, Some(1)) },
            ..shape(30, 21, 4)
        },
        Shape { shared: 24, lengths: true, extras: Extras { pooling: true, ..extras(165, Some(2)) }, ..shape(11, 29, 4) },
    ]);
    play.drain();
}
