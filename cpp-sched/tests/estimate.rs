//! Predictions against what then happens, in virtual time; and early rejection by them.

use cpp_sched::{
    Attos, Chunking, Config, ConfigError, CostModel, PolicyKind, Request, RequestId, Sample, Schedule, Scheduler, SubmitError,
};

fn config(stages: u32, chunking: Chunking) -> Config {
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(50_000);
    cost.c1 = Attos::from_ns(400);
    cost.c2 = Attos(20_000_000);
    cost.c5 = Attos::from_ns(2_000);
    let mut config = Config::default();
    config.stages = stages;
    config.max_batch_tokens = 1024;
    config.num_blocks = 200_000;
    config.max_requests = 512;
    config.cost = Some(cost);
    config.chunking = chunking;
    config
}

/// A pipeline whose stages take what the scheduler's model says, without hops.
struct Pipeline {
    scheduler: Scheduler,
    free_at: Vec<u64>,
    /// When each batch in flight is back.
    back: std::collections::VecDeque<u64>,
    now: u64,
    first_token: std::collections::BTreeMap<u64, u64>,
}

impl Pipeline {
    fn new(config: Config) -> Self {
        let (scheduler, free_at) = (Scheduler::new(config).unwrap(), vec![0; config.stages as usize]);
        Self { scheduler, free_at, back: Default::default(), now: 0, first_token: Default::default() }
    }

    fn fill(&mut self) {
        while let Schedule::Batch(batch) = self.scheduler.schedule() {
            let cost = batch.cost_ns();
            let mut at = self.now;
            for free_at in &mut self.free_at {
                at = at.max(*free_at) + cost;
                *free_at = at;
            }
            self.back.push_back(at);
        }
    }

    /// Runs until `until`, or until nothing is left to do.
    fn run(&mut self, until: u64) {
        self.fill();
        while let Some(&at) = self.back.front().filter(|&&at| at <= until) {
            self.back.pop_front();
            self.now = at;
            self.scheduler.tick(at);
            let batch = self.scheduler.oldest_in_flight().unwrap();
            let (id, rows) = (batch.id(), batch.rows().to_vec());
            let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
            self.scheduler.complete(id, &samples).unwrap();
            for sample in samples {
                self.first_token.entry(sample.request.0).or_insert(at);
            }
            self.fill();
        }
        self.now = self.now.max(until.min(self.now.max(until)));
        if until < u64::MAX {
            self.scheduler.tick(until);
        }
    }
}

#[test]
fn alone_the_prediction_is_exact_for_equal_batches() {
    for stages in [1, 2, 5] {
        for tokens in [1, 1000, 1024, 4096] {
            let mut flat = config(stages, Chunking::default());
            if let Some(cost) = &mut flat.cost {
                cost.c2 = Attos::ZERO;
            }
            let mut pipeline = Pipeline::new(flat);
            let request = Request::new(RequestId(1), vec![1; tokens], 1);
            let estimate = pipeline.scheduler.estimate(&request).unwrap();
            pipeline.scheduler.submit(request).unwrap();
            pipeline.run(u64::MAX);
            assert_eq!(estimate.ttft_ns, pipeline.first_token[&1], "{tokens} tokens, {stages} stages");
            assert!(estimate.fits_now && estimate.queue_ns == 0);
        }
    }
}

#[test]
fn under_load_the_prediction_is_near_for_every_way_of_chunking() {
    for chunking in [Chunking::default(), Chunking::Adaptive, Chunking::Cost { target_ns: 500_000, align: 16, min: 16 }] {
        let mut pipeline = Pipeline::new(config(4, chunking));
        let (mut seed, mut at, mut predicted) = (7u64, 0, Vec::new());
        for id in 0..400 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // About 70 % of what one stage can do.
            at += 600_000 + (seed >> 33) % 1_500_000;
            let tokens = 200 + (seed >> 40) as usize % 4000;
            pipeline.run(at);
            let request = Request::new(RequestId(id), vec![1; tokens], 1 + (seed >> 50) as u32 % 60);
            predicted.push((id, at + pipeline.scheduler.estimate(&request).unwrap().ttft_ns, at));
            pipeline.scheduler.submit(request).unwrap();
        }
        pipeline.run(u64::MAX);
        let mut errors: Vec<f64> = predicted
            .iter()
            .map(|&(id, predicted, at)| ((predicted - at) as f64 / (pipeline.first_token[&id] - at) as f64 - 1.0).abs())
            .collect();
        errors.sort_unstable_by(f64::total_cmp);
        let (median, p90) = (errors[200], errors[360]);
        println!("{chunking:?}: median error {:.1} %, p90 {:.1} %", median * 100.0, p90 * 100.0);
        assert!(median < 0.1 && p90 < 0.3, "{chunking:?}: median {median:.3}, p90 {p90:.3}");
    }
}

