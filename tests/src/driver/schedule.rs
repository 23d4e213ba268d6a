//! `schedule`: what a batch may hold, and what the executor does with it.

use std::collections::{BTreeMap, BTreeSet};

use cpp_sched::{
    Admission, Attos, Balance, Batch, BatchId, BlockId, Chunking, EmptyReason, Event, Pipelining, PolicyKind, Role, RowKind, Schedule,
    WaitReason,
};

use super::groups::{on_grain, padded};
use super::mirrors::Truth;
use super::{Driver, Line, LoggedRow, ensure, tracked::drops_late};

/// A row in flight, as the driver remembers it.
#[derive(Clone, Debug)]
pub(super) struct Flying {
    /// Index of the request.
    pub(super) who: usize,
    pub(super) epoch: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) drafts: u32,
    /// How many of the drafts are right.
    pub(super) accepted: u32,
    /// Behind this position its request goes another way meanwhile.
    pub(super) until: u32,
    /// It was lost, or builds on what was lost: it brings nothing.
    pub(super) void: bool,
    pub(super) samples: bool,
    pub(super) kind: RowKind,
    pub(super) table: Vec<BlockId>,
    /// The tables of further KV groups, from entry 0 on.
    pub(super) groups: Vec<Vec<BlockId>>,
}

impl Flying {
    /// One past the last token that is no draft.
    pub(super) fn base(&self) -> u32 {
        self.end - self.drafts
    }
}

/// The block tables of a row: of the first KV group, and of the further ones.
type Tables = (Vec<BlockId>, Vec<Vec<BlockId>>);

/// A batch in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) id: BatchId,
    pub(super) rows: Vec<Flying>,
    /// Whom it told the workers to forget.
    pub(super) preempted: Vec<cpp_sched::RequestId>,
    /// Copies that it made for forks.
    pub(super) copies: Vec<CopyOf>,
    /// It was lost, and others before it are in flight still.
    pub(super) lost: bool,
}

/// A block that a request got by a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyOf {
    pub(super) who: usize,
    pub(super) epoch: u32,
    /// Its place in the table.
    pub(super) index: u32,
    pub(super) to: BlockId,
}

impl Driver {
    /// Asks for a batch; whether there was one.
    pub(super) fn schedule(&mut self) -> Result<bool, String> {
        let decoding = self.decoding();
        self.mirrors.before(&self.scheduler, self.next_batch)?;
        let mut right = BTreeMap::new();
        for (id, &who) in &self.alive {
            right.insert(*id, self.accepted(who, u32::MAX));
        }
        let answer = match self.scheduler.schedule() {
            Schedule::Batch(batch) => {
                let mut truth =
                    Truth { requests: &mut self.requests, alive: &self.alive, flight: &self.flight, lost: self.counts.lost, right };
                self.mirrors.batch(&batch, &mut truth).map_err(|text| format!("{}: {text}", batch.id()))?;
                let more = |row| (1..batch.num_groups()).map(|group| padded(batch.group_table(row, group))).collect::<Vec<_>>();
                let tables = batch.rows().iter().map(|row| (batch.blocks(row).to_vec(), more(row))).collect::<Vec<_>>();
                Ok((batch.batch().clone(), tables))
            }
            Schedule::Empty(reason) => Err(reason),
        };
        let events = self.take_events()?;
        for event in &events {
            match *event {
                Event::Preempted { request } => self.see_preempted(request)?,
                Event::KvWanted { request, start, end } => self.see_kv_wanted(request, start, end)?,
                _ => return Err(format!("{event:?} out of schedule")),
            }
        }
        let (line, scheduled) = match answer {
            Ok((batch, tables)) => {
                self.check_batch(&batch, tables, decoding)?;
                let rows = batch.rows().iter().map(|row| LoggedRow {
                    request: row.request,
                    start: row.num_computed_tokens,
                    len: row.num_scheduled_tokens,
                    drafts: row.num_draft_tokens,
                    kind: row.kind,
                    samples: row.samples,
                });
                (Line::Batch(rows.collect(), batch.preempted().to_vec()), true)
            }
            Err(reason) => {
                self.check_empty(reason, !events.is_empty())?;
                (Line::Empty(reason), false)
            }
        };
        self.end_call(line, events)?;
        Ok(scheduled)
    }

