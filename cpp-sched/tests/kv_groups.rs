//! Several KV groups over one pool: what is given back when, what is found again, what is computed again after a loss.

use cpp_sched::{
    Admission, BatchId, BlockId, Config, ConfigError, Event, FinishReason, KvGroup, KvGroups, KvUsage, Prompt, Request, RequestId, Role,
    Sample, Schedule, Scheduler, SubmitError,
};

/// A scheduler that is checked after each step, and samples by position.
struct Bench(Scheduler);

/// A row: whose, from where, to where.
type Cell = (u64, u32, u32);

impl Bench {
    fn new(groups: &[KvGroup], set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.max_batch_tokens) = (4, 100, 8);
        config.kv_groups = KvGroups::new(groups).unwrap();
        set(&mut config);
        Self(Scheduler::new(config).unwrap())
    }

    fn submit(&mut self, id: u64, len: u32, max_tokens: u32) -> &mut Self {
        self.take(Request::new(RequestId(id), (0..len).collect(), max_tokens))
    }

    fn take(&mut self, request: Request) -> &mut Self {
        self.0.submit(request).unwrap();
        self.checked()
    }

    fn checked(&mut self) -> &mut Self {
        self.0.check_invariants().unwrap();
        self
    }

    /// The next batch.
    fn step(&mut self) -> Vec<Cell> {
        let rows = match self.0.schedule() {
            Schedule::Batch(batch) => batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect(),
            Schedule::Empty(_) => Vec::new(),
        };
        self.checked();
        rows
    }

    /// Batches until there is none.
    fn fill(&mut self) -> Vec<Vec<Cell>> {
        std::iter::from_fn(|| Some(self.step()).filter(|rows| !rows.is_empty())).collect()
    }

    /// The oldest batch comes back.
    fn complete(&mut self) -> &mut Self {
        let batch = self.0.oldest_in_flight().expect("a batch in flight").clone();
        let tokens: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| (row.request, 1000 + row.end())).collect();
        let samples: Vec<_> =
            tokens.iter().map(|(request, token)| Sample { request: *request, tokens: std::slice::from_ref(token) }).collect();
        self.0.complete(batch.id(), &samples).unwrap();
        self.checked()
    }

    /// Runs until nothing is left to do; the tokens of each request, in order.
    fn run(&mut self) -> Vec<(u64, u32)> {
        let mut tokens = Vec::new();
        loop {
            self.fill();
            tokens.extend(self.0.events().filter_map(|event| match event {
                Event::Token { request, token, .. } => Some((request.0, token)),
                _ => None,
            }));
            if self.0.in_flight() == 0 {
                return tokens;
            }
            self.complete();
            tokens.extend(self.0.events().filter_map(|event| match event {
                Event::Token { request, token, .. } => Some((request.0, token)),
                _ => None,
            }));
        }
    }

    fn run_to_end(&mut self) -> &mut Self {
        self.run();
        assert!(self.0.is_idle());
        let KvUsage { total, free, cached, .. } = self.0.kv_usage();
        assert_eq!(free + cached, total, "blocks leak");
        self
    }

    /// The entries that a request holds in a group.
    fn held(&self, id: u64, group: usize) -> (u32, u32) {
        let (first, blocks) = self.0.group_table(RequestId(id), group).unwrap();
        (first, first + blocks.len() as u32)
    }

    fn committed(&self, id: u64) -> u32 {
        self.0.num_committed_tokens(RequestId(id)).unwrap()
    }
}

const FULL: KvGroup = KvGroup::Full;

const fn window(tokens: u32) -> KvGroup {
    KvGroup::Window { tokens }
}

const fn local(tokens: u32) -> KvGroup {
    KvGroup::ChunkedLocal { tokens }
}

const fn state(grain: u32) -> KvGroup {
    KvGroup::State { grain }
}

// ---- giving back -------------------------------------------------------------------------------------------------------------

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

// ---- the prefix cache --------------------------------------------------------------------------------------------------------

fn caching(groups: &[KvGroup], num_blocks: u32) -> Bench {
    Bench::new(groups, |c| (c.prefix_caching, c.num_blocks, c.max_batch_tokens) = (true, num_blocks, 64))
}

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

// ---- states ------------------------------------------------------------------------------------------------------------------

#[test]
fn chunks_end_on_the_grain_or_at_the_end() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (4, 12));
    bench.submit(1, 29, 1);
    assert_eq!(bench.fill(), [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 24)], [(1, 24, 29)]]);
    bench.run_to_end();
    // Four tokens are left of the first batch: not for a chunk that would end at 4.
    bench.submit(2, 8, 1).submit(3, 13, 1);
    assert_eq!(bench.fill(), [[(2, 0, 8)], [(3, 0, 8)], [(3, 8, 13)]]);
    bench.run_to_end();
}

