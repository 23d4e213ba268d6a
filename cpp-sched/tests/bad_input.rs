//! Input that no careful caller gives, found by a reader who looked for it: an error or an outcome, and never a panic or a hang.

use cpp_sched::planner::{
    BusyPeriod, Calibrator, Grid, MAX_SEGMENTS, Question, Rules, Segment, StageCalibrator, Work, choose_target, fitting_chunk, lay_out,
    longest_chunk, smallest_chunk,
};
use cpp_sched::wire::{EncodeError, Encoder, Mirror};
use cpp_sched::{Attos, Chunking, Config, CostModel, CostTerms, KvGroup, KvGroups, Request, RequestId, Role, Row, Sample, Scheduler};

fn request(id: u64, prompt: usize, outputs: u32) -> Request {
    Request::new(RequestId(id), vec![1; prompt], outputs)
}

fn cost(c0_ns: u64, c1_ns: u64) -> CostModel {
    let mut cost = CostModel::default();
    (cost.c0, cost.c1) = (Attos::from_ns(c0_ns), Attos::from_ns(c1_ns));
    cost
}

fn with(mut cost: CostModel, set: impl FnOnce(&mut CostModel)) -> CostModel {
    set(&mut cost);
    cost
}

/// Completes the oldest batch with one token for each row that samples.
fn complete(scheduler: &mut Scheduler) {
    let batch = scheduler.oldest_in_flight().expect("one is in flight").clone();
    let sampling = batch.rows().iter().filter(|row| row.samples);
    let samples: Vec<_> = sampling.map(|row| Sample { request: row.request, tokens: &[1] }).collect();
    scheduler.complete(batch.id(), &samples).expect("as scheduled");
}

/// An encoder that is kept while its scheduler goes back to an earlier state: at first numbers repeat, then they meet again.
#[test]
fn an_encoder_refuses_batches_of_a_scheduler_that_went_back() {
    let mut scheduler = Scheduler::new(Config::default()).expect("valid");
    scheduler.submit(request(1, 10, 50)).expect("fits");
    let mut encoder = Encoder::new(scheduler.config());
    let (mut mirror, mut message) = (Mirror::new(scheduler.config()), Vec::new());
    let mut earlier = scheduler.clone();
    for _ in 0..5 {
        message.clear();
        encoder.encode(&scheduler.schedule().batch().expect("work"), &mut message).expect("in order");
        mirror.apply(&message).expect("as told");
        complete(&mut scheduler);
    }
    // Batches are lost, so that the numbers run ahead of the tokens.
    for number in 0..8 {
        message.clear();
        let answer = encoder.encode(&earlier.schedule().batch().expect("work"), &mut message);
        match answer {
            Err(EncodeError::Order { .. }) if number < 5 => {}
            Err(EncodeError::Foreign(_) | EncodeError::Order { .. }) if number >= 5 => {}
            other => panic!("batch {number}: {other:?}"),
        }
        assert_eq!((message.len(), encoder.sequence()), (0, 5));
        earlier.fail();
    }
    // The other way round: losses that were told are not there.
    let mut encoder = Encoder::attach(&earlier);
    let mut lossless = Scheduler::new(Config::default()).expect("valid");
    lossless.submit(request(1, 10, 50)).expect("fits");
    for _ in 0..12 {
        let answer = encoder.encode(&lossless.schedule().batch().expect("work"), &mut message);
        assert!(matches!(answer, Err(EncodeError::Order { .. } | EncodeError::Foreign(_))), "{answer:?}");
        complete(&mut lossless);
    }
}

