//! What a batch should cost: the closed form, and the whole numbers of batches around it.

#[cfg(test)]
mod tests;

use super::estimate::Estimate;
use super::flow::Flow;
use super::layout::{Layout, Rules, Segment, lay_out_each};
use super::period::Work;
use super::{ruling, scaled};
use crate::cost::{Attos, CostModel};

/// Batches that are laid out exactly, at most; with more, one more or less does not matter.
const EXACT: u32 = 128;
/// Batches laid out in one choice, over all tries, and one chunk more for each prompt in a try. Twice as many with `c4`, where fewer counts can be ruled out.
const EFFORT: u32 = 1024;
/// Targets that are laid out before the search goes on from the best.
const TOPS: usize = 5;
/// Grid steps in a chunk from which on the grid hardly matters.
const FINE: u128 = 24;

/// What [`choose_target`] looks at.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "an argument of a pure function: nothing will be added")]
pub struct Question<'a> {
    /// What every batch keeps to.
    pub rules: Rules<'a>,
    /// What the largest batch costs on top of the sum, in millionths of it: 1,000,000 * (P - 1) for P equal stages.
    pub drain_millionths: u64,
    /// Batches in flight at most. With no more than there are stages, unequal costs leave gaps.
    pub depth: u32,
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

/// The target of the next batches: the one that makes the busy period shortest. At least `held`; a new busy period (nothing held) is free to
/// choose. O(1): some thirty estimates, and some two thousand chunks laid out at most; no allocation.
#[must_use]
pub fn choose_target(question: &Question<'_>) -> Attos {
    let question = &Question { rules: question.rules.sane(), ..*question };
    let Question { rules, whole, rest, segments, held, grown, .. } = *question;
    let Some(model) = ruling(rules.stages, whole) else { return held };
    let mut tops = Tops::default();
    if held.0 > 0 && !grown {
        // Progress alone: the target stays, but for a batch saved at the end.
        tops.push(held, 0);
    } else {
        scan(question, model, &mut tops);
    }
    let Some(ideal) = tops.first() else { return held };
    // What a batch costs however short it is: c4 re-reads the history of the place where it is cut.
    let per_cut = model.c4.times(whole.mean_history());
    let fixed = model.c0.0.saturating_add(per_cut).saturating_add(rules.ride.0);
    let by_cost = rest.cost(model).0.div_ceil(ideal.0.saturating_sub(fixed).max(1));
    // No more than one for each grid step, and one for the end of each prompt; and no fewer than the budget of tokens makes.
    let by_grid = u128::from(rest.tokens / u64::from(rules.grid.align)) + segments.len() as u128;
    let batches = by_cost.min(by_grid).max(u128::from(rest.tokens.div_ceil(rules.batch_tokens.into())));
    if segments.is_empty() || batches > u128::from(EXACT) {
        return held.max(ideal);
    }
    let effort = if model.c4.0 == 0 { EFFORT } else { 2 * EFFORT };
    Search { question, per_batch: model.c0, rest: rest.cost(model), effort, best: None, count: 0 }.run(&tops)
}

/// Looks for the targets that the estimate thinks best.
fn scan(question: &Question<'_>, model: &CostModel, tops: &mut Tops) {
    let Question { rules, whole, held, segments, drain_millionths, depth, .. } = *question;
    let history = whole.mean_history();
    let per_cut = model.c4.times(history);
    let per_batch = Attos(model.c0.0.saturating_add(per_cut));
    let ideal = ideal_target(per_batch, whole.cost(model), rules.ride, drain_millionths).max(held);
    let step = model.c1.0.saturating_add(model.c2.times(history)).saturating_mul(u128::from(rules.grid.align));
    let room = ideal.0.saturating_sub(per_batch.0).saturating_sub(rules.ride.0);
    let estimate = Estimate::new(rules, segments, whole, drain_millionths, depth);
    let mut try_one = |target: u128| {
        // Below this nothing fits.
        let target = Attos(target.max(model.c0.0.saturating_add(rules.ride.0))).max(held);
        tops.push(target, estimate.of(target));
    };
    if model.c4.0 == 0 && room / FINE >= step {
        // The grid hardly matters: cutting on it leaves half a step empty in every batch.
        try_one(ideal.0.saturating_add(if ideal > held { step / 2 } else { 0 }));
        return;
    }
    // First, so that it is taken where the estimate sees no difference.
    try_one(ideal.0);
    let mut target = ideal.0 / 20 * 9;
    for _ in 0..15 {
        try_one(target);
        target = target.saturating_add(target / 8);
    }
    // Targets that a whole number of steps fills at the end of the longest prompt.
    let steps = (room / step.max(1)).min(1 << 20) as u32;
    for steps in steps.saturating_sub(2).max(1)..=steps.saturating_add(2) {
        try_one(estimate.filled(steps).saturating_add(rules.ride.0));
    }
    for part in [32, 64] {
        let Some(best) = tops.first() else { return };
        for times in [-3, -1, 1, 3] {
            let away = best.0 / part * u128::from(i32::unsigned_abs(times));
            let mut try_one = |target: u128| tops.push(Attos(target).max(held), estimate.of(Attos(target).max(held)));
            try_one(if times < 0 { best.0.saturating_sub(away) } else { best.0.saturating_add(away) });
        }
    }
}

/// The best few targets so far, best first.
#[derive(Default)]
struct Tops {
    list: [(Attos, u128); TOPS],
    len: usize,
}

