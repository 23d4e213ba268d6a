//! Sessions and forks: requests that go on after their end, and requests over the prompt of another one.

use cpp_sched::journal::Input;
use cpp_sched::{Admission, ExtendError, Fork, ForkError, Prompt, Request, RequestId, SubmitError};

use super::calls::real;
use super::{Driver, Line, Tracked, ensure};
use crate::op::Shape;
use crate::truth::Text;

impl Driver {
    /// The output of a session has ended for now: what was run too far is void.
    pub(super) fn pause_session(&mut self, who: usize) {
        let epoch = self.requests[who].epoch;
        let overrun = self.flying().any(|row| row.who == who && row.epoch == epoch && !row.void);
        let grain = super::groups::grain(&self.config).filter(|_| overrun);
        let request = &mut self.requests[who];
        request.paused = true;
        request.epoch += 1;
        request.void_before = request.epoch;
        request.done = request.done.min(request.known());
        // What runs beyond the end writes to the state behind its last grain.
        request.done -= grain.map_or(0, |grain| request.done % grain);
        request.cursor = request.done;
        request.caught_up = false;
        request.admitted = false;
    }

    /// More input for a session.
    pub(super) fn extend(&mut self, id: RequestId, len: u32, max_tokens: u32, author: u64) -> Result<(), String> {
        let who = self.alive.get(&id).copied();
        let lengths = who.is_some_and(|who| self.requests[who].shape.lengths);
        let spans = who.filter(|&who| self.requests[who].shape.extras.spans > 0).map(|_| Text::new_spans(len, author)).unwrap_or_default();
        let other = author % 16 == 15;
        let errors = match who {
            None => vec![ExtendError::Unknown(id)],
            Some(who) if !self.requests[who].is_alive() || self.requests[who].is_sending(&self.config) => vec![ExtendError::Ended(id)],
            Some(who) if !self.requests[who].paused => vec![ExtendError::NotPaused(id)],
            Some(_) if max_tokens == 0 => vec![ExtendError::Empty(id)],
            Some(_) if other => vec![ExtendError::OtherPrompt(id)],
            Some(who) => match self.too_long(who, len, max_tokens) {
                Some(error) => vec![error],
                None => self.span_errors(id, &spans, len).into_iter().map(ExtendError::Span).collect(),
            },
        };
        let mut text = who.map(|who| (self.requests[who].text.clone(), self.requests[who].known()));
        let tokens = text.as_mut().map(|(text, known)| text.extend(*known, len, author, &spans)).unwrap_or_default();
        let input = if lengths != other { Request::with_lengths(id, len, Vec::new(), 1).prompt } else { Prompt::Tokens(tokens) };
        let before = (!errors.is_empty()).then(|| self.state());
        self.recorder.input(&if spans.is_empty() {
            Input::Extend { request: id, input: input.clone(), max_tokens }
        } else {
            Input::ExtendWith { request: id, input: input.clone(), spans: spans.clone(), max_tokens }
        });
        let answer = self.scheduler.extend_with(id, input, &spans, max_tokens);
        let right = answer.map_or_else(|error| errors.contains(&error), |()| errors.is_empty());
        ensure!(right, "extend of {id} answers {answer:?}, must be one of {errors:?}");
        if let Some(before) = before {
            ensure!(before == self.state(), "{answer:?}, but something has changed");
        } else if let (Some(who), Some((text, known))) = (who, text) {
            for row in self.flight.iter_mut().flat_map(|flight| &mut flight.rows).filter(|row| row.who == who) {
                row.until = row.until.min(known);
            }
            let (model_len, now) = (self.config.model_len(), self.now_ns);
            let request = &mut self.requests[who];
            request.text = text;
            request.prompt_len = known + len;
            request.max_out = max_tokens.min(model_len - request.prompt_len);
            request.delivered = 0;
            request.paused = false;
            request.reached = request.reached.min(known);
            request.deadline_ns = request.shape.ttft_slo_ns.map_or(u64::MAX, |slo| now.saturating_add(slo));
            self.met
                .get_mut()
                .entry(if spans.is_empty() { "extended" } else { "extended with spans" })
                .and_modify(|n| *n += 1)
                .or_insert(1);
            request.shape.extras.min_tokens = request.shape.extras.min_tokens.min(request.max_out);
            self.name_spans(who)?;
        }
        self.quiet("extend")
    }

    fn too_long(&self, who: usize, len: u32, max_tokens: u32) -> Option<ExtendError> {
        let (request, c) = (self.requests[who].id, &self.config);
        let prompt_tokens = self.requests[who].known() + len;
        if prompt_tokens >= c.model_len() {
            return Some(ExtendError::TooLong { request, prompt_tokens, max_model_len: c.model_len() });
        }
        let mut longer = self.requests[who].clone();
        (longer.prompt_len, longer.max_out, longer.delivered) = (prompt_tokens, max_tokens.min(c.model_len() - prompt_tokens), 0);
        let needed = longer.need(c);
        (needed > c.num_blocks).then_some(ExtendError::NeverFits { request, needed, num_blocks: c.num_blocks })
    }

