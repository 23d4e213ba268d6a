//! Measured stage times feed the cost model.

use cpp_sched::planner::{Calibrator, CalibratorOptions};
use cpp_sched::{Attos, CostModel};

use super::pipeline::Timing;
use crate::cpu::Part;
use crate::model::LlamaConfig;

/// A calibrator for each stage. Hand [`models`](Self::models) to [`Driver::set_stage_costs`](cpp_sched::driver::Driver::set_stage_costs) now and
/// then, and plans are made with the times that this machine takes.
#[derive(Clone, Debug)]
pub struct Calibration {
    stages: Vec<Calibrator>,
}

impl Calibration {
    /// Starts from a guess for each stage.
    #[must_use]
    pub fn new(guesses: &[CostModel]) -> Self {
        // A processor's speed is anybody's guess, by orders of magnitude.
        let options = CalibratorOptions { bound: 10_000, ..CalibratorOptions::default() };
        Self { stages: guesses.iter().map(|guess| Calibrator::with_options(*guess, options)).collect() }
    }

    /// Takes in the times of a batch: for each stage what was predicted before, and what was measured, in nanoseconds; each stage is
    /// fitted anew, which takes 13 to 35 microseconds (see [`Calibrator::refit`]).
    pub fn observe(&mut self, timing: &Timing) -> Vec<(u64, u64)> {
        let stages = self.stages.iter_mut().zip(&timing.stages);
        let observe = |(calibrator, span): (&mut Calibrator, &super::message::Span)| {
            let predicted = calibrator.model().cost(&timing.terms).to_ns();
            let measured = span.end_ns.saturating_sub(span.start_ns);
            calibrator.observe(&timing.terms, measured);
            calibrator.refit();
            (predicted, measured)
        };
        stages.map(observe).collect()
    }

    /// What each stage costs, as far as is known.
    #[must_use]
    pub fn models(&self) -> Vec<CostModel> {
        self.stages.iter().map(Calibrator::model).collect()
    }

    /// The relative error of predictions, of the stage that is predicted worst.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.stages.iter().map(Calibrator::error).fold(0.0, f64::max)
    }
}

/// A guess at what a stage costs on a processor of so many FLOPs a second, from the model's dimensions: two for each weight and token, four for each
/// number of a head and pair of positions.
#[must_use]
pub fn guess(config: &LlamaConfig, part: &Part, flops_per_s: u64) -> CostModel {
    let attos = |flops: u64| Attos(u128::from(flops) * 1_000_000_000 * Attos::PER_NS / u128::from(flops_per_s.max(1)));
    let layers = part.layers.len() as u64;
    let pair = attos(4 * config.q_size() as u64 * layers);
    let mut model = CostModel::default();
    model.c0 = Attos::from_ns(100_000);
    model.c1 = attos(2 * config.layer_weights() * layers);
    model.c2 = pair;
    model.c3 = pair;
    if part.is_last() {
        // Each decode samples.
        model.c5 = attos(2 * config.head_weights());
    }
    model
}

#[cfg(test)]
mod tests {
    use super::{Calibration, guess};
    use crate::cpu::Part;
    use crate::model::TinyLlama;
    use crate::runtime::{Span, Timing};
    use cpp_sched::{BatchId, CostTerms};

    #[test]
    fn predictions_become_what_is_measured() {
        let config = TinyLlama::default().config();
        let part = |stage: usize| Part { stage, stages: 2, layers: 2 * stage..2 * stage + 2 };
        let guesses = [0, 1].map(|stage| guess(&config, &part(stage), 1_000_000_000));
        assert!(guesses[0].c5 < guesses[1].c5 && guesses[0].c1 == guesses[1].c1);
        let mut calibration = Calibration::new(&guesses);
        let mut last = Vec::new();
        for batch in 0..60u32 {
            let tokens = 8 + batch * 29 % 64;
            let times = [50_000 + 700 * u64::from(tokens), 90_000 + 1100 * u64::from(tokens)];
            let stages = times.map(|end_ns| Span { start_ns: 0, end_ns }).to_vec();
            let timing = Timing { batch: BatchId(batch.into()), terms: CostTerms::prefill(0, tokens), rows: Vec::new(), stages };
            last = calibration.observe(&timing);
        }
        assert!(last.iter().all(|(predicted, measured)| predicted.abs_diff(*measured) * 50 < *measured), "{last:?}");
        assert!(calibration.error() < 0.02);
        assert_ne!(calibration.models()[0], guesses[0]);
    }
}
