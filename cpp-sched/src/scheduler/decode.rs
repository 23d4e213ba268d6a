//! Decodes go into the batch: the ready list, longest waiting first.

use super::Scheduler;
use crate::batch::Row;
use crate::config::{Balance, Chunking, Pipelining};
use crate::cost::CostTerms;
use crate::ids::RequestId;
use crate::state::Demand;

/// How many decodes that are too heavy for the rest of a batch's share are passed over, at most.
const MISFITS: u32 = 32;

/// How many decodes a batch takes for balance's sake.
#[derive(Clone, Copy, Debug)]
enum Share {
    /// As many as fit.
    All,
    /// So many rows.
    Rows(u32),
    /// Until the sum of their costs (without a cost model: of their contexts) reaches this.
    Sum(u128),
}

impl Scheduler {
    /// O(decodes placed + decodes that lack a block).
    pub(super) fn add_decodes(&mut self) {
        let share = self.share();
        let (mut rows, mut sum, mut skipped) = (0, 0u128, 0);
        // What joins the queue from now on is due for the next batch.
        let mut left = self.build.ready.min(self.ready.mark());
        let most_plain = match share {
            _ if !self.decodes_are_plain() => 0,
            Share::All => u32::MAX,
            Share::Rows(most) => most,
            Share::Sum(_) => 0,
        };
        while left > 0 && !self.build.is_full() {
            let (placed, seen) = self.sweep_plain_decodes(left, most_plain.saturating_sub(rows));
            (rows, left) = (rows + placed, left - seen);
            if left == 0 || self.build.is_full() {
                break;
            }
            // One row at least, and who was passed over stands first: no share lets a decode wait for long.
            match share {
                Share::Rows(most) if rows >= most => break,
                Share::Sum(most) if (sum >= most && rows > 0) || skipped > MISFITS => break,
                _ => {}
            }
            left -= 1;
            let Some(entry) = self.ready.pop_front() else { break };
            let slot = entry.slot;
            if self.slots[slot].ticket != entry.ticket {
                continue;
            }
            if self.is_too_early(slot) {
                // Entries stand in the order in which they were scheduled: nearly all behind this one are too early as well.
                self.ready.keep(entry);
                skipped += 1;
                if skipped > MISFITS {
                    break;
                }
                continue;
            }
            if !self.takes_adapter(slot) {
                self.ready.keep(entry);
                skipped += 1;
                if skipped > MISFITS {
                    break;
                }
                continue;
            }
            let start = self.slots[slot].scheduled;
            let terms = CostTerms::decode(start, 1);
            let fits = self.fits_target(terms) || (self.decode_is_overdue(slot) && self.fits_hard_target(terms));
            if !fits {
                self.ready.keep(entry);
                break;
            }
            if let Share::Sum(most) = share {
                // Taken if the sum comes nearer to its share by it.
                let weight = self.decode_weight(start);
                if rows > 0 && weight > 2 * (most - sum) {
                    skipped += 1;
                    self.ready.keep(entry);
                    continue;
                }
                sum += weight;
            }
            if !self.add_decode(slot) {
                self.ready.keep(entry);
                continue;
            }
            rows += 1;
            self.note_adapter(slot);
            self.heed_latency(slot);
            self.slots[slot].ticket = 0;
            self.ready.give_up();
            if self.config.async_scheduling {
                self.after_rows(slot);
            }
        }
        self.ready.restore();
    }

    /// Whether a decode that has its block goes into the batch without another look at anything: no cost, no cap, no charge, no adapter, no drafter.
    fn decodes_are_plain(&self) -> bool {
        let fill = &self.build.fill;
        self.build.plain
            && (fill.most, fill.hard, fill.riding) == (None, None, None)
            && self.config.max_adapters_per_batch.is_none()
            && self.config.lookahead_tokens == 0
            && !matches!(self.config.chunking, Chunking::Adaptive)
    }

    /// What [`add_decodes`](Self::add_decodes) does for the step that happens most, for as many as stand first in the queue: a decode that needs
    /// nothing but its row. It stops before the first other one. `left`: entries that may be looked at; `most`: rows that may be placed. Returns how
    /// many were placed, of how many entries.
    fn sweep_plain_decodes(&mut self, left: usize, most: u32) -> (u32, usize) {
        let build = &mut self.build;
        let most = most.min(build.tokens_left).min(build.rows_left);
        let (block_size, next_batch) = (u64::from(self.config.block_size), self.next_batch);
        let distance = u64::from(self.config.async_distance);
        let goes_ahead = self.config.async_scheduling && self.config.pipelining != Pipelining::Request;
        let (mut slots, ready) = (self.slots.records_mut(), &mut self.ready);
        let (mut rows, mut context, mut seen) = (0, 0, 0);
        while rows < most && seen < left {
            let Some(entry) = ready.pop_front() else { break };
            seen += 1;
            let s = slots.get(entry.slot);
            if s.ticket != entry.ticket {
                continue;
            }
            let start = s.scheduled;
            let too_early = s.live > 0 && next_batch - s.last_batch < distance;
            let special = s.drafts > 0 || s.shared_tail || start < s.reached;
            if special || too_early || u64::from(start) >= s.table.len() as u64 * block_size {
                ready.put_back(entry);
                seen -= 1;
                break;
            }
            s.ticket = 0;
            s.scheduled = start + 1;
            s.live += 1;
            s.live_rows += 1;
            s.rows += 1;
            s.last_batch = next_batch;
            build.batch.rows.push(Row::plain_decode(RequestId(s.id), start, entry.slot, s.epoch));
            rows += 1;
            context += u64::from(start);
            if goes_ahead && s.demand(true) == Demand::Decode {
                s.ticket = ready.push_back(entry.slot);
            }
        }
        self.ready.give_up_many(rows);
        build.tokens_left -= rows;
        build.rows_left -= rows;
        build.batch.samples += rows;
        let terms = &mut build.batch.terms;
        (terms.tokens, terms.decodes) = (terms.tokens + u64::from(rows), terms.decodes + u64::from(rows));
        terms.decode_context += context;
        (rows, seen)
    }

