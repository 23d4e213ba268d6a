//! The choice of a target, against what it must be.

use super::*;
use crate::planner::{Grid, lay_out};

const MS: u64 = 1_000_000;

fn cost(c0_ms: u64, c1_ns: u64, c2_attos: u128) -> CostModel {
    CostModel { c0: Attos::from_ns(c0_ms * MS), c1: Attos::from_ns(c1_ns), c2: Attos(c2_attos), ..CostModel::default() }
}

fn question<'a>(stages: &'a [CostModel], segments: &'a [Segment], drain: u64) -> Question<'a> {
    let mut work = Work::default();
    for segment in segments {
        work.tokens += Work::of(*segment).tokens;
        work.pairs += Work::of(*segment).pairs;
    }
    let grid = Grid { align: 64, min: 64, thrifty: true };
    let rules = Rules { stages, grid, batch_tokens: u32::MAX, ride: Attos::ZERO };
    Question {
        rules,
        drain_millionths: drain * 1_000_000,
        depth: u32::MAX,
        rest: work,
        whole: work,
        segments,
        held: Attos::ZERO,
        grown: true,
    }
}

fn time(question: &Question<'_>, target: Attos) -> u128 {
    let layout = lay_out(&question.rules, question.segments, target, u32::MAX);
    layout.sum.0 + scaled(layout.largest.0, question.drain_millionths)
}

#[test]
fn the_closed_form_is_least_where_it_says() {
    let (c0, work) = (Attos::from_ns(2 * MS), Attos::from_ns(1_184 * MS));
    let target = ideal_target(c0, work, Attos::ZERO, 7_000_000);
    assert_eq!((target.to_ns() / 10_000, lower_bound(c0, work, 7_000_000).to_ns() / MS), (2039, 1455));
    let time = |target: Attos| work.0 + (work.0 / (target.0 - c0.0)) * c0.0 + 7 * target.0;
    assert!(time(target) <= time(Attos(target.0 * 11 / 10)) && time(target) <= time(Attos(target.0 * 9 / 10)));
    // Without work to prefill a batch is its decodes; with much of it they hardly matter.
    assert_eq!(ideal_target(c0, Attos::ZERO, Attos::from_ns(MS), 7_000_000), Attos::from_ns(3 * MS));
    assert_eq!(ideal_target(c0, work, Attos::ZERO, 0), Attos(u128::MAX));
    assert!(ideal_target(Attos(u128::MAX), Attos(u128::MAX), Attos(u128::MAX), 1) == Attos(u128::MAX));
}

#[test]
fn no_target_nearby_is_notably_better() {
    for (length, c0) in [(1000, 1), (8192, 20), (8192, 1), (32_768, 5), (50_000, 3)] {
        for drain in [1, 3, 7, 15] {
            let (stages, segments) = ([cost(c0, 3500, 400_000_000)], [Segment { start: 0, end: length }]);
            let question = question(&stages, &segments, drain);
            let chosen = choose_target(&question);
            let ours = time(&question, chosen);
            for percent in 50..=200 {
                let other = time(&question, Attos(chosen.0 * percent / 100));
                assert!(ours <= other + other / 200, "N {length} c0 {c0} drain {drain}: {percent} % of the target is better");
            }
        }
    }
}

/// On a coarse grid with dear cuts the best target was half as large again as the one that the estimate took for the best, with worse ones in between.
#[test]
fn far_fewer_batches_are_looked_at_where_history_is_read_again() {
    let stages = [CostModel { c0: Attos::from_ns(103_562), c4: Attos(96_778_206_664), ..cost(0, 96, 2_943_930_882) }];
    let segments = [Segment { start: 0, end: 2594 }];
    let question = question(&stages, &segments, 7);
    let chosen = choose_target(&question);
    let best = (30..300).map(|percent| time(&question, Attos(chosen.0 * percent / 100))).min().unwrap_or(0);
    assert!(time(&question, chosen) <= best + best / 1000);
}

#[test]
fn the_shortest_prompts_share_a_batch() {
    for (segments, align) in [([Segment { start: 4999, end: 5000 }; 3], 64), ([Segment { start: 0, end: 1 }; 3], 1)] {
        for (drain, c4) in [(1, 0), (2, 0), (15, 0), (2, 10)] {
            let stages = [CostModel { c4: Attos(c4), ..cost(1, 100, 0) }];
            let mut question = question(&stages, &segments, drain);
            question.rules.grid.align = align;
            assert_eq!(lay_out(&question.rules, &segments, choose_target(&question), 9).batches, 1, "{segments:?} {drain} {c4}");
        }
    }
}

#[test]
fn progress_alone_never_lowers_it_and_a_tail_may_raise_it() {
    let (stages, whole) = ([cost(20, 3500, 400_000_000)], [Segment { start: 0, end: 32_768 }]);
    let all = question(&stages, &whole, 7);
    let held = choose_target(&all);
    for start in (64..32_768).step_by(2048) {
        let rest = [Segment { start, end: 32_768 }];
        let later = Question { rest: Work::of(rest[0]), segments: &rest, held, grown: false, ..all };
        let chosen = choose_target(&later);
        assert!(chosen >= held && time(&later, chosen) <= time(&later, held));
    }
    // Two tokens more than the target holds: better a slightly dearer batch than one more.
    let fits = crate::planner::longest_chunk(&stages, crate::CostTerms::default(), 0, u32::MAX, held) / 64 * 64;
    let rest = [Segment { start: 0, end: fits + 2 }];
    let tail = Question { rest: Work::of(rest[0]), segments: &rest, held, grown: false, ..all };
    assert_eq!(lay_out(&tail.rules, &rest, choose_target(&tail), 9).batches, 1);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    let most = Attos::MAX_COEFFICIENT;
    let stages = [CostModel { c0: most, c1: most, c2: most, c4: most, ..CostModel::default() }, CostModel::default()];
    let segments = [Segment { start: 0, end: 10_000_000 }; 3];
    for drain in [0, 1, 4_000_000_000] {
        for segments in [&segments[..], &[]] {
            let question = Question { segments, ..question(&stages, &segments[..segments.len()], drain) };
            let _ = choose_target(&Question { held: Attos(u128::MAX), ..question });
            assert!(choose_target(&question).0 > 0 || segments.is_empty());
        }
    }
    let free = [CostModel::default()];
    assert_eq!(choose_target(&question(&free, &segments, 3)), Attos::ZERO);
}
