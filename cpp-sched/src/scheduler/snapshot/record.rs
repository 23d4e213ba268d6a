//! A request as a snapshot has it: in fields that stay as they are, however the scheduler keeps them. What they mean is said there
//! ([`Slot`], [`Cold`], [`Rare`]).

use alloc::vec::Vec;
use core::ops::Range;

use crate::encoder::Span;
use crate::gate::GateSet;
use crate::ids::{BlockId, TokenId};
use crate::kv::{Digest, GroupTable};
use crate::planner::Segment;
use crate::policy::Class;
use crate::queue::Ticket;
use crate::state::{Chain, Cold, Rare, Slot, State, Trait};

/// The hot part.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedSlot {
    pub(super) id: u64,
    pub(super) state: State,
    pub(super) gates: GateSet,
    pub(super) constrained: bool,
    pub(super) pooling: bool,
    pub(super) session: bool,
    pub(super) shared_tail: bool,
    pub(super) waits_kv: bool,
    pub(super) pinned: bool,
    pub(super) has_spans: bool,
    pub(super) encoding: bool,
    pub(super) paced: bool,
    pub(super) decoding: bool,
    pub(super) partial: bool,
    pub(super) cacheable: bool,
    pub(super) keeps_tokens: bool,
    pub(super) epoch: u32,
    pub(super) prompt_len: u32,
    pub(super) max_out: u32,
    pub(super) outputs: u32,
    pub(super) scheduled: u32,
    pub(super) committed: u32,
    pub(super) live: u32,
    pub(super) live_drafts: u32,
    pub(super) live_rows: u32,
    pub(super) rows: u32,
    pub(super) stale: u32,
    pub(super) stale_epoch: u32,
    pub(super) drafts: u32,
    pub(super) reserved: u32,
    pub(super) owed: u32,
    pub(super) published: u32,
    pub(super) copied: Option<(u64, u32)>,
    pub(super) reached: u32,
    pub(super) counted: u16,
    pub(super) ticket: Ticket,
    pub(super) has_stops: bool,
    pub(super) last_batch: u64,
    pub(super) batch_before: u64,
    pub(super) table: Vec<BlockId>,
    pub(super) table_life: u32,
    pub(super) tokens: Vec<TokenId>,
}

/// The cold part, with what few requests have.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct SavedCold {
    pub(super) seq: u64,
    pub(super) priority: i64,
    pub(super) deadline_ns: Option<u64>,
    pub(super) ttft_slo_ns: Option<u64>,
    pub(super) tenant: u32,
    pub(super) weight_millionths: u64,
    pub(super) stops: Vec<TokenId>,
    pub(super) min_tokens: u32,
    pub(super) adapter: Option<u32>,
    pub(super) skip_cache_read: bool,
    pub(super) acknowledged: u64,
    #[serde(with = "crate::wide::list")]
    pub(super) digests: Vec<Digest>,
    #[serde(with = "crate::wide")]
    pub(super) root: Digest,
    pub(super) ready_to: u32,
    pub(super) unscheduled: Segment,
    pub(super) tbt_slo_ns: Option<u64>,
    pub(super) spans: Vec<Span>,
    pub(super) held: Range<u32>,
    pub(super) token_due_ns: u64,
    pub(super) last_chunk_ns: u64,
    pub(super) admissions: u32,
    pub(super) total: u64,
    pub(super) groups: Vec<GroupTable>,
    pub(super) cross_tokens: u32,
    pub(super) arrival_ns: u64,
    pub(super) owner: Option<u64>,
    pub(super) standing: Class,
    pub(super) due_work_ns: u64,
    pub(super) put_off_since_ns: Option<u64>,
}

impl SavedSlot {
    pub(super) fn known(&self) -> u32 {
        self.prompt_len.saturating_add(self.outputs)
    }
}

