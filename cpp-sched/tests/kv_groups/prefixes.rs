//! What is found again, and by whom.

use cpp_sched::{Admission, BlockId, KvGroup, Request, RequestId, Schedule, SubmitError};

use super::bench::{Bench, FULL, caching, state, window};

#[test]
fn a_hit_takes_the_whole_prefix_of_full_attention_and_the_window_alone() {
    let mut bench = caching(&[FULL, window(6)], 40);
    bench.submit(1, 32, 1).run_to_end();
    bench.submit(2, 32, 1);
    assert_eq!(bench.step(), [(2, 28, 32)]);
    // Position 28 reads 23..=28: blocks 5 and 6 were found, 7 is new.
    assert_eq!((bench.held(2, 0), bench.held(2, 1)), ((0, 8), (5, 8)));
    assert_eq!(bench.0.stats().cache_hit_tokens, 28);
    bench.run_to_end();
}

#[test]
fn a_hit_is_as_long_as_all_groups_can_serve() {
    // The window's blocks were given back first and are evicted first: another request takes the oldest cached blocks.
    let mut bench = Bench::new(&[FULL, window(4)], |c| (c.prefix_caching, c.num_blocks, c.max_batch_tokens) = (true, 20, 4));
    bench.submit(1, 32, 1).run_to_end();
    let shared = |other: u32, from: u32| (0..32).map(|i| if i < from { i } else { other + i }).collect();
    // Of 0..16 all blocks of full attention are there, and the window before 16.
    bench.take(Request::new(RequestId(2), shared(500, 16), 1));
    assert_eq!(bench.step()[0], (2, 16, 20));
    bench.run_to_end();
    // What is behind a window goes first when blocks are short: the window before 16 is gone with it, and so is the hit.
    bench.take(Request::new(RequestId(3), (0..32).map(|i| 900 + i).collect(), 1)).run_to_end();
    bench.take(Request::new(RequestId(4), shared(700, 16), 1));
    assert_eq!(bench.step()[0], (4, 0, 4));
    bench.run_to_end();
}

#[test]
fn a_hit_is_never_evicted_by_its_own_allocation() {
    // All 12 blocks are cached, those that are found are the oldest but two, and 4 more are needed.
    let mut bench = Bench::new(&[FULL, window(8)], |c| (c.prefix_caching, c.num_blocks, c.max_batch_tokens) = (true, 12, 16));
    bench.submit(1, 16, 1).run_to_end();
    bench.take(Request::new(RequestId(9), (0..8).map(|i| 900 + i).collect(), 1)).run_to_end();
    assert_eq!(bench.0.kv_usage().cached, 12);
    bench.submit(2, 24, 1);
    let Schedule::Batch(batch) = bench.0.schedule() else { panic!("it fits") };
    let row = batch.rows()[0];
    assert_eq!((row.num_computed_tokens, row.end()), (16, 24));
    let mut blocks: Vec<BlockId> = batch.blocks(&row).iter().chain(batch.group_table(&row, 1).blocks).copied().collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), 6 + 4, "no block has two places");
    bench.run_to_end();
}

#[test]
fn groups_do_not_find_each_others_blocks() {
    // Two windows alike: each has blocks of its own for the same text.
    let mut bench = caching(&[FULL, window(8), window(8)], 60);
    bench.submit(1, 20, 1).run_to_end();
    bench.submit(2, 20, 1);
    assert_eq!(bench.step(), [(2, 16, 20)]);
    let of = |group| bench.0.group_table(RequestId(2), group).unwrap().1.to_vec();
    assert!(of(1).iter().all(|block| !of(2).contains(block)));
    assert_eq!((bench.held(2, 1), bench.held(2, 2)), ((2, 5), (2, 5)));
    bench.run_to_end();
}

#[test]
fn a_state_is_found_on_its_grain_alone() {
    let mut bench = caching(&[FULL, state(8)], 60);
    bench.submit(1, 30, 1).run_to_end();
    for (id, len, start) in [(2, 30, 24), (3, 29, 24), (4, 25, 24), (5, 24, 16), (6, 17, 16), (7, 8, 0)] {
        bench.submit(id, len, 1);
        assert_eq!(bench.step()[0], (id, start, len), "{len} tokens");
        // The state before the first position, and the one that is written.
        let first = (start / 8).saturating_sub(1);
        assert_eq!(bench.held(id, 1), (first, len.div_ceil(8)));
        bench.run_to_end();
    }
}

