//! The busy period: how much prefill work it has, and the target that it has come to.

use super::layout::Segment;
use crate::cost::{Attos, CostModel, CostTerms};

/// A target is never above this: 4e19 seconds.
const DEAREST: Attos = Attos((1 << 125) - 1);

/// Prefill work, as tokens and causal pairs: both add up exactly over any cutting, and any cost model can price them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Work {
    /// Tokens.
    pub tokens: u64,
    /// Their causal pairs.
    #[cfg_attr(feature = "serde", serde(with = "crate::wide"))]
    pub pairs: u128,
}

impl Work {
    /// The work of a segment.
    #[must_use]
    pub const fn of(segment: Segment) -> Self {
        let terms = CostTerms::prefill(segment.start, segment.len());
        Self { tokens: terms.tokens, pairs: terms.pairs }
    }

    pub(crate) const fn of_terms(terms: &CostTerms) -> Self {
        Self { tokens: terms.tokens, pairs: terms.pairs }
    }

    /// Its cost, without what each batch costs.
    #[must_use]
    pub const fn cost(&self, model: &CostModel) -> Attos {
        model.items(&CostTerms { tokens: self.tokens, pairs: self.pairs, decode_context: 0, prefill_history: 0, decodes: 0 })
    }

    /// Mean history of its tokens.
    pub(crate) fn mean_history(&self) -> u128 {
        self.pairs.checked_div(u128::from(self.tokens)).unwrap_or(0)
    }

    /// Both together, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_add(other.tokens), pairs: self.pairs.saturating_add(other.pairs) }
    }

    fn minus(self, other: Self) -> Self {
        Self { tokens: self.tokens.saturating_sub(other.tokens), pairs: self.pairs.saturating_sub(other.pairs) }
    }
}

/// The prefill work of the busy period, kept as requests come, progress, and go; and the target that it has come to. Every call is O(1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BusyPeriod {
    /// Scheduled.
    done: Work,
    /// Admitted or waiting.
    rest: Work,
    /// The target so far; it only rises within the period.
    held: Attos,
    /// Cost of the riding decodes when it was chosen.
    ride: Attos,
    /// The work of the whole period when it was chosen.
    chosen_for: Work,
    /// It is looked at again when the rest has come down to this many tokens.
    next_look: u64,
    /// The newest batch with prompt work.
    last_batch: u64,
    /// The dearest batch with prompt work so far, and what it cost.
    dearest: (CostTerms, Attos),
    /// The tightest target for a first token among the requests of the period, in nanoseconds.
    tightest_ttft_ns: Option<u64>,
}

impl BusyPeriod {
    /// Whether counting on cannot overflow.
    #[cfg(feature = "serde")]
    pub(crate) fn is_sane(&self, next_batch: u64) -> bool {
        let small = |work: Work| work.tokens < 1 << 62 && work.pairs < 1 << 120;
        let cheap = |cost: Attos| cost <= DEAREST;
        small(self.done)
            && small(self.rest)
            && small(self.chosen_for)
            && cheap(self.held)
            && cheap(self.ride)
            && self.last_batch <= next_batch
    }

    /// Work of prompts that are not scheduled yet.
    #[must_use]
    pub const fn rest(&self) -> Work {
        self.rest
    }

    /// Work of the whole period: done, admitted and waiting.
    #[must_use]
    pub fn whole(&self) -> Work {
        self.done.plus(self.rest)
    }

    /// The target so far; zero before the first.
    #[must_use]
    pub const fn held(&self) -> Attos {
        self.held
    }

    /// A request's unscheduled work was `old` and is `new`, for another reason than progress. `oldest_in_flight`: the oldest batch in flight; a
    /// period is over when nothing was left to schedule and nothing of it is in flight.
    pub fn change(&mut self, old: Segment, new: Segment, oldest_in_flight: Option<u64>) {
        if old == new {
            return;
        }
        if self.rest.tokens == 0 && oldest_in_flight.is_none_or(|oldest| oldest > self.last_batch) {
            *self = Self { last_batch: self.last_batch, ..Self::default() };
        }
        self.rest = self.rest.minus(Work::of(old)).plus(Work::of(new));
    }

    /// Batch `batch` takes a request's unscheduled work from `old` down to `new`.
    pub fn progress(&mut self, old: Segment, new: Segment, batch: u64) {
        let done = Work::of(old).minus(Work::of(new));
        self.done = self.done.plus(done);
        self.rest = self.rest.minus(done);
        self.last_batch = batch;
    }

    /// A request of the period wants its first token within this time.
    pub fn aim(&mut self, ttft_ns: u64) {
        self.tightest_ttft_ns = Some(self.tightest_ttft_ns.map_or(ttft_ns, |tightest| tightest.min(ttft_ns)));
    }

    /// The tightest target for a first token that the period has seen.
    #[must_use]
    pub const fn tightest_ttft_ns(&self) -> Option<u64> {
        self.tightest_ttft_ns
    }