    /// Another request over the prompt of one that is computed.
    pub(super) fn fork(&mut self, parent: RequestId, child: &Shape) -> Result<(), String> {
        let from = self.alive.get(&parent).copied();
        let block_size = self.config.block_size;
        let mut shape = child.clone();
        shape.flaw = None;
        if let Some(from) = from {
            let p = &self.requests[from];
            (shape.len, shape.lengths, shape.salt) = (p.prompt_len, p.shape.lengths, p.shape.salt);
            (shape.extras.adapter, shape.extras.spans) = (p.shape.extras.adapter, p.shape.extras.spans);
        }
        let branch = 1 + child.author + 100 * (self.requests.len() as u64 % 7);
        let mut text = match from {
            Some(from) => self.requests[from].text.fork(shape.len, branch),
            None => Text::new(&shape),
        };
        // What its encoder has read is its parent's.
        shape.author = from.map_or(shape.author, |from| self.requests[from].shape.author);
        // A fork samples, whatever its shape says.
        shape.extras.pooling = false;
        let mut request = real(&shape, &mut text, block_size);
        request.spans.clear();
        let errors = self.errors_of(&shape, &request);
        let computed = from.map(|from| &self.requests[from]).is_some_and(|p| {
            let holds = p.admitted || (p.paused && !self.scheduler.block_table(parent).unwrap_or_default().is_empty());
            p.is_alive() && holds && p.done >= p.prompt_len && !p.waits_kv && !p.is_sending(&self.config)
        });
        let expected: Vec<ForkError> = if from.is_none() {
            vec![ForkError::Unknown(parent)]
        } else if from.is_some_and(|from| !self.requests[from].is_alive() || self.requests[from].is_sending(&self.config)) {
            vec![ForkError::Ended(parent)]
        } else if computed {
            errors.into_iter().map(ForkError::Submit).collect()
        } else {
            vec![ForkError::NotComputed(parent)]
        };
        let before = (!expected.is_empty()).then(|| self.state());
        let child = Fork::like(&request, request.id);
        self.recorder.input(&Input::Fork { parent, child: Box::new(child.clone()) });
        let answer = self.scheduler.fork(parent, child);
        match (answer, from) {
            (Err(error), _) => {
                ensure!(expected.contains(&error), "fork of {parent} is refused with {error:?}, must be one of {expected:?}");
                ensure!(before == Some(self.state()), "{error:?}, but something has changed");
            }
            (Ok(()), Some(from)) if expected.is_empty() => {
                self.counts.submitted += 1;
                let mut tracked = Tracked::new(&shape, &self.config, text, self.calls, self.now_ns);
                let p = &self.requests[from];
                // Without a block for a copy of its tail it shares whole blocks alone, and never a block that is being copied.
                let copied =
                    self.flight.iter().flat_map(|flight| &flight.copies).filter(|copy| copy.who == from).map(|copy| copy.index).max();
                let spare = tracked.need(&self.config) < self.config.num_blocks && self.config.admission != Admission::NoEvict;
                let copies = spare && copied.is_none();
                let whole = ((shape.len - 1) / block_size).min(copied.unwrap_or(u32::MAX));
                let computed = if copies { shape.len - 1 } else { whole * block_size };
                let blocks = if copies { shape.len.div_ceil(block_size) } else { computed / block_size };
                let table = self.scheduler.block_table(tracked.id).unwrap_or_default();
                // With several groups it shares whole blocks alone, and none where a window or a state of its parent has moved on.
                let grouped = !self.config.kv_groups.is_single();
                let grain = super::groups::grain(&self.config).unwrap_or(1);
                let end = p.done.min(shape.len - 1);
                if !p.text.spans().is_empty() {
                    self.meet("forked with spans");
                }
                if !table.is_empty() {
                    self.meet_grouped("forked over blocks, several groups", "forked over blocks");
                }
                let (blocks, computed) = match grouped {
                    true if table.is_empty() => (0, 0),
                    true => ((end - end % grain) / block_size, (end - end % grain) / block_size * block_size),
                    false => (blocks, computed),
                };
                tracked.table = p.table[..blocks as usize].to_vec();
                (tracked.cursor, tracked.done) = (computed, computed);
                (tracked.fresh, tracked.forked, tracked.waits_kv) = (blocks == 0, blocks > 0, false);
                tracked.hashed_len = p.hashed_len.min(shape.len);
                ensure!(table == tracked.table, "{} starts on {table:?}, must share {:?}", tracked.id, tracked.table);
                self.alive.insert(tracked.id, self.requests.len());
                self.requests.push(tracked);
                self.name_spans(self.requests.len() - 1)?;
            }
            (Ok(()), _) => return Err(format!("fork of {parent} is accepted, must be refused with one of {expected:?}")),
        }
        let events = self.take_events()?;
        for event in &events {
            self.see_other(event)?;
        }
        let answer = answer.map_err(|error| if let ForkError::Submit(error) = error { error } else { SubmitError::EmptyPrompt(parent) });
        self.end_call(Line::Submit(RequestId(shape.id), answer), events)
    }
}
