//! The planner through the scheduler: what a batch may cost, who limits it, and that work always goes on.

#[path = "../src/splitmix.rs"]
mod splitmix;

use cpp_sched::{
    Attos, Chunking, Config, CostModel, CostTerms, Event, ModelDims, Request, RequestId, Row, RowKind, Sample, Schedule, Scheduler,
    Workspace, planner,
};
use splitmix::next as random;

const MS: u64 = 1_000_000;

/// 1 ms a batch, 1 us a token, 1 ns a pair, 1 ns a token of a decode's context.
fn cost() -> CostModel {
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(MS);
    (cost.c1, cost.c2, cost.c3) = (Attos::from_ns(1000), Attos::from_ns(1), Attos::from_ns(1));
    cost
}

fn config(stages: u32, chunking: Chunking) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 64;
    config.num_blocks = 100_000;
    config.max_batch_tokens = 1 << 20;
    config.cost = Some(cost());
    config.chunking = chunking;
    config
}

fn with_prompts(config: Config, prompts: &[u32]) -> Scheduler {
    let mut scheduler = Scheduler::new(config).expect("valid");
    for (id, &prompt) in prompts.iter().enumerate() {
        scheduler.submit(Request::with_lengths(RequestId(id as u64), prompt, Vec::new(), 1)).expect("fits");
    }
    scheduler
}

/// Completes the oldest batch with a token for every row that samples.
fn complete(scheduler: &mut Scheduler) -> bool {
    let Some(batch) = scheduler.oldest_in_flight() else { return false };
    let id = batch.id();
    let sampling: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
    let samples: Vec<_> = sampling.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
    scheduler.complete(id, &samples).expect("the oldest batch, with its samples");
    scheduler.events().for_each(drop);
    true
}

/// Runs until nothing is left; tells the rows and the terms of each batch.
fn drain(scheduler: &mut Scheduler, mut tell: impl FnMut(&Scheduler, &[Row], &CostTerms)) {
    for _ in 0..200_000 {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            let (rows, terms) = (batch.rows().to_vec(), *batch.terms());
            tell(scheduler, &rows, &terms);
        }
        if !complete(scheduler) {
            assert_eq!(scheduler.num_unfinished(), 0, "work is left and nothing is in flight");
            return;
        }
    }
    panic!("no end");
}

fn chunks(scheduler: &mut Scheduler) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    drain(scheduler, |_, rows, _| all.push(rows.iter().map(|row| row.num_scheduled_tokens).collect()));
    all
}

/// Cost chunking with targets in nanoseconds, on a grid of one token.
fn target(target_ns: u64) -> Chunking {
    Chunking::Cost { target_ns, align: 1, min: 1 }
}

#[test]
fn the_base_chunk_at_zero_history_is_exact() {
    for base in [1, 64, 1000, 4096] {
        let target_ns = cost().cost(&CostTerms::prefill(0, base)).to_ns();
        let mut scheduler = with_prompts(config(1, target(target_ns)), &[20_000]);
        let Schedule::Batch(batch) = scheduler.schedule() else { panic!("nothing") };
        assert_eq!(batch.rows()[0].num_scheduled_tokens, base);
    }
}

#[test]
fn the_slowest_stage_rules_every_batch() {
    let mut scheduler = with_prompts(config(3, target(3 * MS)), &[30_000]);
    let (mut linear, mut quadratic) = (cost(), cost());
    (linear.c1, linear.c2) = (Attos::from_ns(1500), Attos::ZERO);
    (quadratic.c1, quadratic.c2) = (Attos::from_ns(100), Attos(2_000_000_000));
    let mut cheap = cost();
    cheap.c2 = Attos::ZERO;
    let stages = [linear, quadratic, cheap];
    scheduler.set_stage_costs(&stages).expect("three stages");
    let (mut by_linear, mut by_quadratic) = (0, 0);
    drain(&mut scheduler, |_, _, terms| {
        let costs = stages.map(|stage| stage.cost(terms));
        let most = costs.into_iter().max().unwrap();
        assert!(most.to_ns() <= 3 * MS, "{costs:?}");
        by_linear += u32::from(costs[0] == most);
        by_quadratic += u32::from(costs[1] == most);
    });
    assert!(by_linear > 0 && by_quadratic > 10, "early one stage is the dearest, late another: {by_linear}, {by_quadratic}");
}

