//! After warm-up at a constant population `schedule` and `complete` allocate nothing.

use allocation_counter::measure;
use cpp_sched::{Attos, Chunking, Config, CostModel, Event, Request, RequestId, Sample, Schedule, Scheduler, TokenId};

/// One round: fill the pipeline, complete the oldest batch. Uses only memory that was there before.
fn round(scheduler: &mut Scheduler, sampling: &mut Vec<RequestId>, token: TokenId) {
    while let Schedule::Batch(_) = scheduler.schedule() {}
    let oldest = scheduler.oldest_in_flight().expect("something is in flight");
    let id = oldest.id();
    sampling.clear();
    sampling.extend(oldest.rows().iter().filter(|row| row.samples).map(|row| row.request));
    let tokens = [token];
    // As many samples as there can be, on the stack.
    let mut samples = [Sample { request: RequestId(0), tokens: &tokens }; 64];
    for (sample, &request) in samples.iter_mut().zip(sampling.iter()) {
        sample.request = request;
    }
    scheduler.complete(id, &samples[..sampling.len()]).expect("a right result");
    scheduler.events().for_each(drop);
}

/// Rings, lists and tables find their size.
fn warm_up(scheduler: &mut Scheduler, rounds: u32) {
    let mut sampling = Vec::with_capacity(64);
    (0..rounds).for_each(|token| round(scheduler, &mut sampling, token));
}

fn allocations(scheduler: &mut Scheduler, rounds: u32) -> u64 {
    let mut sampling = Vec::with_capacity(64);
    let info = measure(|| (0..rounds).for_each(|token| round(scheduler, &mut sampling, token)));
    assert_eq!(info.count_current, 0, "no memory is kept");
    info.count_total
}

fn config(stages: u32, caching: bool) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.num_blocks = 20_000;
    config.prefix_caching = caching;
    config
}

#[test]
fn the_counter_counts() {
    // Held against the optimiser, which would do without the allocation.
    assert_eq!(measure(|| drop(std::hint::black_box(vec![1]))).count_total, 1);
    assert_eq!(measure(|| ()).count_total, 0);
}

#[test]
fn decodes_allocate_nothing() {
    for stages in [1, 4] {
        for caching in [false, true] {
            for asynchronous in [false, true] {
                let mut config = config(stages, caching);
                config.async_scheduling = asynchronous;
                let mut scheduler = Scheduler::new(config).unwrap();
                for id in 0..48 {
                    scheduler.submit(Request::new(RequestId(id), vec![id as u32; 100], 4000)).unwrap();
                }
                warm_up(&mut scheduler, 200);
                let case = format!("{stages} stages, caching {caching}, asynchronous {asynchronous}");
                // Block tables grow on the way, and whole blocks are hashed and published.
                assert_eq!(allocations(&mut scheduler, 2000), 0, "{case}");
                assert_eq!(scheduler.stats().running, 48, "{case}");
                scheduler.check_invariants().unwrap();
            }
        }
    }
}

#[test]
fn chunks_of_long_prompts_allocate_nothing() {
    for caching in [false, true] {
        let mut config = config(4, caching);
        config.max_batch_tokens = 64;
        let mut scheduler = Scheduler::new(config).unwrap();
        for id in 0..4 {
            scheduler.submit(Request::new(RequestId(id), (0..60_000).map(|i| i + id as u32).collect(), 1)).unwrap();
        }
        warm_up(&mut scheduler, 20);
        assert_eq!(allocations(&mut scheduler, 900), 0, "caching {caching}");
        assert_eq!(scheduler.stats().finished, 0, "still in the first prompt");
    }
}

#[test]
fn the_planner_allocates_nothing() {
    let by_cost = Chunking::Cost { target_ns: 1_000_000, align: 64, min: 64 };
    for (chunking, c4) in [(Chunking::Adaptive, 0), (Chunking::Adaptive, 50_000_000), (by_cost, 0)] {
        let mut config = config(4, false);
        config.block_size = 64;
        config.max_batch_tokens = 1 << 20;
        config.chunking = chunking;
        let mut cost = CostModel::default();
        (cost.c0, cost.c1) = (Attos::from_ns(20_000), Attos::from_ns(500));
        (cost.c2, cost.c3, cost.c4) = (Attos(50_000_000), Attos::from_ns(1), Attos(c4));
        config.cost = Some(cost);
        let mut scheduler = Scheduler::new(config).unwrap();
        // A request's own vectors are sized when it is admitted, so all are by the end of the warm-up.
        for id in 0..17 {
            let (prompt, output) = if id < 16 { (100, 4000) } else { (600_000, 1) };
            scheduler.submit(Request::with_lengths(RequestId(id), prompt, Vec::new(), output)).unwrap();
        }
        warm_up(&mut scheduler, 100);
        let before = scheduler.adaptive_rest();
        // The target is chosen again when the rest has halved.
        for _ in 0..60 {
            assert_eq!(allocations(&mut scheduler, 10), 0, "{chunking:?}");
        }
        assert!(chunking != Chunking::Adaptive || scheduler.adaptive_rest() < before / 2, "{} of {before}", scheduler.adaptive_rest());
    }
}

#[test]
fn drafts_costs_and_flops_allocate_nothing() {
    let mut config = config(2, true);
    config.model = Some(cpp_sched::ModelDims::new(2, 64, 4, 2, 16, 128));
    config.cost = Some(CostModel::default());
    let mut scheduler = Scheduler::new(config).unwrap();
    for id in 0..32 {
        let mut request = Request::new(RequestId(id), vec![id as u32; 50], 3000);
        request.drafts = 3;
        scheduler.submit(request).unwrap();
    }
    warm_up(&mut scheduler, 100);
    assert_eq!(allocations(&mut scheduler, 1000), 0);
}

#[test]
fn a_stream_of_equal_requests_keeps_no_memory() {
    // Requests come and go at a constant population: each brings its own vectors and takes them away again.
    let mut scheduler = Scheduler::new(config(2, false)).unwrap();
    let mut next = 0;
    let mut stream = |scheduler: &mut Scheduler, ends: u32| {
        let mut left = ends;
        while left > 0 {
            while scheduler.num_unfinished() < 16 {
                scheduler.submit(Request::new(RequestId(next), vec![5; 40], 8)).unwrap();
                next += 1;
            }
            while let Schedule::Batch(_) = scheduler.schedule() {}
            let oldest = scheduler.oldest_in_flight().expect("something is in flight");
            let (id, rows) = (oldest.id(), oldest.rows().to_vec());
            let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[3] }).collect();
            scheduler.complete(id, &samples).unwrap();
            left -= scheduler.events().filter(|event| matches!(event, Event::Finished { .. })).count().min(left as usize) as u32;
        }
    };
    stream(&mut scheduler, 200);
    let info = measure(|| stream(&mut scheduler, 2000));
    assert!(info.bytes_current.unsigned_abs() < 4096, "{} bytes more after 2000 requests", info.bytes_current);
    assert!(info.count_total < 2000 * 40, "{} allocations for 2000 requests", info.count_total);
}
