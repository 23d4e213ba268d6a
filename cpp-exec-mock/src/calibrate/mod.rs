//! A cost model from a table of measured times, and how far it can be trusted.
//!
//! Each group of rows (one GPU, one operation, ...) gets a fit of its own, by the same least squares that the kernel's
//! [`Calibrator`](cpp_sched::planner::Calibrator) uses while running: relative errors, no negative coefficients. A fit is judged by the median and
//! the worst relative error, over all rows and by range; by rows that it has not seen: fitted again without every fifth row and asked about those; and
//! by how it extrapolates: fitted again on the half of the rows with the shorter histories (or fewer tokens) and asked about the longest quarter. A
//! coefficient of determination would flatter: it looks at the largest times only.

mod table;

pub use table::{Group, Row, Table, TableError};

use cpp_sched::planner::fit_table;
use cpp_sched::{CostModel, CostTerms};

/// Relative errors of a set of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Errors {
    /// How many rows.
    pub rows: usize,
    /// Half of them are nearer.
    pub median: f64,
    /// The farthest.
    pub worst: f64,
}

/// A range of one quantity, and the errors of the rows in it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Range {
    /// What is measured: new tokens, history, decodes, context.
    pub of: &'static str,
    /// From this on.
    pub from: u64,
    /// Up to this, not included.
    pub to: u64,
    /// The errors there.
    pub errors: Errors,
}

/// A fit, and what is known about it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Fit {
    /// The coefficients.
    pub model: CostModel,
    /// Over all rows.
    pub all: Errors,
    /// By range.
    pub ranges: Vec<Range>,
    /// Fitted without every fifth row, asked about those. None below ten rows.
    pub held_out: Option<Errors>,
    /// Fitted on the half with the smaller sizes, asked about the quarter with the largest.
    pub beyond: Option<Errors>,
}

/// Above this median error a range is not to be trusted.
pub const UNTRUSTED_MEDIAN: f64 = 0.10;
/// Above this worst error a range is not to be trusted.
pub const UNTRUSTED_WORST: f64 = 0.30;

/// Every how manieth row is held out.
const HELD_OUT: usize = 5;

impl Errors {
    fn of<'a>(model: &CostModel, rows: impl Iterator<Item = &'a Row>) -> Option<Self> {
        let mut errors: Vec<f64> = rows.map(|row| (model.cost(&row.terms).to_ns() as f64 / row.time_ns as f64 - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        let worst = *errors.last()?;
        Some(Self { rows: errors.len(), median: errors[errors.len() / 2], worst })
    }

    /// Whether a model with such errors can be planned with.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.median <= UNTRUSTED_MEDIAN && self.worst <= UNTRUSTED_WORST
    }
}

/// Fits one group. `None` without rows.
#[must_use]
pub fn fit(group: &Group) -> Option<Fit> {
    let model = least_squares(group.rows.iter())?;
    let all = Errors::of(&model, group.rows.iter())?;
    let mut ranges = Vec::new();
    for (of, size) in SIZES {
        for power in 0..31 {
            // Powers of four: enough to see where a law ends.
            let (from, to) = (if power == 0 { 0 } else { 1u64 << (2 * power) }, 1u64 << (2 * power + 2));
            let inside = group.rows.iter().filter(|row| (from..to).contains(&size(row)));
            ranges.extend(Errors::of(&model, inside).map(|errors| Range { of, from, to, errors }));
        }
    }
    // A quantity of which there is one range alone says nothing.
    let several: Vec<&str> =
        SIZES.iter().map(|(of, _)| *of).filter(|of| ranges.iter().filter(|range| range.of == *of).count() > 1).collect();
    ranges.retain(|range| several.contains(&range.of));
    Some(Fit { model, all, ranges, held_out: held_out(group), beyond: beyond(group) })
}

/// How a fit does on rows that it has not seen, among those that it has.
fn held_out(group: &Group) -> Option<Errors> {
    if group.rows.len() < 2 * HELD_OUT {
        return None;
    }
    let part =
        |unseen: bool| group.rows.iter().enumerate().filter(move |(i, _)| (i % HELD_OUT == HELD_OUT - 1) == unseen).map(|(_, row)| row);
    let model = least_squares(part(false))?;
    Errors::of(&model, part(true))
}

