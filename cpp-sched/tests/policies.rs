//! Policies: their rules, their bounds on waiting, what relegation and the guard are for, and plug-ins.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cpp_sched::{
    Attos, Config, ConfigError, CostModel, Event, Policy, PolicyKind, Rank, Request, RequestId, RequestView, Sample, Schedule, Scheduler,
    WaitReason,
};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// One stage; a prompt token takes a millisecond, a batch holds 50.
fn config(policy: PolicyKind) -> Config {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(MS);
    let mut config = Config::default();
    config.max_batch_tokens = 50;
    config.num_blocks = 10_000;
    config.cost = Some(cost);
    config.policy = policy;
    config
}

#[derive(Clone, Copy, Debug)]
struct Job {
    at: u64,
    tokens: u32,
    /// From its arrival.
    due: Option<u64>,
    priority: i64,
}

fn job(at: u64, tokens: u32, due: u64) -> Job {
    Job { at, tokens, due: Some(due), priority: 0 }
}

impl Job {
    fn request(&self, id: u64) -> Request {
        let mut request = Request::with_lengths(RequestId(id), self.tokens, Vec::new(), 1);
        (request.arrival_ns, request.ttft_slo_ns, request.priority) = (Some(self.at), self.due, self.priority);
        request
    }
}

/// When each got its first token, on one machine that runs a batch at a time in its cost.
fn run(scheduler: &mut Scheduler, jobs: &[Job]) -> Vec<u64> {
    let (mut now, mut next, mut done) = (0, 0, BTreeMap::new());
    loop {
        while let Some(job) = jobs.get(next).filter(|job| job.at <= now) {
            scheduler.tick(now);
            scheduler.submit(job.request(next as u64)).unwrap();
            next += 1;
        }
        scheduler.tick(now);
        let Schedule::Batch(batch) = scheduler.schedule() else {
            match jobs.get(next) {
                Some(job) => now = job.at,
                None => break,
            }
            continue;
        };
        let (id, cost) = (batch.id(), batch.cost_ns());
        let samples: Vec<_> =
            batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
        now += cost;
        scheduler.tick(now);
        scheduler.complete(id, &samples).unwrap();
        for event in scheduler.events() {
            if let Event::Token { request, .. } = event {
                done.insert(request.0, now);
            }
        }
        if id.0 % 16 == 0 {
            scheduler.check_invariants().unwrap();
        }
    }
    assert!(scheduler.is_idle());
    done.into_values().collect()
}

fn met(jobs: &[Job], done: &[u64]) -> usize {
    jobs.iter().zip(done).filter(|(job, done)| job.due.is_none_or(|due| **done <= job.at + due)).count()
}

#[test]
fn the_guard_meets_the_deadlines_of_the_example_in_which_lars_misses_two_of_three() {
    // Medha (arXiv 2409.17264 v5, section 4.1): 10 s of work due in 16 s; at 5 s two of half a second, due in 1 s.
    let jobs = [job(0, 10_000, 16 * S), job(5 * S, 500, S), job(5 * S, 500, S)];
    for (policy, guard, expected) in [
        (PolicyKind::Fcfs, false, 1),
        (PolicyKind::Edf, false, 3),
        (PolicyKind::Srpf, false, 3),
        (PolicyKind::Hybrid, false, 3),
        (PolicyKind::Lars, false, 1),
        (PolicyKind::Lars, true, 3),
    ] {
        let mut config = config(policy);
        config.feasibility_guard = guard;
        let done = run(&mut Scheduler::new(config).unwrap(), &jobs);
        assert_eq!(met(&jobs, &done), expected, "{policy:?}, guard {guard}: {done:?}");
    }
}

/// A large job due first, and ten small ones due shortly after it.
fn overload() -> Vec<Job> {
    let mut jobs = vec![job(0, 10_000, 10 * S + 200 * MS)];
    jobs.extend((0..10).map(|n| job(0, 200, 10 * S + 300 * MS + n * 20 * MS)));
    jobs
}

#[test]
fn in_an_overload_the_largest_gives_way_and_is_served_last() {
    let jobs = overload();
    for policy in [PolicyKind::Edf, PolicyKind::Lars, PolicyKind::Hybrid, PolicyKind::Srpf, PolicyKind::Fcfs] {
        let mut config = config(policy);
        config.hybrid_alpha_ns = 0;
        (config.relegation, config.feasibility_guard) = (true, true);
        let mut scheduler = Scheduler::new(config).unwrap();
        let done = run(&mut scheduler, &jobs);
        assert_eq!(met(&jobs, &done), 10, "{policy:?}: {done:?}");
        assert_eq!(done[0], *done.iter().max().unwrap(), "{policy:?}: the large one comes last");
        assert!(scheduler.stats().relegated > 0);
    }
    let done = run(&mut Scheduler::new(config(PolicyKind::Edf)).unwrap(), &jobs);
    assert_eq!(met(&jobs, &done), 2, "EDF alone serves the large one, and is late for all others but one: {done:?}");
}