#[test]
fn chunks_by_cost_end_on_the_grain_too() {
    use cpp_sched::{Attos, Chunking, CostModel};
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (Attos::from_ns(10), Attos::from_ns(1), Attos::from_ns(1));
    for chunking in [Chunking::Cost { target_ns: 400, align: 6, min: 1 }, Chunking::Adaptive] {
        let mut bench = Bench::new(&[FULL, state(8)], |c| {
            (c.stages, c.max_batch_tokens, c.cost, c.chunking, c.num_blocks) = (4, 64, Some(cost), chunking, 400);
        });
        bench.submit(1, 301, 3);
        let mut ends = 0;
        while bench.0.num_unfinished() > 0 {
            for (_, start, end) in bench.fill().concat() {
                assert!(end % 8 == 0 || end >= 301, "{start}..{end} of {chunking:?}");
                ends += 1;
            }
            bench.complete();
        }
        assert!(ends > 5, "{ends} rows");
        bench.run_to_end();
    }
}

#[test]
fn after_a_failure_a_state_is_computed_again_from_its_last_grain() {
    let mut bench = Bench::new(&[FULL, state(8), window(4)], |c| (c.stages, c.max_batch_tokens, c.async_scheduling) = (3, 16, true));
    bench.submit(1, 10, 12);
    let mut tokens = Vec::new();
    // The prompt, then three decodes that do not wait for each other.
    for _ in 0..4 {
        bench.fill();
        bench.complete();
    }
    // 13 positions are final; two more decodes are in flight and have written to the state of 8..16.
    assert_eq!((bench.committed(1), bench.0.in_flight(), bench.held(1, 1)), (13, 2, (0, 2)));
    assert_eq!(bench.0.fail(), 2);
    bench.checked();
    assert_eq!((bench.committed(1), bench.0.num_computed_tokens(RequestId(1))), (8, Some(8)));
    // What is known is computed again in one chunk from the state at 8; what was delivered is not delivered again.
    assert_eq!(bench.step(), [(1, 8, 14)]);
    tokens.extend(bench.run());
    let delivered: Vec<u32> = tokens.iter().map(|(_, token)| *token).collect();
    assert_eq!(delivered, (1010..1022).collect::<Vec<_>>());
    assert!(bench.0.is_idle());
}

#[test]
fn after_a_failure_on_the_grain_nothing_is_computed_again() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (3, 8));
    bench.submit(1, 40, 1);
    bench.fill();
    bench.complete();
    bench.fill();
    bench.complete();
    bench.0.fail();
    bench.checked();
    assert_eq!(bench.committed(1), 16);
    assert_eq!(bench.step(), [(1, 16, 24)]);
    bench.run_to_end();
}

#[test]
fn a_window_keeps_what_a_state_can_go_back_to() {
    // Without the state, the window of position 15 would begin at 12; but a loss goes back to 8, which reads 5..=8.
    let mut bench = Bench::new(&[FULL, state(8), window(4)], |c| c.max_batch_tokens = 8);
    bench.submit(1, 9, 8);
    for _ in 0..8 {
        bench.step();
        bench.complete();
    }
    assert_eq!((bench.committed(1), bench.held(1, 2).0), (15, 1));
    bench.step();
    bench.complete();
    assert!(bench.0.is_idle());
}

#[test]
fn with_one_batch_lost_a_state_goes_back_to_the_last_grain_before_it() {
    // Batches 0..=3 run 8 positions each; 2 is lost. 0 and 1 end on the grain and stand.
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.max_batch_tokens) = (4, 8));
    bench.submit(1, 40, 1);
    bench.fill();
    bench.0.lose(BatchId(2)).unwrap();
    bench.checked();
    assert_eq!(bench.0.num_computed_tokens(RequestId(1)), Some(16));
    bench.complete();
    assert_eq!(bench.step(), [(1, 16, 24)]);
    bench.run_to_end();

    // Decodes of positions 10, 11 and 12 in flight; that of 11 is lost, and the state behind 8 with it: that of 10 runs again as well.
    let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.async_scheduling) = (3, true));
    bench.submit(1, 10, 12);
    bench.fill();
    bench.complete();
    bench.fill();
    bench.complete();
    bench.fill();
    assert_eq!((bench.committed(1), bench.0.in_flight()), (10, 3));
    bench.0.lose(BatchId(3)).unwrap();
    bench.checked();
    assert_eq!((bench.committed(1), bench.0.num_computed_tokens(RequestId(1))), (8, Some(8)));
    // The results of the batches that live come back, and are not taken.
    let delivered: Vec<u32> = bench.run().into_iter().map(|(_, token)| token).collect();
    assert_eq!(delivered, (1010..1022).collect::<Vec<_>>());
    assert!(bench.0.is_idle());
}