    /// Whether the target must be chosen anew: there is notably more work or riding decodes cost notably more, or the rest has halved (it can be
    /// laid out more exactly the shorter it is). Work that went does not lower it.
    #[must_use]
    pub fn must_choose(&self, ride: Attos) -> bool {
        self.rest.tokens > 0 && (self.has_grown(ride) || self.rest.tokens <= self.next_look)
    }

    /// There is no target yet, or it was chosen for notably less work (a sixteenth) or cheaper decodes. The target goes with the root of the
    /// work, and a target that is off by so little costs a ten-thousandth.
    #[must_use]
    pub fn has_grown(&self, ride: Attos) -> bool {
        let (now, then) = (self.whole(), self.chosen_for);
        self.held.0 == 0
            || now.tokens > then.tokens.saturating_add(then.tokens / 16)
            || now.pairs > then.pairs.saturating_add(then.pairs / 16)
            || ride.0 > self.ride.0.saturating_add(self.held.0 / 32)
    }

    /// The target was chosen. It never falls within the period.
    pub fn hold(&mut self, target: Attos, ride: Attos) {
        // Zero stands for none; what no batch ever costs is no limit, and stays in range of what is counted.
        self.held = self.held.max(target).clamp(Attos(1), DEAREST);
        self.ride = ride.min(DEAREST);
        self.chosen_for = self.whole();
        self.next_look = self.rest.tokens / 2;
    }

    /// Batch `batch` was scheduled, and costs so much.
    pub fn ran(&mut self, batch: u64, terms: &CostTerms, cost: Attos) {
        if batch == self.last_batch && self.done.tokens > 0 && cost > self.dearest.1 {
            self.dearest = (*terms, cost);
        }
    }

    /// Forgets the target: it means nothing any more.
    pub fn forget_target(&mut self) {
        self.held = Attos::ZERO;
    }

    /// Forgets the target, as the costs have changed. What the dearest batch of the period costs by the new ones is paid for, whatever comes next: a
    /// target below that would bring more batches and no shorter drain.
    pub fn reprice(&mut self, cost: impl FnOnce(&CostTerms) -> Attos) {
        if self.dearest.1.0 > 0 {
            self.dearest.1 = cost(&self.dearest.0);
        }
        self.held = self.dearest.1.min(DEAREST);
        self.chosen_for = Work::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_moves_work_and_a_period_ends_when_its_batches_have() {
        let mut period = BusyPeriod::default();
        let none = Segment::default();
        period.change(none, Segment { start: 0, end: 1000 }, None);
        assert!(period.must_choose(Attos::ZERO));
        period.hold(Attos(500), Attos::ZERO);
        assert!(!period.must_choose(Attos::ZERO));
        let whole = period.whole();
        period.progress(Segment { start: 0, end: 1000 }, Segment { start: 600, end: 1000 }, 3);
        assert_eq!((period.whole(), period.rest().tokens), (whole, 400));
        assert!(period.must_choose(Attos::ZERO), "the rest has halved");
        period.hold(Attos(400), Attos::ZERO);
        assert_eq!(period.held(), Attos(500), "progress never lowers it");
        period.progress(Segment { start: 600, end: 1000 }, none, 4);
        // A little more work does not move the target, notably more does.
        period.change(none, Segment { start: 0, end: 50 }, Some(4));
        assert!(!period.has_grown(Attos::ZERO) && period.has_grown(Attos(100)));
        period.change(Segment { start: 0, end: 50 }, none, Some(4));
        // Batch 4 is in flight: the same period. Then it is not: a new one.
        period.change(none, Segment { start: 0, end: 10 }, Some(4));
        assert_eq!(period.whole().tokens, 1010);
        period.progress(Segment { start: 0, end: 10 }, none, 5);
        period.change(none, Segment { start: 0, end: 10 }, Some(6));
        assert_eq!((period.whole().tokens, period.held()), (10, Attos::ZERO));
    }

    #[test]
    fn new_costs_keep_what_the_dearest_batch_has_paid_for() {
        let mut period = BusyPeriod::default();
        period.change(Segment::default(), Segment { start: 0, end: 1000 }, None);
        period.hold(Attos(900), Attos::ZERO);
        period.progress(Segment { start: 0, end: 1000 }, Segment { start: 400, end: 1000 }, 0);
        period.ran(0, &CostTerms::prefill(0, 400), Attos(800));
        // Decodes alone have no part in it, whatever they cost.
        period.ran(1, &CostTerms::decode(5000, 1), Attos(5000));
        period.reprice(|terms| Attos(u128::from(terms.tokens)));
        assert_eq!(period.held(), Attos(400));
        assert!(period.must_choose(Attos::ZERO), "by the new costs");
        period.hold(Attos(100), Attos::ZERO);
        assert_eq!(period.held(), Attos(400));
        // The next period is free.
        period.progress(Segment { start: 400, end: 1000 }, Segment::default(), 2);
        period.change(Segment::default(), Segment { start: 0, end: 10 }, None);
        period.reprice(|_| Attos(7));
        assert_eq!(period.held(), Attos::ZERO);
    }
}
