//! Snapshots: a restored scheduler goes on as the original does, and a damaged one is refused or harmless.

mod inputs;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_sched::journal::{Answer, Input, JournalError, JournalReader, JournalWriter, replay, replay_with_policy};
use cpp_sched::{Config, Event, KvEvent, Policy, Rank, RequestView, RestoreError, Scheduler, Snapshot};
use inputs::Inputs;
use serde_json::Value;

/// How many random runs; `PROPTEST_CASES` scales it.
fn runs(default: u64) -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u64>().ok()).map_or(default, |cases| default * cases / 256)
}

/// All that one call brings about.
fn outcome(input: &Input, scheduler: &mut Scheduler) -> (String, Vec<Event>, Vec<KvEvent>) {
    let answer = match input.apply(scheduler) {
        Answer::Batch(batch) => {
            let tables: Vec<_> = batch.rows().iter().map(|row| batch.blocks(row).to_vec()).collect();
            format!("{:?} {tables:?}", batch.batch())
        }
        other => format!("{other:?}"),
    };
    (answer, scheduler.events().collect(), scheduler.kv_events().collect())
}

fn through(format: u64, snapshot: Snapshot) -> Snapshot {
    match format {
        0 => serde_json::from_slice(&serde_json::to_vec(&snapshot).unwrap()).unwrap(),
        1 => postcard::from_bytes(&postcard::to_allocvec(&snapshot).unwrap()).unwrap(),
        // A value of this crate holds no numbers of more than 64 bits.
        2 => serde_json::from_value(serde_json::to_value(&snapshot).unwrap()).unwrap(),
        _ => snapshot,
    }
}

#[test]
fn a_restored_scheduler_goes_on_as_the_original() {
    for seed in 0..runs(600) {
        let mut inputs = Inputs::new(seed);
        let mut original = inputs.scheduler();
        let mut restored = original.clone();
        for step in 0..200 {
            let input = inputs.next(&original);
            let expected = outcome(&input, &mut original);
            original.check_invariants().unwrap_or_else(|error| panic!("seed {seed}, step {step}, {input:?}: {error}"));
            let got = outcome(&input, &mut restored);
            assert_eq!(got, expected, "seed {seed}, step {step}: {input:?}");
            let snapshot = through(inputs.below(8), restored.snapshot());
            assert_eq!(snapshot, original.snapshot(), "seed {seed}, step {step}: {input:?}");
            restored = Scheduler::restore(snapshot).unwrap_or_else(|error| panic!("seed {seed}, step {step}, {input:?}: {error}"));
            assert_eq!((restored.stats(), restored.kv_usage()), (original.stats(), original.kv_usage()), "seed {seed}, step {step}");
            assert_eq!(restored.unfinished(), original.unfinished());
        }
    }
}

#[test]
fn events_that_were_not_taken_are_kept() {
    for seed in 0..runs(100) {
        let mut inputs = Inputs::new(1_000_000 + seed);
        let mut scheduler = inputs.scheduler();
        for _ in 0..150 {
            let input = inputs.next(&scheduler);
            input.apply(&mut scheduler);
            scheduler.check_invariants().unwrap_or_else(|error| panic!("seed {seed}, {input:?}: {error}"));
        }
        for format in 0..2 {
            let mut restored = Scheduler::restore(through(format, scheduler.snapshot())).unwrap();
            assert!(restored.events().eq(scheduler.clone().events()));
            assert!(restored.kv_events().eq(scheduler.clone().kv_events()));
        }
    }
}

/// Every place in a value that can be changed, as a path of steps.
fn leaves(value: &Value, path: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
    all.push(path.clone());
    let children: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => return,
    };
    for (at, child) in children.into_iter().enumerate() {
        path.push(at);
        leaves(child, path, all);
        path.pop();
    }
}

fn place<'v>(mut value: &'v mut Value, path: &[usize]) -> &'v mut Value {
    for &at in path {
        value = match value {
            Value::Array(items) => &mut items[at],
            Value::Object(fields) => fields.values_mut().nth(at).unwrap(),
            _ => unreachable!("the path leads through lists and objects"),
        };
    }
    value
}

