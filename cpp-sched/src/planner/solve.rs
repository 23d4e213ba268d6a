//! How long a chunk may be: the positive root of a quadratic, exactly, in integers.

use crate::cost::{Attos, CostModel, CostTerms, product};

/// The longest prefill chunk, at most `most` tokens after `history` computed ones, with which a batch that holds `base` already costs at most
/// `target` on every stage. 0: not even one token fits.
///
/// The closed form gives a seed that is off by less than a token in nearly all cases, and comparisons of exact costs settle it: the answer is
/// exact whatever the seed. So a target that is the cost of a chunk of B tokens without history gives B, not B - 1. O(stages); O(log `most`)
/// for models with tiles or floors, and for coefficients whose squares leave 128 bits.
///
/// ```
/// use cpp_sched::{Attos, CostModel, CostTerms, planner};
/// let mut cost = CostModel::default();
/// (cost.c1, cost.c2) = (Attos::from_ns(1), Attos(2_000_000));
/// let target = cost.cost(&CostTerms::prefill(0, 4096));
/// let longest = |history| planner::longest_chunk(&[cost], CostTerms::default(), history, u32::MAX, target);
/// assert_eq!((longest(0), longest(4096), longest(32768)), (4096, 1884, 312));
/// ```
#[must_use]
pub fn longest_chunk(stages: &[CostModel], base: CostTerms, history: u32, most: u32, target: Attos) -> u32 {
    stages.iter().fold(most, |most, stage| if most == 0 { 0 } else { longest_on(stage, &base, history, most, target) })
}

fn longest_on(cost: &CostModel, base: &CostTerms, history: u32, most: u32, target: Attos) -> u32 {
    if !cost.is_linear() {
        let fits = |x: u32| cost.cost(&base.plus(CostTerms::prefill(history, x))) <= target;
        return search(0, u64::from(most) + 1, fits);
    }
    let before = cost.cost(base).0.saturating_add(cost.c4.times(u128::from(history)));
    let Some(left) = target.0.checked_sub(before) else { return 0 };
    // x * (linear + c2 * x) <= 2 * left, with everything doubled so that x * (x + 1) / 2 stays whole.
    let twice = left.saturating_mul(2);
    let linear = cost.c1.times(2).saturating_add(cost.c2.times(2 * u128::from(history) + 1));
    let fits = |x: u32| {
        let x = u128::from(x);
        product(cost.c2.times(x).saturating_add(linear), x) <= twice
    };
    if fits(most) {
        return most;
    }
    // From here on `most` does not fit, so some coefficient is above 0 and the seed's divisor is too.
    match seed(cost.c2.0, linear, twice) {
        Some(seed) => settle(seed.min(u128::from(most)) as u32, most, fits),
        None => search(0, u64::from(most), fits),
    }
}

/// `2q / (b + sqrt(b*b + 4*a*q))`, the root of `a*x*x + b*x = q` in the form without cancellation, to about 30 bits.
fn seed(a: u128, b: u128, q: u128) -> Option<u128> {
    let square = if b >> 63 == 0 { b * b } else { b.checked_mul(b)? };
    let mixed = if (a | q) >> 62 == 0 { a * q * 4 } else { a.checked_mul(q)?.checked_mul(4)? };
    let (above, below) = (q.checked_mul(2)?, b.checked_add(root(square.checked_add(mixed)?))?);
    // Division of 64 bits is much the faster, and a seed needs no more.
    let shift = (128 - (above | below).leading_zeros()).saturating_sub(64);
    match (below >> shift) as u64 {
        0 => above.checked_div(below),
        below => Some(u128::from((above >> shift) as u64 / below)),
    }
}

/// The square root's first 32 bits.
fn root(n: u128) -> u128 {
    let shift = (128 - n.leading_zeros()).saturating_sub(64).next_multiple_of(2);
    u128::from(((n >> shift) as u64).isqrt()) << (shift / 2)
}

