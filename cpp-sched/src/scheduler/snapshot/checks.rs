//! What must hold in a snapshot before anything is built from it: whatever is used as an index, added up or taken off later.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::super::encode::check_size;
use super::record::{SavedCold as Cold, SavedSlot as Slot};
use super::saved::Saved;
use super::{Pool, RestoreError, Role, State, Use};
use crate::batch::{Batch, Row, RowKind};
use crate::config::{Config, PolicyKind};
use crate::encoder::Span;
use crate::encoder::span::first_misplaced;
use crate::ids::{BatchId, BlockId, RequestId};
use crate::kv::{GroupTable, KvGroup};
use crate::policy::Class;

/// Counters that only grow stay below this, so that they cannot overflow in anybody's lifetime.
const MOST: u64 = 1 << 62;

/// Epochs stay below this, so that none comes again while rows of it are in flight.
const MOST_EPOCH: u32 = u32::MAX - (1 << 20);

/// All blocks are accounted for: what is allocated is no more than what was read.
pub(super) fn sizes(saved: &Saved) -> Result<(), RestoreError> {
    let pool = &saved.pool;
    let used: BTreeSet<_> = saved.requests.iter().flat_map(|(s, cold)| all_blocks(s, cold)).collect();
    let listed = pool.free.len() + pool.cached.len() + pool.fenced.iter().map(Vec::len).sum::<usize>();
    let all = listed + used.len() == saved.config.num_blocks as usize;
    if all { Ok(()) } else { Err(RestoreError::Counter { field: "num_blocks" }) }
}

/// The blocks in all tables of a request.
fn all_blocks<'a>(s: &'a Slot, cold: &'a Cold) -> impl Iterator<Item = &'a BlockId> {
    s.table.iter().chain(cold.groups.iter().flat_map(GroupTable::held))
}

pub(super) fn counters(saved: &Saved) -> Result<(), RestoreError> {
    let in_flight = saved.in_flight.len() as u64;
    let sum = |of: fn(&Slot) -> u32| saved.requests.iter().map(|(s, _)| u64::from(of(s))).sum::<u64>();
    let s = &saved.stats;
    let growing = [
        s.submitted,
        s.finished,
        s.transfers_failed,
        s.aborted,
        s.rejected,
        s.batches,
        s.batches_lost,
        s.scheduled_tokens,
        s.output_tokens,
    ];
    let rare = [s.admissions, s.preemptions, s.cache_queried_tokens, s.cache_hit_tokens, s.cache_hit_tokens_resumed, s.preempted_tokens];
    let drafts = [s.draft_tokens, s.accepted_draft_tokens, s.encoder_tokens, s.encoder_hit_tokens, s.relegated, s.returned];
    let stats = growing.iter().chain(&rare).chain(&drafts).all(|&n| n < MOST) && s.recomputed_tokens < MOST;
    for (field, holds) in [
        // Keys have a class above it, and those of the requests to come are greater.
        ("next_seq", saved.next_seq < MOST >> 1),
        ("next_batch", saved.next_batch < MOST && in_flight <= saved.next_batch),
        ("in_flight", in_flight <= u64::from(saved.config.depth())),
        ("publish_from", saved.publish_from <= saved.next_batch),
        ("keyed_at_ns", saved.keyed_at_ns <= saved.now_ns),
        ("pace", saved.pace.is_sane()),
        ("round", saved.round.is_sane()),
        ("turnover", saved.turnover.is_sane()),
        ("keys", saved.policy.is_some() || saved.keys.is_empty()),
        ("prompt_wait", saved.prompt_wait < 1 << 30),
        ("target", saved.target.is_sane(&saved.config, saved.next_batch)),
        ("reserved", sum(|s| s.reserved) <= u64::from(saved.config.num_blocks)),
        ("owed", sum(|s| s.owed) < 1 << 31),
        ("stats", stats),
        ("fenced", saved.pool.fenced.len() == saved.in_flight.len()),
        ("requests", saved.requests.len() < 1 << 31),
        ("kv_events", saved.config.kv_events || saved.kv_events.is_empty()),
    ] {
        if !holds {
            return Err(RestoreError::Counter { field });
        }
    }
    Ok(())
}

