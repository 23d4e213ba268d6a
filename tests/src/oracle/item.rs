//! Rules about one item: where it starts and ends, which blocks it has, what it reads and writes.

use std::collections::BTreeSet;

use super::entry::ItemEntry;
use super::memory::Slot;
use super::{Checker, Flown};

impl Checker {
    /// Checks an item and plays it; nothing if it makes no sense at all. `batch` is what stands before it.
    pub(super) fn item(&mut self, r: usize, item: &ItemEntry, batch: &[Flown]) -> Option<Flown> {
        let ItemEntry { id, start, len, drafts, .. } = item;
        let (id, start, end, base) = (id.as_str(), *start, start + len, (start + len).saturating_sub(*drafts));
        let track = &self.tracks[r];
        if !track.alive() || track.gated || track.waits_kv {
            self.bad(format!("{id} is scheduled, but is gated, without KV or not alive"));
        }
        let track = &self.tracks[r];
        let may_draft = if track.delivered > 0 { track.spec.drafts } else { 0 };
        if base <= start || *drafts > may_draft {
            self.bad(format!("{id}: start {start}, len {len}, drafts {drafts}"));
            return None;
        }
        let blocks = usize::try_from(self.config.blocks(end)).unwrap_or(usize::MAX);
        let table: Vec<u32> = item.blocks.iter().copied().take(blocks).collect();
        let distinct: BTreeSet<u32> = table.iter().copied().collect();
        if distinct.len() != blocks || distinct.iter().any(|&block| u64::from(block) >= self.config.num_blocks) {
            self.bad(format!("{id}: block table {table:?} does not cover {end} tokens with distinct valid blocks"));
            return None;
        }
        let samples = self.positions(r, item, batch);
        self.continues(r, start, &table);
        self.reads(r, start, &table);
        self.writes(r, start, &table);
        self.takes_new_blocks(r, start, &table);
        let accepted = self.tracks[r].right_drafts(*drafts);
        self.play(r, start, end, base + accepted, &table);
        let prefill = self.is_prefill(r, start, base);
        let track = &mut self.tracks[r];
        let steady = track.caught_up && !track.fresh && !prefill;
        track.done = if track.fresh { start } else { track.done };
        (track.cursor, track.fresh, track.resident, track.caught_up) = (end, false, true, samples);
        track.take_table(table.clone());
        track.computed += len;
        track.samples_at.extend(samples.then_some(self.batches));
        let (new, rejected, epoch) = (base - start, drafts - accepted, track.preemptions);
        Some(Flown { r, start, end, new, samples, accepted, rejected, table, prefill, steady, epoch })
    }

    /// A decode is one token besides its drafts, at or after the end of the prompt.
    pub(super) fn is_prefill(&self, r: usize, start: u64, base: u64) -> bool {
        !(base - start == 1 && start >= self.tracks[r].prompt)
    }

    /// Which tokens exist, and whether the item samples; whether it must.
    fn positions(&mut self, r: usize, item: &ItemEntry, batch: &[Flown]) -> bool {
        let (id, start, end, base) = (&item.id, item.start, item.start + item.len, item.start + item.len - item.drafts);
        let track = &self.tracks[r];
        let flying = || self.flight.iter().flat_map(|(_, items)| items).filter(|flown| flown.r == r);
        let live = flying().filter(|flown| flown.samples && flown.epoch == track.preemptions).count() as u64;
        let late = if self.config.drops() { 0 } else { flying().filter(|flown| flown.samples).count() as u64 - live };
        let second = self.config.pipelining == "request" && flying().any(|flown| flown.epoch == track.preemptions);
        let (known, delivered, max_out) = (track.known(), track.delivered, track.max_out);
        // An asynchronous step may build on what is in flight, but not on what a preemption made late.
        let exist = known + if self.config.async_scheduling && late == 0 { live } else { 0 };
        let samples = base == known + live + late;
        if second {
            self.bad(format!("{id}: a second batch in flight with request-level pipelining"));
        }
        if batch.iter().any(|flown| flown.r == r && flown.samples) {
            self.bad(format!("{id}: needs a token that its own batch samples"));
        }
        if base > exist || end > self.config.model_len() {
            self.bad(format!("{id}: [{start},{end}) with {} drafts, but only {exist} tokens exist", item.drafts));
        }
        if item.samples != samples || (item.drafts > 0 && !samples) {
            self.bad(format!("{id}: [{start},{end}) with {} drafts and {exist} tokens: samples must be {samples}", item.drafts));
        }
        if samples && delivered + live >= max_out {
            self.bad(format!("{id}: [{start},{end}) can only yield tokens past its end"));
        }
        let chunking = &self.config.chunking;
        let too_long = chunking.max.is_some_and(|max| base - start > max);
        let off_grid = base % chunking.align.unwrap_or(1) != 0 && base < exist;
        if self.is_prefill(r, start, base) && (too_long || off_grid) {
            self.bad(format!("{id}: a chunk of {} tokens that ends at {base}", base - start));
        }
        samples
    }

    /// It starts where the last item ended, in the same blocks; or after a hit, a roll-back, at 0.
    fn continues(&mut self, r: usize, start: u64, table: &[u32]) {
        let n = usize::try_from(self.config.blocks(start)).unwrap_or(usize::MAX);
        let track = &self.tracks[r];
        let id = track.spec.id.clone();
        let same = track.table.len() >= n && table[..n] == track.table[..n];
        if track.fresh {
            if start > 0 && !(same && start <= track.done) {
                self.hit(r, start, table);
            }
            return;
        }
        let cursor = track.cursor;
        if start != cursor {
            self.bad(format!("{id}: starts at {start}, must start at {cursor} (a token scheduled twice, or left out)"));
        }
        if !same {
            let old = self.tracks[r].table.clone();
            self.bad(format!("{id}: its blocks were {old:?} and are {table:?}"));
        }
    }

