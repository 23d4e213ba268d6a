//! Latency targets shape batches: slack of decodes, bounded waits, space sharing.

use cpp_sched::{Attos, Chunking, Config, CostModel, PolicyKind, Request, RequestId, RowKind, Sample, Schedule, Scheduler};

const MS: u64 = 1_000_000;

fn config(stages: u32) -> Config {
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(MS / 10);
    cost.c1 = Attos::from_ns(1000);
    cost.c5 = Attos::from_ns(1000);
    let mut config = Config::default();
    config.stages = stages;
    config.max_batch_tokens = 4096;
    config.num_blocks = 100_000;
    config.cost = Some(cost);
    config.chunking = Chunking::Adaptive;
    config
}

fn request(id: u64, tokens: usize, outputs: u32) -> Request {
    Request::new(RequestId(id), vec![7; tokens], outputs)
}

/// Schedules one batch: (request, tokens, is prefill) of each row, and its cost.
fn batch(scheduler: &mut Scheduler) -> (Vec<(u64, u32, bool)>, u64) {
    let Schedule::Batch(batch) = scheduler.schedule() else { return (Vec::new(), 0) };
    let rows = batch.rows().iter().map(|row| (row.request.0, row.num_scheduled_tokens, row.kind == RowKind::Prefill));
    (rows.collect(), batch.cost_ns())
}

fn complete(scheduler: &mut Scheduler) {
    let batch = scheduler.oldest_in_flight().expect("something is in flight");
    let (id, rows) = (batch.id(), batch.rows().to_vec());
    let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
    scheduler.complete(id, &samples).unwrap();
}

/// A decode that wants a token each `target_ns`, its first token delivered at 1 s, and a long prompt behind it; one batch at `now`.
fn riding(config: Config, target_ns: u64, now_ns: u64) -> u64 {
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut paced = request(1, 16, 100);
    paced.tbt_slo_ns = Some(target_ns);
    scheduler.submit(paced).unwrap();
    scheduler.tick(1000 * MS);
    let _ = batch(&mut scheduler);
    complete(&mut scheduler);
    scheduler.submit(request(2, 100_000, 1)).unwrap();
    scheduler.tick(now_ns);
    let (rows, cost) = batch(&mut scheduler);
    assert_eq!((rows[0].0, rows[1].0), (1, 2));
    cost
}

#[test]
fn a_batch_costs_what_the_tightest_decode_has_left_over_the_batches_in_flight() {
    // 4 ms from token to token through 4 stages: 1 ms a stage while it is on time ...
    let on_time = riding(config(4), 4 * MS, 1000 * MS);
    assert!((930_000..=MS).contains(&on_time), "{on_time}");
    // ... less when half a millisecond has passed ...
    let later = riding(config(4), 4 * MS, 1000 * MS + MS / 2);
    assert!((805_000..=875_000).contains(&later), "{later}");
    // ... and three quarters when it is late anyway: prompts go on.
    let late = riding(config(4), 4 * MS, 1100 * MS);
    assert!((680_000..=750_000).contains(&late), "{late}");
    // Without following, the steady share.
    let mut steady = config(4);
    steady.latency.follow_slack = false;
    let steady = riding(steady, 4 * MS, 1100 * MS);
    assert!(steady >= on_time && steady <= MS, "{steady}");
}

/// A decode that wants a token each 4 ms through 4 stages, and a long prompt: what batches cost, and from token to token what the decode waits, on
/// a pipeline that takes `extra_ns` longer for each batch than the model says.
fn paced_run(config: Config, extra_ns: u64) -> (Vec<u64>, Vec<u64>) {
    let stages = config.stages as usize;
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut paced = request(1, 16, 300);
    paced.tbt_slo_ns = Some(4 * MS);
    scheduler.tick(1000 * MS);
    scheduler.submit(paced).unwrap();
    let (mut free, mut back) = (vec![0u64; stages], std::collections::VecDeque::new());
    let (mut costs, mut gaps, mut last, mut now) = (Vec::new(), Vec::new(), None, 1000 * MS);
    for step in 0..1000 {
        if step == 6 {
            scheduler.submit(request(2, 1_000_000, 1)).unwrap();
        }
        while let Some(time) = back.front().copied().filter(|&time| time <= now) {
            let _: Option<u64> = back.pop_front();
            scheduler.tick(time);
            let token = scheduler.oldest_in_flight().is_some_and(|batch| batch.rows().iter().any(|row| row.samples));
            complete(&mut scheduler);
            if token {
                gaps.extend(last.replace(time).map(|last| time - last));
            }
        }
        scheduler.tick(now);
        if back.len() < stages {
            let (rows, cost) = batch(&mut scheduler);
            if !rows.is_empty() {
                costs.push(cost);
                let out = free.iter_mut().fold(now, |at, free| {
                    *free = at.max(*free) + cost;
                    *free
                });
                back.push_back(out + extra_ns);
                continue;
            }
        }
        let Some(&next) = back.front() else { break };
        now = next;
    }
    (costs, gaps)
}

