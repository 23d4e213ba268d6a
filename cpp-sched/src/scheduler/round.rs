//! How long a token is under way: what the cost model says, and how much longer it really takes.
//!
//! A batch that costs `c` on each of P stages and is decided now is out at the latest of `free[s] + (P - s) * c` over the stages, where `free[s]` is
//! when stage `s` has run what was decided before (the recurrence of a flow shop, with one job more). What the model leaves out (hops, the way
//! back, decisions, costs that are a little off) is the time from then until the result is there. Its upper expectile is followed: tokens are
//! aimed at so much before they are due.

use smallvec::SmallVec;

use super::Scheduler;
use crate::config::Chunking;
use crate::cost::Attos;

/// Stages that are followed one by one; a batch passes those behind them without waiting.
const STAGES: usize = 64;

/// See the module. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(super) struct Round {
    /// How much later than the model says results come; mostly no more than this.
    margin_ns: u64,
    /// When each stage has run what is in flight. For the batch under construction.
    #[cfg_attr(feature = "serde", serde(skip))]
    free_ns: SmallVec<[u64; 16]>,
}

impl Round {
    fn begin(&mut self, stages: u32) {
        self.free_ns.clear();
        self.free_ns.resize((stages as usize).min(STAGES), 0);
    }

    /// A batch of this cost was decided then; when it is out. O(stages).
    fn enter(&mut self, decided_ns: u64, cost_ns: u64, stages: u32) -> u64 {
        let mut at = decided_ns;
        for free in &mut self.free_ns {
            at = at.max(*free).saturating_add(cost_ns);
            *free = at;
        }
        at.saturating_add(cost_ns.saturating_mul(u64::from(stages).saturating_sub(self.free_ns.len() as u64)))
    }

    /// What a batch that is decided now may cost on each stage to be out by then. O(stages).
    fn most_by(&self, due_ns: u64, now_ns: u64, stages: u32) -> u64 {
        let stages = u64::from(stages.max(1));
        let by = |(s, &free): (u64, &u64)| due_ns.saturating_sub(free.max(now_ns)) / (stages - s);
        (0..stages).zip(&self.free_ns).map(by).fold(due_ns.saturating_sub(now_ns) / stages, u64::min)
    }

    /// A batch that was decided at `decided_ns` and was to be out at `out_ns` is back. Twice as long as foreseen is as bad as it gets: a stall says nothing
    /// about the next round.
    fn note(&mut self, decided_ns: u64, out_ns: u64, now_ns: u64) {
        // Centuries are as good as for ever, and the margin stays in range.
        let late = now_ns.saturating_sub(out_ns).min(out_ns.saturating_sub(decided_ns)).min(1 << 60);
        // Up by a quarter of the distance, down by a 32nd.
        if late > self.margin_ns {
            self.margin_ns += (late - self.margin_ns).div_ceil(4);
        } else {
            self.margin_ns -= (self.margin_ns - late) / 32;
        }
    }

    /// What is aimed at, for something that is wanted within `target_ns`: at most a quarter is left to what the model does not know.
    pub(super) fn aim(&self, target_ns: u64) -> u64 {
        target_ns - self.margin_ns.min(target_ns / 4)
    }

    /// Whether a stored one can be.
    #[cfg(feature = "serde")]
    pub(super) fn is_sane(&self) -> bool {
        self.margin_ns < 1 << 62
    }

    /// Without what the batch under construction needs.
    #[cfg(feature = "serde")]
    pub(super) fn saved(&self) -> Self {
        Self { margin_ns: self.margin_ns, ..Self::default() }
    }
}

impl Scheduler {
    /// Whether token targets shape batches by the clock.
    fn follows_tokens(&self) -> bool {
        matches!(self.config.chunking, Chunking::Adaptive) && self.config.latency.follow_slack && self.now_ns > 0
    }

    /// Whether decodes keep a pace now.
    pub(super) fn is_paced(&self) -> bool {
        self.paced.len() > 0 && self.follows_tokens()
    }