#[test]
fn an_encoder_of_another_configuration_says_so() {
    let mut scheduler = Scheduler::new(Config::default()).expect("valid");
    scheduler.submit(request(1, 40, 50)).expect("fits");
    let batch = scheduler.schedule().batch().expect("work");
    let mut out = Vec::new();
    let mut other = *scheduler_config();
    other.block_size *= 2;
    assert!(matches!(Encoder::new(&other).encode(&batch, &mut out), Err(EncodeError::Geometry { .. })));
    let mut other = *scheduler_config();
    other.num_blocks += 1;
    let mut encoder = Encoder::new(&other);
    assert!(matches!(encoder.encode(&batch, &mut out), Err(EncodeError::Geometry { .. })));
    let mut other = *scheduler_config();
    other.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 32 }]).expect("valid");
    assert_eq!(Encoder::new(&other).encode(&batch, &mut out), Err(EncodeError::Groups));
    assert!(matches!(encoder.transfer(&scheduler, RequestId(1), 0, 4, &mut out), Err(EncodeError::Geometry { .. })));
    assert!(out.is_empty());
}

fn scheduler_config() -> &'static Config {
    static CONFIG: std::sync::LazyLock<Config> = std::sync::LazyLock::new(Config::default);
    &CONFIG
}

/// A lookahead near the end of 32 bits, and drafts beside it.
#[test]
fn a_lookahead_near_the_end_of_positions_is_cut_to_the_request() {
    for lookahead in [u32::MAX, u32::MAX - 1, u32::MAX / 2] {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.lookahead_tokens) = (1 << 31, 3, lookahead);
        let Ok(mut scheduler) = Scheduler::new(config) else { continue };
        let mut request = request(1, 10, 9);
        request.drafts = 3;
        scheduler.submit(request).expect("fits");
        assert!(scheduler.schedule().batch().is_some());
        complete(&mut scheduler);
        let batch = scheduler.schedule().batch().expect("a decode");
        assert_eq!((batch.rows()[0].num_computed_tokens, batch.rows()[0].num_draft_tokens), (10, 3));
        scheduler.check_invariants().expect("whole");
    }
}

/// Rows have public fields: whatever stands in them, looking at them is safe.
#[test]
fn an_edited_row_names_no_blocks() {
    for groups in [&[KvGroup::Full][..], &[KvGroup::Full, KvGroup::Window { tokens: 32 }]] {
        let mut config = Config::default();
        config.kv_groups = KvGroups::new(groups).expect("valid");
        let mut scheduler = Scheduler::new(config).expect("valid");
        scheduler.submit(request(1, 10, 1)).expect("fits");
        let batch = scheduler.schedule().batch().expect("work");
        let mut row: Row = batch.rows()[0];
        (row.num_computed_tokens, row.num_scheduled_tokens) = (u32::MAX, u32::MAX);
        assert_eq!((row.end(), batch.blocks(&row), batch.spans(&row)), (u32::MAX, &[][..], &[][..]));
        assert!(batch.group_table(&row, 0).blocks.is_empty() && batch.group_table(&row, 9).blocks.is_empty());
        let _ = (batch.group_table(&row, 1), batch.tokens(&row));
    }
}