    fn see_preempted(&mut self, id: cpp_sched::RequestId) -> Result<(), String> {
        self.see_preempted_by(id, false)
    }

    /// `reset`: by the operator, and not for want of blocks.
    pub(super) fn see_preempted_by(&mut self, id: cpp_sched::RequestId, reset: bool) -> Result<(), String> {
        let who = *self.alive.get(&id).ok_or_else(|| format!("{id} is preempted, but not alive"))?;
        let request = &mut self.requests[who];
        ensure!(request.is_alive(), "{id} is preempted while it is aborting");
        ensure!(reset || self.config.admission != Admission::NoEvict, "{id} is preempted under no_evict");
        request.preempt();
        self.counts.preemptions += 1;
        self.preempted.push(id);
        Ok(())
    }

    fn check_batch(&mut self, batch: &Batch, tables: Vec<Tables>, decoding: usize) -> Result<(), String> {
        let c = self.config;
        ensure!(batch.id() == BatchId(self.next_batch), "{} must be batch {}", batch.id(), self.next_batch);
        ensure!(self.flight.len() < c.depth() as usize, "{} are in flight already, at most {}", self.flight.len(), c.depth());
        let (mut preempted, mut named) = (std::mem::take(&mut self.preempted), batch.preempted().to_vec());
        preempted.sort_unstable();
        named.sort_unstable();
        ensure!(named == preempted, "the batch names {named:?} as preempted, the events named {preempted:?}");
        let total: u64 = batch.rows().iter().map(|row| u64::from(row.num_scheduled_tokens)).sum();
        ensure!(!batch.rows().is_empty(), "a batch without rows");
        ensure!(batch.rows().len() <= c.max_batch_requests as usize, "{} rows, at most {}", batch.rows().len(), c.max_batch_requests);
        let slots = u64::from(c.draft_slots) * batch.rows().len() as u64;
        ensure!(total + slots <= u64::from(c.max_batch_tokens), "{total} tokens and {slots} of drafters, at most {}", c.max_batch_tokens);
        ensure!(self.pause != cpp_sched::Pause::All, "a batch while all is paused");
        let samples = batch.rows().iter().filter(|row| row.samples).count();
        ensure!(batch.num_samples() as usize == samples, "num_samples is {}, {samples} rows sample", batch.num_samples());

        let copies = self.check_copies(batch, &tables)?;
        let mut rows: Vec<Flying> = Vec::new();
        let mut new = Vec::new();
        let mut decodes = 0;
        for (row, (table, groups)) in batch.rows().iter().zip(tables) {
            let who = *self.alive.get(&row.request).ok_or_else(|| format!("{} is scheduled, but not alive", row.request))?;
            let flying = Flying {
                who,
                epoch: self.requests[who].epoch,
                start: row.num_computed_tokens,
                end: row.end(),
                drafts: row.num_draft_tokens,
                accepted: self.accepted(who, row.num_draft_tokens),
                until: u32::MAX,
                void: false,
                samples: row.samples,
                kind: row.kind,
                table,
                groups,
            };
            let copied: Vec<_> = copies.iter().filter(|copy| copy.who == who).map(|copy| copy.index).collect();
            self.check_row(&flying, &rows, &copied).map_err(|text| format!("{}: {} {row:?}: {text}", batch.id(), row.request))?;
            if self.requests[who].first_batch.is_none() {
                self.requests[who].first_batch = Some(self.next_batch);
                new.push(who);
            }
            // One that comes back after a gate is admitted, and not among those that are spread.
            let request = &self.requests[who];
            decodes += usize::from(row.kind == RowKind::Decode && request.caught_up && !request.set_aside);
            self.execute(&flying);
            rows.push(flying);
        }
        self.check_requests_per_batch(&rows)?;
        self.check_order(&new)?;
        self.check_sums(batch)?;
        if c.balance == Balance::Count {
            // Those that decode before the batch preempts anybody, or after it has ended prompts.
            let most = decoding.max(self.decoding()).div_ceil(c.depth() as usize);
            ensure!(decodes <= most, "{decodes} decodes in one batch, {decoding} requests decode: at most {most}");
        }
        self.counts.batches += 1;
        self.counts.scheduled_tokens += total;
        self.counts.drafts += rows.iter().map(|row| u64::from(row.drafts)).sum::<u64>();
        self.flight.push_back(Flight { id: batch.id(), rows, preempted, copies, lost: false });
        self.next_batch += 1;
        Ok(())
    }

