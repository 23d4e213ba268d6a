//! What a batch may hold as a whole, who comes first, and when there may be none.

use std::collections::BTreeSet;

use cpp_sched::{Admission, BlockId, Chunking, EmptyReason, PolicyKind, RowKind, WaitReason};

use super::flight::Flying;
use super::{Driver, ensure};

impl Driver {
    pub(super) fn check_requests_per_batch(&self, rows: &[Flying]) -> Result<(), String> {
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
    pub(super) fn check_order(&self, new: &[usize]) -> Result<(), String> {
        let c = &self.config;
        if !super::control::orders_strictly(c) {
            return Ok(());
        }
        // One that the encoder has no room for is in nobody's way.
        let waits = |r: &&super::Tracked| r.first_batch.is_none() && r.is_runnable(c) && r.text.spans().is_empty();
        for waiting in self.requests.iter().filter(waits) {
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

    /// There is no batch: is that right, and does everybody know why? `preempted`: somebody was, in this very call; the batch may have held
    /// rows of it, which others made room for.
    pub(super) fn check_empty(&self, reason: EmptyReason, preempted: bool) -> Result<(), String> {
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
            // One that has waited for too long comes first, and may be the one that cannot be admitted.
            let exact = self.config.latency.max_prefill_wait_ns.is_none()
                && matches!(self.config.chunking, Chunking::Tokens { .. })
                && !preempted
                && request.text.spans().is_empty();
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