#[test]
fn who_was_relegated_comes_back_when_there_is_room_in_time() {
    let mut config = config(PolicyKind::Edf);
    config.relegation = true;
    let mut scheduler = Scheduler::new(config).unwrap();
    for (id, job) in (0..).zip(overload()) {
        scheduler.submit(job.request(id)).unwrap();
    }
    let first = |scheduler: &mut Scheduler| {
        let batch = scheduler.schedule().batch().unwrap();
        let (id, first) = (batch.id(), batch.rows()[0].request.0);
        scheduler.complete(id, &[]).unwrap();
        first
    };
    assert_eq!(first(&mut scheduler), 1);
    assert_eq!((scheduler.stats().relegated, scheduler.stats().returned), (1, 0));
    for id in 1..=10 {
        assert!(scheduler.abort(RequestId(id)).is_applied());
    }
    assert_eq!(first(&mut scheduler), 0);
    assert_eq!((scheduler.stats().relegated, scheduler.stats().returned), (1, 1));
    scheduler.check_invariants().unwrap();
}

#[test]
fn a_hopeless_one_costs_nobody_else_a_deadline() {
    // The first cannot be on time even alone: EDF would serve it first all the same.
    let jobs = [job(0, 2000, S), job(0, 900, S + 100 * MS), job(0, 900, 2 * S)];
    let mut config = config(PolicyKind::Edf);
    assert_eq!(met(&jobs, &run(&mut Scheduler::new(config).unwrap(), &jobs)), 0);
    config.relegation = true;
    let done = run(&mut Scheduler::new(config).unwrap(), &jobs);
    assert_eq!((met(&jobs, &done), done[0]), (2, 3800 * MS));
}

#[test]
fn the_bound_on_waits_holds_for_relegated_ones_under_an_endless_overload() {
    for policy in [PolicyKind::Edf, PolicyKind::Lars, PolicyKind::Hybrid, PolicyKind::Srpf, PolicyKind::Priority] {
        let mut config = config(policy);
        (config.relegation, config.feasibility_guard) = (true, true);
        config.latency.max_prefill_wait_ns = Some(2 * S);
        // More work than the machine can do, for a minute; the first can never be on time.
        let mut jobs = vec![job(0, 1000, 10 * MS)];
        jobs[0].priority = 9;
        jobs.extend((0..600).map(|n| job(n * 100 * MS, 110, 3 * S)));
        let done = run(&mut Scheduler::new(config).unwrap(), &jobs);
        // Twenty chunks, each after at most two seconds and the batches that others wait for likewise.
        assert!(done[0] < 60 * S, "{policy:?}: {}", done[0]);
    }
}

/// A long one, and short ones without end: when the long one was done, and how many that came after `from` were done before it.
fn starved(config: Config, long: Job, short: impl Fn(u64) -> Job, from: u64) -> (u64, usize) {
    let mut jobs = vec![long];
    jobs.extend((0..3000).map(|n| short(n * 50 * MS)));
    let done = run(&mut Scheduler::new(config).unwrap(), &jobs);
    (done[0], jobs.iter().zip(&done).filter(|(job, at)| job.at > from && **at < done[0]).count())
}

#[test]
fn srpf_with_ageing_serves_nobody_who_comes_too_late_before_a_long_one() {
    let long = job(0, 1000, S);
    let short = |at| job(at, 50, S);
    // Short ones fill the machine for 150 s.
    let (done, _) = starved(config(PolicyKind::Srpf), long, short, 0);
    assert!(done >= 150 * S, "{done}");
    // A token counts as 10 ms: nobody who comes after 10 s goes before its first chunk; later ones of its chunks are nearer still.
    let mut config = config(PolicyKind::Srpf);
    config.srpf_ageing_ns = Some(10 * MS);
    let (done, passed) = starved(config, long, short, 10 * S);
    assert!(passed == 0 && done < 12 * S, "{passed} passed it, it was done at {done}");
}

