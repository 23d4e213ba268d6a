//! The planning arithmetic: how long a chunk is, how batches fill up, and what a batch should cost. Pure functions on integers, without state of
//! their own but for [`BusyPeriod`]; the scheduler calls them, tests and tools can too.
//!
//! **Why equal cost.** P equal stages run batches that cost `t_j` in `sum(t) + (P-1)*max(t)`: the order does not matter, only the sum and the
//! largest. Work `W` in M batches with `c0` each has `sum(t) = W + M*c0` however it is cut, and `max(t) >= c0 + W/M`, with equality for equal
//! costs. So batches are filled up to one common target T, and T is what is left to choose.
//!
//! **Which target.** `W + M*c0 + (P-1)*(c0 + W/M)` is least at `M* = sqrt((P-1)*W/c0)`, `T* = c0 + sqrt(c0*W/(P-1))`, where it is
//! `(sqrt(W) + sqrt((P-1)*c0))^2`, a bound for every way of cutting. W is the prefill work of the whole busy period, because the drain is paid once
//! for all its prompts; T never falls because of progress, because the largest batch so far is paid for already. M is a whole number and chunks end
//! on a grid, so near the end of a busy period, and from the start of a short one, [`choose_target`] lays the batches out exactly
//! ([`lay_out`]), for the whole numbers of batches around M*, and takes the smallest target that needs no more than so many.
//!
//! **Decodes** ride along at `d` a batch, useful work and no overhead: with `w = W + M*d` in place of W,
//! `T - c0 = (d + sqrt(d*d + 4*c0*W/(P-1))) / 2`.
//!
//! **Unequal stages**: `P-1` becomes `sum(v)/max(v) - 1` over the stages' costs v, and a batch costs what its dearest stage takes.

mod calibrate;
mod choose;
mod estimate;
mod flow;
mod layout;
mod period;
mod solve;

pub use calibrate::{Calibrator, Options as CalibratorOptions, StageCalibrator, TableFit, fit_table};
pub use choose::{Question, choose_target, ideal_target, lower_bound};
pub(crate) use layout::align_down;
pub use layout::{Grid, Layout, MAX_SEGMENTS, Rules, Segment, fitting_chunk, lay_out, smallest_chunk};
pub use period::{BusyPeriod, Work};
pub use solve::longest_chunk;

use crate::cost::{Attos, CostModel, CostTerms};

/// The stage on which the work costs most.
fn ruling(stages: &[CostModel], work: Work) -> Option<&CostModel> {
    match stages {
        [stage] => Some(stage),
        stages => stages.iter().max_by_key(|stage| work.cost(stage).0.saturating_add(stage.c0.0)),
    }
}

fn scaled(amount: u128, millionths: u64) -> u128 {
    amount
        .checked_mul(u128::from(millionths))
        .map_or_else(|| (amount / 1_000_000).saturating_mul(u128::from(millionths)), |n| n / 1_000_000)
}

/// The cost of a batch on its dearest stage. No stage, no cost.
#[must_use]
pub fn cost_of(stages: &[CostModel], terms: &CostTerms) -> Attos {
    match stages {
        [stage] => stage.cost(terms),
        stages => stages.iter().map(|stage| stage.cost(terms)).max().unwrap_or(Attos::ZERO),
    }
}
