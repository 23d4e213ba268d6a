//! Spans, the encoder's budget and its cache: one rule a test.

mod rounds;

use cpp_sched::journal::Decisions;
use cpp_sched::{
    Admission, Attos, Batch, Chunking, Config, ConfigError, CostModel, EncoderItem, Event, Fork, Gate, PolicyKind, Prompt, Request,
    RequestId, Sample, Schedule, Scheduler, Span, SubmitError, WaitReason,
};
use rounds::{complete, next};

const A: [u8; 16] = [1; 16];
const B: [u8; 16] = [2; 16];

fn config() -> Config {
    let mut config = Config::default();
    config.block_size = 4;
    config.num_blocks = 64;
    config.max_batch_tokens = 16;
    config.stages = 3;
    config
}

fn request(id: u64, len: u32, spans: Vec<Span>) -> Request {
    let mut request = Request::new(RequestId(id), vec![7; len as usize], 1);
    request.spans = spans;
    request
}

fn submitted(config: Config, requests: Vec<Request>) -> Scheduler {
    let mut scheduler = Scheduler::new(config).unwrap();
    for request in requests {
        scheduler.submit(request).unwrap();
    }
    scheduler
}

/// Request, start and end of each row.
fn rows(batch: &Batch) -> Vec<(u64, u32, u32)> {
    batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect()
}

/// Request and span of what the batch encodes.
fn inputs(batch: &Batch) -> Vec<(u64, u32)> {
    batch.encoder_inputs().iter().map(|input| (input.request.0, input.span)).collect()
}

fn item(digest: [u8; 16], encoder_tokens: u32) -> EncoderItem {
    EncoderItem { digest, encoder_tokens }
}

#[test]
fn a_chunk_ends_before_an_item_that_exceeds_the_budget() {
    let mut config = config();
    config.encoder_budget_tokens = Some(9);
    let spans = vec![Span::encoded(2, 3, 5, A), Span::encoded(7, 3, 5, B)];
    let mut scheduler = submitted(config, vec![request(1, 14, spans)]);
    let first = next(&mut scheduler);
    assert_eq!((rows(&first), inputs(&first)), (vec![(1, 0, 7)], vec![(1, 0)]));
    // The first is still in flight: a budget is one batch's.
    let second = next(&mut scheduler);
    assert_eq!((rows(&second), inputs(&second)), (vec![(1, 7, 14)], vec![(1, 1)]));
    assert_eq!(scheduler.stats().encoder_tokens, 10);
}

#[test]
fn an_item_is_encoded_once_for_all_who_need_it_and_freed_when_committed() {
    let spans = || vec![Span::encoded(1, 2, 5, A)];
    let mut scheduler = submitted(config(), vec![request(1, 4, spans()), request(2, 20, spans())]);
    let first = next(&mut scheduler);
    assert_eq!((rows(&first), inputs(&first)), (vec![(1, 0, 4), (2, 0, 12)], vec![(1, 0)]));
    let second = next(&mut scheduler);
    assert_eq!((rows(&second), inputs(&second)), (vec![(2, 12, 20)], vec![]));
    // Both are past it, but that is not settled.
    assert_eq!((scheduler.stats().encoder_cached_tokens, scheduler.stats().encoder_hit_tokens), (5, 5));
    complete(&mut scheduler, &first);
    assert_eq!(scheduler.stats().encoder_cached_tokens, 0);
    complete(&mut scheduler, &second);
    scheduler.submit(request(3, 4, spans())).unwrap();
    let third = next(&mut scheduler);
    assert_eq!((third.encoder_freed(), inputs(&third)), (&[item(A, 5)][..], vec![(3, 0)]));
}