#[test]
fn the_workspace_limits_chunks_by_their_history() {
    let mut config = config(1, target(1000 * MS));
    config.workspace = Some(Workspace { bytes: 100_000, per_token: 100, per_history: 10 });
    let mut scheduler = with_prompts(config, &[6000]);
    let mut history = 0;
    for chunk in chunks(&mut scheduler) {
        let [tokens] = chunk[..] else { panic!("one prompt, one chunk: {chunk:?}") };
        // A batch may always hold the smallest chunk, here one token.
        assert!(100 * tokens + 10 * history <= 100_000, "{tokens} after {history}");
        history += tokens;
    }
    assert_eq!(history, 6000);
}

#[test]
fn tokens_come_within_the_latency_while_decodes_ride() {
    let mut config = config(4, Chunking::Adaptive);
    (config.adaptive.token_latency_ns, config.adaptive.align) = (Some(20 * MS), 1);
    let mut scheduler = Scheduler::new(config).expect("valid");
    scheduler.submit(Request::with_lengths(RequestId(0), 10, Vec::new(), 5000)).expect("fits");
    while scheduler.schedule().batch().is_some() {}
    complete(&mut scheduler);
    scheduler.submit(Request::with_lengths(RequestId(1), 60_000, Vec::new(), 1)).expect("fits");
    let (mut riding, mut alone) = (0, 0);
    while scheduler.num_unfinished() > 1 {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            let decodes = batch.rows().iter().filter(|row| row.kind == RowKind::Decode).count();
            if decodes > 0 && decodes < batch.rows().len() {
                riding = riding.max(batch.cost_ns());
            } else if decodes == 0 {
                alone = alone.max(batch.cost_ns());
            }
        }
        complete(&mut scheduler);
    }
    // P * T is the time from token to token.
    assert!(riding <= 5 * MS && riding > 4 * MS, "{riding}");
    assert!(alone > 5 * MS, "without decodes nobody waits: {alone}");
}

#[test]
fn a_request_may_ask_for_a_latency_of_its_own() {
    let mut config = config(2, Chunking::Adaptive);
    config.adaptive.align = 1;
    let mut scheduler = Scheduler::new(config).expect("valid");
    let mut hasty = Request::with_lengths(RequestId(0), 10, Vec::new(), 5000);
    hasty.tbt_slo_ns = Some(6 * MS);
    scheduler.submit(hasty).expect("fits");
    while scheduler.schedule().batch().is_some() {}
    complete(&mut scheduler);
    scheduler.submit(Request::with_lengths(RequestId(1), 30_000, Vec::new(), 1)).expect("fits");
    while scheduler.num_unfinished() > 1 {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            let rides = batch.rows().iter().any(|row| row.request == RequestId(0));
            assert!(!rides || batch.cost_ns() <= 3 * MS, "{}", batch.cost_ns());
        }
        complete(&mut scheduler);
    }
}

#[test]
fn an_urgent_prompt_waits_for_the_first_stage_no_longer_than_the_grain() {
    let mut config = config(4, Chunking::Adaptive);
    (config.adaptive.max_target_ns, config.adaptive.align) = (Some(4 * MS), 1);
    let mut scheduler = with_prompts(config, &[100_000]);
    let mut largest = 0;
    drain(&mut scheduler, |_, _, terms| largest = largest.max(cost().cost(terms).to_ns()));
    assert!(largest <= 4 * MS && largest > 3_900_000, "{largest}");
}

#[test]
fn a_pinned_target_is_kept_to() {
    let mut config = config(8, Chunking::Adaptive);
    (config.adaptive.target_ns, config.adaptive.align) = (Some(7 * MS), 1);
    let mut scheduler = with_prompts(config, &[50_000]);
    let mut costs = Vec::new();
    drain(&mut scheduler, |_, _, terms| costs.push(cost().cost(terms).to_ns()));
    costs.pop();
    assert!(costs.iter().all(|&cost| cost <= 7 * MS && cost > 6_900_000), "{costs:?}");
}

