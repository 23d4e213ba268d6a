//! `complete` and `fail`: what comes back, what must be refused, and which events follow.

use cpp_sched::journal::Input;
use cpp_sched::{BatchId, CompleteError, Event, FinishReason, RequestId, Role, Sample, TokenId};

use super::flight::{Flight, Flying};
use super::{Driver, Line, ensure, tracked::drops_late};
use crate::op::Wrong;

/// A result in the making: whose, and which tokens.
type Drawn = Vec<(RequestId, Vec<TokenId>)>;

impl Driver {
    /// Hands back the result of the oldest batch in flight.
    pub(super) fn complete(&mut self) -> Result<(), String> {
        let Some(flight) = self.flight.pop_front() else {
            let unknown = BatchId(self.next_batch);
            return self.refused(unknown, &[], CompleteError::Unknown(unknown));
        };
        self.check_still_there(&flight)?;
        let drawn = self.draw(&flight);
        let samples = borrow(&drawn);
        self.recorder.input(&Input::complete(flight.id, &samples));
        self.scheduler.complete(flight.id, &samples).map_err(|error| format!("a right result is refused: {error}"))?;
        self.completed.push(flight.id);
        self.publishers = flight.rows.iter().filter(|row| !row.void).map(|row| row.who).collect();
        let due = self.settle(&flight);
        let events = self.take_events()?;
        self.drop_lost();
        self.check_results(&flight, &due, &events)?;
        self.end_call(Line::Complete(Some(flight.id)), events)
    }

    /// What the rows wrote and read must still be there: nobody else wrote into a block of a batch in flight.
    fn check_still_there(&mut self, flight: &Flight) -> Result<(), String> {
        for row in flight.rows.iter().filter(|row| !row.void) {
            let request = &mut self.requests[row.who];
            let end = (row.base() + row.accepted).min(row.until);
            if let Some(position) = self.memory.first_wrong(&row.table, 0..end, &mut request.text) {
                let slot = self.memory.slot(&row.table, position);
                return Err(format!("{} of {}: position {position} was overwritten: {slot:?}", flight.id, request.id));
            }
            self.check_groups_still_there(row).map_err(|text| format!("{} of {}: {text}", flight.id, self.requests[row.who].id))?;
        }
        Ok(())
    }

    /// The tokens that the model samples: those of the truth.
    fn draw(&mut self, flight: &Flight) -> Drawn {
        let sampling = flight.rows.iter().filter(|row| row.samples);
        sampling
            .map(|row| {
                let request = &mut self.requests[row.who];
                let tokens = (row.base()..=row.base() + row.accepted).map(|position| request.text.token(position));
                (request.id, tokens.collect())
            })
            .collect()
    }

    /// Plays the result: moves the cursors and lists the events that must follow, in order.
    fn settle(&mut self, flight: &Flight) -> Vec<Event> {
        let mut due = Vec::new();
        let drop = drops_late(&self.config);
        for row in &flight.rows {
            let role = self.config.role;
            let request = &mut self.requests[row.who];
            let late = row.epoch != request.epoch;
            if !request.is_alive() || row.void || row.epoch < request.void_before {
                continue;
            }
            if !late {
                let rejected = row.drafts - row.accepted;
                request.cursor -= rejected;
                request.done = row.end - rejected;
                if row.samples {
                    self.counts.accepted_drafts += u64::from(row.accepted);
                }
            }
            if request.shape.extras.pooling && request.done >= request.prompt_len {
                due.push(Event::Finished { request: request.id, reason: FinishReason::Computed });
                self.end(row.who, FinishReason::Computed);
                continue;
            }
            if !row.samples || (late && drop) {
                continue;
            }
            for position in row.base()..=row.base() + row.accepted {
                let token = request.text.token(position);
                due.push(Event::Token { request: request.id, index: position - request.prompt_len, token });
                request.delivered += 1;
                self.counts.output_tokens += 1;
                let reason = if role == Role::Prefill {
                    None
                } else if request.stop == Some(token) && request.delivered >= request.shape.extras.min_tokens {
                    Some(FinishReason::Stop)
                } else {
                    (request.delivered >= request.max_out).then_some(FinishReason::Length)
                };
                if role == Role::Prefill && request.delivered == 1 {
                    request.lease = self.config.kv_lease_ns.map(|lease| self.now_ns.saturating_add(lease));
                }
                if let Some(reason) = reason.filter(|_| request.shape.extras.session) {
                    due.push(Event::Paused { request: request.id, reason });
                    self.pause_session(row.who);
                    break;
                }
                if let Some(reason) = reason {
                    due.push(Event::Finished { request: request.id, reason });
                    self.end(row.who, reason);
                    break;
                }
            }
        }
        due
    }

    /// The request has ended, its id is free.
    pub(super) fn end(&mut self, who: usize, reason: FinishReason) {
        let request = &mut self.requests[who];
        request.terminal = Some(reason);
        request.pins.clear();
        self.alive.remove(&request.id);
        match reason {
            FinishReason::Aborted => self.counts.aborted += 1,
            FinishReason::TransferFailed => self.counts.transfers_failed += 1,
            _ => self.counts.finished += 1,
        }
    }

