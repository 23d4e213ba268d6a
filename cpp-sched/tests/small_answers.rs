//! Questions that a caller asks and the kernel itself does not: what each answers, where it could be mistaken.

use std::error::Error;

use cpp_sched::driver::{Failure, GaveUp, Samples};
use cpp_sched::journal::{Answer, Decisions, Input, JournalReader, JournalWriter, replay};
use cpp_sched::wire::{Encoder, Mirror};
use cpp_sched::{
    Attos, BatchId, Chunking, CompleteError, Config, CostModel, Event, FinishReason, Layer, Mixer, Mlp, PolicyKind, Prompt, Request,
    RequestId, Sample, Schedule, Scheduler, WaitReason,
};

fn request(id: u64, prompt: u32) -> Request {
    Request::new(RequestId(id), (0..prompt).collect(), 4)
}

#[test]
fn samples_are_counted() {
    let mut samples = Samples::default();
    assert_eq!((samples.len(), samples.is_empty()), (0, true));
    samples.push(RequestId(1), &[]);
    assert_eq!((samples.len(), samples.is_empty()), (1, false));
    samples.push(RequestId(2), &[4, 5]);
    assert_eq!((samples.len(), samples.is_empty()), (2, false));
}

#[test]
fn a_failure_names_its_cause() {
    let executor = Failure::Executor(std::io::Error::other("the link is down"));
    assert_eq!(executor.source().unwrap().to_string(), "the link is down");
    let gave_up = GaveUp { failures: 3, cause: executor };
    assert!(gave_up.source().unwrap().to_string().contains("the link is down"));
    let result: Failure<std::io::Error> = Failure::Result(CompleteError::Unknown(BatchId(7)));
    assert_eq!(result.source().unwrap().to_string(), CompleteError::Unknown(BatchId(7)).to_string());
}

#[test]
fn reasons_to_wait_have_their_names() {
    let names = [
        (WaitReason::Runnable, "runnable"),
        (WaitReason::WaitingForResult, "waiting_for_result"),
        (WaitReason::Gated, "gated"),
        (WaitReason::NoBlocks, "no_blocks"),
        (WaitReason::BehindOthers, "behind_others"),
    ];
    for (reason, name) in names {
        assert_eq!(reason.as_str(), name);
    }
}

#[test]
fn only_attention_with_a_window_has_one() {
    let mlp = Mlp::gated(64);
    assert_eq!(Layer::new(32, Mixer::attention(2, 2, 16, Some(128)), mlp).window(), Some(128));
    assert_eq!(Layer::new(32, Mixer::attention(2, 2, 16, None), mlp).window(), None);
    assert_eq!(Layer::new(32, Mixer::linear(2, 16, 16, 2, 8), mlp).window(), None);
}

#[test]
fn a_target_for_chunks_is_written_with_its_grid() {
    let chunking = Chunking::Cost { target_ns: 5, align: 32, min: 8 };
    let written = serde_json::to_value(chunking).unwrap();
    assert_eq!((&written["target_ns"], &written["align"], &written["min"]), (&5.into(), &32.into(), &8.into()), "{written}");
    assert_eq!(serde_json::from_value::<Chunking>(written).unwrap(), chunking);
}

#[test]
fn who_is_relegated_can_be_asked() {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1_000_000);
    let mut config = Config::default();
    (config.policy, config.cost, config.relegation, config.max_batch_tokens) = (PolicyKind::Edf, Some(cost), true, 16);
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.tick(1);
    // It takes 100 ms, and has 10; the other has time.
    for (id, slo) in [(1, 10_000_000), (2, 900_000_000)] {
        let mut request = request(id, 100);
        request.ttft_slo_ns = Some(slo);
        scheduler.submit(request).unwrap();
    }
    assert_eq!(scheduler.is_relegated(RequestId(1)), Some(false), "nobody has been judged");
    assert!(scheduler.schedule().batch().is_some());
    let asked = [1, 2, 3].map(|id| scheduler.is_relegated(RequestId(id)));
    assert_eq!(asked, [Some(true), Some(false), None]);
}

