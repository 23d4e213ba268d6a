//! One batch is made.

use alloc::boxed::Box;
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::fork::Copied;
use super::target::Fill;
use super::{Pause, Scheduler};
use crate::batch::{Batch, Row, RowKind};
use crate::config::{Config, Pipelining, PolicyKind};
use crate::cost::{Attos, CostTerms};
use crate::ids::{BatchId, RequestId};
use crate::outcome::{EmptyReason, Schedule};
use crate::planner;
use crate::state::{Demand, Trait};

/// The batch under construction.
#[derive(Clone, Debug)]
pub(super) struct Build {
    pub(super) batch: Box<Batch>,
    pub(super) tokens_left: u32,
    pub(super) rows_left: u32,
    /// Tokens that a drafter takes beside each row.
    pub(super) slots: u32,
    pub(super) fill: Fill,
    /// Requests with prompt work that were looked at and go back into their queue.
    pub(super) deferred: Vec<u32>,
    /// Entries of the ready queue that this batch may take: the ones behind them are due for the next.
    pub(super) ready: usize,
    /// Whether decodes need nothing but their own few integers: no cost, no FLOPs, no tenants.
    pub(super) plain: bool,
    /// Blocks under a fence that somebody waits for already.
    pub(super) claims: u32,
    /// Somebody lacks a block.
    pub(super) no_blocks: bool,
    pub(super) copies: Vec<Copied>,
    /// Encoder tokens that the batch may still encode.
    pub(super) encoder_left: u64,
    /// Who came first of those that lack room in the encoder cache: nobody else takes any.
    pub(super) encoder_closed: Option<u32>,
    /// Somebody waits for the encoder.
    pub(super) no_encoder: bool,
    /// Adapters of the rows so far, where they are limited.
    pub(super) adapters: SmallVec<[u32; 8]>,
    /// The guard speaks for requests that are due up to here, ...
    pub(super) urgent_to: Option<(u64, u64)>,
    /// ... and up to here they had their turn.
    pub(super) urgent_after: Option<(u64, u64)>,
}

impl Default for Build {
    fn default() -> Self {
        Self {
            batch: Box::new(Batch::new()),
            tokens_left: 0,
            rows_left: 0,
            slots: 0,
            fill: Fill::UNLIMITED,
            deferred: Vec::new(),
            ready: 0,
            plain: false,
            claims: 0,
            no_blocks: false,
            copies: Vec::new(),
            encoder_left: u64::MAX,
            encoder_closed: None,
            no_encoder: false,
            adapters: SmallVec::new(),
            urgent_to: None,
            urgent_after: None,
        }
    }
}

impl Build {
    /// A new batch. Its record, and what is deferred and copied, are empty already but for their room.
    fn begin(&mut self, config: &Config, fill: Fill, ready: usize) {
        self.tokens_left = config.max_batch_tokens;
        self.rows_left = config.max_batch_requests;
        self.slots = config.draft_slots;
        self.fill = fill;
        self.ready = ready;
        self.plain = config.draft_slots == 0 && config.cost.is_none() && config.model.is_none() && config.policy != PolicyKind::Fair;
        (self.claims, self.no_blocks, self.no_encoder) = (0, false, false);
        self.encoder_left = config.encoder_budget_tokens.map_or(u64::MAX, u64::from);
        self.encoder_closed = None;
        self.adapters.clear();
        (self.urgent_to, self.urgent_after) = (None, None);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batch.rows.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.tokens_left <= self.slots || self.rows_left == 0
    }
}

/// What the prompt phase found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromptPhase {
    /// No prompt work that could run.
    Nothing,
    /// Prompt work was placed.
    Placed,
    /// Decodes left no room for it.
    Starved,
}

