//! Rules about a batch as a whole.

use super::entry::Entry;
use super::{Checker, Flown};

impl Checker {
    pub(super) fn schedule(&mut self, entry: &Entry) {
        self.preempted(entry);
        self.events(entry, &[], None);
        let Some(number) = entry.batch else {
            if !entry.items.is_empty() {
                self.bad("an empty batch holds items");
            }
            return self.empty(entry);
        };
        if number != self.batches || self.flight.len() >= self.config.depth() {
            self.bad(format!("batch {number} with {} in flight; its number must be {}", self.flight.len(), self.batches));
        }
        let (rows, total) = (entry.items.len() as u64, entry.items.iter().map(|item| item.len).sum::<u64>());
        if rows == 0 || total > self.config.max_batch_tokens || rows > self.config.max_batch_requests {
            self.bad(format!("{rows} items of {total} tokens: none, or more than a batch may hold"));
        }
        let ready = self.ready_to_decode();
        let before = self.tracks.clone();
        let (mut batch, mut new): (Vec<Flown>, Vec<usize>) = (Vec::new(), Vec::new());
        for item in &entry.items {
            let Some(r) = self.place(&item.id) else { continue };
            if entry.items.iter().filter(|other| other.id == item.id).count() as u64 > self.config.chunks_per_batch {
                self.bad(format!("{} stands in one batch more than {} times", item.id, self.config.chunks_per_batch));
            }
            if self.tracks[r].first_batch.is_none() {
                self.tracks[r].first_batch = Some(self.batches);
                new.push(r);
            }
            self.longest_hit(r, item, !entry.preempted.is_empty());
            batch.extend(self.item(r, item, &batch));
        }
        self.check_order(&before, &new, &batch);
        self.check_full(entry, &batch);
        self.check_starving(entry, &ready, &batch);
        self.check_flops(entry);
        self.check_cost(entry, &batch);
        self.check_balance(&batch);
        self.flight.push_back((self.batches, batch));
        self.batches += 1;
        let admitted = self.tracks.iter().filter(|track| track.resident && track.runnable(&self.config)).count() as u64;
        if admitted > self.config.max_requests {
            self.bad(format!("{admitted} requests are admitted, at most {}", self.config.max_requests));
        }
    }

    fn preempted(&mut self, entry: &Entry) {
        // A victim that stood in this very batch may have evicted cached blocks before it gave them back.
        let taken = (!entry.preempted.is_empty()).then(|| self.in_use());
        for id in &entry.preempted {
            let Some(r) = self.place(id) else { continue };
            if !self.tracks[r].alive() || self.config.admission == "no_evict" {
                self.bad(format!("{id} is preempted, but is not alive, or admission is no_evict"));
            }
            self.check_victim(r);
            self.tracks[r].preemptions += 1;
            self.tracks[r].leave();
        }
        if let Some(taken) = taken {
            let kept = if entry.preempted.len() > 1 { self.in_use() } else { taken };
            self.memory.forget_all_but(&kept);
        }
    }

    fn empty(&mut self, entry: &Entry) {
        let told = |id: &str| entry.blocked.iter().any(|blocked| blocked.id == id && !blocked.reason.is_empty());
        let silent: Vec<String> =
            self.tracks.iter().filter(|track| track.alive() && !told(&track.spec.id)).map(|track| track.spec.id.clone()).collect();
        if !silent.is_empty() {
            self.bad(format!("an empty batch without a reason for {silent:?}"));
        }
        let config = &self.config;
        let todo: Vec<_> = self.tracks.iter().filter(|track| track.runnable(config)).collect();
        let room = entry.kv.free + entry.kv.cached;
        let roomy = entry.kv.pinned == 0 || todo.iter().all(|track| track.need(config) <= room);
        if !todo.is_empty() && roomy && self.flight.is_empty() && entry.preempted.is_empty() {
            let ids: Vec<&str> = todo.iter().map(|track| track.spec.id.as_str()).collect();
            let text = format!("nothing is in flight, {ids:?} could run, and the batch is empty");
            return self.bad(text);
        }
        self.check_idle(entry);
    }
}
