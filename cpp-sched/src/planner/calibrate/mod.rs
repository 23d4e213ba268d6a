//! Fits the cost model to measured batch times while running.
//!
//! The cost is linear in its coefficients, so least squares fits it. Measured times are not well-behaved: the first batches compile kernels, one in some
//! dozens takes several times as long, and each is off by a few percent. So an observation first waits in a window of 64, where a robust fit
//! (`robust.rs`) gives it a weight that a minority of wrong times cannot spoil; the older half then goes, with the weights found, into recursive sums
//! (recursive least squares in its information form), so that memory is bounded. Sums are forgotten along the direction of what comes new, and nowhere
//! else: a week of decodes does not wipe out what prompts cost.
//!
//! The given model is the prior: each coefficient is believed to within a factor of about three, and what the data do not tell apart stays as it was.
//! Coefficients stay within a factor of [`Options::bound`] of what was given, so none is ever negative or absurd. A fit whose errors are large, which
//! leaves out too many observations, or which has lately predicted worse than the given model is not used: [`Calibrator::model`] is then the given one.
//!
//! This is the one place of the crate that uses floating point, and no decision sees it: what comes out is a [`CostModel`] of whole attoseconds, which
//! takes effect when the caller hands it to [`Scheduler::set_stage_costs`](crate::Scheduler::set_stage_costs). Only sums, products, quotients and a
//! square root by iteration are used, in a fixed order, so the result is the same on every machine with IEEE 754 doubles.
//!
//! **Excitation.** Batches of equal cost lie on one line in (tokens, pairs): on them the constant and the slopes cannot be told apart, whatever their
//! number. While the constant is uncertain, [`StageCalibrator`] therefore hands out models whose constant is a tenth of the fitted one, which makes chunks
//! about a third as long, never longer: shorter ones cost some constants, longer ones lengthen the drain of all. It acts at the start of a busy period;
//! within one the target does not fall below what is paid for. [`set_probing`](StageCalibrator::set_probing) turns it off.
//!
//! **Stages together.** A batch costs what its dearest stage takes, so the worst of all fits would rule every plan. The stages of a pipeline are built
//! alike: a further fit, of the median of their times, stands in for a stage, times its share, as far as that one's constant is uncertain.
//!
//! The example `planner_calibration` of `cpp-exec-mock` starts from coefficients that are wrong by a factor of three and tells what learning costs and
//! what it comes to.

mod linear;
mod robust;
mod stages;
mod table;

pub use stages::StageCalibrator;
pub use table::{TableFit, fit_table};

use crate::cost::{Attos, CostModel, CostTerms};
use linear::{Matrix, N, Row, dot, magnitude, median, root, solve};
use robust::{Fitted, Prior, Sample, Sums};

/// Observations whose weight is still open.
const WINDOW: usize = 64;
/// Predictions that are looked back at.
const LOOK_BACK: usize = 16;
/// Outliers of one sign in a row that are a new normal, once so many observations were used.
const PATIENCE: u32 = 8;
const SETTLED: u64 = 24;
/// What older observations are worth after a change.
const AFTER_CHANGE: f64 = 0.05;
/// The relative error assumed before there is a measured one, and how many observations that belief is worth.
const FIRST_SPREAD: f64 = 0.04;
const FIRST_WEIGHT: f64 = 4.0;
/// The observation from which on each counts in full.
const BELIEVED: f64 = 8.0;
/// A coefficient that was given as 0 has this part of a batch's time as its unit.
const ZERO_UNIT: f64 = 0.1;

/// Least squares over measured batch times, safe against outliers; the head of its file says how. Use one for each stage, or [`StageCalibrator`].
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
/// calibrator.refit();
/// let fitted = calibrator.model();
/// assert!(fitted.c0.to_ns().abs_diff(2_000_000) < 20_000);
/// ```
#[derive(Clone, Debug)]
pub struct Calibrator {
    given: CostModel,
    options: Options,
    /// Nanoseconds that 1 of a coefficient stands for: what was given. 0 while a coefficient that was given as 0 has not been met.
    unit: Row,
    sums: Sums,
    /// The newest observations, oldest first.
    window: [Sample; WINDOW],
    waiting: usize,
    /// Of them, those that the last fit has not seen.
    unfitted: usize,
    fit: Fitted,
    fitted: CostModel,
    trusted: bool,
    /// Observations handed in, and those used.
    seen: u64,
    used: u64,
    /// Of them, those that the last fit knew of.
    fitted_at: u64,
    /// Outliers in a row: the batches took longer (above 0) or less long.
    streak: i32,
    /// Relative errors of the latest predictions, made before the observation was used: by the fit, and by the given model.
    errors: [[f64; LOOK_BACK]; 2],
    frozen: bool,
}

