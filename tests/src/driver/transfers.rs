//! KV that goes to a peer (role prefill) or comes from one (role decode).

use std::collections::BTreeSet;

use cpp_sched::journal::Input;
use cpp_sched::{Event, FinishReason, RequestId, Role};

use super::flight::{Flight, Flying};
use super::{Driver, calls::covering, ensure};

impl Driver {
    /// The peer may read these positions: they are final, and ranges tile the prompt.
    pub(super) fn see_kv_ready(&mut self, id: RequestId, start: u32, end: u32) -> Result<(), String> {
        let block_size = self.config.block_size;
        let who = *self.alive.get(&id).ok_or_else(|| format!("kv_ready of {id}, which is not alive"))?;
        let request = &mut self.requests[who];
        ensure!(self.config.role == Role::Prefill && request.is_alive(), "kv_ready of {id}: wrong role, or aborted");
        ensure!(start == request.announced && start < end && end <= request.done, "kv_ready of {id}: {start}..{end} for {request:?}");
        ensure!(end == request.prompt_len || end.is_multiple_of(block_size), "kv_ready of {id}: {end} is not the end of a block");
        request.announced = end;
        request.pins = covering(&request.table, 0, end, block_size);
        Ok(())
    }

    /// After a result everything of its requests that is final is announced, hits included: whole blocks, and at the end the rest.
    pub(super) fn check_announced(&self, flight: &Flight) -> Result<(), String> {
        for row in &flight.rows {
            let request = &self.requests[row.who];
            if !request.is_alive() || row.void || row.epoch != request.epoch {
                continue;
            }
            let due = if request.done >= request.prompt_len {
                request.prompt_len
            } else {
                request.done / self.config.block_size * self.config.block_size
            };
            ensure!(request.announced >= due, "{}: {due} positions are final, {} announced", request.id, request.announced);
        }
        Ok(())
    }

    /// The peer may write these positions now.
    pub(super) fn see_kv_wanted(&mut self, id: RequestId, start: u32, end: u32) -> Result<(), String> {
        let who = *self.alive.get(&id).ok_or_else(|| format!("kv_wanted of {id}, which is not alive"))?;
        let table = self.scheduler.block_table(id).unwrap_or_default().to_vec();
        let request = &self.requests[who];
        ensure!(self.config.role == Role::Decode && request.waits_kv && request.wanted.is_none(), "kv_wanted of {id}: {request:?}");
        ensure!(request.is_alive(), "kv_wanted of {id}, which was aborted");
        ensure!(start < end && end == request.prompt_len, "kv_wanted of {id}: {start}..{end}, the prompt has {}", request.prompt_len);
        let blocks = end.div_ceil(self.config.block_size) as usize;
        ensure!(table.len() == blocks, "kv_wanted of {id}: {} blocks for {end} positions", table.len());
        ensure!(table.iter().collect::<BTreeSet<_>>().len() == blocks, "kv_wanted of {id}: a block twice in {table:?}");
        if start > 0 {
            let hit = Flying {
                who,
                epoch: 0,
                start,
                end,
                drafts: 0,
                accepted: 0,
                until: u32::MAX,
                void: false,
                samples: false,
                kind: cpp_sched::RowKind::Prefill,
                table: table.clone(),
                groups: Vec::new(),
            };
            self.check_hit(&hit, start)?;
            let wrong = self.memory.first_wrong(&table, 0..start, &mut self.requests[who].text);
            ensure!(wrong.is_none(), "kv_wanted of {id}: position {wrong:?} of its hit holds something else");
        }
        self.check_found(who, start).map_err(|text| format!("kv_wanted of {id}: {text}"))?;
        let target = covering(&table, start, end, self.config.block_size);
        let busy: Vec<_> = target.iter().filter(|block| self.is_busy(**block, who)).collect();
        ensure!(busy.is_empty(), "kv_wanted of {id} into {busy:?}, which are in use");
        let request = &mut self.requests[who];
        request.wanted = Some((start, end));
        request.lease = self.config.kv_lease_ns.map(|lease| self.now_ns.saturating_add(lease));
        request.pins.clone_from(&table);
        request.table = table;
        Ok(())
    }

    fn is_busy(&self, block: cpp_sched::BlockId, except: usize) -> bool {
        let held = |(id, &who): (&RequestId, &usize)| {
            who != except
                && (self.scheduler.block_table(*id).unwrap_or_default().contains(&block) || self.requests[who].pins.contains(&block))
        };
        self.flying().any(|row| row.table.contains(&block)) || self.alive.iter().any(held)
    }

    /// Role prefill: the peer has read everything.
    pub(super) fn kv_sent(&mut self, id: RequestId) -> Result<(), String> {
        let prefill = self.config.role == Role::Prefill;
        let expected = self.alive.get(&id).map(|&who| &self.requests[who]).is_some_and(|request| {
            prefill && if request.is_alive() { request.announced == request.prompt_len } else { !request.pins.is_empty() }
        });
        self.unpin(id, expected);
        self.effect("kv_sent", id, expected, &Input::KvSent(id))
    }

