//! One request.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut, Range};

use crate::encoder::Span;
use crate::gate::GateSet;
use crate::ids::{BlockId, TokenId};
use crate::kv::{Digest, GroupTable};
use crate::policy::Class;
use crate::queue::Ticket;

/// Where a request is in its life; see ARCHITECTURE.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum State {
    /// The slot holds no request.
    Vacant,
    /// Not admitted, or not any more.
    Waiting,
    /// Admitted: scheduled, and neither finished nor preempted since.
    Running,
    /// A session between two inputs.
    Paused,
    /// Role prefill: computed, and its KV is being read.
    Sending,
    /// Aborted, with rows in flight or under a transfer.
    Aborting,
    /// Finished, with rows in flight. Its id may belong to another request by now.
    Gone,
}

/// The epoch after this one. 0 is kept back for rows that are void.
pub(crate) const fn next_epoch(epoch: u32) -> u32 {
    if epoch == u32::MAX { 1 } else { epoch + 1 }
}

/// What a running request wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Nothing before a result is back.
    Nothing,
    /// Tokens without KV: prompt, or outputs that are computed again.
    Prompt,
    /// One token at or after the end of the prompt.
    Decode,
}

/// What is so of a request or not, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Trait {
    /// Never two tokens of it in flight at once.
    Constrained = 1,
    /// It yields no token: its end is the end of its prompt.
    Pooling = 1 << 1,
    /// At its end it waits for more input.
    Session = 1 << 2,
    /// Its prompt has spans.
    Spans = 1 << 3,
    /// Spans of it are under way: `Rare::held` is not empty.
    Encoding = 1 << 4,
    /// The times of its tokens are of interest.
    Paced = 1 << 5,
    /// A token may end it.
    Stops = 1 << 6,
    /// It counts as decoding for the balance.
    Decoding = 1 << 7,
    /// It counts as a partial prefill.
    Partial = 1 << 8,
    /// It has tokens (or digests) to find its prefix by.
    Cacheable = 1 << 9,
    /// Results of an older epoch are to come: `Rare::stale` is not 0.
    Late = 1 << 10,
    /// A row with drafts is in flight, of this epoch (there is never a second one): how far it is is not known before that is back.
    DraftsOut = 1 << 11,
}

/// What the hot path touches. Its size counts, as a step reads the records of all that run: two lines of the cache. In the first one is what is
/// read or written most.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    pub(crate) id: u64,
    /// The newest batch that holds a row of it, or a later one.
    pub(crate) last_batch: u64,
    /// Counts how often its scheduled work was given up: results of an older epoch are late.
    pub(crate) epoch: u32,
    /// Its place in the queue of decodes; 0 = none.
    pub(crate) ticket: Ticket,
    pub(crate) prompt_len: u32,
    /// Outputs at most, cut to the model length.
    pub(crate) max_out: u32,
    /// Outputs delivered.
    pub(crate) outputs: u32,
    /// `num_computed_tokens`, counting what is in flight.
    pub(crate) scheduled: u32,
    /// Positions whose KV is final.
    pub(crate) committed: u32,
    /// Samples in flight, of this epoch.
    pub(crate) live: u32,
    /// Rows in flight, of this epoch, those of the batch under construction included.
    pub(crate) live_rows: u32,
    /// Rows in flight, of all epochs.
    pub(crate) rows: u32,
    pub(crate) state: State,
    /// What it waits for outside.
    pub(crate) gates: GateSet,
    traits: u16,
    /// A block from `committed` on may be another's too.
    pub(crate) shared_tail: bool,
    /// Role decode: its KV is awaited; with `pinned`, into its block table.
    pub(crate) waits_kv: bool,
    /// Blocks of it are pinned: all of the table (role decode), or those of the positions before `Rare::ready_to` (role prefill).
    pub(crate) pinned: bool,
    pub(crate) keeps_tokens: bool,
    pub(crate) table: Vec<BlockId>,
    /// Prompt and outputs, where the kernel keeps them.
    pub(crate) tokens: Vec<TokenId>,
    /// Drafts proposed for its next decode.
    pub(crate) drafts: u32,
    /// Blocks set aside for it and not taken yet.
    pub(crate) reserved: u32,
    /// Whole blocks of its table that are published, or never will be.
    pub(crate) published: u32,
    /// Positions before this one were scheduled once, and given up.
    pub(crate) reached: u32,
}