#[test]
fn on_one_stage_the_caps_alone_rule() {
    let mut scheduler = with_prompts(config(1, Chunking::Adaptive), &[30_000, 5000]);
    assert_eq!(chunks(&mut scheduler), [[30_000, 5000]], "nothing to fill: all at once");
    let mut capped = config(1, Chunking::Adaptive);
    capped.max_batch_tokens = 8192;
    let mut scheduler = with_prompts(capped, &[30_000]);
    assert_eq!(chunks(&mut scheduler).concat(), [8192, 8192, 8192, 5424]);
    let mut capped = config(1, Chunking::Adaptive);
    capped.adaptive.max_target_ns = Some(20 * MS);
    let mut scheduler = with_prompts(capped, &[30_000]);
    drain(&mut scheduler, |_, _, terms| assert!(cost().cost(terms).to_ns() <= 20 * MS));
}

#[test]
fn flops_as_the_budget() {
    let dims = ModelDims::new(80, 8192, 64, 8, 128, 28672);
    let budget = dims.flops(0, 2048);
    let mut config = config(2, target(u64::try_from(budget).unwrap()));
    config.cost = Some(CostModel::of_flops(&dims));
    config.model = Some(dims);
    let mut scheduler = with_prompts(config, &[40_000]);
    let (mut start, mut lens) = (0, Vec::new());
    drain(&mut scheduler, |_, rows, _| {
        let len = rows[0].num_scheduled_tokens;
        let last = start + len == 40_000;
        assert!(dims.flops(start, len) <= budget && (last || dims.flops(start, len + 1) > budget), "{len} after {start}");
        start += len;
        lens.push(len);
    });
    assert_eq!(lens[0], 2048);
    assert!(lens.is_sorted_by(|a, b| a >= b));
}

#[test]
fn a_tail_joins_the_batch_before_it() {
    // Two tokens more than the planner's own target holds: no batch of two tokens at the end.
    for extra in [0, 2, 63, 65] {
        let mut scheduler = with_prompts(config(4, Chunking::Adaptive), &[8192 + extra]);
        let all = chunks(&mut scheduler).concat();
        assert!(all.last().unwrap() * 4 > *all.first().unwrap() / 2, "{all:?}");
    }
}

#[test]
fn what_is_left_of_a_batch_goes_to_the_next_prompt() {
    let mut scheduler = with_prompts(config(1, target(3 * MS)), &[500, 300, 4000]);
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("nothing") };
    let lens: Vec<_> = batch.rows().iter().map(|row| row.num_scheduled_tokens).collect();
    assert_eq!(lens[..2], [500, 300]);
    assert!(batch.cost_ns() <= 3 * MS && batch.cost_ns() + 2000 > 3 * MS, "filled to the token: {}", batch.cost_ns());
}

#[test]
fn progress_alone_never_lowers_the_target() {
    for (stages, prompts) in [(8, &[131_072][..]), (4, &[3000, 20_000, 700, 9000]), (16, &[8192])] {
        let mut scheduler = with_prompts(config(stages, Chunking::Adaptive), prompts);
        let mut before = Attos::ZERO;
        drain(&mut scheduler, |scheduler, _, _| {
            let now = scheduler.adaptive_target();
            assert!(now >= before && now > Attos::ZERO, "{now:?} after {before:?}");
            before = now;
        });
    }
}

