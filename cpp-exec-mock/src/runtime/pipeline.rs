//! The leader: an executor whose batches are run by a crew of workers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cpp_sched::driver::{Driver, Executor, Samples};
use cpp_sched::wire::Encoder;
use cpp_sched::{BatchId, Config, CostTerms, Event, RequestId, Row, Scheduled, TokenId};

use super::crew::Crew;
use super::drafter::{Drafter, PromptLookup};
use super::error::RuntimeError;
use super::message::{Control, Report, Span};
use super::work::RowSample;
use crate::cpu::Sampling;

/// How long the leader waits for what.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by struct update from its default")]
pub struct Patience {
    /// From a batch's submit to its result. Default a minute.
    pub batch: Duration,
    /// For a stage to forget everything, which takes as long as the batch that it runs. Default ten seconds.
    pub abort: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { batch: Duration::from_secs(60), abort: Duration::from_secs(10) }
    }
}

/// Batches whose times are kept for somebody who asks.
const KEPT: usize = 1 << 16;
/// How long times may come after the result.
const LATE: Duration = Duration::from_millis(100);

/// A batch under way.
#[derive(Debug)]
struct UnderWay {
    batch: BatchId,
    since: Instant,
    /// Whose rows sample.
    sampling: Vec<RequestId>,
    /// When each stage ran it, as far as they have.
    times: Vec<Option<Span>>,
    samples: Option<Vec<RowSample>>,
    terms: CostTerms,
    rows: Vec<Row>,
}

/// When the stages ran a batch; see [`Pipeline::timings`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "plain figures")]
pub struct Timing {
    /// The batch.
    pub batch: BatchId,
    /// What its cost is made of.
    pub terms: CostTerms,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Each stage's beginning and end.
    pub stages: Vec<Span>,
}

/// The executor of a [`Driver`] whose stages are workers of a [`Crew`]; see the [module](super).
#[allow(missing_debug_implementations, reason = "it holds a drafter and links")]
pub struct Pipeline<C> {
    crew: C,
    encoder: Encoder,
    patience: Patience,
    drafter: Box<dyn Drafter>,
    sampling: HashMap<RequestId, Sampling>,
    under_way: VecDeque<UnderWay>,
    generation: u64,
    /// Stages that are gone, as far as known.
    dead: Vec<usize>,
    /// Stages that must be told what the others know.
    unsynced: Vec<usize>,
    /// Batches that are back, oldest first, until their times are asked for. Reports of different stages may overtake each other.
    timed: VecDeque<UnderWay>,
    /// What went wrong while nobody could be told.
    trouble: Option<RuntimeError>,
}

impl<C: Crew> Pipeline<C> {
    /// The pipeline of a scheduler that has scheduled nothing yet, with this configuration.
    #[must_use]
    pub fn new(config: &Config, crew: C, patience: Patience) -> Self {
        Self {
            crew,
            encoder: Encoder::new(config),
            patience,
            drafter: Box::new(PromptLookup),
            sampling: HashMap::new(),
            under_way: VecDeque::new(),
            generation: 0,
            dead: Vec::new(),
            unsynced: Vec::new(),
            timed: VecDeque::new(),
            trouble: None,
        }
    }

    /// Who proposes the drafts of requests that have some; at first [`PromptLookup`].
    pub fn set_drafter(&mut self, drafter: impl Drafter + 'static) {
        self.drafter = Box::new(drafter);
    }

    /// How a request chooses its tokens; greedy if nothing is said. To be said before its first batch, and forgotten when it ends.
    pub fn set_sampling(&mut self, request: RequestId, sampling: Sampling) {
        self.sampling.insert(request, sampling);
    }

    /// The workers.
    pub fn crew_mut(&mut self) -> &mut C {
        &mut self.crew
    }

    /// When the stages ran the batches that were completed since the last call, oldest first. If nothing is under way, times that are due are waited
    /// for, a tenth of a second at most; else they come with the next call.
    pub fn timings(&mut self) -> Vec<Timing> {
        let until = Instant::now() + LATE;
        let mut timings = Vec::new();
        while let Some(oldest) = self.timed.front() {
            if oldest.times.iter().all(Option::is_some) {
                if let Some(UnderWay { batch, terms, rows, times, .. }) = self.timed.pop_front() {
                    timings.push(Timing { batch, terms, rows, stages: times.into_iter().flatten().collect() });
                }
                continue;
            }
            if !self.under_way.is_empty() || self.trouble.is_some() {
                break;
            }
            let Some(report) = self.crew.listen(until.saturating_duration_since(Instant::now())) else { break };
            self.trouble = self.take_in(report).err();
        }
        timings
    }

