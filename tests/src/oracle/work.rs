//! Rules about what a batch should have held: the policy's order, longest hits, full batches, no starving, no idling.
//!
//! Each is checked only where FORMAT.md leaves no way around it; what other rules may forbid is let pass.

use super::Checker;
use super::Flown;
use super::entry::{Entry, ItemEntry};
use super::request::Track;

/// Batches that may pass over a request that could decode.
const MOST_PASSED_OVER: u64 = 8;

impl Checker {
    /// Where a request stands among victims, smaller first; policies whose order moves go by submission alone.
    fn rank(&self, track: &Track) -> (i128, usize) {
        let submitted = track.submitted.unwrap_or(usize::MAX);
        match self.config.policy.as_str() {
            "priority" => (track.spec.priority.into(), submitted),
            "edf" => (i128::try_from(track.deadline).unwrap_or(i128::MAX), submitted),
            _ => (0, submitted),
        }
    }

    /// Whether the policy certainly gives prompt tokens to `first` before it gives any to `second`, both as they were before the batch.
    fn comes_first(&self, first: &Track, second: &Track) -> bool {
        // What is left of a prompt that was preempted or has outputs can be read in two ways.
        let plain = |track: &Track| track.preemptions == 0 && track.delivered == 0 && track.done <= track.cursor;
        let left = |track: &Track| i128::from(track.prompt - track.cursor.min(track.prompt));
        let slack = |track: &Track| {
            let deadline = i128::try_from(track.deadline).unwrap_or(i128::MAX / 4);
            (deadline - i128::from(self.now) - left(track), i128::from(track.prompt))
        };
        match self.config.policy.as_str() {
            "fcfs" | "priority" | "edf" => self.rank(first) < self.rank(second),
            "srpf" => plain(first) && plain(second) && left(first) < left(second),
            "lars" if self.coefficients.is_none() => {
                let ((a, n), (b, m)) = (slack(first), slack(second));
                let both = plain(first) && plain(second) && first.deadline < u128::MAX;
                both && (second.deadline == u128::MAX || a * m < b * n)
            }
            _ => false,
        }
    }

    /// Admitted, and with more to compute than the next decode, certainly.
    fn has_prompt_work(&self, track: &Track) -> bool {
        let left = track.known().saturating_sub(track.cursor);
        track.runnable(&self.config) && track.resident && !track.fresh && left > 0 && (left > 1 || track.cursor < track.prompt)
    }

    /// Nobody is admitted, and nobody gets prompt tokens, past a request that certainly comes first and could use them.
    pub(super) fn check_order(&mut self, before: &[Track], new: &[usize], batch: &[Flown]) {
        if self.config.prefix_caching || self.config.chunking.kind != "tokens" || self.config.role == "decode" {
            return;
        }
        let mut faults = Vec::new();
        for y in self.tracks.iter().filter(|track| track.first_batch.is_none() && track.runnable(&self.config)) {
            for x in new.iter().map(|&x| &self.tracks[x]) {
                // A gate that opened after the other's submit proves nothing.
                let older = y.submitted < x.submitted && x.submitted.is_some_and(|submitted| y.opened < submitted);
                let first = match self.config.policy.as_str() {
                    "fcfs" => older,
                    "priority" => y.spec.priority < x.spec.priority || (y.spec.priority == x.spec.priority && older),
                    "edf" => y.deadline < x.deadline,
                    _ => false,
                };
                if first {
                    faults.push(format!("{} is admitted before {}, which comes first", x.spec.id, y.spec.id));
                }
            }
        }
        if self.config.admission != "lazy" && self.config.pipelining == "chunk" {
            for y in before.iter().filter(|track| self.has_prompt_work(track)) {
                let place = self.places[&y.spec.id];
                // A victim of this very batch has left it.
                if self.tracks[place].preemptions != y.preemptions {
                    continue;
                }
                let given: u64 = batch.iter().filter(|flown| flown.r == place).map(|flown| flown.new).sum();
                let most = self.config.chunking.max.map_or(u64::MAX, |max| max.saturating_mul(self.config.chunks_per_batch));
                let due = most.min(y.known() - y.cursor);
                let later = batch.iter().find(|flown| flown.prefill && self.comes_first(y, &before[flown.r]));
                if let Some(later) = later.filter(|_| given < due) {
                    let later = &self.tracks[later.r].spec.id;
                    faults
                        .push(format!("{later} gets prompt tokens, but {} comes first, has {due} to compute and gets {given}", y.spec.id));
                }
            }
        }
        for fault in faults {
            self.bad(fault);
        }
    }

