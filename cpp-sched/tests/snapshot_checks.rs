//! What a snapshot may not hold, each fault by itself: made up, it would make a scheduler that stops or goes wrong later.

use cpp_sched::{Config, Fork, Gate, Request, RequestId, RestoreError, Role, Sample, Scheduler, Snapshot, Span};
use serde_json::Value;

fn restore(value: &Value) -> Result<Scheduler, RestoreError> {
    Scheduler::restore(serde_json::from_value::<Snapshot>(value.clone()).expect("the layout is right"))
}

/// What is wrong with request 1, if that is why the snapshot is refused.
fn fault(value: &Value) -> &'static str {
    match restore(value) {
        Err(RestoreError::Request { request: RequestId(1), what }) => what,
        other => panic!("{other:?}"),
    }
}

/// A request of 20 tokens with an image of 8 tokens, and a piece of 6 that is not to be cut.
fn with_spans(running: bool) -> Value {
    let mut config = Config::default();
    (config.block_size, config.stages, config.max_batch_tokens) = (4, 2, 16);
    (config.encoder_budget_tokens, config.encoder_cache_tokens) = (Some(30), Some(40));
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut request = Request::new(RequestId(1), (0..20).collect(), 2);
    request.spans = vec![Span::encoded(2, 8, 25, [1; 16]), Span::atomic(12, 6, [2; 16])];
    scheduler.submit(request).unwrap();
    if running {
        assert!(scheduler.schedule().batch().is_some());
    }
    let value = serde_json::to_value(scheduler.snapshot()).unwrap();
    assert!(restore(&value).is_ok());
    value
}

#[test]
fn a_span_that_fits_into_no_batch_is_refused() {
    type Damage = fn(&mut Value);
    let damages: [(&str, Damage); 6] = [
        ("more than the encoder's budget", |v| v["state"]["requests"][0][1]["spans"][0]["encoder_tokens"] = 31.into()),
        ("a smaller budget", |v| v["state"]["config"]["encoder_budget_tokens"] = 24.into()),
        ("a smaller cache", |v| v["state"]["config"]["encoder_cache_tokens"] = 24.into()),
        ("smaller batches", |v| v["state"]["config"]["max_batch_tokens"] = 5.into()),
        ("smaller shares", |v| v["state"]["config"]["max_prompt_tokens_per_batch"] = 5.into()),
        ("smaller chunks", |v| v["state"]["config"]["chunking"] = serde_json::json!({"kind": "tokens", "max": 5})),
    ];
    for running in [false, true] {
        for (name, damage) in damages {
            let mut value = with_spans(running);
            damage(&mut value);
            if running && name == "more than the encoder's budget" {
                // The batch in flight encodes it under its old size.
                assert!(restore(&value).is_err());
                continue;
            }
            assert_eq!(fault(&value), "a span that fits into no batch", "{name}");
        }
    }
    // It may be cut at 5 tokens as long as it is not atomic.
    let mut value = with_spans(false);
    value["state"]["requests"][0][1]["spans"][1]["atomic"] = false.into();
    value["state"]["config"]["max_batch_tokens"] = 5.into();
    assert!(restore(&value).is_ok());
}

#[test]
fn a_span_of_a_request_that_has_ended_keeps_nobody_from_going_on() {
    let mut config = Config::default();
    (config.stages, config.encoder_budget_tokens) = (2, Some(30));
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut request = Request::new(RequestId(1), (0..20).collect(), 2);
    request.spans = vec![Span::encoded(2, 8, 25, [1; 16])];
    scheduler.submit(request).unwrap();
    assert!(scheduler.schedule().batch().is_some());
    assert!(scheduler.abort(RequestId(1)).is_applied());
    config.encoder_budget_tokens = Some(10);
    scheduler.reconfigure(config).unwrap();
    let restored = Scheduler::restore(scheduler.snapshot()).unwrap();
    assert_eq!(restored.snapshot(), scheduler.snapshot());
}

