//! A waiting request gets its slot and its blocks.

use super::Scheduler;
use super::chunk::Stretch;
use crate::config::Admission;
use crate::ids::BlockId;
use crate::outcome::WaitReason;
use crate::state::{State, Trait};

/// What an admission would do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Blocks of positions found in the prefix cache.
    pub(super) hits: u32,
    /// Where its first chunk starts.
    pub(super) start: u32,
    /// Blocks to set aside beyond the hits.
    reserve: u32,
    /// Blocks that can be taken now.
    pub(super) free: u32,
}

/// A head that could not be admitted for want of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// Which request, and how much it knew: a slot is used again, and what is known grows.
    pub(super) seq: u64,
    pub(super) known: u32,
    pub(super) version: u64,
    pub(super) needed: u32,
}

impl Scheduler {
    /// Whether a waiting request can be admitted, and how. O(log(its blocks) + its hits).
    pub(super) fn plan_admission(&self, slot: u32) -> Result<Plan, WaitReason> {
        self.plan(slot).map_err(|(reason, _)| reason)
    }

    /// The same for the head of a queue, which is asked for again and again: a refusal for want of blocks stands until there are more, or
    /// the prefix cache has changed. O(1) while it stands.
    pub(super) fn plan_head(&mut self, slot: u32) -> Result<Plan, WaitReason> {
        let version = self.pool.index().version();
        let (seq, known) = (self.slots.cold(slot).seq, self.slots[slot].known());
        // What one that holds its blocks needs is looked at each time: there may be nothing to copy when others have let go of its last block.
        let stands = |r: Refused| (r.seq, r.known, r.version) == (seq, known, version) && self.unreserved() < r.needed;
        if self.slots[slot].table.is_empty() && self.refused.is_some_and(stands) {
            return Err(WaitReason::NoBlocks);
        }
        self.refused = None;
        self.plan(slot).map_err(|(reason, needed)| {
            if needed > 0 {
                self.refused = Some(Refused { seq, known, version, needed });
            }
            reason
        })
    }

    /// The blocks that the head that was refused last would have to find.
    pub(super) fn refusal(&self) -> Option<u32> {
        self.refused.map(|refused| refused.needed)
    }

    /// Refusals come with the blocks that would have to be there; 0 = it is something else.
    fn plan(&self, slot: u32) -> Result<Plan, (WaitReason, u32)> {
        if self.admitted >= self.config.max_requests {
            return Err((WaitReason::NoSlot, 0));
        }
        if self.config.max_partial_prefills.is_some_and(|most| self.partial >= most) {
            return Err((WaitReason::PartialPrefillLimit, 0));
        }
        let s = &self.slots[slot];
        let free = self.unreserved();
        let wanted = match self.config.admission {
            Admission::ReservePrompt => self.config.blocks(s.known()),
            Admission::NoEvict => self.longest_blocks(slot),
            Admission::Lazy => 0,
        };
        if !s.table.is_empty() {
            // It has its blocks, and what it has set aside.
            let copies = u32::from(self.has_shared_tail(slot));
            let first = self.first_decode_blocks(slot, s.scheduled);
            let reserve = if self.is_grouped() {
                self.due(slot, wanted.max(first)).saturating_sub(s.reserved)
            } else {
                (wanted.max(first) + copies).saturating_sub(s.table.len() as u32 + s.reserved)
            };
            let plan = Plan { hits: 0, start: s.scheduled, reserve, free };
            return if reserve > free { Err((WaitReason::NoBlocks, reserve)) } else { Ok(plan) };
        }
        if self.lacking.is_some_and(|(key, _)| key < self.victim_key(slot)) {
            return Err((WaitReason::NoBlocks, 0));
        }
        let free = free.saturating_sub(self.owed);
        let hits = self.count_hits(slot);
        let wanted = wanted.max(self.first_decode_blocks(slot, hits * self.config.block_size));
        let reserve = |hits: u32| if self.is_grouped() { self.due_behind(slot, hits, wanted) } else { wanted.saturating_sub(hits) };
        if reserve(hits) > free {
            return Err((WaitReason::NoBlocks, reserve(hits)));
        }
        // Hits that nobody holds leave fewer blocks for others.
        let (hits, taken) = self.available_hits(slot, hits);
        let (start, reserve) = (hits * self.config.block_size, reserve(hits));
        if reserve > free.saturating_sub(taken) || taken > free {
            return Err((WaitReason::NoBlocks, reserve + taken));
        }
        // Of what is set aside the encoder's output is taken at once, and no chunk's.
        let encoder = if self.is_grouped() { self.cross_due(slot) } else { 0 };
        Ok(Plan { hits, start, reserve, free: (free - taken).saturating_sub(encoder) })
    }

