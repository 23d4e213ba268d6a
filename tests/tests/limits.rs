//! The largest numbers: contexts of ten million tokens, a million blocks, and every field at its end. Nothing overflows, nothing panics, and no
//! call loops over what it need not look at.

use cpp_sched::wire::{Encoder, Mirror};
use cpp_sched::{
    Admission, Attos, BatchId, Chunking, Config, CostModel, Event, ModelDims, PolicyKind, Prompt, Request, RequestId, RestoreError, Sample,
    Schedule, Scheduler, SubmitError, causal_pairs,
};

/// Runs everything to its end with token 7; how many batches and output tokens there were.
fn drain(scheduler: &mut Scheduler) -> (u64, u64) {
    let mut batches = 0;
    loop {
        while let Schedule::Batch(_) = scheduler.schedule() {
            batches += 1;
        }
        let Some(oldest) = scheduler.oldest_in_flight() else { break };
        let id = oldest.id();
        let sampling: Vec<_> = oldest.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        let samples: Vec<_> = sampling.into_iter().map(|request| Sample { request, tokens: &[7] }).collect();
        scheduler.complete(id, &samples).expect("a right result");
        scheduler.events().for_each(drop);
    }
    scheduler.check_invariants().expect("all is consistent");
    (batches, scheduler.stats().output_tokens)
}

fn most() -> Attos {
    Attos::MAX_COEFFICIENT
}

#[test]
fn ten_million_tokens_of_context() {
    let mut config = Config::default();
    config.num_blocks = 1_000_000;
    config.max_batch_tokens = 8192;
    config.stages = 4;
    config.prefix_caching = true;
    config.cost = Some({
        let mut cost = CostModel::default();
        (cost.c0, cost.c1, cost.c2, cost.c3, cost.c4, cost.c5) = (most(), most(), most(), most(), most(), most());
        cost
    });
    config.model = Some(ModelDims::new(80, 8192, 64, 8, 128, 28672));
    let mut scheduler = Scheduler::new(config).unwrap();
    let hashes: Vec<[u8; 16]> = (0..10_000_000u128 / 16).map(|block| (block + 1).to_le_bytes()).collect();
    let len = 10_000_000;
    scheduler.submit(Request::with_lengths(RequestId(1), len, hashes.clone(), 5)).unwrap();

    let (mut chunks, mut pairs, mut flops) = (0u32, 0u128, 0u128);
    let mut end = 0;
    while end < len {
        let Schedule::Batch(batch) = scheduler.schedule() else { panic!("a batch was due") };
        let row = batch.rows()[0];
        assert_eq!(row.num_computed_tokens, end);
        end = row.end();
        chunks += 1;
        pairs += batch.terms().pairs;
        flops += batch.flops();
        let (id, samples) = (batch.id(), row.samples);
        let result = [Sample { request: RequestId(1), tokens: &[7] }];
        scheduler.complete(id, &result[..usize::from(samples)]).unwrap();
    }
    assert_eq!(chunks, len.div_ceil(8192));
    assert_eq!(pairs, causal_pairs(0, len), "the pairs of the chunks sum up to those of the whole");
    assert_eq!(flops, config.model.unwrap().flops(0, len));
    drain(&mut scheduler);
    assert_eq!(scheduler.kv_usage().cached, len / 16);

    // The whole prompt is hit, but for its last block.
    scheduler.submit(Request::with_lengths(RequestId(2), len, hashes, 1)).unwrap();
    let first = scheduler.schedule().batch().expect("a batch").rows()[0];
    assert_eq!(first.num_computed_tokens, len - 16);
    assert_eq!(drain(&mut scheduler), (0, 6));
}

#[test]
fn tokens_that_the_kernel_keeps_may_be_ten_million() {
    let mut config = Config::default();
    config.num_blocks = 700_000;
    config.max_batch_tokens = 1 << 20;
    config.prefix_caching = true;
    let mut scheduler = Scheduler::new(config).unwrap();
    let prompt: Vec<u32> = (0..10_000_000).collect();
    scheduler.submit(Request::new(RequestId(1), prompt.clone(), 2)).unwrap();
    assert_eq!(drain(&mut scheduler), (11, 2));
    scheduler.submit(Request::new(RequestId(2), prompt, 1)).unwrap();
    assert_eq!(drain(&mut scheduler), (1, 3));
}

