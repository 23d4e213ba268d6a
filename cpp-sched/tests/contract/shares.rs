//! How much of a batch decodes and chunks get, to the token: shares of the decodes, targets, and the grid that chunks end on.

use cpp_sched::{Attos, Balance, Chunking, Config, CostModel, RequestId, WaitReason};

use crate::bench::{Bench, Cell, request};

/// 1 ns a token.
fn by_token() -> CostModel {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1);
    cost
}

/// Requests whose prompts, computed by one batch, have these lengths.
fn decoding(prompts: &[u32], set: impl FnOnce(&mut Config)) -> Bench {
    let mut bench = Bench::new(set);
    for (id, &len) in (1..).zip(prompts) {
        bench.submit(id, len, 8);
    }
    assert_eq!(bench.round().len(), prompts.len());
    bench
}

fn names(rows: &[Cell]) -> Vec<u64> {
    rows.iter().map(|row| row.0).collect()
}

#[test]
fn decodes_are_counted_out_among_the_batches_in_flight() {
    let mut bench = decoding(&[4; 5], |c| (c.stages, c.balance) = (2, Balance::Count));
    let batches: Vec<_> = bench.fill().iter().map(|rows| names(rows)).collect();
    assert_eq!(batches, [vec![1, 2, 3], vec![4, 5]]);
    // Where there is one batch in flight it has them all.
    let mut bench = decoding(&[4; 5], |c| c.balance = Balance::Count);
    assert_eq!(names(&bench.step()), [1, 2, 3, 4, 5]);
}

#[test]
fn a_decode_is_taken_if_the_sum_comes_nearer_to_its_share_by_it() {
    // By their contexts, of which a batch gets its part of the sum of all tokens.
    let batch = |prompts: &[u32], stages: u32| {
        let mut bench = decoding(prompts, |c| (c.stages, c.balance) = (stages, Balance::Cost));
        names(&bench.step())
    };
    // 25 of 51: with 40 more it would be farther above than it is below.
    assert_eq!(batch(&[4, 4, 40], 2), [1, 2]);
    // 26 of 53: as near above.
    assert_eq!(batch(&[10, 20, 20], 2), [1, 2]);
    // 20 of 40: 10 too few, or 10 too many.
    assert_eq!(batch(&[10, 20, 7], 2), [1, 2]);
    // 15 of 46: whoever comes first is taken all the same.
    assert_eq!(batch(&[40, 4], 3), [1]);
}

#[test]
fn a_decode_that_has_waited_too_long_goes_beyond_no_target() {
    let mut bench = decoding(&[1; 12], |c| {
        (c.cost, c.chunking) = (Some(by_token()), Chunking::Cost { target_ns: 12, align: 1, min: 1 });
        c.latency.max_decode_wait = 1;
    });
    let mut tighter = *bench.scheduler.config();
    tighter.chunking = Chunking::Cost { target_ns: 5, align: 1, min: 1 };
    bench.scheduler.reconfigure(tighter).unwrap();
    let batches: Vec<_> = (0..5).map(|_| names(&bench.round())).collect();
    let expected = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 1, 2, 3], [4, 5, 6, 7, 8], [9, 10, 11, 12, 1]];
    assert_eq!(batches, expected);
}

#[test]
fn with_one_stage_adaptive_chunks_are_as_long_as_they_may_be_and_end_on_the_grid() {
    let bench = |tokens: u32| {
        Bench::new(|c| {
            (c.cost, c.chunking, c.max_batch_tokens) = (Some(by_token()), Chunking::Adaptive, tokens);
            c.adaptive.align = 16;
        })
    };
    let mut whole = bench(40);
    whole.submit(1, 80, 1);
    assert_eq!([whole.round(), whole.round(), whole.round()], [[(1, 0, 32)], [(1, 32, 64)], [(1, 64, 80)]]);
    // What is left is less than a step of the grid: it is used all the same.
    let mut rest = bench(40);
    rest.submit(1, 35, 1).submit(2, 100, 1);
    assert_eq!(rest.round(), [(1, 0, 35), (2, 0, 5)]);
    assert_eq!(rest.round(), [(2, 5, 32)]);
}

#[test]
fn a_resident_that_lacks_blocks_holds_up_whoever_stands_behind_it() {
    // A session's second input comes before request 3, lacks blocks, and cannot be admitted.
    let mut bench = Bench::new(|c| (c.stages, c.num_blocks) = (2, 6));
    bench.with(request(1, 4, 1), |r| r.session = true);
    bench.round();
    bench.submit(2, 12, 2);
    bench.step();
    bench.scheduler.extend(RequestId(1), cpp_sched::Prompt::Tokens(vec![7; 12]), 1).unwrap();
    bench.submit(3, 4, 1);
    assert_eq!(bench.why(1), Some(WaitReason::NoBlocks));
    assert_eq!(bench.why(3), Some(WaitReason::BehindOthers));
}