    /// Each copy gives a request of this batch a block of its own in place of one that it shares, and is made before the rows run.
    fn check_copies(&mut self, batch: &Batch, tables: &[Tables]) -> Result<Vec<CopyOf>, String> {
        let mut copies = Vec::new();
        for &(from, to) in batch.copies() {
            let place = batch.rows().iter().zip(tables).find_map(|(row, (table, _))| {
                let index = table.iter().position(|block| *block == to)?;
                Some((*self.alive.get(&row.request)?, index))
            });
            let (who, index) = place.ok_or_else(|| format!("the copy to {to} is in no row's table"))?;
            let request = &self.requests[who];
            ensure!(request.table.get(index) == Some(&from), "{}: block {index} of {:?} is not {from}", request.id, request.table);
            let busy = self.flying().any(|row| row.table.contains(&to))
                || self.alive.iter().any(|(id, &other)| {
                    let held = self.scheduler.block_table(*id).unwrap_or_default();
                    (other != who && held.contains(&to)) || self.requests[other].pins.contains(&to)
                });
            ensure!(!busy, "{from} is copied to {to}, which is in use");
            self.memory.copy(from, to, batch.id());
            copies.push(CopyOf { who, epoch: request.epoch, index: index as u32, to });
        }
        self.counts.copies += copies.len() as u64;
        Ok(copies)
    }

    fn decoding(&self) -> usize {
        self.requests.iter().filter(|r| r.is_alive() && !r.paused && (r.delivered > 0 || r.cursor >= r.prompt_len)).count()
    }

    fn accepted(&self, who: usize, drafts: u32) -> u32 {
        let request = &self.requests[who];
        u32::from(request.shape.accept[request.delivered as usize % 2]).min(drafts)
    }