    /// Whether the token that the decode continues is still to come, and was asked for too short a while ago.
    pub(super) fn is_too_early(&self, slot: u32) -> bool {
        let s = &self.slots[slot];
        s.live > 0 && self.next_batch - s.last_batch < u64::from(self.config.async_distance)
    }

    /// Whether one more decode keeps the batch within its target. A batch may always consist of a single one.
    fn fits_target(&self, terms: CostTerms) -> bool {
        match self.build.fill.most {
            Some(most) if !self.build.is_empty() => self.cost_with(terms) <= most,
            _ => true,
        }
    }

    /// The same, whatever latency caps say.
    fn fits_hard_target(&self, terms: CostTerms) -> bool {
        self.build.fill.hard.is_none_or(|most| self.cost_with(terms) <= most)
    }

    fn add_decode(&mut self, slot: u32) -> bool {
        let s = &self.slots[slot];
        let room = s.table.len() as u64 * u64::from(self.config.block_size);
        let ahead = if self.config.lookahead_tokens == 0 { 0 } else { self.lookahead(slot) };
        if u64::from(s.scheduled) + u64::from(ahead) >= room {
            let missing = self.config.blocks(s.scheduled + 1 + ahead) - s.table.len() as u32;
            if !self.get_blocks(slot, missing) {
                return false;
            }
        }
        // Last, as a copy is made only with a row that reads it.
        if self.slots[slot].shared_tail && !self.own_tail(slot) {
            return false;
        }
        let drafts = if self.slots[slot].drafts == 0 { 0 } else { self.place_drafts(slot) };
        self.push_row(slot, 1 + drafts, drafts);
        true
    }

    /// Positions behind the decode that the drafter writes to.
    pub(super) fn lookahead(&self, slot: u32) -> u32 {
        self.lookahead_behind(slot, self.slots[slot].scheduled)
    }

    /// The same for a decode at another position.
    pub(super) fn lookahead_behind(&self, slot: u32, at: u32) -> u32 {
        let s = &self.slots[slot];
        let longest = self.config.longest(s.prompt_len, s.max_out);
        self.config.lookahead_tokens.min(longest.saturating_sub(at + 1))
    }

    /// How many drafts ride along: as far as budget, lengths, target and blocks allow. Nobody is preempted for them.
    fn place_drafts(&mut self, slot: u32) -> u32 {
        let s = &self.slots[slot];
        let start = s.scheduled;
        // Drafts follow a token that is known, and a state cannot be taken back behind a draft that was wrong.
        if s.live > 0 || self.config.kv_groups.has_state() {
            return 0;
        }
        let mut drafts = s.drafts.min(self.build.tokens_left - 1 - self.build.slots).min(s.max_out - s.outputs - 1);
        let held = s.table.len() as u32;
        let spare = if s.reserved > 0 { s.reserved } else { self.unreserved() };
        let reach =
            if self.is_grouped() { self.config.kv_groups.reach(held, spare, self.config.block_size) } else { held.saturating_add(spare) };
        let most = u64::from(reach) * u64::from(self.config.block_size);
        let ahead = u64::from(self.lookahead(slot));
        drafts = drafts.min(u32::try_from(most.saturating_sub(u64::from(start) + 1 + ahead)).unwrap_or(u32::MAX));
        // A batch may go beyond its target for a single decode, but not for drafts.
        if let Some(most) = self.build.fill.most {
            let fits = |drafts: u32| drafts == 0 || self.cost_with(CostTerms::decode(start, 1 + drafts)) <= most;
            // Mostly all of them do; else the most that do lie in `low..high`.
            let (mut low, mut high) = if fits(drafts) { (drafts, drafts) } else { (0, drafts) };
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if fits(middle) { low = middle } else { high = middle }
            }
            drafts = low;
        }
        let longest = self.config.longest(self.slots[slot].prompt_len, self.slots[slot].max_out);
        let end = start.saturating_add(1).saturating_add(drafts).saturating_add(self.lookahead(slot)).min(longest);
        let missing = self.config.blocks(end).saturating_sub(held);
        self.take_blocks(slot, missing);
        drafts
    }

    fn share(&self) -> Share {
        let depth = self.depth;
        match self.config.balance {
            _ if depth == 1 => Share::All,
            Balance::Off => Share::All,
            // One without an output does not count: it may be preempted by this very batch, and decodes no more then.
            Balance::Count => Share::Rows(self.with_output.div_ceil(depth).max(1)),
            Balance::Cost => {
                let total = match &self.config.cost {
                    Some(cost) => {
                        let n = u64::from(self.decoding);
                        let terms = CostTerms { tokens: n, decodes: n, decode_context: self.decoding_tokens, ..CostTerms::default() };
                        cost.items(&terms).0
                    }
                    None => u128::from(self.decoding_tokens),
                };
                Share::Sum(total / u128::from(depth))
            }
        }
    }

    fn decode_weight(&self, context: u32) -> u128 {
        match &self.config.cost {
            Some(cost) => cost.items(&CostTerms::decode(context, 1)).0,
            None => u128::from(context),
        }
    }
}
