//! Latency targets shape a batch: what the decodes that ride in it allow, who has waited too long, and what an early prompt leaves to others.

use alloc::vec::Vec;

use super::Scheduler;
use super::prompt::Source;
use crate::config::Chunking;
use crate::cost::{Attos, CostTerms};
use crate::state::{State, Trait};

/// How many tokens late a decode may be and still be made to catch up. Beyond that it is forgiven: what has stood still for long does not make batches
/// small for long.
const DEBT: u64 = 4;

/// However tight the targets for first tokens are, a batch may cost so many times its constant: the constants take 1.6 % at most.
const CONSTANTS: u128 = 64;

impl Scheduler {
    /// A decode is in the batch that wants its next token by a time: all batches in flight pass before it comes.
    pub(super) fn heed_latency(&mut self, slot: u32) {
        if !matches!(self.config.chunking, Chunking::Adaptive) {
            return;
        }
        let cold = self.slots.cold(slot);
        let wish = cold.tbt_slo_ns.map(|target| self.token_share(target, Some(cold.token_due_ns)));
        let fill = &mut self.build.fill;
        fill.most = [fill.most, fill.riding, wish].into_iter().flatten().min();
    }

    /// What a batch may cost so that a token passes within `latency_ns`.
    pub(super) fn per_stage(&self, latency_ns: u64) -> Attos {
        Attos(Attos::from_ns(latency_ns).0 / u128::from(self.depth.max(self.config.stages)))
    }

    /// A request has come; what it wants counts for the whole busy period, as others like it will come.
    pub(super) fn aim(&mut self, slot: u32) {
        if let Some(target) = self.slots.cold(slot).ttft_slo_ns.filter(|_| self.config.latency.follow_slack) {
            self.target.period.aim(target);
        }
    }

    /// What a batch may cost so that a prompt that comes unforeseen can be on time: it waits for one batch to leave the first stage, and its own
    /// passes all of them; half of its time is for that. Batches stay so long that their constant is a small part of them.
    pub(super) fn grain(&self) -> Option<Attos> {
        let target = self.target.period.tightest_ttft_ns()?;
        let passes = 2 * (u128::from(self.config.stages) + 1);
        let constant = self.target.stages().iter().map(|stage| stage.c0.0).max().unwrap_or(0);
        Some(Attos((Attos::from_ns(target).0 / passes).max(constant.saturating_mul(CONSTANTS))))
    }

    /// A token of the request was delivered just now: the next one is due a target later. What it was late is made good by the following ones,
    /// what it was early is not spent.
    pub(super) fn date_token(&mut self, slot: u32) {
        if !self.slots[slot].has(Trait::Paced) {
            return;
        }
        let (now, first) = (self.now_ns, self.slots[slot].outputs == 1);
        let cold = self.slots.cold_mut(slot);
        let Some(step) = cold.tbt_slo_ns else { return };
        let before = if first { now } else { cold.token_due_ns };
        cold.token_due_ns = before.max(now.saturating_sub(step.saturating_mul(DEBT))).min(now).saturating_add(step);
    }

    /// Whether a decode has waited for so many batches that latency caps count no more. Its last batch came back when at most
    /// D - 1 others had been scheduled behind it.
    pub(super) fn decode_is_overdue(&self, slot: u32) -> bool {
        let s = &self.slots[slot];
        s.live == 0
            && self.next_batch.saturating_sub(s.last_batch) >= u64::from(self.depth) + u64::from(self.config.latency.max_decode_wait)
    }

    /// Notes since when a request with prompt work has got no chunk. O(log requests), where it is asked for.
    pub(super) fn note_wait(&mut self, slot: u32) {
        if self.config.latency.max_prefill_wait_ns.is_some() {
            let cold = self.slots.cold(slot);
            self.waits.set(slot, (cold.last_chunk_ns(), cold.seq));
        }
    }

    /// The bound on waits may be new.
    pub(super) fn note_waits(&mut self) {
        let queued = self.prompts.iter().chain(self.waiting.iter()).chain(self.resident.iter()).map(|(_, slot)| slot);
        for slot in queued.collect::<Vec<_>>() {
            self.note_wait(slot);
        }
    }

    /// A chunk of the request was placed.
    pub(super) fn date_chunk(&mut self, slot: u32) {
        if let Some(rare) = self.slots.cold_mut(slot).rare_mut() {
            rare.put_off_since_ns = None;
        }
        self.put_off.remove(slot);
        if self.config.latency.max_prefill_wait_ns.is_some() {
            self.slots.cold_mut(slot).last_chunk_ns = Some(self.now_ns);
            self.waits.remove(slot);
        }
    }