/// The first of some conditions that does not hold.
fn first_broken(conditions: &[(bool, &'static str)]) -> Result<(), &'static str> {
    conditions.iter().find(|(holds, _)| !holds).map_or(Ok(()), |&(_, what)| Err(what))
}

pub(super) fn requests(saved: &Saved) -> Result<(), RestoreError> {
    let (mut ids, mut seqs) = (BTreeSet::new(), BTreeSet::new());
    let vacant: BTreeSet<_> = saved.vacant.iter().copied().collect();
    let mut num_vacant = 0;
    for (slot, (s, cold)) in (0u32..).zip(&saved.requests) {
        let wrong = |what| RestoreError::Request { request: RequestId(s.id), what };
        if s.state == State::Vacant {
            num_vacant += 1;
            let empty = (s.reserved, s.owed) == (0, 0)
                && cold.unscheduled == Default::default()
                && s.table.is_empty()
                && cold.groups.is_empty()
                && s.tokens.is_empty()
                && cold.digests.is_empty()
                && (cold.spans.is_empty(), s.has_spans, s.encoding, cold.held.is_empty()) == (true, false, false, true)
                && vacant.contains(&slot);
            empty.then_some(()).ok_or_else(|| wrong("its slot is vacant, but not empty or not in the list"))?;
            continue;
        }
        request(&saved.config, s, cold).map_err(wrong)?;
        let fair = saved.config.policy == PolicyKind::Fair;
        first_broken(&[
            (s.state == State::Gone || ids.insert(s.id), "another request alive has its id"),
            (cold.seq < saved.next_seq && seqs.insert(cold.seq), "its place in the order of submission"),
            (fair || cold.tenant == 0, "it has a tenant, and the policy knows none"),
            ((cold.tenant as usize) < saved.tenants.len() || !fair, "there is no such tenant"),
            (s.last_batch.max(s.batch_before) <= saved.next_batch, "it stands in a batch that is still to come"),
        ])
        .map_err(wrong)?;
    }
    let fits = vacant.len() == num_vacant && saved.vacant.len() == num_vacant;
    if fits { Ok(()) } else { Err(RestoreError::Counter { field: "vacant" }) }
}

/// One request by itself.
fn request(config: &Config, s: &Slot, cold: &Cold) -> Result<(), &'static str> {
    let (size, len) = (u64::from(config.block_size), s.table.len() as u64);
    let ends = u64::from(s.prompt_len) + u64::from(s.max_out);
    let ended = matches!(s.state, State::Gone | State::Aborting);
    first_broken(&[
        (s.prompt_len > 0 && ends <= u64::from(config.model_len()), "its lengths"),
        (s.outputs <= s.max_out, "more outputs than it may have"),
        (s.pooling == (s.max_out == 0), "how many outputs it may have"),
        (s.epoch > 0 && s.epoch < MOST_EPOCH, "its epoch"),
        (cold.admissions < u32::MAX / 2, "its admissions"),
        (cold.weight_millionths > 0, "its weight"),
        (cold.standing == Class::Normal || (config.relegation && cold.standing != Class::Deferred), "its standing"),
        (cold.unscheduled.start <= cold.unscheduled.end, "its prompt work"),
        (ended || (s.live, s.live_rows, s.live_drafts) == (0, 0, 0), "work that counts as in flight"),
        ((s.rows, s.ticket, s.has_stops) == (0, 0, false), "what follows from the rest"),
    ])?;
    let open = s.outputs < s.max_out || s.pooling;
    let distinct = all_blocks(s, cold).collect::<BTreeSet<_>>().len() == all_blocks(s, cold).count();
    let longest = config.need(s.prompt_len, s.max_out, cold.cross_tokens);
    let running = s.state == State::Running;
    let prefill = config.role == Role::Prefill;
    let ready = u64::from(cold.ready_to);
    let fresh = s.scheduled == 0 && s.committed == 0 && s.published == 0;
    let announced_to = |most: u32| cold.ready_to <= most && (cold.ready_to == s.prompt_len || ready % size == 0);
    first_broken(&[
        (longest <= config.num_blocks, "it can never fit"),
        (all_blocks(s, cold).all(|block| block.0 < config.num_blocks) && distinct, "its block table"),
        (groups_fit(config, s, cold), "the tables of its KV groups"),
        (s.committed <= s.scheduled, "more is committed than was scheduled"),
        (u64::from(s.scheduled) <= len * size || ended || s.state == State::Sending, "positions without a block"),
        (s.tokens.len() as u64 == if s.keeps_tokens { u64::from(s.known()) } else { 0 } || ended, "its tokens"),
        (config.prefix_caching || !s.cacheable, "its prefix is cached, and there is no cache"),
        (s.keeps_tokens || cold.digests.len() as u64 <= u64::from(s.prompt_len) / size, "its digests"),
        (s.cacheable || !s.keeps_tokens || cold.digests.is_empty(), "its digests"),
        // An aborted fork has let go of its blocks; that of its last prompt position, which it computes again, was its parent's.
        (u64::from(s.published) <= len.max(u64::from(s.committed) / size + u64::from(ended)), "more blocks are published than it has"),
        (s.reserved == 0 || !matches!(s.state, State::Gone | State::Aborting | State::Sending), "blocks are set aside for it"),
        (s.owed == 0 || s.state == State::Waiting, "blocks are lent by it"),
        (prefill || cold.ready_to == 0, "KV of it is announced"),
        (announced_to(s.prompt_len), "how much of its KV is announced"),
        (!prefill || !s.pinned || (ready > 0 && ready.div_ceil(size) <= len), "its blocks under a transfer"),
        (config.role != Role::Unified || !s.pinned, "it is under a transfer"),
        (!s.waits_kv || config.role == Role::Decode, "it waits for KV"),
        (!s.partial || running, "it is a partial prefill, but is not admitted"),
        (!s.decoding || running, "it decodes, but is not admitted"),
    ])?;
    let held = &cold.held;
    first_broken(&[
        (s.has_spans != cold.spans.is_empty() && s.encoding != held.is_empty(), "its spans"),
        (first_misplaced(&cold.spans, 0..s.prompt_len).is_none(), "its spans"),
        (ended || spans_fit(config, s, cold), "a span that fits into no batch"),
        (held.start <= held.end && held.end as usize <= cold.spans.len() && (running || held.is_empty()), "the spans that it needs"),
    ])?;
    match s.state {
        State::Vacant => Ok(()),
        State::Waiting if s.waits_kv => first_broken(&[
            (open && fresh || s.pinned, "it has computed something and waits for KV"),
            (open && s.scheduled == 0 && s.committed == 0, "it has computed something and waits for KV"),
            (s.pinned == (len > 0), "its blocks for KV"),
            (!s.pinned || len == u64::from(config.blocks(s.prompt_len)), "its blocks for KV"),
            // If its KV does not come, it goes on behind what it had found.
            (u64::from(s.published) * size < u64::from(s.prompt_len), "it had found its whole prompt"),
            (s.pinned || s.reserved == 0, "blocks are set aside for it"),
        ]),
        State::Waiting => first_broken(&[
            (open, "it has all its outputs"),
            // A request that has announced a part may have given up its slot behind a shut gate.
            (!s.pinned || prefill, "it is under a transfer"),
            (!prefill || s.pinned == (ready > 0), "its blocks under a transfer"),
            (cold.ready_to <= s.committed, "KV is announced that is not final"),
            (s.scheduled == s.committed && s.scheduled < s.known(), "its cursors"),
            (len > 0 || (fresh && s.reserved == 0), "it has computed something, but no blocks"),
        ]),
        State::Running => first_broken(&[
            (open, "it has all its outputs"),
            (config.role != Role::Decode || !s.pinned, "it is under a transfer"),
            (!prefill || s.pinned == (ready > 0), "its blocks under a transfer"),
            (cold.ready_to <= s.committed, "KV is announced that is not final"),
        ]),
        State::Paused => first_broken(&[
            (s.session && !s.pinned, "it is no session"),
            (s.scheduled == s.committed && s.committed <= s.known(), "its cursors"),
            (len > 0 || (fresh && s.reserved == 0), "it has computed something, but no blocks"),
        ]),
        State::Sending => first_broken(&[(prefill && s.pinned && cold.ready_to == s.prompt_len, "it sends nothing")]),
        State::Aborting => first_broken(&[(s.pinned || len == 0, "it has ended, and holds blocks")]),
        State::Gone => first_broken(&[(!s.pinned && len == 0, "it has ended, and holds blocks")]),
    }
}

/// No span of it would keep it from ever running.
fn spans_fit(config: &Config, s: &Slot, cold: &Cold) -> bool {
    let fits = (0..).zip(&cold.spans).all(|(number, span)| check_size(config, RequestId(s.id), number, span).is_ok());
    fits && (cold.spans.is_empty() || !config.kv_groups.has_state())
}

/// The tables of the further groups are as long as the first one says, and begin where the base of the request allows.
fn groups_fit(config: &Config, s: &Slot, cold: &Cold) -> bool {
    let groups = &config.kv_groups;
    let (size, len, base) = (config.block_size, s.table.len() as u32, groups.base(s.committed));
    let fits = |(table, group): (&GroupTable, &KvGroup)| {
        if !table.is_sane() {
            return false;
        }
        let entries = match group {
            // After a loss of all that it had it may have these alone.
            KvGroup::Cross if table.len() > 0 && (len > 0 || s.state == State::Running) => config.blocks(cold.cross_tokens),
            _ => group.entries_of_blocks(len, size),
        };
        table.len() == entries && table.front() <= if len > 0 { group.front(base, size) } else { 0 }
    };
    cold.groups.len() == groups.more().len()
        && (groups.has_cross() || cold.cross_tokens == 0)
        && cold.groups.iter().zip(groups.more()).all(fits)
}

pub(super) fn in_flight(saved: &Saved) -> Result<(), RestoreError> {
    let oldest = saved.next_batch - saved.in_flight.len() as u64;
    let mut rows = BTreeMap::<u32, Vec<(u64, &Row)>>::new();
    let mut lost = BTreeMap::<u32, Vec<u32>>::new();
    for (number, batch) in (oldest..).zip(&saved.in_flight) {
        let wrong = |what| RestoreError::Batch { batch: BatchId(number), what };
        batch_alone(saved, number, batch, number == oldest).map_err(wrong)?;
        for row in &batch.rows {
            rows.entry(row.slot).or_default().push((number, row));
            if batch.lost {
                lost.entry(row.slot).or_default().push(row.epoch);
            }
        }
    }
    for (slot, (s, _)) in (0u32..).zip(&saved.requests) {
        let rows = rows.get(&slot).map_or(&[][..], Vec::as_slice);
        let lost = lost.get(&slot).map_or(&[][..], Vec::as_slice);
        let expects = |epoch| (s.state == State::Running && epoch == s.epoch) || (s.stale > 0 && epoch == s.stale_epoch);
        let lost_nothing = !lost.iter().any(|&epoch| expects(epoch));
        let checked = rows_of(saved, s, rows).and_then(|()| first_broken(&[(lost_nothing, "it waits for a result that is lost")]));
        checked.map_err(|what| RestoreError::Request { request: RequestId(s.id), what })?;
    }
    Ok(())
}

/// What is encoded, and by which batch.
pub(super) fn encoder(saved: &Saved) -> Result<(), RestoreError> {
    let tokens = saved.encoder.iter().map(|(item, _)| u64::from(item.encoder_tokens)).sum::<u64>();
    let fits = saved.config.encoder_cache_tokens.is_none_or(|most| tokens <= u64::from(most));
    let known = saved.encoder.iter().all(|(item, batch)| item.encoder_tokens > 0 && *batch < saved.next_batch);
    if !fits || !known {
        return Err(RestoreError::Counter { field: "encoder" });
    }
    for batch in &saved.in_flight {
        let mut items = BTreeSet::new();
        for input in &batch.encodes {
            let owner = batch.rows.iter().any(|row| row.slot == input.slot && row.request == input.request);
            let spans = saved.requests.get(input.slot as usize).map_or(&[][..], |(_, cold)| &cold.spans);
            let item = spans.get(input.span as usize).and_then(Span::item);
            if !owner || item != Some(input.item) || !items.insert(input.item) {
                return Err(RestoreError::Batch { batch: batch.id, what: "what it encodes" });
            }
        }
    }
    Ok(())
}

fn batch_alone(saved: &Saved, number: u64, batch: &Batch, is_oldest: bool) -> Result<(), &'static str> {
    let model_len = u64::from(saved.config.model_len());
    let holders = batch.copied.iter().all(|&slot| (slot as usize) < saved.requests.len());
    first_broken(&[
        (holders && batch.copied.len() == batch.copies.len(), "whose blocks are to be copied"),
        (batch.id.0 == number, "its number"),
        (!batch.rows.is_empty(), "it has no rows"),
        (!(is_oldest && batch.lost), "it is lost, and nothing is in flight before it"),
        (batch.copies.iter().all(|&(from, to)| from.0.max(to.0) < saved.config.num_blocks), "a block to be copied"),
    ])?;
    for row in &batch.rows {
        let end = u64::from(row.num_computed_tokens) + u64::from(row.num_scheduled_tokens);
        let held = saved.requests.get(row.slot as usize).filter(|(s, _)| s.state != State::Vacant && s.id == row.request.0);
        first_broken(&[
            (held.is_some(), "a row of nobody"),
            (end <= model_len, "a row past the longest sequence"),
            (row.num_draft_tokens < row.num_scheduled_tokens, "a row without a token"),
            (row.samples || row.num_draft_tokens == 0, "drafts on a row that samples nothing"),
        ])?;
    }
    Ok(())
}

/// The rows of one request: those of its living epoch tile what is scheduled beyond what is committed.
fn rows_of(saved: &Saved, s: &Slot, rows: &[(u64, &Row)]) -> Result<(), &'static str> {
    let config = &saved.config;
    let newest = rows.last().map(|(batch, _)| *batch);
    let late = rows.iter().filter(|(_, row)| row.samples && row.epoch == s.stale_epoch).count() as u32;
    let waits = s.state == State::Waiting && !config.drops_preempted_output();
    first_broken(&[
        (newest.is_none_or(|batch| batch <= s.last_batch && s.last_batch < saved.next_batch), "its newest batch"),
        (rows.iter().all(|(_, row)| row.epoch <= s.epoch), "a row of an epoch that is still to come"),
        (s.state != State::Gone || !rows.is_empty(), "it has ended, and nothing of it is in flight"),
        (s.state != State::Aborting || !rows.is_empty() || s.pinned, "it has ended, and nothing of it is in flight"),
        (s.stale == 0 || (waits && s.stale == late && s.stale_epoch != s.epoch), "its late results"),
    ])?;
    if s.state != State::Running {
        return Ok(());
    }
    let (mut at, mut live, mut drafts) = (s.committed, 0u32, false);
    for (_, row) in rows.iter().filter(|(_, row)| row.epoch == s.epoch) {
        let new = row.num_scheduled_tokens - row.num_draft_tokens;
        let end = row.num_computed_tokens + new;
        let known = s.known() + live;
        let kind = if new == 1 && row.num_computed_tokens >= s.prompt_len { RowKind::Decode } else { RowKind::Prefill };
        first_broken(&[
            (row.num_computed_tokens == at, "its rows leave a gap, or overlap"),
            (!drafts && (live == 0 || config.async_scheduling), "a row follows one whose result decides where it starts"),
            (row.kind == kind && end <= known && row.samples == (end == known && !s.pooling), "what a row of it is"),
            (s.outputs + live + u32::from(row.samples) + row.num_draft_tokens <= s.max_out, "a row past its last output"),
        ])?;
        (at, drafts) = (row.end(), row.num_draft_tokens > 0);
        live += u32::from(row.samples);
    }
    first_broken(&[(at == s.scheduled, "its rows do not reach where it is scheduled to")])
}

