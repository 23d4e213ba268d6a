//! Sessions, and what long hunts with random worlds found.

use crate::play::*;

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
