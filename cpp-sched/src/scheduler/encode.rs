//! Spans: where chunks may end, and what a batch encodes.
//!
//! An item is encoded by the first batch with a row that needs it, as far as the batch's encoder budget and the encoder cache have room; else the
//! chunk ends before it. Batches run in order, so from then on it counts as encoded, for this batch and later ones, and for every request with the
//! same item. A request needs it until the span is behind its *committed* position: what is in flight may still be lost. A lost batch has
//! encoded nothing, and rows of others that used what it was to encode are void with it.
//!
//! Who lacks room in the cache comes first: nobody behind it in the batch takes any. Otherwise it is in nobody's way. Who gets no row for another
//! reason, such as blocks, leaves that room to others.

use alloc::vec::Vec;
use core::ops::Range;

use smallvec::SmallVec;

use super::Scheduler;
use super::chunk::Stretch;
use crate::config::{Chunking, Config};
use crate::cost::CostTerms;
use crate::encoder::cache::Released;
use crate::encoder::span::{cut_by, first_misplaced, overlapping};
use crate::encoder::{EncoderInput, EncoderItem, Span};
use crate::error::{ConfigError, SubmitError};
use crate::ids::RequestId;
use crate::kv::Digest;
use crate::outcome::WaitReason;
use crate::state::{Slot, State, Trait};

/// Items of a chunk up to which one that comes twice is counted once.
const DISTINCT: usize = 32;

/// Tokens of the longest chunk that any batch may hold.
fn longest_chunk(config: &Config) -> u32 {
    let most = (config.max_batch_tokens - config.draft_slots).min(config.max_prompt_tokens_per_batch.unwrap_or(u32::MAX));
    match config.chunking {
        Chunking::Tokens { max: Some(max) } => most.min(max),
        _ => most,
    }
}

/// Whether a span could ever be run: its number, what it needs, and what there is.
pub(super) fn check_size(config: &Config, request: RequestId, number: u32, span: &Span) -> Result<(), SubmitError> {
    let most = longest_chunk(config);
    if span.atomic && span.len > most {
        return Err(SubmitError::SpanTooLong { request, span: number, tokens: span.len, most });
    }
    let limits = [config.encoder_budget_tokens, config.encoder_cache_tokens];
    match limits.into_iter().flatten().min() {
        Some(most) if span.encoder_tokens > most => {
            Err(SubmitError::EncoderTooSmall { request, span: number, needed: span.encoder_tokens, most })
        }
        _ => Ok(()),
    }
}

impl Scheduler {
    /// What is wrong with the spans of a prompt, or of the part of a prompt that is added. O(spans).
    pub(super) fn check_spans(&self, request: RequestId, spans: &[Span], prompt: Range<u32>) -> Result<(), SubmitError> {
        if !spans.is_empty() && self.config.kv_groups.has_state() {
            return Err(SubmitError::SpansWithState(request));
        }
        if let Some(span) = first_misplaced(spans, prompt) {
            return Err(SubmitError::Span { request, span });
        }
        (0..).zip(spans).try_for_each(|(number, span)| check_size(&self.config, request, number, span))
    }

    /// Spans with the names under which what they stand for is kept. Who has a salt shares nothing with others: whether another has had the same
    /// image encoded would be seen in what a batch encodes, and in how long a chunk is.
    pub(super) fn named(&self, spans: &[Span], root: Digest, adapter: Option<u32>) -> Vec<Span> {
        let mut named = spans.to_vec();
        if !named.is_empty() && root != 0 && root != self.hashing.root(&[], adapter) {
            for span in &mut named {
                span.digest = self.hashing.item(root, &span.digest);
            }
        }
        named
    }

    /// Whether all that is alive could still run under a new configuration. O(requests + their spans).
    pub(super) fn check_living_spans(&self, config: &Config) -> Result<(), ConfigError> {
        let living = self.slots.iter().filter(|(_, s)| s.has(Trait::Spans) && !matches!(s.state, State::Gone | State::Aborting));
        for (slot, s) in living {
            for (span, of) in (0..).zip(&self.slots.cold(slot).spans) {
                let request = RequestId(s.id);
                check_size(config, request, span, of).map_err(|_| ConfigError::Span { request, span })?;
            }
        }
        Ok(())
    }

