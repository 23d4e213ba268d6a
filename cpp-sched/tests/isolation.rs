//! What one tenant can learn of another's prompts, as an attacker would try: guess the victim's prompt, send it under one's own salt, and look at
//! everything that comes back. The attacker sees its own requests (rows, batches, events, estimates, refusals), not the operator's statistics.
//! The README says what is promised and what is not.

use cpp_sched::{
    Attos, Config, CostModel, Event, HashKey, KvEvent, KvGroup, KvGroups, Prompt, Request, RequestId, Sample, Schedule, Scheduler, Span,
};

const VICTIM: &[u8] = b"victim";
const ATTACKER: &[u8] = b"attacker";

fn config() -> Config {
    let mut config = Config::default();
    (config.num_blocks, config.max_batch_tokens, config.prefix_caching, config.kv_events) = (256, 64, true, true);
    config.hash_key = HashKey([9; 16]);
    let mut cost = CostModel::default();
    (cost.c0, cost.c1, cost.c2) = (Attos::from_ns(1000), Attos::from_ns(10), Attos(5_000_000));
    config.cost = Some(cost);
    config
}

fn secret(id: u64, salt: &[u8]) -> Request {
    let mut request = Request::new(RequestId(id), (0..200).map(|at| at * 7 + 1).collect(), 3);
    request.cache_salt = salt.to_vec();
    request
}

/// Everything that a request shows its owner while it runs alone: an estimate before, its rows batch by batch with cost and what they encode, its
/// events. Block numbers are the machine's business.
fn seen(scheduler: &mut Scheduler, request: Request) -> Vec<String> {
    let id = request.id;
    let estimate = scheduler.estimate(&request).unwrap();
    let mut seen = vec![format!("{} tokens cached, {} blocks, {} ns", estimate.cached_tokens, estimate.prompt_blocks, estimate.ttft_ns)];
    scheduler.submit(request).unwrap();
    run(scheduler, id, &mut seen);
    seen
}

fn run(scheduler: &mut Scheduler, of: RequestId, seen: &mut Vec<String>) {
    loop {
        while let Schedule::Batch(batch) = scheduler.schedule() {
            for row in batch.rows().iter().filter(|row| row.request == of) {
                seen.push(format!(
                    "{}..{} of {} ns, {} encoded",
                    row.num_computed_tokens,
                    row.end(),
                    batch.cost_ns(),
                    batch.encoder_inputs().len()
                ));
            }
        }
        let Some(oldest) = scheduler.oldest_in_flight() else { break };
        let id = oldest.id();
        let sampling: Vec<_> = oldest.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        let samples: Vec<_> = sampling.into_iter().map(|request| Sample { request, tokens: &[7] }).collect();
        scheduler.complete(id, &samples).unwrap();
        scheduler.check_invariants().unwrap();
        seen.extend(scheduler.events().map(|event| match event {
            Event::Token { index, token, .. } => format!("token {index}: {token}"),
            other => format!("{:?}", core::mem::discriminant(&other)),
        }));
    }
}

/// What the attacker sees with and without the victim's having run before; the victim itself and one with its salt see a difference.
fn attack(config: Config, request: impl Fn(u64, &[u8]) -> Request) {
    let fresh = seen(&mut Scheduler::new(config).unwrap(), request(2, ATTACKER));
    let mut scheduler = Scheduler::new(config).unwrap();
    let victim = seen(&mut scheduler, request(1, VICTIM));
    assert_eq!(seen(&mut scheduler, request(2, ATTACKER)), fresh, "the attacker sees that the victim was there");
    assert_eq!(seen(&mut scheduler, request(3, b"")).len(), fresh.len(), "so does one without a salt");
    // The control: there was something to see.
    assert_ne!(seen(&mut scheduler, request(4, VICTIM)), victim);
    // And the attacker finds its own, which is not the victim's: both are there once.
    assert_ne!(seen(&mut scheduler, request(5, ATTACKER)), fresh);
}

#[test]
fn a_guessed_prompt_is_not_found_under_another_salt() {
    attack(config(), secret);
}

#[test]
fn nor_by_block_hashes_that_the_caller_gives() {
    attack(config(), |id, salt| {
        let mut request = secret(id, salt);
        request.prompt = Prompt::Lengths { len: 200, block_hashes: (0..200 / 16).map(|block| [block as u8 + 1; 16]).collect() };
        request
    });
}

#[test]
fn nor_with_several_kv_groups() {
    let mut config = config();
    config.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 64 }]).unwrap();
    attack(config, secret);
}

#[test]
fn a_guessed_image_is_not_found_encoded_under_another_salt() {
    // The budget holds one image a batch: who finds the image encoded gets both chunks at once.
    let mut config = config();
    (config.encoder_budget_tokens, config.encoder_cache_tokens) = (Some(80), Some(2000));
    attack(config, |id, salt| {
        let mut request = secret(id, salt);
        // The text differs, so that the prefix says nothing.
        if let Prompt::Tokens(tokens) = &mut request.prompt {
            tokens[0] = id as u32;
        }
        request.spans = vec![Span::encoded(10, 20, 80, [1; 16]), Span::encoded(30, 20, 80, [2; 16])];
        request
    });
}