    /// Before a batch: where the stages are. O(batches in flight * stages), where tokens are paced.
    pub(super) fn begin_round(&mut self) {
        let stages = self.config.stages;
        self.round.free_ns.clear();
        if !self.is_paced() {
            return;
        }
        self.round.begin(stages);
        for batch in &self.in_flight {
            self.round.enter(batch.scheduled_ns, batch.cost_ns, stages);
        }
    }

    /// When the batch that was just decided will be out, if that is of interest (else 0).
    pub(super) fn expected_out(&mut self, cost_ns: u64) -> u64 {
        if self.round.free_ns.is_empty() {
            // Somebody's last chunk may be in this very batch.
            self.begin_round();
        }
        if self.round.free_ns.is_empty() { 0 } else { self.round.enter(self.now_ns, cost_ns, self.config.stages) }
    }

    /// A batch is back.
    pub(super) fn note_round(&mut self, decided_ns: u64, out_ns: u64) {
        if out_ns > 0 {
            self.round.note(decided_ns, out_ns, self.now_ns);
        }
    }

    /// What a batch may cost while a decode wants its tokens so far apart: its share of a round. O(stages) for a decode that rides in it and is due then.
    pub(super) fn token_share(&self, target_ns: u64, due_ns: Option<u64>) -> Attos {
        if !self.config.latency.follow_slack {
            return self.per_stage(target_ns);
        }
        let aim = self.round.aim(target_ns);
        let share = self.per_stage(aim);
        let Some(due) = due_ns.filter(|_| self.now_ns > 0) else { return share };
        let most = Attos::from_ns(self.round.most_by(due.saturating_sub(target_ns - aim), self.now_ns, self.config.stages));
        most.clamp(Attos(share.0 - share.0 / 4), share)
    }

    /// What batches may cost because somebody decodes whose tokens are to keep a pace, though they do not ride in this one: their next one is
    /// behind it. None: nobody does.
    pub(super) fn paced_share(&self) -> Option<Attos> {
        let ((target, _), _) = self.paced.peek().filter(|_| self.config.latency.follow_slack)?;
        Some(self.token_share(target, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_is_out_in_time_and_a_nanosecond_more_is_not() {
        let mut state = 3u64;
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for _ in 0..2000 {
            let (stages, ahead) = (draw(6) as u32 + 1, draw(6));
            let (mut round, mut now) = (Round::default(), 1000);
            round.begin(stages);
            for _ in 0..ahead {
                round.enter(now, draw(50), stages);
                now += draw(30);
            }
            let due = now + draw(600);
            let most = round.most_by(due, now, stages);
            let (mut within, mut beyond) = (round.clone(), round);
            let out = within.enter(now, most, stages);
            assert!(out <= due || most == 0, "{most} is out at {out}, due at {due}");
            assert!(beyond.enter(now, most + 1, stages) > due);
        }
    }

    #[test]
    fn the_margin_covers_most_of_what_the_model_leaves_out_and_a_stall_is_forgotten() {
        let mut round = Round::default();
        for n in 0..1000u64 {
            round.note(0, 40_000, 40_000 + 1000 + (n % 8) * 100);
        }
        assert!((1400..=1700).contains(&round.margin_ns), "{}", round.margin_ns);
        round.note(0, 40_000, 90_000_000);
        assert!(round.margin_ns <= 12_000, "{}", round.margin_ns);
        assert_eq!((round.aim(100_000), round.aim(8000)), (100_000 - round.margin_ns, 6000));
        for _ in 0..200 {
            round.note(0, 40_000, 41_000);
        }
        assert!(round.margin_ns <= 1100, "{}", round.margin_ns);
        for _ in 0..40 {
            round.note(0, 1 << 63, u64::MAX);
        }
        assert!(round.margin_ns <= 1 << 60, "{}", round.margin_ns);
    }
}
