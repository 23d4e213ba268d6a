//! Relegation and the guard of feasibility: who can be on time, worked out before each batch.
//!
//! Time is what the machine takes for prompt work: its cost, times what batches cost over the prompt work in them (constants, decodes that ride).
//! The last chunk of a prompt has to pass all stages, in a batch that others may fill, so everybody is due that much earlier. Relegated requests come behind all others, whatever the policy;
//! those of them that may still come back come first, and come back when all those on time leave room.

use alloc::vec::Vec;

use super::Scheduler;
use super::prompt::Source;
use crate::batch::{Batch, RowKind};
use crate::cost::Attos;
use crate::policy::{Class, Due};
use crate::state::{Demand, State};

/// How many of the urgent ones that cannot run now are passed over in a batch.
const PASSED: u32 = 32;

const MILLION: u128 = 1_000_000;

/// What batches with prompt work cost lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Pace {
    /// Fading sums over batches: what they cost, and the prompt work in them. Nanoseconds.
    batches_ns: u64,
    prompts_ns: u64,
    /// Mean cost of a batch, the last eight counting most.
    mean_ns: u64,
    /// What work is multiplied by in the tree, in millionths; 0 = as one.
    applied: u64,
}

impl Pace {
    fn note(&mut self, batch_ns: u64, prompts_ns: u64) {
        // Longer than twelve days is as good as for ever, and sums of that stay in range.
        let (batch_ns, prompts_ns) = (batch_ns.min(1 << 50), prompts_ns.min(1 << 50));
        // Sums fade by 1/64 with each batch, so they stay below 64 of the largest.
        let fade = |sum: u64, more: u64| (sum - sum / 64).saturating_add(more);
        self.batches_ns = fade(self.batches_ns, batch_ns);
        self.prompts_ns = fade(self.prompts_ns, prompts_ns);
        self.mean_ns = if self.mean_ns == 0 { batch_ns } else { self.mean_ns - self.mean_ns / 8 + batch_ns / 8 };
    }

    /// What a nanosecond of prompt work takes, in millionths: between 1 and 16.
    fn factor(&self) -> u64 {
        let factor = u128::from(self.batches_ns) * MILLION / u128::from(self.prompts_ns.max(1));
        if self.prompts_ns == 0 { 1_000_000 } else { factor.clamp(MILLION, 16 * MILLION) as u64 }
    }

    fn scale(&self, work: u64) -> u64 {
        u64::try_from(u128::from(work) * u128::from(self.applied.max(1_000_000)) / MILLION).unwrap_or(u64::MAX).min(1 << 62)
    }

    /// Whether a stored one can be.
    #[cfg(feature = "serde")]
    pub(super) fn is_sane(&self) -> bool {
        self.batches_ns < 1 << 60 && self.prompts_ns < 1 << 60 && self.mean_ns < 1 << 60 && self.applied <= 16_000_000
    }
}

impl Scheduler {
    pub(super) fn judges(&self) -> bool {
        self.config.relegation || self.config.feasibility_guard
    }

    /// When the request is due and its work, if it waits for its first token and there is prompt work to schedule.
    fn deadline_of(&self, slot: u32) -> Option<u64> {
        let s = &self.slots[slot];
        let open = match s.state {
            State::Waiting => s.is_runnable(),
            State::Running => s.gates.is_empty() && s.demand(false) == Demand::Prompt,
            _ => false,
        };
        if open && s.outputs == 0 && s.scheduled < s.prompt_len { self.slots.cold(slot).deadline_ns } else { None }
    }

    /// Counts the request among those that are to be on time, or not any more. O(log requests).
    pub(super) fn count_due(&mut self, slot: u32) {
        if !self.judges() {
            return;
        }
        if self.deadline_of(slot).is_none() {
            return self.feasible.remove(slot);
        }
        let s = &self.slots[slot];
        let fresh = s.state == State::Waiting && s.table.is_empty();
        let start = if fresh { self.count_hits(slot) * self.config.block_size } else { s.scheduled };
        let work = self.prompt_work(start.min(s.prompt_len), s.prompt_len);
        self.slots.cold_mut(slot).due_work_ns = work;
        self.place_due(slot);
    }

    /// Puts the request where its standing says, by the work that was counted last.
    fn place_due(&mut self, slot: u32) {
        let Some(at_ns) = self.deadline_of(slot) else { return self.feasible.remove(slot) };
        let cold = self.slots.cold(slot);
        let due = Due { at_ns: at_ns.min(1 << 62), seq: cold.seq, work_ns: self.pace.scale(cold.due_work_ns) };
        match cold.standing {
            Class::Relegated => self.feasible.put_out(slot, due),
            Class::Hopeless => self.feasible.remove(slot),
            _ => self.feasible.insert(slot, due),
        }
    }

    /// Works out anew what is kept of everybody. O(requests * log).
    pub(super) fn place_all_due(&mut self) {
        self.feasible.clear();
        if self.judges() {
            for slot in self.slots.iter().map(|(slot, _)| slot).collect::<Vec<_>>() {
                self.place_due(slot);
            }
        }
    }

