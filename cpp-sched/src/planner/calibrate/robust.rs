//! Least squares that a minority of wrong times cannot move.
//!
//! An error counts relative to the larger of the measured and the predicted time, so it lies between -1 and 1 whatever was measured: a time of nothing
//! and one of an hour weigh alike. The fit starts as one of least absolute errors, takes the spread of the errors from their median (which half of them
//! cannot spoil), and goes on with Tukey's biweight: what lies farther out than 4.685 spreads counts for nothing, what lies inside counts nearly full.
//! Steps are counted, not tested, so equal inputs give equal bits.

use super::linear::{Matrix, N, Row, TINY, dot, magnitude, root, solve_within, times};

/// One measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// What a unit of each coefficient contributes, as a part of the time.
    pub(super) row: Row,
    /// What does not depend on the coefficients, as a part of the time.
    pub(super) known: f64,
    /// How much it counts from the outset, 0 to 1.
    pub(super) belief: f64,
}

impl Sample {
    /// The error of these coefficients: above 0 if the batch took longer than predicted.
    pub(super) fn error(&self, theta: &Row) -> f64 {
        let predicted = dot(&self.row, theta) + self.known;
        if predicted > 1.0 { 1.0 / predicted - 1.0 } else { 1.0 - predicted }
    }

    /// The weight of this sample's squared error, in parts of its time, so that it becomes one in parts of the larger of both times.
    fn scale(&self, theta: &Row) -> f64 {
        let larger = (dot(&self.row, theta) + self.known).max(1.0);
        self.belief / (larger * larger)
    }

    /// The sample's weight under the biweight, its scale included.
    pub(super) fn weight(&self, theta: &Row, spread: f64) -> f64 {
        let part = self.error(theta) / (CUT * spread);
        let inside = 1.0 - part * part;
        if inside > 0.0 { inside * inside * self.scale(theta) } else { 0.0 }
    }
}

/// Normal equations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) matrix: Matrix,
    target: Row,
    pub(super) weight: f64,
}

impl Sums {
    pub(super) fn add(&mut self, sample: &Sample, weight: f64) {
        for i in 0..N {
            let weighted = weight * sample.row[i];
            // The lower half alone: nothing reads the upper one.
            for j in 0..=i {
                self.matrix[i][j] += weighted * sample.row[j];
            }
            self.target[i] += weighted * (1.0 - sample.known);
        }
        self.weight += weight;
    }

    /// Takes away a part of what is known along the direction of a sample, and nothing of what is known otherwise: a week of decodes must not make
    /// forget what prompts cost. With `R` the matrix and `h` the target, `R - part * (Rx)(Rx)' / x'Rx`, and `h - part * Rx * (x'h) / x'Rx`.
    pub(super) fn forget_along(&mut self, sample: &Sample, part: f64) {
        let x = &sample.row;
        let along = times(&self.matrix, x);
        let amount = dot(&along, x);
        if amount.is_nan() || amount <= 0.0 {
            return;
        }
        let held = dot(x, &self.target);
        for i in 0..N {
            for j in 0..=i {
                self.matrix[i][j] -= part * along[i] * along[j] / amount;
            }
            self.target[i] -= part * along[i] * held / amount;
        }
        self.weight *= 1.0 - part;
    }

    pub(super) fn shrink(&mut self, factor: f64) {
        self.matrix.iter_mut().flatten().chain(&mut self.target).for_each(|cell| *cell *= factor);
        self.weight *= factor;
    }
}

/// What is believed before any sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prior {
    pub(super) mean: Row,
    /// Standard deviations.
    pub(super) doubt: Row,
    pub(super) low: Row,
    pub(super) high: Row,
    /// The spread of relative errors, and how many samples that belief is worth.
    pub(super) spread: f64,
    pub(super) spread_weight: f64,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fitted {
    pub(super) theta: Row,
    /// The spread of relative errors: their standard deviation, outliers left out.
    pub(super) spread: f64,
    /// Samples that count for nothing.
    pub(super) rejected: usize,
    /// Their share, by belief.
    pub(super) rejected_share: f64,
    /// The normal equations with the prior, in units of the spread's square.
    pub(super) matrix: Matrix,
}

