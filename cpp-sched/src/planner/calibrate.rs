//! Fits the cost model to measured batch times while running.
//!
//! The cost is linear in its coefficients, so least squares fits it, recursively: each observation adds to a 6 x 6 matrix and a vector (the
//! information form of recursive least squares, with forgetting), and a fit solves them. Errors count relative to the time, as a percent matters and
//! not a microsecond. The given model is the prior: each coefficient is believed to within a factor of about three, and what the data do not tell
//! apart stays as it was. Coefficients are never negative.
//!
//! This is the one place of the crate that uses floating point, and no decision sees it: what comes out is a [`CostModel`] of whole attoseconds, which
//! takes effect when the caller hands it to [`Scheduler::set_cost_model`](crate::Scheduler::set_cost_model). Only additions, products, quotients and a
//! square root by iteration are used, in a fixed order, so the result is the same on every machine. Use one calibrator for each stage.
//!
//! **Excitation.** Batches of equal cost lie on one line in (tokens, pairs): on them the constant and the slopes cannot be told apart, whatever their
//! number. [`Calibrator::probe`] is the fitted model with a constant that alternates between a quarter and four times of what it is, which halves and
//! doubles the chunks and changes nothing else; plan the first prompts with it. The price is small, as the optimum is flat: half of `sqrt(kappa)`, with
//! kappa the share of the constant in the work times P - 1.

use crate::cost::{Attos, CostModel, CostTerms};

/// Coefficients.
const N: usize = 6;

/// Recursive least squares over measured batch times; the head of its file says how.
///
/// ```
/// use cpp_sched::{Attos, CostModel, CostTerms, planner::Calibrator};
/// let mut truth = CostModel::default();
/// (truth.c0, truth.c1, truth.c2) = (Attos::from_ns(2_000_000), Attos::from_ns(3000), Attos(80_000_000));
/// let mut given = truth;
/// given.c0 = Attos::from_ns(6_000_000);
/// let mut calibrator = Calibrator::new(given);
/// for (history, tokens) in [(0, 4096), (4096, 2048), (6144, 1024), (0, 512), (512, 8192), (8704, 4096)].repeat(6) {
///     let terms = CostTerms::prefill(history, tokens);
///     calibrator.observe(&terms, truth.cost(&terms).to_ns());
/// }
/// let fitted = calibrator.model();
/// assert!(fitted.c0.to_ns().abs_diff(2_000_000) < 20_000);
/// ```
#[derive(Clone, Debug)]
pub struct Calibrator {
    given: CostModel,
    options: Options,
    /// Sum of the observations' rows times themselves, in units of each one's time.
    information: [[f64; N]; N],
    /// Sum of the rows.
    target: [f64; N],
    /// Observations, with forgetting.
    weight: f64,
    /// Observations handed in, those used, and those that were left out in a row.
    seen: u64,
    used: u64,
    rejected: u32,
    /// The mean square of relative errors, of predictions made before each observation was used.
    square_error: f64,
    frozen: bool,
    fitted: CostModel,
}

/// How a [`Calibrator`] treats its observations.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::exhaustive_structs, reason = "plain numbers to override one by one")]
pub struct Options {
    /// Observations at the start that are left out: kernels are compiled, caches are cold. Default 2.
    pub warm_up: u64,
    /// Part of an observation's weight that is left after the next one, in millionths. Default 999,000.
    pub keep_millionths: u32,
    /// Times so many standard errors from what is expected are left out, unless they go on. 0: none is. Default 5.
    pub outlier: u32,
    /// Observations before the fit replaces the given model. Default 2: the given model counts as long as there are few.
    pub least: u64,
    /// Above this relative error (root mean square, in percent) the given model is kept. Default 25.
    pub worst_percent: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { warm_up: 2, keep_millionths: 999_000, outlier: 5, least: 2, worst_percent: 25 }
    }
}

/// Observations before one can be an outlier.
const EXPECTS_AFTER: u64 = 12;
/// Outliers in a row that are a new normal.
const PATIENCE: u32 = 5;
/// Relative error assumed before there is a measured one, and the least that is.
const FIRST_ERROR: f64 = 0.02;
const LEAST_ERROR: f64 = 0.002;

impl Calibrator {
    /// Starts from a model that may be a guess.
    #[must_use]
    pub fn new(given: CostModel) -> Self {
        Self::with_options(given, Options::default())
    }

