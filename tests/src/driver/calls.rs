//! `submit`, `abort` and the other calls on one request or on all.

use cpp_sched::journal::{Answer, Input};
use cpp_sched::{BlockId, Gate, PolicyKind, Prompt, Request, RequestId, Role, SubmitError};

use super::{Driver, Line, Tracked, ensure};
use crate::op::{Flaw, Shape};
use crate::truth::Text;

impl Driver {
    /// Hands in a request; the answer must be the one that the driver works out itself.
    pub(super) fn submit(&mut self, shape: &Shape) -> Result<(), String> {
        let mut text = Text::new(shape);
        let mut request = real(shape, &mut text, self.config.block_size);
        request.cross_tokens = super::groups::cross_tokens(&self.config, shape.author);
        let mut errors = self.errors_of(shape, &request);
        errors.extend(self.lateness(&request)?);
        let before = self.observe();
        self.recorder.input(&Input::Submit(Box::new(request.clone())));
        let answer = self.scheduler.submit(request);
        // A policy of the caller's may rank the same request otherwise when it is asked again: late or not, the other questions decide.
        let custom = self.config.policy == PolicyKind::Custom;
        let late = |error: &SubmitError| custom && matches!(error, SubmitError::TooLate { .. });
        let estimates = self.config.latency.reject_above_millionths.is_some() && shape.ttft_slo_ns.is_some() && errors.iter().all(late);
        match answer {
            Ok(()) => {
                ensure!(errors.iter().all(late), "accepted, but {errors:?}");
                self.counts.submitted += 1;
                let tracked = Tracked::new(shape, &self.config, text, self.calls, self.now_ns);
                self.alive.insert(tracked.id, self.requests.len());
                self.requests.push(tracked);
                self.name_spans(self.requests.len() - 1)?;
            }
            Err(error) => {
                ensure!(errors.contains(&error) || (estimates && late(&error)), "refused with {error:?}, must be one of {errors:?}");
                self.counts.rejected += 1;
                let mut expected = before;
                expected.stats.rejected += 1;
                ensure!(self.observe() == expected, "{error:?}, but something has changed");
            }
        }
        let events = self.take_events()?;
        for event in &events {
            ensure!(answer.is_ok(), "{event:?} out of a refused submit");
            self.see_other(event)?;
        }
        self.end_call(Line::Submit(RequestId(shape.id), answer), events)
    }

    /// Everything that is wrong with a request.
    pub(super) fn errors_of(&self, shape: &Shape, request: &Request) -> Vec<SubmitError> {
        let (c, id) = (&self.config, request.id);
        let mut errors = Vec::new();
        if self.alive.contains_key(&id) {
            errors.push(SubmitError::DuplicateId(id));
        }
        let prompt_tokens = request.prompt.num_tokens();
        if prompt_tokens == 0 {
            errors.push(SubmitError::EmptyPrompt(id));
        }
        if self.draining {
            errors.push(SubmitError::Draining(id));
        }
        if request.min_tokens > request.max_tokens {
            errors.push(SubmitError::MinTokens(id));
        }
        for (field, given) in [("pooling", request.pooling), ("session", request.session)] {
            if given && c.role != Role::Unified {
                errors.push(SubmitError::Role { request: id, field });
            }
        }
        if request.max_tokens == 0 && !request.pooling {
            errors.push(SubmitError::ZeroMaxTokens(id));
        }
        if request.weight_millionths == 0 {
            errors.push(SubmitError::ZeroWeight(id));
        }
        if let Prompt::Lengths { len, block_hashes } = &request.prompt {
            let expected = len / c.block_size;
            let given = u32::try_from(block_hashes.len()).expect("few blocks");
            if given != expected && given != 0 {
                errors.push(SubmitError::BlockHashes { request: id, expected, given });
            }
        }
        errors.extend(self.span_errors(id, &request.spans, prompt_tokens));
        if prompt_tokens >= c.model_len() {
            errors.push(SubmitError::TooLong { request: id, prompt_tokens, max_model_len: c.model_len() });
        } else if prompt_tokens > 0 && (request.max_tokens > 0 || request.pooling) {
            let mut shape = shape.clone();
            shape.len = prompt_tokens;
            let needed = Tracked::new(&shape, c, Text::new(&shape), 0, 0).need(c);
            if needed > c.num_blocks {
                errors.push(SubmitError::NeverFits { request: id, needed, num_blocks: c.num_blocks });
            }
        }
        errors
    }

    /// Whether it is refused for being late, by what the scheduler itself predicts.
    fn lateness(&self, request: &Request) -> Result<Option<SubmitError>, String> {
        let Ok(estimate) = self.scheduler.estimate(request) else { return Ok(None) };
        ensure!(estimate.cached_tokens < request.prompt.num_tokens() && estimate.most_blocks <= self.config.num_blocks, "{estimate:?}");
        let (Some(most), Some(ttft_slo_ns)) = (self.config.latency.reject_above_millionths, request.ttft_slo_ns) else { return Ok(None) };
        let late = u128::from(estimate.ttft_ns) * 1_000_000 > u128::from(ttft_slo_ns) * u128::from(most);
        Ok(late.then_some(SubmitError::TooLate { request: request.id, ttft_ns: estimate.ttft_ns, ttft_slo_ns }))
    }