#[test]
fn a_million_blocks_are_all_used_and_all_come_back() {
    let mut config = Config::default();
    config.block_size = 1;
    config.num_blocks = 1_000_000;
    config.max_batch_tokens = u32::MAX;
    config.max_batch_requests = u32::MAX;
    config.max_requests = u32::MAX;
    let mut scheduler = Scheduler::new(config).unwrap();
    for id in 0..100 {
        scheduler.submit(Request::with_lengths(RequestId(id), 10_000, vec![], 1)).unwrap();
    }
    let rows = scheduler.schedule().batch().expect("a batch").rows().len();
    assert_eq!((rows, scheduler.kv_usage().held), (100, 1_000_000));
    drain(&mut scheduler);
    assert_eq!(scheduler.kv_usage().free, 1_000_000);
}

#[test]
fn one_block_of_four_billion_tokens() {
    let mut config = Config::default();
    config.block_size = u32::MAX;
    config.num_blocks = 1;
    config.max_batch_tokens = u32::MAX;
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::with_lengths(RequestId(1), u32::MAX - 2, vec![], u32::MAX)).unwrap();
    assert_eq!(drain(&mut scheduler), (2, 2), "there is room for two outputs");
    let too_long = scheduler.submit(Request::with_lengths(RequestId(1), u32::MAX, vec![], 1)).unwrap_err();
    assert_eq!(too_long, SubmitError::TooLong { request: RequestId(1), prompt_tokens: u32::MAX, max_model_len: u32::MAX });
}

#[test]
fn positions_up_to_the_last_one_in_many_blocks() {
    // 4 billion positions in 4096 blocks; the last chunk and the decode stand at the very end.
    for admission in [Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict] {
        let mut config = Config::default();
        config.block_size = 1 << 20;
        config.num_blocks = 4096;
        config.max_batch_tokens = 1 << 30;
        config.admission = admission;
        let mut scheduler = Scheduler::new(config).unwrap();
        let mut request = Request::with_lengths(RequestId(1), u32::MAX - 3, vec![], u32::MAX);
        request.drafts = u32::MAX;
        scheduler.submit(request).unwrap();
        assert_eq!(drain(&mut scheduler), (6, 3), "{admission:?}");
    }
}