/// A request without what follows from the rest: counts of its rows, its place in queues. `total`: what its whole prompt costs.
pub(super) fn save(hot: &Slot, cold: &Cold, unscheduled: Segment, total: u64) -> (SavedSlot, SavedCold) {
    let running = hot.state == State::Running;
    let of_others = |count: u32| if running { 0 } else { count };
    let saved = SavedSlot {
        id: hot.id,
        state: hot.state,
        gates: hot.gates,
        constrained: hot.has(Trait::Constrained),
        pooling: hot.has(Trait::Pooling),
        session: hot.has(Trait::Session),
        shared_tail: hot.shared_tail,
        waits_kv: hot.waits_kv,
        pinned: hot.pinned,
        has_spans: hot.has(Trait::Spans),
        encoding: hot.has(Trait::Encoding),
        paced: false,
        decoding: hot.has(Trait::Decoding),
        partial: hot.has(Trait::Partial),
        cacheable: hot.has(Trait::Cacheable),
        keeps_tokens: hot.keeps_tokens,
        epoch: hot.epoch,
        prompt_len: hot.prompt_len,
        max_out: hot.max_out,
        outputs: hot.outputs,
        scheduled: hot.scheduled,
        committed: hot.committed,
        live: of_others(hot.live),
        live_drafts: of_others(hot.has(Trait::DraftsOut).into()),
        live_rows: of_others(hot.live_rows),
        rows: 0,
        stale: cold.stale,
        stale_epoch: cold.stale_epoch,
        drafts: hot.drafts,
        reserved: hot.reserved,
        owed: cold.owed,
        published: hot.published,
        copied: cold.copied,
        reached: hot.reached,
        counted: 0,
        ticket: 0,
        has_stops: false,
        last_batch: hot.last_batch,
        batch_before: 0,
        table: hot.table.clone(),
        table_life: cold.table_life,
        tokens: hot.tokens.clone(),
    };
    let mut groups = cold.groups.clone();
    groups.iter_mut().for_each(GroupTable::tidy);
    let cold = SavedCold {
        seq: cold.seq,
        priority: cold.priority,
        deadline_ns: cold.deadline_ns,
        ttft_slo_ns: cold.ttft_slo_ns,
        tenant: cold.tenant,
        weight_millionths: cold.weight_millionths,
        stops: cold.stops().to_vec(),
        min_tokens: cold.min_tokens(),
        adapter: cold.adapter,
        skip_cache_read: cold.skip_cache_read,
        acknowledged: cold.acknowledged,
        digests: cold.digests.to_vec(),
        root: cold.name_root(),
        ready_to: cold.ready_to,
        unscheduled,
        tbt_slo_ns: cold.tbt_slo_ns,
        spans: cold.spans.clone(),
        held: cold.held.clone(),
        token_due_ns: cold.token_due_ns,
        last_chunk_ns: cold.last_chunk_ns(),
        admissions: cold.admitted.into(),
        total,
        groups,
        cross_tokens: cold.cross_tokens,
        arrival_ns: cold.arrival_ns,
        owner: cold.owner,
        standing: cold.standing,
        due_work_ns: cold.due_work_ns,
        put_off_since_ns: cold.put_off_since_ns,
    };
    (saved, cold)
}

/// The request of a record, and what it has left to prefill.
pub(super) fn load((saved, cold): (SavedSlot, SavedCold)) -> (Slot, Cold, Segment) {
    let chained = saved.cacheable || !cold.digests.is_empty();
    let mut hot = Slot::new(saved.id);
    for (is, holds) in [
        (Trait::Constrained, saved.constrained),
        (Trait::Pooling, saved.pooling),
        (Trait::Session, saved.session),
        (Trait::Spans, saved.has_spans),
        (Trait::Encoding, saved.encoding),
        (Trait::Paced, cold.tbt_slo_ns.is_some()),
        (Trait::Stops, !cold.stops.is_empty()),
        (Trait::Decoding, saved.decoding),
        (Trait::Partial, saved.partial),
        (Trait::Cacheable, saved.cacheable),
        (Trait::Late, saved.stale > 0),
        (Trait::DraftsOut, saved.live_drafts > 0),
    ] {
        hot.set(is, holds);
    }
    (hot.state, hot.gates, hot.shared_tail, hot.waits_kv, hot.pinned) =
        (saved.state, saved.gates, saved.shared_tail, saved.waits_kv, saved.pinned);
    hot.keeps_tokens = saved.keeps_tokens;
    (hot.epoch, hot.prompt_len, hot.max_out, hot.outputs) = (saved.epoch, saved.prompt_len, saved.max_out, saved.outputs);
    (hot.scheduled, hot.committed, hot.published, hot.reached) = (saved.scheduled, saved.committed, saved.published, saved.reached);
    (hot.live, hot.live_rows) = (saved.live, saved.live_rows);
    (hot.drafts, hot.reserved, hot.last_batch) = (saved.drafts, saved.reserved, saved.last_batch);
    (hot.table, hot.tokens) = (saved.table, saved.tokens);
    let rare = Rare {
        priority: cold.priority,
        deadline_ns: cold.deadline_ns,
        ttft_slo_ns: cold.ttft_slo_ns,
        tbt_slo_ns: cold.tbt_slo_ns,
        token_due_ns: cold.token_due_ns,
        last_chunk_ns: Some(cold.last_chunk_ns).filter(|&last| last != cold.arrival_ns),
        weight_millionths: cold.weight_millionths,
        owner: cold.owner,
        tenant: cold.tenant,
        due_work_ns: cold.due_work_ns,
        put_off_since_ns: cold.put_off_since_ns,
        standing: cold.standing,
        skip_cache_read: cold.skip_cache_read,
        adapter: cold.adapter,
        spans: cold.spans,
        salted_root: if chained { 0 } else { cold.root },
        held: cold.held,
        groups: cold.groups,
        cross_tokens: cold.cross_tokens,
        ready_to: cold.ready_to,
        acknowledged: cold.acknowledged,
        owed: saved.owed,
        stale_epoch: saved.stale_epoch,
        stale: saved.stale,
        copied: saved.copied,
    };
    let mut record = Cold::new(cold.seq, cold.arrival_ns, cold.stops, cold.min_tokens, rare);
    (record.table_life, record.admitted) = (saved.table_life, cold.admissions > 0);
    if chained {
        record.digests = Chain::new(cold.root, cold.digests.into_iter());
    }
    (hot, record, cold.unscheduled)
}
