//! Parallel sampling: forks share the prompt's blocks, and the last one is copied when somebody writes to it.

use std::collections::BTreeMap;

use cpp_sched::{Batch, Fork, ForkError, Gate, RequestId, SubmitError, WaitReason};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

const ONE: RequestId = RequestId(1);

/// A request of so many prompt tokens, after its first output.
fn parent(mut bench: Bench, len: u32, max_tokens: u32) -> Bench {
    bench.take(common(1, len, max_tokens));
    bench.round();
    bench.events();
    bench
}

/// What the blocks hold: of each slot, who wrote it and for which position. Prompt positions are everybody's.
#[derive(Default)]
struct Memory(BTreeMap<(u32, u32), (u64, u32)>);

impl Memory {
    /// Runs a batch as an executor would, and checks what each row reads.
    fn run(&mut self, batch: &Batch, tables: &BTreeMap<u64, Vec<u32>>, prompt: u32) {
        for &(from, to) in batch.copies() {
            for slot in 0..4 {
                if let Some(&held) = self.0.get(&(from.0, slot)) {
                    self.0.insert((to.0, slot), held);
                }
            }
        }
        for row in batch.rows() {
            let (id, table) = (row.request.0, &tables[&row.request.0]);
            let name = |at: u32| if at < prompt { (0, at) } else { (id, at) };
            let place = |at: u32| (table[(at / 4) as usize], at % 4);
            for at in 0..row.num_computed_tokens {
                assert_eq!(self.0.get(&place(at)), Some(&name(at)), "request {id} reads position {at}");
            }
            for at in row.num_computed_tokens..row.end() {
                self.0.insert(place(at), name(at));
            }
        }
    }
}

#[test]
fn n_samples_share_all_blocks_and_copy_the_last_one_alone() {
    let mut bench = parent(Bench::new(|_| {}), 10, 4);
    for id in 2..=4 {
        bench.scheduler.fork(ONE, Fork::new(RequestId(id), 4)).unwrap();
    }
    assert_eq!((bench.checked().usage().held, bench.table(4)), (3, bench.table(1)));
    let rows = bench.step();
    assert_eq!(rows, [(1, 10, 11), (2, 9, 10), (3, 9, 10), (4, 9, 10)], "each samples a token of its own behind the prompt");
    // Three of the four write to a copy; who comes last has the original to itself.
    let copies = bench.last().copies().to_vec();
    assert_eq!((copies.len(), bench.usage().held), (3, 6));
    assert!((1..4).all(|id| bench.table(id)[..2] == bench.table(4)[..2]));
    let tails: std::collections::BTreeSet<_> = (1..=4).map(|id| bench.table(id)[2]).collect();
    assert_eq!(tails.len(), 4);
    assert!(copies.iter().all(|(from, _)| from.0 == bench.table(4)[2]));
    bench.complete();
    let events = bench.finish();
    for id in 1..=4 {
        let tokens = tokens_of(&events).iter().filter(|(request, _)| *request == id).count();
        assert_eq!(tokens, if id == 1 { 3 } else { 4 });
    }
}

#[test]
fn every_row_reads_its_own_positions_whoever_writes_first() {
    for (len, parent_first) in [(9, true), (9, false), (10, true), (11, false), (12, true), (12, false)] {
        let mut bench = Bench::new(|c| c.stages = 2);
        bench.take(common(1, len, 12));
        let mut memory = Memory::default();
        let run = |bench: &mut Bench, memory: &mut Memory| {
            bench.step();
            let tables = bench.scheduler.unfinished().into_iter().map(|id| (id.0, bench.table(id.0))).collect();
            memory.run(bench.last(), &tables, len);
            bench.complete();
        };
        run(&mut bench, &mut memory);
        for id in 2..=3 {
            let mut child = Fork::new(RequestId(id), 9);
            child.gates = if parent_first { Gate::Other.into() } else { child.gates };
            bench.scheduler.fork(ONE, child).unwrap();
        }
        if parent_first {
            run(&mut bench, &mut memory);
            run(&mut bench, &mut memory);
        } else {
            assert!(bench.scheduler.shut(ONE, Gate::Other).is_applied());
            run(&mut bench, &mut memory);
        }
        for id in 1..=3 {
            _ = bench.scheduler.ready(RequestId(id));
        }
        for _ in 0..12 {
            if bench.scheduler.is_idle() {
                break;
            }
            run(&mut bench, &mut memory);
        }
        assert!(bench.scheduler.is_idle());
        bench.assert_no_leak();
    }
}

#[test]
fn who_is_alone_with_the_last_block_writes_in_place() {
    let mut bench = parent(Bench::new(|_| {}), 10, 4);
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 4)).unwrap();
    assert!(bench.abort(1).is_applied());
    let table = bench.table(2);
    assert_eq!(bench.step(), [(2, 9, 10)]);
    assert_eq!((bench.last().copies(), bench.table(2)), (&[][..], table));
    bench.complete();
    bench.finish();
}

#[test]
fn a_block_that_others_may_find_is_copied_too() {
    // The last prompt position stands in a whole block, which the cache knows by its digest.
    let mut bench = parent(Bench::new(|c| c.prefix_caching = true), 8, 4);
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 4)).unwrap();
    assert!(bench.abort(1).is_applied());
    assert_eq!((bench.step(), bench.last().copies().len()), (vec![(2, 7, 8)], 1));
    bench.take(common(3, 9, 1));
    assert!(bench.scheduler.schedule().batch().is_none());
    bench.complete();
    assert!(bench.step().contains(&(3, 8, 9)), "the original is still found");
    bench.complete();
    bench.finish();
}