impl Scheduler {
    /// Decides the next batch. Its tokens count as computed from now on: the next call may schedule the next chunk of the same prompt.
    ///
    /// Decodes come first, longest waiting first, then prompt work in the order of the policy. Linear in the rows of the batch, logarithmic in
    /// the queues; allocates nothing at a constant population.
    pub fn schedule(&mut self) -> Schedule<'_> {
        if self.in_flight.len() >= self.depth as usize {
            return Schedule::Empty(EmptyReason::PipelineFull);
        }
        if self.pause == Pause::All && !self.is_idle() {
            return Schedule::Empty(EmptyReason::Paused);
        }
        loop {
            self.fill_batch();
            if !self.build.is_empty() || !self.in_flight.is_empty() {
                return self.end();
            }
            let again = (self.build.no_encoder && self.give_up_encodings()) || (self.build.no_blocks && self.break_deadlock());
            if !again {
                return self.end();
            }
            self.requeue();
        }
    }

    fn fill_batch(&mut self) {
        self.begin();
        let prompts_first = self.prompt_wait >= self.config.max_prompt_wait;
        let mut phase = PromptPhase::Nothing;
        if prompts_first {
            phase = self.add_prompts();
        }
        self.add_decodes();
        if !prompts_first {
            phase = self.add_prompts();
        }
        self.prompt_wait = match phase {
            PromptPhase::Starved => self.prompt_wait + 1,
            PromptPhase::Nothing | PromptPhase::Placed => 0,
        };
    }

    fn begin(&mut self) {
        self.move_keys();
        self.end_deferrals();
        self.begin_round();
        // Not during a sweep, which counts entries.
        let slots = &self.slots;
        self.ready.compact(|entry| slots[entry.slot].ticket == entry.ticket);
        // One that has room for its rows, if there is one: what stands here may never have held any.
        if self.build.batch.rows.capacity() == 0 {
            if let Some(spare) = self.spare.last_mut() {
                core::mem::swap(spare, &mut self.build.batch);
            }
        }
        let fill = self.fill();
        self.build.begin(&self.config, fill, self.ready.mark());
        self.judge();
    }

    /// Requests that were looked at go back to where they are taken from.
    pub(super) fn requeue(&mut self) {
        while let Some(slot) = self.build.deferred.pop() {
            self.queue_running(slot);
        }
    }

    fn end(&mut self) -> Schedule<'_> {
        self.requeue();
        if self.build.is_empty() {
            self.build.batch.recycle();
            return Schedule::Empty(self.empty_reason());
        }
        let next = self.spare.pop().unwrap_or_else(|| Box::new(Batch::new()));
        let mut batch = core::mem::replace(&mut self.build.batch, next);
        batch.id = BatchId(self.next_batch);
        batch.scheduled_ns = self.now_ns;
        self.pool.open_fence(self.next_batch);
        self.next_batch += 1;
        while let Some(copied) = self.build.copies.pop() {
            batch.copies.push((copied.from, copied.to));
            let index = self.slots[copied.slot].table.iter().position(|&block| block == copied.to);
            self.slots.cold_mut(copied.slot).copied = index.map(|index| (batch.id.0, index as u32));
            batch.copied.push(copied.slot);
            // It is read by this batch, and nobody may write it before that is done.
            self.pool.release(copied.from, Some(batch.id.0));
        }
        name_once(&mut self.preempted);
        core::mem::swap(&mut batch.preempted, &mut self.preempted);
        core::mem::swap(&mut batch.ended, &mut self.ended);
        core::mem::swap(&mut batch.freed, &mut self.encoder_freed);
        let cost = planner::cost_of(self.target.stages(), &batch.terms);
        batch.cost_ns = cost.to_ns();
        batch.out_ns = self.expected_out(batch.cost_ns);
        self.target.period.ran(batch.id.0, &batch.terms, cost);
        self.note_pace(&batch);
        self.stats.batches += 1;
        self.stats.scheduled_tokens += batch.terms.tokens;
        self.in_flight.push_back(batch);
        let batch = &self.in_flight[self.in_flight.len() - 1];
        Schedule::Batch(self.scheduled(batch))
    }

    fn empty_reason(&self) -> EmptyReason {
        if self.alive == 0 && self.in_flight.is_empty() {
            EmptyReason::Idle
        } else if self.pause != Pause::Off && self.in_flight.is_empty() {
            EmptyReason::Paused
        } else if self.build.no_blocks {
            EmptyReason::NoBlocks
        } else if !self.in_flight.is_empty() {
            EmptyReason::WaitingForResults
        } else {
            EmptyReason::WaitingForExternal
        }
    }

    /// Cost of the batch under construction with these items on top.
    pub(super) fn cost_with(&self, more: CostTerms) -> Attos {
        let mut terms = self.build.batch.terms;
        terms.add(more);
        planner::cost_of(self.target.stages(), &terms)
    }

    /// The next `tokens` positions of the request, the last `drafts` of them drafts, go into the batch. Its blocks are there.
    pub(super) fn push_row(&mut self, slot: u32, tokens: u32, drafts: u32) {
        let s = &mut self.slots[slot];
        let start = s.scheduled;
        let new = tokens - drafts;
        let kind = if new == 1 && start >= s.prompt_len { RowKind::Decode } else { RowKind::Prefill };
        let samples = start + new == s.known() + s.live && !s.has(Trait::Pooling);
        let mut row = Row {
            request: RequestId(s.id),
            num_computed_tokens: start,
            num_scheduled_tokens: tokens,
            num_draft_tokens: drafts,
            kind,
            samples,
            slot,
            epoch: s.epoch,
            cost_ns: 0,
            flops: 0,
        };
        let recomputed = u64::from(s.reached.min(start + tokens).saturating_sub(start));
        s.scheduled += tokens;
        s.live += u32::from(samples);
        if drafts > 0 {
            s.set(Trait::DraftsOut, true);
        }
        s.live_rows += 1;
        s.rows += 1;
        s.last_batch = self.next_batch;
        let terms = row.terms();
        if let Some(cost) = &self.config.cost {
            row.cost_ns = cost.items(&terms).to_ns();
        }
        if let Some(model) = &self.config.model {
            row.flops = model.flops(start, tokens);
        }
        let build = &mut self.build;
        build.tokens_left -= tokens + build.slots;
        build.rows_left -= 1;
        build.batch.terms.add(terms);
        build.batch.samples += u32::from(samples);
        build.batch.flops = build.batch.flops.saturating_add(row.flops);
        build.batch.rows.push(row);
        self.stats.draft_tokens += u64::from(drafts);
        self.stats.recomputed_tokens += recomputed;
        if self.config.policy == PolicyKind::Fair {
            self.charge(slot, &terms);
        }
    }

    /// Where a request goes whose row has just been placed.
    pub(super) fn after_rows(&mut self, slot: u32) {
        if self.config.pipelining == Pipelining::Request {
            return;
        }
        match self.slots[slot].demand(self.config.async_scheduling) {
            Demand::Nothing => {}
            Demand::Prompt => self.build.deferred.push(slot),
            Demand::Decode => self.slots[slot].ticket = self.ready.push_back(slot),
        }
    }

    /// Whether the batch may hold a row of this request's adapter.
    pub(super) fn takes_adapter(&self, slot: u32) -> bool {
        let Some(most) = self.config.max_adapters_per_batch else { return true };
        let Some(adapter) = self.slots.cold(slot).adapter else { return true };
        self.build.adapters.len() < most as usize || self.build.adapters.contains(&adapter)
    }

    /// A row of the request is in the batch: its adapter counts.
    pub(super) fn note_adapter(&mut self, slot: u32) {
        if self.config.max_adapters_per_batch.is_none() {
            return;
        }
        if let Some(adapter) = self.slots.cold(slot).adapter.filter(|adapter| !self.build.adapters.contains(adapter)) {
            self.build.adapters.push(adapter);
        }
    }

    fn charge(&mut self, slot: u32, terms: &CostTerms) {
        let amount = self.config.cost.as_ref().map_or_else(|| u128::from(terms.tokens), |cost| cost.items(terms).0);
        let cold = self.slots.cold(slot);
        let (tenant, weight) = (cold.tenant, cold.weight_millionths);
        let served = self.tenants.charge(tenant, amount, weight);
        self.set_served(tenant, served);
    }

    /// Orders the tenant's requests by what it was served, under policy `fair`.
    pub(super) fn set_served(&mut self, tenant: u32, served: u128) {
        if self.config.policy == PolicyKind::Fair {
            for queue in [&mut self.prompts, &mut self.waiting, &mut self.resident, &mut self.wanting] {
                queue.set_group_key(tenant, served);
            }
        }
    }
}

/// Each name once, where it comes first: a lost batch gives back what it named, and who was told then may have been preempted again since.
/// O(names * log names).
fn name_once(names: &mut Vec<RequestId>) {
    if names.len() < 2 {
        return;
    }
    let mut first: SmallVec<[(RequestId, usize); 32]> = names.iter().copied().zip(0..).collect();
    first.sort_unstable();
    first.dedup_by_key(|(name, _)| *name);
    if first.len() < names.len() {
        first.sort_unstable_by_key(|&(_, at)| at);
        names.clear();
        names.extend(first.iter().map(|&(name, _)| name));
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestId, name_once};

    #[test]
    fn names_stand_where_they_come_first() {
        let ids = |ids: &[u64]| ids.iter().map(|&id| RequestId(id)).collect::<alloc::vec::Vec<_>>();
        for (given, told) in [(&[7, 3, 7, 9, 3][..], &[7, 3, 9][..]), (&[9, 3], &[9, 3]), (&[4, 4], &[4]), (&[], &[])] {
            let mut names = ids(given);
            name_once(&mut names);
            assert_eq!(names, ids(told));
        }
    }
}