    /// Blocks for a first row that is a decode, with a drafter behind it; 0: it is none.
    fn first_decode_blocks(&self, slot: u32, start: u32) -> u32 {
        let s = &self.slots[slot];
        let decode = self.config.lookahead_tokens > 0 && start >= s.prompt_len && start + 1 == s.known();
        if decode { self.config.blocks(start + 1 + self.lookahead_behind(slot, start)) } else { 0 }
    }

    /// The length of the first chunk of a request that would be admitted so, and the blocks that it needs. 0: it does not fit into this batch.
    pub(super) fn first_chunk(&mut self, slot: u32, plan: &Plan) -> Result<u32, WaitReason> {
        let s = &self.slots[slot];
        let stretch = self.stretch(plan.start, s.known(), s.prompt_len, 0);
        let chunk = self.chunk_len(&stretch);
        let closed = self.build.encoder_closed;
        let tokens = self.fit_spans(slot, &stretch, chunk)?;
        // Nobody has to leave it room in the encoder cache before it gets its row.
        self.build.encoder_closed = closed;
        let s = &self.slots[slot];
        if tokens == 0 || self.config.admission != Admission::Lazy || !s.table.is_empty() {
            return Ok(tokens);
        }
        let cut = self.cut_to_blocks(&stretch, tokens, plan.hits, plan.free);
        match self.cut_to_spans(slot, plan.start, cut) {
            0 => Err(WaitReason::NoBlocks),
            tokens if self.build.is_empty() || self.fits_as_decode(&stretch, tokens) => Ok(tokens),
            _ => Ok(0),
        }
    }

    /// Tokens from `start` to `end` of a request that has `taken` tokens in this batch already.
    pub(super) fn stretch(&self, start: u32, end: u32, prompt_len: u32, taken: u32) -> Stretch {
        let most = self.config.max_prompt_tokens_per_batch.map_or(u32::MAX, |most| most.saturating_sub(taken));
        Stretch { start, end, prompt_len, most }
    }

    /// Cuts a chunk to the blocks that there are; 0: not even the smallest one fits.
    pub(super) fn cut_to_blocks(&self, stretch: &Stretch, tokens: u32, held: u32, free: u32) -> u32 {
        let reach =
            if self.is_grouped() { self.config.kv_groups.reach(held, free, self.config.block_size) } else { held.saturating_add(free) };
        let room = u64::from(reach) * u64::from(self.config.block_size) - u64::from(stretch.start);
        if u64::from(tokens) <= room {
            return tokens;
        }
        let room = room as u32;
        let fill = &self.build.fill;
        let aligned = super::chunk::align_down(stretch, room, fill.align);
        if aligned >= self.smallest(stretch).min(fill.min) { aligned } else { 0 }
    }