#[test]
fn batches_that_a_paced_decode_does_not_ride_in_are_limited_as_well() {
    // It rides in one of four batches; without a limit the prompt's others would be a thousand tokens and more each.
    let (costs, gaps) = paced_run(config(4), 0);
    assert!(gaps.len() > 50, "{}", gaps.len());
    assert!(costs[12..].iter().all(|&cost| cost <= MS), "{costs:?}");
    assert!(costs[12..].iter().sum::<u64>() > costs[12..].len() as u64 * 900_000, "the prompt gets what is left: {costs:?}");
    let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
    assert!(mean <= 4 * MS && mean > 3_500_000, "{mean}");
}

#[test]
fn what_results_take_longer_than_the_model_says_is_left_out_of_what_batches_may_cost() {
    // Half a millisecond more for each: batches have 3.5 ms in all, and tokens still come each 4.
    let (costs, gaps) = paced_run(config(4), MS / 2);
    let settled = &costs[100..];
    assert!(settled.iter().all(|&cost| cost <= 880_000), "{settled:?}");
    assert!(settled.iter().sum::<u64>() > settled.len() as u64 * 780_000, "{settled:?}");
    let mean = gaps.iter().sum::<u64>() / gaps.len() as u64;
    assert!(mean <= 4 * MS && mean > 3_500_000, "{mean}");
}

#[test]
fn a_decode_waits_no_more_than_the_configured_number_of_batches_for_latency_caps() {
    // The cap leaves room for one decode a batch; forty of them wait.
    for (most_wait, bound) in [(8, 8 + 2), (3, 3 + 2)] {
        let mut config = config(2);
        config.latency.max_decode_wait = most_wait;
        let mut scheduler = Scheduler::new(config).unwrap();
        for id in 0..40 {
            let mut paced = request(id, 16, 1000);
            paced.tbt_slo_ns = Some(1);
            scheduler.submit(paced).unwrap();
        }
        let mut last = [None; 40];
        let mut longest = 0;
        for at in 0u64..400 {
            scheduler.tick(at * MS);
            let (rows, _) = batch(&mut scheduler);
            for (id, _, prefill) in rows {
                let before = last[id as usize].replace(at).filter(|_| !prefill);
                longest = longest.max(before.map_or(0, |before| at - before));
            }
            while scheduler.in_flight() >= 2 {
                complete(&mut scheduler);
            }
        }
        // A round through the pipeline, and the wait.
        assert!(longest <= bound, "{longest} batches from one decode to the next, {most_wait} allowed");
        assert!(longest > 3, "nothing waited: {longest}");
    }
}

#[test]
fn the_prompt_that_has_waited_longest_comes_first_when_its_time_is_over() {
    let run = |bound| {
        let mut config = config(1);
        config.chunking = Chunking::Tokens { max: None };
        config.max_batch_tokens = 64;
        config.policy = PolicyKind::Srpf;
        config.latency.max_prefill_wait_ns = bound;
        let mut scheduler = Scheduler::new(config).unwrap();
        scheduler.submit(request(0, 640, 1)).unwrap();
        let mut seen = Vec::new();
        for at in 0..60u64 {
            // Short prompts fill every batch, for ever.
            scheduler.tick(at * MS);
            scheduler.submit(request(at + 1, 64, 1)).unwrap();
            let (rows, _) = batch(&mut scheduler);
            seen.extend(rows.iter().filter(|row| row.0 == 0).map(|_| at));
            complete(&mut scheduler);
        }
        seen
    };
    assert_eq!(run(None), [], "shortest first starves the long one");
    let seen = run(Some(5 * MS));
    assert_eq!(seen[..3], [5, 10, 15]);
}