impl Slot {
    /// A request that waits, and has nothing yet.
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            last_batch: 0,
            table: Vec::new(),
            tokens: Vec::new(),
            epoch: 1,
            prompt_len: 0,
            max_out: 0,
            outputs: 0,
            scheduled: 0,
            committed: 0,
            live: 0,
            live_rows: 0,
            rows: 0,
            drafts: 0,
            reserved: 0,
            published: 0,
            reached: 0,
            ticket: 0,
            state: State::Waiting,
            gates: GateSet::NONE,
            traits: 0,
            shared_tail: false,
            waits_kv: false,
            pinned: false,
            keeps_tokens: false,
        }
    }

    /// Nobody's.
    pub(crate) fn vacant() -> Self {
        Self { state: State::Vacant, ..Self::new(0) }
    }

    pub(crate) const fn has(&self, is: Trait) -> bool {
        self.traits & is as u16 != 0
    }

    /// It counts as decoding, and no token but the last one it may have needs a look: none ends it, and nobody asks when they come.
    pub(crate) const fn is_plainly_decoding(&self) -> bool {
        self.traits & (Trait::Decoding as u16 | Trait::Stops as u16 | Trait::Paced as u16) == Trait::Decoding as u16
    }

    pub(crate) const fn set(&mut self, is: Trait, holds: bool) {
        self.traits = if holds { self.traits | is as u16 } else { self.traits & !(is as u16) };
    }

    /// Not admitted, and nothing outside stands before its admission.
    pub(crate) fn is_runnable(&self) -> bool {
        self.state == State::Waiting && self.gates.is_empty() && !self.waits_kv && !self.has(Trait::Late)
    }

    /// Tokens that are known: prompt and outputs.
    pub(crate) fn known(&self) -> u32 {
        self.prompt_len + self.outputs
    }

    /// Positions that could be scheduled: with asynchronous scheduling also those whose token is in flight, unless drafts are to follow it.
    fn limit(&self, asynchronous: bool) -> u32 {
        let known = self.known();
        let drafting = self.drafts > 0 || self.has(Trait::DraftsOut);
        let ahead = asynchronous && !self.has(Trait::Constrained) && !drafting && self.outputs + self.live < self.max_out;
        if ahead { known + self.live } else { known }
    }

    pub(crate) fn demand(&self, asynchronous: bool) -> Demand {
        let limit = self.limit(asynchronous);
        if limit <= self.scheduled {
            Demand::Nothing
        } else if self.scheduled < self.prompt_len || limit - self.scheduled > 1 {
            Demand::Prompt
        } else {
            Demand::Decode
        }
    }
}

/// What only admissions, publications and rare calls touch: what every request has. The rest is in [`Rare`], and is read as if it stood here.
#[derive(Clone, Debug)]
pub(crate) struct Cold {
    pub(crate) seq: u64,
    /// When it arrived; a session's input: when it was extended.
    pub(crate) arrival_ns: u64,
    /// The root of its chain of digests, then the digest of each whole block of what is known, as far as it was needed. Empty: it takes no part in the
    /// prefix cache.
    pub(crate) digests: Chain,
    ends: Option<Box<Ends>>,
    rare: Option<Box<Rare>>,
    /// Counts how often it has let go of its table.
    pub(crate) table_life: u32,
    /// Its part in the gauges.
    pub(crate) counted: u16,
    /// It was admitted once.
    pub(crate) admitted: bool,
}

/// The tokens that end a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) stops: Box<[TokenId]>,
    /// Outputs before which no stop token counts.
    pub(crate) min_tokens: u32,
}