    /// Starts with other options.
    #[must_use]
    pub fn with_options(given: CostModel, options: Options) -> Self {
        Self {
            given,
            options,
            information: [[0.0; N]; N],
            target: [0.0; N],
            weight: 0.0,
            seen: 0,
            used: 0,
            rejected: 0,
            square_error: FIRST_ERROR * FIRST_ERROR,
            frozen: false,
            fitted: given,
        }
    }

    /// A batch with these terms took so long on this stage. True: it was used. O(1), no allocation.
    pub fn observe(&mut self, terms: &CostTerms, measured_ns: u64) -> bool {
        self.seen += 1;
        if self.frozen || measured_ns == 0 || self.seen <= self.options.warm_up {
            return false;
        }
        let time = measured_ns as f64;
        // A fit of a few observations expects nothing yet.
        if self.used >= self.options.least.max(EXPECTS_AFTER) {
            let error = (time - self.fitted.cost(terms).0 as f64 / 1e9) / time;
            let allowed = f64::from(self.options.outlier) * root(self.square_error.max(LEAST_ERROR * LEAST_ERROR));
            if self.options.outlier > 0 && magnitude(error) > allowed && self.rejected < PATIENCE {
                self.rejected += 1;
                return false;
            }
            let share = if self.used < 50 { 0.1 } else { 0.02 };
            self.square_error += share * (error * error - self.square_error);
        }
        self.rejected = 0;
        let row = row(terms).map(|term| term / time);
        let keep = f64::from(self.options.keep_millionths) / 1e6;
        for (i, &a) in row.iter().enumerate() {
            for (j, &b) in row.iter().enumerate() {
                self.information[i][j] = self.information[i][j] * keep + a * b;
            }
            self.target[i] = self.target[i] * keep + a;
        }
        self.weight = self.weight * keep + 1.0;
        self.used += 1;
        // Solving costs about a microsecond: often at first, then now and then.
        if self.used >= self.options.least && (self.used < 64 || self.used % 16 == 0) {
            self.fitted = self.solve();
        }
        true
    }

    /// Fits at once, as after a table was read; else a fit follows within sixteen observations. O(1).
    pub fn refit(&mut self) {
        if self.used > 0 && !self.frozen {
            self.fitted = self.solve();
        }
    }

    /// From now on nothing changes any more, or changes again.
    pub const fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// The fit in whole attoseconds; the given model while there are too few observations, or when the fit is bad.
    #[must_use]
    pub fn model(&self) -> CostModel {
        if self.is_trusted() { self.fitted } else { self.given }
    }

    /// Whether [`model`](Self::model) is the fit and not the given model.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.used >= self.options.least && self.error() * 100.0 <= f64::from(self.options.worst_percent)
    }

    /// The model to plan the `turn`th prompt with, so that the data tell the coefficients apart. Plan with [`model`](Self::model) once the first
    /// prompts are through.
    #[must_use]
    pub fn probe(&self, turn: u32) -> CostModel {
        let mut model = self.model();
        model.c0 = Attos(if turn % 2 == 0 { model.c0.0 / 4 } else { model.c0.0.saturating_mul(4) }).min(Attos::MAX_COEFFICIENT);
        model
    }

    /// Relative error of predictions: root of the mean square.
    #[must_use]
    pub fn error(&self) -> f64 {
        root(self.square_error)
    }

    /// Observations that were used.
    #[must_use]
    pub const fn num_used(&self) -> u64 {
        self.used
    }

    /// Between which times, in nanoseconds, about 95 of 100 batches with these terms stay: two standard errors of a prediction there. The wider, the
    /// less the data say about such batches.
    #[must_use]
    pub fn interval(&self, terms: &CostTerms) -> (u64, u64) {
        let middle = self.model().cost(terms).0 as f64 / 1e9;
        let row = row(terms).map(|term| term / middle.max(1.0));
        // How far the batch lies from those that were seen.
        let solved = solve(&self.with_prior(), &row, &[true; N]);
        let leverage: f64 = solved.iter().zip(&row).map(|(a, b)| a * b).sum();
        let width = 2.0 * self.error() * root(1.0 + leverage.max(0.0)) * middle;
        ((middle - width).max(0.0) as u64, (middle + width) as u64)
    }

    /// The information of the data and of the prior together.
    fn with_prior(&self) -> [[f64; N]; N] {
        let mut matrix = self.information;
        let error = self.square_error.max(LEAST_ERROR * LEAST_ERROR);
        for (i, given) in coefficients(&self.given).into_iter().enumerate() {
            // A coefficient that was given as 0 may be whatever would make it a small part of the time.
            let doubt = if given > 0.0 { 3.0 * given } else { 0.1 * root(self.weight / self.information[i][i].max(1e-300)) };
            matrix[i][i] += error / (doubt * doubt).max(1e-300);
        }
        matrix
    }

    fn solve(&self) -> CostModel {
        let matrix = self.with_prior();
        let given = coefficients(&self.given);
        let mut target = self.target;
        for i in 0..N {
            target[i] += (matrix[i][i] - self.information[i][i]) * given[i];
        }
        // Coefficients that would be negative are 0, one after the other, the most negative contribution first.
        let mut free = [true; N];
        loop {
            let solution = solve(&matrix, &target, &free);
            let scaled = |i: usize| solution[i] * root(matrix[i][i]);
            let worst = (0..N).filter(|&i| free[i] && solution[i] < 0.0).min_by(|&a, &b| scaled(a).total_cmp(&scaled(b)));
            match worst {
                Some(i) => free[i] = false,
                None => return model(&self.given, solution),
            }
        }
    }
}