/// The largest x below `most` that fits, from a guess.
fn settle(guess: u32, most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    let mut step = 1;
    if fits(guess) {
        let mut low = guess;
        loop {
            let high = low.saturating_add(step).min(most);
            if high == most || !fits(high) {
                return search(low, u64::from(high), fits);
            }
            (low, step) = (high, step.saturating_mul(2));
        }
    }
    let mut high = guess;
    loop {
        let low = high.saturating_sub(step);
        if low == 0 || fits(low) {
            return search(low, u64::from(high), fits);
        }
        (high, step) = (low, step.saturating_mul(2));
    }
}

/// Bisection: `low` fits (or is 0), `high` does not.
fn search(low: u32, high: u64, fits: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (u64::from(low), high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle as u32) { low = middle } else { high = middle }
    }
    low as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splitmix::next as random;

    #[test]
    fn the_answer_fits_and_one_token_more_does_not() {
        let state = &mut 7;
        for round in 0..20_000 {
            // Sizes over many decades, some coefficients 0, now and then tiles and floors.
            let mut sized =
                |bits: u64| if random(state) % 5 == 0 { 0 } else { u128::from(random(state)) & ((1 << (random(state) % bits)) - 1) };
            let mut cost = CostModel::default();
            (cost.c0, cost.c1, cost.c2, cost.c4) = (Attos(sized(60)), Attos(sized(64)), Attos(sized(64)), Attos(sized(50)));
            if round % 4 == 0 {
                (cost.tile, cost.linear_floor, cost.prefill_read) = (sized(9) as u32, Attos(sized(60)), Attos(sized(50)));
            }
            let target = Attos(sized(64) << (random(state) % 40));
            let (history, most) =
                ((random(state) >> (32 + random(state) % 32)) as u32 / 2, (random(state) >> (34 + random(state) % 30)) as u32);
            let base = if random(state) % 2 == 0 { CostTerms::default() } else { CostTerms::decode(5000, 1) };
            let x = longest_chunk(&[cost], base, history, most, target);
            let with = |x| {
                let mut terms = base;
                terms.add(CostTerms::prefill(history, x));
                cost.cost(&terms)
            };
            assert!(x <= most && (x == 0 || with(x) <= target), "{cost:?} {target:?} {history} {most}: {x} is too long");
            assert!(x == most || with(x + 1) > target, "{cost:?} {target:?} {history} {most}: {x} is too short");
        }
    }

    #[test]
    fn the_base_chunk_at_zero_history_is_exact() {
        let cost = CostModel { c1: Attos(1_000_000), c2: Attos(2000), ..CostModel::default() };
        for base in [1, 63, 64, 2048, 4096, 131_072] {
            let target = cost.cost(&CostTerms::prefill(0, base));
            assert_eq!(longest_chunk(&[cost], CostTerms::default(), 0, u32::MAX, target), base);
        }
    }

    #[test]
    fn the_dearest_stage_rules() {
        let cheap = CostModel { c1: Attos::from_ns(1), ..CostModel::default() };
        let dear = CostModel { c1: Attos::from_ns(3), ..CostModel::default() };
        assert_eq!(longest_chunk(&[cheap, dear], CostTerms::default(), 0, 1000, Attos::from_ns(300)), 100);
        assert_eq!(longest_chunk(&[dear, cheap], CostTerms::default(), 0, 1000, Attos::from_ns(300)), 100);
    }

    #[test]
    fn ten_million_tokens_of_the_largest_coefficients_do_not_overflow() {
        let most = Attos::MAX_COEFFICIENT;
        let cost = CostModel { c0: most, c1: most, c2: most, c4: most, ..CostModel::default() };
        let target = cost.cost(&CostTerms::prefill(10_000_000, 1_000_000));
        assert_eq!(longest_chunk(&[cost], CostTerms::default(), 10_000_000, 10_000_000, target), 1_000_000);
    }
}