/// Tukey's constant: 95 % as good as least squares where errors are normal.
const CUT: f64 = 4.685;
/// The median of absolute normal errors times this is their standard deviation.
const NORMAL: f64 = 1.4826;
/// Below this, errors count as squares in the first round.
const SMALL: f64 = 0.02;
/// No spread is believed to be less: timers and clocks of GPUs are not better.
const LEAST_SPREAD: f64 = 0.002;
/// No noise is believed to be more, against the prior.
const MOST_NOISE: f64 = 0.1;
/// Steps of either round.
const FIRST_STEPS: usize = 12;
const LAST_STEPS: usize = 8;

/// Fits the samples together with what older ones left in `sums`. `scratch` is as long as the samples. O(samples), 20 passes.
pub(super) fn fit(samples: &[Sample], sums: &Sums, prior: &Prior, scratch: &mut [(f64, f64)]) -> Fitted {
    let mut theta = prior.mean;
    let mut spread = prior.spread;
    let solve = |weight: &dyn Fn(&Sample) -> f64, spread: f64| {
        let mut total = *sums;
        samples.iter().for_each(|sample| total.add(sample, weight(sample)));
        // Errors that are large because the prior is wrong must not make it weigh more.
        let noise = spread.min(MOST_NOISE);
        for i in 0..N {
            let belief = noise * noise / (prior.doubt[i] * prior.doubt[i]);
            total.matrix[i][i] += belief;
            total.target[i] += belief * prior.mean[i];
        }
        (solve_within(&total.matrix, &total.target, &prior.low, &prior.high), total.matrix)
    };
    for _ in 0..FIRST_STEPS {
        let now = theta;
        theta = solve(&|sample| sample.scale(&now) * SMALL / magnitude(sample.error(&now)).max(SMALL), spread).0;
    }
    for step in 0..LAST_STEPS {
        // The spread settles in half of the steps, and then stands still.
        if step < LAST_STEPS / 2 {
            spread = spread_of(samples, &theta, prior, scratch);
        }
        let now = theta;
        theta = solve(&|sample| sample.weight(&now, spread), spread).0;
    }
    let (last, matrix) = solve(&|sample| sample.weight(&theta, spread), spread);
    let rejected = || samples.iter().filter(|sample| sample.weight(&last, spread) == 0.0);
    let all: f64 = samples.iter().map(|sample| sample.belief).sum();
    let rejected_share = rejected().map(|sample| sample.belief).sum::<f64>() / all.max(TINY);
    Fitted { theta: last, spread, rejected: rejected().count(), rejected_share, matrix }
}

/// The spread of the errors from their median, larger by what the fit itself takes away, and drawn to what was believed while there are few.
fn spread_of(samples: &[Sample], theta: &Row, prior: &Prior, scratch: &mut [(f64, f64)]) -> f64 {
    for (error, sample) in scratch.iter_mut().zip(samples) {
        *error = (magnitude(sample.error(theta)), sample.belief);
    }
    let unknowns = (0..N).filter(|&i| samples.iter().any(|sample| sample.row[i] > 0.0)).count() as f64;
    let n: f64 = samples.iter().map(|sample| sample.belief).sum();
    let found = NORMAL * weighted_median(&mut scratch[..samples.len()]) * root(n / (n - unknowns).max(n / 4.0).max(1.0)).max(1.0);
    let believed = prior.spread_weight;
    root((n * found * found + believed * prior.spread * prior.spread) / (n + believed).max(1.0)).max(LEAST_SPREAD)
}

/// The value that half of the weight lies below. Reorders; 0 of none.
fn weighted_median(values: &mut [(f64, f64)]) -> f64 {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    values
        .iter()
        .find(|(_, weight)| {
            below += weight;
            below >= half
        })
        .map_or(0.0, |(value, _)| *value)
}
