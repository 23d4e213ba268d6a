//! What comes in is refused at exactly its limit, with the reason: configurations field by field, and requests that just fit.

use cpp_sched::{
    Attos, Chunking, Config, ConfigError, CostModel, KvGroup, KvGroups, ModelDims, Request, RequestId, Role, Sample, Schedule, Scheduler,
    SubmitError,
};

fn refused(change: impl Fn(&mut Config)) -> Result<(), ConfigError> {
    let mut config = Config::default();
    change(&mut config);
    let answer = config.validate();
    assert_eq!(Scheduler::new(config).map(drop), answer);
    answer
}

fn priced(config: &mut Config) -> &mut CostModel {
    config.cost.get_or_insert_default()
}

type Change = fn(&mut Config, u32);
type Timed = fn(&mut Config, u64);

#[test]
fn what_may_not_be_zero_may_be_one() {
    let fields: [(&str, Change); 23] = [
        ("block_size", |c, n| c.block_size = n),
        ("num_blocks", |c, n| c.num_blocks = n),
        ("max_batch_tokens", |c, n| c.max_batch_tokens = n),
        ("max_batch_requests", |c, n| c.max_batch_requests = n),
        ("max_requests", |c, n| c.max_requests = n),
        ("max_model_len", |c, n| c.max_model_len = Some(n)),
        ("stages", |c, n| c.stages = n),
        ("max_in_flight", |c, n| c.max_in_flight = Some(n)),
        ("chunks_per_batch", |c, n| c.chunks_per_batch = n),
        ("max_prompt_tokens_per_batch", |c, n| c.max_prompt_tokens_per_batch = Some(n)),
        ("max_partial_prefills", |c, n| c.max_partial_prefills = Some(n)),
        ("max_prompt_wait", |c, n| c.max_prompt_wait = n),
        ("adaptive.align", |c, n| c.adaptive.align = n),
        ("adaptive.min", |c, n| c.adaptive.min = Some(n)),
        ("async_distance", |c, n| c.async_distance = n),
        ("max_adapters_per_batch", |c, n| c.max_adapters_per_batch = Some(n)),
        ("encoder_budget_tokens", |c, n| c.encoder_budget_tokens = Some(n)),
        ("encoder_cache_tokens", |c, n| c.encoder_cache_tokens = Some(n)),
        ("kv_consumers", |c, n| c.kv_consumers = n),
        ("latency.max_decode_wait", |c, n| c.latency.max_decode_wait = n),
        ("chunking.max", |c, n| c.chunking = Chunking::Tokens { max: Some(n) }),
        ("latency.reject_above_millionths", |c, n| {
            priced(c);
            c.latency.reject_above_millionths = Some(n);
        }),
        ("model.layers", |c, n| c.model = Some(ModelDims::new(n, 64, 4, 2, 16, 128))),
    ];
    for (name, change) in fields {
        let answer = refused(|c| change(c, 0));
        let zero = matches!(answer, Err(ConfigError::Zero { field }) if name.ends_with(field) || field.ends_with(name));
        assert!(zero, "{name} of 0: {answer:?}");
        assert_eq!(refused(|c| change(c, 1)), Ok(()), "{name} of 1");
    }
    let times: [(&str, Timed); 6] = [
        ("adaptive.target_ns", |c, ns| c.adaptive.target_ns = Some(ns)),
        ("adaptive.max_target_ns", |c, ns| c.adaptive.max_target_ns = Some(ns)),
        ("adaptive.token_latency_ns", |c, ns| c.adaptive.token_latency_ns = Some(ns)),
        ("latency.max_prefill_wait_ns", |c, ns| c.latency.max_prefill_wait_ns = Some(ns)),
        ("srpf_ageing_ns", |c, ns| c.srpf_ageing_ns = Some(ns)),
        ("priority_ageing_ns", |c, ns| c.priority_ageing_ns = Some(ns)),
    ];
    for (field, change) in times {
        assert_eq!(refused(|c| change(c, 0)), Err(ConfigError::Zero { field }));
        assert_eq!(refused(|c| change(c, 1)), Ok(()), "{field}");
    }
}