    /// Whether what is kept of a request is what follows from it.
    pub(super) fn is_placed(&self, slot: u32) -> bool {
        let expected = self.deadline_of(slot).filter(|_| self.judges()).map(|at| (at.min(1 << 62), self.slots.cold(slot).standing));
        let kept = self.feasible.get(slot).map(|due| (due.at_ns, due.work_ns == self.pace.scale(self.slots.cold(slot).due_work_ns)));
        match expected {
            None | Some((_, Class::Hopeless)) => kept.is_none(),
            Some((at, standing)) => kept == Some((at, true)) && self.feasible.is_out(slot) == (standing == Class::Relegated),
        }
    }

    /// A batch is complete: what it costs, and how much of that is prompt work. O(rows), where it is asked for.
    pub(super) fn note_pace(&mut self, batch: &Batch) {
        if !self.judges() {
            return;
        }
        let prompts = batch.rows.iter().filter(|row| row.kind == RowKind::Prefill).map(|row| row.cost_ns);
        let prompts_ns = prompts.fold(0u64, u64::saturating_add);
        if prompts_ns > 0 {
            self.pace.note(batch.cost_ns, prompts_ns);
        }
    }

    /// What everybody's due time, less the work up to it, is compared with: now, and a batch for each stage, as a last chunk passes the stages in
    /// a batch that others fill; and for so many batches more that go to others first.
    fn begins(&self, batches_more: u64) -> i128 {
        let planned_ns = self.build.fill.most.filter(|_| batches_more > 0).map_or(0, Attos::to_ns);
        let batch_ns = self.pace.mean_ns.max(planned_ns);
        let fill = u128::from(batch_ns) * u128::from(u64::from(self.config.stages) + batches_more);
        i128::from(self.now_ns) + i128::try_from(fill).unwrap_or(i128::MAX >> 1)
    }

    /// Decides who is relegated and who comes back, and whether the guard speaks for the next batch. O(log requests) for each whose standing
    /// changes; O(requests * log) when the pace of the machine has changed by a sixteenth.
    pub(super) fn judge(&mut self) {
        if !self.judges() {
            return;
        }
        let (factor, applied) = (self.pace.factor(), self.pace.applied.max(1_000_000));
        if factor.abs_diff(applied) > applied / 16 {
            self.pace.applied = factor;
            self.place_all_due();
        }
        if self.config.relegation {
            self.relegate();
        }
        if self.config.feasibility_guard {
            self.build.urgent_to = self.urgent_to();
        }
    }

    fn relegate(&mut self) {
        let now = self.begins(0);
        while let Some((_, slot)) = self.feasible.first_start().filter(|&(start, _)| start < now) {
            let standing = if self.is_hopeless(slot, now) { Class::Hopeless } else { Class::Relegated };
            self.stats.relegated += 1;
            self.set_standing(slot, standing);
        }
        while let Some(slot) = self.feasible.heaviest_before_first_late(now) {
            self.stats.relegated += 1;
            self.set_standing(slot, Class::Relegated);
        }
        // Not at the first sign of room, or requests would come and go with every batch.
        let later = self.begins(2);
        while let Some(slot) = self.feasible.least_out() {
            if self.is_hopeless(slot, now) {
                self.set_standing(slot, Class::Hopeless);
            } else if self.feasible.get(slot).is_some_and(|due| self.feasible.fits(&due, later)) {
                self.stats.returned += 1;
                self.set_standing(slot, Class::Normal);
            } else {
                break;
            }
        }
    }

    /// Whether it will be late even if nothing else is in its batches.
    fn is_hopeless(&self, slot: u32, begins: i128) -> bool {
        let cold = self.slots.cold(slot);
        cold.deadline_ns.is_some_and(|at| i128::from(at) - i128::from(cold.due_work_ns) < begins)
    }

    fn set_standing(&mut self, slot: u32, standing: Class) {
        self.slots.cold_mut(slot).standing = standing;
        self.place_due(slot);
        self.rerank(slot);
    }

    /// Up to which deadline the guard speaks for requests now.
    fn urgent_to(&self) -> Option<(u64, u64)> {
        self.feasible.last_late(self.begins(1)).filter(|_| self.config.feasibility_guard)
    }

    /// Whether one that the guard lets go first cannot be admitted: nobody is admitted past it. O(log requests) for each that is urgent.
    pub(super) fn is_behind_urgent(&self, slot: u32) -> bool {
        let Some(to) = self.urgent_to() else { return false };
        let mut after = None;
        for _ in 0..PASSED {
            let Some((key, other)) = self.feasible.next(after, to).filter(|&(_, other)| other != slot) else { return false };
            let waits = matches!(self.source(other), Some(Source::Waiting | Source::Resident));
            if waits && self.lacks_room(other) {
                return true;
            }
            after = Some(key);
        }
        false
    }

    /// The next of those that the guard lets go first, in the order of their deadlines, that can run now. O(log requests) for each passed.
    pub(super) fn urgent(&mut self, may_take: impl Fn(Source) -> bool) -> Option<(Source, u32)> {
        let to = self.build.urgent_to?;
        for _ in 0..PASSED {
            let Some((key, slot)) = self.feasible.next(self.build.urgent_after, to) else { break };
            self.build.urgent_after = Some(key);
            if let Some(source) = self.source(slot).filter(|&source| may_take(source)) {
                return Some((source, slot));
            }
        }
        self.build.urgent_to = None;
        None
    }
}