#[test]
fn a_transfer_that_fails_goes_on_within_its_prompt() {
    let mut config = Config::default();
    (config.block_size, config.role, config.prefix_caching) = (4, Role::Decode, true);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(7), (0..12).collect(), 1)).unwrap();
    assert!(scheduler.kv_arrived(RequestId(7)).is_applied());
    scheduler.submit(Request::new(RequestId(1), (0..12).collect(), 3)).unwrap();
    let value = serde_json::to_value(scheduler.snapshot()).unwrap();
    let published = |value: &Value| value["state"]["requests"][1][0]["published"].clone();
    assert_eq!(published(&value), 2, "the last block is computed again, whatever is found");
    for (count, refused) in [(0, false), (1, false), (2, false), (3, true)] {
        let mut damaged = value.clone();
        damaged["state"]["requests"][1][0]["published"] = count.into();
        if refused {
            assert_eq!(fault(&damaged), "it had found its whole prompt");
            continue;
        }
        // Fewer only means that something is published again; that may be refused for its own reason.
        let Ok(mut restored) = restore(&damaged) else { continue };
        assert!(restored.kv_failed(RequestId(1)).is_applied());
        assert_eq!(restored.num_computed_tokens(RequestId(1)), Some(count * 4));
        assert!(restored.schedule().batch().is_some());
        restored.check_invariants().unwrap();
    }
}

#[test]
fn a_request_that_has_announced_a_part_and_given_up_its_slot_is_restored() {
    let mut config = Config::default();
    (config.block_size, config.role, config.max_requests, config.max_batch_tokens) = (4, Role::Prefill, 1, 8);
    let mut scheduler = Scheduler::new(config).unwrap();
    let complete = |scheduler: &mut Scheduler, request: u64| {
        let batch = scheduler.schedule().batch().unwrap();
        let (id, samples) = (batch.id(), batch.num_samples());
        let sample = [Sample { request: RequestId(request), tokens: &[9] }];
        scheduler.complete(id, &sample[..samples as usize]).unwrap();
    };
    scheduler.submit(Request::new(RequestId(1), (0..20).collect(), 1)).unwrap();
    complete(&mut scheduler, 1);
    assert!(scheduler.shut(RequestId(1), Gate::Other).is_applied());
    scheduler.submit(Request::new(RequestId(2), vec![7; 6], 1)).unwrap();
    complete(&mut scheduler, 2);
    let snapshot = scheduler.snapshot();
    let mut restored = Scheduler::restore(snapshot.clone()).unwrap();
    assert_eq!(restored.snapshot(), snapshot);
    assert!(restored.kv_sent(RequestId(2)).is_applied() && restored.ready(RequestId(1)).is_applied());
    complete(&mut restored, 1);
    complete(&mut restored, 1);
    assert!(restored.kv_sent(RequestId(1)).is_applied() && restored.is_idle());
    assert_eq!(restored.kv_usage().free, restored.kv_usage().total);
}

/// All keys of a value, by path; lists by their first element.
fn layout(value: &Value, path: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                all.push(format!("{path}.{key}"));
                layout(value, &format!("{path}.{key}"), all);
            }
        }
        Value::Array(items) => {
            for item in items {
                layout(item, &format!("{path}[]"), all);
            }
        }
        _ => {}
    }
}

#[test]
fn a_layout_has_its_version() {
    let mut value = with_spans(true);
    let mut all = Vec::new();
    layout(&value, "", &mut all);
    all.sort_unstable();
    all.dedup();
    let digest = all
        .iter()
        .flat_map(|key| key.bytes())
        .fold(0xcbf2_9ce4_8422_2325u64, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    assert_eq!(
        (value["version"].take(), all.len(), digest),
        (Value::from(2), 287, 13_176_127_504_354_492_620),
        "what a snapshot holds has changed: raise its version (scheduler/snapshot/saved.rs) and that of journals (journal/format.rs), which \
         hold snapshots, requests and configurations, once a release, and set the number of keys and their digest here"
    );
}

/// Its last block is published by its parent, and it computes the last position of it again: one block more than what it has committed.
#[test]
fn a_fork_that_was_aborted_with_a_row_in_flight_is_restored() {
    let mut config = Config::default();
    (config.block_size, config.stages) = (4, 2);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(1), (0..8).collect(), 4)).unwrap();
    let first = scheduler.schedule().batch().unwrap().id();
    scheduler.complete(first, &[Sample { request: RequestId(1), tokens: &[5] }]).unwrap();
    scheduler.fork(RequestId(1), Fork::new(RequestId(2), 4)).unwrap();
    let second = scheduler.schedule().batch().unwrap();
    assert!(second.rows().iter().any(|row| row.request == RequestId(2)));
    assert!(scheduler.abort(RequestId(2)).is_applied());
    let restored = Scheduler::restore(scheduler.snapshot()).unwrap();
    assert_eq!(restored.snapshot(), scheduler.snapshot());
}