#[test]
fn a_session_that_ran_past_its_end_goes_on_from_the_last_grain() {
    for (asynchronous, start) in [(true, 8), (false, 11)] {
        let mut bench = Bench::new(&[FULL, state(8)], |c| (c.stages, c.async_scheduling) = (3, asynchronous));
        let mut request = Request::new(RequestId(1), (0..10).collect(), 9);
        (request.session, request.stop_tokens) = (true, vec![1011]);
        bench.take(request);
        bench.run();
        assert_eq!(bench.committed(1), start);
        bench.0.extend(RequestId(1), Prompt::Tokens(vec![5; 3]), 2).unwrap();
        assert_eq!(bench.checked().step(), [(1, start, 15)]);
        bench.run();
        assert!(bench.0.abort(RequestId(1)));
        bench.run_to_end();
    }
}

#[test]
fn drafts_do_not_ride_with_a_state() {
    let mut bench = Bench::new(&[FULL, state(8)], |c| c.max_batch_tokens = 32);
    let mut request = Request::new(RequestId(1), (0..10).collect(), 9);
    request.drafts = 3;
    bench.take(request);
    bench.step();
    bench.complete();
    assert_eq!(bench.step(), [(1, 10, 11)]);
    assert_eq!(bench.0.stats().draft_tokens, 0);
    bench.run_to_end();
}

// ---- cross-attention ---------------------------------------------------------------------------------------------------------

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

// ---- ends, preemption, forks -------------------------------------------------------------------------------------------------

const MIXED: [KvGroup; 5] = [FULL, window(6), local(8), state(8), KvGroup::Cross];

fn mixed(id: u64, len: u32, max_tokens: u32) -> Request {
    let mut request = Request::new(RequestId(id), (0..len).map(|i| i * id as u32).collect(), max_tokens);
    request.cross_tokens = 5;
    request
}

#[test]
fn an_abort_at_any_moment_frees_all() {
    let mut aborted = 0;
    for moment in 0..30 {
        let mut bench = Bench::new(&MIXED, |c| (c.stages, c.max_batch_tokens, c.prefix_caching) = (3, 16, true));
        bench.take(mixed(1, 30, 8)).take(mixed(2, 9, 4));
        for _ in 0..moment {
            if bench.step().is_empty() && bench.0.in_flight() > 0 {
                bench.complete();
            }
        }
        aborted += u32::from(bench.0.abort(RequestId(1)));
        bench.checked().run_to_end();
        bench.0.reset_prefix_cache();
        assert_eq!(bench.0.kv_usage().free, 100);
    }
    assert!(aborted >= 15, "{aborted} aborts");
}

#[test]
fn a_preempted_request_gives_all_groups_back_and_starts_again() {
    let mut bench = Bench::new(&MIXED, |c| {
        (c.num_blocks, c.admission, c.max_batch_tokens, c.stages) = (40, Admission::Lazy, 16, 2);
    });
    for id in 1..5 {
        bench.take(mixed(id, 16, 24));
    }
    let mut restarted = 0;
    while bench.0.num_unfinished() > 0 {
        while bench.0.in_flight() < 2 {
            let rows = bench.step();
            if rows.is_empty() {
                break;
            }
        }
        restarted += bench.0.events().filter(|event| matches!(event, Event::Preempted { .. })).count();
        bench.complete();
    }
    assert!(restarted > 0, "the pool is too small for four");
    bench.run_to_end();
    assert_eq!(bench.0.stats().output_tokens, 4 * 24);
}

#[test]
fn a_fork_shares_whole_blocks_of_all_groups_and_copies_none() {
    let mut bench = Bench::new(&[FULL, window(6), state(8)], |c| (c.max_batch_tokens, c.num_blocks) = (32, 60));
    bench.submit(1, 21, 20);
    bench.step();
    bench.complete();
    let before = bench.0.kv_usage().held;
    bench.0.fork(RequestId(1), Request::new(RequestId(2), Vec::new(), 4)).unwrap();
    bench.checked();
    assert_eq!(bench.0.kv_usage().held, before, "it shares, and takes nothing");
    assert_eq!((bench.held(2, 0), bench.held(2, 1), bench.held(2, 2)), ((0, 4), (2, 4), (1, 2)));
    let rows = bench.step();
    assert_eq!(rows, [(1, 21, 22), (2, 16, 21)]);
    assert!(bench.0.oldest_in_flight().unwrap().copies().is_empty());
    bench.run_to_end();
}

