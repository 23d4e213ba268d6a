//! What a batch may cost. The arithmetic is [`planner`]'s; here the scheduler's state is put into its terms.

use alloc::vec::Vec;

use super::Scheduler;
use crate::config::Chunking;
use crate::cost::{Attos, CostModel, CostTerms};
use crate::error::ConfigError;
use crate::planner::{self, BusyPeriod, Grid, MAX_SEGMENTS, Question, Rules, Segment, Work};
use crate::policy::Key;
use crate::state::{Demand, State};

/// What the planner keeps between batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Target {
    pub(super) period: BusyPeriod,
    /// Requests with unscheduled prompt work.
    pub(super) open: u32,
    /// One cost model for each stage that differs; the configured one first.
    stages: Vec<CostModel>,
    /// What the largest batch costs on top of the sum of all, in millionths of it.
    drain_millionths: u64,
    /// Room for the work that is laid out, so that a decision allocates nothing.
    #[cfg_attr(feature = "serde", serde(skip))]
    order: Vec<(Key, Segment)>,
    #[cfg_attr(feature = "serde", serde(skip))]
    segments: Vec<Segment>,
}

/// What a batch under construction is filled up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// The most that the batch may cost; none = no limit but the budget.
    pub(super) most: Option<Attos>,
    /// The same without what the latency of decodes allows: for those that have waited too long.
    pub(super) hard: Option<Attos>,
    /// The most that it may cost if decodes ride in it, as the configuration says; they may ask for less, each for its own.
    pub(super) riding: Option<Attos>,
    pub(super) align: u32,
    pub(super) min: u32,
    thrifty: bool,
}

impl Fill {
    pub(super) const UNLIMITED: Self = Self { most: None, hard: None, riding: None, align: 1, min: 1, thrifty: false };

    pub(super) fn grid(&self) -> Grid {
        Grid { align: self.align, min: self.min, thrifty: self.thrifty }
    }
}

#[cfg(feature = "serde")]
impl Target {
    /// Without the room for a decision.
    pub(super) fn saved(&self) -> Self {
        let Self { period, open, stages, drain_millionths, order: _, segments: _ } = self;
        let (period, stages) = (period.clone(), stages.clone());
        Self { period, open: *open, stages, drain_millionths: *drain_millionths, order: Vec::new(), segments: Vec::new() }
    }

    /// As saved, with the room for a decision that this one has.
    pub(super) fn adopt(&mut self, saved: &Self) {
        let room = (core::mem::take(&mut self.order), core::mem::take(&mut self.segments));
        *self = Self { order: room.0, segments: room.1, ..saved.clone() };
    }

    /// Whether counting on cannot overflow, and the models fit the configuration.
    pub(super) fn is_sane(&self, config: &crate::config::Config, next_batch: u64) -> bool {
        let count = config.stages as usize;
        let models = self.stages.iter().flat_map(CostModel::coefficients).all(|(_, c)| c <= Attos::MAX_COEFFICIENT);
        self.period.is_sane(next_batch)
            && models
            && self.stages.is_empty() == config.cost.is_none()
            && self.stages.len() <= count
            && self.drain_millionths <= u64::from(config.stages) * 1_000_000
    }
}

impl Target {
    pub(super) fn new(cost: Option<CostModel>, stages: u32) -> Self {
        let mut target = Self { order: Vec::with_capacity(MAX_SEGMENTS), segments: Vec::with_capacity(MAX_SEGMENTS), ..Self::default() };
        if let Some(cost) = cost {
            target.set_stages(&[cost], stages);
        }
        target
    }

    /// Takes the models of the stages, in order; one alone stands for `count` equal stages.
    fn set_stages(&mut self, models: &[CostModel], count: u32) {
        self.stages.clear();
        for model in models {
            if !self.stages.contains(model) {
                self.stages.push(*model);
            }
        }
        // The stages' shares of a batch of middling size: one that costs twice its constant.
        let reference = |model: &CostModel| {
            let tokens = (model.c0.0 / model.c1.0.max(1)).clamp(64, 1 << 20) as u32;
            CostTerms::prefill(0, tokens)
        };
        let terms = models.iter().map(reference).max_by_key(|terms| terms.tokens).unwrap_or_default();
        let costs = || models.iter().map(|model| model.cost(&terms).0);
        let largest = costs().max().unwrap_or(0);
        self.drain_millionths = if models.len() == 1 || largest == 0 {
            u64::from(count.saturating_sub(1)) * 1_000_000
        } else {
            // sum(v) / max(v) - 1
            costs().map(|cost| (cost / (largest / 1_000_000).max(1)) as u64).sum::<u64>().saturating_sub(1_000_000)
        };
    }

    pub(super) fn stages(&self) -> &[CostModel] {
        &self.stages
    }
}

impl Scheduler {
    /// Replaces the cost model between two batches, say by one that was fitted to measured times. The busy period goes on; its target is chosen
    /// anew. Batches in flight keep the cost that they were given.
    ///
    /// # Errors
    /// A scheduler that was made without a cost model, or a coefficient that is too large; nothing has changed.
    pub fn set_cost_model(&mut self, model: CostModel) -> Result<(), ConfigError> {
        self.set_stage_costs(core::slice::from_ref(&model))
    }