    /// One row against the request's own record and the memory. `before` are the rows before it in its batch.
    fn check_row(&mut self, row: &Flying, before: &[Flying], copied: &[u32]) -> Result<(), String> {
        let c = self.config;
        let request = &self.requests[row.who];
        let valid = |other: &&Flying| other.who == row.who && !other.void && other.epoch >= request.void_before;
        let mine = || self.flight.iter().flat_map(|flight| &flight.rows).filter(valid);
        ensure!(self.pause == cpp_sched::Pause::Off || request.admitted, "it is admitted while that is paused");
        ensure!(request.is_runnable(&c), "it is not runnable: {request:?}");
        ensure!(row.start < row.end && row.drafts < row.end - row.start, "an empty row");
        ensure!(row.end <= c.model_len(), "past max_model_len {}", c.model_len());
        let allowed = if request.delivered > 0 { request.drafts } else { 0 };
        ensure!(row.drafts <= allowed, "at most {allowed} drafts");

        // Samples in flight: of this epoch (only async may build on them), and late ones (the request must wait for them).
        let live = mine().filter(|other| other.samples && other.epoch == request.epoch).count();
        let live = u32::try_from(live).expect("few rows are in flight");
        let stale = !drops_late(&c) && mine().any(|other| other.samples && other.epoch != request.epoch);
        ensure!(!stale, "a late result of it is in flight");
        ensure!(!before.iter().any(|other| other.who == row.who && other.samples), "its own batch samples for it already");
        // How far a request is is not known while drafts are in flight.
        let certain = !mine().any(|other| other.drafts > 0 && other.epoch == request.epoch);
        let limit = request.known() + if c.async_scheduling && certain && !request.shape.extras.constrained { live } else { 0 };
        ensure!(row.base() <= limit, "only {limit} tokens exist");
        if row.base() > request.known() {
            let newest = self.flight.iter().filter(|flight| flight.rows.iter().any(|other| valid(&other) && other.samples));
            let newest = newest.map(|flight| flight.id.0).max().unwrap_or(0);
            let distance = self.next_batch - newest;
            ensure!(distance >= u64::from(c.async_distance), "only {distance} batches behind the one that samples its token");
        }
        let samples = row.base() == request.known() + live && !request.shape.extras.pooling;
        ensure!(row.samples == samples, "samples must be {samples}");
        ensure!(samples || row.drafts == 0, "drafts on a row that does not sample");
        ensure!(!samples || request.delivered + live < request.max_out, "it can only yield tokens past its end");
        if c.pipelining == Pipelining::Request {
            ensure!(!mine().any(|other| other.epoch == request.epoch), "a second batch in flight");
        }

        let new = row.base() - row.start;
        let kind = if new == 1 && row.start >= request.prompt_len { RowKind::Decode } else { RowKind::Prefill };
        ensure!(row.kind == kind, "it is a {kind:?}");
        if kind == RowKind::Prefill {
            match c.chunking {
                Chunking::Tokens { max: Some(max) } => ensure!(new <= max, "a chunk has at most {max} tokens"),
                // The cap on one prompt comes first: below the alignment it leaves no aligned end.
                Chunking::Cost { align, .. }
                    if c.max_prompt_tokens_per_batch.is_none_or(|most| most >= align) && c.max_batch_tokens - c.draft_slots >= align =>
                {
                    ensure!(row.base().is_multiple_of(align) || row.base() == limit, "not aligned to {align}");
                }
                _ => {}
            }
        }
        if kind == RowKind::Decode && row.samples && c.lookahead_tokens > 0 {
            let end = (row.end + c.lookahead_tokens).min(request.longest(&c));
            let room = self.scheduler.block_table(request.id).unwrap_or_default().len() * c.block_size as usize;
            ensure!(room >= end as usize, "room for {room} positions, a drafter writes up to {end}");
        }
        self.check_table(row, copied)?;
        if self.requests[row.who].fresh {
            self.check_found(row.who, row.start)?;
        }
        let text = &mut self.requests[row.who].text;
        if let Some(position) = self.memory.first_wrong(&row.table, 0..row.start, text) {
            let slot = self.memory.slot(&row.table, position);
            return Err(format!("it reads position {position} in {:?}, which holds {slot:?}", row.table));
        }
        self.check_groups(row)?;
        self.check_writes(row)
    }

    /// Where the row starts, and in which blocks.
    fn check_table(&self, row: &Flying, copied: &[u32]) -> Result<(), String> {
        let request = &self.requests[row.who];
        let blocks = |tokens: u32| tokens.div_ceil(self.config.block_size) as usize;
        let distinct: BTreeSet<_> = row.table.iter().collect();
        ensure!(row.table.len() == blocks(row.end), "the table has {} blocks for {} tokens", row.table.len(), row.end);
        ensure!(distinct.len() == row.table.len(), "a block stands twice in {:?}", row.table);
        ensure!(row.table.iter().all(|block| block.0 < self.config.num_blocks), "no such block: {:?}", row.table);
        // One that was set aside with nothing computed starts anew.
        if request.fresh || (request.set_aside && request.cursor == 0) {
            return if row.start == 0 { Ok(()) } else { self.check_hit(row, row.start) };
        }
        ensure!(row.start == request.cursor, "it must start at {}: a token twice, or left out", request.cursor);
        let old = &request.table[..blocks(row.start).min(request.table.len())];
        let same = old.len() <= row.table.len()
            && (0..).zip(old.iter().zip(&row.table)).all(|(index, (old, new))| old == new || copied.contains(&index));
        ensure!(same, "its blocks were {old:?} and are {:?}", row.table);
        Ok(())
    }