#[test]
fn every_field_of_a_configuration_at_its_end() {
    let base = {
        let mut config = Config::default();
        config.num_blocks = 64;
        config
    };
    type Change = (&'static str, fn(&mut Config));
    let set: [Change; 12] = [
        ("max_batch_tokens", |c| c.max_batch_tokens = u32::MAX),
        ("max_batch_requests", |c| c.max_batch_requests = u32::MAX),
        ("max_requests", |c| c.max_requests = u32::MAX),
        ("max_model_len", |c| c.max_model_len = Some(u32::MAX)),
        ("stages", |c| c.stages = u32::MAX),
        ("max_in_flight", |c| c.max_in_flight = Some(u32::MAX)),
        ("chunks_per_batch", |c| c.chunks_per_batch = u32::MAX),
        ("chunking.max", |c| c.chunking = Chunking::Tokens { max: Some(u32::MAX) }),
        ("max_prompt_tokens_per_batch", |c| c.max_prompt_tokens_per_batch = Some(u32::MAX)),
        ("max_partial_prefills", |c| c.max_partial_prefills = Some(u32::MAX)),
        ("max_bypass", |c| c.max_bypass = u32::MAX),
        ("max_prompt_wait", |c| c.max_prompt_wait = u32::MAX),
    ];
    let run = |config: Config, name: &str| {
        let mut scheduler = Scheduler::new(config).unwrap_or_else(|error| panic!("{name}: {error}"));
        for id in 0..20 {
            scheduler.submit(Request::new(RequestId(id), vec![1; 50], 10)).unwrap();
        }
        drain(&mut scheduler);
        assert_eq!(scheduler.stats().output_tokens, 200, "{name}");
    };
    for (name, change) in set {
        let mut config = base;
        change(&mut config);
        run(config, name);
        for admission in [Admission::Lazy, Admission::NoEvict] {
            config.admission = admission;
            run(config, name);
        }
    }
    let mut config = base;
    set.into_iter().for_each(|(_, change)| change(&mut config));
    run(config, "all of them");
}

#[test]
fn every_field_of_a_request_at_its_end() {
    for policy in [PolicyKind::Fcfs, PolicyKind::Priority, PolicyKind::Edf, PolicyKind::Srpf, PolicyKind::Lars, PolicyKind::Fair] {
        let mut config = Config::default();
        config.policy = policy;
        config.cost = Some({
            let mut cost = CostModel::default();
            (cost.c0, cost.c2, cost.c3) = (most(), most(), most());
            cost
        });
        let mut scheduler = Scheduler::new(config).unwrap();
        for (id, end) in [(0, false), (1, true), (u64::MAX, true), (u64::MAX - 1, false)] {
            let mut request = Request::new(RequestId(id), vec![u32::MAX; 40], u32::MAX);
            request.priority = if end { i64::MAX } else { i64::MIN };
            request.arrival_ns = Some(if end { u64::MAX } else { 0 });
            request.ttft_slo_ns = Some(if end { u64::MAX } else { 0 });
            request.tbt_slo_ns = Some(u64::MAX);
            request.tenant = Some(if end { u64::MAX } else { 0 });
            request.weight_millionths = if end { u64::MAX } else { 1 };
            request.stop_tokens = vec![7; 1000];
            request.cache_salt = vec![255; 10_000];
            request.drafts = u32::MAX;
            scheduler.submit(request).unwrap();
        }
        scheduler.tick(u64::MAX);
        drain(&mut scheduler);
        assert_eq!(scheduler.stats().finished, 4, "{policy:?}");
        scheduler.tick(0);
        assert_eq!(scheduler.now_ns(), u64::MAX);
    }
}

#[test]
fn batches_are_counted_beyond_32_bits_of_nothing() {
    // Numbers that were never given out, at both ends.
    let mut scheduler = Scheduler::new(Config::default()).unwrap();
    for batch in [0, 1, u64::from(u32::MAX), u64::MAX] {
        assert!(scheduler.complete(BatchId(batch), &[]).is_err());
        assert!(scheduler.batch(BatchId(batch)).is_none());
    }
    scheduler.submit(Request::new(RequestId(1), vec![1], 1)).unwrap();
    assert!(scheduler.schedule().batch().is_some());
    for batch in [1, u64::from(u32::MAX), u64::MAX] {
        assert!(scheduler.complete(BatchId(batch), &[]).is_err());
        assert!(scheduler.batch(BatchId(batch)).is_none());
    }
}

#[test]
fn a_hundred_thousand_waiting_requests_are_in_nobodys_way() {
    let mut config = Config::default();
    config.num_blocks = 8;
    config.max_requests = 2;
    let mut scheduler = Scheduler::new(config).unwrap();
    let waiting = 100_000;
    for id in 0..waiting {
        scheduler.submit(Request::with_lengths(RequestId(id), 30, vec![], 40)).unwrap();
    }
    // Two run; 60 steps with all others waiting, then all of them are aborted, in an order that is none.
    for _ in 0..60 {
        let Schedule::Batch(batch) = scheduler.schedule() else { panic!("a batch was due") };
        let (id, rows) = (batch.id(), batch.rows().to_vec());
        assert!(rows.len() <= 2);
        let samples: Vec<_> = rows.iter().map(|row| Sample { request: row.request, tokens: &[7] }).collect();
        scheduler.complete(id, &samples).unwrap();
    }
    scheduler.events().for_each(drop);
    for step in 0..waiting {
        _ = scheduler.abort(RequestId(step * 70_001 % waiting));
    }
    let aborted = scheduler.events().filter(|event| matches!(event, Event::Finished { .. })).count();
    assert_eq!(aborted as u64 + scheduler.stats().finished, waiting);
    assert!(scheduler.is_idle());
}

#[test]
fn lengths_without_and_with_a_wrong_number_of_hashes() {
    let mut scheduler = Scheduler::new(Config::default()).unwrap();
    let mut request = Request::with_lengths(RequestId(1), 100, vec![[1; 16]; 5], 1);
    let error = scheduler.submit(request.clone()).unwrap_err();
    assert_eq!(error, SubmitError::BlockHashes { request: RequestId(1), expected: 6, given: 5 });
    request.prompt = Prompt::Tokens(vec![]);
    assert_eq!(scheduler.submit(request.clone()).unwrap_err(), SubmitError::EmptyPrompt(RequestId(1)));
    request.prompt = Request::with_lengths(RequestId(1), 0, vec![], 1).prompt;
    assert_eq!(scheduler.submit(request).unwrap_err(), SubmitError::EmptyPrompt(RequestId(1)));
    assert_eq!(scheduler.stats().rejected, 3);
}

/// A scheduler that has had `past` requests and batches before it came here.
fn after_a_long_life(config: Config, past: u64) -> Result<Scheduler, RestoreError> {
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(9), vec![3; 40], 2)).unwrap();
    drain(&mut scheduler);
    let mut snapshot = serde_json::to_value(scheduler.snapshot()).unwrap();
    let state = &mut snapshot["state"];
    for counter in ["next_seq", "next_batch"] {
        state[counter] = past.into();
    }
    for (_, count) in state["stats"].as_object_mut().unwrap().iter_mut().filter(|(_, count)| count.as_u64().is_some_and(|count| count > 0))
    {
        *count = past.into();
    }
    Scheduler::restore(serde_json::from_value(snapshot).unwrap())
}

