//! Results, failures, aborts and the other calls of the reference scheduler.

use cpp_sched::{Admission, Event, FinishReason, Pipelining, RequestId};

use super::{Reference, Row, State};

impl Reference {
    /// The oldest batch is done.
    pub fn complete(&mut self) {
        let batch = self.oldest();
        self.pool.end_fence(batch);
        while let Some(row) = self.flight[0].rows.pop_front() {
            self.complete_row(&row, batch);
            self.settle(row.who);
        }
        self.flight.pop_front();
    }

    fn complete_row(&mut self, row: &Row, batch: u64) {
        let late = self.delivers_late();
        let r = &mut self.requests[row.who];
        match r.state {
            State::Running if row.epoch == r.epoch => {
                r.committed = row.end;
                let end = if row.samples { self.deliver(row) } else { None };
                self.publish(row.who, batch);
                match end {
                    Some(reason) => self.finish(row.who, reason),
                    None if row.samples || self.config.pipelining == Pipelining::Request => self.queue_decode(row.who),
                    None => {}
                }
            }
            State::Waiting if late && row.samples && row.epoch + 1 == r.epoch => {
                if let Some(reason) = self.deliver(row) {
                    self.finish(row.who, reason);
                }
            }
            _ => {}
        }
    }

    /// The row's token; why it ends the request, if it does.
    fn deliver(&mut self, row: &Row) -> Option<FinishReason> {
        let r = &mut self.requests[row.who];
        let token = r.text.token(row.end);
        self.events.push(Event::Token { request: r.id, index: row.end - r.prompt_len, token });
        r.outputs += 1;
        let stop = r.shape.stop_at.map(|index| r.text.token(r.prompt_len + index));
        if stop == Some(token) { Some(FinishReason::Stop) } else { (r.outputs == r.max_out).then_some(FinishReason::Length) }
    }

    fn finish(&mut self, who: usize, reason: FinishReason) {
        self.leave(who);
        self.requests[who].state = State::Ended;
        self.events.push(Event::Finished { request: self.requests[who].id, reason });
    }

    /// An aborted request ends when nothing of it is in flight.
    fn settle(&mut self, who: usize) {
        if self.requests[who].state == State::Aborting && self.rows(who).next().is_none() {
            self.requests[who].state = State::Ended;
            self.events.push(Event::Finished { request: self.requests[who].id, reason: FinishReason::Aborted });
        }
    }

    /// No token of it is delivered and nothing of it scheduled from here on.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(who) = self.find(id) {
            self.leave(who);
            self.requests[who].state = State::Aborting;
            self.settle(who);
        }
    }

    /// Every batch in flight is lost; how many.
    pub fn fail(&mut self) -> u32 {
        let lost = std::mem::take(&mut self.flight);
        for batch in &lost {
            self.pool.end_fence(batch.id);
            self.preempted.extend(&batch.preempted);
        }
        let rows: Vec<&Row> = lost.iter().flat_map(|batch| &batch.rows).collect();
        for who in rows.iter().map(|row| row.who) {
            // Once each: after that none of the rows is of its epoch.
            let rolls_back = rows.iter().any(|row| row.who == who && row.epoch == self.requests[who].epoch);
            if self.requests[who].state == State::Running && rolls_back {
                let r = &mut self.requests[who];
                r.epoch += 1;
                r.scheduled = r.committed;
                self.give_back(who);
                self.ready.retain(|&other| other != who);
                self.queue_decode(who);
            }
            self.settle(who);
        }
        lost.len() as u32
    }

    /// Blocks behind what is committed go back; those of known tokens stay set aside, where prompts are sure of their blocks.
    fn give_back(&mut self, who: usize) {
        let known = self.requests[who].known();
        let set_aside = match self.config.admission {
            Admission::ReservePrompt => self.blocks(known),
            Admission::NoEvict => u32::MAX,
            _ => 0,
        };
        let keep = self.blocks(self.requests[who].committed);
        while self.requests[who].table.len() as u32 > keep {
            let last = self.requests[who].table.len() as u32;
            let block = self.requests[who].table.pop().expect("it is longer");
            self.pool.release(block, None);
            self.requests[who].reserved += u32::from(last <= set_aside);
        }
    }

    /// Opens a gate.
    pub fn ready(&mut self, id: RequestId) {
        if let Some(who) = self.find(id) {
            self.requests[who].gated = false;
        }
    }

    /// Nothing computed or scheduled before is hit from here on.
    pub fn reset_prefix_cache(&mut self) {
        if self.config.prefix_caching {
            self.pool.forget();
            self.publish_from = self.next_batch;
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}