/// The largest batch so far is paid for, so new coefficients that are hardly different must not begin anew with a target for the rest alone: a calibrator
/// that handed out a fit after each batch made the rest of a prompt of many small chunks.
#[test]
fn new_costs_in_a_busy_period_keep_what_is_paid_for() {
    let mut config = config(8, Chunking::Adaptive);
    config.adaptive.align = 1;
    let mut scheduler = with_prompts(config, &[65_536]);
    let (mut largest, mut smallest, mut rest) = (Attos::ZERO, Attos(u128::MAX), 65_536);
    for batch in 0..2000u64 {
        let Schedule::Batch(scheduled) = scheduler.schedule() else {
            if complete(&mut scheduler) {
                continue;
            } else {
                break;
            };
        };
        let spent = cost().cost(scheduled.terms());
        rest -= scheduled.terms().tokens;
        largest = largest.max(spent);
        if rest > 0 {
            smallest = smallest.min(spent);
        }
        let mut model = cost();
        model.c0 = Attos::from_ns(MS + batch % 2 * MS / 50);
        scheduler.set_cost_model(model).expect("small");
    }
    assert_eq!(rest, 0);
    assert!(smallest.0 * 100 > largest.0 * 93, "{smallest:?} and {largest:?}");
}

#[test]
fn a_model_that_lets_nothing_fit_falls_back_to_the_smallest_chunk() {
    for chunking in [target(1), Chunking::Cost { target_ns: 1, align: 64, min: 100 }, Chunking::Adaptive] {
        let mut config = config(2, chunking);
        config.adaptive.target_ns = Some(1);
        let mut scheduler = with_prompts(config, &[300, 100]);
        let all = chunks(&mut scheduler);
        assert!(all.iter().all(|batch| batch.len() == 1), "{all:?}");
        assert_eq!(all.concat().iter().sum::<u32>(), 400);
    }
}

/// Coefficients over many decades, some of them 0, now and then tiles and floors.
fn random_cost(state: &mut u64) -> CostModel {
    let mut sized = |bits: u64| {
        if random(state) % 4 == 0 { Attos::ZERO } else { Attos(u128::from(random(state)) & ((1 << (random(state) % bits + 1)) - 1)) }
    };
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (sized(60), sized(55), sized(45));
    (cost.c3, cost.c4, cost.c5) = (sized(40), sized(45), sized(55));
    if random(state) % 4 == 0 {
        cost.tile = (random(state) % 300) as u32;
        cost.linear_floor = Attos(u128::from(random(state)) >> (random(state) % 60));
        cost.prefill_read = Attos(u128::from(random(state)) >> (20 + random(state) % 40));
    }
    cost
}

#[test]
fn no_batch_exceeds_its_target_and_all_work_is_done_whatever_the_costs() {
    let state = &mut 11;
    for round in 0..400 {
        let align = [1, 7, 64, 256][(random(state) % 4) as usize];
        let min = [1, 64, 100][(random(state) % 3) as usize];
        let stages = (random(state) % 5 + 1) as u32;
        let target_ns = random(state) >> (20 + random(state) % 44) | 1;
        let adaptive = round % 2 == 1;
        let mut config = config(stages, if adaptive { Chunking::Adaptive } else { Chunking::Cost { target_ns, align, min } });
        config.max_batch_tokens = 2048;
        config.max_in_flight = (round % 3 == 0).then_some(stages + 2);
        (config.adaptive.align, config.adaptive.min) = (align, Some(min));
        config.adaptive.target_ns = (round % 4 == 1).then_some(target_ns);
        let models: Vec<_> = (0..stages).map(|_| random_cost(state)).collect();
        let mut scheduler = Scheduler::new(config).expect("valid");
        scheduler.set_stage_costs(&models).expect("a model for each stage");
        let mut known = 0;
        for id in 0..random(state) % 6 + 1 {
            let prompt = (random(state) % (1 << (random(state) % 13 + 1)) + 1) as u32;
            known += u64::from(prompt);
            let outputs = (random(state) % 4 + 1) as u32;
            scheduler.submit(Request::with_lengths(RequestId(id), prompt, Vec::new(), outputs)).expect("fits");
        }
        let mut prefilled = 0;
        drain(&mut scheduler, |scheduler, rows, terms| {
            prefilled += rows.iter().filter(|row| row.kind == RowKind::Prefill).map(|row| u64::from(row.num_scheduled_tokens)).sum::<u64>();
            let target = if !adaptive || round % 4 == 1 { Attos::from_ns(target_ns) } else { scheduler.adaptive_target() };
            // One stage, or decodes alone: the planner has chosen nothing, and nothing limits.
            let limited =
                !adaptive || round % 4 == 1 || (stages > 1 && target > Attos::ZERO && rows.iter().any(|r| r.kind == RowKind::Prefill));
            let single = rows.len() == 1 && (rows[0].kind == RowKind::Decode || rows[0].num_scheduled_tokens < min + align);
            let spent = planner::cost_of(&models, terms);
            assert!(!limited || single || spent <= target, "round {round}: {spent:?} above {target:?}, {rows:?}");
        });
        assert_eq!(prefilled, known, "round {round}: every position once");
        scheduler.check_invariants().expect("sound");
    }
}

