//! What a batch should cost: the closed form, and the whole numbers of batches around it.

use super::layout::{Layout, Rules, Segment, lay_out};
use super::period::Work;
use crate::cost::{Attos, CostModel};

/// Batches that are laid out exactly, at most; with more, one more or less does not matter.
const EXACT: u32 = 32;
/// Batches laid out in one choice, at most, over all tries.
const EFFORT: u32 = 320;

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
    /// The target so far, which is paid for already.
    pub held: Attos,
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

/// The target of the next batches: the one that makes the busy period shortest. At least `held`; a new busy period (nothing done, nothing held)
/// is free to choose. O(1) divisions and roots, and at most a few hundred chunks laid out; no allocation.
#[must_use]
pub fn choose_target(question: &Question<'_>) -> Attos {
    let Some(model) = ruling(question.rules.stages, question.whole) else { return question.held };
    let ride = question.rules.ride;
    let history = question.whole.mean_history();
    // What a batch costs however short it is: c4 re-reads the history of the place where it is cut.
    let per_batch = Attos(model.c0.0.saturating_add(model.c4.0.saturating_mul(history)));
    let ideal = ideal_target(per_batch, question.whole.cost(model), ride, question.drain_millionths);
    let ideal = ideal.max(question.held);
    let room = ideal.0.saturating_sub(per_batch.0).saturating_sub(ride.0).max(1);
    let batches = question.rest.cost(model).0.div_ceil(room);
    if question.segments.is_empty() || batches > u128::from(EXACT) {
        // Cutting on the grid leaves half a step empty in every batch.
        let step = model.c1.0.saturating_add(model.c2.0.saturating_mul(history));
        let loss = step.saturating_mul(u128::from(question.rules.grid.align / 2));
        return question.held.max(Attos(ideal.0.saturating_add(loss)));
    }
    Search { question, per_batch: model.c0, rest: question.rest.cost(model), effort: EFFORT }.run(ideal)
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
    fn run(&mut self, ideal: Attos) -> Attos {
        let seed = self.lay_out(ideal, u32::MAX);
        let mut best = self.choice(&seed);
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
            if self.least_target(more) > self.question.held.0 && (self.least_time(more) >= best.time || !self.look(more, &mut best)) {
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
