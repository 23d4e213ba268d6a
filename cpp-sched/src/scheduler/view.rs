//! The clock, what has happened, and what can be seen of the scheduler.

use alloc::vec::Vec;

use super::Scheduler;
use crate::batch::{Batch, Scheduled};
use crate::config::Config;
use crate::encoder::Span;
use crate::event::Event;
use crate::ids::{BatchId, BlockId, RequestId};
use crate::outcome::KvUsage;
use crate::state::State;

impl Scheduler {
    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Sets the clock; a step back is ignored. The clock never runs by itself: it dates submits, moves the keys of policies that look at it,
    /// and ends the leases of transfers that are overdue. O(leases that end * log).
    pub fn tick(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.end_leases();
    }

    /// The clock.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What happened since the last call, in order. Take them after every command, `schedule` and `complete`: they pile up until taken.
    pub fn events(&mut self) -> alloc::vec::Drain<'_, Event> {
        self.events.drain(..)
    }

    /// Batches in flight.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.len() as u32
    }

    /// The batch whose result is due next.
    #[must_use]
    pub fn oldest_in_flight(&self) -> Option<&Batch> {
        self.in_flight.front().map(|batch| &**batch)
    }

    /// A batch in flight. O(1).
    #[must_use]
    pub fn batch(&self, batch: BatchId) -> Option<&Batch> {
        let oldest = self.in_flight.front()?.id.0;
        self.in_flight.get(usize::try_from(batch.0.checked_sub(oldest)?).ok()?).map(|batch| &**batch)
    }

    /// The batch scheduled last, with its tables.
    pub(crate) fn newest_in_flight(&self) -> Option<Scheduled<'_>> {
        let batch = self.in_flight.back()?;
        Some(self.scheduled(batch))
    }

    pub(crate) fn scheduled<'a>(&'a self, batch: &'a Batch) -> Scheduled<'a> {
        Scheduled {
            batch,
            tables: self.slots.tables(),
            block_size: self.config.block_size,
            num_blocks: self.config.num_blocks,
            kv_groups: &self.config.kv_groups,
            lost: self.stats.batches_lost,
        }
    }

    /// The number of the next batch.
    pub(crate) fn next_batch(&self) -> BatchId {
        BatchId(self.next_batch)
    }

    /// Events that were not taken.
    pub(crate) fn pending_events(&self) -> &[Event] {
        &self.events
    }

    /// Nothing alive, nothing in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alive == 0 && self.in_flight.is_empty()
    }

    /// Requests alive: submitted, and their end not told yet.
    #[must_use]
    pub fn num_unfinished(&self) -> u32 {
        self.alive
    }

    /// The requests alive, in the order of submission. O(requests).
    #[must_use]
    pub fn unfinished(&self) -> Vec<RequestId> {
        let mut alive: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, s)| s.state != State::Gone)
            .map(|(slot, s)| (self.slots.cold(slot).seq, RequestId(s.id)))
            .collect();
        alive.sort_unstable();
        alive.into_iter().map(|(_, id)| id).collect()
    }

    /// Where the KV blocks are. O(1).
    #[must_use]
    pub fn kv_usage(&self) -> KvUsage {
        self.pool.usage()
    }

    /// The blocks of a request's positions, in order; they may reach beyond what is scheduled. `None`: not alive.
    #[must_use]
    pub fn block_table(&self, request: RequestId) -> Option<&[BlockId]> {
        Some(&self.slots[self.slots.find(request.0)?].table)
    }

    /// The spans of a request's prompt, those of later input included, under the names that batches and plans use for what they stand for
    /// ([`Span::digest`](crate::Span::digest)). `None`: not alive.
    #[must_use]
    pub fn spans(&self, request: RequestId) -> Option<&[Span]> {
        Some(&self.slots.cold(self.slots.find(request.0)?).spans)
    }

    /// Tokens of a request whose KV is scheduled, what is in flight included. `None`: not alive.
    #[must_use]
    pub fn num_computed_tokens(&self, request: RequestId) -> Option<u32> {
        Some(self.slots[self.slots.find(request.0)?].scheduled)
    }

    /// Tokens of a request whose KV is final. `None`: not alive.
    #[must_use]
    pub fn num_committed_tokens(&self, request: RequestId) -> Option<u32> {
        Some(self.slots[self.slots.find(request.0)?].committed)
    }

    /// Output tokens delivered so far. `None`: not alive.
    #[must_use]
    pub fn num_output_tokens(&self, request: RequestId) -> Option<u32> {
        Some(self.slots[self.slots.find(request.0)?].outputs)
    }
}