/// What few requests have. Who has none of it has no such record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rare {
    pub(crate) priority: i64,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) ttft_slo_ns: Option<u64>,
    pub(crate) tbt_slo_ns: Option<u64>,
    /// When its next token is due, if it is paced.
    pub(crate) token_due_ns: u64,
    /// When it got its last chunk, if waits are bounded; before and else: when it was submitted, if that is not when it arrived.
    pub(crate) last_chunk_ns: Option<u64>,
    pub(crate) weight_millionths: u64,
    /// The tenant that it was submitted with.
    pub(crate) owner: Option<u64>,
    /// Policy `fair`: who is charged.
    pub(crate) tenant: u32,
    /// Cost of its prompt that is left, as it was last counted for the question who can be on time.
    pub(crate) due_work_ns: u64,
    /// Since when its policy puts it off.
    pub(crate) put_off_since_ns: Option<u64>,
    /// Whether it is relegated.
    pub(crate) standing: Class,
    /// It takes nothing from the prefix cache.
    pub(crate) skip_cache_read: bool,
    pub(crate) adapter: Option<u32>,
    /// What stands for images and the like, in order.
    pub(crate) spans: Vec<Span>,
    /// Of a request with a salt and without a chain of digests: the root it would have, to name the spans of later inputs by, its own or a fork's.
    pub(crate) salted_root: Digest,
    /// Those of them that are scheduled and not committed, whose items the request needs.
    pub(crate) held: Range<u32>,
    /// The tables of the KV groups behind the first one.
    pub(crate) groups: Vec<GroupTable>,
    /// Positions of an encoder's output.
    pub(crate) cross_tokens: u32,
    /// Role prefill: positions announced.
    pub(crate) ready_to: u32,
    /// Role prefill: consumers that have read everything.
    pub(crate) acknowledged: u64,
    /// Blocks that were set aside for it, and lent out while its KV was on the way.
    pub(crate) owed: u32,
    /// The epoch of late results.
    pub(crate) stale_epoch: u32,
    /// Samples in flight of that epoch that will be delivered.
    pub(crate) stale: u32,
    /// The batch that copies a shared block for it, and which block of its table that is: a copy that is lost is computed instead.
    pub(crate) copied: Option<(u64, u32)>,
}

impl Rare {
    /// That of a request that has none.
    pub(crate) const NONE: Self = Self {
        priority: 0,
        deadline_ns: None,
        ttft_slo_ns: None,
        tbt_slo_ns: None,
        token_due_ns: 0,
        last_chunk_ns: None,
        weight_millionths: 1_000_000,
        owner: None,
        tenant: 0,
        due_work_ns: 0,
        put_off_since_ns: None,
        standing: Class::Normal,
        skip_cache_read: false,
        adapter: None,
        spans: Vec::new(),
        salted_root: 0,
        held: 0..0,
        groups: Vec::new(),
        cross_tokens: 0,
        ready_to: 0,
        acknowledged: 0,
        owed: 0,
        stale_epoch: 0,
        stale: 0,
        copied: None,
    };
}

static NONE: Rare = Rare::NONE;

impl Cold {
    /// What names its spans apart from those of other salts; 0: it has no salt, or has all its spans.
    pub(crate) fn name_root(&self) -> Digest {
        if self.digests.has_root() { self.digests.root() } else { self.salted_root }
    }

    pub(crate) fn new(seq: u64, arrival_ns: u64, stops: Vec<TokenId>, min_tokens: u32, rare: Rare) -> Self {
        let ends = Ends { stops: stops.into(), min_tokens };
        Self {
            seq,
            arrival_ns,
            digests: Chain::default(),
            ends: (ends != Ends::default()).then(|| Box::new(ends)),
            rare: (rare != Rare::NONE).then(|| Box::new(rare)),
            table_life: 0,
            counted: 0,
            admitted: false,
        }
    }

    pub(crate) fn stops(&self) -> &[TokenId] {
        self.ends.as_ref().map_or(&[], |ends| &ends.stops)
    }

    pub(crate) fn min_tokens(&self) -> u32 {
        self.ends.as_ref().map_or(0, |ends| ends.min_tokens)
    }