    /// The chunk of a request, cut so that it ends in no atomic span and all that it needs is encoded, or will be by this batch. 0: it does not
    /// fit into what is left of this batch. A chunk may also end off the grid where a span begins or an atomic one ends.
    ///
    /// # Errors
    /// The encoder has no room for what comes next.
    pub(super) fn fit_spans(&mut self, slot: u32, stretch: &Stretch, tokens: u32) -> Result<u32, WaitReason> {
        if !self.slots[slot].has(Trait::Spans) || tokens == 0 {
            return Ok(tokens);
        }
        let start = stretch.start;
        let mut end = start + tokens;
        if let Some(span) = cut_by(&self.slots.cold(slot).spans, end) {
            end = if span.start > start { span.start } else { span.end() };
            if end - start > tokens && !self.holds_whole(stretch, end - start) {
                return Ok(0);
            }
        }
        let (encoded, lacks_room) = self.encoded_to(slot, start, end);
        if lacks_room && self.build.encoder_closed.is_none() {
            self.build.encoder_closed = Some(slot);
        }
        if encoded > start { Ok(encoded - start) } else { Err(WaitReason::NoEncoder) }
    }

    /// Whether the batch may hold the rest of an atomic span, which cannot be cut. A batch may always consist of it alone.
    fn holds_whole(&self, stretch: &Stretch, tokens: u32) -> bool {
        if tokens > self.row_budget().min(stretch.most) {
            return false;
        }
        let target = self.build.fill.most;
        let by_cost = !matches!(self.config.chunking, Chunking::Tokens { .. });
        let fits = target.is_none_or(|most| self.cost_with(CostTerms::prefill(stretch.start, tokens)) <= most);
        self.build.is_empty() || !by_cost || (fits && tokens <= self.workspace_room(stretch.start))
    }

    /// After a chunk was cut for another reason: it still ends in no atomic span. 0: it would.
    pub(super) fn cut_to_spans(&self, slot: u32, start: u32, tokens: u32) -> u32 {
        if !self.slots[slot].has(Trait::Spans) || tokens == 0 {
            return tokens;
        }
        cut_by(&self.slots.cold(slot).spans, start + tokens).map_or(tokens, |span| span.start.saturating_sub(start))
    }

    /// The smallest chunk with what it must not cut.
    pub(super) fn smallest_whole(&self, slot: u32, stretch: &Stretch) -> u32 {
        let tokens = self.smallest(stretch);
        if !self.slots[slot].has(Trait::Spans) {
            return tokens;
        }
        cut_by(&self.slots.cold(slot).spans, stretch.start + tokens).map_or(tokens, |span| span.end() - stretch.start)
    }

    /// How far the positions `start..end` could be run for all that the encoder has or can have done, and whether it is the cache that lacks
    /// room.
    fn encoded_to(&self, slot: u32, start: u32, end: u32) -> (u32, bool) {
        let cold = self.slots.cold(slot);
        let closed = self.build.encoder_closed.is_some_and(|other| other != slot);
        let (mut room, mut budget) = (0u64, 0u64);
        let mut missing = SmallVec::<[EncoderItem; 8]>::new();
        for index in overlapping(&cold.spans, start, end) {
            let span = &cold.spans[index];
            let Some(item) = span.item().filter(|_| !cold.held.contains(&(index as u32))) else { continue };
            let tokens = u64::from(item.encoder_tokens);
            match self.encoder.is_needed(item) {
                Some(true) => {}
                Some(false) => room += tokens,
                None if missing.contains(&item) => {}
                None => {
                    room += tokens;
                    budget += tokens;
                    if missing.len() < DISTINCT {
                        missing.push(item);
                    }
                }
            }
            let lacks_room = room > self.encoder.room();
            if lacks_room || closed || budget > self.build.encoder_left {
                return (span.start.max(start), lacks_room);
            }
        }
        (end, false)
    }

    /// Whether the encoder cache has no room for what the request must run next.
    pub(super) fn lacks_encoder(&self, slot: u32, start: u32) -> bool {
        let cold = self.slots.cold(slot);
        let next = overlapping(&cold.spans, start, start.saturating_add(1)).next();
        let item = next.filter(|&index| !cold.held.contains(&(index as u32))).and_then(|index| cold.spans[index].item());
        item.is_some_and(|item| self.encoder.is_needed(item) != Some(true) && u64::from(item.encoder_tokens) > self.encoder.room())
    }

