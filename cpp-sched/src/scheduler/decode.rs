//! Decodes go into the batch: the ready list, longest waiting first.

use super::Scheduler;
use crate::config::Balance;
use crate::cost::CostTerms;
use crate::kv::NIL;

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
        let mut slot = self.ready.head;
        while slot != NIL && !self.build.is_full() {
            match share {
                Share::Rows(most) if rows >= most => break,
                Share::Sum(most) if (sum >= most && rows > 0) || skipped > MISFITS => break,
                _ => {}
            }
            let start = self.slots[slot].scheduled;
            if let Share::Sum(most) = share {
                // Taken if the sum comes nearer to its share by it.
                if rows > 0 && self.decode_weight(start) > 2 * (most - sum) {
                    skipped += 1;
                    slot = self.slots[slot].link.next;
                    continue;
                }
            }
            if !self.fits_target(CostTerms::decode(start, 1)) {
                break;
            }
            let placed = self.add_decode(slot);
            // A victim may have stood next in the list, so the link is read only now.
            let next = self.slots[slot].link.next;
            if placed {
                rows += 1;
                if let Share::Sum(_) = share {
                    sum += self.decode_weight(start);
                }
                self.ready.remove(&mut self.slots, slot);
                self.slots[slot].in_ready = false;
                self.after_rows(slot);
            }
            slot = next;
        }
    }

    /// Whether one more decode keeps the batch within its target. A batch may always consist of a single one.
    fn fits_target(&self, terms: CostTerms) -> bool {
        match self.build.fill.most {
            Some(most) if self.build.fill.limits_decodes && !self.build.is_empty() => self.cost_with(terms) <= most,
            _ => true,
        }
    }

    fn add_decode(&mut self, slot: u32) -> bool {
        let s = &self.slots[slot];
        let start = s.scheduled;
        let room = s.table.len() as u32 * self.config.block_size;
        // The last index below `room` is room - 1: a table may reach to 2^32 exactly, hence no `start + 1`.
        if start >= room && !self.get_blocks(slot, 1) {
            return false;
        }
        let drafts = if self.slots[slot].drafts == 0 { 0 } else { self.place_drafts(slot) };
        self.push_row(slot, 1 + drafts, drafts);
        true
    }

    /// How many drafts ride along: as far as budget, lengths, target and blocks allow. Nobody is preempted for them.
    fn place_drafts(&mut self, slot: u32) -> u32 {
        let s = &self.slots[slot];
        let start = s.scheduled;
        let mut drafts = s.drafts.min(self.build.tokens_left - 1).min(s.max_out - s.outputs - 1);
        let held = s.table.len() as u32;
        let spare = if s.reserved > 0 { s.reserved } else { self.unreserved() };
        let most = (u64::from(held) + u64::from(spare)) * u64::from(self.config.block_size);
        drafts = drafts.min(u32::try_from(most - u64::from(start) - 1).unwrap_or(u32::MAX));
        while drafts > 0 && !self.fits_target(CostTerms::decode(start, 1 + drafts)) {
            drafts -= 1;
        }
        let missing = self.config.blocks(start + 1 + drafts).saturating_sub(held);
        self.take_blocks(slot, missing);
        drafts
    }

    fn share(&self) -> Share {
        let depth = self.depth;
        match self.config.balance {
            _ if depth == 1 => Share::All,
            Balance::Off => Share::All,
            Balance::Count => Share::Rows(self.decoding.div_ceil(depth)),
            Balance::Cost => {
                let total = match &self.config.cost {
                    Some(cost) => {
                        let mut terms = CostTerms::default();
                        terms.tokens = u64::from(self.decoding);
                        terms.decodes = u64::from(self.decoding);
                        terms.decode_context = self.decoding_tokens;
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