#[test]
fn the_rows_of_a_plan_are_read_from_both_ends() {
    let config = Config::default();
    let (mut scheduler, mut encoder, mut mirror) = (Scheduler::new(config).unwrap(), Encoder::new(&config), Mirror::new(&config));
    for id in [5, 6, 7] {
        scheduler.submit(request(id, 3)).unwrap();
    }
    let mut message = Vec::new();
    encoder.encode(&scheduler.schedule().batch().unwrap(), &mut message).unwrap();
    let plan = mirror.apply(&message).unwrap().plan().unwrap();
    assert_eq!((plan.len(), plan.is_empty()), (3, false));
    assert!(plan.rows().map(|row| row.request().0).eq([5, 6, 7]));
    assert!(plan.rows().rev().map(|row| row.request().0).eq([7, 6, 5]));
    let mut handles: Vec<_> = plan.rows().map(|row| row.handle()).collect();
    handles.sort_unstable();
    handles.dedup();
    assert_eq!(handles.len(), 3, "each has a number of its own");
}

fn first_batch(scheduler: &mut Scheduler, decisions: &mut Decisions) {
    match scheduler.schedule() {
        Schedule::Batch(batch) => decisions.add(&batch),
        Schedule::Empty(reason) => panic!("no batch: {reason:?}"),
    }
}

#[test]
fn decisions_are_equal_if_the_batches_were() {
    let run = |prompt: u32| {
        let mut scheduler = Scheduler::new(Config::default()).unwrap();
        scheduler.submit(request(1, prompt)).unwrap();
        let mut decisions = Decisions::default();
        first_batch(&mut scheduler, &mut decisions);
        decisions
    };
    assert!(run(40) == run(40));
    assert!(run(40) != run(41));
    assert!(run(40) != Decisions::default());
}

#[test]
fn a_loss_with_nothing_in_flight_is_refused_and_all_inputs_are_counted() {
    let config = Config::default();
    let mut scheduler = Scheduler::new(config).unwrap();
    let mut journal = JournalWriter::new(&config);
    let inputs = [Input::Fail, Input::Tick(5), Input::Submit(Box::new(request(1, 3))), Input::Schedule, Input::Fail, Input::Fail];
    let answers: Vec<_> = inputs
        .iter()
        .map(|input| match journal.apply(input, &mut scheduler) {
            Answer::Done => "done",
            Answer::Refused => "refused",
            Answer::Batch(_) => "batch",
            Answer::Empty(_) => "empty",
        })
        .collect();
    assert_eq!(answers, ["refused", "done", "done", "batch", "done", "refused"]);
    let replay = replay(&journal.take()).unwrap();
    assert_eq!((replay.inputs, replay.batches, replay.difference), (6, 1, None));
}

#[test]
fn a_journal_says_which_policy_it_needs() {
    let mut config = Config::default();
    config.policy = PolicyKind::Custom;
    let mut named = JournalWriter::with_policy(&config, "mine");
    assert_eq!(JournalReader::new(&named.take()).unwrap().start().policy_name(), Some("mine"));
    let mut plain = JournalWriter::new(&Config::default());
    assert_eq!(JournalReader::new(&plain.take()).unwrap().start().policy_name(), None);
}

#[test]
fn a_stop_token_ends_an_output_that_is_shorter_than_the_least_of_the_first() {
    let mut scheduler = Scheduler::new(Config::default()).unwrap();
    let mut first = request(1, 3);
    (first.session, first.min_tokens, first.stop_tokens) = (true, 3, vec![9]);
    scheduler.submit(first).unwrap();
    let run = |scheduler: &mut Scheduler, tokens: &[u32]| {
        for &token in tokens {
            let batch = scheduler.schedule().batch().unwrap().id();
            scheduler.complete(batch, &[Sample { request: RequestId(1), tokens: &[token] }]).unwrap();
            scheduler.check_invariants().unwrap();
        }
        let end = |event| if let Event::Paused { reason, .. } = event { Some(reason) } else { None };
        scheduler.events().find_map(end)
    };
    assert_eq!(run(&mut scheduler, &[9, 9, 9]), Some(FinishReason::Stop), "not before the third");
    scheduler.extend(RequestId(1), Prompt::Tokens(vec![5]), 2).unwrap();
    assert_eq!(run(&mut scheduler, &[4, 9]), Some(FinishReason::Stop), "at most two: the second may be one that stops");
}