type Size = fn(&Row) -> u64;

const SIZES: [(&str, Size); 4] = [
    ("new tokens", |row| row.new_tokens),
    ("history", |row| row.terms.prefill_history),
    ("decodes", |row| row.terms.decodes),
    ("mean context", |row| row.terms.decode_context.checked_div(row.terms.decodes).unwrap_or(0)),
];

/// How a fit extrapolates along the quantity that has most different values among history, context and tokens.
fn beyond(group: &Group) -> Option<Errors> {
    let (_, size) = SIZES[1..2].iter().chain(&SIZES[3..]).chain(&SIZES[..1]).find(|(_, size)| {
        let mut values: Vec<u64> = group.rows.iter().map(size).collect();
        values.sort_unstable();
        values.dedup();
        values.len() >= 8
    })?;
    let mut sizes: Vec<u64> = group.rows.iter().map(size).collect();
    sizes.sort_unstable();
    let (half, last) = (sizes[sizes.len() / 2], sizes[sizes.len() * 3 / 4]);
    if half >= last {
        return None;
    }
    let model = least_squares(group.rows.iter().filter(|row| size(row) <= half))?;
    Errors::of(&model, group.rows.iter().filter(|row| size(row) > last))
}

fn least_squares<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<CostModel> {
    let times: Vec<_> = rows.map(|row| (row.terms, row.time_ns)).collect();
    fit_table(&times).map(|fit| fit.model)
}

impl Row {
    /// A row: a prefill chunk, decodes with a mean context, or both; and how long they took.
    #[must_use]
    pub fn new(history: u32, new_tokens: u32, decodes: u32, context: u32, time_ns: u64) -> Self {
        let mut terms = if new_tokens > 0 { CostTerms::prefill(history, new_tokens) } else { CostTerms::default() };
        terms.tokens += u64::from(decodes);
        terms.decodes = decodes.into();
        terms.decode_context = u64::from(decodes) * u64::from(context);
        Self { terms, new_tokens: new_tokens.into(), time_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpp_sched::Attos;

    #[test]
    fn an_exact_table_gives_its_coefficients_and_no_error() {
        let mut truth = CostModel::default();
        (truth.c0, truth.c1, truth.c2, truth.c4) = (Attos::from_ns(50_000), Attos::from_ns(900), Attos(40_000_000), Attos(700_000_000));
        let mut rows = Vec::new();
        for history in (0..20_000).step_by(1000) {
            for tokens in [64, 256, 512, 1000, 4096] {
                let row = Row::new(history, tokens, 0, 0, 0);
                rows.push(Row { time_ns: truth.cost(&row.terms).to_ns(), ..row });
            }
        }
        let fit = fit(&Group { name: String::new(), rows }).unwrap();
        assert!(fit.all.worst < 0.002, "{fit:?}");
        assert!(fit.held_out.is_some_and(|errors| errors.rows == 20 && errors.worst < 0.002), "{fit:?}");
        assert!(fit.beyond.unwrap().worst < 0.01, "{fit:?}");
        assert!(fit.ranges.iter().all(|range| range.errors.is_trusted() && range.errors.rows > 0));
        for ((name, fitted), (_, is)) in fit.model.coefficients().into_iter().zip(truth.coefficients()) {
            assert!(fitted.0.abs_diff(is.0) <= is.0 / 50 + 1_000_000, "{name}: {fitted:?} for {is:?}");
        }
    }

    #[test]
    fn a_floor_shows_as_a_range_that_is_not_to_be_trusted() {
        let rows = (1..200).map(|i| Row::new(0, i * 16, 0, 0, 200_000.max(u64::from(i) * 16 * 1000))).collect();
        let fit = fit(&Group { name: String::new(), rows }).unwrap();
        assert!(fit.ranges.iter().any(|range| !range.errors.is_trusted()), "{fit:?}");
    }
}
