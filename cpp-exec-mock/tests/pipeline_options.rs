//! Three stages, and for each option of the links a timeline worked out by hand: every step of every piece, and where each stage's time went.

use cpp_exec_mock::pipeline::{Cause, Links, Piece, Pipe, Transfer};
use cpp_sched::BatchId;

/// Runs equal pieces that are all there at 0, as batches of their own, and checks (start, end) of each on each stage, by stage; then the causes.
fn check(links: Links, pieces: usize, piece: &Piece<'_>, spans: [&[(u64, u64)]; 3], causes: [&[(&str, u64)]; 3]) {
    let mut pipe = Pipe::new(3, links, 0, 0);
    pipe.work_came(0);
    let mut back_ns = 0;
    for j in 0..pieces {
        let passage = pipe.push(BatchId(j as u64), piece);
        let steps: Vec<_> = passage.steps.iter().map(|step| (step.start_ns, step.end_ns)).collect();
        assert_eq!(steps, spans.map(|stage| stage[j]), "piece {j}");
        back_ns = passage.back_ns;
    }
    while pipe.take_result(back_ns).is_some() {}
    pipe.work_ended(back_ns);
    let (times, _) = pipe.finish(0, back_ns);
    for (s, time) in times.iter().enumerate() {
        let parts: Vec<_> = time.parts().filter(|part| part.1 > 0).collect();
        assert_eq!(parts, causes[s], "stage {s}");
        assert_eq!(time.sum_ns(), back_ns, "stage {s}");
    }
}

const PIECE: Piece<'_> = Piece { not_before_ns: 0, stage_ns: &[2, 3, 2], transmit_ns: 0, latency_ns: 1 };

#[test]
fn nothing_in_the_way() {
    check(
        Links::default(),
        3,
        &Piece { latency_ns: 0, ..PIECE },
        [&[(0, 2), (2, 4), (4, 6)], &[(2, 5), (5, 8), (8, 11)], &[(5, 7), (8, 10), (11, 13)]],
        [&[("busy", 6), ("drain", 7)], &[("busy", 9), ("fill", 2), ("drain", 2)], &[("busy", 6), ("fill", 5), ("upstream", 2)]],
    );
}

#[test]
fn overlapped_hops_cost_the_first_piece_alone() {
    check(
        Links::default(),
        3,
        &PIECE,
        [&[(0, 2), (2, 4), (4, 6)], &[(3, 6), (6, 9), (9, 12)], &[(7, 9), (10, 12), (13, 15)]],
        [&[("busy", 6), ("drain", 9)], &[("busy", 9), ("fill", 3), ("drain", 3)], &[("busy", 6), ("fill", 7), ("upstream", 2)]],
    );
}

#[test]
fn a_blocking_send_holds_the_stage_until_its_output_has_arrived() {
    check(
        Links { sends: Transfer::Blocking, ..Links::default() },
        3,
        &PIECE,
        [&[(0, 2), (3, 5), (6, 8)], &[(3, 6), (7, 10), (11, 14)], &[(7, 9), (11, 13), (15, 17)]],
        [
            &[("busy", 6), ("drain", 8), ("communication", 3)],
            &[("busy", 9), ("fill", 3), ("drain", 2), ("communication", 3)],
            // Of each gap of 2 one is due to the send before it on stage 1, and one to its longer run.
            &[("busy", 6), ("fill", 7), ("communication", 2), ("upstream", 2)],
        ],
    );
}

#[test]
fn a_blocking_receive_begins_when_the_stage_is_idle() {
    check(
        Links { receives: Transfer::Blocking, ..Links::default() },
        3,
        &PIECE,
        [&[(0, 2), (2, 4), (4, 6)], &[(3, 6), (7, 10), (11, 14)], &[(7, 9), (11, 13), (15, 17)]],
        [
            &[("busy", 6), ("drain", 11)],
            &[("busy", 9), ("fill", 2), ("drain", 3), ("communication", 3)],
            &[("busy", 6), ("fill", 5), ("communication", 6)],
        ],
    );
}

#[test]
fn both_blocking_is_a_rendezvous() {
    check(
        Links { sends: Transfer::Blocking, receives: Transfer::Blocking, buffer: None },
        3,
        &PIECE,
        [&[(0, 2), (3, 5), (8, 10)], &[(3, 6), (8, 11), (13, 16)], &[(7, 9), (12, 14), (17, 19)]],
        [
            &[("busy", 6), ("drain", 6), ("communication", 7)],
            &[("busy", 9), ("fill", 2), ("drain", 2), ("communication", 6)],
            &[("busy", 6), ("fill", 5), ("communication", 8)],
        ],
    );
}

