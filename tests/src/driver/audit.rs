//! What can be asked after every call, against the driver's own record.

use std::collections::BTreeSet;

use cpp_sched::{BatchId, BlockId, KvUsage, RequestId, Role, Snapshot, Stats, WaitReason};

use super::{Driver, ensure};

/// What can be seen of a request: why it waits, its two cursors, its blocks.
type Seen = (RequestId, Option<WaitReason>, Option<u32>, Option<u32>, Vec<BlockId>);

/// Everything that the public interface tells without changing anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// Counters.
    pub stats: Stats,
    /// Blocks.
    pub kv: KvUsage,
    /// The clock.
    pub now_ns: u64,
    /// Batches in flight: how many, and the oldest.
    pub in_flight: (u32, Option<BatchId>),
    /// Of each living request: why it waits, computed and committed tokens, blocks.
    pub requests: Vec<Seen>,
}

impl Driver {
    /// All that can be asked.
    #[must_use]
    pub fn observe(&self) -> Observation {
        let s = &self.scheduler;
        let request = |id: RequestId| {
            (id, s.why(id), s.num_computed_tokens(id), s.num_committed_tokens(id), s.block_table(id).unwrap_or_default().to_vec())
        };
        Observation {
            stats: s.stats(),
            kv: s.kv_usage(),
            now_ns: s.now_ns(),
            in_flight: (s.in_flight(), s.oldest_in_flight().map(cpp_sched::Batch::id)),
            requests: s.unfinished().into_iter().map(request).collect(),
        }
    }

    /// Everything: what can be asked, and what cannot.
    pub(super) fn state(&self) -> (Observation, Snapshot) {
        (self.observe(), self.scheduler.snapshot())
    }

    /// After every call.
    pub(super) fn audit(&self) -> Result<(), String> {
        self.scheduler.check_invariants().map_err(|violation| format!("check_invariants: {violation:?}"))?;
        self.audit_counts()?;
        self.audit_requests()?;
        self.audit_blocks()
    }

    fn audit_counts(&self) -> Result<(), String> {
        self.audit_counters()?;
        let in_flight = self.scheduler.in_flight() as usize;
        ensure!(in_flight == self.flight.len(), "in_flight is {in_flight}, must be {}", self.flight.len());
        let oldest = self.scheduler.oldest_in_flight().map(cpp_sched::Batch::id);
        ensure!(oldest == self.flight.front().map(|flight| flight.id), "the oldest batch is {oldest:?}");
        for flight in &self.flight {
            ensure!(self.scheduler.batch(flight.id).is_some_and(|batch| batch.id() == flight.id), "{} is not found", flight.id);
        }
        ensure!(self.scheduler.batch(BatchId(self.next_batch)).is_none(), "a batch that was never scheduled is found");
        let idle = self.alive.is_empty() && self.flight.is_empty();
        ensure!(self.scheduler.is_idle() == idle, "is_idle is {}", !idle);
        Ok(())
    }

