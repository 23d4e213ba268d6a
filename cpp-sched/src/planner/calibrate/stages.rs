//! One calibrator for each stage, and when the scheduler is to take the fits over.

use alloc::vec::Vec;

use super::{Calibrator, Options, probing};
use crate::cost::{Attos, CostModel, CostTerms};

/// Probing ends when the constant is more certain than this, in percent, or after so many batches.
const CERTAIN: u32 = 15;
const LAST_PROBE: u64 = 64;
/// A stage's own fit and that of all stages together count alike when the stage's constant is so uncertain, in percent.
const EVEN: u64 = 15;
/// Batches from which a stage's share of the time is taken.
const SHARES: usize = 32;
/// One whole, of shares and of weights.
const ONE: u64 = 1 << 16;
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
    /// All stages together: the median of their times.
    common: Calibrator,
    /// Each stage's time over that median in the latest batches, in parts of [`ONE`].
    shares: Vec<[u64; SHARES]>,
    /// Room to sort the times of a batch.
    times: Vec<u64>,
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

    /// Starts with other options. Coefficients above [`Attos::MAX_COEFFICIENT`] are cut to that.
    #[must_use]
    pub fn with_options(given: &[CostModel], options: Options) -> Self {
        let given = &given.iter().map(|model| model.bounded()).collect::<Vec<_>>()[..];
        Self {
            stages: given.iter().map(|model| Calibrator::with_options(*model, options)).collect(),
            common: Calibrator::with_options(mean(given), options),
            shares: given.iter().map(|_| [ONE; SHARES]).collect(),
            times: Vec::with_capacity(given.len()),
            current: given.to_vec(),
            next: given.to_vec(),
            batches: 0,
            probing: true,
        }
    }

    /// Whether [`update`](Self::update) hands out models under which batches are shorter at the start, while constants are uncertain: within the first 64
    /// batches. On unless told otherwise; without it the constant is learned only as far as the load varies by itself.
    pub const fn set_probing(&mut self, probing: bool) {
        self.probing = probing;
    }

    /// A batch with these terms took so long on each stage, in order; 0 where it was not measured, further times are ignored. O(stages * log stages).
    pub fn observe(&mut self, terms: &CostTerms, measured_ns: &[u64]) {
        self.times.clear();
        for (stage, &time) in self.stages.iter_mut().zip(measured_ns) {
            stage.observe(terms, time);
            self.times.push(time);
        }
        self.times.retain(|&time| time > 0);
        self.times.sort_unstable();
        let median = match self.times[..] {
            [] => 0,
            ref times => times[(times.len() - 1) / 2].midpoint(times[times.len() / 2]),
        };
        let place = self.common.used as usize % SHARES;
        if self.common.observe(terms, median) {
            for (shares, &time) in self.shares.iter_mut().zip(measured_ns).filter(|(_, time)| **time > 0) {
                let share = u128::from(time) * u128::from(ONE) / u128::from(median);
                shares[place] = u64::try_from(share).unwrap_or(u64::MAX).min(ONE * 1024);
            }
        }
        self.batches = self.batches.saturating_add(1);
    }

    /// What a stage is to be planned with: its own fit, drawn towards that of all stages together as far as its constant is uncertain. Stages of a
    /// pipeline are built alike, and a batch costs what its dearest stage takes, so one stage with a poor fit would spoil all plans.
    fn planned(&self, index: usize) -> CostModel {
        let stage = &self.stages[index];
        let own = stage.model();
        if self.stages.len() < 2 || !self.common.is_trusted() || self.stages.iter().any(|stage| !stage.given.is_linear()) {
            return own;
        }
        let seen = (self.common.used as usize).min(SHARES);
        let mut shares = self.shares[index];
        let share = *shares[..seen].select_nth_unstable(seen / 2).1;
        let doubt = u64::from(stage.doubts()[0]);
        let weight = if stage.is_trusted() { ONE * EVEN * EVEN / (EVEN * EVEN + doubt * doubt) } else { 0 };
        let common = self.common.model();
        let part = |amount: Attos, of: u64| amount.0 * u128::from(of) / u128::from(ONE);
        let mix = |own: Attos, common: Attos| {
            let common = Attos(part(common, share)).min(Attos::MAX_COEFFICIENT);
            Attos(part(own, weight) + part(common, ONE - weight))
        };
        CostModel {
            c0: mix(own.c0, common.c0),
            c1: mix(own.c1, common.c1),
            c2: mix(own.c2, common.c2),
            c3: mix(own.c3, common.c3),
            c4: mix(own.c4, common.c4),
            c5: mix(own.c5, common.c5),
            ..own
        }
    }

    /// The models to plan with from now on, one for each stage, if they differ from the last ones by more than a percent somewhere. Call it between two
    /// batches. Fits after each of the first 32 batches, later after every 8th. O(stages), no allocation.
    pub fn update(&mut self) -> Option<&[CostModel]> {
        let frozen = self.is_frozen();
        if self.batches > 32 && self.batches % 8 != 0 && !frozen {
            return None;
        }
        self.stages.iter_mut().for_each(|stage| _ = stage.refit());
        self.common.refit();
        let shorter = self.is_probing();
        for index in 0..self.stages.len() {
            let model = self.planned(index);
            self.next[index] = if shorter { probing(&model) } else { model };
        }
        if self.next.iter().zip(&self.current).all(|(next, current)| is_alike(next, current)) {
            return None;
        }
        self.current.copy_from_slice(&self.next);
        Some(&self.current)
    }

    /// Whether the models that [`update`](Self::update) hands out are for learning. A frozen pipeline needs none.
    #[must_use]
    pub fn is_probing(&self) -> bool {
        let certain = self.common.used == 0 || self.common.doubts()[0] <= CERTAIN;
        self.probing && self.batches < LAST_PROBE && !self.is_frozen() && !certain
    }

    fn is_frozen(&self) -> bool {
        self.stages.iter().all(|stage| stage.frozen)
    }

    /// From now on nothing changes any more on any stage, or changes again.
    pub fn freeze(&mut self, frozen: bool) {
        self.stages.iter_mut().for_each(|stage| stage.freeze(frozen));
        self.common.freeze(frozen);
    }

    /// The stages' calibrators, in order.
    #[must_use]
    pub fn stages(&self) -> &[Calibrator] {
        &self.stages
    }
}

/// The mean of each coefficient.
fn mean(models: &[CostModel]) -> CostModel {
    let of = |coefficient: fn(&CostModel) -> Attos| {
        Attos(models.iter().map(|model| coefficient(model).0).sum::<u128>() / models.len().max(1) as u128)
    };
    CostModel {
        c0: of(|m| m.c0),
        c1: of(|m| m.c1),
        c2: of(|m| m.c2),
        c3: of(|m| m.c3),
        c4: of(|m| m.c4),
        c5: of(|m| m.c5),
        ..CostModel::default()
    }
}

fn is_alike(a: &CostModel, b: &CostModel) -> bool {
    let near = |a: Attos, b: Attos| a.0.abs_diff(b.0) <= a.0.min(b.0) / WORTH;
    a.coefficients().iter().zip(b.coefficients()).all(|((_, a), (_, b))| near(*a, b))
}