/// A batch: its number, and of each row whose it is, from where and to where.
type Decided = (u64, Vec<(RequestId, u32, u32)>);

/// Eight requests, two of them shared, one preempted or lost now and then, each batch as a message to a worker; what was decided, batches counted
/// from the first one here.
fn life(scheduler: &mut Scheduler, first: u64) -> Vec<Decided> {
    let (mut leader, mut message, mut decided) = (Encoder::attach(scheduler), Vec::new(), Vec::new());
    let mut worker = Mirror::new(scheduler.config());
    leader.resync(scheduler, &mut message);
    worker.apply(&message).unwrap();
    for id in 0..8 {
        scheduler.submit(Request::new(RequestId(id), vec![id as u32 / 2; 60], 25)).unwrap();
    }
    for turn in 0.. {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            message.clear();
            leader.encode(&batch, &mut message).unwrap();
            assert_eq!(worker.apply(&message).unwrap().plan().unwrap().batch(), batch.id());
            let rows = batch.rows().iter().map(|row| (row.request, row.num_computed_tokens, row.end())).collect();
            decided.push((batch.id().0 - first, rows));
        }
        let Some(oldest) = scheduler.oldest_in_flight() else { break };
        let id = oldest.id();
        if turn % 5 == 4 && turn < 30 {
            scheduler.fail();
            continue;
        }
        let sampling: Vec<_> = oldest.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        let samples: Vec<_> = sampling.into_iter().map(|request| Sample { request, tokens: &[7] }).collect();
        scheduler.complete(id, &samples).unwrap();
        scheduler.check_invariants().unwrap();
    }
    assert!(scheduler.is_idle());
    decided
}

#[test]
fn more_requests_and_batches_than_32_bits_count() {
    for policy in [PolicyKind::Fcfs, PolicyKind::Priority, PolicyKind::Srpf, PolicyKind::Lars, PolicyKind::Fair] {
        let mut config = Config::default();
        (config.num_blocks, config.stages, config.max_batch_tokens, config.prefix_caching) = (14, 3, 70, true);
        (config.policy, config.admission) = (policy, Admission::Lazy);
        let mut young = after_a_long_life(config, 2).unwrap();
        let due = life(&mut young, 2);
        assert!(due.len() > 20 && young.stats().preemptions > 0, "{policy:?}: {} batches", due.len());
        let last = (1 << 61) - 1;
        for past in [(1 << 31) - 4, (1 << 32) - 4, (1 << 32) + 4, (1 << 53) - 4, last] {
            assert_eq!(life(&mut after_a_long_life(config, past).unwrap(), past), due, "{policy:?} after {past}");
        }
        for past in [last + 1, u64::MAX] {
            assert_eq!(after_a_long_life(config, past).map(drop), Err(RestoreError::Counter { field: "next_seq" }));
        }
    }
}

#[test]
fn four_billion_positions_at_the_highest_prices() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_batch_tokens) = (1 << 20, 4096, 1 << 30);
    config.cost = Some({
        let mut cost = CostModel::default();
        (cost.c0, cost.c1, cost.c2, cost.c3, cost.c4, cost.c5) = (most(), most(), most(), most(), most(), most());
        cost
    });
    config.model = Some(ModelDims::new(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX));
    for chunking in [Chunking::Tokens { max: None }, Chunking::Adaptive, Chunking::Cost { target_ns: u64::MAX, align: 1, min: 1 << 29 }] {
        for policy in [PolicyKind::Fcfs, PolicyKind::Srpf, PolicyKind::Lars, PolicyKind::Hybrid] {
            (config.chunking, config.policy, config.relegation, config.feasibility_guard) = (chunking, policy, true, true);
            let mut scheduler = Scheduler::new(config).unwrap();
            let request = Request::with_lengths(RequestId(1), u32::MAX - 3, vec![], u32::MAX);
            // Times are cut off at their end, not wrapped.
            assert_eq!(scheduler.estimate(&request).unwrap().ttft_ns, u64::MAX, "{chunking:?} {policy:?}");
            scheduler.submit(request).unwrap();
            let (batches, outputs) = drain(&mut scheduler);
            assert!(batches >= 6 && outputs == 3, "{chunking:?} {policy:?}: {batches} batches, {outputs} outputs");
        }
    }
}