/// The terms in the order of the coefficients.
fn row(terms: &CostTerms) -> [f64; N] {
    [1.0, terms.tokens as f64, terms.pairs as f64, terms.decode_context as f64, terms.prefill_history as f64, terms.decodes as f64]
}

/// Coefficients in nanoseconds.
fn coefficients(model: &CostModel) -> [f64; N] {
    model.coefficients().map(|(_, value)| value.0 as f64 / 1e9)
}

fn model(given: &CostModel, coefficients: [f64; N]) -> CostModel {
    let [c0, c1, c2, c3, c4, c5] = coefficients.map(|ns| Attos((ns.max(0.0) * 1e9 + 0.5) as u128).min(Attos::MAX_COEFFICIENT));
    CostModel { c0, c1, c2, c3, c4, c5, ..*given }
}

/// Solves a symmetric positive definite system over the free unknowns (the others are 0): Cholesky, after scaling the diagonal to 1.
fn solve(matrix: &[[f64; N]; N], target: &[f64; N], free: &[bool; N]) -> [f64; N] {
    let scale: [f64; N] = core::array::from_fn(|i| 1.0 / root(matrix[i][i]).max(1e-300));
    let mut lower = [[0.0; N]; N];
    let mut half = [0.0; N];
    for i in (0..N).filter(|&i| free[i]) {
        for j in (0..=i).filter(|&j| free[j]) {
            let done: f64 = (0..j).map(|k| lower[i][k] * lower[j][k]).sum();
            let rest = matrix[i][j] * scale[i] * scale[j] - done;
            // Directions without any information are held by this.
            lower[i][j] = if i == j { root(rest.max(1e-13)) } else { rest / lower[j][j] };
        }
        let done: f64 = (0..i).map(|k| lower[i][k] * half[k]).sum();
        half[i] = (target[i] * scale[i] - done) / lower[i][i];
    }
    let mut solution = [0.0; N];
    for i in (0..N).rev().filter(|&i| free[i]) {
        let done: f64 = (i + 1..N).filter(|&k| free[k]).map(|k| lower[k][i] * solution[k]).sum();
        solution[i] = (half[i] - done) / lower[i][i];
    }
    core::array::from_fn(|i| solution[i] * scale[i])
}

fn magnitude(x: f64) -> f64 {
    if x < 0.0 { -x } else { x }
}