    /// The first `start` positions are not its own work: whole blocks, of completed batches, of its salt (the chain tells), not of before a reset.
    pub(super) fn check_hit(&self, row: &Flying, start: u32) -> Result<(), String> {
        ensure!(
            self.config.prefix_caching && start.is_multiple_of(self.config.block_size),
            "it starts at {start} without having computed that"
        );
        for position in 0..start {
            let slot = self.memory.slot(&row.table, position);
            let flying = self.flight.iter().any(|flight| Some(flight.id) == slot.batch);
            ensure!(!flying, "it hits position {position}, which {:?} is still computing", slot.batch);
        }
        for block in 0..start / self.config.block_size {
            let positions = block * self.config.block_size..(block + 1) * self.config.block_size;
            let last_write = positions.map(|p| self.memory.slot(&row.table, p).written).max();
            ensure!(last_write > Some(self.writes_at_reset), "it hits block {block} of its table, computed before the reset");
        }
        Ok(())
    }

    /// What the row writes belongs to this request alone.
    fn check_writes(&self, row: &Flying) -> Result<(), String> {
        // A received prompt's last position is computed again: the same value into a block that others may have found meanwhile.
        if self.config.role == Role::Decode && row.start == self.requests[row.who].prompt_len - 1 {
            return Ok(());
        }
        let written = &row.writes(&self.config);
        for flight in &self.flight {
            for other in &flight.rows {
                let owner = &self.requests[other.who];
                // Batches run in order: what a session wrote too far, or after a loss, is overwritten after it was read.
                let same = other.who == row.who && owner.is_alive() && (other.epoch == owner.epoch || other.epoch < owner.void_before);
                let used = other.used(&self.config);
                ensure!(same || !overlap(written, &used), "it writes into {written:?}, and {} runs on {used:?}", flight.id);
            }
        }
        for (id, &other) in &self.alive {
            let owner = &self.requests[other];
            if other != row.who {
                let held = &self.holds(*id);
                ensure!(!overlap(written, held), "it writes into {written:?}, and {id} holds {held:?}");
                ensure!(!overlap(written, &owner.pins), "it writes into {written:?}, and {id} has a transfer on {:?}", owner.pins);
            }
        }
        Ok(())
    }

    /// The executor runs the row: all stages see batches in the order in which they were scheduled.
    fn execute(&mut self, row: &Flying) {
        let request = &mut self.requests[row.who];
        for position in row.start..row.end {
            let right = position < row.base() + row.accepted;
            let chain = right.then(|| request.text.chain(position));
            self.memory.write(&row.table, position, chain, Some(BatchId(self.next_batch)));
        }
        self.counts.recomputed += u64::from(request.reached.min(row.end).saturating_sub(row.start));
        request.first_start.get_or_insert(row.start);
        self.write_groups(row, BatchId(self.next_batch), false);
        let request = &mut self.requests[row.who];
        request.fresh = false;
        (request.admitted, request.set_aside) = (true, false);
        request.caught_up = row.samples;
        if row.start > request.cursor {
            request.done = row.start;
        }
        request.cursor = row.end;
        request.table.clone_from(&row.table);
    }

