//! The pipeline against the closed form, the recurrence, and an event-by-event simulation that knows neither, to the nanosecond.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use cpp_exec_mock::pipeline::recurrence::{completions, makespan, makespan_equal_stages};
use cpp_exec_mock::pipeline::{Links, Passage, Piece, Pipe};
use cpp_sched::BatchId;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CASES: u64 = 4000;

/// When a stage ran a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start_ns: u64,
    end_ns: u64,
}

/// A pipeline without limits.
fn pipe(stages: u32, return_ns: u64) -> Pipe {
    Pipe::new(stages, Links::default(), return_ns, 0)
}

/// A batch as one piece, with a hop that is latency alone.
fn push<'a>(pipe: &'a mut Pipe, batch: u64, not_before_ns: u64, stage_ns: &[u64], latency_ns: u64) -> Passage<'a> {
    pipe.push(BatchId(batch), &Piece { not_before_ns, stage_ns, transmit_ns: 0, latency_ns })
}

fn spans(passage: &Passage<'_>) -> Vec<Span> {
    passage.steps.iter().map(|step| Span { start_ns: step.start_ns, end_ns: step.end_ns }).collect()
}

/// One batch of a random case.
struct Job {
    not_before: u64,
    stage_ns: Vec<u64>,
    hop: u64,
}

/// Times of every batch on every stage, by running events in the order of time: queues between stages, a stage takes the head of its queue
/// when it is idle. Slow and obvious.
fn event_by_event(jobs: &[Job], stages: usize) -> Vec<Vec<Span>> {
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        Done { job: usize, stage: usize },
        Arrive { job: usize, stage: usize },
    }
    let mut spans = vec![vec![Span::default(); stages]; jobs.len()];
    let mut queues = vec![VecDeque::new(); stages];
    let mut running = vec![false; stages];
    let mut events = BinaryHeap::new();
    // Stage 0 takes batches in the order in which they were pushed, even if a later one may start earlier.
    let mut entry = 0;
    for (job, j) in jobs.iter().enumerate() {
        entry = j.not_before.max(entry);
        events.push(Reverse((entry, Event::Arrive { job, stage: 0 })));
    }
    while let Some(Reverse((now, event))) = events.pop() {
        let stage = match event {
            Event::Done { job, stage } => {
                running[stage] = false;
                if stage + 1 < stages {
                    events.push(Reverse((now + jobs[job].hop, Event::Arrive { job, stage: stage + 1 })));
                }
                stage
            }
            Event::Arrive { job, stage } => {
                queues[stage].push_back(job);
                stage
            }
        };
        if !running[stage]
            && let Some(job) = queues[stage].pop_front()
        {
            let end_ns = now + jobs[job].stage_ns[stage];
            spans[job][stage] = Span { start_ns: now, end_ns };
            running[stage] = true;
            events.push(Reverse((end_ns, Event::Done { job, stage })));
        }
    }
    spans
}

#[test]
fn equal_stages_meet_the_closed_form() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for case in 0..CASES {
        let stages = rng.random_range(1..=17u32);
        let hop = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..1_000_000) };
        let times: Vec<u64> = (0..rng.random_range(1..60)).map(|_| rng.random_range(0..1_000_000_000)).collect();
        let batches: Vec<Vec<u64>> = times.iter().map(|&t| vec![t; stages as usize]).collect();
        let exact = times.iter().sum::<u64>() + u64::from(stages - 1) * (times.iter().max().unwrap() + hop);
        assert_eq!(makespan_equal_stages(&times, stages, hop), exact, "case {case}");
        assert_eq!(makespan(&batches, hop), exact, "case {case}: {stages} stages, hop {hop}, {times:?}");
        let mut pipe = pipe(stages, 0);
        let last = batches.iter().enumerate().map(|(j, b)| push(&mut pipe, j as u64, 0, b, hop).back_ns).last();
        assert_eq!(last, Some(exact), "case {case}");
    }
}

#[test]
fn the_order_of_the_sizes_does_not_matter_on_equal_stages() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for _ in 0..500 {
        let mut times: Vec<u64> = (0..rng.random_range(1..30)).map(|_| rng.random_range(1..1000)).collect();
        let span = |times: &[u64]| makespan(&times.iter().map(|&t| [t; 5]).collect::<Vec<_>>(), 3);
        let before = span(&times);
        times.sort_unstable();
        assert_eq!(span(&times), before);
        times.reverse();
        assert_eq!(span(&times), before);
    }
}

