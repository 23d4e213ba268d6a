//! Limits of a request and of a batch that have a number each: adapters, rows of a drafter, outputs at least, model length.

use cpp_sched::{Batch, Config, ConfigError, Event, FinishReason, Request, RequestId, Sample, Schedule, Scheduler, SubmitError};

fn next(scheduler: &mut Scheduler) -> Batch {
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("no batch") };
    (*batch).clone()
}

fn complete(scheduler: &mut Scheduler, batch: &Batch, token: u32) {
    let rows = batch.rows().iter().filter(|row| row.samples);
    let tokens = [token];
    let samples: Vec<_> = rows.map(|row| Sample { request: row.request, tokens: &tokens }).collect();
    scheduler.complete(batch.id(), &samples).unwrap();
    scheduler.check_invariants().unwrap();
}

fn requests(batch: &Batch) -> Vec<u64> {
    batch.rows().iter().map(|row| row.request.0).collect()
}

#[test]
fn a_batch_holds_no_more_adapters_than_its_limit_and_none_is_blocked_by_it() {
    let mut config = Config::default();
    config.max_adapters_per_batch = Some(2);
    let mut scheduler = Scheduler::new(config).unwrap();
    for (id, adapter) in [(1, Some(7)), (2, Some(8)), (3, Some(9)), (4, Some(7)), (5, None)] {
        let mut request = Request::new(RequestId(id), vec![3; 5], 3);
        request.adapter = adapter;
        scheduler.submit(request).unwrap();
    }
    // Those whose adapter is in the batch already, or that have none, pass the one that waits.
    let batch = next(&mut scheduler);
    assert_eq!(requests(&batch), [1, 2, 4, 5]);
    complete(&mut scheduler, &batch, 1);
    // The same with decodes: adapter 9 comes when one of the others does not.
    let mut turns = Vec::new();
    while !scheduler.is_idle() {
        let batch = next(&mut scheduler);
        let adapters: std::collections::BTreeSet<_> =
            requests(&batch).into_iter().filter_map(|id| [7, 8, 9, 7].get(id as usize - 1)).collect();
        assert!(adapters.len() <= 2, "{adapters:?}");
        turns.push(requests(&batch));
        complete(&mut scheduler, &batch, 1);
    }
    assert!(turns.iter().any(|turn| turn.contains(&3)));
}

#[test]
fn each_row_takes_the_drafters_slots_from_the_budget() {
    let mut config = Config::default();
    (config.max_batch_tokens, config.draft_slots) = (12, 3);
    let mut scheduler = Scheduler::new(config).unwrap();
    for id in 1..=3 {
        scheduler.submit(Request::new(RequestId(id), vec![3; 2], 4)).unwrap();
    }
    // A row of 2 tokens takes 5 of 12: two whole ones, and nothing is left for a third (2 tokens, 3 of them the drafter's).
    let batch = next(&mut scheduler);
    assert_eq!(requests(&batch), [1, 2]);
    complete(&mut scheduler, &batch, 1);
    // A decode takes 4: two decodes leave 4, which a chunk of one token takes.
    let batch = next(&mut scheduler);
    let rows: Vec<_> = batch.rows().iter().map(|row| (row.request.0, row.num_scheduled_tokens)).collect();
    assert_eq!(rows, [(1, 1), (2, 1), (3, 1)]);
    // A chunk is never longer than what is left beside its own slots.
    let mut scheduler = Scheduler::new(config).unwrap();
    scheduler.submit(Request::new(RequestId(1), vec![3; 30], 1)).unwrap();
    assert_eq!(next(&mut scheduler).num_tokens(), 9);
    config.draft_slots = 12;
    assert_eq!(config.validate(), Err(ConfigError::TooLarge { field: "draft_slots", most: 11 }));
}

#[test]
fn no_stop_token_counts_before_min_tokens() {
    let mut scheduler = Scheduler::new(Config::default()).unwrap();
    let mut request = Request::new(RequestId(1), vec![3; 5], 8);
    (request.min_tokens, request.stop_tokens) = (3, vec![1]);
    scheduler.submit(request.clone()).unwrap();
    let mut outputs = 0;
    while !scheduler.is_idle() {
        let batch = next(&mut scheduler);
        complete(&mut scheduler, &batch, 1);
        outputs += 1;
    }
    assert_eq!(outputs, 3);
    let finished = Event::Finished { request: RequestId(1), reason: FinishReason::Stop };
    assert_eq!(scheduler.events().next_back(), Some(finished));
    request.min_tokens = 9;
    assert_eq!(scheduler.submit(request), Err(SubmitError::MinTokens(RequestId(1))));
}

#[test]
fn output_ends_at_the_model_length_and_a_prompt_leaves_room_for_one() {
    let mut config = Config::default();
    config.max_model_len = Some(8);
    let mut scheduler = Scheduler::new(config).unwrap();
    let error = scheduler.submit(Request::new(RequestId(1), vec![3; 8], 1)).unwrap_err();
    assert_eq!(error, SubmitError::TooLong { request: RequestId(1), prompt_tokens: 8, max_model_len: 8 });
    scheduler.submit(Request::new(RequestId(1), vec![3; 6], 100)).unwrap();
    let mut outputs = 0;
    while !scheduler.is_idle() {
        let batch = next(&mut scheduler);
        assert!(batch.rows().iter().all(|row| row.end() < 8), "the last output is never run");
        complete(&mut scheduler, &batch, 1);
        outputs += 1;
    }
    assert_eq!(outputs, 2);
    assert_eq!(scheduler.events().next_back(), Some(Event::Finished { request: RequestId(1), reason: FinishReason::Length }));
}
