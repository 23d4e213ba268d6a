//! The same fit over a whole table of measured times, without a model to start from.

use alloc::vec;
use alloc::vec::Vec;

use super::linear::{N, Row};
use super::robust::{self, Prior, Sample, Sums};
use super::{amounts, to_attos};
use crate::cost::{CostModel, CostTerms};

/// A fit over a table.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TableFit {
    /// The coefficients, none negative.
    pub model: CostModel,
    /// Standard deviation of the relative errors, outliers left out.
    pub error: f64,
    /// Rows that fit so badly that they count for nothing.
    pub rejected: usize,
}

/// A coefficient may be so many times larger than if its term alone took all the time.
const HIGH: f64 = 1e3;

/// Fits measured times (nanoseconds; 0 is left out) robustly, relative to each time. `None` without any. A coefficient whose term is 0 in all rows is 0.
/// O(rows), with an allocation: for tools, not between two batches.
///
/// ```
/// use cpp_sched::{CostTerms, planner::fit_table};
/// let times: Vec<_> = [100, 200, 400, 800, 1600].map(|x| (CostTerms::prefill(0, x), 50_000 + 1000 * u64::from(x))).to_vec();
/// let fit = fit_table(&times).expect("there are rows");
/// assert!(fit.model.c0.to_ns().abs_diff(50_000) < 500);
/// ```
#[must_use]
pub fn fit_table(times: &[(CostTerms, u64)]) -> Option<TableFit> {
    let start = CostModel::default();
    let shares = |(terms, time): &(CostTerms, u64)| amounts(&start, terms).map(|amount| amount / *time as f64);
    let used = || times.iter().filter(|(_, time)| *time > 0);
    let (mut unit, mut met) = ([0.0; N], [0.0; N]);
    for shares in used().map(shares) {
        for i in (0..N).filter(|&i| shares[i] > 0.0) {
            unit[i] += shares[i];
            met[i] += 1.0;
        }
    }
    // A term that takes all the time of the rows that have it.
    let unit: Row = core::array::from_fn(|i| if unit[i] > 0.0 { met[i] / unit[i] } else { 0.0 });
    let sample = |shares: Row| Sample { row: core::array::from_fn(|i| shares[i] * unit[i]), known: 0.0, belief: 1.0 };
    let samples: Vec<Sample> = used().map(shares).map(sample).collect();
    if samples.is_empty() {
        return None;
    }
    let prior = Prior { mean: [0.0; N], doubt: [HIGH; N], low: [0.0; N], high: [HIGH; N], spread: 0.05, spread_weight: 0.0 };
    let fit = robust::fit(&samples, &Sums::default(), &prior, &mut vec![(0.0, 0.0); samples.len()]);
    Some(TableFit { model: to_attos(&start, &fit.theta, &unit), error: fit.spread, rejected: fit.rejected })
}
