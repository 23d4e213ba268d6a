//! Encoder outputs over losses and within one request: told again, encoded again, counted once.

mod rounds;

use cpp_sched::{Attos, Batch, Chunking, Config, CostModel, EncoderItem, Request, RequestId, Scheduler, Span, SubmitError};
use rounds::{complete, next};

const A: [u8; 16] = [1; 16];
const ITEM: EncoderItem = EncoderItem { digest: A, encoder_tokens: 5 };

fn scheduler(set: impl FnOnce(&mut Config)) -> Scheduler {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_batch_tokens, config.stages) = (4, 64, 16, 3);
    set(&mut config);
    Scheduler::new(config).unwrap()
}

fn submit(scheduler: &mut Scheduler, id: u64, len: u32, spans: Vec<Span>) {
    let mut request = Request::new(RequestId(id), vec![7; len as usize], 1);
    request.spans = spans;
    scheduler.submit(request).unwrap();
}

/// A row: whose, from where, to where.
type Cell = (u64, u32, u32);

/// Rows, what is encoded, and how much the worker is told to free.
fn parts(batch: &Batch) -> (Vec<Cell>, Vec<(u64, u32)>, usize) {
    let rows = batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect();
    (rows, batch.encoder_inputs().iter().map(|input| (input.request.0, input.span)).collect(), batch.encoder_freed().len())
}

/// The first request has had its image encoded, and is done.
fn freed(scheduler: &mut Scheduler) {
    submit(scheduler, 1, 4, vec![Span::encoded(1, 2, 5, A)]);
    let batch = next(scheduler);
    complete(scheduler, &batch);
    assert_eq!(scheduler.stats().encoder_cached_tokens, 0);
}

#[test]
fn what_a_lost_batch_told_to_free_is_told_again_once() {
    for fails in [false, true] {
        let mut s = scheduler(|_| {});
        freed(&mut s);
        submit(&mut s, 2, 4, vec![]);
        let told = next(&mut s);
        assert_eq!(told.encoder_freed(), [ITEM]);
        if fails {
            assert_eq!(s.fail(), 1);
        } else {
            s.lose(told.id()).unwrap();
        }
        let again = next(&mut s);
        assert_eq!((parts(&again), again.encoder_freed()), ((vec![(2, 0, 4)], vec![], 1), &[ITEM][..]));
        submit(&mut s, 3, 4, vec![]);
        assert_eq!(next(&mut s).encoder_freed(), []);
    }
}

#[test]
fn what_has_been_encoded_again_meanwhile_is_not_told_to_be_freed() {
    let mut s = scheduler(|_| {});
    freed(&mut s);
    submit(&mut s, 2, 4, vec![]);
    let told = next(&mut s);
    submit(&mut s, 3, 20, vec![Span::encoded(1, 2, 5, A)]);
    let encoding = next(&mut s);
    assert_eq!(parts(&encoding), (vec![(3, 0, 16)], vec![(3, 0)], 0));
    s.lose(told.id()).unwrap();
    let again = next(&mut s);
    assert_eq!(parts(&again), (vec![(2, 0, 4), (3, 16, 20)], vec![], 0));
    assert_eq!(s.stats().encoder_cached_tokens, 5);
    complete(&mut s, &encoding);
    complete(&mut s, &again);
    assert!(s.is_idle());
}

#[test]
fn who_uses_an_image_that_a_later_batch_has_encoded_again_loses_nothing() {
    let image = || vec![Span::encoded(1, 2, 5, A)];
    let mut s = scheduler(|_| {});
    submit(&mut s, 1, 4, image());
    let first = next(&mut s);
    assert!(s.abort(RequestId(1)).is_applied());
    submit(&mut s, 2, 4, image());
    let second = next(&mut s);
    assert_eq!(parts(&second), (vec![(2, 0, 4)], vec![(2, 0)], 1));
    s.lose(first.id()).unwrap();
    s.check_invariants().unwrap();
    assert_eq!(s.num_computed_tokens(RequestId(2)), Some(4));
    complete(&mut s, &second);
    assert_eq!((s.stats().recomputed_tokens, s.stats().encoder_tokens, s.is_idle()), (0, 10, true));
}

#[test]
fn an_image_that_comes_twice_in_a_request_is_encoded_and_counted_once() {
    let mut s = scheduler(|c| c.encoder_budget_tokens = Some(9));
    submit(&mut s, 1, 14, vec![Span::encoded(1, 2, 5, A), Span::encoded(6, 2, 5, A)]);
    let batch = next(&mut s);
    assert_eq!(parts(&batch), (vec![(1, 0, 14)], vec![(1, 0)], 0));
    assert_eq!((s.stats().encoder_tokens, s.stats().encoder_hit_tokens), (5, 5));
}

#[test]
fn a_span_longer_than_a_chunk_stays_encoded_between_two_batches() {
    let mut s = scheduler(|c| c.stages = 1);
    submit(&mut s, 1, 30, vec![Span::encoded(2, 20, 5, A)]);
    for (row, inputs) in [((1, 0, 16), vec![(1, 0)]), ((1, 16, 30), vec![])] {
        let batch = next(&mut s);
        assert_eq!(parts(&batch), (vec![row], inputs, 0));
        assert_eq!(s.stats().encoder_cached_tokens, 5);
        complete(&mut s, &batch);
    }
    assert_eq!((s.stats().encoder_tokens, s.stats().encoder_cached_tokens), (5, 0));
}

#[test]
fn images_are_shared_over_adapters_but_not_over_salts() {
    let digest = |salt: &[u8], adapter| {
        let mut s = scheduler(|_| {});
        let mut request = Request::new(RequestId(1), vec![7; 8], 1);
        (request.spans, request.cache_salt, request.adapter) = (vec![Span::encoded(1, 2, 5, A)], salt.to_vec(), adapter);
        s.submit(request).unwrap();
        next(&mut s).encoder_inputs()[0].item.digest
    };
    assert_eq!([digest(b"", None), digest(b"", Some(3))], [A, A]);
    let salted = [digest(b"x", None), digest(b"y", None), digest(b"x", Some(3))];
    assert!(!salted.contains(&A) && salted[0] != salted[1] && salted[1] != salted[2]);
}

#[test]
fn the_longest_atomic_span_fills_a_batch_beside_a_drafters_slots() {
    for (slots, most) in [(0, 16), (2, 14)] {
        let mut s = scheduler(|c| {
            let mut cost = CostModel::default();
            cost.c1 = Attos::from_ns(10);
            (c.cost, c.chunking, c.draft_slots) = (Some(cost), Chunking::Cost { target_ns: 80, align: 4, min: 4 }, slots);
        });
        let with = |id, len| {
            let mut request = Request::new(RequestId(id), vec![7; 40], 1);
            request.spans = vec![Span::atomic(0, len, A)];
            request
        };
        let refused = s.submit(with(1, most + 1));
        assert_eq!(refused, Err(SubmitError::SpanTooLong { request: RequestId(1), span: 0, tokens: most + 1, most }));
        s.submit(with(2, most)).unwrap();
        assert_eq!(parts(&next(&mut s)).0, [(2, 0, most)]);
    }
}
