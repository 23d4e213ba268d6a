//! Sessions: a request that pauses at its end and continues with new input, keeping its KV.

use super::Scheduler;
use super::submit::Misfit;
use crate::encoder::Span;
use crate::error::ExtendError;
use crate::event::{Event, FinishReason};
use crate::ids::RequestId;
use crate::policy::Class;
use crate::request::Prompt;
use crate::state::{State, Trait, next_epoch};

impl Scheduler {
    /// The session's output has ended for now. It keeps its blocks, unless others need them, and stands in nobody's way.
    pub(super) fn pause_session(&mut self, slot: u32, reason: FinishReason) {
        self.unqueue(slot);
        self.release_encodings(slot);
        let s = &mut self.slots[slot];
        if s.state == State::Running {
            self.admitted -= 1;
        }
        s.state = State::Paused;
        // What its last output did not use is others' meanwhile: the next one sets aside what it needs.
        self.reserved -= s.reserved;
        s.reserved = 0;
        self.with_output -= u32::from(s.outputs > 0);
        // What was run beyond the end is void, and so are accepted drafts behind a stop token.
        s.epoch = next_epoch(s.epoch);
        let overrun = s.live_rows > 0;
        s.committed = s.committed.min(s.known());
        if overrun {
            // They write to the state behind its last grain.
            s.committed = self.config.kv_groups.base(s.committed);
        }
        s.published = s.published.min(s.committed / self.config.block_size);
        s.scheduled = s.committed;
        (s.live, s.live_rows) = (0, 0);
        s.set(Trait::DraftsOut, false);
        let request = RequestId(s.id);
        self.slots.set_stale(slot, 0);
        if self.is_grouped() {
            self.slide(slot);
        }
        self.count_decoding(slot);
        self.count_partial(slot);
        self.queue_victim(slot);
        self.events.push(Event::Paused { request, reason });
    }

    /// More input for a paused session: what it knows so far and `input` are its prompt from now on, `max_tokens` its next output at most.
    /// Token events count from 0 again. Its place in the order is that of its submit; a TTFT target counts from now.
    ///
    /// O(log waiting).
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn extend(&mut self, request: RequestId, input: Prompt, max_tokens: u32) -> Result<(), ExtendError> {
        self.extend_with(request, input, &[], max_tokens)
    }

    /// The same with input that has spans; positions count from the first token of `input`. O(log waiting + spans).
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn extend_with(&mut self, request: RequestId, input: Prompt, spans: &[Span], max_tokens: u32) -> Result<(), ExtendError> {
        let slot = self.slots.find(request.0).ok_or(ExtendError::Unknown(request))?;
        let s = &self.slots[slot];
        match s.state {
            State::Paused => {}
            State::Aborting | State::Sending => return Err(ExtendError::Ended(request)),
            _ => return Err(ExtendError::NotPaused(request)),
        }
        if input.num_tokens() == 0 || max_tokens == 0 {
            return Err(ExtendError::Empty(request));
        }
        if matches!(input, Prompt::Tokens(_)) != s.keeps_tokens {
            return Err(ExtendError::OtherPrompt(request));
        }
        if matches!(&input, Prompt::Lengths { block_hashes, .. } if !block_hashes.is_empty()) {
            return Err(ExtendError::BlockHashes(request));
        }
        let prompt_len = s.known().saturating_add(input.num_tokens());
        let max_out = self.fit(prompt_len, max_tokens, self.slots.cold(slot).cross_tokens).map_err(|misfit| match misfit {
            Misfit::TooLong { max_model_len } => ExtendError::TooLong { request, prompt_tokens: prompt_len, max_model_len },
            Misfit::NeverFits { needed, num_blocks } => ExtendError::NeverFits { request, needed, num_blocks },
        })?;
        self.check_spans(request, spans, 0..input.num_tokens()).map_err(ExtendError::Span)?;
        let known = self.slots[slot].known();
        let spans = self.named(spans, self.slots.cold(slot).name_root(), self.slots.cold(slot).adapter);
        let now = self.now_ns;
        let s = &mut self.slots[slot];
        if let Prompt::Tokens(tokens) = &input {
            s.tokens.extend_from_slice(tokens);
        }
        (s.prompt_len, s.max_out, s.outputs, s.state) = (prompt_len, max_out, 0, State::Waiting);
        // Workers are told the new prompt with the first row of a new epoch, also those that joined during the pause.
        s.epoch = next_epoch(s.epoch);
        s.reached = s.reached.min(known);
        s.set(Trait::Spans, s.has(Trait::Spans) || !spans.is_empty());
        let cold = self.slots.cold_mut(slot);
        cold.limit_min_tokens(max_out);
        if !spans.is_empty() {
            cold.spans.extend(spans.iter().map(|span| Span { start: known + span.start, ..*span }));
        }
        if cold.last_chunk_ns() != now {
            cold.last_chunk_ns = Some(cold.last_chunk_ns());
        }
        cold.arrival_ns = now;
        if let Some(rare) = cold.rare_mut() {
            rare.standing = Class::Normal;
            rare.deadline_ns = rare.ttft_slo_ns.map(|slo| now.saturating_add(slo));
        }
        self.queue_victim(slot);
        self.queue_waiting(slot);
        self.aim(slot);
        Ok(())
    }
}