    /// After a failure: if a stage was put in the place of a dead one, it is told what the others know, and everything is computed anew, since
    /// its memory is empty. To be called after [`Progress::RolledBack`](cpp_sched::driver::Progress::RolledBack), before the next step. O(what
    /// is known of requests). True: something was lost.
    pub fn recover(driver: &mut Driver<Self>) -> bool {
        if driver.executor().unsynced.is_empty() {
            return false;
        }
        driver.reset_all_kv();
        let mut message = Vec::new();
        driver.executor().encoder.resync(driver.scheduler(), &mut message);
        let message: Arc<[u8]> = message.into();
        let pipeline = driver.executor_mut();
        for stage in std::mem::take(&mut pipeline.unsynced) {
            if !pipeline.crew.tell(stage, Control::Resync(Arc::clone(&message))) {
                pipeline.bury(stage);
            }
        }
        true
    }

    fn bury(&mut self, stage: usize) {
        if !self.dead.contains(&stage) {
            self.dead.push(stage);
        }
    }

    fn tell_all(&mut self, control: &Control) -> Result<(), RuntimeError> {
        for stage in 0..self.crew.stages() {
            if !self.crew.tell(stage, control.clone()) {
                self.bury(stage);
            }
        }
        match self.dead.first() {
            None => Ok(()),
            Some(&stage) => Err(RuntimeError::Died { stage, problem: "it does not listen any more".to_owned() }),
        }
    }

    /// Takes in what workers say, for so long, or until the oldest batch is back.
    fn listen(&mut self, until: Option<Instant>) -> Result<(), RuntimeError> {
        loop {
            let back = self.under_way.front().is_some_and(|oldest| oldest.samples.is_some());
            let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            let Some(report) = self.crew.listen(if back { Duration::ZERO } else { left }) else { return Ok(()) };
            self.take_in(report)?;
        }
    }

    fn take_in(&mut self, report: Report) -> Result<(), RuntimeError> {
        match report {
            Report::Done { stage, generation, batch, time, samples } if generation == self.generation => {
                let last = stage + 1 == self.crew.stages();
                if last {
                    self.hand_on(batch, &samples)?;
                }
                let mut known = self.under_way.iter_mut().chain(&mut self.timed);
                if let Some(under_way) = known.find(|under_way| under_way.batch == batch) {
                    under_way.times[stage] = Some(time);
                    if last {
                        under_way.samples = Some(samples);
                    }
                }
                Ok(())
            }
            Report::Failed { stage, generation, problem } if generation == self.generation => Err(RuntimeError::Stage { stage, problem }),
            Report::Died { stage, problem, .. } => {
                self.bury(stage);
                Err(RuntimeError::Died { stage, problem })
            }
            // Of an earlier generation.
            Report::Done { .. } | Report::Failed { .. } | Report::Aborted { .. } => Ok(()),
        }
    }

    /// Tells the first stage what was sampled: rows of batches that are under way may continue it.
    fn hand_on(&mut self, batch: BatchId, samples: &[RowSample]) -> Result<(), RuntimeError> {
        let tokens: Arc<[(u32, TokenId)]> = samples.iter().filter_map(|sample| Some((sample.row, *sample.tokens.first()?))).collect();
        if tokens.is_empty() || self.crew.tell(0, Control::Tokens { generation: self.generation, batch, tokens }) {
            return Ok(());
        }
        self.bury(0);
        Err(RuntimeError::Died { stage: 0, problem: "it does not listen any more".to_owned() })
    }

    /// The oldest batch, if it is back.
    fn result(&mut self, samples: &mut Samples) -> Option<BatchId> {
        let oldest = self.under_way.front_mut()?;
        let sampled = oldest.samples.take()?;
        let oldest = self.under_way.pop_front()?;
        for (request, sample) in oldest.sampling.iter().zip(&sampled) {
            samples.push(*request, &sample.tokens);
        }
        let batch = oldest.batch;
        if self.timed.len() == KEPT {
            self.timed.pop_front();
        }
        self.timed.push_back(oldest);
        Some(batch)
    }
}