    /// The request with prompt work that has waited longest, if that is too long; it may be scheduled or admitted. O(log) amortised.
    pub(super) fn overdue_prompt(&mut self, may_admit: bool) -> Option<(Source, u32)> {
        let most = self.config.latency.max_prefill_wait_ns?;
        while let Some(((since, _), slot)) = self.waits.peek() {
            if self.now_ns.saturating_sub(since) < most {
                return None;
            }
            match self.source(slot) {
                Some(source) if may_admit || source == Source::Admitted => return Some((source, slot)),
                // Paused: its time comes.
                Some(_) => return None,
                // It left its queue: another call notes it when it comes back.
                None => self.waits.remove(slot),
            }
        }
        None
    }

    /// The queue of prompt work that the request stands in.
    pub(super) fn source(&self, slot: u32) -> Option<Source> {
        if self.prompts.contains(slot) {
            Some(Source::Admitted)
        } else if self.waiting.contains(slot) {
            Some(Source::Waiting)
        } else {
            self.resident.contains(slot).then_some(Source::Resident)
        }
    }

    /// Whether a prompt that is early may leave some of this batch to others.
    pub(super) fn shares_space(&self) -> bool {
        self.config.latency.space_sharing && self.build.fill.most.is_some()
    }

    /// With space sharing: the admitted prompt that comes first, if it has time left; what its share of this batch takes is set aside. It is out
    /// of its queue, and [`end_sharing`](Self::end_sharing) places it. O(stages + log queue).
    pub(super) fn begin_sharing(&mut self, head: Option<(Source, u32)>) -> Option<Shared> {
        let target = self.build.fill.most.filter(|_| self.shares_space())?;
        let (_, slot) = head.filter(|&(source, _)| source == Source::Admitted)?;
        let deadline = self.slots.cold(slot).deadline_ns?;
        let s = &self.slots[slot];
        if s.state != State::Running || s.scheduled >= s.prompt_len || self.build.is_full() {
            return None;
        }
        let left = self.prompt_work(s.scheduled, s.prompt_len);
        // The last chunk passes all stages.
        let fill_ns = Attos(target.0.saturating_mul(u128::from(self.config.stages - 1))).to_ns();
        let time = deadline.saturating_sub(self.now_ns).saturating_sub(fill_ns);
        if left >= time {
            return None;
        }
        let share = Attos((target.0 / u128::from(time)).saturating_mul(u128::from(left)));
        let stretch = self.stretch(s.scheduled, s.known(), s.prompt_len, 0);
        let tokens = self.chunk_within(&stretch, share).max(self.smallest(&stretch));
        let cost = self.config.cost.as_ref()?.items(&CostTerms::prefill(s.scheduled, tokens));
        let tokens = (tokens + self.config.draft_slots).min(self.build.tokens_left);
        if !self.takes_adapter(slot) {
            return None;
        }
        let tenant = self.slots.cold(slot).tenant;
        self.prompts.remove(slot, tenant);
        let most = self.build.fill.most.replace(Attos(target.0.saturating_sub(cost.0)));
        self.build.tokens_left -= tokens;
        self.build.rows_left -= 1;
        Some(Shared { slot, epoch: self.slots[slot].epoch, tokens, most })
    }

    /// What was set aside, and all that nobody else wanted, goes to the prompt that left room. False: it got nothing.
    pub(super) fn end_sharing(&mut self, shared: &Shared) -> bool {
        self.build.fill.most = shared.most;
        self.build.tokens_left += shared.tokens;
        self.build.rows_left += 1;
        // It may have been preempted meanwhile: then it stands where it would without a share, or was admitted into this very batch again.
        let s = &self.slots[shared.slot];
        if s.state != State::Running || s.epoch != shared.epoch {
            return false;
        }
        // Others may have taken the adapters of the batch meanwhile.
        // It comes before those who lack room in the encoder cache.
        let closed = self.build.encoder_closed.take();
        let placed = self.takes_adapter(shared.slot) && self.add_chunks(shared.slot);
        self.build.encoder_closed = self.build.encoder_closed.or(closed);
        if !placed {
            self.build.deferred.push(shared.slot);
        }
        placed
    }
}

/// What is set aside in a batch for the prompt that comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    slot: u32,
    /// Changes when it is preempted.
    epoch: u32,
    tokens: u32,
    /// What the batch may cost with it.
    most: Option<Attos>,
}
