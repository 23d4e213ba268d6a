//! What is set aside for a request in all groups, and set aside again when it gives something back.

use cpp_sched::{Admission, RequestId, WaitReason};

use super::bench::{Bench, FULL, window};

/// Whatever the size of the pool, a prompt that was admitted with its blocks set aside goes on in every batch, though others take all that is
/// free while its window slides.
#[test]
fn a_prompt_under_way_lacks_no_block_in_pools_of_any_size() {
    for admission in [Admission::ReservePrompt, Admission::NoEvict] {
        for num_blocks in 22..46 {
            let mut bench = Bench::new(&[FULL, window(6)], |c| {
                (c.stages, c.num_blocks, c.max_batch_tokens, c.admission) = (2, num_blocks, 8, admission);
                c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) };
            });
            bench.submit(1, 60, 1);
            for id in 2..8 {
                bench.submit(id, 3, 30);
            }
            while bench.0.num_computed_tokens(RequestId(1)).is_some_and(|done| done < 60) {
                let rows = bench.step();
                if rows.is_empty() {
                    bench.complete();
                } else {
                    assert!(rows.iter().any(|row| row.0 == 1), "{admission:?}, {num_blocks} blocks: {rows:?}");
                }
            }
            bench.run_to_end();
        }
    }
}

/// 48 positions and three batches of 8 in flight: 12 blocks of full attention, and 9 of the window's at most.
const NEEDED: u32 = 21;

#[test]
fn after_a_loss_the_tables_end_with_what_is_final_and_the_rest_is_set_aside_again() {
    let mut bench = Bench::new(&[FULL, window(6)], |c| (c.stages, c.num_blocks) = (3, NEEDED + 1));
    bench.submit(1, 48, 1);
    assert_eq!(bench.fill().len(), 3);
    bench.complete();
    assert_eq!((bench.held(1, 0), bench.held(1, 1), bench.0.kv_usage().held), ((0, 6), (0, 6), 12));
    assert_eq!(bench.0.fail(), 2);
    bench.checked();
    // 8 positions are final, and position 8 reads 3..=8.
    assert_eq!((bench.held(1, 0), bench.held(1, 1), bench.0.kv_usage().held), ((0, 2), (0, 2), 4));
    // Somebody who needs two blocks finds one.
    bench.submit(2, 3, 1);
    for start in [8, 16, 24] {
        assert_eq!(bench.step(), [(1, start, start + 8)]);
        assert_eq!(bench.0.kv_usage().free, NEEDED + 1 - bench.0.kv_usage().held);
    }
    bench.complete();
    assert_eq!(bench.0.why(RequestId(2)), Some(WaitReason::NoBlocks));
    bench.run_to_end();
    assert_eq!(bench.0.stats().preemptions, 0);
}