    /// Role prefill: the peer will never take it.
    pub(super) fn kv_send_failed(&mut self, id: RequestId) -> Result<(), String> {
        let prefill = self.config.role == Role::Prefill;
        let expected = self.alive.get(&id).map(|&who| &self.requests[who]);
        let expected = expected.is_some_and(|request| prefill && (request.is_alive() || !request.pins.is_empty()));
        self.unpin(id, expected);
        self.effect("kv_send_failed", id, expected, &Input::KvSendFailed(id))
    }

    fn unpin(&mut self, id: RequestId, really: bool) {
        if really {
            let who = self.alive[&id];
            self.requests[who].pins.clear();
            self.requests[who].lease = None;
        }
    }

    /// Role prefill: one consumer has read everything; the last one ends the transfer.
    pub(super) fn kv_sent_by(&mut self, id: RequestId, consumer: u32) -> Result<(), String> {
        let prefill = self.config.role == Role::Prefill;
        let expected = self.alive.get(&id).map(|&who| &self.requests[who]).is_some_and(|request| {
            let under_way = if request.is_alive() { request.is_sending(&self.config) } else { !request.pins.is_empty() };
            prefill && under_way && consumer < self.config.kv_consumers && request.acks & (1 << consumer) == 0
        });
        if expected {
            let who = self.alive[&id];
            self.requests[who].acks |= 1 << consumer;
            let last = self.requests[who].acks.count_ones() == self.config.kv_consumers;
            self.unpin(id, last);
        }
        self.effect("kv_sent", id, expected, &Input::KvSentBy(id, consumer))
    }

    /// Transfers that are overdue by now have failed.
    pub(super) fn end_leases(&mut self) {
        let due = |request: &super::Tracked| request.terminal.is_none() && request.lease.is_some_and(|lease| lease <= self.now_ns);
        let overdue: Vec<usize> = (0..self.requests.len()).filter(|&who| due(&self.requests[who])).collect();
        for who in overdue {
            self.requests[who].lease = None;
            if self.config.role == Role::Prefill {
                self.requests[who].pins.clear();
                self.requests[who].overdue = true;
            } else {
                let id = self.requests[who].id;
                self.end_transfer(id, false);
            }
        }
    }

    /// Role decode: the peer has written what was wanted.
    pub(super) fn kv_arrived(&mut self, id: RequestId) -> Result<(), String> {
        let expected = self.end_transfer(id, true);
        self.effect("kv_arrived", id, expected, &Input::KvArrived(id))
    }

    /// Role decode: nothing will come, the prompt is computed here.
    pub(super) fn kv_failed(&mut self, id: RequestId) -> Result<(), String> {
        let expected = self.end_transfer(id, false);
        self.effect("kv_failed", id, expected, &Input::KvFailed(id))
    }

    fn end_transfer(&mut self, id: RequestId, arrived: bool) -> bool {
        let Some(&who) = self.alive.get(&id) else { return false };
        let request = &mut self.requests[who];
        let Some((start, end)) = request.wanted.take() else { return false };
        request.pins.clear();
        request.lease = None;
        request.waits_kv = false;
        if arrived {
            self.publishers.push(who);
            for position in start..end {
                let chain = request.text.chain(position);
                self.memory.write(&request.table, position, Some(chain), None);
            }
        }
        if arrived && request.is_alive() {
            // The last position is computed again, for the first token.
            request.cursor = end - 1;
            request.done = end - 1;
            request.fresh = false;
        } else if request.is_alive() {
            // What was found stays, and the rest is computed into the blocks that it has.
            (request.cursor, request.done, request.fresh) = (start, start, false);
        } else {
            request.table.clear();
        }
        true
    }

    /// The peer does all that it can do; how many transfers ended.
    pub(super) fn serve_transfers(&mut self) -> Result<u32, String> {
        let mut served = 0;
        for (id, who) in self.living_in_order() {
            let request = &self.requests[who];
            let aborted_pins = request.aborting && !request.pins.is_empty();
            let sent = request.is_alive() && request.announced == request.prompt_len;
            if self.config.role == Role::Prefill && (sent || aborted_pins) {
                self.kv_sent(id)?;
                served += 1;
            } else if request.wanted.is_some() {
                self.kv_arrived(id)?;
                served += 1;
            }
        }
        Ok(served)
    }

    /// An event of a call on one request.
    pub(super) fn see_own(&mut self, event: &Event, id: RequestId, call: &str) -> Result<(), String> {
        let reason = match *event {
            Event::Finished { request, reason } if request == id => reason,
            _ => return self.see_other(event),
        };
        match (call, reason) {
            ("kv_sent", FinishReason::HandedOver) | ("kv_send_failed", FinishReason::TransferFailed) => {
                let who = *self.alive.get(&id).ok_or_else(|| format!("{id} ended twice"))?;
                ensure!(self.requests[who].is_alive(), "{id} ends by {reason:?}, but was aborted");
                self.end(who, reason);
                Ok(())
            }
            _ => self.see_other(event),
        }
    }
}