#[test]
fn a_full_buffer_holds_the_stage_before_it() {
    let piece = Piece { not_before_ns: 0, stage_ns: &[1, 4, 1], transmit_ns: 0, latency_ns: 0 };
    let later: [&[(u64, u64)]; 2] = [&[(1, 5), (5, 9), (9, 13), (13, 17)], &[(5, 6), (9, 10), (13, 14), (17, 18)]];
    // While the first runs on stage 1 and the second waits there, the third stays on stage 0 until 5, the fourth until 9.
    check(
        Links { buffer: Some(1), ..Links::default() },
        4,
        &piece,
        [&[(0, 1), (1, 2), (2, 3), (5, 6)], later[0], later[1]],
        [
            &[("busy", 4), ("drain", 9), ("downstream", 5)],
            &[("busy", 16), ("fill", 1), ("drain", 1)],
            &[("busy", 4), ("fill", 5), ("upstream", 9)],
        ],
    );
    check(
        Links::default(),
        4,
        &piece,
        [&[(0, 1), (1, 2), (2, 3), (3, 4)], later[0], later[1]],
        [&[("busy", 4), ("drain", 14)], &[("busy", 16), ("fill", 1), ("drain", 1)], &[("busy", 4), ("fill", 5), ("upstream", 9)]],
    );
}

#[test]
fn a_link_carries_one_transmission_at_a_time() {
    check(
        Links::default(),
        2,
        &Piece { not_before_ns: 0, stage_ns: &[1, 1, 1], transmit_ns: 3, latency_ns: 1 },
        [&[(0, 1), (1, 2)], &[(5, 6), (8, 9)], &[(10, 11), (13, 14)]],
        [
            &[("busy", 2), ("drain", 12)],
            &[("busy", 2), ("fill", 5), ("drain", 5), ("communication", 2)],
            &[("busy", 2), ("fill", 10), ("communication", 2)],
        ],
    );
}

#[test]
fn what_stage_0_waits_for_is_what_the_others_wait_for() {
    let mut pipe = Pipe::new(3, Links::default(), 5, 0);
    let piece = |not_before_ns| Piece { not_before_ns, stage_ns: &[10, 10, 10], transmit_ns: 0, latency_ns: 0 };
    pipe.work_came(0);
    pipe.waits(0, Cause::Scheduler);
    assert_eq!(pipe.push(BatchId(0), &piece(4)).back_ns, 39);
    // The next one needs the result of the first, and then a decision of 4.
    pipe.waits(4, Cause::Dependency);
    pipe.waits(39, Cause::Scheduler);
    assert_eq!(pipe.push(BatchId(1), &piece(43)).back_ns, 78);
    assert_eq!((pipe.take_result(39), pipe.take_result(78)), (Some(BatchId(0)), Some(BatchId(1))));
    pipe.work_ended(78);
    let (times, _) = pipe.finish(0, 78);
    for (s, time) in (0..).zip(&times) {
        let idle = [Cause::Scheduler, Cause::Dependency, Cause::Fill, Cause::Drain, Cause::Upstream].map(|cause| time.idle_ns(cause));
        assert_eq!((time.busy_ns, idle), (20, [8, 25, 10 * s, 25 - 10 * s, 0]), "stage {s}");
    }
}

#[test]
fn all_reduces_hold_a_stage_and_are_communication() {
    // Stages of 2, 3 and 2, of which the middle one exchanges data for 1 behind each piece: as one of 4.
    let mut pipe = Pipe::new(3, Links::default(), 0, 0);
    pipe.work_came(0);
    let piece = Piece { latency_ns: 0, ..PIECE };
    let spans: [[(u64, u64); 3]; 3] = [[(0, 2), (2, 6), (6, 8)], [(2, 4), (6, 10), (10, 12)], [(4, 6), (10, 14), (14, 16)]];
    for (j, expected) in spans.iter().enumerate() {
        let passage = pipe.push_with(BatchId(j as u64), &piece, &[0, 1, 0]);
        assert_eq!(passage.steps.iter().map(|step| (step.start_ns, step.end_ns)).collect::<Vec<_>>(), expected);
    }
    while pipe.take_result(16).is_some() {}
    pipe.work_ended(16);
    let (times, _) = pipe.finish(0, 16);
    let parts = |s: usize| times[s].parts().filter(|part| part.1 > 0).collect::<Vec<_>>();
    assert_eq!(parts(0), [("busy", 6), ("drain", 10)]);
    assert_eq!(parts(1), [("busy", 9), ("fill", 2), ("drain", 2), ("communication", 3)]);
    assert_eq!(parts(2), [("busy", 6), ("fill", 6), ("upstream", 4)]);
}
