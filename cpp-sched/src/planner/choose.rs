//! What a batch should cost: the closed form, and the whole numbers of batches around it.

use super::layout::{Layout, Rules, Segment, lay_out};
use super::period::Work;
use crate::cost::{Attos, CostModel};

/// Batches that are laid out exactly, at most; with more, one more or less does not matter.
const EXACT: u32 = 64;
/// Batches laid out in one choice, at most, over all tries.
const EFFORT: u32 = 512;

/// What [`choose_target`] looks at.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "an argument of a pure function: nothing will be added")]
pub struct Question<'a> {
    /// What every batch keeps to.
    pub rules: Rules<'a>,
    /// What the largest batch costs on top of the sum, in millionths of it: 1,000,000 * (P - 1) for P equal stages.
    pub drain_millionths: u64,
    /// Work not scheduled yet.
    pub rest: Work,
    /// Work of the whole busy period.
    pub whole: Work,
    /// The same rest, as segments in order; empty if there are more than can be laid out.
    pub segments: &'a [Segment],
    /// The target so far, which is paid for already; zero at the start of a busy period.
    pub held: Attos,
    /// Work has come since it was chosen. Else the held target is kept, unless a larger one saves a batch at the end.
    pub grown: bool,
}

/// `(sqrt(W) + sqrt((P-1)*c0))^2`: no way of cutting is faster. W = `work`, in the units of `c0`. Saturating.
#[must_use]
pub fn lower_bound(c0: Attos, work: Attos, drain_millionths: u64) -> Attos {
    let fill = scaled(c0.0, drain_millionths);
    Attos(work.0.saturating_add(fill).saturating_add(root_of_product(work.0, fill).saturating_mul(2)))
}

/// `T* = c0 + (d + sqrt(d*d + 4*c0*W/(P-1))) / 2` with `d` = `ride`, the cost of the decodes in each batch. Saturating; without a drain there is
/// nothing to weigh, and the answer is no limit.
#[must_use]
pub fn ideal_target(c0: Attos, work: Attos, ride: Attos, drain_millionths: u64) -> Attos {
    if drain_millionths == 0 {
        return Attos(u128::MAX);
    }
    let per_drain = |amount: u128| {
        let whole = (amount / u128::from(drain_millionths)).saturating_mul(1_000_000);
        whole.saturating_add(amount % u128::from(drain_millionths) * 1_000_000 / u128::from(drain_millionths))
    };
    let alone = root_of_product(c0.0, per_drain(work.0));
    // Half of d, and the hypotenuse over it: sqrt((d/2)^2 + alone^2).
    let half = ride.0 / 2;
    let hypotenuse = match half.checked_mul(half).zip(alone.checked_mul(alone)).and_then(|(a, b)| a.checked_add(b)) {
        Some(square) => square.isqrt(),
        None => half.saturating_add(alone),
    };
    Attos(c0.0.saturating_add(half).saturating_add(hypotenuse))
}

/// `T*` where each batch also pays `c4` for the history before it: the target that makes `T * (batches(T) + P - 1)` least, as all batches cost T.
/// The number of batches follows from slices of the work at even distances.
fn ideal_with_history(model: &CostModel, work: Work, span: Segment, rules: &Rules<'_>, drain_millionths: u64) -> Attos {
    let (from, to) = (u128::from(span.start), u128::from(span.end));
    let at = |slice: usize| from + (to - from) * (2 * slice as u128 + 1) / (2 * SLICES as u128);
    let density = |slice: usize| model.c1.0.saturating_add(model.c2.0.saturating_mul(at(slice)));
    // What a batch that is cut there costs before it does any work, and the half grid step that it is short on average.
    let fixed = |slice: usize| {
        let history = model.c4.0.saturating_mul(at(slice));
        let short = density(slice).saturating_mul(u128::from(rules.grid.align / 2));
        model.c0.0.saturating_add(history).saturating_add(rules.ride.0).saturating_add(short)
    };
    let total = work.cost(model).0;
    // Fifty bits are precise enough, and small numbers divide fast.
    let shift = (128 - total.saturating_add(fixed(SLICES - 1)).leading_zeros()).saturating_sub(50);
    let all = (0..SLICES).fold(1u128, |sum, slice| sum.saturating_add(density(slice)));
    let mut slices = [(0u64, 0u64); SLICES];
    for (slice, (part, fixed_cost)) in slices.iter_mut().enumerate() {
        let share = ((density(slice) << 20.min(density(slice).leading_zeros())) / all).min(1 << 20);
        *part = (((total >> shift) * share) >> 20) as u64;
        *fixed_cost = (fixed(slice) >> shift) as u64;
    }
    let drain = drain_millionths / 1000;
    let time = |target: u64| {
        let batches = slices.iter().map(|&(part, fixed)| part.saturating_mul(1000) / target.saturating_sub(fixed).max(1)).sum::<u64>();
        u128::from(target) * u128::from(batches.saturating_add(drain))
    };
    // Between the dearest cut with hardly any work and all of the work at once: every step takes a third off.
    let (floor, total) = (slices[SLICES - 1].1, (total >> shift) as u64);
    let (mut low, mut high) = (floor + total / 65_536, floor + total + 1);
    while high - low > low / 64 + 1 {
        let third = (high - low).div_ceil(3);
        if time(low + third) <= time(high - third) { high -= third } else { low += third }
    }
    Attos(u128::from(low + (high - low) / 2) << shift)
}