impl Tops {
    /// Of targets that are nearly the same only the best is kept, so that the list holds different ones.
    fn push(&mut self, target: Attos, time: u128) {
        let near = |known: Attos| known.0.abs_diff(target.0) <= target.0 / 48;
        if let Some(place) = self.list[..self.len].iter().position(|&(known, _)| near(known)) {
            if self.list[place].1 <= time {
                return;
            }
            self.list[place..self.len].rotate_left(1);
            self.len -= 1;
        }
        let place = self.list[..self.len].iter().position(|&(_, other)| time < other).unwrap_or(self.len);
        if place < TOPS {
            self.len = (self.len + 1).min(TOPS);
            self.list[place..self.len].rotate_right(1);
            self.list[place] = (target, time);
        }
    }

    fn first(&self) -> Option<Attos> {
        self.list[..self.len].first().map(|entry| entry.0)
    }
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
    best: Option<Choice>,
    /// Batches of the best.
    count: u32,
}

impl Search<'_> {
    fn run(&mut self, tops: &Tops) -> Attos {
        for &(target, _) in &tops.list[..tops.len] {
            // Under a bad target there may be as many batches as there are grid steps: such a one is left.
            self.lay_out(target, self.effort);
        }
        // The same number of batches with a smaller target, then one more or less as long as that helps; next to an end of the range, and where
        // there are few, some more.
        let fresh = self.question.held.0 == 0 || self.question.grown;
        let mut looked = [0u32; 24];
        let rereads = self.question.rules.stages.iter().any(|stage| stage.c4.0 > 0);
        // Cuts between prompts re-read nothing.
        let prompts = if rereads { self.question.segments.len() as u32 } else { 0 };
        for place in 0..looked.len() {
            let near = |offs: [i32; 4]| offs.into_iter().filter_map(|off| self.count.checked_add_signed(off));
            // Where each cut is dear, far fewer batches may be as good, with nothing in between.
            let far = if rereads { [self.count / 2, self.count * 2 / 3, self.count.saturating_mul(3) / 2] } else { [0; 3] };
            let near = near([0, 1, -1, 0]).chain(far).chain(near([2, -2, 3, -3]));
            let even = [prompts, prompts * 2, prompts / 2, prompts * 3, prompts / 4];
            let wanted = even.into_iter().filter(|_| prompts > 1).chain(near);
            let wanted = wanted.filter(|&count| count > 0 && (fresh || count < self.count)).find(|count| !looked[..place].contains(count));
            let Some(count) = wanted else { break };
            looked[place] = count;
            if self.best.is_some_and(|best| self.least_time(count) < best.time) {
                self.smallest(count);
            }
            if self.effort == 0 {
                break;
            }
        }
        let chosen = self.best.map(|best| best.target).or_else(|| tops.first());
        chosen.map_or(self.question.held, |target| target.max(self.question.held))
    }

    /// Tries the smallest target, to 1/1024, under which the rest needs at most so many batches.
    fn smallest(&mut self, batches: u32) {
        let mut low = self.question.held.0.max(self.least_target(batches));
        let (mut high, mut next, mut step) = (None, low, low / 1024 + 1);
        while self.effort >= batches {
            let layout = self.lay_out(Attos(next), batches);
            if layout.left_tokens == 0 {
                let reached = layout.largest.0.min(next).max(self.question.held.0);
                if high.is_some_and(|high| reached >= high) && reached > next {
                    break;
                }
                high = Some(reached);
            } else {
                low = low.max(next);
            }
            match high {
                Some(high) if high.saturating_sub(low) <= high / 1024 => break,
                Some(high) => next = low + (high - low) / 2,
                // What did not fit is spread over the batches: the count is nearly linear in the target, so few steps lead there.
                None => {
                    let left = Work { tokens: layout.left_tokens, pairs: layout.left_pairs };
                    let left = ruling(self.question.rules.stages, left).map_or(0, |model| left.cost(model).0);
                    // On a coarse grid the next step may be far, so each stride is longer than the one before.
                    next = low.saturating_add((left / u128::from(batches)).max(step));
                    step = step.saturating_mul(2);
                    if next == u128::MAX {
                        break;
                    }
                }
            }
        }
    }

    /// Lays the rest out under a target, and keeps what is better than the best.
    fn lay_out(&mut self, target: Attos, most_batches: u32) -> Layout {
        let Question { rules, segments, held, drain_millionths, depth, .. } = self.question;
        let total = self.rest.0.saturating_add(target.0).saturating_mul(2);
        let mut flow = Flow::new(*drain_millionths, *depth, Attos(total));
        let layout = lay_out_each(rules, segments, target, most_batches, |cost| {
            if let Some(flow) = &mut flow {
                flow.push(cost);
            }
        });
        self.effort = self.effort.saturating_sub(layout.chunks);
        if layout.left_tokens == 0 {
            let largest = layout.largest.max(*held);
            let closed = layout.sum.0.saturating_add(scaled(largest.0, *drain_millionths));
            let riding = rules.ride.0.saturating_mul(layout.batches.into());
            let time = flow.map_or(0, |flow| flow.time()).saturating_sub(riding).max(closed);
            if self.best.is_none_or(|best| time < best.time) {
                self.count = layout.batches;
                self.best = Some(Choice { target: layout.largest, time });
            }
        }
        layout
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

fn root_of_product(a: u128, b: u128) -> u128 {
    a.checked_mul(b).map_or_else(|| a.isqrt().saturating_mul(b.isqrt()), u128::isqrt)
}