#[test]
fn priority_with_ageing_serves_nobody_who_comes_too_late_before_a_low_one() {
    let long = Job { priority: 5, ..job(0, 1000, S) };
    let short = |at| Job { priority: 2, ..job(at, 50, S) };
    let (done, _) = starved(config(PolicyKind::Priority), long, short, 0);
    assert!(done >= 150 * S, "{done}");
    let mut config = config(PolicyKind::Priority);
    config.priority_ageing_ns = Some(4 * S);
    let (done, passed) = starved(config, long, short, 12 * S);
    assert!(passed == 0 && done < 14 * S, "{passed} passed it, it was done at {done}");
}

#[test]
fn lars_edf_and_hybrid_serve_nobody_who_comes_too_late_before_a_long_one() {
    let long = job(0, 1000, 20 * S);
    let short = |at| job(at, 50, S);
    for policy in [PolicyKind::Edf, PolicyKind::Lars, PolicyKind::Hybrid] {
        // Deadlines of those that come after 19 s are behind its own; 8 ms for each token more make it 8 s; and relative to its length it has no
        // more slack than them when it has as much of it in its own lengths.
        let (done, passed) = starved(config(policy), long, short, 28 * S);
        assert!(passed == 0 && done < 30 * S, "{policy:?}: {passed} passed it, it was done at {done}");
    }
}

/// The order in which prompts of one batch each are served.
fn order(config: Config, jobs: &[Job]) -> Vec<usize> {
    let done = run(&mut Scheduler::new(config).unwrap(), jobs);
    let mut order: Vec<_> = (0..jobs.len()).collect();
    order.sort_by_key(|&at| done[at]);
    order
}

#[test]
fn hybrid_is_edf_without_alpha_and_srpf_with_a_large_one() {
    let mut state = 9u64;
    let mut draw = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    for _ in 0..20 {
        let jobs: Vec<_> = (0..12).map(|_| job(0, 20 + draw(900) as u32, draw(5 * S))).collect();
        let with = |alpha| {
            let mut config = config(PolicyKind::Hybrid);
            config.hybrid_alpha_ns = alpha;
            order(config, &jobs)
        };
        assert_eq!(with(0), order(config(PolicyKind::Edf), &jobs));
        assert_eq!(with(100 * S), order(config(PolicyKind::Srpf), &jobs));
    }
}

#[test]
fn tenants_with_work_are_served_alike_up_to_twice_the_largest_step() {
    for seed in 0..20u64 {
        let mut state = seed;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        const OUTPUTS: u64 = 8;
        let mut scheduler = Scheduler::new(config(PolicyKind::Fair)).unwrap();
        let weights = [1, 1, 1 + draw(4)];
        // The third asks for ten times as much as the others.
        for id in 0..240 {
            let tenant = if id % 12 < 10 { 2 } else { id % 12 - 10 };
            let mut request = Request::with_lengths(RequestId(id), 20 + draw(300) as u32, Vec::new(), 1 + draw(OUTPUTS) as u32);
            (request.tenant, request.weight_millionths) = (Some(tenant), weights[tenant as usize] * 1_000_000);
            scheduler.submit(request).unwrap();
        }
        let tenant_of = |id: u64| if id % 12 < 10 { 2 } else { (id % 12 - 10) as usize };
        // VTC (Sheng et al. 2024): twice the larger of a chunk and the decodes of all that are admitted. There are slots for everybody.
        let bound = |running: u32| 2 * (50 * MS).max(u64::from(running) * OUTPUTS * MS);
        let (mut served, mut compared, mut running) = ([0; 3], 0, 0);
        while let Schedule::Batch(batch) = scheduler.schedule() {
            for row in batch.rows() {
                let tenant = tenant_of(row.request.0);
                served[tenant] += row.cost_ns / weights[tenant];
            }
            running = running.max(batch.rows().len() as u32);
            let id = batch.id();
            let samples: Vec<_> =
                batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
            scheduler.complete(id, &samples).unwrap();
            let waits = |tenant| {
                let mine = (0..240).map(RequestId).filter(|id| tenant_of(id.0) == tenant);
                mine.into_iter().any(|id| scheduler.why(id).is_some() && scheduler.num_computed_tokens(id) == Some(0))
            };
            if (0..3).all(waits) {
                compared += 1;
                let gap = served.iter().max().unwrap() - served.iter().min().unwrap();
                assert!(gap <= bound(running), "seed {seed}: {served:?}, {gap} apart, {running} in a batch");
            }
        }
        assert!(compared > 50, "seed {seed}: {compared}");
    }
}

