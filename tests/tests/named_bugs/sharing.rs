//! A prompt that leaves room to others; forks.

use crate::play::*;

/// One nanosecond a token, batches of `target_ns`, and prompts that are early leave room.
fn sharing_space(config: &mut Config, target_ns: u64) {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1);
    (config.cost, config.latency.space_sharing) = (Some(cost), true);
    config.chunking = Chunking::Cost { target_ns, align: 1, min: 1 };
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