/// Who uses each block.
pub(super) fn tables(saved: &Saved) -> Result<Vec<Use>, RestoreError> {
    let mut used = alloc::vec![Use::default(); saved.config.num_blocks as usize];
    for (s, cold) in &saved.requests {
        let holds = matches!(s.state, State::Running | State::Paused) || (s.state == State::Waiting && !s.waits_kv);
        let announced = match saved.config.role {
            Role::Prefill => saved.config.blocks(cold.ready_to) as usize,
            _ => usize::MAX,
        };
        for (index, block) in s.table.iter().enumerate() {
            let pinned = s.pinned && index < announced;
            if !holds && !pinned {
                return Err(RestoreError::Block { block: *block, what: "it is in a table that does not hold it" });
            }
            used[block.0 as usize].refs += u32::from(holds);
            used[block.0 as usize].pins += u32::from(pinned);
        }
    }
    let mut owner = BTreeMap::new();
    let grouped = saved.requests.iter().filter(|(_, cold)| !cold.groups.is_empty());
    for (s, cold) in grouped {
        let tables = core::iter::once(s.table.as_slice()).chain(cold.groups.iter().map(GroupTable::held));
        for (group, table) in tables.enumerate() {
            for &block in table {
                if *owner.entry(block.0).or_insert(group) != group {
                    return Err(RestoreError::Block { block, what: "it is in tables of two KV groups" });
                }
                used[block.0 as usize].refs += u32::from(group > 0);
            }
        }
    }
    Ok(used)
}