    fn audit_requests(&self) -> Result<(), String> {
        let mut alive: Vec<usize> = self.alive.values().copied().collect();
        alive.sort_unstable();
        let ids: Vec<RequestId> = alive.iter().map(|&who| self.requests[who].id).collect();
        ensure!(self.scheduler.unfinished() == ids, "unfinished is {:?}, must be {ids:?}", self.scheduler.unfinished());
        ensure!(self.scheduler.num_unfinished() as usize == ids.len(), "num_unfinished is {}", self.scheduler.num_unfinished());
        for who in alive {
            let request = &self.requests[who];
            let why = self.scheduler.why(request.id);
            ensure!(why.is_some(), "{} is alive, but why is None", request.id);
            ensure!(request.aborting == (why == Some(WaitReason::Aborting)), "{} is {why:?}, aborting: {}", request.id, request.aborting);
            if request.aborting {
                let held = self.is_flying(who) || !request.pins.is_empty();
                ensure!(held, "{} was aborted, nothing of it is in flight or pinned, and it did not end", request.id);
            } else if !request.waits_kv {
                let cursors = (self.scheduler.num_computed_tokens(request.id), self.scheduler.num_committed_tokens(request.id));
                let want = (Some(request.cursor), Some(request.done));
                ensure!(cursors == want, "{}: computed and committed are {cursors:?}, must be {want:?}", request.id);
            }
            ensure!(self.scheduler.gates(request.id).is_some(), "{} is alive, but has no gates to be asked for", request.id);
            let due = match request {
                r if !r.is_alive() || r.waits_kv => None,
                r if r.paused => Some(WaitReason::SessionPaused),
                r if r.is_sending(&self.config) => Some(WaitReason::Sending),
                r if !r.gates.is_empty() => Some(WaitReason::Gated),
                _ => None,
            };
            ensure!(due.is_none() || why == due, "{} is {why:?}, must be {due:?}", request.id);
            if request.is_alive() && !request.is_sending(&self.config) {
                let gates = self.scheduler.gates(request.id);
                ensure!(gates == Some(request.gates), "{}: the gates are {gates:?}, must be {:?}", request.id, request.gates);
            }
        }
        if let Some(ended) = self.requests.iter().rev().find(|request| !self.alive.contains_key(&request.id)) {
            ensure!(self.scheduler.why(ended.id).is_none(), "{} has ended, but why is not None", ended.id);
            ensure!(self.scheduler.block_table(ended.id).is_none(), "{} has ended, but has a block table", ended.id);
        }
        Ok(())
    }

    /// Every block is in exactly one of the five places, and the places are those that the tables show.
    fn audit_blocks(&self) -> Result<(), String> {
        let kv = self.scheduler.kv_usage();
        ensure!(kv.total == self.config.num_blocks, "{kv:?}: there are {} blocks", self.config.num_blocks);
        let sum = kv.free + kv.held + kv.cached + kv.fenced + kv.pinned;
        ensure!(sum == kv.total, "{kv:?}: the places sum up to {sum}");
        let held: BTreeSet<BlockId> = self.alive.keys().flat_map(|id| self.holds(*id)).collect();
        let pinned: BTreeSet<BlockId> = self.alive.values().flat_map(|&who| &self.requests[who].pins).copied().collect();
        let flying: BTreeSet<BlockId> = self.flying().flat_map(|row| row.used(&self.config)).collect();
        let used = held.iter().chain(&pinned).chain(&flying).collect::<BTreeSet<_>>().len();
        // A fence may be later than needed: it covers all blocks of a request, also those beyond its last row.
        ensure!((kv.held + kv.fenced + kv.pinned) as usize >= used, "{kv:?}: {used} blocks are in use");
        ensure!(kv.fenced == 0 || !self.flight.is_empty(), "{kv:?}: fenced with nothing in flight");
        ensure!(kv.cached == 0 || self.config.prefix_caching, "{kv:?}: cached without prefix caching");
        let told = self.config.kv_events && self.config.prefix_caching;
        ensure!(!told || kv.cached == 0 || !self.shadow.is_empty(), "{kv:?}: cached, but nothing was told to be found");
        if self.config.role == Role::Unified {
            ensure!(kv.pinned == 0, "{kv:?}: pinned without a transfer");
            ensure!(kv.held as usize == held.len(), "{kv:?}: {} blocks are in tables", held.len());
        }
        for (id, &who) in &self.alive {
            let table = self.scheduler.block_table(*id).unwrap_or_default();
            let request = &self.requests[who];
            if request.is_alive() && !request.waits_kv {
                let shown = &request.table[..request.done.div_ceil(self.config.block_size) as usize];
                ensure!(table.starts_with(shown), "{id}: its block table is {table:?}, its rows showed {shown:?}");
            }
        }
        Ok(())
    }
}
