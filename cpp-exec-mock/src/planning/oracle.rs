//! The best plan on the same grid, by branch and bound over the target.
//!
//! Under a target T (no batch costs more) the prompts, one behind the other, are cut into as few batches as can be: greedily. When costs beside
//! `c0` add up, the greedy layout is the best one under T, and only its count matters. `c4` charges each cut for the history before it; then
//! the cuts should lie as early as they can, which is what filling from the end does. The sum of the costs falls as T rises, the drain
//! `(P-1)*T` rises, so over an interval of targets `sum(highest) + (P-1)*lowest` bounds every plan, and intervals that cannot beat the best plan
//! so far are dropped. What is left shrinks to the jumps of the count, each of which is found to the nanosecond.

use cpp_sched::{Attos, CostTerms, planner};

use super::Problem;

/// The best plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Optimum {
    /// Its time.
    pub makespan: Attos,
    /// Its largest batch.
    pub target: Attos,
    /// Its batches.
    pub batches: u32,
}

/// Sum and maximum of a layout.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    sum: u128,
    largest: u128,
    batches: u32,
}

/// The least `sum + (P-1) * largest` over all ways to cut the prompts on the grid, where batches may hold the end of one prompt and the
/// beginning of the next. Exact to `P-1` nanoseconds when `c4` is 0, else within 0.01 %.
/// The prompt is longer than what is cached, see [`plan`](fn@super::plan).
#[must_use]
pub fn optimum(problem: &Problem) -> Optimum {
    let largest = everything(problem);
    // No target below the dearest single step can be kept to.
    let smallest = dearest_step(problem).min(largest.largest);
    let work = problem.work();
    let per_batch = Attos(problem.cost.c0.0 + problem.cost.c4.0 * u128::from(problem.prompt / 2));
    let seed = planner::ideal_target(per_batch, work, Attos::ZERO, problem.drain_millionths()).0.clamp(smallest, largest.largest);
    let mut search = Search { problem, work: work.0, best: best_of(problem, &largest) };
    for scale in [100, 95, 105, 90, 110, 120, 140] {
        search.try_target((seed * scale / 100).clamp(smallest, largest.largest));
    }
    let at_seed = search.try_target(seed);
    search.bisect(smallest.saturating_sub(1), seed, at_seed.sum);
    search.bisect(seed, largest.largest, largest.sum);
    search.best
}

/// The best time with chunks of one fixed size, over all sizes on the grid: batches of so many tokens, whatever prompt they come from.
#[must_use]
pub fn best_fixed(problem: &Problem) -> (u32, Attos) {
    let total = (problem.prompt - problem.cached).next_multiple_of(problem.align);
    let mut best = (0, Attos(u128::MAX));
    let mut size = problem.align;
    while size <= total {
        let sizes = fixed(problem, size);
        let time = problem.makespan(sizes.sum, sizes.largest);
        if time < best.1.0 {
            best = (size, Attos(time));
        }
        // Every step while they are few, then steps of a 32nd: the curve is flat there.
        size += (size / 32 / problem.align).max(1) * problem.align;
    }
    best
}

/// The best time with one target for all batches when at most `depth` of them are in flight, over 300 targets around the closed form's: each batch is
/// filled from the beginning, and starts on the first stage when the one `depth` before it has left the last. With as many in flight as stages
/// costs that differ by a grid step leave gaps, which no target avoids, so this is what a plan under the same limit can be held against. An
/// upper limit of the optimum, as batches need not have one target.
#[must_use]
pub fn best_target(problem: &Problem, depth: u32) -> Optimum {
    let per_batch = Attos(problem.cost.c0.0 + problem.cost.c4.0 * u128::from(problem.prompt / 2));
    let seed = planner::ideal_target(per_batch, problem.work(), Attos::ZERO, problem.drain_millionths()).0;
    let least = dearest_step(problem);
    let all = everything(problem).largest;
    let mut best = Optimum { makespan: Attos(u128::MAX), target: Attos::ZERO, batches: 0 };
    let mut targets: Vec<u128> = (0..300).map(|step| (seed as f64 * 0.45 * 6f64.powf(f64::from(step) / 300.0)) as u128).collect();
    targets.push(optimum(problem).target.0);
    targets.push(all);
    for target in targets {
        let mut costs = Vec::new();
        let sizes = forward_each(problem, target.clamp(least.min(all), all), |cost| costs.push(cost));
        let makespan = Attos(in_flight_makespan(&costs, problem.stages, depth));
        if makespan < best.makespan {
            best = Optimum { makespan, target: Attos(sizes.largest), batches: sizes.batches };
        }
    }
    best
}