    /// With chunking "tokens" a chunk is as long as prompt, N and budget allow, and there are as many as a batch may hold.
    pub(super) fn check_full(&mut self, entry: &Entry, batch: &[Flown]) {
        // A victim that stood in this batch leaves room behind.
        // Without reservations a chunk may lack a block.
        let short = self.config.admission == "lazy" && entry.kv.free + entry.kv.cached == 0;
        if self.config.chunking.kind != "tokens" || short || !entry.preempted.is_empty() {
            return;
        }
        let tokens: u64 = batch.iter().map(|flown| flown.end - flown.start).sum();
        let (no_tokens, no_rows) = (tokens >= self.config.max_batch_tokens, batch.len() as u64 >= self.config.max_batch_requests);
        let mut faults = Vec::new();
        for (i, flown) in batch.iter().enumerate().filter(|(_, flown)| flown.prefill) {
            let own = batch.iter().filter(|other| other.r == flown.r).count() as u64;
            let last = !batch[i + 1..].iter().any(|other| other.r == flown.r);
            let track = &self.tracks[flown.r];
            let whole_chunk = self.config.chunking.max == Some(flown.new);
            let another = own < self.config.chunks_per_batch && !no_rows;
            if last && flown.end < track.known() && !no_tokens && (!whole_chunk || another) {
                faults.push(format!(
                    "{} gets [{},{}) of {} known tokens, and the batch has room",
                    track.spec.id,
                    flown.start,
                    flown.end,
                    track.known()
                ));
            }
        }
        for fault in faults {
            self.bad(fault);
        }
    }

    /// Requests whose last token is known, with nothing in flight, that need no new block to decode.
    pub(super) fn ready_to_decode(&self) -> Vec<usize> {
        let flies = |place: usize| self.flight.iter().flat_map(|(_, items)| items).any(|flown| flown.r == place);
        let ready = |track: &Track| {
            track.runnable(&self.config)
                && track.resident
                && !track.fresh
                && track.cursor >= track.prompt
                && track.cursor + 1 == track.known()
                && !track.cursor.is_multiple_of(self.config.block_size)
        };
        (0..self.tracks.len()).filter(|&place| ready(&self.tracks[place]) && !flies(place)).collect()
    }

    /// Prompts do not starve decodes.
    pub(super) fn check_starving(&mut self, entry: &Entry, ready: &[usize], batch: &[Flown]) {
        let tokens: u64 = batch.iter().map(|flown| flown.end - flown.start).sum();
        let spare = tokens < self.config.max_batch_tokens && (batch.len() as u64) < self.config.max_batch_requests;
        let room = spare || batch.iter().any(|flown| flown.prefill);
        let free_to = self.config.balance == "off" && self.config.chunking.kind == "tokens" && entry.preempted.is_empty();
        for &place in ready {
            if batch.iter().any(|flown| flown.r == place) {
                self.tracks[place].passed_over = 0;
            } else if room && free_to {
                self.tracks[place].passed_over += 1;
            }
            if self.tracks[place].passed_over > MOST_PASSED_OVER {
                self.tracks[place].passed_over = 0;
                let text = format!("{} could decode and was passed over {MOST_PASSED_OVER} times", self.tracks[place].spec.id);
                self.bad(text);
            }
        }
    }

    /// An empty answer while the pipeline has room and somebody certainly has what it needs.
    pub(super) fn check_idle(&mut self, entry: &Entry) {
        if self.flight.len() >= self.config.depth() || !entry.preempted.is_empty() {
            return;
        }
        let decode = self.ready_to_decode().into_iter().next();
        // Without reservations a chunk of a smallest size or on a grid may need more blocks than there are.
        let free = entry.kv.free + entry.kv.cached > 0 && self.config.chunking.kind == "tokens";
        let blocks = self.config.admission != "lazy" || free;
        let may = |track: &Track| blocks && self.config.pipelining == "chunk" && self.has_prompt_work(track);
        let prompt = self.tracks.iter().position(may);
        if let Some(place) = decode.or(prompt) {
            let text = format!("the batch is empty, but {} has work, blocks and a slot", self.tracks[place].spec.id);
            self.bad(text);
        }
    }

    /// Nobody is preempted for one that comes later: the first of all is never a victim.
    pub(super) fn check_victim(&mut self, victim: usize) {
        // Gated ones are in nobody's way, nor are those whose KV has arrived and who have no slot to run in.
        let admitted = self.tracks.iter().filter(|track| track.resident && track.runnable(&self.config)).count() as u64;
        let no_slot = !self.tracks[victim].resident && admitted >= self.config.max_requests;
        if no_slot || !self.tracks[victim].runnable(&self.config) {
            return;
        }
        let rank = self.rank(&self.tracks[victim]);
        let first = |track: &Track| track.runnable(&self.config) && self.rank(track) < rank;
        if !self.tracks.iter().any(first) {
            let text = format!("{} is preempted, though it comes first of all", self.tracks[victim].spec.id);
            self.bad(text);
        }
    }

    /// The longest prefix that can be hit is taken. `disturbed`: a victim may have taken blocks in between and given them back.
    pub(super) fn longest_hit(&mut self, r: usize, item: &ItemEntry, disturbed: bool) {
        let track = &self.tracks[r];
        if !self.config.prefix_caching || !track.fresh || !track.table.is_empty() || disturbed || self.config.role == "decode" {
            return;
        }
        let longest = self.memory.longest_hit(track, self.config.block_size);
        if item.start < longest {
            self.bad(format!("{}: starts at {}, but a prefix of {longest} can be hit", item.id, item.start));
        }
    }
}