/// Changes one thing somewhere.
fn mutate(value: &mut Value, inputs: &mut Inputs) {
    let mut all = Vec::new();
    leaves(value, &mut Vec::new(), &mut all);
    let path = &all[inputs.below(all.len() as u64) as usize];
    let place = place(value, path);
    match place {
        Value::Number(number) => {
            let old = number.as_u64().unwrap_or(0);
            let new = match inputs.below(8) {
                0 => 0,
                1 => old.wrapping_add(1),
                2 => old.wrapping_sub(1),
                3 => u64::from(u32::MAX),
                4 => u64::MAX,
                5 => u64::from(u32::MAX) - 1,
                6 => inputs.below(30),
                _ => old.wrapping_mul(2),
            };
            *place = new.into();
        }
        Value::Bool(flag) => *place = (!*flag).into(),
        Value::Array(items) if !items.is_empty() => {
            let (a, b) = (inputs.below(items.len() as u64) as usize, inputs.below(items.len() as u64) as usize);
            match inputs.below(4) {
                0 => drop(items.remove(a)),
                1 => items.push(items[a].clone()),
                2 => items.swap(a, b),
                _ => items.clear(),
            }
        }
        Value::Array(items) => items.push(inputs.below(20).into()),
        Value::Null => *place = inputs.below(20).into(),
        Value::String(text) => {
            let states = ["Vacant", "Waiting", "Running", "Paused", "Sending", "Aborting", "Gone", "prefill", "decode", "unified"];
            *text = states[inputs.below(10) as usize].to_owned();
        }
        Value::Object(_) => {}
    }
}

/// Runs a scheduler on: nothing may panic, and every invariant holds.
fn run_on(scheduler: &mut Scheduler, inputs: &mut Inputs, steps: u32) {
    for _ in 0..steps {
        let input = inputs.next(scheduler);
        input.apply(scheduler);
        scheduler.check_invariants().unwrap_or_else(|error| panic!("after {input:?}: {error}"));
        scheduler.events().for_each(drop);
    }
    for request in scheduler.unfinished() {
        _ = scheduler.abort(request);
    }
    while let Some(batch) = scheduler.oldest_in_flight() {
        let result = inputs.result(&batch.clone());
        result.apply(scheduler);
        scheduler.check_invariants().unwrap_or_else(|error| panic!("draining: {error}"));
    }
}