#[test]
fn what_is_bounded_is_refused_one_above_its_bound() {
    let by_cost = |align, min| {
        move |c: &mut Config| {
            (c.max_batch_tokens, c.chunking) = (10, Chunking::Cost { target_ns: 1, align, min });
            priced(c);
        }
    };
    assert_eq!(refused(by_cost(10, 10)), Ok(()));
    assert_eq!(refused(by_cost(11, 10)), Err(ConfigError::TooLarge { field: "chunking.align", most: 10 }));
    assert_eq!(refused(by_cost(10, 12)), Err(ConfigError::TooLarge { field: "chunking.min", most: 10 }));
    assert_eq!(refused(by_cost(0, 1)), Err(ConfigError::Zero { field: "chunking.align" }));
    assert_eq!(refused(by_cost(1, 0)), Err(ConfigError::Zero { field: "chunking.min" }));
    let slots = |n| move |c: &mut Config| (c.max_batch_tokens, c.draft_slots) = (10, n);
    assert_eq!(refused(slots(9)), Ok(()));
    assert_eq!(refused(slots(10)), Err(ConfigError::TooLarge { field: "draft_slots", most: 9 }));
    assert_eq!(refused(|c| c.kv_consumers = 64), Ok(()));
    assert_eq!(refused(|c| c.kv_consumers = 65), Err(ConfigError::TooLarge { field: "kv_consumers", most: 64 }));
    // Not made: it would take the memory for all those blocks.
    let mut config = Config::default();
    config.num_blocks = u32::MAX - 1;
    assert_eq!(config.validate(), Ok(()));
    config.num_blocks = u32::MAX;
    assert_eq!(config.validate(), Err(ConfigError::TooLarge { field: "num_blocks", most: u64::from(u32::MAX - 1) }));
    let coefficients: [fn(&mut CostModel, Attos); 6] = [
        |cost, value| cost.c0 = value,
        |cost, value| cost.c1 = value,
        |cost, value| cost.c2 = value,
        |cost, value| cost.c3 = value,
        |cost, value| cost.c4 = value,
        |cost, value| cost.c5 = value,
    ];
    for (number, change) in coefficients.into_iter().enumerate() {
        assert_eq!(refused(|c| change(priced(c), Attos::MAX_COEFFICIENT)), Ok(()));
        let answer = refused(|c| change(priced(c), Attos(Attos::MAX_COEFFICIENT.0 + 1)));
        let named = matches!(answer, Err(ConfigError::TooLarge { field, most: 1_000_000_000_000 }) if field == format!("c{number}"));
        assert!(named, "c{number}: {answer:?}");
    }
}

#[test]
fn what_needs_a_cost_model_is_refused_without_one() {
    for chunking in [Chunking::Adaptive, Chunking::Cost { target_ns: 1, align: 1, min: 1 }] {
        assert_eq!(refused(|c| c.chunking = chunking), Err(ConfigError::NeedsCost { field: "chunking" }));
        assert_eq!(refused(|c| (c.chunking, c.cost) = (chunking, Some(CostModel::default()))), Ok(()));
    }
    assert_eq!(
        refused(|c| c.latency.reject_above_millionths = Some(1)),
        Err(ConfigError::NeedsCost { field: "latency.reject_above_millionths" })
    );
    assert_eq!(refused(|c| c.relegation = true), Err(ConfigError::NeedsCost { field: "relegation" }));
    assert_eq!(refused(|c| c.feasibility_guard = true), Err(ConfigError::NeedsCost { field: "feasibility_guard" }));
}

#[test]
fn several_groups_go_with_one_machine_alone() {
    let groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 8 }]).unwrap();
    assert_eq!(refused(|c| c.kv_groups = groups), Ok(()));
    assert!(matches!(refused(|c| (c.kv_groups, c.role) = (groups, Role::Decode)), Err(ConfigError::KvGroups { .. })));
}

#[test]
fn a_request_fits_to_its_last_position() {
    // 4 blocks of 4: the KV of the last output needs no position, and a drafter that looks ahead of it none either.
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.lookahead_tokens) = (4, 4, 3);
    let answer = |tokens, outputs| Scheduler::new(config).unwrap().submit(Request::new(RequestId(1), vec![1; tokens], outputs));
    assert_eq!(answer(15, 1), Ok(()));
    assert_eq!(answer(16, 1), Err(SubmitError::TooLong { request: RequestId(1), prompt_tokens: 16, max_model_len: 16 }));
    config.max_model_len = Some(20);
    let mut scheduler = Scheduler::new(config).unwrap();
    let request = |tokens, outputs| Request::new(RequestId(1), vec![1; tokens], outputs);
    assert_eq!(scheduler.submit(request(17, 1)), Err(SubmitError::NeverFits { request: RequestId(1), needed: 5, num_blocks: 4 }));
    assert_eq!(scheduler.submit(request(14, 2)), Err(SubmitError::NeverFits { request: RequestId(1), needed: 5, num_blocks: 4 }));
    assert_eq!(scheduler.submit(request(13, 2)), Err(SubmitError::NeverFits { request: RequestId(1), needed: 5, num_blocks: 4 }));
    scheduler.submit(request(16, 1)).unwrap();
    scheduler.tick(5);
    assert_eq!(scheduler.now_ns(), 5);
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("it fits") };
    let id = batch.id();
    assert_eq!(batch.rows()[0].end(), 16);
    scheduler.complete(id, &[Sample { request: RequestId(1), tokens: &[2] }]).unwrap();
    assert!(scheduler.is_idle());
    scheduler.tick(4);
    assert_eq!(scheduler.now_ns(), 5, "the clock does not go back");
}
