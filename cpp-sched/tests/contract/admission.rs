//! Who is admitted when: exactly when its blocks are there.

use cpp_sched::{Admission, Gate, Request, RequestId};

use crate::bench::{Bench, common, request};

/// A request whose KV nobody finds again.
fn unnamed(id: u64, len: u32, max_tokens: u32) -> Request {
    Request::with_lengths(RequestId(id), len, vec![], max_tokens)
}

#[test]
fn a_head_that_was_refused_with_hits_is_admitted_as_soon_as_its_blocks_are_there() {
    // The head finds four blocks that nobody uses, and needs four more.
    for (len, holder, waits) in [(32, 11, true), (28, 11, false), (32, 7, false), (32, 8, true)] {
        let mut bench = Bench::new(|c| (c.num_blocks, c.prefix_caching) = (10, true));
        bench.take(common(1, 16, 1)).finish();
        bench.take(unnamed(2, holder, 2));
        assert_eq!(bench.round(), [(2, 0, holder)]);
        bench.take(common(3, len, 1));
        let decode = (2, holder, holder + 1);
        if waits {
            assert_eq!(bench.step(), [decode], "{len} {holder}");
            bench.complete();
            assert_eq!(bench.step(), [(3, 16, len)], "{len} {holder}: the other one has ended");
        } else {
            assert_eq!(bench.step(), [decode, (3, 16, len)], "{len} {holder}");
        }
        bench.complete();
        bench.finish();
        assert_eq!(bench.stats().preemptions, 0);
    }
}

#[test]
fn a_prompt_of_one_token_is_no_decode_and_needs_no_room_for_a_drafter() {
    for admission in [Admission::Lazy, Admission::ReservePrompt] {
        let mut bench = Bench::new(|c| (c.num_blocks, c.lookahead_tokens, c.admission) = (6, 8, admission));
        bench.take(unnamed(1, 17, 3));
        bench.round();
        assert!(bench.scheduler.shut(RequestId(1), Gate::Other).is_applied());
        assert_eq!(bench.usage().free, 1);
        bench.take(request(2, 1, 9));
        assert_eq!(bench.step(), [(2, 0, 1)], "{admission:?}");
        bench.complete();
        assert!(bench.scheduler.ready(RequestId(1)).is_applied());
        bench.finish();
    }
}

#[test]
fn a_head_that_was_refused_is_looked_at_again_when_others_have_computed_what_it_shares() {
    // Six of twelve blocks are set aside for the first one; the second one needs seven to nine, less what it finds. What the first one holds costs nothing.
    for (len, second) in [(28, Some((2, 8, 12))), (32, Some((2, 8, 12))), (36, None)] {
        let mut bench = Bench::new(|c| {
            (c.num_blocks, c.prefix_caching, c.max_batch_tokens) = (12, true, 12);
            c.chunking = cpp_sched::Chunking::Tokens { max: Some(8) };
        });
        bench.take(common(1, 24, 1)).take(common(2, len, 1));
        assert_eq!(bench.round(), [(1, 0, 8)], "it lacks blocks");
        let rows: Vec<_> = [(1, 8, 16)].into_iter().chain(second).collect();
        assert_eq!(bench.round(), rows, "two blocks are found");
        bench.finish();
        assert_eq!(bench.stats().preemptions, 0);
    }
}
