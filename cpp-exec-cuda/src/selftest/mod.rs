//! `cpp-run selftest`: what a GPU must show before it is trusted, and how fast it is beside what it could be.
//!
//! Correctness first: [every kernel](check_kernels) against plain arithmetic, then [stages](TestModel) against the processor. Figures are measured
//! where this runs, next to ceilings that are measured there as well; what was not measured is said to be so. What needs processes is the
//! command's business, which starts them.

mod attention;
mod bench;
mod error;
mod kernels;
mod overlap;
mod pipeline;
mod random;
mod report;
mod shape;
mod speed;

use std::sync::Arc;

pub use error::SelftestError;
pub use kernels::{KernelCheck, KernelChecks, check_kernels};
pub use pipeline::{Answer, TOLERANCE, TestModel};
pub use report::{Goal, Line, Outcome, Report, Unit};

use crate::cuda::{Gpu, KERNELS};
use shape::Shape;

/// How much is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "what must be decided")]
pub struct SelftestOptions {
    /// Sizes at which an emulation runs in seconds. Every line is executed; figures mean nothing.
    pub tiny: bool,
    /// What random batches are drawn from.
    pub seed: u64,
    /// Random batches for each kernel.
    pub batches: u64,
    /// Small decodes are measured as graphs.
    pub graphs: bool,
}

/// Who hears of a selftest while it goes on: a later step may take minutes, or never end.
pub trait Listener {
    /// Something begins.
    fn begins(&mut self, what: &str);
    /// Something has come out.
    fn line(&mut self, line: Line);
}

/// Kernels on random batches.
pub fn kernels(gpu: &Arc<Gpu>, options: &SelftestOptions, to: &mut dyn Listener) {
    to.begins("kernels");
    let checks = match check_kernels(gpu, options.seed, options.batches) {
        Ok(checks) => checks,
        Err(error) => return to.line(Line::check("kernels", false, error.to_string())),
    };
    for kernel in KERNELS {
        let check = checks.get(kernel).copied().unwrap_or_default();
        let text = format!("{} numbers, worst error {:.3} of what is tolerated", check.numbers, check.worst);
        to.line(Line::check(format!("kernel {kernel}"), check.numbers > 0 && check.worst <= 1.0, text));
    }
}

/// One stage and two, as threads with one GPU.
pub fn stages(gpu: &Arc<Gpu>, model: &Arc<TestModel>, to: &mut dyn Listener) {
    to.begins("stages as threads");
    to.line(model.line_of_logits(gpu));
    let ways = [
        (1, false, "1 stage"),
        (2, false, "2 stages, threads, through the host"),
        (2, true, "2 stages, threads, on the device"),
        (4, true, "4 stages, threads, on the device"),
    ];
    for (stages, on_device, what) in ways {
        to.line(model.line(what, model.answers_of_threads(gpu, stages, on_device)));
    }
}

/// Ceilings, and the measured figures beside them. What goes wrong is a line that says so; the others are measured all the same.
pub fn speed(gpu: &Arc<Gpu>, options: &SelftestOptions, to: &mut dyn Listener) {
    let shape = if options.tiny { Shape::tiny() } else { Shape::full() };
    speed::measure(gpu, options, &shape, to);
}

#[cfg(test)]
mod tests;