/// How a [`Calibrator`] treats its observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "plain numbers to override one by one")]
pub struct Options {
    /// Observations at the start that are left out: kernels are compiled, caches are cold. More of them do no harm as long as they are a minority.
    /// Default 2.
    pub warm_up: u64,
    /// Part of what is known along the direction of an observation that is left after it, in millionths. Default 999,000.
    pub keep_millionths: u32,
    /// Observations before the fit replaces the given model. Default 4: the given model counts as long as there are few.
    pub least: u64,
    /// Above this spread of relative errors, in percent, the given model is kept. Default 25.
    pub worst_percent: u32,
    /// Above this share of observations that do not fit, in percent, the given model is kept. Default 40.
    pub most_rejected_percent: u32,
    /// A coefficient stays between what was given divided by this and times this. One that was given as 0 stays below this times a tenth of what the given
    /// model says that a batch takes. Default 100.
    pub bound: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { warm_up: 2, keep_millionths: 999_000, least: 4, worst_percent: 25, most_rejected_percent: 40, bound: 100 }
    }
}

impl Calibrator {
    /// Starts from a model that may be a guess. A coefficient of 0 in it is a guess as well: that this term hardly counts.
    #[must_use]
    pub fn new(given: CostModel) -> Self {
        Self::with_options(given, Options::default())
    }

    /// Starts with other options. Coefficients above [`Attos::MAX_COEFFICIENT`](crate::Attos::MAX_COEFFICIENT) are cut to that.
    #[must_use]
    pub fn with_options(given: CostModel, options: Options) -> Self {
        let given = given.bounded();
        Self {
            given,
            options,
            unit: coefficients(&given),
            sums: Sums::default(),
            window: [Sample::default(); WINDOW],
            waiting: 0,
            unfitted: 0,
            fit: Fitted { theta: [1.0; N], spread: FIRST_SPREAD, rejected: 0, rejected_share: 0.0, matrix: Matrix::default() },
            fitted: given,
            trusted: false,
            seen: 0,
            used: 0,
            fitted_at: 0,
            streak: 0,
            errors: [[0.0; LOOK_BACK]; 2],
            frozen: false,
        }
    }

    /// A batch with these terms took so long on this stage. True: it was taken in, which leaves open what weight it gets. False: frozen, warming up, or
    /// there is nothing to learn from it (no time, no tokens). O(1) but for every 32nd call, which fits as [`refit`](Self::refit) does; no allocation.
    pub fn observe(&mut self, terms: &CostTerms, measured_ns: u64) -> bool {
        if self.frozen {
            return false;
        }
        self.seen = self.seen.saturating_add(1);
        if measured_ns == 0 || terms.tokens == 0 || self.seen <= self.options.warm_up {
            return false;
        }
        let sample = self.sample(terms, measured_ns);
        self.look_back(terms, measured_ns);
        if self.fitted_at >= SETTLED {
            self.notice_change(&sample);
        }
        if self.waiting == WINDOW {
            self.refit();
            self.absorb(WINDOW / 2);
        }
        self.window[self.waiting] = sample;
        self.waiting += 1;
        self.unfitted += 1;
        self.used += 1;
        true
    }

    /// Fits what was observed since the last time; true if there was anything. Call it between two batches, before [`model`](Self::model). O(window) in
    /// 21 passes, no allocation: 13 microseconds with 4 observations in the window and 35 with all 64, measured by the example `planner_decision` of
    /// `cpp-exec-mock`.
    pub fn refit(&mut self) -> bool {
        if self.frozen || self.unfitted == 0 {
            return false;
        }
        let mut scratch = [(0.0, 0.0); WINDOW];
        let fit = robust::fit(&self.window[..self.waiting], &self.sums, &self.prior(), &mut scratch);
        self.unfitted = 0;
        self.fitted_at = self.used;
        if fit.theta.iter().all(|value| value.is_finite()) {
            self.fit = fit;
            self.fitted = to_attos(&self.given, &fit.theta, &self.unit);
        }
        self.trusted = self.is_good();
        true
    }

