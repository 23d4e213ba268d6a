//! Prompt work goes into the batch: admitted and waiting requests, in the order of the policy.

use alloc::vec::Vec;

use super::schedule::PromptPhase;
use super::{Pause, Scheduler};
use crate::config::Admission;
use crate::outcome::WaitReason;
use crate::policy::Class;
use crate::queue::compare;
use crate::state::{Demand, Trait};

/// How many requests whose smallest chunk does not fit into the rest of a batch are passed over, at most.
const MISFITS: u32 = 4;

/// How many requests whose adapter is one too many for a batch are passed over, at most.
const ADAPTERS_PASSED: u32 = 32;

/// How many requests that the encoder has no room for are passed over in a batch, at most.
const ENCODER_PASSED: u32 = 32;

/// Which queue a request was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Admitted,
    Waiting,
    Resident,
}

/// Whether more requests may be admitted into this batch.
#[derive(Clone, Copy, Debug)]
struct Gate {
    open: bool,
    /// The same for requests that hold their blocks.
    resident: bool,
    /// Requests that could not be admitted and were passed.
    passed: u32,
    misfits: u32,
    /// Requests passed because their adapter is one too many.
    adapters: u32,
    /// Requests passed because the encoder has no room for what they need next.
    encoder: u32,
}

impl Scheduler {
    /// O(rows placed * log queue).
    pub(super) fn add_prompts(&mut self) -> PromptPhase {
        let open = self.pause == Pause::Off;
        if !self.has_prompt_work(open) {
            // It stood for the head that was looked at last.
            self.refused = None;
            return PromptPhase::Nothing;
        }
        let fresh = Gate { open, resident: open, passed: 0, misfits: 0, adapters: 0, encoder: 0 };
        let mut gate = fresh;
        let rows_before = self.build.batch.rows.len();
        let mut passed = Vec::new();
        let overdue = self.overdue_prompt(open);
        // Where the guard speaks, nobody is early enough to leave room.
        let shares = overdue.is_none() && self.build.urgent_to.is_none() && self.shares_space();
        let shared = if shares { self.begin_sharing(self.first_in_order(&gate)) } else { None };
        let mut starved = self.place_prompts(&mut gate, overdue, rows_before, &mut passed);
        if let Some(shared) = shared {
            if !self.end_sharing(&shared) {
                gate.misfits += 1;
                // What was set aside for it is the others' again: an empty batch must not wait for it, and is made as if nobody shared it.
                if self.build.is_empty() {
                    gate = fresh;
                    self.requeue();
                }
                starved |= self.place_prompts(&mut gate, None, rows_before, &mut passed);
            }
        }
        for slot in passed {
            self.queue_waiting(slot);
            self.queue_running(slot);
        }
        if self.build.batch.rows.len() > rows_before {
            PromptPhase::Placed
        } else if starved || gate.misfits > 0 {
            PromptPhase::Starved
        } else {
            PromptPhase::Nothing
        }
    }

    /// Whether there is prompt work that this batch might take. Not, if all that is left waits for a slot and nobody can be made to leave theirs:
    /// no other look at the head of the queue is needed then.
    fn has_prompt_work(&self, open: bool) -> bool {
        let full = self.build.is_full() || (!self.is_somebody_shut() && self.config.max_adapters_per_batch.is_none());
        let admits = open && !(full && self.admitted >= self.config.max_requests);
        !self.prompts.is_empty() || (admits && !(self.waiting.is_empty() && self.resident.is_empty()))
    }

    /// Prompt work goes into the batch in order, `overdue` first. True: some that could run found no room.
    fn place_prompts(&mut self, gate: &mut Gate, overdue: Option<(Source, u32)>, rows_before: usize, passed: &mut Vec<u32>) -> bool {
        let (mut starved, mut overdue) = (false, overdue);
        while let Some((source, slot)) = overdue.take().or_else(|| self.next_in_order(gate)) {
            if self.build.is_full() {
                let placed = self.build.batch.rows.len() > rows_before;
                starved = !placed && (source == Source::Admitted || self.plan_head(slot).is_ok());
                break;
            }
            if gate.encoder > ENCODER_PASSED {
                break;
            }
            if gate.misfits > MISFITS {
                starved = true;
                break;
            }
            match source {
                // An adapter too many waits for the next batch, and blocks nobody.
                _ if !self.takes_adapter(slot) => {
                    starved = true;
                    self.unqueue_work(slot);
                    passed.push(slot);
                    gate.adapters += 1;
                    if gate.adapters > ADAPTERS_PASSED {
                        break;
                    }
                }
                Source::Waiting | Source::Resident => self.try_admit(source, slot, gate, passed),
                Source::Admitted => {
                    let tenant = self.slots.cold(slot).tenant;
                    self.prompts.remove(slot, tenant);
                    let lacked_blocks = core::mem::take(&mut self.build.no_blocks);
                    let lacked_encoder = core::mem::take(&mut self.build.no_encoder);
                    if !self.add_chunks(slot) {
                        self.build.deferred.push(slot);
                        if self.build.no_encoder {
                            gate.encoder += 1;
                        } else if !self.build.no_blocks {
                            gate.misfits += 1;
                            gate.open = false;
                        }
                    }
                    self.build.no_blocks |= lacked_blocks;
                    self.build.no_encoder |= lacked_encoder;
                }
            }
        }
        starved
    }