    fn check_results(&mut self, flight: &Flight, due: &[Event], events: &[Event]) -> Result<(), String> {
        let mut delivered = Vec::new();
        for event in events {
            match *event {
                Event::Token { .. } | Event::Paused { .. } => delivered.push(*event),
                Event::Finished { reason: FinishReason::Stop | FinishReason::Length | FinishReason::Computed, .. } => {
                    delivered.push(*event)
                }
                _ => self.see_other(event)?,
            }
        }
        ensure!(delivered == due, "the result brought {delivered:?}, must be {due:?}");
        if self.config.role == Role::Prefill {
            self.check_announced(flight)?;
        }
        Ok(())
    }

    /// An event that may follow any call that ends something: aborted requests go, waiting ones get their blocks.
    pub(super) fn see_other(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::Finished { request, reason: FinishReason::Aborted } => {
                let who = *self.alive.get(&request).ok_or_else(|| format!("{request} ended twice"))?;
                ensure!(self.requests[who].aborting, "{request} ends as aborted, but was not");
                ensure!(!self.is_flying(who), "{request} ends, but a batch in flight has it");
                ensure!(self.requests[who].pins.is_empty(), "{request} ends, but its blocks are under a transfer");
                self.end(who, FinishReason::Aborted);
                Ok(())
            }
            Event::Finished { request, reason: FinishReason::TransferFailed } => {
                let who = *self.alive.get(&request).ok_or_else(|| format!("{request} ended twice"))?;
                ensure!(self.requests[who].overdue && self.requests[who].is_alive(), "{request} fails, but its time is not over");
                self.end(who, FinishReason::TransferFailed);
                Ok(())
            }
            Event::KvReady { request, start, end } => self.see_kv_ready(request, start, end),
            Event::KvWanted { request, start, end } => self.see_kv_wanted(request, start, end),
            _ => Err(format!("{event:?} is not due here")),
        }
    }

    pub(super) fn is_flying(&self, who: usize) -> bool {
        self.flying().any(|row| row.who == who)
    }

    pub(super) fn flying(&self) -> impl Iterator<Item = &Flying> {
        self.flight.iter().flat_map(|flight| &flight.rows)
    }

    /// Hands back a result with one fault: it must be refused with the right error, and change nothing.
    pub(super) fn complete_wrong(&mut self, wrong: Wrong) -> Result<(), String> {
        let future = BatchId(self.next_batch + 1);
        let Some(flight) = self.flight.front().cloned() else { return self.refused(future, &[], CompleteError::Unknown(future)) };
        let batch = flight.id;
        let mut drawn = self.draw(&flight);
        let expected = u32::try_from(drawn.len()).expect("few rows sample");
        let error = match (wrong, drawn.last_mut()) {
            (Wrong::Past, _) if !self.completed.is_empty() => {
                let past = self.completed[self.completed.len() / 2];
                return self.refused(past, &drawn, CompleteError::Unknown(past));
            }
            (Wrong::Early, _) if self.flight.len() > 1 => {
                let early = self.flight[self.flight.len() / 2].clone();
                let drawn = self.draw(&early);
                return self.refused(early.id, &drawn, CompleteError::Early { batch: early.id, oldest: batch });
            }
            (Wrong::MissingSample, Some(_)) => {
                drawn.pop();
                CompleteError::Samples { batch, expected, given: expected - 1 }
            }
            (Wrong::ExtraSample, last) => {
                let extra = last.cloned().unwrap_or_else(|| (RequestId(0), vec![1]));
                drawn.push(extra);
                CompleteError::Samples { batch, expected, given: expected + 1 }
            }
            (Wrong::OtherRequest, Some((id, _))) => {
                let right = *id;
                *id = RequestId(right.0 + 1);
                CompleteError::WrongRequest { batch, expected: right, given: *id }
            }
            (Wrong::NoTokens, Some((id, tokens))) => {
                tokens.clear();
                let request = *id;
                CompleteError::TokenCount { batch, request, most: 1 + last_drafts(&flight), given: 0 }
            }
            (Wrong::TooManyTokens, Some((id, tokens))) => {
                let request = *id;
                let most = 1 + last_drafts(&flight);
                tokens.resize(most as usize + 1, 5);
                CompleteError::TokenCount { batch, request, most, given: most + 1 }
            }
            _ => return self.refused(future, &drawn, CompleteError::Unknown(future)),
        };
        self.refused(batch, &drawn, error)
    }

    fn refused(&mut self, batch: BatchId, drawn: &[(RequestId, Vec<TokenId>)], expected: CompleteError) -> Result<(), String> {
        let before = self.state();
        self.recorder.input(&Input::complete(batch, &borrow(drawn)));
        let answer = self.scheduler.complete(batch, &borrow(drawn));
        ensure!(answer == Err(expected), "a wrong result is answered with {answer:?}, must be {expected:?}");
        ensure!(before == self.state(), "{expected:?}, but something has changed");
        let events = self.take_events()?;
        ensure!(events.is_empty(), "{expected:?}, but there are events {events:?}");
        self.end_call(Line::Complete(None), events)
    }
}

fn last_drafts(flight: &Flight) -> u32 {
    flight.rows.iter().filter(|row| row.samples).map(|row| row.drafts).next_back().unwrap_or(0)
}

fn borrow(drawn: &[(RequestId, Vec<TokenId>)]) -> Vec<Sample<'_>> {
    drawn.iter().map(|(request, tokens)| Sample { request: *request, tokens }).collect()
}