#[test]
fn an_early_prompt_that_comes_first_leaves_room_and_is_home_in_time() {
    let run = |sharing| {
        let mut config = config(1);
        config.policy = PolicyKind::Edf;
        config.chunking = Chunking::Cost { target_ns: MS, align: 1, min: 1 };
        config.latency.space_sharing = sharing;
        let mut scheduler = Scheduler::new(config).unwrap();
        scheduler.tick(1);
        // 20,000 tokens of 1 us: 20 ms of work and 23 batches, due in 60 ms; then a short one, due later.
        let mut long = request(0, 20_000, 1);
        long.ttft_slo_ns = Some(60 * MS);
        scheduler.submit(long).unwrap();
        let (mut now, mut short_done, mut long_done) = (1, None, None);
        for at in 0..200 {
            if at == 2 {
                let mut short = request(1, 300, 1);
                short.ttft_slo_ns = Some(90 * MS);
                scheduler.submit(short).unwrap();
            }
            let (rows, cost) = batch(&mut scheduler);
            if rows.is_empty() {
                break;
            }
            assert!(cost <= MS, "{cost} is above the target");
            now += cost;
            scheduler.tick(now);
            complete(&mut scheduler);
            let of = |id| rows.iter().filter(|row| row.0 == id).map(|row| row.1).sum::<u32>();
            short_done = short_done.or_else(|| (of(1) > 0 && scheduler.num_computed_tokens(RequestId(1)).is_none()).then_some(at));
            long_done = long_done.or_else(|| (of(0) > 0 && scheduler.num_computed_tokens(RequestId(0)).is_none()).then_some(now));
        }
        (short_done.unwrap(), long_done.unwrap())
    };
    let (without, with) = (run(false), run(true));
    assert!(without.0 > 20, "the short one waits for the whole long one: {without:?}");
    assert!(with.0 <= 3, "it is served beside it: {with:?}");
    assert!(with.1 <= 60 * MS && with.1 < without.1 + MS, "{with:?} {without:?}");
}

/// Two prompts of which the second is the more urgent one; at each of these times one chunk: whose.
fn chunks_at(bound: Option<u64>, set_at: u64, times: &[u64]) -> Vec<u64> {
    let mut config = Config::default();
    (config.policy, config.block_size, config.max_batch_tokens) = (PolicyKind::Priority, 4, 4);
    config.latency.max_prefill_wait_ns = bound.filter(|_| set_at == 0);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.tick(100);
    for (id, tokens, priority, arrival) in [(1, 12, 5, 0), (2, 200, -5, 100)] {
        let mut request = request(id, tokens, 1);
        (request.priority, request.arrival_ns) = (priority, Some(arrival));
        scheduler.submit(request).unwrap();
    }
    let whose = times.iter().map(|&now| {
        scheduler.tick(now);
        if set_at == now {
            config.latency.max_prefill_wait_ns = bound;
            scheduler.reconfigure(config).unwrap();
        }
        let (rows, _) = batch(&mut scheduler);
        complete(&mut scheduler);
        scheduler.check_invariants().unwrap();
        assert_eq!(rows.len(), 1);
        rows[0].0
    });
    whose.collect()
}

#[test]
fn a_wait_is_bounded_from_the_submit_on_and_from_each_chunk_on() {
    let times = [100, 149, 150, 151, 199, 200, 201, 250];
    assert_eq!(chunks_at(None, 0, &times), [2; 8]);
    // It says that it arrived at 0, but was not here before 100. Each chunk begins a wait; its prompt has three.
    assert_eq!(chunks_at(Some(50), 0, &times), [2, 2, 1, 2, 2, 1, 2, 1]);
    // A bound that is set while it waits counts from then as it would have.
    assert_eq!(chunks_at(Some(50), 149, &times), [2, 2, 1, 2, 2, 1, 2, 1]);
    assert_eq!(chunks_at(Some(50), 199, &times), [2, 2, 2, 2, 1, 2, 2, 1]);
}