/// Requests wait for slots that others hold for as long as they decode: what is ahead runs meanwhile, and slots come as they have come lately.
#[test]
fn where_slots_are_short_the_prediction_follows_how_often_they_become_free() {
    let mut short = config(4, Chunking::default());
    short.max_requests = 24;
    let mut pipeline = Pipeline::new(short);
    let (mut seed, mut at, mut predicted) = (3u64, 0, Vec::new());
    for id in 0..800 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += 300_000 + (seed >> 33) % 800_000;
        pipeline.run(at);
        let request = Request::new(RequestId(id), vec![1; 50 + (seed >> 40) as usize % 400], 40 + (seed >> 50) as u32 % 80);
        let estimate = pipeline.scheduler.estimate(&request).unwrap();
        predicted.push((id, at, estimate.ttft_ns, estimate.fits_now));
        pipeline.scheduler.submit(request).unwrap();
    }
    pipeline.run(u64::MAX);
    // Not those at the start, before anybody has ended.
    let short = predicted[200..].iter().filter(|&&(.., fits)| !fits);
    let mut errors: Vec<f64> =
        short.map(|&(id, at, ttft, _)| (ttft as f64 / (pipeline.first_token[&id] - at) as f64 - 1.0).abs()).collect();
    errors.sort_unstable_by(f64::total_cmp);
    assert!(errors.len() > 300, "{} waited for a slot", errors.len());
    let (median, p90) = (errors[errors.len() / 2], errors[errors.len() * 9 / 10]);
    println!("median error {:.1} %, p90 {:.1} %", median * 100.0, p90 * 100.0);
    assert!(median < 0.1 && p90 < 0.3, "median {median:.3}, p90 {p90:.3}");
}

#[test]
fn work_ahead_counts_by_the_order_of_the_policy() {
    let mut config = config(2, Chunking::default());
    config.policy = PolicyKind::Srpf;
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(1), vec![1; 50_000], 1)).unwrap();
    let short = scheduler.estimate(&Request::new(RequestId(2), vec![1; 100], 1)).unwrap();
    let long = scheduler.estimate(&Request::new(RequestId(2), vec![1; 60_000], 1)).unwrap();
    assert_eq!(short.ahead_ns, 0);
    assert!(long.ahead_ns > 20_000_000 && long.ttft_ns > short.ttft_ns);
}

#[test]
fn a_request_that_would_be_late_is_refused_with_the_prediction_and_nothing_changes() {
    let mut config = config(2, Chunking::default());
    config.latency.reject_above_millionths = Some(1_500_000);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(1), vec![1; 50_000], 1)).unwrap();
    let mut hasty = Request::new(RequestId(2), vec![1; 100], 1);
    hasty.ttft_slo_ns = Some(1_000_000);
    let before = scheduler.num_unfinished();
    let expected = scheduler.estimate(&hasty).unwrap().ttft_ns;
    let refused = scheduler.submit(hasty.clone()).unwrap_err();
    assert_eq!(refused, SubmitError::TooLate { request: RequestId(2), ttft_ns: expected, ttft_slo_ns: 1_000_000 });
    assert!(refused.to_string().contains("its target is 1 ms"), "{refused}");
    assert_eq!((scheduler.num_unfinished(), scheduler.stats().rejected), (before, 1));
    // Within one and a half times of its target it is taken.
    hasty.ttft_slo_ns = Some(expected * 2 / 3 + 1);
    scheduler.submit(hasty).unwrap();

    config.cost = None;
    assert_eq!(Scheduler::new(config).unwrap_err(), ConfigError::NeedsCost { field: "latency.reject_above_millionths" });
}

#[test]
fn what_is_found_in_the_prefix_cache_is_neither_work_nor_memory() {
    let mut config = config(1, Chunking::default());
    config.prefix_caching = true;
    let mut pipeline = Pipeline::new(config);
    pipeline.scheduler.submit(Request::new(RequestId(1), vec![3; 1600], 1)).unwrap();
    pipeline.run(u64::MAX);
    let estimate = pipeline.scheduler.estimate(&Request::new(RequestId(2), vec![3; 1600], 1)).unwrap();
    assert_eq!((estimate.cached_tokens, estimate.prompt_blocks, estimate.most_blocks), (1584, 1, 100));
}