/// A block that will be published by a request is found by no digest yet, and no other request will publish it.
pub(super) fn publishing(saved: &Saved, pool: &Pool) -> Result<(), RestoreError> {
    let mut publishers = BTreeSet::new();
    for (s, cold) in saved.requests.iter().filter(|(s, _)| s.cacheable) {
        let tail = s.shared_tail.then_some((s.scheduled / saved.config.block_size) as usize);
        for (index, &BlockId(block)) in s.table.iter().enumerate().skip(s.published as usize) {
            // Of a shared tail the request takes a copy first.
            if tail != Some(index) && (pool.index().is_hashed(block) || !publishers.insert(block)) {
                return Err(RestoreError::Block { block: BlockId(block), what: "it would be published twice" });
            }
        }
        let (groups, size) = (&saved.config.kv_groups, saved.config.block_size);
        for (table, group) in cold.groups.iter().zip(groups.more()).filter(|(_, group)| **group != KvGroup::Cross) {
            // Entries whose last block of positions is published are.
            let done = match group {
                KvGroup::State { grain } => s.published / (grain / size),
                _ => s.published,
            };
            for entry in done.max(table.front())..table.len() {
                let Some(block) = table.get(entry) else { continue };
                if pool.index().is_hashed(block.0) || !publishers.insert(block.0) {
                    return Err(RestoreError::Block { block, what: "it would be published twice" });
                }
            }
        }
    }
    Ok(())
}