    /// Gives each stage a cost model of its own, in order: a batch costs what its dearest stage takes, and the pipeline's drain is what the
    /// stages cost together. A single model stands for equal stages.
    ///
    /// The stage that is dearest by itself also prices what is compared and not limited: policies, balance, rows.
    ///
    /// # Errors
    /// A scheduler that was made without a cost model, no model, another number than there are stages, or a coefficient that is too large; nothing
    /// has changed.
    pub fn set_stage_costs(&mut self, models: &[CostModel]) -> Result<(), ConfigError> {
        if self.config.cost.is_none() {
            return Err(ConfigError::CostFixed);
        }
        if models.is_empty() {
            return Err(ConfigError::StageCosts { stages: self.config.stages, given: 0 });
        }
        if models.len() > 1 && models.len() != self.config.stages as usize {
            return Err(ConfigError::StageCosts { stages: self.config.stages, given: u32::try_from(models.len()).unwrap_or(u32::MAX) });
        }
        let mut config = self.config;
        for model in models {
            config.cost = Some(*model);
            config.validate()?;
        }
        self.adopt_costs(models);
        Ok(())
    }

    /// Prices everything by these models from now on; they are valid. O(requests * log).
    pub(super) fn adopt_costs(&mut self, models: &[CostModel]) {
        let reference = CostTerms::prefill(4096, 512);
        self.config.cost = models.iter().copied().max_by_key(|model| model.cost(&reference));
        self.target.set_stages(models, self.config.stages);
        let Target { period, stages, .. } = &mut self.target;
        period.reprice(|terms| planner::cost_of(stages, terms));
        if self.judges() {
            // Whether they can be on time is asked by the new prices from now on.
            for slot in self.slots.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
                self.count_due(slot);
            }
        }
        self.rekey();
    }

    /// Counts the prefill work of all requests anew: chunking has changed, and only the adaptive one counts it. O(requests).
    pub(super) fn recount_all(&mut self) {
        let slots: Vec<u32> = self.slots.iter().map(|(slot, _)| slot).collect();
        let adaptive = matches!(self.config.chunking, Chunking::Adaptive);
        for slot in slots {
            let new = if adaptive { self.unscheduled(slot) } else { Segment::default() };
            let oldest = self.in_flight.front().map(|batch| batch.id.0);
            let old = self.replace_work(slot, new);
            self.target.period.change(old, new, oldest);
        }
        self.target.period.forget_target();
    }

    /// The target that the adaptive planner holds for the running busy period, in attoseconds; zero before the first.
    #[must_use]
    pub fn adaptive_target(&self) -> Attos {
        self.target.period.held()
    }

    /// Prompt tokens of the busy period that are not scheduled yet, as far as they could be. 0 without adaptive chunking.
    #[must_use]
    pub fn adaptive_rest(&self) -> u64 {
        self.target.period.rest().tokens
    }

    /// Counts what the request has left to prefill, after a change that is not progress. O(1), or O(log blocks) where a hit is to be expected.
    pub(super) fn count_work(&mut self, slot: u32) {
        self.count_due(slot);
        if let Some((old, new)) = self.recount(slot) {
            let oldest = self.in_flight.front().map(|batch| batch.id.0);
            self.target.period.change(old, new, oldest);
        }
    }

    /// Counts what the batch under construction takes of the request's prefill.
    pub(super) fn count_progress(&mut self, slot: u32) {
        self.count_due(slot);
        if let Some((old, new)) = self.recount(slot) {
            self.target.period.progress(old, new, self.next_batch);
        }
    }

    fn recount(&mut self, slot: u32) -> Option<(Segment, Segment)> {
        if !matches!(self.config.chunking, Chunking::Adaptive) {
            return None;
        }
        let new = self.unscheduled(slot);
        Some((self.replace_work(slot, new), new))
    }

    fn replace_work(&mut self, slot: u32, new: Segment) -> Segment {
        let old = self.slots.set_unscheduled(slot, new);
        let is_open = |segment: Segment| u32::from(segment.end > segment.start);
        self.target.open = (self.target.open + is_open(new)).saturating_sub(is_open(old));
        old
    }

    /// What the request has left to prefill, as far as it could be scheduled.
    fn unscheduled(&self, slot: u32) -> Segment {
        let s = &self.slots[slot];
        match s.state {
            State::Waiting if s.is_runnable() => {
                let start = if s.table.is_empty() { self.count_hits(slot) * self.config.block_size } else { s.scheduled };
                Segment { start: start.min(s.known()), end: s.known() }
            }
            State::Running if s.gates.is_empty() && s.demand(false) == Demand::Prompt => Segment { start: s.scheduled, end: s.known() },
            _ => Segment::default(),
        }
    }

    /// Whether this is what the request has left to prefill. Where a waiting one starts is a guess, as the prefix cache goes on changing.
    pub(super) fn counts_work(&self, slot: u32, work: Segment) -> bool {
        let expected = if matches!(self.config.chunking, Chunking::Adaptive) { self.unscheduled(slot) } else { Segment::default() };
        work == expected || (self.slots[slot].state == State::Waiting && work.end == expected.end && work.start < work.end)
    }

    /// The filling rule of the next batch.
    pub(super) fn fill(&mut self) -> Fill {
        match (self.config.chunking, self.config.cost) {
            (Chunking::Cost { target_ns, align, min }, Some(_)) => {
                let most = Some(Attos::from_ns(target_ns));
                Fill { most, hard: most, riding: None, align: self.config.grain_align(align), min, thrifty: false }
            }
            (Chunking::Adaptive, Some(_)) => self.adaptive_fill(),
            _ => Fill { align: self.config.kv_groups.grain(), ..Fill::UNLIMITED },
        }
    }

    fn adaptive_fill(&mut self) -> Fill {
        let options = self.config.adaptive;
        let align = self.config.grain_align(options.align.min(self.config.max_batch_tokens));
        let most =
            (self.config.max_batch_tokens - self.config.draft_slots).min(self.config.max_prompt_tokens_per_batch.unwrap_or(u32::MAX));
        let align = if self.config.kv_groups.has_state() && align > most { self.config.kv_groups.grain() } else { align };
        let min = options.min.unwrap_or(align).min(self.config.max_batch_tokens);
        let chosen = match options.target_ns {
            Some(pinned) => Some(Attos::from_ns(pinned)),
            None if self.target.drain_millionths == 0 || self.target.period.rest().tokens == 0 => None,
            None => Some(self.adaptive_choice(Grid { align, min, thrifty: true })),
        };
        let cap = options.max_target_ns.map(Attos::from_ns);
        let hard = [chosen, cap, self.grain()].into_iter().flatten().min();
        let most = [hard, self.paced_share()].into_iter().flatten().min();
        Fill { most, hard, riding: options.token_latency_ns.map(|latency| self.per_stage(latency)), align, min, thrifty: true }
    }

    fn adaptive_choice(&mut self, grid: Grid) -> Attos {
        let ride = self.decode_share();
        if self.target.period.must_choose(ride) {
            self.gather_segments();
            let batch_tokens = self.config.max_batch_tokens.saturating_sub(self.decoding / self.depth).max(1);
            let chosen = planner::choose_target(&Question {
                rules: Rules { stages: &self.target.stages, grid, batch_tokens, ride },
                drain_millionths: self.target.drain_millionths,
                depth: self.depth,
                rest: self.target.period.rest(),
                whole: self.target.period.whole(),
                segments: &self.target.segments,
                held: self.target.period.held(),
                grown: self.target.period.has_grown(ride),
            });
            self.target.period.hold(chosen, ride);
        }
        self.target.period.held()
    }

    /// The target that the busy period would come to with this much work ahead of a request, and its own, by the closed form.
    pub(super) fn ideal_with(&self, ahead: Work, own: Segment, ride: Attos) -> Option<Attos> {
        if self.target.drain_millionths == 0 {
            return None;
        }
        let period = &self.target.period;
        let (known, own) = (period.whole(), Work::of(own));
        let whole = Work {
            tokens: known.tokens.max(ahead.tokens).saturating_add(own.tokens),
            pairs: known.pairs.max(ahead.pairs).saturating_add(own.pairs),
        };
        let model = self.target.stages.iter().max_by_key(|stage| stage.c0.0.saturating_add(whole.cost(stage).0))?;
        Some(planner::ideal_target(model.c0, whole.cost(model), ride, self.target.drain_millionths).max(period.held()))
    }

    /// The unscheduled work in the order of the policy, if it is that of few requests. O(few * log few).
    fn gather_segments(&mut self) {
        let (mut order, mut segments) = (core::mem::take(&mut self.target.order), core::mem::take(&mut self.target.segments));
        order.clear();
        segments.clear();
        if self.target.open as usize <= MAX_SEGMENTS {
            let queued = self.prompts.iter().chain(self.resident.iter()).chain(self.waiting.iter());
            order.extend(queued.map(|(key, slot)| (key, self.slots.unscheduled(slot))).take(MAX_SEGMENTS));
            let now = self.now_ns;
            order.sort_unstable_by(|a, b| a.0.compare(&b.0, now));
            segments.extend(order.iter().map(|entry| entry.1).filter(|segment| segment.end > segment.start));
        }
        (self.target.order, self.target.segments) = (order, segments);
    }

    /// Cost of the decodes that ride in a batch when all are spread evenly.
    pub(super) fn decode_share(&self) -> Attos {
        let Some(cost) = &self.config.cost else { return Attos::ZERO };
        let n = u64::from(self.decoding);
        let all = cost.items(&CostTerms { tokens: n, decodes: n, decode_context: self.decoding_tokens, ..CostTerms::default() });
        Attos(all.0 / u128::from(self.depth))
    }
}