    fn check_requests_per_batch(&self, rows: &[Flying]) -> Result<(), String> {
        let c = &self.config;
        for who in rows.iter().map(|row| row.who).collect::<BTreeSet<_>>() {
            let id = self.requests[who].id;
            let mine = || rows.iter().filter(|row| row.who == who);
            ensure!(mine().count() <= c.chunks_per_batch as usize, "{id} has {} rows in one batch", mine().count());
            let prompt: u32 = mine().filter(|row| row.kind == RowKind::Prefill).map(|row| row.base() - row.start).sum();
            let most = c.max_prompt_tokens_per_batch.unwrap_or(u32::MAX);
            ensure!(prompt <= most, "{id} has {prompt} prompt tokens in one batch, at most {most}");
        }
        let adapters: BTreeSet<_> = rows.iter().filter_map(|row| self.requests[row.who].shape.extras.adapter).collect();
        let most = c.max_adapters_per_batch.unwrap_or(u32::MAX);
        ensure!(adapters.len() <= most as usize, "{} adapters in one batch, at most {most}", adapters.len());
        let admitted = self.requests.iter().filter(|r| r.is_runnable(c) && r.admitted && !r.set_aside).count();
        ensure!(self.reconfigured || admitted <= c.max_requests as usize, "{admitted} requests are admitted, at most {}", c.max_requests);
        Ok(())
    }

    /// Under fcfs, priority and edf nobody starts before a runnable request that certainly comes first.
    fn check_order(&self, new: &[usize]) -> Result<(), String> {
        let c = &self.config;
        if !super::control::orders_strictly(c) {
            return Ok(());
        }
        for waiting in self.requests.iter().filter(|r| r.first_batch.is_none() && r.is_runnable(c)) {
            for started in new.iter().map(|&who| &self.requests[who]).filter(|started| !started.forked) {
                let older = waiting.submitted_at < started.submitted_at && waiting.opened_at < started.submitted_at;
                let (w, s) = (waiting.shape.priority, started.shape.priority);
                let first = match c.policy {
                    PolicyKind::Fcfs => older,
                    PolicyKind::Priority => w < s || (w == s && older),
                    PolicyKind::Edf => waiting.deadline_ns < started.deadline_ns,
                    _ => false,
                };
                ensure!(!first, "{} starts before {}, which comes first", started.id, waiting.id);
            }
        }
        Ok(())
    }

    /// Cost and FLOPs, computed again from the rows.
    fn check_sums(&self, batch: &Batch) -> Result<(), String> {
        let (mut tokens, mut pairs, mut context, mut history, mut decodes, mut flops) = (0u64, 0u128, 0u64, 0u64, 0u64, 0u128);
        for row in batch.rows() {
            let (x, l) = (u128::from(row.num_scheduled_tokens), u128::from(row.num_computed_tokens));
            let attended = x * l + x * (x + 1) / 2;
            tokens += u64::from(row.num_scheduled_tokens);
            match row.kind {
                RowKind::Decode => (context, decodes) = (context + u64::from(row.num_computed_tokens), decodes + 1),
                RowKind::Prefill => (pairs, history) = (pairs + attended, history + u64::from(row.num_computed_tokens)),
            }
            let expected = self.config.model.map_or(0, |m| {
                let (layers, heads, head_dim) = (u128::from(m.layers), u128::from(m.heads), u128::from(m.head_dim));
                let (hidden, kv_heads, intermediate) = (u128::from(m.hidden), u128::from(m.kv_heads), u128::from(m.intermediate));
                let weights = layers * hidden * (2 * heads * head_dim + 2 * kv_heads * head_dim + 3 * intermediate);
                2 * x * weights + 4 * heads * head_dim * layers * attended
            });
            ensure!(row.flops == expected, "{}: {} FLOPs, must be {expected}", row.request, row.flops);
            flops += expected;
        }
        ensure!(batch.flops() == flops, "{} FLOPs in the batch, must be {flops}", batch.flops());
        let terms = batch.terms();
        let got = (terms.tokens, terms.pairs, terms.decode_context, terms.prefill_history, terms.decodes);
        ensure!(got == (tokens, pairs, context, history, decodes), "the terms are {terms:?}");
        let Some(m) = self.config.cost else {
            ensure!(batch.cost_ns() == 0, "a cost without a cost model");
            return Ok(());
        };
        let attos = m.c0.0
            + m.c1.0 * u128::from(tokens)
            + m.c2.0 * pairs
            + m.c3.0 * u128::from(context)
            + m.c4.0 * u128::from(history)
            + m.c5.0 * u128::from(decodes);
        let ns = (attos + Attos::PER_NS / 2) / Attos::PER_NS;
        ensure!(u128::from(batch.cost_ns()) == ns, "the batch costs {} ns, must be {ns}", batch.cost_ns());
        if let Chunking::Cost { target_ns, align, min } = self.config.chunking
            && attos > Attos::from_ns(target_ns).0
        {
            let [row] = batch.rows() else { return Err(format!("{ns} ns in {:?}, the target is {target_ns}", batch.rows())) };
            let new = row.num_scheduled_tokens - row.num_draft_tokens;
            let smallest = row.kind == RowKind::Decode || new < on_grain(&self.config, align) + min;
            ensure!(smallest, "{ns} ns in a chunk of {new} tokens, the target is {target_ns}");
        }
        Ok(())
    }