impl<C: Crew> Executor for Pipeline<C> {
    type Error = RuntimeError;

    fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), RuntimeError> {
        let mut message = Vec::new();
        let mut proposed: HashMap<(RequestId, u32), Vec<TokenId>> = HashMap::new();
        for row in batch.rows().iter().filter(|row| row.num_draft_tokens > 0) {
            let known = batch.tokens(row).unwrap_or_default();
            let base = (row.end() - row.num_draft_tokens) as usize;
            // The token before the drafts may be under way itself: then it is guessed like them.
            let missing = base.saturating_sub(known.len());
            let mut drafts = Vec::new();
            self.drafter.propose(row.request, &known[..known.len().min(base)], missing + row.num_draft_tokens as usize, &mut drafts);
            drafts.drain(..missing.min(drafts.len()));
            drafts.resize(row.num_draft_tokens as usize, 0);
            proposed.insert((row.request, row.num_computed_tokens), drafts);
        }
        let drafts = |row: &cpp_sched::Row| proposed.get(&(row.request, row.num_computed_tokens)).map(Vec::as_slice);
        self.encoder.encode_with(batch, drafts, &mut message).map_err(RuntimeError::Encode)?;
        if !self.unsynced.is_empty() {
            return Err(RuntimeError::NotRecovered);
        }
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let sampling_rows = batch.rows().iter().zip(0..).filter(|(row, _)| row.samples);
        let sampling = sampling_rows.filter_map(|(row, number)| Some((number, *self.sampling.get(&row.request)?))).collect();
        self.under_way.push_back(UnderWay {
            batch: batch.id(),
            since: Instant::now(),
            sampling: batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect(),
            times: vec![None; self.crew.stages()],
            samples: None,
            terms: *batch.terms(),
            rows: batch.rows().to_vec(),
        });
        self.tell_all(&Control::Plan { generation: self.generation, message: message.into(), sampling })
    }

    fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, RuntimeError> {
        self.listen(None)?;
        Ok(self.result(samples))
    }

    fn wait(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, RuntimeError> {
        let Some(since) = self.under_way.front().map(|oldest| oldest.since) else { return Ok(None) };
        self.listen(Some(since + self.patience.batch))?;
        if let Some(batch) = self.result(samples) {
            return Ok(Some(batch));
        }
        let oldest = self.under_way.front().map(|oldest| (oldest.batch, oldest.times.iter().position(Option::is_none)));
        let (batch, stage) = oldest.unwrap_or((BatchId(0), None));
        Err(RuntimeError::Deadline { batch, stage: stage.unwrap_or_default(), waited: since.elapsed() })
    }

    fn fail(&mut self) -> Result<(), RuntimeError> {
        self.under_way.clear();
        self.trouble = None;
        // Of an earlier generation nothing is taken in any more.
        self.timed.retain(|batch| batch.times.iter().all(Option::is_some));
        self.generation += 1;
        let abort = Control::Abort { generation: self.generation };
        // Who does not listen is buried.
        let _ = self.tell_all(&abort);
        let mut waiting: Vec<usize> = (0..self.crew.stages()).collect();
        let until = Instant::now() + self.patience.abort;
        loop {
            waiting.retain(|stage| !self.dead.contains(stage));
            if waiting.is_empty() {
                break;
            }
            match self.crew.listen(until.saturating_duration_since(Instant::now())) {
                Some(Report::Aborted { stage, generation }) if generation == self.generation => waiting.retain(|other| *other != stage),
                Some(Report::Died { stage, .. }) => self.bury(stage),
                Some(_) => {}
                None => waiting.clone().into_iter().for_each(|stage| self.bury(stage)),
            }
        }
        if !self.dead.is_empty() {
            let new = self.crew.replace(&self.dead, self.generation)?;
            self.dead.clear();
            // It may have been lost twice before it was told anything.
            self.unsynced.retain(|stage| !new.contains(stage));
            self.unsynced.extend(new);
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) {
        if let Event::Finished { request, .. } = event {
            self.sampling.remove(request);
        }
    }
}