#[test]
fn a_fork_of_a_parent_that_has_moved_on_begins_at_the_beginning() {
    let mut bench = Bench::new(&[FULL, window(6)], |c| (c.max_batch_tokens, c.num_blocks) = (32, 60));
    bench.submit(1, 21, 30);
    while bench.committed(1) < 32 {
        bench.step();
        bench.complete();
    }
    bench.0.fork(RequestId(1), Request::new(RequestId(2), Vec::new(), 4)).unwrap();
    assert_eq!(bench.checked().held(2, 0), (0, 0));
    assert_eq!(bench.step(), [(1, 32, 33), (2, 0, 21)]);
    bench.run_to_end();
}

// ---- configurations ----------------------------------------------------------------------------------------------------------

#[test]
fn what_does_not_go_together_is_refused() {
    let error = |groups: &[KvGroup]| KvGroups::new(groups).unwrap_err().to_string();
    assert_eq!(error(&[]), "kv_groups: the first group must be Full");
    assert_eq!(error(&[window(4)]), "kv_groups: the first group must be Full");
    assert_eq!(error(&[FULL; 9]), "kv_groups (their number) must be at most 8");
    assert_eq!(error(&[FULL, window(0)]), "kv_groups (tokens or grain) must be at least 1");
    assert_eq!(error(&[FULL, state(8), state(16)]), "kv_groups: all State groups must have one grain");
    assert_eq!(error(&[FULL, KvGroup::Cross, KvGroup::Cross]), "kv_groups: at most one group may be Cross");

    let refused = |groups: &[KvGroup], set: fn(&mut Config)| {
        let mut config = Config::default();
        (config.block_size, config.kv_groups) = (4, KvGroups::new(groups).unwrap());
        set(&mut config);
        matches!(Scheduler::new(config), Err(ConfigError::KvGroups { .. }))
    };
    assert!(!refused(&[FULL, state(8)], |_| {}));
    assert!(refused(&[FULL, state(6)], |_| {}));
    assert!(refused(&[FULL, state(8)], |c| c.max_batch_tokens = 7));
    assert!(refused(&[FULL, state(8)], |c| c.chunks_per_batch = 2));
    assert!(refused(&[FULL, state(8)], |c| c.max_prompt_tokens_per_batch = Some(7)));
    assert!(refused(&[FULL, state(8)], |c| c.chunking = cpp_sched::Chunking::Tokens { max: Some(4) }));
    assert!(refused(&[FULL, window(8)], |c| c.role = Role::Prefill));
    assert!(refused(&[FULL, window(8)], |c| c.role = Role::Decode));
}

#[test]
fn one_group_named_is_the_default() {
    assert_eq!(KvGroups::new(&[FULL]).unwrap(), KvGroups::default());
    let mut bench = Bench::new(&[FULL], |_| {});
    bench.submit(1, 9, 1);
    bench.step();
    assert_eq!(bench.0.group_table(RequestId(1), 0).map(|(first, blocks)| (first, blocks.len())), Some((0, 2)));
    assert_eq!(bench.0.group_table(RequestId(1), 1), None);
    bench.run_to_end();
}

#[test]
fn windows_are_not_moved_by_a_stop_that_drafts_ran_past() {
    // The row of a decode with three drafts is final up to its end, but a session goes on from the stop token.
    let mut bench = Bench::new(&[FULL, window(2)], |c| c.max_batch_tokens = 32);
    let mut request = Request::new(RequestId(1), (0..6).collect(), 20);
    (request.session, request.stop_tokens, request.drafts) = (true, vec![77], 6);
    bench.take(request);
    bench.step();
    bench.complete();
    assert_eq!(bench.step(), [(1, 6, 13)]);
    let batch = bench.0.oldest_in_flight().unwrap().id();
    bench.0.complete(batch, &[Sample { request: RequestId(1), tokens: &[77, 1, 2, 3, 4, 5, 6] }]).unwrap();
    bench.checked();
    assert!(bench.0.events().any(|event| matches!(event, Event::Paused { reason: FinishReason::Stop, .. })));
    // Eight are final; position 8 reads 7..=8, though 13 were computed.
    assert_eq!((bench.committed(1), bench.held(1, 1).0), (8, 1));
    bench.0.abort(RequestId(1));
    bench.run_to_end();
}