/// The square root, by Newton's iteration from half of the exponent: there is none without `std`.
fn root(x: f64) -> f64 {
    if x.is_nan() || x <= 0.0 {
        return 0.0;
    }
    let mut y = f64::from_bits((x.to_bits() >> 1) + (1023 << 51));
    for _ in 0..5 {
        y = 0.5 * (y + x / y);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    fn truth() -> CostModel {
        CostModel {
            c0: Attos::from_ns(2_000_000),
            c1: Attos::from_ns(3000),
            c2: Attos(80_000_000),
            c3: Attos(2_000_000_000),
            c4: Attos(1_000_000_000),
            c5: Attos::from_ns(500),
            ..CostModel::default()
        }
    }

    fn wrong(numerator: u128, denominator: u128) -> CostModel {
        let scale = |a: Attos| Attos(a.0 * numerator / denominator);
        let t = truth();
        CostModel { c0: scale(t.c0), c1: scale(t.c1), c2: scale(t.c2), c3: scale(t.c3), c4: scale(t.c4), c5: scale(t.c5), ..t }
    }

    /// Batches of many shapes: chunks, decodes, both.
    fn shapes(n: u32) -> impl Iterator<Item = CostTerms> {
        (0..n).map(|i| {
            let mut terms = CostTerms::prefill(i % 7 * 3000, 256 + i * 37 % 4000);
            for decode in 0..i % 5 * 4 {
                terms.add(CostTerms::decode(1000 + decode * i % 9000, 1));
            }
            terms
        })
    }

    #[test]
    fn the_root_is_one() {
        for x in [1e-300, 1e-9, 0.5, 1.0, 2.0, 1e18, 1e300] {
            assert!((root(x) * root(x) / x - 1.0).abs() < 1e-12, "{x}");
        }
        assert_eq!((root(0.0), root(-1.0), root(f64::NAN)), (0.0, 0.0, 0.0));
    }

    #[test]
    fn exact_times_are_fitted_from_a_model_that_is_wrong_by_three() {
        for given in [wrong(3, 1), wrong(1, 3), CostModel { c1: wrong(3, 1).c1, c4: Attos::ZERO, ..wrong(1, 3) }] {
            let mut calibrator = Calibrator::new(given);
            for terms in shapes(200) {
                calibrator.observe(&terms, truth().cost(&terms).to_ns());
            }
            assert!(calibrator.is_trusted());
            for terms in shapes(50) {
                let (is, fitted) = (truth().cost(&terms).to_ns(), calibrator.model().cost(&terms).to_ns());
                assert!(is.abs_diff(fitted) < is / 100, "{given:?}: {fitted} for {is}");
                let (low, high) = calibrator.interval(&terms);
                assert!(low <= is && is <= high);
            }
        }
    }

    #[test]
    fn warm_up_and_outliers_are_left_out_but_a_change_is_followed() {
        let mut calibrator = Calibrator::new(truth());
        let all: alloc::vec::Vec<_> = shapes(100).collect();
        for (i, terms) in all.iter().enumerate() {
            let time = truth().cost(terms).to_ns();
            let used = calibrator.observe(terms, if i < 2 || i % 20 == 19 { time * 4 } else { time });
            assert_eq!(used, i >= 2 && i % 20 != 19, "observation {i}");
        }
        for terms in all.iter().cycle().take(3000) {
            calibrator.observe(terms, wrong(2, 1).cost(terms).to_ns());
        }
        let terms = &all[50];
        assert!(calibrator.model().cost(terms).to_ns().abs_diff(wrong(2, 1).cost(terms).to_ns()) < truth().cost(terms).to_ns() / 20);
    }

    #[test]
    fn a_bad_fit_falls_back_and_a_frozen_one_stays() {
        let mut calibrator = Calibrator::with_options(truth(), Options { outlier: 0, ..Options::default() });
        for (i, terms) in shapes(200).enumerate() {
            calibrator.observe(&terms, truth().cost(&terms).to_ns() * [1, 9, 3, 30][i % 4]);
        }
        assert!(!calibrator.is_trusted());
        assert_eq!(calibrator.model(), truth());
        calibrator.freeze(true);
        assert!(!calibrator.observe(&CostTerms::prefill(0, 100), 1_000_000));
    }

    #[test]
    fn nothing_breaks_on_extremes() {
        let mut calibrator = Calibrator::new(CostModel::default());
        for i in 0..100 {
            let terms = CostTerms::prefill(u32::MAX / 2, (u32::MAX / 2) >> (i % 31));
            calibrator.observe(&terms, if i % 3 == 0 { 1 } else { u64::MAX });
            calibrator.observe(&CostTerms::default(), i);
        }
        let model = calibrator.model();
        assert!(model.coefficients().iter().all(|(_, value)| *value <= Attos::MAX_COEFFICIENT));
        let _ = calibrator.interval(&CostTerms::prefill(0, 1));
    }
}