    /// Admits the request. Its first chunk is placed by the caller.
    pub(super) fn admit(&mut self, slot: u32, plan: &Plan) {
        let tenant = self.slots.cold(slot).tenant;
        self.waiting.remove(slot, tenant);
        self.resident.remove(slot, tenant);
        // Who holds its blocks already looks nothing up.
        let fresh = self.slots[slot].table.is_empty();
        self.make_table(slot, plan.hits);
        for index in 0..plan.hits as usize {
            let block = self.slots[slot].table[index];
            self.pool.hold(block);
        }
        self.reserved += plan.reserve;
        self.repay(slot);
        self.admitted += 1;
        self.stats.admissions += 1;
        let first = !self.slots.cold(slot).admitted;
        self.slots.cold_mut(slot).admitted = true;
        let s = &mut self.slots[slot];
        if s.has(Trait::Cacheable) && fresh && first {
            self.stats.cache_queried_tokens += u64::from(s.known());
            self.stats.cache_hit_tokens += u64::from(plan.start);
        } else if s.has(Trait::Cacheable) && fresh {
            self.stats.cache_hit_tokens_resumed += u64::from(plan.start);
        }
        s.state = State::Running;
        s.reserved += plan.reserve;
        if plan.hits > 0 {
            (s.scheduled, s.committed, s.published) = (plan.start, plan.start, plan.hits);
        }
        if self.is_grouped() {
            self.begin_groups(slot, plan.hits, fresh);
        }
        // Sized here and not at submit: who waits costs little, and who runs allocates no more for a long time.
        let s = &mut self.slots[slot];
        let outputs = s.max_out.min(OUTPUTS_AT_ONCE) as usize;
        if s.keeps_tokens {
            s.tokens.reserve(outputs.saturating_sub(s.outputs as usize));
        }
        self.queue_victim(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
    }

    /// Starts an empty block table with the first `hits` blocks of the prefix cache, not yet held.
    pub(super) fn make_table(&mut self, slot: u32, hits: u32) {
        let s = &self.slots[slot];
        if !s.table.is_empty() {
            return;
        }
        let blocks = self.config.blocks(s.prompt_len + s.max_out.min(OUTPUTS_AT_ONCE)).max(self.config.blocks(s.known())) as usize;
        let mut table = core::mem::take(&mut self.slots[slot].table);
        table.reserve(blocks);
        table.extend(self.hit_blocks(slot, hits));
        self.slots[slot].table = table;
        let s = &self.slots[slot];
        if s.has(Trait::Cacheable) && s.keeps_tokens && (self.is_grouped() || s.has(Trait::Spans)) {
            let digests = &mut self.slots.cold_mut(slot).digests;
            digests.reserve(blocks.saturating_sub(digests.len()));
        }
    }

    /// The blocks of the first `hits` blocks of what the request knows.
    pub(super) fn hit_blocks(&self, slot: u32, hits: u32) -> impl Iterator<Item = BlockId> + '_ {
        self.slots.cold(slot).digests[..hits as usize].iter().map_while(|&digest| self.pool.find(digest))
    }

    /// How many of the first `hits` blocks are found one after the other (all, unless a snapshot was made up), and how many of them nobody uses.
    pub(super) fn available_hits(&self, slot: u32, hits: u32) -> (u32, u32) {
        let blocks = self.hit_blocks(slot, hits).map(|block| u32::from(self.pool.is_available(block)));
        let (found, taken) = blocks.fold((0, 0), |(hits, taken), available| (hits + 1, taken + available));
        if !self.is_grouped() {
            return (found, taken);
        }
        match self.cost_of_hits(slot, hits) {
            Some(more) if found == hits => (found, taken + more),
            _ => (0, 0),
        }
    }

    /// Whole blocks of what the request knows that the prefix cache has; at least one token is left to compute. The blocks of a chain are
    /// evicted last one first, so the ones that are there are a prefix, and a binary search finds its end.
    pub(super) fn count_hits(&self, slot: u32) -> u32 {
        let s = &self.slots[slot];
        if !s.has(Trait::Cacheable) || self.slots.cold(slot).skip_cache_read {
            return 0;
        }
        let digests = &self.slots.cold(slot).digests;
        let most = (((s.known() - 1) / self.config.block_size) as usize).min(digests.len());
        let hits = digests[..most].partition_point(|&digest| self.pool.find(digest).is_some()) as u32;
        if self.is_grouped() { self.common_hits(digests, hits) } else { hits }
    }
}

/// Outputs for which an admitted request's vectors have room from the start; longer ones grow them by doubling.
const OUTPUTS_AT_ONCE: u32 = 32_768;
