//! Three stages of which one fails, as timelines worked out by hand: every step of every piece, and where each stage's time went.

use cpp_exec_mock::pipeline::{Cause, Links, Pace, Piece, Pipe, StageTime, Window};
use cpp_sched::BatchId;

const PIECE: Piece<'_> = Piece { not_before_ns: 0, stage_ns: &[2, 3, 2], transmit_ns: 0, latency_ns: 0 };

fn pipe() -> Pipe {
    let mut pipe = Pipe::new(3, Links::default(), 0, 0);
    pipe.work_came(0);
    pipe
}

fn push(pipe: &mut Pipe, batch: u64, piece: &Piece<'_>) -> (Vec<(u64, u64)>, u64) {
    let passage = pipe.push(BatchId(batch), piece);
    (passage.steps.iter().map(|step| (step.start_ns, step.end_ns)).collect(), passage.back_ns)
}

/// Ends the run; the parts of each stage's time that are not 0.
fn parts(pipe: &mut Pipe, end_ns: u64) -> Vec<Vec<(&'static str, u64)>> {
    while pipe.take_result(end_ns).is_some() {}
    pipe.work_ended(end_ns);
    let (times, _) = pipe.finish(0, end_ns);
    assert!(times.iter().all(|time| time.sum_ns() == end_ns), "{times:?}");
    times.iter().map(|time: &StageTime| time.parts().filter(|part| part.1 > 0).collect()).collect()
}

#[test]
fn a_stage_that_stands_still_makes_those_behind_it_wait() {
    // Without the stall: stage 0 [0,2][2,4][4,6], stage 1 [2,5][5,8][8,11], stage 2 [5,7][8,10][11,13].
    let mut pipe = pipe();
    pipe.disturb(1, Window { from_ns: 6, to_ns: 10, pace: Pace::Stopped });
    assert_eq!(push(&mut pipe, 0, &PIECE).0, [(0, 2), (2, 5), (5, 7)]);
    assert_eq!(push(&mut pipe, 1, &PIECE).0, [(2, 4), (5, 12), (12, 14)]);
    assert_eq!(push(&mut pipe, 2, &PIECE).0, [(4, 6), (12, 15), (15, 17)]);
    assert_eq!(
        parts(&mut pipe, 17),
        [
            vec![("busy", 6), ("drain", 11)],
            vec![("busy", 9), ("fill", 2), ("drain", 2), ("fault", 4)],
            // Of the gap from 7 to 12 four are the stall's, one is there without it.
            vec![("busy", 6), ("fill", 5), ("upstream", 2), ("fault", 4)],
        ]
    );
}

#[test]
fn a_stage_at_half_speed_takes_twice_as_long() {
    let mut pipe = pipe();
    pipe.disturb(1, Window { from_ns: 5, to_ns: 100, pace: Pace::Slower(2000) });
    push(&mut pipe, 0, &PIECE);
    assert_eq!(push(&mut pipe, 1, &PIECE).0, [(2, 4), (5, 11), (11, 13)]);
    assert_eq!(push(&mut pipe, 2, &PIECE).0, [(4, 6), (11, 17), (17, 19)]);
    assert_eq!(
        parts(&mut pipe, 19),
        [
            vec![("busy", 6), ("drain", 13)],
            vec![("busy", 9), ("fill", 2), ("drain", 2), ("fault", 6)],
            vec![("busy", 6), ("fill", 5), ("upstream", 2), ("fault", 6)],
        ]
    );
}

#[test]
fn what_is_in_a_pipeline_that_fails_is_lost_and_the_rest_of_the_time_is_the_faults() {
    let mut pipe = pipe();
    push(&mut pipe, 0, &PIECE);
    push(&mut pipe, 1, &PIECE);
    // At 9: batch 0 was back at 7; batch 1 has run [2,4] and [5,8], and one of two on stage 2.
    assert_eq!(pipe.take_result(9), Some(BatchId(0)));
    assert_eq!((pipe.lose_oldest(9), pipe.lose_oldest(9)), (Some(BatchId(1)), None));
    pipe.waits(7, Cause::Dependency);
    let before = pipe.outage(9, 20);
    // Nothing was under way to stages 0 and 1 any more.
    assert_eq!(before.iter().map(|slice| (slice.stage, slice.from_ns, slice.to_ns)).collect::<Vec<_>>(), [(0, 4, 7), (0, 7, 9), (1, 8, 9)]);
    assert_eq!(push(&mut pipe, 2, &PIECE).0, [(20, 22), (22, 25), (25, 27)]);
    assert_eq!(
        parts(&mut pipe, 27),
        [
            vec![("busy", 6), ("drain", 5), ("dependency", 5), ("fault", 11)],
            vec![("busy", 9), ("fill", 2), ("drain", 2), ("dependency", 1), ("fault", 13)],
            // The way to it is filled a second time, from 20 to 25.
            vec![("busy", 5), ("fill", 5), ("upstream", 1), ("fault", 16)],
        ]
    );
}

#[test]
fn a_transfer_that_never_ends_holds_up_what_is_behind_it() {
    let mut pipe = pipe();
    pipe.hang(0, 3);
    assert_eq!(push(&mut pipe, 0, &PIECE), (vec![(0, 2), (2, 5), (5, 7)], 7));
    assert_eq!(push(&mut pipe, 1, &PIECE).1, u64::MAX);
    assert_eq!(push(&mut pipe, 2, &PIECE), (vec![(4, 6), (u64::MAX, u64::MAX), (u64::MAX, u64::MAX)], u64::MAX));
    assert_eq!(pipe.hung_since_ns(), Some(4));
    assert_eq!(pipe.take_result(u64::MAX - 1), Some(BatchId(0)));
    assert_eq!(pipe.take_result(u64::MAX - 1), None);
    // Noticed at 14, and the link works again.
    assert_eq!((pipe.lose_oldest(14), pipe.lose_oldest(14), pipe.lose_oldest(14)), (Some(BatchId(1)), Some(BatchId(2)), None));
    pipe.outage(14, 14);
    assert_eq!(pipe.hung_since_ns(), None);
    assert_eq!(push(&mut pipe, 3, &PIECE).0, [(14, 16), (16, 19), (19, 21)]);
    assert_eq!(
        parts(&mut pipe, 21),
        [
            vec![("busy", 8), ("drain", 5), ("dependency", 8)],
            vec![("busy", 6), ("fill", 2), ("drain", 2), ("fault", 11)],
            vec![("busy", 4), ("fill", 5), ("fault", 12)],
        ]
    );
}

#[test]
fn a_result_that_is_late_comes_before_no_other() {
    let mut pipe = pipe();
    push(&mut pipe, 0, &PIECE);
    push(&mut pipe, 1, &PIECE);
    pipe.delay_result(30);
    assert_eq!((pipe.take_result(29), pipe.next_result_ns()), (None, Some(30)));
    assert_eq!((pipe.take_result(30), pipe.take_result(30)), (Some(BatchId(0)), Some(BatchId(1))));
}
