//! A result comes back.

use super::Scheduler;
use crate::batch::{Batch, Row, RowKind, Sample};
use crate::config::{Pipelining, Role};
use crate::cost::CostTerms;
use crate::error::CompleteError;
use crate::event::{Event, FinishReason};
use crate::ids::{BatchId, BlockId, RequestId, TokenId};
use crate::kv::Digest;
use crate::state::{Demand, State, Trait};

/// How many blocks that have become whole are published at once.
const TOGETHER: usize = 16;

impl Scheduler {
    /// Hands back the result of the oldest batch in flight: one [`Sample`] for each row that [`samples`](Row::samples), in the order of the
    /// rows, whatever has happened to its request meanwhile. A batch of middle chunks alone has no samples, and is completed all the same.
    ///
    /// O(rows + blocks that became whole or free).
    ///
    /// # Errors
    /// An unknown, repeated or early batch, or samples that do not fit its rows; nothing has changed.
    pub fn complete(&mut self, batch: BatchId, samples: &[Sample<'_>]) -> Result<(), CompleteError> {
        self.check_result(batch, samples)?;
        let Some(mut batch) = self.in_flight.pop_front() else { return Err(CompleteError::Unknown(batch)) };
        // From here on the batch is not in flight, and what it alone had fenced can be used again.
        self.pool.close_fence();
        self.note_round(batch.scheduled_ns, batch.out_ns);
        let plain = batch.id.0 >= self.publish_from && !self.is_grouped();
        let (mut rows, mut samples) = (&batch.rows[..], samples);
        loop {
            if plain {
                let done = self.complete_plain_decodes(rows, samples);
                (rows, samples) = (&rows[done..], &samples[done..]);
            }
            let Some((row, behind)) = rows.split_first() else { break };
            rows = behind;
            let tokens = match samples.split_first() {
                Some((sample, behind)) if row.samples => {
                    samples = behind;
                    sample.tokens
                }
                _ => &[],
            };
            self.complete_row(row, batch.id, tokens);
        }
        if self.config.role == Role::Prefill {
            for row in &batch.rows {
                self.announce(row);
            }
        }
        if self.config.role == Role::Decode {
            self.grant_transfers();
        }
        batch.recycle();
        self.spare.push(batch);
        self.drop_lost();
        Ok(())
    }

    fn check_result(&self, batch: BatchId, samples: &[Sample<'_>]) -> Result<(), CompleteError> {
        let Some(oldest) = self.in_flight.front() else { return Err(CompleteError::Unknown(batch)) };
        if batch < oldest.id || batch.0 >= self.next_batch {
            return Err(CompleteError::Unknown(batch));
        }
        if batch > oldest.id {
            return Err(CompleteError::Early { batch, oldest: oldest.id });
        }
        if samples.len() != oldest.samples as usize {
            let given = u32::try_from(samples.len()).unwrap_or(u32::MAX);
            return Err(CompleteError::Samples { batch, expected: oldest.samples, given });
        }
        let fits = |row: &Row, sample: &Sample<'_>| {
            row.request == sample.request && sample.tokens.len().wrapping_sub(1) <= row.num_draft_tokens as usize
        };
        let mut pairs = oldest.rows.iter().filter(|row| row.samples).zip(samples);
        let Some((row, sample)) = pairs.find(|(row, sample)| !fits(row, sample)) else { return Ok(()) };
        if row.request != sample.request {
            return Err(CompleteError::WrongRequest { batch, expected: row.request, given: sample.request });
        }
        let given = u32::try_from(sample.tokens.len()).unwrap_or(u32::MAX);
        Err(CompleteError::TokenCount { batch, request: row.request, most: 1 + row.num_draft_tokens, given })
    }

    /// What [`complete_row`](Self::complete_row) does for the step that happens most, for as many as stand first: a decode without drafts of a
    /// living epoch, in a request that goes on. It stops before the first other row, and returns how many it did.
    ///
    /// For batches whose blocks are published, and one KV group.
    fn complete_plain_decodes(&mut self, rows: &[Row], samples: &[Sample<'_>]) -> usize {
        let block_size = u64::from(self.config.block_size);
        let (asynchronous, by_request) = (self.config.async_scheduling, self.config.pipelining == Pipelining::Request);
        let mut whole = core::mem::take(&mut self.whole);
        let (mut slots, ready, events) = (self.slots.records_mut(), &mut self.ready, &mut self.events);
        let mut done = 0;
        // Most rows decode, and sample: up to the first one that does not, a row and its sample stand at the same place.
        for (row, sample) in rows.iter().zip(samples) {
            let s = slots.get(row.slot);
            let (index, &[token]) = (s.outputs, sample.tokens) else { break };
            // One output of several that are computed again is a decode, too, and has no sample.
            let decode = row.kind == RowKind::Decode && row.samples && row.num_draft_tokens == 0;
            let plain = decode && s.epoch == row.epoch && s.state == State::Running;
            if !plain || !s.is_plainly_decoding() || index + 1 >= s.max_out {
                break;
            }
            done += 1;
            let committed = row.num_computed_tokens + 1;
            s.outputs = index + 1;
            s.rows -= 1;
            s.live_rows -= 1;
            s.live -= 1;
            s.committed = committed;
            if s.keeps_tokens {
                s.tokens.push(token);
            }
            events.push(Event::Token { request: row.request, index, token });
            // Where it goes next, as `queue_running` says: its prompt is behind it.
            let wants = if asynchronous { s.demand(true) == Demand::Decode } else { s.live_rows == 0 };
            if wants && s.ticket == 0 && s.gates.is_empty() && !(by_request && s.live_rows > 0) {
                s.ticket = ready.push_back(row.slot);
            }
            if s.has(Trait::Cacheable) && u64::from(committed) >= (u64::from(s.published) + 1) * block_size {
                whole.push(row.slot);
            }
        }
        for some in whole.chunks(TOGETHER) {
            self.publish_together(some);
        }
        whole.clear();
        self.whole = whole;
        self.decoding_tokens += done as u64;
        self.stats.output_tokens += done as u64;
        done
    }

    fn complete_row(&mut self, row: &Row, batch: BatchId, tokens: &[TokenId]) {
        let slot = row.slot;
        let s = &mut self.slots[slot];
        s.rows -= 1;
        let late = s.state == State::Waiting && s.has(Trait::Late) && row.samples;
        if s.state == State::Running && s.epoch == row.epoch {
            self.commit(row, batch, tokens);
        } else if late && self.slots.cold(slot).stale_epoch == row.epoch {
            self.slots.set_stale(slot, self.slots.stale(slot) - 1);
            match self.deliver(slot, tokens) {
                Some(reason) => self.end_output(slot, reason),
                None => self.queue_waiting(slot),
            }
        }
        self.settle(slot);
    }

    /// A row of the living epoch: its positions are final, its token counts.
    fn commit(&mut self, row: &Row, batch: BatchId, tokens: &[TokenId]) {
        let slot = row.slot;
        let s = &mut self.slots[slot];
        s.live_rows -= 1;
        let rejected = if row.samples { 1 + row.num_draft_tokens - tokens.len() as u32 } else { 0 };
        s.scheduled -= rejected;
        s.committed = row.end() - rejected;
        if row.samples {
            s.live -= 1;
            if row.num_draft_tokens > 0 {
                s.set(Trait::DraftsOut, false);
            }
            self.stats.accepted_draft_tokens += tokens.len() as u64 - 1;
        }
        if self.slots[slot].has(Trait::Encoding) {
            self.settle_encodings(slot);
        }
        let end = self.deliver(slot, tokens);
        // Before its blocks are let go, also those of accepted drafts.
        if batch.0 >= self.publish_from {
            self.publish(slot);
        } else {
            self.skip_publishing(slot);
        }
        if let Some(reason) = end {
            return self.end_output(slot, reason);
        }
        if self.is_grouped() {
            self.slide(slot);
        }
        let s = &self.slots[slot];
        if s.has(Trait::Pooling) && s.committed >= s.prompt_len {
            return self.finish(slot, FinishReason::Computed);
        }
        // A middle chunk has left its request where its next chunk is taken from.
        if row.samples || self.config.pipelining == Pipelining::Request {
            self.queue_running(slot);
        }
    }

    /// Output tokens become known, up to the end of the request; why it ends, if they end it.
    fn deliver(&mut self, slot: u32, tokens: &[TokenId]) -> Option<FinishReason> {
        for &token in tokens {
            let s = &mut self.slots[slot];
            let index = s.outputs;
            s.outputs += 1;
            if s.keeps_tokens {
                s.tokens.push(token);
            }
            self.decoding_tokens += u64::from(s.has(Trait::Decoding));
            self.with_output += u32::from(index == 0);
            self.stats.output_tokens += 1;
            self.events.push(Event::Token { request: RequestId(s.id), index, token });
            let cold = self.slots.cold(slot);
            if self.slots[slot].has(Trait::Stops) && index + 1 >= cold.min_tokens() && cold.stops().contains(&token) {
                return Some(FinishReason::Stop);
            }
            if index + 1 == self.slots[slot].max_out && self.config.role != Role::Prefill {
                return Some(FinishReason::Length);
            }
        }
        self.date_token(slot);
        self.count_decoding(slot);
        None
    }

    fn end_output(&mut self, slot: u32, reason: FinishReason) {
        if self.slots[slot].has(Trait::Session) {
            self.pause_session(slot, reason);
        } else {
            self.finish(slot, reason);
        }
    }

    /// Blocks that have become whole are found from now on.
    pub(super) fn publish(&mut self, slot: u32) {
        let s = &self.slots[slot];
        // Most rows make no block whole; a product is cheaper than a quotient.
        if !s.has(Trait::Cacheable) || u64::from(s.committed) < (u64::from(s.published) + 1) * u64::from(self.config.block_size) {
            return;
        }
        let whole = self.config.kv_groups.base(s.committed) / self.config.block_size;
        if self.ends_in_outputs(slot) {
            return self.publish_outputs(slot, whole);
        }
        self.extend_digests(slot);
        let (from, digests) = (self.slots[slot].published, self.slots.cold(slot).digests.len() as u32);
        for index in from..whole.min(digests) {
            let table = &self.slots[slot].table;
            // A block is found only behind its parent; where a reset has cut the chain it stays cut.
            if index > 0 && !self.pool.index().is_hashed(table[index as usize - 1].0) {
                break;
            }
            let digests = &self.slots.cold(slot).digests;
            let (block, digest) = (table[index as usize], digests[index as usize]);
            let parent = index.checked_sub(1).map(|parent| digests[parent as usize]);
            self.pool.publish(block, digest, parent);
            if self.is_grouped() {
                self.publish_in_groups(slot, index);
            }
        }
        let s = &mut self.slots[slot];
        s.published = s.published.max(whole);
    }

    /// The same for blocks that end in outputs, as nearly all do that become whole one at a time. A block's parent is where its digest is found by,
    /// so the chain is left alone: it is made when it is looked up, if ever.
    fn publish_outputs(&mut self, slot: u32, whole: u32) {
        while self.slots[slot].published < whole {
            let Some((block, parent)) = self.whole_output(slot) else { break };
            let digest = self.digest_of_output(slot, parent);
            self.pool.publish(block, digest, parent);
            self.slots[slot].published += 1;
        }
        let s = &mut self.slots[slot];
        s.published = s.published.max(whole);
    }

    /// The block of outputs that is published next, and the digest of the one before it. None: the kernel does not know all of its tokens, or a reset
    /// has cut the chain.
    fn whole_output(&self, slot: u32) -> Option<(BlockId, Option<Digest>)> {
        let s = &self.slots[slot];
        let (index, size) = (s.published as usize, self.config.block_size as usize);
        let block = *s.table.get(index).filter(|_| (index + 1) * size <= s.tokens.len())?;
        match index.checked_sub(1) {
            None => Some((block, None)),
            Some(before) => self.pool.index().digest(s.table[before].0).map(|parent| (block, Some(parent))),
        }
    }

    fn digest_of_output(&self, slot: u32, parent: Option<Digest>) -> Digest {
        let s = &self.slots[slot];
        let (index, size) = (s.published as usize, self.config.block_size as usize);
        let root = || self.slots.cold(slot).digests.root();
        self.hashing.block(parent.unwrap_or_else(root), &s.tokens[index * size..(index + 1) * size])
    }

    /// [`publish`](Self::publish) for requests of which one more block has become whole, [`TOGETHER`] at most: what one of them needs from memory
    /// comes while that of the others does. Each would wait for its parent's digest, and then for its place in the index.
    fn publish_together(&mut self, slots: &[u32]) {
        let mut parents = [None; TOGETHER];
        for (parent, &slot) in parents.iter_mut().zip(slots) {
            *parent = if self.ends_in_outputs(slot) { self.whole_output(slot) } else { None };
        }
        let mut digests = [0; TOGETHER];
        for ((digest, found), &slot) in digests.iter_mut().zip(&parents).zip(slots) {
            if let Some((_, parent)) = *found {
                *digest = self.digest_of_output(slot, parent);
            }
        }
        self.pool.look_ahead(&digests[..slots.len()]);
        for ((digest, found), &slot) in digests.iter().zip(&parents).zip(slots) {
            if let Some((block, parent)) = *found {
                self.pool.publish(block, *digest, parent);
                self.slots[slot].published += 1;
            }
            // What is not of this kind, and what there may be beyond one block.
            self.publish(slot);
        }
    }

    /// Whether the block that is published next ends in outputs, and is named by its tokens and its parent alone.
    fn ends_in_outputs(&self, slot: u32) -> bool {
        let s = &self.slots[slot];
        s.keeps_tokens && s.published >= s.prompt_len / self.config.block_size && !s.has(Trait::Spans) && !self.is_grouped()
    }

    /// Blocks that were scheduled before a reset are never found.
    pub(super) fn skip_publishing(&mut self, slot: u32) {
        // Also those behind the last grain: its end is no reason to publish what was computed before.
        let whole = self.slots[slot].committed / self.config.block_size;
        let s = &mut self.slots[slot];
        s.published = s.published.max(whole);
    }

    /// The digests of all whole blocks of what the request knows. A block of outputs was hashed before, when it was published.
    pub(super) fn extend_digests(&mut self, slot: u32) {
        let s = &self.slots[slot];
        if !s.has(Trait::Cacheable) || !s.keeps_tokens {
            return;
        }
        let size = self.config.block_size as usize;
        let cold = self.slots.cold(slot);
        let have = cold.digests.len();
        let whole = s.tokens.len() / size;
        for index in have..whole {
            let cold = self.slots.cold(slot);
            let parent = cold.digests.end();
            let digest = self.hashing.block_at(parent, &self.slots[slot].tokens[index * size..(index + 1) * size], index, &cold.spans);
            self.slots.cold_mut(slot).digests.push(digest);
        }
    }
}

impl Batch {
    /// Empties the record for its next use.
    pub(super) fn recycle(&mut self) {
        let Self { id, rows, preempted, ended, copies, copied, encodes, freed, .. } = self;
        *id = BatchId(0);
        rows.clear();
        preempted.clear();
        ended.clear();
        copies.clear();
        copied.clear();
        encodes.clear();
        freed.clear();
        (self.lost, self.terms, self.cost_ns, self.flops) = (false, CostTerms::default(), 0, 0);
        (self.samples, self.scheduled_ns, self.out_ns) = (0, 0, 0);
    }
}