    /// The positions `start..end` go into the batch under construction: what they need is held, and what is missing is encoded by it.
    pub(super) fn encode(&mut self, slot: u32, start: u32, end: u32) {
        if !self.slots[slot].has(Trait::Spans) {
            return;
        }
        let cold = self.slots.cold(slot);
        let range = overlapping(&cold.spans, start, end);
        let first = if cold.held.is_empty() { range.start as u32 } else { cold.held.start };
        let new = range.start.max(if cold.held.is_empty() { 0 } else { cold.held.end as usize })..range.end;
        if new.is_empty() {
            return;
        }
        let mut missing = SmallVec::<[usize; 8]>::new();
        // What is there is held first, so that it makes no room for what is missing.
        for index in new.clone() {
            let Some(item) = self.slots.cold(slot).spans[index].item() else { continue };
            if self.encoder.hold(item) {
                self.stats.encoder_hit_tokens += u64::from(item.encoder_tokens);
            } else {
                missing.push(index);
            }
        }
        for index in missing {
            let Some(item) = self.slots.cold(slot).spans[index].item() else { continue };
            let tokens = u64::from(item.encoder_tokens);
            if self.encoder.hold(item) {
                self.stats.encoder_hit_tokens += tokens;
                continue;
            }
            self.encoder.encode(item, self.next_batch, &mut self.encoder_freed);
            self.build.encoder_left = self.build.encoder_left.saturating_sub(tokens);
            self.stats.encoder_tokens += tokens;
            let request = RequestId(self.slots[slot].id);
            self.build.batch.encodes.push(EncoderInput { request, span: index as u32, item, slot });
        }
        self.slots.cold_mut(slot).held = first..new.end as u32;
        self.slots[slot].set(Trait::Encoding, true);
    }

    /// After a commit: spans behind the committed position are not needed any more; nor is anything by a request that cannot run.
    pub(super) fn settle_encodings(&mut self, slot: u32) {
        let s = &self.slots[slot];
        let cold = self.slots.cold(slot);
        let idle = !s.gates.is_empty() && s.live_rows == 0;
        let behind = cold.spans.partition_point(|span| span.end() <= s.committed) as u32;
        let to = if idle { cold.held.end } else { behind.clamp(cold.held.start, cold.held.end) };
        let (from, end) = (cold.held.start, cold.held.end);
        self.release_items(slot, from..to, to..end);
    }

    /// After a loss: what is not scheduled any more is not needed either.
    pub(super) fn roll_back_encodings(&mut self, slot: u32) {
        if !self.slots[slot].has(Trait::Encoding) {
            return;
        }
        let s = &self.slots[slot];
        let cold = self.slots.cold(slot);
        let ahead = cold.spans.partition_point(|span| span.start < s.scheduled) as u32;
        let to = if s.live_rows == 0 { cold.held.start } else { ahead.clamp(cold.held.start, cold.held.end) };
        let (from, end) = (cold.held.start, cold.held.end);
        self.release_items(slot, to..end, from..to);
    }

    /// The request needs nothing any more, or not for now.
    pub(super) fn release_encodings(&mut self, slot: u32) {
        if self.slots[slot].has(Trait::Encoding) {
            let held = self.slots.cold(slot).held.clone();
            self.release_items(slot, held, 0..0);
        }
    }

    fn release_items(&mut self, slot: u32, spans: Range<u32>, held: Range<u32>) {
        for index in spans {
            let Some(item) = self.slots.cold(slot).spans[index as usize].item() else { continue };
            match self.encoder.release(item, self.next_batch) {
                Released::Kept => {}
                Released::Freed => self.encoder_freed.push(item),
                Released::Undone => {
                    self.build.batch.encodes.retain(|input| input.item != item);
                    self.build.encoder_left += u64::from(item.encoder_tokens);
                    self.stats.encoder_tokens -= u64::from(item.encoder_tokens);
                }
            }
        }
        self.slots[slot].set(Trait::Encoding, !held.is_empty());
        self.slots.cold_mut(slot).held = if held.is_empty() { 0..0 } else { held };
    }

    /// A victim has left the batch under construction: what it was to encode there and others need is encoded for one of them.
    pub(super) fn hand_over_encodings(&mut self, victim: u32) {
        let build = &mut self.build.batch;
        for input in build.encodes.iter_mut().filter(|input| input.slot == victim) {
            let heir = build.rows.iter().find_map(|row| {
                let cold = self.slots.cold(row.slot);
                let mut held = cold.held.clone().filter(|_| row.slot != victim);
                held.find(|&span| cold.spans[span as usize].item() == Some(input.item)).map(|span| (row, span))
            });
            debug_assert!(heir.is_some(), "an item is needed by nobody in the batch that encodes it");
            if let Some((row, span)) = heir {
                (input.request, input.slot, input.span) = (row.request, row.slot, span);
            }
        }
    }