/// Slices of work by which batches are counted.
const SLICES: usize = 8;

/// The target of the next batches: the one that makes the busy period shortest. At least `held`; a new busy period (nothing held) is free to
/// choose. O(1) divisions and roots, and at most a few hundred chunks laid out; no allocation.
#[must_use]
pub fn choose_target(question: &Question<'_>) -> Attos {
    let Question { rules, whole, rest, segments, held, drain_millionths, grown } = *question;
    let Some(model) = ruling(rules.stages, whole) else { return held };
    let history = whole.mean_history();
    let ideal = if held.0 > 0 && !grown {
        held
    } else if model.c4.0 == 0 {
        ideal_target(model.c0, whole.cost(model), rules.ride, drain_millionths).max(held)
    } else {
        let start = segments.iter().map(|segment| segment.start).min().unwrap_or(0);
        let end = segments.iter().map(|segment| segment.end).max().unwrap_or_else(|| u32::try_from(2 * history).unwrap_or(u32::MAX));
        ideal_with_history(model, whole, Segment { start, end }, &rules, drain_millionths).max(held)
    };
    // What a batch costs however short it is: c4 re-reads the history of the place where it is cut.
    let fixed = model.c0.0.saturating_add(model.c4.0.saturating_mul(history)).saturating_add(rules.ride.0);
    let batches = rest.cost(model).0.div_ceil(ideal.0.saturating_sub(fixed).max(1));
    // Cutting on the grid leaves half a step empty in every batch.
    let step = model.c1.0.saturating_add(model.c2.0.saturating_mul(history));
    let loss = if ideal > held && model.c4.0 == 0 { step.saturating_mul(u128::from(rules.grid.align / 2)) } else { 0 };
    if segments.is_empty() || batches > u128::from(EXACT) {
        return held.max(Attos(ideal.0.saturating_add(loss)));
    }
    Search { question, per_batch: model.c0, rest: rest.cost(model), effort: EFFORT }.run(ideal, loss)
}

/// The stage on which the work costs most.
fn ruling(stages: &[CostModel], work: Work) -> Option<&CostModel> {
    stages.iter().max_by_key(|stage| work.cost(stage).0.saturating_add(stage.c0.0))
}

/// A target, and the time that the busy period takes with it from here on.
#[derive(Clone, Copy, Debug)]
struct Choice {
    target: Attos,
    time: u128,
}

/// Looks at whole numbers of batches.
struct Search<'a> {
    question: &'a Question<'a>,
    per_batch: Attos,
    rest: Attos,
    effort: u32,
}