    /// The request that comes next: one that the guard speaks for, or the first in order.
    fn next_in_order(&mut self, gate: &Gate) -> Option<(Source, u32)> {
        let may_take = |source| match source {
            Source::Admitted => true,
            Source::Waiting => gate.open,
            Source::Resident => gate.resident,
        };
        self.urgent(may_take).or_else(|| self.first_in_order(gate))
    }

    /// The request that comes first among those that this batch may still take. Who is put off waits while there is anything else.
    fn first_in_order(&self, gate: &Gate) -> Option<(Source, u32)> {
        let waiting = self.waiting.peek().filter(|_| gate.open);
        let resident = self.resident.peek().filter(|_| gate.resident);
        let sources = [(Source::Admitted, self.prompts.peek()), (Source::Waiting, waiting), (Source::Resident, resident)];
        let first = sources.into_iter().filter_map(|(source, head)| head.map(|(key, slot)| (key, source, slot)));
        let first = first.min_by(|a, b| compare(&a.0, &b.0, self.now_ns));
        let idle = self.build.is_empty() && self.in_flight.is_empty();
        first.filter(|((_, key), ..)| idle || key.class != Class::Deferred).map(|(_, source, slot)| (source, slot))
    }

    /// Admits a head and places its first chunks, or closes its gate: nobody is admitted past it, but `max_bypass`. A request that holds its
    /// blocks passes one that lacks them, or each could wait for the other for ever.
    fn try_admit(&mut self, source: Source, slot: u32, gate: &mut Gate, passed: &mut Vec<u32>) {
        self.extend_digests(slot);
        // More than one, where `max_requests` was lowered.
        while self.plan_head(slot).is_err_and(|reason| reason == WaitReason::NoSlot) {
            let before = self.admitted;
            self.make_slot();
            if self.admitted == before {
                break;
            }
        }
        if let Err(WaitReason::NoBlocks) = self.plan_head(slot) {
            if let Some(needed) = self.refusal() {
                self.make_room_to_admit(needed);
            }
        }
        let outcome = self.plan_head(slot).and_then(|plan| self.first_chunk(slot, &plan).map(|tokens| (plan, tokens)));
        match outcome {
            Ok((_, 0)) => {
                gate.misfits += 1;
                (gate.open, gate.resident) = (false, false);
            }
            Ok((plan, _)) => {
                self.admit(slot, &plan);
                if !self.add_chunks(slot) {
                    self.build.deferred.push(slot);
                }
            }
            // It waits for the encoder, and blocks nobody.
            Err(WaitReason::NoEncoder) => {
                self.build.no_encoder = true;
                gate.encoder += 1;
                let tenant = self.slots.cold(slot).tenant;
                self.waiting.remove(slot, tenant);
                self.resident.remove(slot, tenant);
                passed.push(slot);
            }
            Err(reason) => {
                self.build.no_blocks |= reason == WaitReason::NoBlocks;
                gate.passed += 1;
                let pass = gate.passed <= self.config.max_bypass && self.admitted < self.config.max_requests;
                if pass {
                    let tenant = self.slots.cold(slot).tenant;
                    self.waiting.remove(slot, tenant);
                    self.resident.remove(slot, tenant);
                    passed.push(slot);
                } else if source == Source::Waiting && reason == WaitReason::NoBlocks {
                    gate.open = false;
                } else if source == Source::Resident && reason == WaitReason::NoBlocks && self.never_preempts() {
                    // A fork that lacks blocks: those who have set theirs aside cannot be made to give them up, so they pass it.
                    gate.open = false;
                    self.resident.remove(slot, self.slots.cold(slot).tenant);
                    passed.push(slot);
                } else {
                    (gate.open, gate.resident) = (false, false);
                }
            }
        }
    }