    /// Nothing is in flight, and somebody lacks room in the cache: nobody keeps anything there that it does not run. True: try again.
    pub(super) fn give_up_encodings(&mut self) -> bool {
        let holders: Vec<_> = self.slots.iter().filter(|(_, s)| s.has(Trait::Encoding)).map(|(slot, _)| slot).collect();
        for &slot in &holders {
            self.release_encodings(slot);
        }
        !holders.is_empty()
    }

    /// The `at`th batch in flight is lost: rows from it on that used what it was to encode are void, whosever they are.
    pub(super) fn lose_encodings(&mut self, at: usize) {
        let mut lost: Vec<_> = self.in_flight[at].encodes.iter().map(|input| input.item).collect();
        let all = lost.clone();
        for index in at..self.in_flight.len() {
            if index > at {
                // A later batch encodes it again.
                lost.retain(|item| !self.in_flight[index].encodes.iter().any(|input| input.item == *item));
            }
            for row in 0..self.in_flight[index].rows.len() {
                let row = self.in_flight[index].rows[row];
                let s = &self.slots[row.slot];
                let spans = &self.slots.cold(row.slot).spans;
                let used = &spans[overlapping(spans, row.num_computed_tokens, row.end())];
                if !used.iter().filter_map(Span::item).any(|item| lost.contains(&item)) {
                    continue;
                }
                if row.epoch == s.epoch && s.state == State::Running {
                    self.void_from(row.slot, index);
                } else if s.has(Trait::Late) && row.epoch == self.slots.cold(row.slot).stale_epoch {
                    self.void_late(row.slot, index);
                }
            }
        }
        let id = self.in_flight[at].id.0;
        for item in all {
            if self.encoder.lose(item, id) {
                self.encoder_freed.push(item);
            }
        }
    }

    /// A lost batch goes: workers that have not seen it are told again what was freed.
    pub(super) fn tell_freed_again(&mut self, freed: &mut Vec<EncoderItem>) {
        for item in freed.drain(..) {
            if !self.encoder.contains(item) && !self.encoder_freed.contains(&item) {
                self.encoder_freed.push(item);
            }
        }
    }

    /// What is kept of the encoder cache against what follows from the requests and the batches in flight.
    pub(super) fn encoder_problem(&self) -> Option<&'static str> {
        let mut refs = alloc::collections::BTreeMap::new();
        for (slot, s) in self.slots.iter() {
            let cold = self.slots.cold(slot);
            if s.has(Trait::Spans) == cold.spans.is_empty()
                || s.has(Trait::Encoding) == cold.held.is_empty()
                || cold.held.end as usize > cold.spans.len()
            {
                return Some("spans of a request");
            }
            if s.has(Trait::Encoding) && (s.state != State::Running || (!s.gates.is_empty() && s.live_rows == 0)) {
                return Some("a request that does not run needs an item");
            }
            if cold.held.clone().any(|index| !is_between(s, &cold.spans[index as usize])) {
                return Some("an item is needed that is behind the request, or not scheduled");
            }
            for item in cold.held.clone().filter_map(|index| cold.spans[index as usize].item()) {
                *refs.entry(item).or_insert(0u32) += 1;
            }
        }
        for (item, batch, kept) in self.encoder.items() {
            if batch >= self.next_batch || refs.remove(&item).unwrap_or(0) != kept {
                return Some("who needs an item");
            }
        }
        for batch in &self.in_flight {
            // Its budget is no invariant: it may have been lowered since the batch was made.
            for row in &batch.rows {
                let (s, cold) = (&self.slots[row.slot], self.slots.cold(row.slot));
                let live = s.state == State::Running && s.epoch == row.epoch;
                for index in overlapping(&cold.spans, row.num_computed_tokens, row.end()).filter(|_| live) {
                    let item = cold.spans[index].item();
                    let encoded = item.is_none_or(|item| self.encoder.batch(item).is_some_and(|by| by <= batch.id.0));
                    if !encoded || !cold.held.contains(&(index as u32)) {
                        return Some("a row in flight runs what is not encoded");
                    }
                }
                if live && cut_by(&cold.spans, row.end()).is_some() {
                    return Some("a row in flight cuts an atomic span");
                }
            }
        }
        (!refs.is_empty() || !self.encoder.is_consistent()).then_some("the encoder cache")
    }
}

/// Whether a span may be needed: some of it is scheduled, and some is not committed.
fn is_between(s: &Slot, span: &Span) -> bool {
    span.start < s.scheduled && span.end() > s.committed
}
