//! How much of a prompt fits beside what a batch has already, where a batch's tokens and the histories of its chunks take workspace.

use cpp_sched::{Attos, Chunking, Config, CostModel, Request, RequestId, Sample, Scheduler, Workspace};

fn config(bytes: u64, per_token: u64, per_history: u64, max_batch_tokens: u32) -> Config {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1);
    let mut config = Config::default();
    // A target that nothing comes near: it is the workspace that cuts.
    config.chunking = Chunking::Cost { target_ns: 1_000_000_000, align: 1, min: 1 };
    (config.cost, config.max_batch_tokens) = (Some(cost), max_batch_tokens);
    config.workspace = Some(Workspace { bytes, per_token, per_history });
    config
}

/// One batch from schedule to result: (request, start, end) of its rows.
fn step(scheduler: &mut Scheduler) -> Vec<(u64, u32, u32)> {
    let batch = scheduler.schedule().batch().expect("a batch").id();
    let rows = scheduler.oldest_in_flight().unwrap().rows().to_vec();
    let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[7] }).collect();
    scheduler.complete(batch, &samples).unwrap();
    scheduler.check_invariants().unwrap();
    rows.iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect()
}

fn submit(scheduler: &mut Scheduler, id: u64, prompt: u32) {
    // No two begin alike: none finds the other's blocks.
    let prompt = (0..prompt).map(|token| token + 10_000 * id as u32).collect();
    scheduler.submit(Request::new(RequestId(id), prompt, 100)).unwrap();
}

#[test]
fn tokens_and_histories_of_a_batch_share_the_workspace() {
    let mut scheduler = Scheduler::new(config(1000, 10, 1, 1000)).unwrap();
    submit(&mut scheduler, 1, 60);
    submit(&mut scheduler, 2, 230);
    // 600 of 1000 bytes are taken.
    assert_eq!(step(&mut scheduler), [(1, 0, 60), (2, 0, 40)]);
    // The decode takes 10, the history 40: 950 are left.
    assert_eq!(step(&mut scheduler), [(1, 60, 61), (2, 40, 135)]);
    assert_eq!(step(&mut scheduler), [(1, 61, 62), (2, 135, 220)]);
    submit(&mut scheduler, 3, 500);
    // 11 tokens, and the 220 of another's history: 670 are left.
    assert_eq!(step(&mut scheduler), [(1, 62, 63), (2, 220, 230), (3, 0, 67)]);
}

#[test]
fn tokens_that_take_nothing_are_as_many_as_one_likes_until_histories_have_taken_all() {
    let mut scheduler = Scheduler::new(config(50, 0, 1, 30)).unwrap();
    submit(&mut scheduler, 1, 200);
    let ends: Vec<_> = (0..4).map(|_| step(&mut scheduler)[0].2).collect();
    // What fits with nothing goes alone, the least that there is.
    assert_eq!(ends, [30, 60, 61, 62]);
}
