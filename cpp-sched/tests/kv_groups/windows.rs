//! What is given back when.

use cpp_sched::{Admission, Request, RequestId, SubmitError};

use super::bench::{Bench, FULL, local, window};

#[test]
fn window_blocks_are_given_back_on_the_committed_count_never_on_the_scheduled_one() {
    // With three batches in flight 24 positions are scheduled and none is final: all of the window's blocks stay.
    let mut bench = Bench::new(&[FULL, window(6)], |c| c.stages = 3);
    bench.submit(1, 48, 1);
    assert_eq!(bench.fill(), [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 24)]]);
    assert_eq!((bench.committed(1), bench.held(1, 1)), (0, (0, 6)));
    // 8 are final: position 8 reads 3..=8, so the block of 0..4 is still read.
    bench.complete();
    assert_eq!((bench.committed(1), bench.held(1, 1)), (8, (0, 6)));
    // 16 are final: position 16 reads 11..=16, and the blocks of 0..8 go.
    bench.complete();
    assert_eq!((bench.committed(1), bench.held(1, 1)), (16, (2, 6)));
    assert_eq!(bench.0.kv_usage().held, 6 + 4);
    bench.run_to_end();
}

#[test]
fn a_block_goes_with_the_last_position_that_reads_it() {
    // The window at position p is p-4..=p: block 0 (positions 0..4) is read up to p = 7.
    let mut bench = Bench::new(&[FULL, window(5)], |c| c.max_batch_tokens = 1);
    bench.submit(1, 12, 1);
    for committed in 1..=11 {
        bench.step();
        bench.complete();
        let first = if committed < 8 { 0 } else { 1 };
        assert_eq!((bench.committed(1), bench.held(1, 1).0), (committed, first));
    }
}

#[test]
fn chunked_local_attention_keeps_its_piece_alone() {
    let mut bench = Bench::new(&[FULL, local(8)], |c| c.max_batch_tokens = 4);
    bench.submit(1, 24, 1);
    let firsts = (0..5).map(|_| {
        bench.step();
        bench.complete();
        bench.held(1, 1).0
    });
    assert_eq!(firsts.collect::<Vec<_>>(), [0, 2, 2, 4, 4]);
    bench.run_to_end();
}

#[test]
fn a_piece_that_begins_within_a_block_keeps_that_block() {
    let mut bench = Bench::new(&[FULL, local(6)], |c| c.max_batch_tokens = 1);
    bench.submit(1, 14, 1);
    for committed in 1..=13 {
        bench.step();
        bench.complete();
        assert_eq!(bench.held(1, 1).0, committed / 6 * 6 / 4, "{committed} are final");
    }
}

#[test]
fn a_decode_gives_back_as_it_takes() {
    let mut bench = Bench::new(&[FULL, window(6), local(8)], |c| (c.stages, c.num_blocks) = (1, 40));
    bench.submit(1, 8, 60);
    let mut most = [0; 3];
    while bench.0.num_unfinished() > 0 {
        bench.step();
        for (group, most) in most.iter_mut().enumerate() {
            let (first, end) = bench.held(1, group);
            *most = (*most).max(end - first);
        }
        bench.complete();
    }
    assert_eq!(most, [17, 3, 2]);
    bench.run_to_end();
}

#[test]
fn a_pool_smaller_than_the_sequence_in_all_groups_is_enough() {
    // 60 positions are 15 blocks; the window holds at most ceil((5 + 8 + 1) / 4) + 1 = 5 of them at once.
    let groups = [FULL, window(6), window(6)];
    for admission in [Admission::ReservePrompt, Admission::NoEvict, Admission::Lazy] {
        let mut bench = Bench::new(&groups, |c| (c.num_blocks, c.admission) = (15 + 5 + 5, admission));
        bench.submit(1, 50, 11);
        bench.run_to_end();
        assert_eq!(bench.0.stats().preemptions, 0);
        let refused = bench.0.submit(Request::new(RequestId(2), vec![1; 50], 15));
        assert_eq!(refused, Err(SubmitError::NeverFits { request: RequestId(2), needed: 16 + 5 + 5, num_blocks: 25 }));
    }
}

#[test]
fn a_prompt_under_way_lacks_no_block_though_others_take_what_it_gave_back() {
    let mut bench = Bench::new(&[FULL, window(6)], |c| {
        (c.stages, c.num_blocks, c.max_batch_tokens) = (2, 40, 8);
        c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) };
    });
    bench.submit(1, 60, 1);
    for id in 2..6 {
        bench.submit(id, 12, 30);
    }
    let (mut chunks, mut others) = (0, 0);
    while bench.0.num_computed_tokens(RequestId(1)).is_some_and(|done| done < 60) {
        let rows = bench.step();
        if rows.is_empty() {
            bench.complete();
        } else {
            assert!(rows.iter().any(|row| row.0 == 1), "{rows:?} after {chunks} chunks");
            (chunks, others) = (chunks + 1, others + rows.len() - 1);
        }
    }
    assert!(chunks == 15 && others > 10, "{chunks} chunks, {others} rows of others");
    bench.run_to_end();
}