/// When the last batch has left the last of equal stages, if at most `depth` are in flight.
fn in_flight_makespan(costs: &[u128], stages: u32, depth: u32) -> u128 {
    let mut free = vec![0u128; stages as usize];
    let mut left: Vec<u128> = Vec::with_capacity(costs.len());
    for (batch, &cost) in costs.iter().enumerate() {
        let mut at = batch.checked_sub(depth as usize).map_or(0, |before| left[before]);
        for free in &mut free {
            at = at.max(*free) + cost;
            *free = at;
        }
        left.push(at);
    }
    left.last().copied().unwrap_or(0)
}

fn best_of(problem: &Problem, sizes: &Sizes) -> Optimum {
    Optimum { makespan: Attos(problem.makespan(sizes.sum, sizes.largest)), target: Attos(sizes.largest), batches: sizes.batches }
}

struct Search<'a> {
    problem: &'a Problem,
    work: u128,
    best: Optimum,
}

impl Search<'_> {
    fn try_target(&mut self, target: u128) -> Sizes {
        let mut sizes = forward(self.problem, target);
        if self.problem.cost.c4.0 > 0 {
            let early = backward(self.problem, target);
            if early.sum < sizes.sum {
                sizes = early;
            }
        }
        let found = best_of(self.problem, &sizes);
        if found.makespan < self.best.makespan {
            self.best = found;
        }
        sizes
    }

    /// Looks for a better plan with a target above `low`, up to `high`, whose batches cost `sum` together.
    fn bisect(&mut self, low: u128, high: u128, sum: u128) {
        let drain = u128::from(self.problem.stages - 1);
        let c0 = self.problem.cost.c0.0;
        let least = sum.max(self.work + (self.work / high.saturating_sub(c0).max(1)).saturating_mul(c0)) + drain * low;
        let resolution = if self.problem.cost.c4.0 > 0 { (high / 10_000).max(Attos::PER_NS) } else { Attos::PER_NS };
        let slack = if self.problem.cost.c4.0 > 0 { self.best.makespan.0 / 20_000 } else { 0 };
        if least + slack >= self.best.makespan.0 || high - low <= resolution {
            return;
        }
        let middle = low + (high - low) / 2;
        let in_middle = self.try_target(middle).sum;
        self.bisect(middle, high, sum);
        self.bisect(low, middle, in_middle);
    }
}

/// Everything in one batch.
fn everything(problem: &Problem) -> Sizes {
    let mut terms = CostTerms::prefill(problem.cached, problem.prompt - problem.cached);
    let n = u64::from(problem.requests);
    (terms.tokens, terms.pairs, terms.prefill_history) = (terms.tokens * n, terms.pairs * u128::from(n), terms.prefill_history * n);
    let cost = problem.cost.cost(&terms).0;
    Sizes { sum: cost, largest: cost, batches: 1 }
}

/// The dearest chunk of one grid step.
fn dearest_step(problem: &Problem) -> u128 {
    let last = (problem.prompt - 1) / problem.align * problem.align;
    let starts = [problem.cached, last.max(problem.cached), last.saturating_sub(problem.align).max(problem.cached)];
    let cost = |start: u32| {
        let end = (start / problem.align + 1).saturating_mul(problem.align).min(problem.prompt);
        problem.cost.cost(&CostTerms::prefill(start, end - start)).0
    };
    starts.into_iter().map(cost).max().unwrap_or(0)
}

/// Fills batches from the beginning.
fn forward(problem: &Problem, target: u128) -> Sizes {
    forward_each(problem, target, |_| {})
}