    /// The first `start` tokens are not its own work: whole blocks of completed batches, under its salt, since the last reset.
    pub(super) fn hit(&mut self, r: usize, start: u64, table: &[u32]) {
        let id = self.tracks[r].spec.id.clone();
        if !self.config.prefix_caching || !start.is_multiple_of(self.config.block_size) {
            self.bad(format!("{id}: starts at {start} without having computed what comes before"));
        }
        let flying: BTreeSet<u64> = self.flight.iter().map(|(number, _)| *number).collect();
        for &number in table.iter().take(usize::try_from(start / self.config.block_size).unwrap_or(usize::MAX)) {
            let block = self.memory.block(number).cloned().unwrap_or_default();
            if block.slots.values().any(|slot| slot.batch.is_some_and(|batch| flying.contains(&batch))) {
                self.bad(format!("{id}: hits block {number}, which is still being computed"));
            }
            if block.salt != self.tracks[r].spec.cache_salt {
                self.bad(format!("{id}: hits block {number} of another cache_salt"));
            }
            if block.born <= self.memory.reset_at {
                self.bad(format!("{id}: hits block {number}, computed before the cache was reset"));
            }
        }
    }

    /// What the executor reads must be the request's own tokens.
    pub(super) fn reads(&mut self, r: usize, start: u64, table: &[u32]) {
        let block_size = self.config.block_size;
        let blocks = usize::try_from(self.config.blocks(start)).unwrap_or(usize::MAX);
        for (k, &block) in table.iter().take(blocks).enumerate() {
            let stamp = self.memory.stamp(block);
            if self.tracks[r].seen.get(&k) == Some(&(block, stamp)) {
                continue;
            }
            let track = &self.tracks[r];
            let mut positions = (k as u64 * block_size..start.min((k as u64 + 1) * block_size)).filter(|&p| track.token(p).is_some());
            let wrong = positions.find(|&p| self.memory.token(block, p % block_size) != track.token(p));
            if let Some(p) = wrong {
                let (is, must) = (self.memory.token(block, p % block_size), track.token(p));
                let text = format!("{}: position {p} (block {block}) holds {is:?}, must hold {must:?}", track.spec.id);
                self.bad(text);
            }
            self.tracks[r].seen.insert(k, (block, stamp));
        }
    }

    /// A block that is written belongs to this request alone, and is in the table of no old item in flight.
    fn writes(&mut self, r: usize, start: u64, table: &[u32]) {
        let first = usize::try_from(start / self.config.block_size).unwrap_or(usize::MAX);
        // The last prompt position of role decode, received and computed again, gets the value that it has.
        let again = self.config.role == "decode" && start == self.tracks[r].prompt - 1;
        let written: BTreeSet<u32> = table.iter().copied().skip(first).collect();
        if again {
            return;
        }
        let mut clashes = Vec::new();
        let mut check = |blocks: &mut dyn Iterator<Item = u32>, whose: String| {
            let shared: Vec<u32> = blocks.filter(|block| written.contains(block)).collect();
            if !shared.is_empty() {
                clashes.push(format!("blocks {shared:?} {whose}"));
            }
        };
        for (place, other) in self.tracks.iter().enumerate().filter(|(place, _)| *place != r) {
            check(&mut self.holds(other).iter().copied(), format!("that {} holds", self.tracks[place].spec.id));
            check(&mut other.pins.iter().copied(), format!("under a transfer of {}", other.spec.id));
        }
        for (number, flown) in self.flight.iter().flat_map(|(number, items)| items.iter().map(move |flown| (number, flown))) {
            let owner = &self.tracks[flown.r];
            if flown.epoch != owner.preemptions || !owner.alive() {
                check(&mut flown.table.iter().copied(), format!("of {} under batch {number} in flight", owner.spec.id));
            }
        }
        for clash in clashes {
            let text = format!("{} writes {clash}", self.tracks[r].spec.id);
            self.bad(text);
        }
    }

    /// Blocks that come into its table now, and are to be written, can be hit no more.
    fn takes_new_blocks(&mut self, r: usize, start: u64, table: &[u32]) {
        let first = usize::try_from(start / self.config.block_size).unwrap_or(usize::MAX);
        for (k, &block) in table.iter().enumerate().skip(first) {
            if self.tracks[r].table.get(k) != Some(&block) {
                self.memory.evict(block);
            }
        }
    }

    /// Writes the item's slots; from `wrong_from` on they are wrong drafts.
    fn play(&mut self, r: usize, start: u64, end: u64, wrong_from: u64, table: &[u32]) {
        let block_size = self.config.block_size;
        for p in start..end {
            let track = &self.tracks[r];
            let token = track.token(p).map(|token| token + u32::from(p >= wrong_from));
            let block = table[usize::try_from(p / block_size).unwrap_or_default()];
            let slot = Slot { token, batch: Some(self.batches) };
            self.memory.write(block, p % block_size, slot, track.spec.cache_salt.as_deref(), self.line);
        }
        for (k, &block) in table.iter().enumerate().skip(usize::try_from(start / block_size).unwrap_or_default()) {
            let stamp = self.memory.stamp(block);
            self.tracks[r].seen.insert(k, (block, stamp));
        }
    }
}