#[test]
fn the_last_prompt_position_is_computed_also_where_the_grain_ends() {
    let mut bench = caching(&[FULL, state(8), window(4)], 60);
    bench.submit(1, 16, 1).run_to_end();
    bench.submit(2, 16, 1);
    assert_eq!(bench.step(), [(2, 8, 16)]);
    bench.run_to_end();
}

#[test]
fn windows_that_two_requests_share_are_paid_by_both() {
    // Both hold the window's blocks of the shared beginning. When they let them go, each finds what it needs without a preemption.
    for admission in [Admission::ReservePrompt, Admission::NoEvict] {
        let mut bench = Bench::new(&[FULL, window(12)], |c| {
            (c.prefix_caching, c.num_blocks, c.max_batch_tokens, c.stages, c.admission) = (true, 44, 8, 2, admission);
        });
        bench.submit(1, 20, 1).run_to_end();
        for id in 2..5 {
            let tokens = (0..36).map(|i| if i < 20 { i } else { 100 * id as u32 + i }).collect();
            bench.take(Request::new(RequestId(id), tokens, 4));
        }
        bench.run_to_end();
        assert_eq!((bench.0.stats().preemptions, bench.0.stats().finished), (0, 4));
    }
}

#[test]
fn the_encoders_output_has_its_blocks_from_admission_to_end() {
    let mut bench = Bench::new(&[FULL, KvGroup::Cross], |c| c.num_blocks = 20);
    let mut request = Request::new(RequestId(1), (0..10).collect(), 3);
    request.cross_tokens = 9;
    bench.take(request.clone());
    assert_eq!(bench.held(1, 1), (0, 0));
    let Schedule::Batch(batch) = bench.0.schedule() else { panic!("it fits") };
    let row = batch.rows()[0];
    assert_eq!((row.end(), batch.group_table(&row, 1).blocks.len(), batch.blocks(&row).len()), (8, 3, 2));
    bench.run_to_end();

    request.cross_tokens = 70;
    assert_eq!(bench.0.submit(request.clone()), Err(SubmitError::NeverFits { request: RequestId(1), needed: 3 + 18, num_blocks: 20 }));
    let mut plain = Bench::new(&[FULL, window(4)], |_| {});
    assert_eq!(plain.0.submit(request), Err(SubmitError::NoCrossGroup(RequestId(1))));
}

#[test]
fn a_prefix_behind_an_encoder_is_found_only_under_a_salt_that_names_what_it_read() {
    let mut bench = caching(&[FULL, KvGroup::Cross], 60);
    for (id, salt, start) in [(1, "", 0), (2, "", 0), (3, "a", 0), (4, "a", 16), (5, "b", 0)] {
        let mut request = Request::new(RequestId(id), (0..20).collect(), 1);
        (request.cross_tokens, request.cache_salt) = (6, salt.into());
        bench.take(request);
        assert_eq!(bench.step(), [(id, start, 20)]);
        assert_eq!(bench.held(id, 1), (0, 2));
        bench.run_to_end();
    }
}

#[test]
fn a_hit_becomes_shorter_step_by_step_as_blocks_are_evicted_and_never_false() {
    // One prefix of 16 tokens that two requests have used, and 16 tokens more that one has used; fillers of any size evict some of it.
    let mut starts = Vec::new();
    for filler in (0..56).step_by(4) {
        let mut bench = caching(&[FULL, window(6)], 28);
        bench.submit(1, 33, 1).run_to_end();
        bench.take(Request::new(RequestId(2), (0..17).map(|i| if i < 16 { i } else { 900 }).collect(), 1)).run_to_end();
        if filler > 0 {
            bench.take(Request::with_lengths(RequestId(3), filler, vec![], 1)).run_to_end();
        }
        bench.submit(4, 33, 1);
        let row = bench.step()[0];
        assert_eq!(bench.held(4, 1).0, (row.1 + 1).saturating_sub(6) / 4, "the window of position {}", row.1);
        starts.push(row.1);
        bench.run_to_end();
    }
    // From the end on; where the 16 tokens end that both have used, the window is younger than the other's.
    assert_eq!(starts, [32, 32, 32, 32, 32, 32, 32, 28, 24, 20, 16, 16, 0, 0]);
}
