//! One calibrator for each stage, and when the scheduler is to take the fits over.

use alloc::vec::Vec;

use super::{Calibrator, Options};
use crate::cost::{Attos, CostModel, CostTerms};

/// Batches of a probing turn.
const TURN: u64 = 6;
/// Probing ends when the constant of no stage is less certain than this, in percent, or after so many batches.
const CERTAIN: u32 = 15;
const LAST_PROBE: u64 = 64;
/// A coefficient that has moved by less than one part in so many is not worth a new target.
const WORTH: u128 = 100;

/// A [`Calibrator`] for each stage of a pipeline, from measured times to [`Scheduler::set_stage_costs`](crate::Scheduler::set_stage_costs).
///
/// ```
/// use cpp_sched::{Attos, Chunking, Config, CostModel, Request, RequestId, Sample, Schedule, Scheduler, planner::StageCalibrator};
/// # let mut guess = CostModel::default();
/// # (guess.c0, guess.c1) = (Attos::from_ns(3_000_000), Attos::from_ns(1000));
/// # let mut config = Config::default();
/// # (config.stages, config.num_blocks, config.chunking, config.cost) = (2, 4096, Chunking::Adaptive, Some(guess));
/// # let mut scheduler = Scheduler::new(config)?;
/// # scheduler.submit(Request::with_lengths(RequestId(1), 20_000, Vec::new(), 1))?;
/// # let time_on_stage = |stage: u64, tokens: u64| 1_000_000 + tokens * (2000 + stage);
/// let mut calibrator = StageCalibrator::new(&[guess; 2]);
/// # let mut changed = false;
/// // In the engine's loop, after the oldest batch has come back with what it took on each stage:
/// # while let Schedule::Batch(_) = scheduler.schedule() {
/// let batch = scheduler.oldest_in_flight().expect("one came back");
/// let (id, terms) = (batch.id(), *batch.terms());
/// # let tokens = terms.tokens;
/// let measured_ns = [time_on_stage(0, tokens), time_on_stage(1, tokens)];
/// # let samples: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
/// scheduler.complete(id, &samples)?;
/// calibrator.observe(&terms, &measured_ns);
/// if let Some(models) = calibrator.update() {
///     scheduler.set_stage_costs(models)?;
/// #   changed = true;
/// }
/// # }
/// # assert!(changed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A journal holds the models as calls of `set_stage_costs`, so a replay needs no measured times.
#[derive(Clone, Debug)]
pub struct StageCalibrator {
    stages: Vec<Calibrator>,
    /// What was last handed out, and what is to be.
    current: Vec<CostModel>,
    next: Vec<CostModel>,
    batches: u64,
    probing: bool,
}

impl StageCalibrator {
    /// Starts from a model for each stage, in order, that may be a guess. The one place that allocates.
    #[must_use]
    pub fn new(given: &[CostModel]) -> Self {
        Self::with_options(given, Options::default())
    }

    /// Starts with other options.
    #[must_use]
    pub fn with_options(given: &[CostModel], options: Options) -> Self {
        Self {
            stages: given.iter().map(|model| Calibrator::with_options(*model, options)).collect(),
            current: given.to_vec(),
            next: given.to_vec(),
            batches: 0,
            probing: true,
        }
    }

    /// Whether [`update`](Self::update) alternates between small and large batches at the start, while constants are uncertain: within the first 64
    /// batches. On unless told otherwise; without it the constant is learned only as far as the load varies by itself.
    pub const fn set_probing(&mut self, probing: bool) {
        self.probing = probing;
    }

    /// A batch with these terms took so long on each stage, in order; 0 where it was not measured, further times are ignored. O(stages).
    pub fn observe(&mut self, terms: &CostTerms, measured_ns: &[u64]) {
        for (stage, &time) in self.stages.iter_mut().zip(measured_ns) {
            stage.observe(terms, time);
        }
        self.batches = self.batches.saturating_add(1);
    }

    /// The models to plan with from now on, one for each stage, if they differ from the last ones by more than a percent somewhere. Call it between two
    /// batches. Fits after each of the first 32 batches, later after every 8th: some ten microseconds a stage then. No allocation.
    pub fn update(&mut self) -> Option<&[CostModel]> {
        let frozen = self.stages.iter().all(|stage| stage.frozen);
        if self.batches > 32 && self.batches % 8 != 0 && !frozen {
            return None;
        }
        for stage in &mut self.stages {
            stage.refit();
        }
        let turn = self.is_probing().then_some((self.batches / TURN) as u32);
        for (next, stage) in self.next.iter_mut().zip(&self.stages) {
            *next = turn.map_or_else(|| stage.model(), |turn| stage.probe(turn));
        }
        if self.next.iter().zip(&self.current).all(|(next, current)| is_alike(next, current)) {
            return None;
        }
        self.current.copy_from_slice(&self.next);
        Some(&self.current)
    }

    /// Whether the models that [`update`](Self::update) hands out are for learning. A frozen stage needs none.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        let uncertain = |stage: &Calibrator| !stage.frozen && stage.used > 0 && stage.doubts()[0] > CERTAIN;
        self.probing && self.batches < LAST_PROBE && self.stages.iter().any(uncertain)
    }

    /// From now on nothing changes any more on any stage, or changes again.
    pub fn freeze(&mut self, frozen: bool) {
        self.stages.iter_mut().for_each(|stage| stage.freeze(frozen));
    }

    /// The stages' calibrators, in order.
    #[must_use]
    pub fn stages(&self) -> &[Calibrator] {
        &self.stages
    }
}

fn is_alike(a: &CostModel, b: &CostModel) -> bool {
    let near = |a: Attos, b: Attos| a.0.abs_diff(b.0) <= a.0.min(b.0) / WORTH;
    a.coefficients().iter().zip(b.coefficients()).all(|((_, a), (_, b))| near(*a, b))
}