/// Slots (and blocks) that a flood holds are not taken from it; but the next one that it gives back is not its own again.
#[test]
fn a_slot_that_becomes_free_goes_to_the_tenant_that_was_served_least() {
    for (slots, by_blocks) in [(1, false), (3, false), (8, false), (3, true), (8, true)] {
        let mut config = config(PolicyKind::Fair);
        if by_blocks {
            // Memory for so many of the flood's prompts and outputs.
            (config.block_size, config.num_blocks, config.admission) = (16, slots * 10, cpp_sched::Admission::NoEvict);
        } else {
            config.max_requests = slots;
        }
        let mut scheduler = Scheduler::new(config).unwrap();
        let request = |id: u64, tenant: u64| {
            let mut request = Request::with_lengths(RequestId(id), 120, Vec::new(), 10 + (id * 7 % 31) as u32);
            request.tenant = Some(tenant);
            request
        };
        for id in 0..100 {
            scheduler.submit(request(id, 1)).unwrap();
        }
        let (mut seen, mut ends_waited, mut after) = (std::collections::BTreeSet::new(), 0, Vec::new());
        for step in 0..400u64 {
            if step == 40 {
                scheduler.submit(request(1000, 2)).unwrap();
            }
            let Schedule::Batch(batch) = scheduler.schedule() else { break };
            let new = batch.rows().iter().map(|row| row.request.0).filter(|&id| seen.insert(id));
            after.extend(new.filter(|_| step >= 40));
            let id = batch.id();
            let rows = batch.rows().iter().filter(|row| row.samples);
            let samples: Vec<_> = rows.map(|row| Sample { request: row.request, tokens: &[1] }).collect();
            scheduler.complete(id, &samples).unwrap();
            let ends = scheduler.events().filter(|event| matches!(event, cpp_sched::Event::Finished { .. })).count();
            ends_waited += if step >= 40 && !seen.contains(&1000) { ends } else { 0 };
        }
        assert_eq!(after.first(), Some(&1000), "{slots} slots, blocks {by_blocks}: {after:?} came first");
        // Memory of different lengths: two that end may be needed for one.
        assert!(ends_waited <= if by_blocks { 2 } else { 1 }, "{slots} slots, blocks {by_blocks}: {ends_waited} ended meanwhile");
        assert!(after.len() > 5);
    }
}

#[test]
fn what_needs_a_cost_model_or_a_policy_says_so() {
    let mut config = Config::default();
    config.relegation = true;
    assert_eq!(Scheduler::new(config).unwrap_err(), ConfigError::NeedsCost { field: "relegation" });
    config.relegation = false;
    config.feasibility_guard = true;
    assert_eq!(Scheduler::new(config).unwrap_err().to_string(), "feasibility_guard needs a cost model: set cost");
    config.feasibility_guard = false;
    config.policy = PolicyKind::Custom;
    assert_eq!(Scheduler::new(config).unwrap_err(), ConfigError::PolicyMissing);
    config.srpf_ageing_ns = Some(0);
    assert_eq!(Scheduler::new(config).unwrap_err(), ConfigError::Zero { field: "srpf_ageing_ns" });
}

#[test]
fn who_waits_behind_an_urgent_one_that_lacks_blocks_is_told_so() {
    let mut config = config(PolicyKind::Srpf);
    (config.block_size, config.num_blocks, config.feasibility_guard) = (10, 20, true);
    let mut scheduler = Scheduler::new(config).unwrap();
    // The first holds 15 of 20 blocks behind a gate, with a chunk in flight. The urgent one needs ten, the small one, which comes first by its length, one.
    for (id, job) in [(0, job(0, 150, 100 * S)), (1, job(0, 100, 10 * MS)), (2, Job { due: None, ..job(0, 10, S) })] {
        if id == 1 {
            assert!(scheduler.schedule().batch().is_some());
            assert!(scheduler.shut(RequestId(0), cpp_sched::Gate::Other).is_applied());
        }
        scheduler.submit(job.request(id)).unwrap();
    }
    scheduler.complete(scheduler.oldest_in_flight().unwrap().id(), &[]).unwrap();
    assert!(scheduler.shut(RequestId(1), cpp_sched::Gate::Other).is_applied());
    assert_eq!(scheduler.why(RequestId(2)), Some(WaitReason::Runnable));
    assert!(scheduler.open(RequestId(1), cpp_sched::Gate::Other).is_applied());
    assert_eq!(scheduler.why(RequestId(2)), Some(WaitReason::BehindOthers));
}

// ---- plug-ins --------------------------------------------------------------------------------------------------------------------

/// Puts one request off for ever, and counts how often it is asked.
#[derive(Debug, Default)]
struct Never(AtomicU64);