#[test]
fn an_image_of_a_later_turn_is_kept_apart_too() {
    let mut config = config();
    (config.encoder_budget_tokens, config.encoder_cache_tokens) = (Some(80), Some(2000));
    let mut scheduler = Scheduler::new(config).unwrap();
    let image = [Span::encoded(0, 10, 80, [1; 16])];
    let mut names = Vec::new();
    for (id, salt) in [(1, VICTIM), (2, ATTACKER), (3, VICTIM), (4, b"")] {
        let mut request = secret(id, salt);
        request.session = true;
        scheduler.submit(request).unwrap();
        run(&mut scheduler, RequestId(id), &mut Vec::new());
        let before = scheduler.stats().encoder_hit_tokens;
        scheduler.extend_with(RequestId(id), Prompt::Tokens(vec![5; 20]), &image, 1).unwrap();
        run(&mut scheduler, RequestId(id), &mut Vec::new());
        names.push((scheduler.spans(RequestId(id)).unwrap()[0].digest, scheduler.stats().encoder_hit_tokens - before));
    }
    assert_eq!((names[0].1, names[1].1, names[2].1, names[3].1), (0, 0, 80, 0));
    assert_eq!((names[0].0, names[3].0), (names[2].0, [1; 16]));
    assert!(names[0].0 != names[1].0 && names[0].0 != [1; 16]);
}

#[test]
fn refusal_by_prediction_says_the_same_whatever_others_have_cached() {
    let mut config = config();
    config.latency.reject_above_millionths = Some(1_000_000);
    // A prompt of 200 tokens takes four batches; one that is found takes one.
    let hasty = |id, salt| {
        let mut request = secret(id, salt);
        request.ttft_slo_ns = Some(3_000);
        request
    };
    let mut scheduler = Scheduler::new(config).unwrap();
    let refused = scheduler.submit(hasty(2, ATTACKER)).unwrap_err();
    seen(&mut scheduler, secret(1, VICTIM));
    assert_eq!(scheduler.submit(hasty(2, ATTACKER)), Err(refused));
    assert_eq!(scheduler.submit(hasty(3, VICTIM)), Ok(()), "the control: the victim's own is found");
}

/// A chosen prefix: the attacker gives as block hashes whatever it may have seen or computed, even the digests that the kernel tells of.
#[test]
fn digests_that_leak_are_of_no_use() {
    let mut scheduler = Scheduler::new(config()).unwrap();
    seen(&mut scheduler, secret(1, VICTIM));
    let told: Vec<[u8; 16]> =
        scheduler.kv_events().filter_map(|event| if let KvEvent::Stored { digest, .. } = event { Some(digest) } else { None }).collect();
    assert!(told.len() >= 12, "{told:?}");
    for salt in [ATTACKER, VICTIM, b""] {
        let mut request = secret(2, salt);
        request.prompt = Prompt::Lengths { len: 200, block_hashes: told[..12].to_vec() };
        assert_eq!(scheduler.estimate(&request).unwrap().cached_tokens, 0);
    }
}

#[test]
fn digests_differ_under_another_key_and_are_nothing_like_their_input() {
    let told = |key| {
        let mut config = config();
        config.hash_key = HashKey([key; 16]);
        let mut scheduler = Scheduler::new(config).unwrap();
        seen(&mut scheduler, secret(1, VICTIM));
        let stored = |event| if let KvEvent::Stored { digest, .. } = event { Some(digest) } else { None };
        scheduler.kv_events().filter_map(stored).collect::<Vec<_>>()
    };
    let (one, other) = (told(1), told(2));
    assert_eq!(one.len(), other.len());
    assert!(one.iter().all(|digest| !other.contains(digest)));
    assert_eq!(one, told(1));
}

#[test]
fn the_key_is_in_no_debug_text() {
    let mut config = config();
    config.hash_key = HashKey([0xa7; 16]);
    let mut scheduler = Scheduler::new(config).unwrap();
    seen(&mut scheduler, secret(1, VICTIM));
    for text in [format!("{config:?}"), format!("{:?}", scheduler.config()), format!("{scheduler:?}")] {
        let bytes = |byte: u8| [format!("{byte}, {byte}, {byte}, {byte}"), format!("{byte:x}{byte:x}{byte:x}{byte:x}")];
        assert!(bytes(0xa7).iter().all(|key| !text.contains(key)), "the key is in {text}");
        // As the words that a hasher keeps of it.
        assert!(!text.contains(&u64::from_le_bytes([0xa7; 8]).to_string()), "the key is in {text}");
    }
}