#[test]
fn any_stages_meet_the_recurrence() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for case in 0..CASES {
        let stages = rng.random_range(1..=9usize);
        let (hop, back) = (rng.random_range(0..50), rng.random_range(0..50));
        let batches: Vec<Vec<u64>> =
            (0..rng.random_range(0..40)).map(|_| (0..stages).map(|_| rng.random_range(0..200)).collect()).collect();
        let mut pipe = pipe(stages as u32, back);
        let pushed: Vec<u64> = batches.iter().enumerate().map(|(j, b)| push(&mut pipe, j as u64, 0, b, hop).back_ns - back).collect();
        assert_eq!(pushed, completions(&batches, hop), "case {case}");
        let end = pushed.last().map_or(0, |last| last + back);
        while pipe.take_result(end).is_some() {}
        let (times, _) = pipe.finish(0, end);
        for s in 0..stages {
            assert_eq!(times[s].sum_ns(), end, "case {case}, stage {s}");
            assert_eq!(times[s].busy_ns, batches.iter().map(|b| b[s]).sum::<u64>(), "case {case}, stage {s}");
        }
    }
}

#[test]
fn batches_that_come_later_meet_an_event_by_event_simulation() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for case in 0..CASES {
        let stages = rng.random_range(1..=6usize);
        let mut clock = 0;
        let jobs: Vec<Job> = (0..rng.random_range(1..30))
            .map(|_| {
                // Mostly forward, now and then a step back: a batch that could start before the one pushed before it.
                clock += rng.random_range(0..150);
                let not_before = if rng.random_bool(0.2) { clock / 2 } else { clock };
                // A wire is in order as well: with a hop per batch a later, shorter hop must not overtake on the way.
                let stage_ns = (0..stages).map(|_| rng.random_range(1..100)).collect();
                Job { not_before, stage_ns, hop: 7 }
            })
            .collect();
        let expected = event_by_event(&jobs, stages);
        let mut pipe = pipe(stages as u32, 11);
        for (j, job) in jobs.iter().enumerate() {
            let passage = push(&mut pipe, j as u64, job.not_before, &job.stage_ns, job.hop);
            assert_eq!(spans(&passage), expected[j], "case {case}, batch {j}");
            assert_eq!(passage.back_ns, expected[j][stages - 1].end_ns + 11);
        }
    }
}

#[test]
fn results_come_back_in_order_and_not_before_their_time() {
    let mut pipe = pipe(3, 4);
    let first = push(&mut pipe, 7, 0, &[5, 5, 5], 0).back_ns;
    let second = push(&mut pipe, 8, 0, &[1, 1, 1], 0).back_ns;
    assert_eq!((first, second), (19, 20));
    assert_eq!(pipe.in_flight(), 2);
    assert_eq!(pipe.take_result(18), None);
    assert_eq!(pipe.take_result(20), Some(BatchId(7)));
    assert_eq!(pipe.take_result(20), Some(BatchId(8)));
    assert_eq!((pipe.take_result(u64::MAX), pipe.next_result_ns()), (None, None));
}

#[test]
fn a_batch_that_waits_for_a_token_holds_up_those_behind_it() {
    // Stages run batches in order: batch 1 may not start before 100, so batch 2 does not either.
    let mut pipe = pipe(2, 0);
    push(&mut pipe, 0, 0, &[10, 10], 0);
    assert_eq!(spans(&push(&mut pipe, 1, 100, &[10, 10], 0))[0], Span { start_ns: 100, end_ns: 110 });
    assert_eq!(spans(&push(&mut pipe, 2, 0, &[10, 10], 0))[0], Span { start_ns: 110, end_ns: 120 });
}

#[test]
fn times_at_the_end_of_the_clock_saturate() {
    let mut pipe = pipe(2, u64::MAX);
    assert_eq!(push(&mut pipe, 0, u64::MAX - 1, &[u64::MAX, 3], u64::MAX).back_ns, u64::MAX);
    assert_eq!(makespan(&[[u64::MAX, u64::MAX]; 3], u64::MAX), u64::MAX);
    assert_eq!(makespan_equal_stages(&[u64::MAX, 1], 3, 9), u64::MAX);
    assert_eq!((makespan::<[u64; 2]>(&[], 5), makespan_equal_stages(&[], 3, 5), makespan_equal_stages(&[4], 0, 5)), (0, 0, 0));
}