/// The functions of the planner are public: zeros count as one, a segment that ends before it starts is empty, and sums stop at their end.
#[test]
fn the_planner_takes_any_numbers() {
    let wild = [0, 1, 7, 64, u32::MAX - 1, u32::MAX];
    let models = [cost(1000, 10), cost(1000, 0), with(cost(u64::MAX, 3), |c| c.tile = 16), with(cost(0, 0), |c| c.c0 = Attos(u128::MAX))];
    let mut tried = 0;
    for (align, min, batch_tokens) in wild.iter().flat_map(|&a| wild.iter().flat_map(move |&m| wild.map(move |b| (a, m, b)))) {
        let grid = Grid { align, min, thrifty: true };
        for (start, end) in [(0, 100_000), (10, 5), (5, 5), (u32::MAX, 0), (0, u32::MAX), (u32::MAX - 5, u32::MAX)] {
            let segment = Segment { start, end };
            let most = end.saturating_sub(start);
            assert!(smallest_chunk(grid, segment, batch_tokens) <= most.min(batch_tokens));
            for model in &models {
                let stages = core::slice::from_ref(model);
                let target = Attos::from_ns(100_000);
                assert!(fitting_chunk(stages, grid, CostTerms::default(), segment, batch_tokens, target) <= most);
                let rules = Rules { stages, grid, batch_tokens, ride: Attos::ZERO };
                assert!(lay_out(&rules, &[segment; 3], target, 50).batches <= 50);
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 6 * 6 * 6 * 6 * 4);
    assert_eq!((Work::of(Segment { start: 10, end: 5 }).tokens, Work::of(Segment { start: 10, end: 5 }).pairs), (0, 0));
    let mut base = CostTerms::default();
    (base.tokens, base.pairs, base.prefill_history) = (u64::MAX, u128::MAX, u64::MAX);
    assert_eq!(longest_chunk(&[with(cost(1, 1), |c| c.tile = 16)], base, 0, 100, Attos(u128::MAX)), 100);
    let mut period = BusyPeriod::default();
    period.change(Segment::default(), Segment { start: 5, end: 3 }, None);
    assert_eq!(period.rest().tokens, 0);
}

/// A choice of a target ends, and soon, whatever it is asked.
#[test]
fn a_target_is_chosen_for_any_question() {
    let wild = [0, 1, 64, u32::MAX];
    let models =
        [cost(1000, 10), cost(20_000_000, 0), with(cost(0, 1), |c| c.c0 = Attos(u128::MAX)), with(cost(5, 1), |c| c.c4 = Attos(99))];
    let mut much = Work::default();
    (much.tokens, much.pairs) = (u64::MAX, u128::MAX);
    let mut few = Work::default();
    (few.tokens, few.pairs) = (1, u128::MAX);
    for (align, batch_tokens) in wild.iter().flat_map(|&align| wild.map(move |tokens| (align, tokens))) {
        for segment in [Segment { start: 0, end: 10_000 }, Segment { start: 10, end: 5 }, Segment { start: 0, end: u32::MAX }] {
            for (work, model) in [Work::of(segment), much, few, Work::default()].iter().flat_map(|w| models.iter().map(move |m| (*w, m))) {
                let rules = Rules {
                    stages: core::slice::from_ref(model),
                    grid: Grid { align, min: 0, thrifty: true },
                    batch_tokens,
                    ride: Attos(7),
                };
                for (segments, depth) in [(&[segment; MAX_SEGMENTS][..], 4), (&[segment][..], 0), (&[][..], u32::MAX)] {
                    let (rest, whole, held) = (work, work, Attos::ZERO);
                    let question = Question { rules, drain_millionths: 3_000_000, depth, rest, whole, segments, held, grown: true };
                    let _ = choose_target(&question);
                    let _ = choose_target(&Question { drain_millionths: u64::MAX, held: Attos(5), grown: false, ..question });
                }
            }
        }
    }
}

#[test]
fn a_calibrator_takes_any_model() {
    let most = Attos(u128::MAX);
    let given = with(CostModel::default(), |c| (c.c0, c.c1, c.linear_floor) = (most, most, most));
    let mut stages = StageCalibrator::new(&[given; 2]);
    let mut one = Calibrator::new(given);
    for batch in 0..100 {
        let terms = CostTerms::prefill(batch, 100 + batch);
        stages.observe(&terms, &[u64::MAX, 10]);
        one.observe(&terms, u64::MAX - u64::from(batch));
        let _ = (stages.update().map(<[_]>::len), one.model());
    }
    one.refit();
    assert!(one.model().coefficients().iter().all(|(_, c)| *c <= Attos::MAX_COEFFICIENT), "{:?}", one.model());
}

/// A small budget in front of a long prompt, where batches cost next to nothing but their constant: few "by cost", very many by tokens.
#[test]
fn a_small_budget_makes_no_long_layout() {
    for (batch_tokens, prompt) in [(2048, 1_000_000), (64, 10_000_000), (16, 100_000_000)] {
        for c1_ns in [10, 0] {
            let mut config = Config::default();
            (config.stages, config.cost, config.chunking) = (4, Some(cost(20_000_000, c1_ns)), Chunking::Adaptive);
            (config.max_batch_tokens, config.num_blocks, config.block_size) = (batch_tokens, 10_000_000, 16);
            let mut scheduler = Scheduler::new(config).expect("valid");
            scheduler.submit(Request::with_lengths(RequestId(1), prompt, Vec::new(), 5)).expect("fits");
            // Thousands of decisions: with a layout of the whole prompt in each this would take hours.
            for id in 2..200 {
                assert_eq!(scheduler.schedule().batch().expect("work").num_tokens(), u64::from(batch_tokens));
                complete(&mut scheduler);
                scheduler.submit(Request::with_lengths(RequestId(id), prompt / 8, Vec::new(), 5)).expect("fits");
            }
        }
    }
}

/// As many drafts as a budget of millions allows, and a cost that stops them early.
#[test]
fn drafts_are_cut_to_the_target_at_once() {
    let mut config = Config::default();
    (config.num_blocks, config.block_size, config.max_batch_tokens) = (100_000, 1024, 50_000_000);
    config.cost = Some(cost(1000, 1_000_000));
    config.chunking = Chunking::Cost { target_ns: 20_001_000, align: 1, min: 1 };
    let mut scheduler = Scheduler::new(config).expect("valid");
    let mut request = request(1, 1, 50_000_000);
    request.drafts = u32::MAX;
    scheduler.submit(request).expect("fits");
    assert!(scheduler.schedule().batch().is_some());
    complete(&mut scheduler);
    for _ in 0..1000 {
        // One token of the decode and nineteen drafts cost 20 ms; with a walk over fifty million counts these batches would take half an hour.
        let batch = scheduler.schedule().batch().expect("a decode");
        assert_eq!((batch.rows()[0].num_draft_tokens, batch.cost_ns()), (19, 20_001_000));
        complete(&mut scheduler);
    }
}

/// Whatever a batch costs, what a scheduler says of itself is taken back.
#[test]
fn a_scheduler_restores_its_own_snapshot_at_any_price() {
    let mut dear = cost(2_000_000_000, 1);
    dear.c2 = Attos::MAX_COEFFICIENT;
    let mut all = CostModel::default();
    for coefficient in [&mut all.c0, &mut all.c1, &mut all.c2, &mut all.c3, &mut all.c4, &mut all.c5] {
        *coefficient = Attos::MAX_COEFFICIENT;
    }
    for (cost, stages, prompt) in [(dear, 1, 2000), (dear, 4_000_000_000, 2000), (all, 4_000_000_000, 500_000), (all, 3, 500_000)] {
        let mut config = Config::default();
        (config.cost, config.stages, config.max_in_flight) = (Some(cost), stages, Some(2));
        (config.feasibility_guard, config.chunking, config.num_blocks) = (true, Chunking::Adaptive, 100_000);
        let mut scheduler = Scheduler::new(config).expect("valid");
        let mut wanted = Request::with_lengths(RequestId(1), prompt, Vec::new(), 5);
        wanted.ttft_slo_ns = Some(1);
        scheduler.submit(wanted).expect("fits");
        for _ in 0..20 {
            if scheduler.schedule().batch().is_none() && scheduler.oldest_in_flight().is_some() {
                complete(&mut scheduler);
            }
            scheduler = Scheduler::restore(scheduler.snapshot()).expect("its own");
            scheduler.check_invariants().expect("whole");
        }
        scheduler.set_cost_model(dear).expect("valid");
        Scheduler::restore(scheduler.snapshot()).expect("its own");
    }
}

/// The documented way out of a broken executor, again and again: every batch names the request once.
#[test]
fn a_preempted_request_is_named_once_however_many_batches_are_lost() {
    let mut scheduler = Scheduler::new(Config::default()).expect("valid");
    scheduler.submit(request(1, 7, 8)).expect("fits");
    scheduler.submit(request(2, 7, 8)).expect("fits");
    for round in 0..1000 {
        let batch = scheduler.schedule().batch().expect("work");
        let mut named = batch.preempted().to_vec();
        named.sort_unstable();
        assert_eq!(named, if round == 0 { vec![] } else { vec![RequestId(1), RequestId(2)] });
        scheduler.check_invariants().expect("whole");
        if round % 3 == 2 {
            let batch = scheduler.oldest_in_flight().expect("one").id();
            scheduler.lose(batch).expect("in flight");
        } else {
            scheduler.fail();
        }
        scheduler.reset_all_kv();
        scheduler.events().for_each(drop);
    }
}

/// What an engine gives with an extension is used or refused, and never dropped in silence.
#[test]
fn an_extension_by_length_takes_no_hashes() {
    let mut config = Config::default();
    (config.prefix_caching, config.block_size) = (true, 4);
    let mut scheduler = Scheduler::new(config).expect("valid");
    let mut session = Request::with_lengths(RequestId(1), 8, vec![[1; 16], [2; 16]], 1);
    session.session = true;
    scheduler.submit(session).expect("fits");
    assert!(scheduler.schedule().batch().is_some());
    complete(&mut scheduler);
    let before = scheduler.stats();
    let input = |hashes: usize| cpp_sched::Prompt::Lengths { len: 8, block_hashes: vec![[3; 16]; hashes] };
    for hashes in [1, 2, 4, 99] {
        let refused = scheduler.extend(RequestId(1), input(hashes), 1);
        assert_eq!(refused, Err(cpp_sched::ExtendError::BlockHashes(RequestId(1))));
    }
    assert_eq!(scheduler.stats(), before);
    assert_eq!(scheduler.extend(RequestId(1), input(0), 1), Ok(()));
}

/// A request that was handed over and one whose peer has failed are counted apart.
#[test]
fn a_transfer_that_failed_is_not_counted_as_finished() {
    let mut config = Config::default();
    config.role = Role::Prefill;
    let mut scheduler = Scheduler::new(config).expect("valid");
    for id in [1, 2] {
        scheduler.submit(request(id, 10, 1)).expect("fits");
    }
    assert!(scheduler.schedule().batch().is_some());
    complete(&mut scheduler);
    assert!(scheduler.kv_send_failed(RequestId(1)).is_applied() && scheduler.kv_sent(RequestId(2)).is_applied());
    let reasons: Vec<_> = scheduler
        .events()
        .filter_map(|event| match event {
            cpp_sched::Event::Finished { request, reason } => Some((request.0, reason)),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [(1, cpp_sched::FinishReason::TransferFailed), (2, cpp_sched::FinishReason::HandedOver)]);
    let stats = scheduler.stats();
    assert_eq!((stats.finished, stats.transfers_failed, stats.aborted), (1, 1, 0));
}

/// What was made without a cost model goes on without one, and the other way round, by whatever call.
#[test]
fn costs_are_given_from_the_start_or_never() {
    let config = Config::default();
    let mut scheduler = Scheduler::new(config).expect("valid");
    let error = scheduler.set_cost_model(cost(1, 1)).expect_err("made without");
    assert!(error.to_string().starts_with("cost "), "{error}");
    assert_eq!(scheduler.set_stage_costs(&[cost(1, 1)]), Err(error));
    let mut with = config;
    with.cost = Some(cost(1, 1));
    assert_eq!(scheduler.reconfigure(with), Err(error));
    assert_eq!(scheduler.reconfigure(config), Ok(()));
    let mut scheduler = Scheduler::new(with).expect("valid");
    assert_eq!(scheduler.set_cost_model(cost(2, 2)), Ok(()));
    assert_eq!(scheduler.reconfigure(config), Err(error));
    assert_eq!(scheduler.reconfigure(with), Ok(()));
}
