//! Rules about all calls but `schedule`.

use super::Checker;
use super::entry::Entry;
use super::memory::Slot;
use super::request::Wanted;

impl Checker {
    pub(super) fn submit(&mut self, entry: &Entry) {
        let Some(r) = self.place(entry.id.as_deref().unwrap_or_default()) else { return };
        let accepted = entry.result.as_deref() == Some("accepted");
        let (id, fits) = (self.tracks[r].spec.id.clone(), self.tracks[r].fits(&self.config));
        if !accepted && entry.result.as_deref() != Some("rejected") {
            self.bad(format!("{id}: the result is {:?}", entry.result));
        }
        if self.tracks[r].submitted.is_some() {
            if accepted {
                self.bad(format!("{id} is submitted twice and not rejected"));
            }
            return self.events(entry, &[], None);
        }
        if accepted != fits {
            let (need, out) = (self.tracks[r].need(&self.config), self.tracks[r].max_out);
            self.bad(format!("{id}: accepted is {accepted}, but it needs {need} blocks and may have {out} outputs"));
        }
        let (line, now) = (self.line, self.now);
        let track = &mut self.tracks[r];
        (track.submitted, track.opened) = (Some(line), line);
        track.terminal = (!accepted).then(|| "rejected".to_owned());
        track.waits_kv = self.config.role == "decode";
        let arrival = u128::from(track.spec.arrival_ns.unwrap_or(now));
        track.deadline = track.spec.ttft_slo_ns.map_or(u128::MAX, |slo| arrival + u128::from(slo));
        self.events(entry, &[], None);
    }

    pub(super) fn complete(&mut self, entry: &Entry) {
        let (number, items) = self.flight.pop_front().map_or((None, Vec::new()), |(number, items)| (Some(number), items));
        if entry.batch != number {
            self.bad(format!("completed batch {:?}, the oldest is {number:?}", entry.batch));
        }
        // Tokens due by request; a request may have several items here.
        let mut due: Vec<(usize, u64)> = Vec::new();
        let mut current = Vec::new();
        for flown in &items {
            let track = &mut self.tracks[flown.r];
            let late = flown.epoch != track.preemptions;
            if !track.alive() {
                continue;
            }
            if !late {
                track.cursor -= flown.rejected;
                track.done = flown.end - flown.rejected;
                current.push(flown.r);
            }
            if flown.samples && !(late && self.config.drops()) {
                let before = due.iter().position(|(r, _)| *r == flown.r).map_or(0, |at| due.swap_remove(at).1);
                due.push((flown.r, (before + flown.accepted + 1).min(track.outputs().saturating_sub(track.delivered))));
            }
        }
        // Before the events: what ends or is offered in this call may take these very blocks.
        for r in current {
            let track = &self.tracks[r];
            self.memory.publish(track, track.done, self.config.block_size);
        }
        self.events(entry, &due, None);
        for r in items.iter().map(|flown| flown.r) {
            let track = &self.tracks[r];
            if !track.alive() {
                continue;
            }
            let (id, whole) = (track.spec.id.clone(), track.done / self.config.block_size * self.config.block_size);
            let final_to = if track.done >= track.prompt { track.prompt } else { whole };
            if self.config.role != "prefill" && track.delivered >= track.outputs() {
                self.bad(format!("{id}: all its tokens are delivered, and it is not finished"));
            } else if self.config.role == "prefill" && track.ready_to < final_to {
                let text = format!("{id}: {final_to} positions are final, but kv_ready covers {}", track.ready_to);
                self.bad(text);
            }
        }
    }

    pub(super) fn fail(&mut self, entry: &Entry) {
        for flown in std::mem::take(&mut self.flight).into_iter().flat_map(|(_, items)| items) {
            let track = &mut self.tracks[flown.r];
            if flown.epoch == track.preemptions {
                track.cursor = track.done.min(track.cursor);
                (track.fresh, track.resident) = (true, false);
                track.seen.clear();
            }
            // What they were to write is lost.
            for p in flown.start..flown.end {
                let block = flown.table[usize::try_from(p / self.config.block_size).unwrap_or_default()];
                let salt = self.tracks[flown.r].spec.cache_salt.as_deref();
                self.memory.write(block, p % self.config.block_size, Slot { token: None, batch: None }, salt, self.line);
            }
        }
        self.events(entry, &[], None);
    }

    pub(super) fn other(&mut self, entry: &Entry) {
        let r = entry.id.as_deref().and_then(|id| self.place(id));
        let mut must = None;
        match (entry.op.as_str(), r) {
            ("tick", None) => self.now = self.now.max(entry.now_ns.unwrap_or_default()),
            ("reset_prefix_cache", None) => {
                self.memory.reset(self.line);
                if entry.kv.cached > 0 {
                    self.bad("blocks are still cached after the reset");
                }
            }
            ("abort", Some(r)) => self.tracks[r].aborting |= self.tracks[r].alive(),
            ("ready", Some(r)) if self.tracks[r].alive() => {
                (self.tracks[r].gated, self.tracks[r].opened) = (false, self.line);
            }
            ("ready", Some(_)) => {}
            ("kv_arrived", Some(r)) => self.transfer_ends(r, true),
            ("kv_failed", Some(r)) => self.transfer_ends(r, false),
            ("kv_sent", Some(r)) => must = self.send_ends(r, "handed_over"),
            ("kv_send_failed", Some(r)) => must = self.send_ends(r, "error"),
            (op, _) => self.bad(format!("an unknown call {op:?}")),
        }
        self.events(entry, &[], r.map(|r| (r, must)));
        if let (Some(r), Some(must)) = (r, must)
            && self.tracks[r].terminal.as_deref() != Some(must)
        {
            let text = format!("{} must finish as {must} here", self.tracks[r].spec.id);
            self.bad(text);
        }
    }

    /// Role decode: the prompt's KV is here, or will not come; nothing if it was not asked for.
    fn transfer_ends(&mut self, r: usize, arrived: bool) {
        let Some(Wanted { start, end, blocks }) = self.tracks[r].wanted.take() else { return };
        self.tracks[r].pins.clear();
        self.tracks[r].waits_kv = false;
        if !self.tracks[r].alive() {
            return;
        }
        if !arrived {
            // It computes its prompt here, and may keep the blocks for that.
            self.tracks[r].longest_table = blocks;
            return;
        }
        for p in start..end {
            let track = &self.tracks[r];
            let block = blocks[usize::try_from(p / self.config.block_size).unwrap_or_default()];
            let slot = Slot { token: track.token(p), batch: None };
            self.memory.write(block, p % self.config.block_size, slot, track.spec.cache_salt.as_deref(), self.line);
        }
        self.tracks[r].take_table(blocks);
        self.tracks[r].done = end;
    }

    /// Role prefill: the peer has read all, or never will; the reason by which the request must end now.
    fn send_ends(&mut self, r: usize, reason: &'static str) -> Option<&'static str> {
        let track = &mut self.tracks[r];
        let counts = reason == "error" || track.ready_to == track.prompt || !track.alive();
        if self.config.role != "prefill" || !counts {
            return None;
        }
        let must = track.alive().then_some(reason);
        track.pins.clear();
        must
    }
}
