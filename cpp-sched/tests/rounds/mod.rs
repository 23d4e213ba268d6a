//! A batch, and its results, with the invariants checked behind each call.

use cpp_sched::{Batch, Sample, Schedule, Scheduler};

pub(crate) fn next(scheduler: &mut Scheduler) -> Batch {
    let Schedule::Batch(batch) = scheduler.schedule() else { panic!("no batch") };
    let batch = (*batch).clone();
    scheduler.check_invariants().unwrap();
    batch
}

pub(crate) fn complete(scheduler: &mut Scheduler, batch: &Batch) {
    let rows = batch.rows().iter().filter(|row| row.samples);
    let samples: Vec<_> = rows.map(|row| Sample { request: row.request, tokens: &[5] }).collect();
    scheduler.complete(batch.id(), &samples).unwrap();
    scheduler.check_invariants().unwrap();
}