#[test]
fn all_limits_at_once_and_absurd_costs_let_everything_end() {
    let most = Attos::MAX_COEFFICIENT;
    let mut costs = [CostModel::default(); 5];
    costs[1] = cost();
    (costs[2].c0, costs[2].c1, costs[2].c2, costs[2].c3, costs[2].c4, costs[2].c5) = (most, most, most, most, most, most);
    costs[3].c4 = most;
    (costs[4].c1, costs[4].tile, costs[4].linear_floor, costs[4].prefill_read) = (Attos(1), u32::MAX, most, most);
    for (index, model) in costs.into_iter().enumerate() {
        for stages in [1, 2, 16] {
            // The grid is longer than all prompts, and than a batch.
            for align in [1, 4096] {
                for limited in [false, true] {
                    let mut config = config(stages, Chunking::Adaptive);
                    (config.cost, config.adaptive.align) = (Some(model), align);
                    if limited {
                        (config.max_batch_tokens, config.max_prompt_tokens_per_batch) = (7, Some(5));
                        (config.adaptive.max_target_ns, config.adaptive.token_latency_ns) = (Some(1), Some(1));
                        config.workspace = Some(Workspace { bytes: 1, per_token: 100, per_history: u32::MAX.into() });
                    }
                    let mut scheduler = Scheduler::new(config).expect("valid");
                    for (id, prompt) in [10, 300, 1].into_iter().enumerate() {
                        let mut request = Request::with_lengths(RequestId(id as u64), prompt, Vec::new(), 3);
                        (request.tbt_slo_ns, request.ttft_slo_ns) = (limited.then_some(1), limited.then_some(1));
                        scheduler.submit(request).expect("fits");
                    }
                    let mut prefilled = 0;
                    drain(&mut scheduler, |_, rows, _| {
                        let chunks = rows.iter().filter(|row| row.kind == RowKind::Prefill);
                        prefilled += chunks.map(|row| row.num_scheduled_tokens).sum::<u32>();
                    });
                    assert_eq!(prefilled, 311, "cost {index}, {stages} stages, grid {align}, limited {limited}");
                    scheduler.check_invariants().expect("sound");
                }
            }
        }
    }
}

#[test]
fn ten_million_tokens_are_planned_and_run_without_overflow() {
    let mut config = config(8, Chunking::Adaptive);
    (config.block_size, config.num_blocks, config.max_batch_tokens) = (4096, 5000, u32::MAX / 2);
    let cost = config.cost.as_mut().unwrap();
    (cost.c0, cost.c2) = (Attos::from_ns(1000 * MS), Attos(100_000_000));
    let mut scheduler = with_prompts(config, &[10_000_000]);
    let (mut tokens, mut ended) = (0u64, false);
    for _ in 0..2000 {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            tokens += batch.terms().tokens;
        }
        let Some(id) = scheduler.oldest_in_flight().map(|batch| batch.id()) else { break };
        let samples = scheduler.oldest_in_flight().is_some_and(|batch| batch.rows().iter().any(|row| row.samples));
        let sample = [Sample { request: RequestId(0), tokens: &[1] }];
        scheduler.complete(id, if samples { &sample } else { &[] }).expect("right");
        ended |= scheduler.events().any(|event| matches!(event, Event::Finished { .. }));
    }
    assert!(ended && tokens == 10_000_000, "{tokens}");
}
