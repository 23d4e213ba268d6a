//! Journals: a run again gives equal batches, whatever happened in it, also from the middle; damage is found.

mod inputs;

use cpp_sched::journal::{
    Answer, Decisions, Difference, Input, JournalError, JournalReader, JournalWriter, Record, Start, replay, replay_within,
};
use cpp_sched::{BatchId, Config, Fork, Gate, Prompt, Request, RequestId, Schedule, Scheduler};
use inputs::Inputs;

fn runs(default: u64) -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u64>().ok()).map_or(default, |cases| default * cases / 256)
}

fn forget_events(scheduler: &mut Scheduler) {
    scheduler.events().for_each(drop);
    scheduler.kv_events().for_each(drop);
}

#[test]
fn a_journal_replays_to_the_same_scheduler() {
    for seed in 0..runs(300) {
        let mut inputs = Inputs::new(seed);
        let mut scheduler = inputs.scheduler();
        let mut journal = JournalWriter::new(scheduler.config());
        let mut bytes = Vec::new();
        let mut batches = 0;
        for _ in 0..200 {
            let input = inputs.next(&scheduler);
            batches += u64::from(matches!(journal.apply(&input, &mut scheduler), Answer::Batch(_)));
            forget_events(&mut scheduler);
            bytes.append(&mut journal.take());
        }
        let replay = replay(&bytes).unwrap();
        assert_eq!((replay.inputs, replay.batches, replay.difference), (200, batches, None), "seed {seed}");
        assert_eq!(replay.digest, journal.digest(), "seed {seed}");
        assert_eq!(replay.scheduler.snapshot(), scheduler.snapshot(), "seed {seed}");
    }
}

/// The process dies after a random input. What is left of it is a snapshot of some time before and the journal since: from these another
/// process catches up and goes on. The digest at the end is that of a run which was never interrupted.
#[test]
fn a_run_killed_anywhere_goes_on_from_snapshot_and_journal() {
    for seed in 0..runs(600) {
        let mut inputs = Inputs::new(4_000_000 + seed);
        let mut whole = inputs.scheduler();
        let mut decisions = Decisions::default();
        let mut all = Vec::new();
        let mut scheduler = whole.clone();
        let mut journal = JournalWriter::new(scheduler.config());
        let mut stored = journal.take();
        let killed_after = inputs.below(200) as usize;
        for step in 0..200 {
            let input = inputs.next(&whole);
            if let Answer::Batch(batch) = input.apply(&mut whole) {
                decisions.add(&batch);
            }
            forget_events(&mut whole);
            all.push(input.clone());
            if step < killed_after {
                if inputs.below(40) == 0 {
                    journal.rotate(&scheduler);
                    stored.clear();
                }
                journal.apply(&input, &mut scheduler);
                forget_events(&mut scheduler);
                stored.append(&mut journal.take());
            }
        }
        drop((scheduler, journal));

        let mut caught_up = replay(&stored).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(caught_up.difference, None, "seed {seed}");
        let mut journal = caught_up.go_on();
        for input in &all[killed_after..] {
            journal.apply(input, &mut caught_up.scheduler);
            forget_events(&mut caught_up.scheduler);
        }
        assert_eq!(journal.digest(), decisions.digest(), "seed {seed}, killed after {killed_after}");
        assert_eq!(caught_up.scheduler.snapshot(), whole.snapshot(), "seed {seed}, killed after {killed_after}");
    }
}

/// A journal with at least a few batches, and its records.
fn example() -> (Vec<u8>, Vec<Record>) {
    for seed in 0.. {
        let mut inputs = Inputs::new(seed);
        let mut scheduler = inputs.scheduler();
        let mut journal = JournalWriter::new(scheduler.config());
        for _ in 0..100 {
            let input = inputs.next(&scheduler);
            journal.apply(&input, &mut scheduler);
        }
        if scheduler.stats().batches > 20 {
            let bytes = journal.take();
            let mut reader = JournalReader::new(&bytes).unwrap();
            let records = std::iter::from_fn(|| reader.next_record().unwrap()).collect();
            return (bytes, records);
        }
    }
    unreachable!("some seed has batches")
}

#[test]
fn a_changed_input_is_told_by_the_first_batch_that_differs() {
    let (bytes, records) = example();
    let config = match JournalReader::new(&bytes).unwrap().start() {
        Start::Empty(config) => **config,
        Start::Snapshot(..) | Start::Policy(..) => unreachable!("it was not rotated, and has a policy that is shipped"),
    };
    // Without the request that is served first everything from its batch on is different.
    let submit = first_served(config, &records);
    let mut journal = JournalWriter::new(&config);
    let mut expected = None;
    let mut scheduler = Scheduler::new(config).unwrap();
    for (at, record) in records.iter().enumerate() {
        if let Record::Input(input) = record {
            journal.input(input);
            if let (Answer::Batch(batch), true) = (input.apply(&mut scheduler), at != submit) {
                journal.batch(&batch);
                expected.get_or_insert_with(|| batch.id());
            }
        }
    }
    assert_eq!(replay(&journal.take()).unwrap().difference, None, "as it is");

    let mut journal = JournalWriter::new(&config);
    let mut scheduler = Scheduler::new(config).unwrap();
    for (at, record) in records.iter().enumerate() {
        if let Record::Input(input) = record {
            let answer = input.apply(&mut scheduler);
            if at == submit {
                continue;
            }
            journal.input(input);
            if let Answer::Batch(batch) = answer {
                journal.batch(&batch);
            }
        }
    }
    let difference = replay(&journal.take()).unwrap().difference;
    assert!(
        matches!(difference, Some(Difference::Batch(batch) | Difference::Missing(batch)) if Some(batch) >= expected),
        "{difference:?}, first batch {expected:?}"
    );
}