    /// From now on nothing changes any more, or changes again.
    pub const fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// The last fit in whole attoseconds; the given model while there are too few observations, or when the fit is bad.
    #[must_use]
    pub const fn model(&self) -> CostModel {
        if self.trusted { self.fitted } else { self.given }
    }

    /// The model that was given.
    #[must_use]
    pub const fn given(&self) -> CostModel {
        self.given
    }

    /// Whether [`model`](Self::model) is the fit and not the given model.
    #[must_use]
    pub const fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// Spread of the relative errors, outliers left out: their standard deviation.
    #[must_use]
    pub const fn error(&self) -> f64 {
        self.fit.spread
    }

    /// Observations that were taken in.
    #[must_use]
    pub const fn num_used(&self) -> u64 {
        self.used
    }

    /// How uncertain each coefficient is: its standard error as a part of it, in percent, at most 1000. What the data say nothing about has the
    /// uncertainty of the given model, 100.
    #[must_use]
    pub fn doubts(&self) -> [u32; N] {
        if self.fit.matrix[0][0] == 0.0 {
            return [100; N];
        }
        core::array::from_fn(|i| {
            let unit: Row = core::array::from_fn(|j| f64::from(u8::from(i == j)));
            let variance = solve(&self.fit.matrix, &unit, &[None; N])[i];
            let part = self.fit.spread * root(variance) / self.fit.theta[i].max(1e-9);
            (part * 100.0).min(1000.0) as u32
        })
    }

    /// Between which times, in nanoseconds, about 95 of 100 batches with these terms stay: two standard errors of a prediction there. The wider, the
    /// less the data say about such batches.
    #[must_use]
    pub fn interval(&self, terms: &CostTerms) -> (u64, u64) {
        let middle = self.model().cost(terms).0 as f64 / 1e9;
        let row = self.row(terms, middle.max(1.0));
        // How far the batch lies from those that were seen.
        let leverage = if self.fit.matrix[0][0] == 0.0 { 0.0 } else { dot(&solve(&self.fit.matrix, &row, &[None; N]), &row) };
        let width = 2.0 * self.error() * root(1.0 + leverage.max(0.0)) * middle;
        ((middle - width).max(0.0) as u64, (middle + width) as u64)
    }

    fn sample(&mut self, terms: &CostTerms, measured_ns: u64) -> Sample {
        let time = measured_ns as f64;
        let guess = self.given.cost(terms).0 as f64 / 1e9;
        let guess = if guess > 0.0 { guess } else { time };
        for (unit, amount) in self.unit.iter_mut().zip(amounts(&self.given, terms)) {
            if *unit == 0.0 && amount > 0.0 {
                *unit = (ZERO_UNIT * guess / amount).min(Attos::MAX_COEFFICIENT.0 as f64 / 1e9);
            }
        }
        // Nobody knows how long a machine warms up: at first each observation counts a little more than the one before.
        let belief = ((self.used + 1) as f64 / BELIEVED).min(1.0);
        Sample { row: self.row(terms, time), known: floors(&self.fitted, terms).known / time, belief }
    }

    /// What a unit of each coefficient contributes to a batch, as a part of this time.
    fn row(&self, terms: &CostTerms, time: f64) -> Row {
        let floors = floors(&self.fitted, terms);
        let amounts = amounts(&self.given, terms);
        core::array::from_fn(|i| if floors.binding[i] { 0.0 } else { amounts[i] * self.unit[i] / time })
    }

    fn prior(&self) -> Prior {
        let bound = f64::from(self.options.bound.max(1));
        let given = coefficients(&self.given).map(|value| value > 0.0);
        let pick = |given_as_some: f64, given_as_zero: f64| given.map(|some| if some { given_as_some } else { given_as_zero });
        let (spread, spread_weight) =
            if self.sums.weight > 0.0 { (self.fit.spread, self.sums.weight.min(WINDOW as f64)) } else { (FIRST_SPREAD, FIRST_WEIGHT) };
        Prior {
            mean: pick(1.0, 0.0),
            doubt: pick(1.0, if self.used < SETTLED { 0.001 } else { 0.3 }),
            low: pick(1.0 / bound, 0.0),
            high: [bound; N],
            spread,
            spread_weight,
        }
    }