impl Policy for Never {
    fn name(&self) -> &str {
        "never"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        self.0.fetch_add(1, Ordering::Relaxed);
        if view.seq == 0 { Rank::NotNow { until_ns: u64::MAX } } else { Rank::Key(0) }
    }
}

#[test]
fn not_now_holds_while_others_run_but_not_beyond_the_bound_and_never_idles() {
    let mut config = config(PolicyKind::Fcfs);
    (config.stages, config.max_deferral_ns) = (4, 3 * S);
    let mut scheduler = Scheduler::with_policy(config, Box::new(Never::default())).unwrap();
    assert_eq!((scheduler.policy_name(), scheduler.config().policy), (Some("never"), PolicyKind::Custom));
    for (id, tokens) in [(0, 100), (1, 30)] {
        scheduler.submit(job(0, tokens, S).request(id)).unwrap();
    }
    // There is room in the batch and in the pipeline, but not for the one that was put off.
    assert_eq!(scheduler.schedule().batch().unwrap().rows().iter().map(|row| row.request.0).collect::<Vec<_>>(), [1]);
    assert!(scheduler.schedule().batch().is_none());
    assert_eq!(scheduler.why(RequestId(0)), Some(WaitReason::PutOff));
    // Until it was put off for as long as is allowed.
    scheduler.tick(3 * S - 1);
    assert!(scheduler.schedule().batch().is_none());
    scheduler.tick(3 * S);
    assert_eq!(scheduler.schedule().batch().unwrap().rows()[0].request.0, 0);
    // Its next chunk may be put off again.
    assert!(scheduler.schedule().batch().is_none());
    scheduler.check_invariants().unwrap();
    // Nothing in flight, nothing else to do: it runs without waiting.
    scheduler.complete(scheduler.oldest_in_flight().unwrap().id(), &[Sample { request: RequestId(1), tokens: &[1] }]).unwrap();
    scheduler.complete(scheduler.oldest_in_flight().unwrap().id(), &[]).unwrap();
    assert_eq!(scheduler.schedule().batch().unwrap().rows()[0].request.0, 0);
}

/// LARS as a plug-in.
#[derive(Debug)]
struct Slack;

impl Policy for Slack {
    fn name(&self) -> &str {
        "slack"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        match view.deadline_ns {
            Some(deadline) => Rank::Falling { zero_ns: i128::from(deadline) - i128::from(view.work_left), per: view.work_total },
            None => Rank::Key(i128::MAX),
        }
    }
}

#[test]
fn a_plug_in_can_be_what_is_shipped() {
    let mut jobs: Vec<_> =
        (0..200u64).map(|n| job(n * 37 * MS, 40 + (n * 7919 % 400) as u32, 200 * MS + n * 104_729 * MS % (9 * S))).collect();
    for job in jobs.iter_mut().step_by(9) {
        job.due = None;
    }
    let shipped = run(&mut Scheduler::new(config(PolicyKind::Lars)).unwrap(), &jobs);
    let plugged = run(&mut Scheduler::with_policy(config(PolicyKind::Fcfs), Box::new(Slack)).unwrap(), &jobs);
    assert_eq!(shipped, plugged);
    assert_ne!(shipped, run(&mut Scheduler::new(config(PolicyKind::Fcfs)).unwrap(), &jobs));
}

#[test]
fn a_plug_in_is_asked_about_those_that_move_and_not_about_all() {
    let policy = std::sync::Arc::new(AtomicU64::new(0));
    #[derive(Debug)]
    struct Counting(std::sync::Arc<AtomicU64>);
    impl Policy for Counting {
        fn name(&self) -> &str {
            "counting"
        }
        fn rank(&self, view: &RequestView) -> Rank {
            self.0.fetch_add(1, Ordering::Relaxed);
            Rank::Falling { zero_ns: i128::from(view.arrival_ns), per: view.work_total }
        }
    }
    let mut scheduler = Scheduler::with_policy(config(PolicyKind::Fcfs), Box::new(Counting(policy.clone()))).unwrap();
    for id in 0..2000 {
        scheduler.submit(job(0, 100, S).request(id)).unwrap();
    }
    assert_eq!(policy.swap(0, Ordering::Relaxed), 2000);
    for step in 1..=100 {
        scheduler.tick(step * 50 * MS);
        let batch = scheduler.schedule().batch().unwrap();
        let samples: Vec<_> =
            batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
        let id = batch.id();
        scheduler.complete(id, &samples).unwrap();
    }
    assert!(policy.load(Ordering::Relaxed) <= 200, "asked {policy:?} times in 100 batches");
}