#[test]
fn a_damaged_snapshot_is_refused_or_harmless() {
    let (mut refused, mut taken, mut failures) = (0u32, 0u32, Vec::new());
    for seed in 0..runs(400) {
        let mut inputs = Inputs::new(2_000_000 + seed);
        let mut scheduler = inputs.scheduler();
        for _ in 0..inputs.below(120) {
            let input = inputs.next(&scheduler);
            input.apply(&mut scheduler);
            scheduler.events().for_each(drop);
        }
        let whole = serde_json::to_value(scheduler.snapshot()).unwrap();
        for round in 0..25 {
            let mut damaged = whole.clone();
            for _ in 0..1 + inputs.below(2) {
                mutate(&mut damaged, &mut inputs);
            }
            let what = format!("seed {seed}, round {round}");
            let result = catch_unwind(AssertUnwindSafe(|| {
                let Ok(snapshot) = serde_json::from_value::<Snapshot>(damaged) else { return false };
                let Ok(mut restored) = Scheduler::restore(snapshot) else { return false };
                restored.check_invariants().unwrap();
                run_on(&mut restored, &mut inputs, 40);
                true
            }));
            match result {
                Ok(true) => taken += 1,
                Ok(false) => refused += 1,
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                    failures.push(format!("{what}: {}", text.unwrap_or_default()));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} panics: {failures:#?}", failures.len());
    assert!(refused > taken / 4 && taken > 0, "{refused} refused, {taken} taken");
}

#[test]
fn damaged_and_cut_off_bytes_never_panic() {
    for seed in 0..runs(150) {
        let mut inputs = Inputs::new(3_000_000 + seed);
        let mut scheduler = inputs.scheduler();
        for _ in 0..80 {
            let input = inputs.next(&scheduler);
            input.apply(&mut scheduler);
            scheduler.events().for_each(drop);
        }
        let bytes = postcard::to_allocvec(&scheduler.snapshot()).unwrap();
        for cut in 0..bytes.len() {
            assert!(postcard::from_bytes::<Snapshot>(&bytes[..cut]).is_err(), "seed {seed}, {cut} bytes");
        }
        for _ in 0..100 {
            let mut damaged = bytes.clone();
            let at = inputs.below(bytes.len() as u64) as usize;
            damaged[at] ^= 1 << inputs.below(8);
            if let Ok(Ok(mut restored)) = postcard::from_bytes::<Snapshot>(&damaged).map(Scheduler::restore) {
                run_on(&mut restored, &mut inputs, 20);
            }
        }
    }
}

#[test]
fn another_version_is_refused() {
    let snapshot = Inputs::new(1).scheduler().snapshot();
    let mut value = serde_json::to_value(&snapshot).unwrap();
    value["version"] = 1.into();
    let error = serde_json::from_value::<Snapshot>(value).unwrap_err();
    assert!(error.to_string().contains("snapshot of version 1, this is version 2"), "{error}");
}

#[test]
fn transfers_that_are_overdue_together_end_in_the_same_order_after_a_restore() {
    use cpp_sched::{Config, Request, RequestId, Role};
    let mut config = Config::default();
    config.role = Role::Decode;
    config.kv_lease_ns = Some(5);
    for gone in 0..6 {
        let mut original = Scheduler::new(config).unwrap();
        for id in 0..6 {
            original.submit(Request::new(RequestId(id), vec![1; 4], 1)).unwrap();
        }
        // What is taken out of the middle of a heap leaves it in another order than it was filled in.
        assert!(original.kv_arrived(RequestId(gone)).is_applied());
        original.submit(Request::new(RequestId(9), vec![1; 4], 1)).unwrap();
        for id in 0..6 {
            assert!(original.abort(RequestId(id)).is_applied());
        }
        let mut restored = Scheduler::restore(original.snapshot()).unwrap();
        original.tick(5);
        restored.tick(5);
        assert!(original.events().eq(restored.events()), "{gone}");
    }
}

#[test]
fn one_that_has_given_up_its_slot_while_a_peer_reads_its_kv_is_restored() {
    use cpp_sched::{Gate, Request, RequestId, Role, Schedule};
    let mut config = Config::default();
    (config.role, config.block_size, config.max_batch_tokens, config.max_requests) = (Role::Prefill, 4, 4, 1);
    let mut original = Scheduler::new(config).unwrap();
    original.submit(Request::new(RequestId(1), vec![1; 9], 1)).unwrap();
    let first = original.schedule().batch().unwrap().id();
    original.complete(first, &[]).unwrap();
    assert!(original.events().any(|event| event == Event::KvReady { request: RequestId(1), start: 0, end: 4 }));
    assert!(original.shut(RequestId(1), Gate::Other).is_applied());
    original.submit(Request::new(RequestId(2), vec![2; 3], 1)).unwrap();
    assert!(matches!(original.schedule(), Schedule::Batch(batch) if batch.rows()[0].request == RequestId(2)));
    let mut restored = Scheduler::restore(original.snapshot()).unwrap();
    for scheduler in [&mut original, &mut restored] {
        assert!(scheduler.kv_send_failed(RequestId(1)).is_applied());
        scheduler.check_invariants().unwrap();
    }
    assert_eq!(original.snapshot(), restored.snapshot());
}

/// A policy that answers anything, and equal questions alike: time and progress change its mind.
#[derive(Debug)]
struct Erratic;

impl Policy for Erratic {
    fn name(&self) -> &'static str {
        "erratic"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        let draw = Inputs::new(view.seq ^ (u64::from(view.prompt_left) << 20) ^ (view.now_ns << 32)).below(1 << 20);
        match draw % 4 {
            0 => Rank::NotNow { until_ns: view.now_ns + draw % 900 },
            1 => Rank::Falling { zero_ns: i128::from(draw), per: draw % 7 },
            _ => Rank::Key(i128::from(draw % 5)),
        }
    }
}

/// The same policy by another name.
#[derive(Debug)]
struct Renamed;

impl Policy for Renamed {
    fn name(&self) -> &'static str {
        "renamed"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        Erratic.rank(view)
    }
}

#[test]
fn a_restored_scheduler_with_a_policy_of_the_callers_goes_on_as_the_original() {
    for seed in 0..runs(300) {
        let mut inputs = Inputs::new(4_000_000 + seed);
        let mut config = *inputs.scheduler().config();
        config.max_deferral_ns = inputs.below(2000);
        let mut original = Scheduler::with_policy(config, Box::new(Erratic)).unwrap();
        let mut restored = original.clone();
        for step in 0..120 {
            let input = inputs.next(&original);
            let expected = outcome(&input, &mut original);
            original.check_invariants().unwrap_or_else(|error| panic!("seed {seed}, step {step}, {input:?}: {error}"));
            assert_eq!(outcome(&input, &mut restored), expected, "seed {seed}, step {step}: {input:?}");
            let snapshot = through(inputs.below(8), restored.snapshot());
            assert_eq!(snapshot, original.snapshot(), "seed {seed}, step {step}: {input:?}");
            restored = Scheduler::restore_with_policy(snapshot, Box::new(Erratic))
                .unwrap_or_else(|error| panic!("seed {seed}, step {step}, {input:?}: {error}"));
        }
    }
}

#[test]
fn a_snapshot_is_restored_with_its_own_policy_alone() {
    let plain = Scheduler::new(Config::default()).unwrap().snapshot();
    let own = Scheduler::with_policy(Config::default(), Box::new(Erratic)).unwrap().snapshot();
    assert_eq!((plain.policy_name(), own.policy_name()), (None, Some("erratic")));
    let name = |name: &str| Some(name.to_owned());
    let error = Scheduler::restore(own.clone()).unwrap_err();
    assert_eq!(error, RestoreError::Policy { saved: name("erratic"), given: None });
    let error = Scheduler::restore_with_policy(own, Box::new(Renamed)).unwrap_err();
    assert_eq!(error.to_string(), "the snapshot was taken with policy erratic, and restored with renamed");
    let error = Scheduler::restore_with_policy(plain, Box::new(Renamed)).unwrap_err();
    assert_eq!(error, RestoreError::Policy { saved: None, given: name("renamed") });
}

#[test]
fn a_journal_names_its_policy_and_runs_again_with_it_alone() {
    let mut inputs = Inputs::new(77);
    let config = *inputs.scheduler().config();
    let mut scheduler = Scheduler::with_policy(config, Box::new(Erratic)).unwrap();
    let mut journal = JournalWriter::with_policy(scheduler.config(), "erratic");
    let mut bytes = Vec::new();
    for step in 0..300 {
        let input = inputs.next(&scheduler);
        let _ = journal.apply(&input, &mut scheduler);
        scheduler.events().for_each(drop);
        scheduler.kv_events().for_each(drop);
        bytes.extend(journal.take());
        if step == 150 {
            journal.rotate(&scheduler);
            let again = replay_with_policy(&bytes, Box::new(Erratic)).unwrap();
            assert_eq!((again.difference, again.scheduler.snapshot()), (None, scheduler.snapshot()));
            assert!(again.batches > 0);
            bytes.clear();
        }
    }
    let again = replay_with_policy(&bytes, Box::new(Erratic)).unwrap();
    assert_eq!((again.difference, again.scheduler.snapshot()), (None, scheduler.snapshot()));
    assert_eq!(JournalReader::new(&bytes).unwrap().start().policy_name(), Some("erratic"));
    assert!(matches!(replay(&bytes).unwrap_err(), JournalError::Snapshot(RestoreError::Policy { .. })));
    assert!(matches!(replay_with_policy(&bytes, Box::new(Renamed)).unwrap_err(), JournalError::Snapshot(RestoreError::Policy { .. })));
}