    /// There is no batch: is that right, and does everybody know why? `preempted`: somebody was, in this very call; the batch may have held
    /// rows of it, which others made room for.
    fn check_empty(&self, reason: EmptyReason, preempted: bool) -> Result<(), String> {
        let full = self.flight.len() >= self.config.depth() as usize;
        let idle = self.alive.is_empty() && self.flight.is_empty();
        ensure!((reason == EmptyReason::Idle) == idle, "{reason:?} with {} requests alive", self.alive.len());
        ensure!((reason == EmptyReason::PipelineFull) == full, "{reason:?}, and the pipeline is full: {full}");
        ensure!(reason != EmptyReason::WaitingForResults || !self.flight.is_empty(), "{reason:?} with nothing in flight");
        if full {
            return Ok(());
        }
        let runnable: Vec<_> = self.requests.iter().filter(|r| r.is_runnable(&self.config)).collect();
        for request in &runnable {
            let why = self.scheduler.why(request.id);
            // With alignment a chunk may need a block more than its next token does.
            let exact = matches!(self.config.chunking, Chunking::Tokens { .. }) && !preempted;
            ensure!(!exact || why != Some(WaitReason::Runnable), "{} is {why:?}, but the batch is empty", request.id);
        }
        if self.flight.is_empty() && !runnable.is_empty() && self.pause == cpp_sched::Pause::Off {
            let kv = self.scheduler.kv_usage();
            // Under no_evict the blocks for the outputs of those that wait for their KV are set aside as well.
            // Nor do sessions and requests behind a gate give theirs up.
            let held = |r: &super::Tracked| self.scheduler.block_table(r.id).map_or(0, <[BlockId]>::len);
            let kept = |r: &super::Tracked| self.config.admission == Admission::NoEvict || r.announced > 0;
            let has = |r: &super::Tracked| held(r) > 0 || (r.admitted && self.config.admission == Admission::NoEvict);
            let keeps = |r: &&super::Tracked| r.is_alive() && !r.is_runnable(&self.config) && has(r) && kept(r);
            let waiting: Vec<_> = self.requests.iter().filter(keeps).collect();
            let aside: usize = waiting.iter().map(|r| (r.need(&self.config) as usize).saturating_sub(held(r))).sum();
            let room = (kv.free + kv.cached).saturating_sub(aside as u32);
            let roomy = (kv.pinned == 0 && waiting.is_empty()) || runnable.iter().all(|r| r.need(&self.config) <= room);
            ensure!(
                !roomy || !self.preempted.is_empty(),
                "nothing in flight, {} could run, and the batch is empty: {kv:?}",
                runnable[0].id
            );
        }
        Ok(())
    }
}

fn overlap(some: &[BlockId], others: &[BlockId]) -> bool {
    some.iter().any(|block| others.contains(block))
}