    /// No more than so many outputs come before a stop token counts.
    pub(crate) fn limit_min_tokens(&mut self, most: u32) {
        if let Some(ends) = &mut self.ends {
            ends.min_tokens = ends.min_tokens.min(most);
        }
    }

    /// When it got its last chunk, if waits are bounded; before: when it was submitted.
    pub(crate) fn last_chunk_ns(&self) -> u64 {
        self.last_chunk_ns.unwrap_or(self.arrival_ns)
    }

    /// The rare part, if it has one: for setting what it has none of to nothing.
    pub(crate) fn rare_mut(&mut self) -> Option<&mut Rare> {
        self.rare.as_deref_mut()
    }

    /// Lets go of everything: nobody is here any more.
    pub(crate) fn clear(&mut self) {
        (self.digests, self.ends, self.rare) = (Chain::default(), None, None);
    }
}

impl Deref for Cold {
    type Target = Rare;

    fn deref(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&NONE)
    }
}

/// Who writes to the rare part has one from then on.
impl DerefMut for Cold {
    fn deref_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_with(|| Box::new(Rare::NONE))
    }
}

/// A chain of digests: its root, then one for each whole block. It is read as the slice of the latter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain(Vec<Digest>);

impl Chain {
    /// A chain, its digests in as much memory as they take.
    pub(crate) fn new(root: Digest, digests: impl ExactSizeIterator<Item = Digest>) -> Self {
        let mut chain = Vec::with_capacity(digests.len() + 1);
        chain.push(root);
        chain.extend(digests);
        Self(chain)
    }

    /// The parent of the first block; 0 of who has no chain.
    pub(crate) fn root(&self) -> Digest {
        self.0.first().copied().unwrap_or(0)
    }

    pub(crate) fn has_root(&self) -> bool {
        !self.0.is_empty()
    }

    /// The digest of the last block, or the root.
    pub(crate) fn end(&self) -> Digest {
        self.0.last().copied().unwrap_or(0)
    }

    pub(crate) fn push(&mut self, digest: Digest) {
        self.0.push(digest);
    }

    /// Keeps so many blocks.
    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.0.truncate(blocks + 1);
    }

    /// Room for so many more blocks.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.0.reserve_exact(more);
    }
}

impl Deref for Chain {
    type Target = [Digest];

    fn deref(&self) -> &[Digest] {
        self.0.get(1..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that waits has one of each of the first two, and a step of a decode reads the first.
    #[test]
    fn records_are_as_small_as_they_were_made() {
        assert_eq!(size_of::<Slot>(), 128);
        assert!(size_of::<Cold>() <= 64, "{}", size_of::<Cold>());
        assert!(size_of::<Rare>() <= 320, "{}", size_of::<Rare>());
        assert!(size_of::<crate::policy::FixedKey>() <= 24, "{}", size_of::<crate::policy::FixedKey>());
    }

    #[test]
    fn traits_are_told_apart() {
        let all = [Trait::Constrained, Trait::Pooling, Trait::Session, Trait::Spans, Trait::Encoding];
        let all = all.into_iter().chain([Trait::Paced, Trait::Stops, Trait::Decoding, Trait::Partial, Trait::Cacheable]);
        let mut slot = Slot::new(1);
        for is in all.clone() {
            slot.set(is, true);
            assert_eq!(all.clone().filter(|&other| slot.has(other)).collect::<Vec<_>>(), [is]);
            slot.set(is, false);
        }
    }

    #[test]
    fn who_has_nothing_rare_has_no_record_of_it() {
        let mut cold = Cold::new(7, 5, Vec::new(), 0, Rare::NONE);
        assert!(cold.rare_mut().is_none() && cold.ends.is_none());
        assert_eq!((cold.weight_millionths, cold.last_chunk_ns(), cold.stops()), (1_000_000, 5, &[][..]));
        cold.ready_to = 3;
        assert!(cold.rare_mut().is_some_and(|rare| rare.ready_to == 3));
        cold.clear();
        assert_eq!(cold.ready_to, 0);
    }
}
