//! Requests that want something else than a continuation: embeddings, and probabilities of their prompt.

use std::collections::BTreeSet;

use cpp_sched::{EmptyReason, FinishReason, RequestId};

use crate::bench::{Bench, common, ends_of, request, tokens_of};

fn embedding(id: u64, len: u32) -> cpp_sched::Request {
    let mut request = common(id, len, 0);
    request.pooling = true;
    request
}

#[test]
fn an_embedding_ends_with_its_prompt_and_yields_no_token() {
    for (asynchronous, chunks) in [(false, 1), (true, 1), (false, 3)] {
        let mut bench = Bench::new(|c| {
            (c.stages, c.max_batch_tokens, c.async_scheduling, c.chunks_per_batch) = (3, 8, asynchronous, chunks);
        });
        bench.take(embedding(1, 20));
        assert_eq!(bench.fill(), [[(1, 0, 8)], [(1, 8, 16)], [(1, 16, 20)]]);
        assert!(bench.flight.iter().all(|batch| batch.num_samples() == 0), "no row samples, not even the last");
        bench.complete().complete();
        assert_eq!(bench.events(), []);
        bench.complete();
        let events = bench.events();
        assert_eq!((tokens_of(&events), ends_of(&events)), (vec![], vec![(1, FinishReason::Computed)]));
        bench.finish();
        assert_eq!((bench.stats().finished, bench.stats().output_tokens), (1, 0));
    }
}

#[test]
fn its_max_tokens_is_not_looked_at() {
    let mut bench = Bench::new(|c| (c.max_model_len, c.num_blocks) = (Some(21), 5));
    bench.with(embedding(1, 20), |r| r.max_tokens = 1_000_000);
    assert_eq!(bench.round(), [(1, 0, 20)]);
    bench.finish();
}

#[test]
fn it_rides_with_others_and_is_computed_again_after_a_loss() {
    let mut bench = Bench::new(|c| (c.stages, c.max_batch_tokens) = (2, 16));
    bench.submit(1, 6, 5).take(embedding(2, 20));
    assert_eq!(bench.fill(), [vec![(1, 0, 6), (2, 0, 10)], vec![(2, 10, 20)]]);
    bench.complete();
    bench.fail();
    assert_eq!(bench.step(), [(1, 6, 7), (2, 10, 20)]);
    bench.complete();
    assert_eq!(ends_of(&bench.events()), [(2, FinishReason::Computed)]);
    bench.finish();
}

#[test]
fn its_prefix_is_found_and_its_last_token_is_computed_whatever_is_found() {
    let mut bench = Bench::new(|c| c.prefix_caching = true);
    bench.take(embedding(1, 12));
    bench.finish();
    bench.take(embedding(2, 12)).take(common(3, 14, 1));
    assert_eq!(bench.step(), [(2, 8, 12), (3, 12, 14)]);
    bench.complete();
    bench.finish();
}

#[test]
fn probabilities_of_a_prompt_need_all_of_it_computed_and_others_find_it() {
    let mut bench = Bench::new(|c| (c.prefix_caching, c.kv_events) = (true, true));
    let mut known = BTreeSet::new();
    bench.take(common(1, 8, 1));
    bench.finish();
    bench.with(common(2, 17, 1), |r| r.skip_cache_read = true);
    assert_eq!(bench.round(), [(2, 0, 17)], "what the cache has is computed all the same");
    bench.finish();
    bench.follow(&mut known);
    assert_eq!(known.len(), 4);
    bench.take(common(3, 17, 1));
    assert_eq!(bench.round(), [(3, 16, 17)]);
    assert_eq!(bench.empty(), EmptyReason::Idle);
}

#[test]
fn so_they_do_after_a_preemption() {
    let mut bench = Bench::new(|c| (c.prefix_caching, c.num_blocks) = (true, 8));
    bench.with(common(1, 8, 4), |r| r.skip_cache_read = true);
    bench.round();
    assert!(bench.scheduler.shut(RequestId(1), cpp_sched::Gate::Other).is_applied());
    bench.with(request(2, 24, 1), |r| r.prompt = cpp_sched::Request::with_lengths(r.id, 24, vec![], 1).prompt);
    bench.round();
    bench.scheduler.reset_all_kv();
    assert!(bench.scheduler.ready(RequestId(1)).is_applied());
    assert_eq!(bench.round(), [(1, 0, 9)]);
    assert_eq!(bench.stats().cache_hit_tokens_resumed, 0);
    bench.finish();
}
