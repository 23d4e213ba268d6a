//! Several chunks of one request in one batch: rows are keyed by (request, chunk), and the accounting is exact.

use cpp_sched::{Admission, Attos, Chunking, CompleteError, Config, CostModel, ModelDims, RequestId, Sample};

use crate::bench::{Bench, tokens_of};

fn bench(set: impl FnOnce(&mut Config)) -> Bench {
    Bench::new(|c| {
        (c.chunks_per_batch, c.chunking) = (3, Chunking::Tokens { max: Some(4) });
        set(c);
    })
}

#[test]
fn each_continues_the_one_before_and_the_last_one_alone_samples() {
    let mut bench = bench(|c| c.stages = 2);
    bench.submit(1, 20, 2);
    assert_eq!(bench.fill(), [vec![(1, 0, 4), (1, 4, 8), (1, 8, 12)], vec![(1, 12, 16), (1, 16, 20)]]);
    let samples: Vec<_> = bench.flight.iter().flat_map(|batch| batch.rows()).map(|row| row.samples).collect();
    assert_eq!(samples, [false, false, false, false, true]);
    bench.complete();
    assert_eq!(bench.committed(1), 12);
    assert_eq!(tokens_of(&bench.finish()), [(1, 1020), (1, 1021)]);
}

#[test]
fn they_count_as_rows_and_as_tokens_of_the_request() {
    let mut rows = bench(|c| c.max_batch_requests = 2);
    rows.submit(1, 20, 1).submit(2, 4, 1);
    assert_eq!(rows.step(), [(1, 0, 4), (1, 4, 8)]);
    let mut tokens = bench(|c| c.max_prompt_tokens_per_batch = Some(10));
    tokens.submit(1, 20, 1).submit(2, 4, 1);
    assert_eq!(tokens.step(), [(1, 0, 4), (1, 4, 8), (1, 8, 10), (2, 0, 4)]);
    let mut budget = bench(|c| c.max_batch_tokens = 9);
    budget.submit(1, 20, 1);
    assert_eq!(budget.step(), [(1, 0, 4), (1, 4, 8), (1, 8, 9)]);
    let mut slots = bench(|c| c.max_requests = 1);
    slots.submit(1, 20, 1);
    assert_eq!((slots.step().len(), slots.stats().running, slots.stats().in_flight_tokens), (3, 1, 12));
}

#[test]
fn costs_and_flops_are_those_of_the_rows() {
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2, cost.c4) = (Attos::from_ns(100), Attos::from_ns(10), Attos::from_ns(1), Attos::from_ns(2));
    let dims = ModelDims::new(2, 64, 4, 2, 16, 128);
    let mut bench = bench(|c| (c.cost, c.model) = (Some(cost), Some(dims)));
    bench.submit(1, 12, 1);
    bench.step();
    // X = 12, S = all pairs of twelve positions, G = what the second and the third chunk read again.
    assert_eq!(bench.last().cost_ns(), 100 + 10 * 12 + 78 + 2 * (4 + 8));
    assert_eq!(bench.last().rows().iter().map(|row| row.cost_ns).sum::<u64>(), bench.last().cost_ns() - 100);
    assert_eq!(bench.last().flops(), dims.flops(0, 12), "however it is cut");
    assert_eq!(bench.last().rows().iter().map(|row| row.flops).sum::<u128>(), bench.last().flops());
}

#[test]
fn a_cost_target_holds_for_all_of_them_together() {
    let mut cost = CostModel::default();
    (cost.c1, cost.c2) = (Attos::from_ns(10), Attos::from_ns(1));
    let mut bench = bench(|c| {
        c.cost = Some(cost);
        c.chunking = Chunking::Cost { target_ns: 150, align: 4, min: 1 };
    });
    bench.submit(1, 40, 1);
    while !bench.scheduler.is_idle() {
        bench.step();
        assert!(bench.last().cost_ns() <= 150 || bench.last().rows().len() == 1);
        bench.complete();
    }
}

#[test]
fn a_loss_takes_all_of_its_batch_back() {
    for all in [true, false] {
        let mut bench = bench(|c| c.stages = 3);
        bench.submit(1, 32, 1);
        bench.fill();
        bench.complete();
        if all {
            bench.fail();
        } else {
            bench.lose(0);
        }
        assert_eq!(bench.committed(1), 12);
        assert_eq!(bench.step(), [(1, 12, 16), (1, 16, 20), (1, 20, 24)]);
        while bench.scheduler.in_flight() > 0 {
            bench.complete();
        }
        assert_eq!(tokens_of(&bench.finish()), [(1, 1032)]);
    }
}

#[test]
fn a_victim_leaves_the_batch_under_construction_with_all_of_them() {
    let mut bench = bench(|c| {
        (c.num_blocks, c.admission, c.max_prompt_wait, c.max_batch_requests) = (5, Admission::Lazy, 1, 1);
        c.model = Some(ModelDims::new(2, 64, 4, 2, 16, 128));
    });
    bench.submit(1, 7, 9);
    assert_eq!((bench.round(), bench.round()), (vec![(1, 0, 4)], vec![(1, 4, 7)]));
    bench.submit(2, 12, 1);
    assert_eq!(bench.round(), [(1, 7, 8)], "a batch of decodes alone: prompt work comes first next time");
    let mut config = *bench.scheduler.config();
    config.max_batch_requests = 8;
    bench.scheduler.reconfigure(config).unwrap();
    // Three chunks take all blocks that are left; then the first one needs one of them.
    assert_eq!(bench.step(), [(1, 8, 9)]);
    assert_eq!((bench.stats().preemptions, bench.last().preempted()), (1, &[RequestId(2)][..]));
    assert_eq!((bench.last().num_tokens(), bench.last().flops()), (1, bench.last().rows()[0].flops));
    bench.complete();
    bench.finish();
}

#[test]
fn a_result_has_one_sample_for_the_request_not_one_a_row() {
    let mut bench = bench(|_| {});
    bench.submit(1, 12, 1);
    assert_eq!(bench.step().len(), 3);
    let (id, sample) = (bench.last().id(), Sample { request: RequestId(1), tokens: &[5] });
    let before = bench.state();
    assert_eq!(bench.scheduler.complete(id, &[sample; 3]), Err(CompleteError::Samples { batch: id, expected: 1, given: 3 }));
    assert_eq!(bench.scheduler.complete(id, &[]), Err(CompleteError::Samples { batch: id, expected: 1, given: 0 }));
    assert_eq!(bench.state(), before);
    bench.complete();
    bench.finish();
}
