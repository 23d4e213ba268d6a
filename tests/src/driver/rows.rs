//! One row of a batch, against the request's own record and the memory.

use std::collections::BTreeSet;

use cpp_sched::{BlockId, Chunking, Pipelining, Role, RowKind};

use super::flight::Flying;
use super::{Driver, ensure, tracked::drops_late};

impl Driver {
    /// One row against the request's own record and the memory. `before` are the rows before it in its batch.
    pub(super) fn check_row(&mut self, row: &Flying, before: &[Flying], copied: &[u32]) -> Result<(), String> {
        let c = self.config;
        let request = &self.requests[row.who];
        let valid = |other: &&Flying| other.who == row.who && !other.void && other.epoch >= request.void_before;
        let mine = || self.flight.iter().flat_map(|flight| &flight.rows).filter(valid);
        // Without a row it may have been admitted before the pause; that nobody is admitted during it is seen by the count of admissions.
        let may_run = request.admitted || request.may_hold_a_slot_unseen();
        ensure!(self.pause == cpp_sched::Pause::Off || may_run, "it is admitted while that is paused");
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
        // Drafts follow a token that is known, and how far a request is is not known while some are in flight.
        let drafting = (request.drafts > 0 && super::groups::grain(&c).is_none())
            || mine().any(|other| other.drafts > 0 && other.epoch == request.epoch);
        let limit = request.known() + if c.async_scheduling && !drafting && !request.shape.extras.constrained { live } else { 0 };
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
                    // Where a span begins, or an atomic one ends, is as good.
                    let edge = request.text.spans().iter().any(|s| s.start == row.base() || (s.atomic && s.end() == row.base()));
                    ensure!(row.base().is_multiple_of(align) || row.base() == limit || edge, "not aligned to {align}");
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
}

fn overlap(some: &[BlockId], others: &[BlockId]) -> bool {
    some.iter().any(|block| others.contains(block))
}