/// The submit of the request that stands first in the first batch.
fn first_served(config: Config, records: &[Record]) -> usize {
    let mut scheduler = Scheduler::new(config).unwrap();
    for (at, record) in records.iter().enumerate() {
        let Record::Input(input) = record else { continue };
        if let Answer::Batch(batch) = input.apply(&mut scheduler) {
            let first = batch.rows()[0].request;
            return records[..at]
                .iter()
                .rposition(|record| matches!(record, Record::Input(Input::Submit(request)) if request.id == first))
                .unwrap();
        }
    }
    panic!("no batch in the example")
}

#[test]
fn cut_off_and_damaged_journals_are_found() {
    let (bytes, _) = example();
    assert_eq!(replay(b"").unwrap_err(), JournalError::NoJournal);
    assert_eq!(replay(b"cppsched\x01rest").unwrap_err(), JournalError::Version { found: 1, known: 2 });
    let mut ends = 0;
    for cut in 9..bytes.len() {
        match replay(&bytes[..cut]) {
            Ok(replay) => {
                assert_eq!(replay.difference, None);
                ends += 1;
            }
            Err(JournalError::CutOff { at }) => assert!(at <= cut),
            Err(error) => panic!("{cut} of {} bytes: {error}", bytes.len()),
        }
    }
    assert!(ends > 100, "a journal can be read up to the end of each record");
    for at in 9..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(replay(&damaged).is_err(), "byte {at}");
    }
}

#[test]
fn a_journal_does_not_allocate_what_it_only_claims() {
    let mut config = Config::default();
    config.num_blocks = u32::MAX - 1;
    config.max_model_len = Some(10);
    assert_eq!(
        replay(&JournalWriter::new(&config).take()).unwrap_err(),
        JournalError::TooLarge { num_blocks: u32::MAX - 1, most_blocks: 1 << 26 }
    );
    config.num_blocks = 1025;
    let journal = JournalWriter::new(&config).take();
    let refused = replay_within(&journal, None, 1024).unwrap_err();
    assert_eq!(refused, JournalError::TooLarge { num_blocks: 1025, most_blocks: 1024 });
    assert_eq!(replay_within(&journal, None, 1025).unwrap().inputs, 0);
    // A snapshot asks for memory as a configuration does.
    let journal = JournalWriter::from_snapshot(&Scheduler::new(config).unwrap(), Decisions::default()).take();
    let refused = replay_within(&journal, None, 1024).unwrap_err();
    assert_eq!(refused, JournalError::TooLarge { num_blocks: 1025, most_blocks: 1024 });
    assert_eq!(replay_within(&journal, None, 1025).unwrap().inputs, 0);
}

#[test]
fn a_batch_of_the_right_number_that_holds_something_else_is_a_difference() {
    let mut config = Config::default();
    config.num_blocks = 16;
    let (mut written, mut other) = (Scheduler::new(config).unwrap(), Scheduler::new(config).unwrap());
    let submit = |id| Input::Submit(Box::new(Request::new(RequestId(id), vec![7; 20], 2)));
    let mut journal = JournalWriter::new(&config);
    journal.apply(&submit(1), &mut written);
    other.submit(Request::new(RequestId(2), vec![7; 20], 2)).unwrap();
    // The journal says that the first batch ran request 2.
    journal.input(&Input::Schedule);
    let Schedule::Batch(batch) = other.schedule() else { panic!("a batch") };
    journal.batch(&batch);
    assert_eq!(batch.id(), BatchId(0));
    assert_eq!(replay(&journal.take()).unwrap().difference, Some(Difference::Batch(BatchId(0))));
}

#[test]
fn a_fork_is_written_as_the_request_that_it_once_was() {
    let mut request = Request::new(RequestId(2), Vec::new(), 4);
    (request.priority, request.stop_tokens, request.gates) = (-3, vec![7], Gate::Grammar.into());
    let input = |request: &Request| Input::Fork { parent: RequestId(1), child: Box::new(Fork::like(request, request.id)) };
    let written = postcard::to_allocvec(&input(&request)).unwrap();
    let as_request = postcard::to_allocvec(&request).unwrap();
    assert!(written.ends_with(&as_request));
    // What a fork had from its parent may stand in an old journal, and is not looked at; a pooling fork was always refused.
    let old = |change: fn(&mut Request)| {
        let mut old = request.clone();
        change(&mut old);
        let head = &written[..written.len() - as_request.len()];
        postcard::from_bytes::<Input>(&[head, &postcard::to_allocvec(&old).unwrap()].concat())
    };
    assert_eq!(old(|r| (r.prompt, r.adapter) = (Prompt::Tokens(vec![1, 2]), Some(3))), Ok(input(&request)));
    assert!(old(|r| r.pooling = true).is_err());
}