impl Search<'_> {
    fn run(&mut self, ideal: Attos, loss: u128) -> Attos {
        let mut seed = self.lay_out(ideal, u32::MAX);
        let mut best = self.choice(&seed);
        // On a coarse grid the count jumps by several where one more step fits into every batch.
        let step = loss.max(ideal.0 / 16);
        for more in 1..=if self.question.held < ideal { 4 } else { 0 } {
            if self.effort < EFFORT / 2 {
                break;
            }
            let other = self.lay_out(Attos(ideal.0.saturating_add(step.saturating_mul(more))), u32::MAX);
            let choice = self.choice(&other);
            if choice.time < best.time {
                (seed, best) = (other, choice);
            }
        }
        let count = seed.batches;
        // Fewer batches, dearer ones: worth it as long as the least that they could cost is.
        for fewer in (1..count).rev() {
            if self.least_time(fewer) >= best.time || !self.look(fewer, &mut best) {
                break;
            }
        }
        // The same number with a smaller target, then more of them. Once a busy period has begun its target follows from the whole of its work,
        // and what is left does not lower it.
        let fresh = self.question.held.0 == 0;
        for more in count..=count + if fresh { EXACT / 4 } else { 0 } {
            if self.least_time(more) >= best.time || !self.look(more, &mut best) {
                break;
            }
        }
        best.target.max(self.question.held)
    }

    /// Tries the smallest target that needs no more than `batches`. False: no effort is left.
    fn look(&mut self, batches: u32, best: &mut Choice) -> bool {
        if self.effort < batches {
            return false;
        }
        if let Some(choice) = self.smallest(batches) {
            if choice.time < best.time {
                *best = choice;
            }
        }
        true
    }

    /// The smallest target, to 1/1024, under which the rest needs at most so many batches.
    fn smallest(&mut self, batches: u32) -> Option<Choice> {
        let mut low = self.question.held.0.max(self.least_target(batches));
        let mut layout = self.lay_out(Attos(low), batches);
        let mut found = None;
        // What did not fit is spread over the batches: the count is nearly linear in the target, so few steps lead there.
        while found.is_none() {
            if layout.left_tokens == 0 {
                found = Some(layout);
                break;
            }
            if self.effort < batches {
                return None;
            }
            let left = Work { tokens: layout.left_tokens, pairs: layout.left_pairs };
            let left = ruling(self.question.rules.stages, left).map_or(0, |model| left.cost(model).0);
            let next = low.saturating_add((left / u128::from(batches)).max(low / 1024).max(1));
            layout = self.lay_out(Attos(next), batches);
            if layout.left_tokens > 0 {
                low = next;
            }
            if next == u128::MAX {
                return None;
            }
        }
        let mut best = self.choice(&found?);
        while best.target.0.saturating_sub(low) > best.target.0 / 1024 && self.effort >= batches {
            let middle = low + (best.target.0 - low) / 2;
            let layout = self.lay_out(Attos(middle), batches);
            if layout.left_tokens > 0 {
                low = middle;
                continue;
            }
            let choice = self.choice(&layout);
            if choice.target >= best.target {
                break;
            }
            best = choice;
        }
        Some(best)
    }

    fn lay_out(&mut self, target: Attos, most_batches: u32) -> Layout {
        let layout = lay_out(&self.question.rules, self.question.segments, target, most_batches);
        self.effort = self.effort.saturating_sub(layout.batches);
        layout
    }

    fn choice(&self, layout: &Layout) -> Choice {
        let largest = layout.largest.max(self.question.held);
        Choice { target: layout.largest, time: layout.sum.0.saturating_add(scaled(largest.0, self.question.drain_millionths)) }
    }

    /// No target below this needs only so many batches.
    fn least_target(&self, batches: u32) -> u128 {
        let share = self.rest.0 / u128::from(batches);
        self.per_batch.0.saturating_add(self.question.rules.ride.0).saturating_add(share)
    }

    /// No layout of so many batches takes less time.
    fn least_time(&self, batches: u32) -> u128 {
        let largest = self.least_target(batches).max(self.question.held.0);
        let sum = self.rest.0.saturating_add(self.per_batch.0.saturating_mul(u128::from(batches)));
        sum.saturating_add(scaled(largest, self.question.drain_millionths))
    }
}

fn scaled(amount: u128, millionths: u64) -> u128 {
    amount
        .checked_mul(u128::from(millionths))
        .map_or_else(|| (amount / 1_000_000).saturating_mul(u128::from(millionths)), |n| n / 1_000_000)
}

fn root_of_product(a: u128, b: u128) -> u128 {
    a.checked_mul(b).map_or_else(|| a.isqrt().saturating_mul(b.isqrt()), u128::isqrt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::Grid;

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
        Question { rules, drain_millionths: drain * 1_000_000, rest: work, whole: work, segments, held: Attos::ZERO, grown: true }
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
}