#[test]
fn a_fork_is_a_request_of_its_own() {
    let mut bench = parent(Bench::new(|_| {}), 10, 9);
    let mut child = Fork::new(RequestId(2), 5);
    child.stop_tokens = vec![1010];
    bench.scheduler.fork(ONE, child).unwrap();
    let mut grandchild = Fork::new(RequestId(3), 1);
    grandchild.gates = Gate::Grammar.into();
    bench.scheduler.fork(RequestId(2), grandchild).unwrap_err();
    bench.round();
    let events = bench.events();
    assert_eq!(ends_of(&events), [(2, cpp_sched::FinishReason::Stop)]);
    // Forks of forks, and of a parent that has gone on.
    bench.scheduler.fork(ONE, Fork::new(RequestId(3), 2)).unwrap();
    bench.round();
    bench.scheduler.fork(RequestId(3), Fork::new(RequestId(4), 2)).unwrap();
    assert!(bench.checked().step().contains(&(4, 9, 10)));
    bench.complete();
    bench.finish();
}

#[test]
fn a_copy_that_was_lost_is_computed() {
    for all in [true, false] {
        let mut bench = parent(Bench::new(|c| c.stages = 2), 10, 5);
        bench.scheduler.fork(ONE, Fork::new(RequestId(2), 4)).unwrap();
        bench.step();
        assert_eq!(bench.last().copies().len(), 1);
        if all {
            bench.fail();
        } else {
            bench.lose(0);
        }
        // Whose copy is lost has its last block to compute again, and no more.
        assert_eq!((bench.committed(1), bench.committed(2)), (8, 9));
        assert_eq!(bench.step(), [(1, 8, 11), (2, 9, 10)]);
        assert_eq!(bench.last().copies(), []);
        bench.complete();
        bench.finish();
    }
}

#[test]
fn a_preempted_fork_starts_again_from_the_prompt() {
    let mut bench = parent(Bench::new(|c| c.num_blocks = 5), 10, 7);
    bench.scheduler.fork(ONE, Fork::new(RequestId(2), 7)).unwrap();
    // The child runs ahead and takes the last block; then its parent needs one.
    assert!(bench.scheduler.shut(ONE, Gate::Other).is_applied());
    assert_eq!((0..4).flat_map(|_| bench.round()).collect::<Vec<_>>(), (9..13).map(|at| (2, at, at + 1)).collect::<Vec<_>>());
    let mut all = bench.events();
    assert!(bench.scheduler.ready(ONE).is_applied());
    all.extend(bench.finish());
    assert_eq!(bench.stats().preemptions, 1);
    let tokens: Vec<_> = tokens_of(&all).into_iter().filter(|(id, _)| *id == 2).map(|(_, token)| token).collect();
    assert_eq!(tokens, (1010..1017).collect::<Vec<_>>());
}

#[test]
fn without_a_block_for_the_copy_a_fork_waits_and_says_so() {
    let mut bench = parent(Bench::new(|c| c.num_blocks = 4), 10, 2);
    bench.submit(2, 3, 3);
    assert_eq!(bench.step(), [(1, 10, 11), (2, 0, 3)]);
    bench.scheduler.fork(ONE, Fork::new(RequestId(3), 1)).unwrap();
    assert_eq!(bench.checked().why(3), Some(WaitReason::PipelineFull));
    bench.complete();
    bench.finish();
}

#[test]
fn wrong_forks_change_nothing() {
    let mut bench = Bench::new(|c| c.max_batch_tokens = 8);
    bench.submit(1, 12, 4).with(request(2, 4, 1), |r| r.gates = Gate::Other.into());
    bench.round();
    let before = bench.state();
    let mut fork = |parent: u64| bench.scheduler.fork(RequestId(parent), Fork::new(RequestId(3), 1)).unwrap_err();
    assert_eq!(fork(9), ForkError::Unknown(RequestId(9)));
    assert_eq!(fork(1), ForkError::NotComputed(ONE));
    assert_eq!(fork(2), ForkError::NotComputed(RequestId(2)));
    assert_eq!(bench.state(), before);
    bench.round();
    let before = bench.state();
    let mut fork = |child: Fork| match bench.scheduler.fork(ONE, child) {
        Err(ForkError::Submit(error)) => error,
        answer => panic!("{answer:?}"),
    };
    assert_eq!(fork(Fork::new(RequestId(2), 1)), SubmitError::DuplicateId(RequestId(2)));
    assert_eq!(fork(Fork::new(RequestId(3), 0)), SubmitError::ZeroMaxTokens(RequestId(3)));
    let mut weightless = Fork::new(RequestId(3), 1);
    weightless.weight_millionths = 0;
    assert_eq!(fork(weightless), SubmitError::ZeroWeight(RequestId(3)));
    assert_eq!(bench.state(), before);
}

#[test]
fn who_was_aborted_is_told_from_who_is_not_computed_yet() {
    let mut bench = parent(Bench::new(|_| {}), 8, 9);
    bench.step();
    assert!(bench.scheduler.abort(ONE).is_applied());
    let error = bench.scheduler.fork(ONE, Fork::new(RequestId(2), 1)).unwrap_err();
    assert_eq!(error, ForkError::Ended(ONE), "its row is in flight, so its id is not free yet");
    let told = error.to_string();
    assert!(told.contains("was aborted or has ended") && told.contains("submit"), "{told}");
    bench.complete();
    let error = bench.scheduler.fork(ONE, Fork::new(RequestId(2), 1)).unwrap_err();
    assert_eq!(error, ForkError::Unknown(ONE));
    assert!(error.to_string().contains("forked"), "{error}: a fork is what was tried");
}