    /// Places as many chunks of an admitted request as this batch may hold. False: not even one.
    pub(super) fn add_chunks(&mut self, slot: u32) -> bool {
        let s = &self.slots[slot];
        debug_assert!(s.live_rows == 0 || s.last_batch != self.next_batch, "limits on what a batch holds of a request count a single call");
        let (mut chunks, mut taken) = (0, 0);
        while chunks < self.config.chunks_per_batch && !self.build.is_full() {
            // Without samples in flight, what is known is what can be run; a chunk never reaches beyond it.
            let s = &self.slots[slot];
            if s.live > 0 || s.demand(false) == Demand::Nothing {
                break;
            }
            let stretch = self.stretch(s.scheduled, s.known(), s.prompt_len, taken);
            let chunk = self.chunk_len(&stretch);
            let closed = self.build.encoder_closed;
            let Ok(mut tokens) = self.fit_spans(slot, &stretch, chunk) else {
                self.build.no_encoder = true;
                break;
            };
            if tokens > 0 && self.slots[slot].has(Trait::Spans) && self.make_room_for(slot, &stretch, tokens) {
                // Those that gave way may have been the ones that had encoded what it needs.
                let Ok(fitting) = self.fit_spans(slot, &stretch, chunk) else {
                    self.build.no_encoder = true;
                    break;
                };
                tokens = fitting;
            }
            if tokens > 0 {
                tokens = self.get_chunk_blocks(slot, &stretch, tokens);
            }
            // Last, as a copy is made only with a row that reads it.
            if tokens == 0 || (self.slots[slot].shared_tail && !self.own_tail(slot)) {
                // It is not the encoder that it waits for.
                self.build.encoder_closed = closed;
                break;
            }
            self.encode(slot, stretch.start, stretch.start + tokens);
            self.push_row(slot, tokens, 0);
            chunks += 1;
            taken += tokens;
        }
        if chunks == 0 {
            return false;
        }
        self.note_adapter(slot);
        self.date_chunk(slot);
        self.count_decoding(slot);
        self.count_progress(slot);
        self.count_partial(slot);
        self.after_rows(slot);
        true
    }

    /// Others give way for a chunk, before it is cut to what the encoder can do. False: nobody has to, or nobody can.
    fn make_room_for(&mut self, slot: u32, stretch: &super::chunk::Stretch, tokens: u32) -> bool {
        let Some((_, blocks)) = self.size_chunk(slot, stretch, tokens) else { return false };
        let beyond = self.beyond_reserve(slot, blocks + u32::from(self.has_shared_tail(slot)));
        beyond > self.unreserved() && self.make_room(slot, beyond)
    }

    /// The chunk, cut to the blocks that could be had for it. 0: there are none.
    fn get_chunk_blocks(&mut self, slot: u32, stretch: &super::chunk::Stretch, tokens: u32) -> u32 {
        let Some((tokens, blocks)) = self.size_chunk(slot, stretch, tokens) else { return 0 };
        if blocks == 0 || self.get_blocks(slot, blocks) { tokens } else { 0 }
    }

    /// The chunk, cut to the blocks that there are, or to the smallest one, and the blocks that it needs. None: the batch does not hold it.
    fn size_chunk(&self, slot: u32, stretch: &super::chunk::Stretch, tokens: u32) -> Option<(u32, u32)> {
        let held = self.slots[slot].table.len() as u32;
        let mut tokens = tokens;
        if self.config.admission == Admission::Lazy {
            let free = self.unreserved() + self.slots[slot].reserved;
            let cut = self.cut_to_blocks(stretch, tokens, held, free);
            tokens = match self.cut_to_spans(slot, stretch.start, cut) {
                // Others give way for the smallest chunk, not for more.
                0 => self.smallest_whole(slot, stretch).min(tokens),
                cut => cut,
            };
        }
        if !self.build.is_empty() && !self.fits_as_decode(stretch, tokens) {
            return None;
        }
        // What is a decode is followed by a drafter like one.
        let decode = stretch.start >= stretch.prompt_len && stretch.start + 1 == stretch.end;
        let ahead = if decode { self.lookahead(slot) } else { 0 };
        Some((tokens, self.config.blocks(stretch.start + tokens + ahead).saturating_sub(held)))
    }
}