    /// Calls something that has an effect exactly if `expected`, and none at all otherwise.
    pub(super) fn effect(&mut self, name: &'static str, id: RequestId, expected: bool, call: &Input) -> Result<(), String> {
        let before = (!expected).then(|| self.state());
        self.recorder.input(call);
        let answer = matches!(call.apply(&mut self.scheduler), Answer::Done);
        ensure!(answer == expected, "{name} of {id} answers {answer}, must be {expected}");
        if let Some(before) = before {
            ensure!(before == self.state(), "{name} of {id} has no effect, but something has changed");
        }
        let events = self.take_events()?;
        for event in &events {
            ensure!(expected, "{event:?} out of {name} of {id}, which has no effect");
            self.see_own(event, id, name)?;
        }
        self.end_call(Line::Effect(name, id, expected), events)
    }

    fn living(&self, id: RequestId) -> Option<&Tracked> {
        self.alive.get(&id).map(|&who| &self.requests[who]).filter(|request| request.is_alive())
    }

    /// From here on no token of it is delivered and nothing of it scheduled.
    pub(super) fn abort(&mut self, id: RequestId) -> Result<(), String> {
        let expected = self.living(id).is_some();
        if expected {
            let who = self.alive[&id];
            let block_size = self.config.block_size;
            let request = &mut self.requests[who];
            request.aborting = true;
            if self.config.role == Role::Prefill {
                // Blocks that were announced stay until the peer says so.
                let announced = request.announced.div_ceil(block_size) as usize;
                request.pins.truncate(announced);
                // The peer has so long from now on, unless its time runs already.
                if !request.pins.is_empty() && request.delivered == 0 {
                    request.lease = self.config.kv_lease_ns.map(|lease| self.now_ns.saturating_add(lease));
                }
            }
        }
        self.effect("abort", id, expected, &Input::Abort(id))
    }

    /// Changes the number of drafts.
    pub(super) fn set_drafts(&mut self, id: RequestId, drafts: u32) -> Result<(), String> {
        // An aborted request is alive until its end is told; drafts make no difference to it.
        let expected = self.alive.contains_key(&id);
        if expected {
            let who = self.alive[&id];
            self.requests[who].drafts = drafts;
        }
        self.effect("set_drafts", id, expected, &Input::SetDrafts(id, drafts))
    }
}

/// The request that a shape stands for.
pub(super) fn real(shape: &Shape, text: &mut Text, block_size: u32) -> Request {
    let id = RequestId(shape.id);
    let mut request = if shape.lengths {
        let digests = if shape.hashed { text.digests(shape.len, block_size) } else { Vec::new() };
        Request::with_lengths(id, shape.len, digests, shape.max_tokens)
    } else {
        Request::new(id, text.prefix(shape.len), shape.max_tokens)
    };
    request.stop_tokens = shape.stop_at.iter().map(|index| text.token(shape.len + index)).collect();
    request.priority = shape.priority;
    request.ttft_slo_ns = shape.ttft_slo_ns;
    request.tenant = shape.tenant;
    request.weight_millionths = shape.weight_millionths;
    request.cache_salt = vec![b's'; shape.salt.into()];
    let extras = shape.extras;
    request.gates = if shape.gated { extras.gates.with(Gate::Other) } else { extras.gates };
    request.drafts = shape.drafts;
    (request.constrained, request.skip_cache_read) = (extras.constrained, extras.skip_cache_read);
    (request.pooling, request.session) = (extras.pooling, extras.session);
    (request.min_tokens, request.adapter) = (extras.min_tokens, extras.adapter);
    (request.spans, request.tbt_slo_ns) = (shape.spans(), extras.tbt_slo_ns);
    match shape.flaw {
        None | Some(Flaw::Spans) => {}
        Some(Flaw::EmptyPrompt) => request.prompt = Prompt::Tokens(Vec::new()),
        Some(Flaw::ZeroMaxTokens) => request.max_tokens = 0,
        Some(Flaw::ZeroWeight) => request.weight_millionths = 0,
        Some(Flaw::BlockHashes) => {
            let hashes = vec![[7; 16]; (shape.len / block_size) as usize + 1];
            request.prompt = Request::with_lengths(id, shape.len, hashes, 1).prompt;
        }
    }
    request
}

/// The blocks of a table that cover positions.
pub(super) fn covering(table: &[BlockId], start: u32, end: u32, block_size: u32) -> Vec<BlockId> {
    table[(start / block_size) as usize..end.div_ceil(block_size) as usize].to_vec()
}