#[test]
fn with_a_cache_outputs_stay_until_their_room_is_needed() {
    let mut config = config();
    config.encoder_cache_tokens = Some(8);
    let mut scheduler = submitted(config, vec![request(1, 4, vec![Span::encoded(0, 2, 3, A)])]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    scheduler.submit(request(2, 4, vec![Span::encoded(1, 2, 3, A)])).unwrap();
    let batch = next(&mut scheduler);
    assert_eq!((inputs(&batch), scheduler.stats().encoder_hit_tokens), (vec![], 3));
    complete(&mut scheduler, &batch);
    scheduler.submit(request(3, 4, vec![Span::encoded(1, 2, 6, B)])).unwrap();
    let batch = next(&mut scheduler);
    assert_eq!((batch.encoder_freed(), inputs(&batch)), (&[item(A, 3)][..], vec![(3, 0)]));
}

#[test]
fn who_lacks_room_in_the_cache_waits_and_blocks_nobody_but_takers() {
    let mut config = config();
    config.encoder_cache_tokens = Some(8);
    config.max_batch_tokens = 6;
    let first = request(1, 6, vec![Span::encoded(0, 6, 5, A)]);
    let large = request(2, 4, vec![Span::encoded(0, 2, 7, B)]);
    let small = request(3, 4, vec![Span::encoded(0, 2, 1, [3; 16])]);
    let mut scheduler = submitted(config, vec![first, large, small, request(4, 5, vec![])]);
    let first = next(&mut scheduler);
    assert_eq!(rows(&first), [(1, 0, 6)]);
    assert_eq!(scheduler.why(RequestId(2)), Some(WaitReason::NoEncoder));
    // Request 3 would take room that request 2 waits for; 4 takes none.
    let second = next(&mut scheduler);
    assert_eq!((rows(&second), inputs(&second)), (vec![(4, 0, 5)], vec![]));
    complete(&mut scheduler, &first);
    let third = next(&mut scheduler);
    assert_eq!((rows(&third), inputs(&third)), (vec![(2, 0, 4), (3, 0, 2)], vec![(2, 0), (3, 0)]));
}

#[test]
fn an_atomic_span_is_never_cut() {
    let mut scheduler = submitted(config(), vec![request(1, 40, vec![Span::atomic(10, 12, A), Span::atomic(30, 8, B)])]);
    let cuts: Vec<_> = (0..3).map(|_| rows(&next(&mut scheduler))[0]).collect();
    assert_eq!(cuts, [(1, 0, 10), (1, 10, 26), (1, 26, 40)]);
}

#[test]
fn an_atomic_span_goes_beyond_a_cost_target_only_alone() {
    let mut config = config();
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(10);
    config.cost = Some(cost);
    config.chunking = Chunking::Cost { target_ns: 80, align: 4, min: 4 };
    let mut scheduler = submitted(config, vec![request(1, 5, vec![]), request(2, 20, vec![Span::atomic(0, 12, A)])]);
    let cuts: Vec<_> = (0..3).map(|_| rows(&next(&mut scheduler))).collect();
    assert_eq!(cuts, [vec![(1, 0, 5)], vec![(2, 0, 12)], vec![(2, 12, 20)]]);
}

#[test]
fn an_atomic_span_waits_for_all_its_blocks() {
    let mut config = config();
    config.admission = Admission::Lazy;
    (config.num_blocks, config.stages) = (6, 1);
    let mut scheduler = submitted(config, vec![request(1, 10, vec![]), request(2, 20, vec![Span::atomic(2, 14, A)])]);
    let batch = next(&mut scheduler);
    // Three blocks are left: the chunk ends before the span.
    assert_eq!(rows(&batch), [(1, 0, 10), (2, 0, 2)]);
    complete(&mut scheduler, &batch);
    let batch = next(&mut scheduler);
    assert_eq!(rows(&batch), [(2, 2, 18)]);
}

#[test]
fn spans_that_can_never_run_are_refused_with_numbers() {
    let mut config = config();
    (config.encoder_budget_tokens, config.encoder_cache_tokens) = (Some(9), Some(20));
    let mut scheduler = Scheduler::new(config).unwrap();
    let id = RequestId(1);
    let refused = |scheduler: &mut Scheduler, spans| scheduler.submit(request(1, 40, spans)).unwrap_err();
    let error = refused(&mut scheduler, vec![Span::atomic(0, 2, A), Span::encoded(2, 1, 10, B)]);
    assert_eq!(error, SubmitError::EncoderTooSmall { request: id, span: 1, needed: 10, most: 9 });
    assert_eq!(error.to_string(), "span 1 of request 1 takes 10 encoder tokens, budget and cache hold at most 9: raise them");
    let error = refused(&mut scheduler, vec![Span::atomic(3, 17, A)]);
    assert_eq!(error, SubmitError::SpanTooLong { request: id, span: 0, tokens: 17, most: 16 });
    for spans in [vec![Span::atomic(0, 0, A)], vec![Span::atomic(39, 2, A)], vec![Span::atomic(0, 3, A), Span::atomic(2, 3, A)]] {
        assert_eq!(refused(&mut scheduler, spans.clone()), SubmitError::Span { request: id, span: spans.len() as u32 - 1 });
    }
    assert_eq!(scheduler.stats().rejected, 5);
    assert!(scheduler.is_idle());
}

#[test]
fn a_budget_is_not_lowered_below_what_is_alive() {
    let mut config = config();
    config.encoder_budget_tokens = Some(9);
    let mut scheduler = submitted(config, vec![request(1, 20, vec![Span::atomic(0, 12, A), Span::encoded(12, 1, 7, B)])]);
    for (budget, tokens, span) in [(6, 16, 1), (9, 11, 0)] {
        let mut lower = config;
        (lower.encoder_budget_tokens, lower.max_batch_tokens) = (Some(budget), tokens);
        assert_eq!(scheduler.reconfigure(lower), Err(ConfigError::Span { request: RequestId(1), span }));
    }
    let mut lower = config;
    (lower.encoder_budget_tokens, lower.max_batch_tokens) = (Some(7), 12);
    scheduler.reconfigure(lower).unwrap();
    assert_eq!(rows(&next(&mut scheduler)), [(1, 0, 12)]);
    let mut zero = config;
    zero.encoder_budget_tokens = Some(0);
    assert_eq!(zero.validate(), Err(ConfigError::Zero { field: "encoder_budget_tokens" }));
    let mut fixed = lower;
    fixed.encoder_cache_tokens = Some(100);
    assert_eq!(scheduler.reconfigure(fixed), Err(ConfigError::Fixed { field: "encoder_cache_tokens" }));
}

#[test]
fn equal_tokens_with_other_images_share_no_kv() {
    let mut config = config();
    config.prefix_caching = true;
    let image = |digest| vec![Span::encoded(5, 2, 1, digest)];
    let mut scheduler = submitted(config, vec![request(1, 13, image(A))]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    let found = |scheduler: &mut Scheduler, id, spans| {
        scheduler.submit(request(id, 13, spans)).unwrap();
        let batch = next(scheduler);
        let start = batch.rows()[0].num_computed_tokens;
        complete(scheduler, &batch);
        start
    };
    assert_eq!(found(&mut scheduler, 2, image(A)), 12);
    // What comes before the image is the same; the image moved by one is another.
    assert_eq!(found(&mut scheduler, 3, image(B)), 4);
    assert_eq!(found(&mut scheduler, 4, vec![Span::encoded(6, 2, 1, A)]), 4);
    assert_eq!(found(&mut scheduler, 5, vec![Span::encoded(5, 3, 1, A)]), 4);
    assert_eq!(found(&mut scheduler, 6, vec![]), 4);
}

#[test]
fn a_prefix_hit_behind_an_item_needs_no_encoder() {
    let mut config = config();
    config.prefix_caching = true;
    let mut scheduler = submitted(config, vec![request(1, 9, vec![Span::encoded(1, 3, 4, A)])]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    scheduler.submit(request(2, 9, vec![Span::encoded(1, 3, 4, A)])).unwrap();
    let batch = next(&mut scheduler);
    assert_eq!((rows(&batch), inputs(&batch)), (vec![(2, 8, 9)], vec![]));
}

#[test]
fn a_loss_takes_the_encoding_and_all_who_used_it() {
    let spans = || vec![Span::encoded(0, 4, 5, A)];
    let mut config = config();
    config.max_batch_tokens = 8;
    config.encoder_cache_tokens = Some(20);
    let mut scheduler = submitted(config, vec![request(1, 8, spans()), request(2, 8, spans()), request(3, 8, vec![])]);
    let batches: Vec<_> = (0..3).map(|_| next(&mut scheduler)).collect();
    assert_eq!(batches.iter().map(inputs).collect::<Vec<_>>(), [vec![(1, 0)], vec![], vec![]]);
    scheduler.lose(batches[0].id()).unwrap();
    scheduler.check_invariants().unwrap();
    let computed = |scheduler: &Scheduler| [1, 2, 3].map(|id| scheduler.num_computed_tokens(RequestId(id)).unwrap());
    // Request 2 stood in another batch, but used what the lost one was to encode.
    assert_eq!((computed(&scheduler), scheduler.stats().encoder_cached_tokens), ([0, 0, 8], 0));
    complete(&mut scheduler, &batches[1]);
    let again = next(&mut scheduler);
    assert_eq!((rows(&again), inputs(&again), again.encoder_freed()), (vec![(1, 0, 8)], vec![(1, 0)], &[item(A, 5)][..]));
    complete(&mut scheduler, &batches[2]);
    assert!(scheduler.events().all(|event| !matches!(event, Event::Token { request: RequestId(1 | 2), .. })));
}

#[test]
fn a_failure_forgets_what_was_in_flight_and_keeps_what_was_done() {
    let mut config = config();
    config.encoder_cache_tokens = Some(20);
    let mut scheduler = submitted(config, vec![request(1, 40, vec![Span::encoded(0, 4, 5, A), Span::encoded(20, 4, 6, B)])]);
    let first = next(&mut scheduler);
    assert_eq!(inputs(&next(&mut scheduler)), [(1, 1)]);
    complete(&mut scheduler, &first);
    assert_eq!(scheduler.fail(), 1);
    scheduler.check_invariants().unwrap();
    assert_eq!(scheduler.stats().encoder_cached_tokens, 5);
    let again = next(&mut scheduler);
    assert_eq!((rows(&again), inputs(&again), again.encoder_freed()), (vec![(1, 16, 32)], vec![(1, 1)], &[item(B, 6)][..]));
}

#[test]
fn who_is_preempted_or_aborted_needs_nothing() {
    let mut config = config();
    config.encoder_cache_tokens = Some(6);
    let mut scheduler = submitted(config, vec![request(1, 30, vec![Span::encoded(0, 30, 5, A)])]);
    let batch = next(&mut scheduler);
    scheduler.submit(request(2, 4, vec![Span::encoded(0, 4, 6, B)])).unwrap();
    assert_eq!(scheduler.why(RequestId(2)), Some(WaitReason::NoEncoder));
    assert!(scheduler.abort(RequestId(1)).is_applied());
    let other = next(&mut scheduler);
    assert_eq!((inputs(&other), other.encoder_freed()), (vec![(2, 0)], &[item(A, 5)][..]));
    complete(&mut scheduler, &batch);
    complete(&mut scheduler, &other);
    assert!(scheduler.is_idle());
}

#[test]
fn a_victim_in_the_batch_hands_its_encoding_over() {
    let mut config = config();
    (config.stages, config.num_blocks, config.max_prompt_wait, config.policy) = (1, 5, 1, PolicyKind::Srpf);
    let mut decoding = request(1, 7, vec![]);
    decoding.max_tokens = 12;
    let mut scheduler = submitted(config, vec![decoding]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    let image = || vec![Span::encoded(0, 2, 3, A)];
    scheduler.submit(request(2, 8, image())).unwrap();
    scheduler.submit(request(3, 4, image())).unwrap();
    // A decode fills this batch, so that prompts come first in the next.
    let mut small = config;
    small.max_batch_tokens = 1;
    scheduler.reconfigure(small).unwrap();
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    scheduler.reconfigure(config).unwrap();
    // The shorter prompt comes first and encodes; then the decode takes its block, for it was submitted last.
    let batch = next(&mut scheduler);
    assert_eq!((rows(&batch), batch.preempted()), (vec![(2, 0, 8), (1, 8, 9)], &[RequestId(3)][..]));
    assert_eq!((inputs(&batch), scheduler.stats().encoder_tokens), (vec![(2, 0)], 3));
}

#[test]
fn who_cannot_run_keeps_no_room_from_others() {
    let mut config = config();
    config.encoder_cache_tokens = Some(6);
    let mut scheduler = submitted(config, vec![request(1, 30, vec![Span::encoded(0, 30, 5, A)])]);
    let batch = next(&mut scheduler);
    assert!(scheduler.shut(RequestId(1), Gate::Other).is_applied());
    complete(&mut scheduler, &batch);
    scheduler.submit(request(2, 4, vec![Span::encoded(0, 4, 6, B)])).unwrap();
    let batch = next(&mut scheduler);
    assert_eq!((inputs(&batch), batch.encoder_freed()), (vec![(2, 0)], &[item(A, 5)][..]));
    complete(&mut scheduler, &batch);
    // It is encoded again when it goes on in the middle of its span.
    assert!(scheduler.open(RequestId(1), Gate::Other).is_applied());
    let batch = next(&mut scheduler);
    assert_eq!((rows(&batch), inputs(&batch)), (vec![(1, 16, 30)], vec![(1, 0)]));
}

#[test]
fn the_last_prompt_token_of_a_fork_finds_its_item() {
    let mut config = config();
    config.encoder_cache_tokens = Some(6);
    let mut parent = request(1, 8, vec![Span::encoded(5, 3, 5, A)]);
    parent.max_tokens = 9;
    let mut scheduler = submitted(config, vec![parent]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 3)).unwrap();
    let batch = next(&mut scheduler);
    assert_eq!(rows(&batch), [(1, 8, 9), (2, 7, 8)]);
    assert_eq!((inputs(&batch), scheduler.stats().encoder_hit_tokens), (vec![], 5));
}

#[test]
fn a_session_goes_on_with_another_image() {
    let mut session = request(1, 4, vec![Span::encoded(0, 2, 5, A)]);
    session.session = true;
    let mut scheduler = submitted(config(), vec![session]);
    let batch = next(&mut scheduler);
    complete(&mut scheduler, &batch);
    let input = Prompt::Tokens(vec![3; 6]);
    let misplaced = scheduler.extend_with(RequestId(1), input.clone(), &[Span::encoded(5, 2, 5, B)], 1).unwrap_err();
    assert!(misplaced.to_string().starts_with("span 0 of request 1"), "{misplaced}");
    scheduler.extend_with(RequestId(1), input, &[Span::encoded(1, 2, 5, B)], 1).unwrap();
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!() };
    assert_eq!((inputs(&batch), batch.spans(&batch.rows()[0])[0].start), (vec![(1, 1)], 6));
}

#[test]
fn new_weights_encode_everything_anew() {
    let mut config = config();
    config.encoder_cache_tokens = Some(20);
    let mut scheduler = submitted(config, vec![request(1, 30, vec![Span::encoded(0, 4, 5, A)])]);
    let batch = next(&mut scheduler);
    scheduler.reset_all_kv();
    scheduler.check_invariants().unwrap();
    assert_eq!(scheduler.stats().encoder_cached_tokens, 0);
    complete(&mut scheduler, &batch);
    assert_eq!(inputs(&next(&mut scheduler)), [(1, 0)]);
}

#[test]
fn the_digest_of_decisions_covers_what_a_batch_frees_and_nothing_of_an_encoder_where_there_is_none() {
    let run = |content: Option<[u8; 16]>| {
        let spans = content.into_iter().map(|content| Span::encoded(0, 4, 3, content)).collect();
        let mut scheduler = submitted(config(), vec![request(1, 20, spans)]);
        let mut decisions = Decisions::default();
        let mut freed = 0;
        while !scheduler.is_idle() {
            if let Schedule::Batch(batch) = scheduler.schedule() {
                freed += batch.encoder_freed().len();
                decisions.add(&batch);
                let (id, samples) = (batch.id(), batch.rows()[0].samples);
                let result = [Sample { request: RequestId(1), tokens: &[2] }];
                scheduler.complete(id, &result[..usize::from(samples)]).unwrap();
            }
        }
        (freed, decisions.digest())
    };
    // The batches encode span 0 of request 1 in both, and free another item in a batch that encodes none.
    let (a, b) = (run(Some(A)), run(Some(B)));
    assert_eq!((a.0, b.0), (1, 1));
    assert_ne!(a.1, b.1);
    // Digests stand in journals: that of a run without an encoder stays what it was.
    assert_eq!((run(None).0, format!("{}", run(None).1)), (0, "5ff0b1ab29f7536d74b0d574f3ada892".to_owned()));
}

#[test]
fn whoever_has_ended_keeps_no_budget_up() {
    let mut large = config();
    large.encoder_budget_tokens = Some(80);
    let mut scheduler = submitted(large, vec![request(1, 12, vec![Span::encoded(2, 4, 80, A)])]);
    let batch = next(&mut scheduler);
    let mut small = large;
    small.encoder_budget_tokens = Some(50);
    assert_eq!(scheduler.reconfigure(small), Err(ConfigError::Span { request: RequestId(1), span: 0 }));
    assert!(scheduler.abort(RequestId(1)).is_applied());
    // Its row is still in flight, and needs nothing that another batch would have to encode.
    scheduler.reconfigure(small).unwrap();
    scheduler.complete(batch.id(), &[Sample { request: RequestId(1), tokens: &[2] }]).unwrap();
    assert!(scheduler.is_idle());
    scheduler.check_invariants().unwrap();
}
