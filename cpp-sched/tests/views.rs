//! What a policy of the caller's sees of a request, from its submit over its chunks and its preemption to its next input.

use std::sync::{Arc, Mutex};

use cpp_sched::{Admission, Config, Policy, Prompt, Rank, Request, RequestId, RequestView, Role, Sample, Schedule, Scheduler};

#[derive(Debug, Default)]
struct Notes(Arc<Mutex<Vec<RequestView>>>);

impl Policy for Notes {
    fn name(&self) -> &str {
        "notes"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        self.0.lock().unwrap().push(*view);
        Rank::Key(i128::from(view.seq))
    }
}

/// (submit, priority, arrival, deadline, tenant, weight) and (clock, prompt, prompt left, work left, work in all, outputs).
type Fixed = (u64, i64, u64, Option<u64>, Option<u64>, u64);
type Moving = (u64, u32, u32, u64, u64, u32);

fn parts(view: &RequestView) -> (Fixed, Moving) {
    let v = view;
    let fixed = (v.seq, v.priority, v.arrival_ns, v.deadline_ns, v.tenant, v.weight_millionths);
    (fixed, (v.now_ns, v.prompt_tokens, v.prompt_left, v.work_left, v.work_total, v.outputs))
}

fn step(scheduler: &mut Scheduler) -> Vec<(u32, u32)> {
    let rows = match scheduler.schedule() {
        Schedule::Batch(batch) => batch.rows().iter().map(|row| (row.num_computed_tokens, row.end())).collect(),
        Schedule::Empty(reason) => panic!("no batch: {reason:?}"),
    };
    let batch = scheduler.oldest_in_flight().unwrap().clone();
    let samples: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[7] }).collect();
    scheduler.complete(batch.id(), &samples).unwrap();
    scheduler.check_invariants().unwrap();
    rows
}

#[test]
fn a_policy_sees_what_the_request_said_and_what_is_left_of_it() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = || parts(views.lock().unwrap().last().expect("it was asked"));
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_batch_tokens) = (4, 64, 6);
    let mut scheduler = Scheduler::with_policy(config, Box::new(Notes(views.clone()))).unwrap();
    scheduler.tick(50);
    scheduler.submit(Request::new(RequestId(1), vec![1; 3], 1)).unwrap();
    assert_eq!(seen(), ((0, 0, 50, None, None, 1_000_000), (50, 3, 3, 3, 3, 0)), "what was not said");

    let mut request = Request::new(RequestId(2), vec![5; 10], 3);
    (request.priority, request.arrival_ns, request.tenant, request.session) = (-4, Some(20), Some(77), true);
    (request.ttft_slo_ns, request.weight_millionths) = (Some(1000), 2_500_000);
    scheduler.submit(request).unwrap();
    let said = |arrival, deadline| (1, -4, arrival, Some(deadline), Some(77), 2_500_000);
    assert_eq!(seen(), (said(20, 1020), (50, 10, 10, 10, 10, 0)));

    // Three tokens of its prompt beside the other request's, then six, then one.
    scheduler.tick(60);
    assert_eq!(step(&mut scheduler), [(0, 3), (0, 3)]);
    assert_eq!(seen(), (said(20, 1020), (60, 10, 7, 7, 10, 0)));
    scheduler.tick(70);
    assert_eq!(step(&mut scheduler), [(3, 9)]);
    assert_eq!(seen(), (said(20, 1020), (70, 10, 1, 1, 10, 0)));
    for row in [(9, 10), (10, 11), (11, 12)] {
        assert_eq!(step(&mut scheduler), [row]);
    }

    // 13 tokens are known, 12 of them are computed; five are new.
    scheduler.tick(100);
    scheduler.extend(RequestId(2), Prompt::Tokens(vec![6; 5]), 2).unwrap();
    assert_eq!(seen(), (said(100, 1100), (100, 18, 6, 6, 18, 0)), "its arrival and its target count from its input");
    assert_eq!(step(&mut scheduler), [(12, 18)]);
    assert_eq!(step(&mut scheduler), [(18, 19)]);
    assert!(scheduler.abort(RequestId(2)).is_applied());
    assert!(scheduler.is_idle());
}

#[test]
fn a_prefill_instance_sets_nothing_aside_for_outputs_that_another_one_makes() {
    let together = |role| {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.role, config.admission) = (4, 4, role, Admission::NoEvict);
        let mut scheduler = Scheduler::new(config).unwrap();
        for id in 1..=2 {
            scheduler.submit(Request::new(RequestId(id), vec![1; 8], 1000)).unwrap();
        }
        scheduler.schedule().batch().map(|batch| batch.rows().len())
    };
    assert_eq!([Role::Prefill, Role::Unified].map(together), [Some(2), Some(1)]);
}

#[test]
fn what_is_told_of_a_request_and_a_batch_is_what_happened() {
    let mut config = Config::default();
    (config.block_size, config.num_blocks, config.max_batch_tokens) = (4, 64, 6);
    let mut scheduler = Scheduler::new(config).unwrap();
    let id = RequestId(4);
    assert_eq!((scheduler.num_output_tokens(id), scheduler.num_computed_tokens(id)), (None, None));
    scheduler.submit(Request::new(id, vec![1; 8], 3)).unwrap();
    for (now, outputs, computed) in [(7, 0, 6), (9, 1, 8), (13, 2, 9)] {
        scheduler.tick(now);
        assert!(scheduler.schedule().batch().is_some());
        assert_eq!(scheduler.oldest_in_flight().unwrap().scheduled_ns(), now);
        let batch = scheduler.oldest_in_flight().unwrap().clone();
        let samples: Vec<_> =
            batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[7] }).collect();
        scheduler.complete(batch.id(), &samples).unwrap();
        assert_eq!((scheduler.num_output_tokens(id), scheduler.num_computed_tokens(id)), (Some(outputs), Some(computed)));
    }
}