    /// The oldest observations go into the sums, with the weights that the last fit gave them.
    fn absorb(&mut self, count: usize) {
        let lost = 1.0 - f64::from(self.options.keep_millionths.min(1_000_000)) / 1e6;
        for sample in &self.window[..count] {
            let weight = sample.weight(&self.fit.theta, self.fit.spread);
            if weight > 0.0 {
                self.sums.forget_along(sample, lost);
                self.sums.add(sample, weight);
            }
        }
        self.window.copy_within(count..self.waiting, 0);
        self.waiting -= count;
    }

    /// Many outliers of one sign in a row are a machine that has changed: what came before counts little from then on.
    fn notice_change(&mut self, sample: &Sample) {
        let outside = sample.weight(&self.fit.theta, self.fit.spread) == 0.0;
        let sign = if sample.error(&self.fit.theta) > 0.0 { 1 } else { -1 };
        self.streak = match outside {
            true if self.streak.signum() == -sign => sign,
            true => self.streak + sign,
            false => 0,
        };
        let newest = self.streak.unsigned_abs() as usize - usize::from(outside);
        if self.streak.unsigned_abs() >= PATIENCE && self.waiting >= newest {
            self.absorb(self.waiting - newest);
            self.sums.shrink((AFTER_CHANGE / self.sums.weight.max(AFTER_CHANGE)).min(1.0));
            self.streak = 0;
            // Nothing is judged again before the next fit.
            self.fitted_at = 0;
        }
    }

    fn look_back(&mut self, terms: &CostTerms, measured_ns: u64) {
        let at = self.used as usize % LOOK_BACK;
        for (errors, model) in self.errors.iter_mut().zip([&self.fitted, &self.given]) {
            let (is, said) = (measured_ns as f64, model.cost(terms).0 as f64 / 1e9);
            errors[at] = magnitude(is - said) / is.max(said);
        }
    }

    fn is_good(&self) -> bool {
        let percent = |part: f64, of: u32| part * 100.0 <= f64::from(of);
        let [mut fitted, mut given] = self.errors;
        // A fit of a few observations has predicted nothing yet.
        let looked_back = self.used >= LOOK_BACK as u64 * 2;
        self.used >= self.options.least
            && percent(self.fit.spread, self.options.worst_percent)
            && percent(self.fit.rejected_share, self.options.most_rejected_percent)
            && !(looked_back && median(&mut fitted) > 1.5 * median(&mut given) + self.fit.spread)
    }
}

/// The model to plan with so that the data tell the coefficients apart: its constant is a tenth, so chunks become about a third as long.
fn probing(model: &CostModel) -> CostModel {
    CostModel { c0: Attos(model.c0.0 / 10), ..*model }
}

fn to_attos(model: &CostModel, theta: &Row, unit: &Row) -> CostModel {
    let attos = |i: usize| Attos((theta[i] * unit[i] * 1e9 + 0.5) as u128).min(Attos::MAX_COEFFICIENT);
    let [c0, c1, c2, c3, c4, c5] = core::array::from_fn(attos);
    CostModel { c0, c1, c2, c3, c4, c5, ..*model }
}

/// What each coefficient is multiplied with.
fn amounts(model: &CostModel, terms: &CostTerms) -> Row {
    let tile = u64::from(model.tile.max(1));
    let tokens = terms.tokens.div_ceil(tile) as f64 * tile as f64;
    [1.0, tokens, terms.pairs as f64, terms.decode_context as f64, terms.prefill_history as f64, terms.decodes as f64]
}

/// Floors that the model's products do not reach: those coefficients do not show in such a batch, and its time holds the floors instead.
struct Floors {
    binding: [bool; N],
    /// Nanoseconds.
    known: f64,
}

fn floors(model: &CostModel, terms: &CostTerms) -> Floors {
    let mut floors = Floors { binding: [false; N], known: 0.0 };
    if model.is_linear() {
        return floors;
    }
    let computed = amounts(model, terms);
    let reading = [
        (1, model.linear_floor.0 as f64),
        (2, model.prefill_read.0 as f64 * (terms.prefill_history as f64 + terms.tokens.saturating_sub(terms.decodes) as f64)),
    ];
    for (i, read) in reading {
        if computed[i] > 0.0 && read > computed[i] * model.coefficients()[i].1.0 as f64 {
            floors.binding[i] = true;
            floors.known += read / 1e9;
        }
    }
    floors
}

/// Coefficients in nanoseconds.
fn coefficients(model: &CostModel) -> Row {
    model.coefficients().map(|(_, value)| value.0 as f64 / 1e9)
}

#[cfg(test)]
mod tests;