fn forward_each(problem: &Problem, target: u128, mut tell: impl FnMut(u128)) -> Sizes {
    let stages = problem.stages_cost();
    let mut batches = Batches::new(problem);
    for _ in 0..problem.requests {
        let mut start = problem.cached;
        while start < problem.prompt {
            let left = problem.prompt - start;
            let fits = planner::longest_chunk(&stages, batches.terms, start, left, Attos(target));
            let tokens = if fits == left { left } else { ((start + fits) / problem.align * problem.align).saturating_sub(start) };
            if tokens == 0 {
                // The target is at least the dearest step, so an empty batch takes one.
                if batches.terms.tokens == 0 {
                    let step = ((start / problem.align + 1) * problem.align).min(problem.prompt) - start;
                    batches.add(start, step);
                    start += step;
                }
                batches.close(&mut tell);
                continue;
            }
            batches.add(start, tokens);
            start += tokens;
        }
    }
    batches.close(&mut tell);
    batches.sizes
}

/// Fills batches from the end.
fn backward(problem: &Problem, target: u128) -> Sizes {
    let mut batches = Batches::new(problem);
    let step_of = |position: u32| position.div_ceil(problem.align);
    for _ in 0..problem.requests {
        let mut end = problem.prompt;
        while end > problem.cached {
            // Starts are the cached length, or a multiple of the grid above it.
            let start_at = |step: u32| (step * problem.align).max(problem.cached);
            let fits = |step: u32| batches.with(start_at(step), end - start_at(step)) <= target;
            let (mut low, mut high) = (problem.cached / problem.align, step_of(end));
            // The smallest start that fits; `high` is an empty chunk.
            while low < high {
                let middle = low + (high - low) / 2;
                if fits(middle) { high = middle } else { low = middle + 1 }
            }
            let mut start = start_at(low).min(end);
            if start == end {
                if batches.terms.tokens > 0 {
                    batches.close(|_| {});
                    continue;
                }
                start = start_at(step_of(end) - 1);
            }
            batches.add(start, end - start);
            end = start;
            if end > problem.cached {
                batches.close(|_| {});
            }
        }
    }
    batches.close(|_| {});
    batches.sizes
}

/// Batches of `size` tokens.
fn fixed(problem: &Problem, size: u32) -> Sizes {
    let mut batches = Batches::new(problem);
    let mut room = size;
    for _ in 0..problem.requests {
        let mut start = problem.cached;
        while start < problem.prompt {
            let tokens = room.min(problem.prompt - start);
            batches.add(start, tokens);
            (start, room) = (start + tokens, room - tokens);
            if room == 0 {
                batches.close(|_| {});
                room = size;
            }
        }
    }
    batches.close(|_| {});
    batches.sizes
}

/// A layout under construction.
struct Batches<'a> {
    problem: &'a Problem,
    terms: CostTerms,
    sizes: Sizes,
}

impl<'a> Batches<'a> {
    fn new(problem: &'a Problem) -> Self {
        Self { problem, terms: CostTerms::default(), sizes: Sizes { sum: 0, largest: 0, batches: 0 } }
    }

    fn sum(&self, start: u32, tokens: u32) -> CostTerms {
        let (mut terms, more) = (self.terms, CostTerms::prefill(start, tokens));
        terms.tokens += more.tokens;
        terms.pairs += more.pairs;
        terms.prefill_history += more.prefill_history;
        terms
    }

    fn with(&self, start: u32, tokens: u32) -> u128 {
        self.problem.cost.cost(&self.sum(start, tokens)).0
    }

    fn add(&mut self, start: u32, tokens: u32) {
        self.terms = self.sum(start, tokens);
    }

    fn close(&mut self, tell: impl FnOnce(u128)) {
        if self.terms.tokens > 0 {
            let cost = self.problem.cost.cost(&self.terms).0;
            tell(cost);
            self.sizes.sum += cost;
            self.sizes.largest = self.sizes.largest.max(cost);
            self.sizes.batches += 1;
            self.terms = CostTerms::default();
        }
    }
}
