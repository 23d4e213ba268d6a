//! The whole scheduler as a value that can be stored, and back.
//!
//! A [`Snapshot`] holds what cannot be worked out: requests, tables, batches in flight, the order of the lists, counters. Everything else
//! (queues, counts, the map of ids, the prefix index) is built anew and then compared by [`Scheduler::check_invariants`]. So whatever a file
//! may hold, [`Scheduler::restore`] answers with an equal scheduler or with an error; [`checks`] says what is looked at.

mod checks;
mod error;
mod record;
mod saved;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use error::RestoreError;
use record::{SavedCold, SavedSlot};
use saved::{Saved, SavedEvent, SavedKvEvent, Version};

use super::admit::Refused;
use super::{Pause, Scheduler};
use crate::config::{PolicyKind, Role};
use crate::ids::RequestId;
use crate::kv::Pool;
use crate::kv::saved::Use;
use crate::policy::{Key, Policy, Tenants};
use crate::queue::PromptQueue;
use crate::state::{Chain, Cold, Demand, IdHasher, Slot, Slots, State, Trait};
use crate::stats::Stats;

/// A [`Scheduler`] at one moment, to be stored in a serde format and [restored](Scheduler::restore) from it: postcard, JSON and others. Digests and
/// costs are 128-bit numbers; where people read, one that takes more than 64 bits is a string of its digits.
///
/// It holds prompts, outputs and the hash key: keep it as secret as these. An [`Encoder`](crate::wire::Encoder) is no part of it: workers that live
/// on get a [`resync`](crate::wire::Encoder::resync) from one that was [attached](crate::wire::Encoder::attach) to the restored scheduler.
///
/// ```
/// use cpp_sched::{Config, Request, RequestId, Scheduler};
/// let mut scheduler = Scheduler::new(Config::default())?;
/// scheduler.submit(Request::new(RequestId(1), vec![5; 100], 4))?;
/// assert!(scheduler.schedule().batch().is_some());
///
/// let stored = serde_json::to_string(&scheduler.snapshot())?;
/// let restored = Scheduler::restore(serde_json::from_str(&stored)?)?;
/// assert_eq!(restored.snapshot(), scheduler.snapshot());
/// assert_eq!(restored.in_flight(), 1); // The batch may still come back; if it cannot, `fail` rolls it back.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    version: Version,
    state: Saved,
}

impl Snapshot {
    /// The name of the policy that the scheduler was made with, if it was the caller's own.
    #[must_use]
    pub fn policy_name(&self) -> Option<&str> {
        self.state.policy.as_deref()
    }

    /// Blocks of the scheduler's pool. Restoring takes memory for each of them, whatever the snapshot says of them.
    #[must_use]
    pub fn num_blocks(&self) -> u32 {
        self.state.config.num_blocks
    }
}

impl Scheduler {
    /// The whole scheduler as a value. O(requests + their tokens + rows in flight + blocks).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // Every field is named, so that a new one cannot be forgotten here.
        let Self {
            config,
            policy,
            depth: _,
            model_len: _,
            hashing: _,
            now_ns,
            next_seq,
            next_batch,
            slots,
            pool,
            encoder,
            encoder_freed,
            ready,
            prompts: _,
            waiting: _,
            resident: _,
            wanting: _,
            victims: _,
            idle: _,
            lacking,
            waits: _,
            put_off: _,
            feasible: _,
            pace,
            round,
            turnover,
            paced: _,
            refused,
            tenants,
            in_flight,
            spare: _,
            whole: _,
            build: _,
            events,
            preempted,
            ended,
            reserved: _,
            owed: _,
            admitted: _,
            partial: _,
            alive: _,
            decoding: _,
            decoding_tokens: _,
            with_output: _,
            prompt_wait,
            pause,
            draining,
            leases,
            publish_from,
            keyed_at_ns,
            target,
            stats,
            gauges: _,
        } = self;
        let (records, vacant) = slots.parts();
        let (tenants, spare_tenants) = tenants.parts();
        let version = pool.index().version();
        Snapshot {
            version: Version,
            state: Saved {
                config: *config,
                policy: policy.as_deref().map(|policy| policy.name().to_string()),
                now_ns: *now_ns,
                keyed_at_ns: *keyed_at_ns,
                next_seq: *next_seq,
                next_batch: *next_batch,
                publish_from: *publish_from,
                prompt_wait: *prompt_wait,
                pause: *pause,
                draining: *draining,
                target: target.saved(),
                stats: *stats,
                requests: (0..).zip(records).map(|(slot, (hot, cold))| self.save(slot, hot, cold)).collect(),
                vacant: vacant.to_vec(),
                ready: ready.living(|entry| slots[entry.slot].ticket == entry.ticket),
                lacking: lacking.map(|(_, slot)| slot),
                refused: refused.filter(|r| r.version == version).map(|r| (r.seq, r.known, r.needed)),
                leases: leases.iter().map(|((end, _), slot)| (slot, end)).collect::<BTreeMap<_, _>>().into_iter().collect(),
                keys: if policy.is_some() { self.given_keys() } else { Vec::new() },
                pace: *pace,
                round: round.saved(),
                turnover: *turnover,
                tenants,
                spare_tenants,
                in_flight: in_flight.iter().map(|batch| (**batch).clone()).collect(),
                preempted: preempted.clone(),
                ended: ended.clone(),
                events: events.iter().copied().map(SavedEvent).collect(),
                kv_events: pool.events.iter().copied().map(SavedKvEvent).collect(),
                pool: pool.save(),
                encoder: encoder.items().map(|(item, batch, _)| (item, batch)).collect(),
                encoder_freed: encoder_freed.clone(),
            },
        }
    }

    fn save(&self, slot: u32, hot: &Slot, cold: &Cold) -> (SavedSlot, SavedCold) {
        record::save(hot, cold, self.slots.unscheduled(slot), self.prompt_work(0, hot.prompt_len))
    }

    /// What requests that are queued are compared by, as the caller's policy said when it was asked.
    fn given_keys(&self) -> Vec<(u32, Key)> {
        let queues = [&self.prompts, &self.waiting, &self.resident, &self.wanting];
        let keys: BTreeMap<_, _> = queues.into_iter().flat_map(PromptQueue::iter).map(|(key, slot)| (slot, key)).collect();
        keys.into_iter().collect()
    }

    /// A scheduler equal to the one that the snapshot was taken of: with equal calls from now on it gives equal batches and events.
    ///
    /// What was in flight still is. If its results will not come, call [`fail`](Self::fail).
    ///
    /// O(requests * log + their tokens + rows in flight + blocks).
    ///
    /// # Errors
    /// What in the snapshot cannot be: it was damaged, or made up.
    pub fn restore(snapshot: Snapshot) -> Result<Self, RestoreError> {
        Self::restore_saved(snapshot, None)
    }

    /// The same for a scheduler that was made [with a policy](Self::with_policy) of the caller's. What the policy said before the snapshot stands
    /// until a request is queued again; what it keeps to itself is its own affair.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), and [`RestoreError::Policy`] if it was made with a policy of another name, or without one.
    pub fn restore_with_policy(snapshot: Snapshot, policy: Box<dyn Policy>) -> Result<Self, RestoreError> {
        Self::restore_saved(snapshot, Some(Arc::from(policy)))
    }

    fn restore_saved(snapshot: Snapshot, policy: Option<Arc<dyn Policy>>) -> Result<Self, RestoreError> {
        let Snapshot { version: Version, state: mut saved } = snapshot;
        let given = policy.as_deref().map(|policy| policy.name().to_string());
        if given != saved.policy || given.is_some() != (saved.config.policy == PolicyKind::Custom) {
            return Err(RestoreError::Policy { saved: saved.policy, given });
        }
        saved.config.validate().map_err(RestoreError::Config)?;
        checks::sizes(&saved)?;
        checks::counters(&saved)?;
        checks::requests(&saved)?;
        checks::in_flight(&saved)?;
        checks::encoder(&saved)?;
        let used = checks::tables(&saved)?;
        let mut scheduler = Self::build(saved.config, policy).map_err(RestoreError::Config)?;
        scheduler.pool.load(&saved.pool, &used, saved.next_batch - saved.in_flight.len() as u64)?;
        checks::publishing(&saved, &scheduler.pool)?;
        scheduler.take_counters(&saved);
        scheduler.take_requests(&mut saved)?;
        scheduler.take_encoder(&saved)?;
        scheduler.take_rows(&saved);
        let work = |(slot, cold): (u32, &Cold)| (slot, scheduler.slots.unscheduled(slot), cold.due_work_ns, cold.put_off_since_ns);
        let work: Vec<_> = scheduler.slots.iter().map(|(slot, _)| work((slot, scheduler.slots.cold(slot)))).collect();
        scheduler.take_queues(&saved)?;
        // What there is to prefill was worked out at another time, and queueing has counted it anew.
        for (slot, unscheduled, due_work_ns, put_off_since_ns) in work {
            scheduler.slots.set_unscheduled(slot, unscheduled);
            let cold = scheduler.slots.cold_mut(slot);
            if (cold.due_work_ns, cold.put_off_since_ns) != (due_work_ns, put_off_since_ns) {
                (cold.due_work_ns, cold.put_off_since_ns) = (due_work_ns, put_off_since_ns);
            }
        }
        scheduler.place_all_due();
        scheduler.target.adopt(&saved.target);
        scheduler.check_invariants().map_err(RestoreError::Invariant)?;
        Ok(scheduler)
    }

    fn take_counters(&mut self, saved: &Saved) {
        (self.now_ns, self.pace, self.round, self.turnover) = (saved.keyed_at_ns, saved.pace, saved.round.clone(), saved.turnover);
        self.move_keys();
        self.now_ns = saved.now_ns;
        (self.next_seq, self.next_batch, self.publish_from) = (saved.next_seq, saved.next_batch, saved.publish_from);
        (self.prompt_wait, self.pause, self.draining) = (saved.prompt_wait, saved.pause, saved.draining);
        self.stats = saved.stats;
        self.ended.clone_from(&saved.ended);
        self.preempted.clone_from(&saved.preempted);
        self.events.extend(saved.events.iter().map(|event| event.0));
        self.pool.events.extend(saved.kv_events.iter().map(|event| event.0));
    }

    fn take_requests(&mut self, saved: &mut Saved) -> Result<(), RestoreError> {
        let hasher = IdHasher::new(&self.config.hash_key.0);
        let tenants = core::mem::take(&mut saved.tenants);
        self.tenants =
            Tenants::from_parts(hasher.clone(), tenants, core::mem::take(&mut saved.spare_tenants)).ok_or(RestoreError::Tenants)?;
        let mut work = Vec::new();
        let records = core::mem::take(&mut saved.requests).into_iter().map(|request| {
            let (hot, cold, unscheduled) = record::load(request);
            work.push(unscheduled);
            (hot, cold)
        });
        self.slots = Slots::from_parts(hasher, records, core::mem::take(&mut saved.vacant));
        for (slot, unscheduled) in (0..).zip(work) {
            self.slots.set_unscheduled(slot, unscheduled);
        }
        let slots: Vec<u32> = self.slots.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            let s = &self.slots[slot];
            let (state, decoding, partial, known) = (s.state, s.has(Trait::Decoding), s.has(Trait::Partial), s.known());
            let ended = matches!(state, State::Gone | State::Aborting | State::Paused);
            self.with_output += u32::from(s.outputs > 0 && !ended);
            self.reserved += s.reserved;
            self.owed += self.slots.cold(slot).owed;
            self.admitted += u32::from(state == State::Running);
            self.alive += u32::from(state != State::Gone);
            self.partial += u32::from(partial);
            self.decoding += u32::from(decoding);
            self.decoding_tokens += if decoding { known.into() } else { 0 };
            if self.config.policy == PolicyKind::Fair && state != State::Gone {
                let tenant = self.slots.cold(slot).tenant;
                let served = self.tenants.enter_again(tenant).ok_or(RestoreError::Tenants)?;
                self.set_served(tenant, served);
            }
            self.check_digests(slot)?;
            self.count_paced(slot);
            self.count_waiting(slot);
        }
        if self.tenants.leaks_none() { Ok(()) } else { Err(RestoreError::Tenants) }
    }

    /// What is encoded, and who needs it.
    fn take_encoder(&mut self, saved: &Saved) -> Result<(), RestoreError> {
        self.encoder_freed.clone_from(&saved.encoder_freed);
        for &(item, batch) in &saved.encoder {
            if !self.encoder.load(item, batch) {
                return Err(RestoreError::Counter { field: "encoder" });
            }
        }
        for (slot, s) in self.slots.iter() {
            let cold = self.slots.cold(slot);
            for item in cold.held.clone().filter_map(|index| cold.spans[index as usize].item()) {
                if !self.encoder.hold(item) {
                    return Err(RestoreError::Request { request: RequestId(s.id), what: "it needs an item that is not encoded" });
                }
            }
        }
        Ok(())
    }

    /// The digests of tokens that are there are what they hash to.
    fn check_digests(&mut self, slot: u32) -> Result<(), RestoreError> {
        let s = &self.slots[slot];
        let request = RequestId(s.id);
        if !s.has(Trait::Cacheable) || !s.keeps_tokens {
            return Ok(());
        }
        let cold = self.slots.cold_mut(slot);
        let saved = core::mem::take(&mut cold.digests);
        cold.digests = Chain::new(saved.root(), core::iter::empty());
        self.extend_digests(slot);
        let right = self.slots.cold(slot).digests.starts_with(&saved);
        self.slots.cold_mut(slot).digests = saved;
        if right { Ok(()) } else { Err(RestoreError::Request { request, what: "its digests" }) }
    }

    /// Batches in flight, and what requests count of them.
    fn take_rows(&mut self, saved: &Saved) {
        for batch in &saved.in_flight {
            for row in &batch.rows {
                let s = &mut self.slots[row.slot];
                s.rows += 1;
                if s.state == State::Running && s.epoch == row.epoch {
                    s.live_rows += 1;
                    s.live += u32::from(row.samples);
                    if row.num_draft_tokens > 0 {
                        s.set(Trait::DraftsOut, true);
                    }
                }
            }
            let mut batch = batch.clone();
            (batch.terms, batch.samples) = (crate::cost::CostTerms::default(), 0);
            for row in &batch.rows {
                batch.terms.add(row.terms());
                batch.samples += u32::from(row.samples);
            }
            self.in_flight.push_back(alloc::boxed::Box::new(batch));
        }
    }

    /// What the caller's policy said of requests that are queued.
    fn take_keys(&mut self, saved: &Saved) -> Result<(), RestoreError> {
        if self.policy.is_none() {
            return Ok(());
        }
        let keys: BTreeMap<u32, Key> = saved.keys.iter().copied().collect();
        let queued = [&self.prompts, &self.waiting, &self.resident, &self.wanting].into_iter().flat_map(PromptQueue::iter);
        let mut slots: Vec<u32> = queued.map(|(_, slot)| slot).collect();
        slots.sort_unstable();
        if !slots.iter().eq(keys.keys()) {
            return Err(RestoreError::Counter { field: "keys" });
        }
        if let Some((&slot, _)) = keys.iter().find(|&(&slot, key)| !key.is_sane(self.slots.cold(slot).seq)) {
            return Err(RestoreError::Queue { slot, what: "what it is compared by" });
        }
        let wanted = |slot: u32| keys.get(&slot).copied();
        for queue in [&mut self.prompts, &mut self.waiting, &mut self.resident, &mut self.wanting] {
            queue.rekey(|slot| wanted(slot).unwrap_or(Key::fixed(0, 0)));
        }
        self.put_off = crate::queue::IndexedHeap::default();
        for (&slot, key) in &keys {
            if let Some(until) = key.deferred_until_ns() {
                self.put_off.push(slot, (until, self.slots.cold(slot).seq));
            }
        }
        Ok(())
    }

    /// Puts every request where it belongs.
    fn take_queues(&mut self, saved: &Saved) -> Result<(), RestoreError> {
        for &slot in &saved.ready {
            let s = self.slots.get(slot).filter(|s| s.state == State::Running && s.ticket == 0);
            let demand = s.map(|s| s.demand(self.config.async_scheduling));
            if demand != Some(Demand::Decode) {
                return Err(RestoreError::Queue { slot, what: "it is ready to decode, but has no decode to do" });
            }
            self.slots[slot].ticket = self.ready.push_back(slot);
        }
        let slots: Vec<u32> = self.slots.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.queue_victim(slot);
            let s = &self.slots[slot];
            if s.state == State::Waiting && s.waits_kv && !s.pinned {
                self.wanting.push(slot, self.key(slot), self.slots.cold(slot).tenant);
            }
            self.queue_waiting(slot);
            self.queue_running(slot);
        }
        self.take_keys(saved)?;
        for &(slot, end) in &saved.leases {
            let s = self.slots.get(slot).filter(|s| s.pinned && !matches!(s.state, State::Vacant | State::Gone));
            if s.is_none() || self.leases.contains(slot) {
                return Err(RestoreError::Queue { slot, what: "it has a lease, but no transfer" });
            }
            self.leases.set(slot, (end, self.slots.cold(slot).seq));
        }
        if let Some(slot) = saved.lacking {
            if self.slots.get(slot).is_none_or(|s| s.state != State::Running) {
                return Err(RestoreError::Queue { slot, what: "it lacks a block, but does not run" });
            }
            self.lacking = Some((self.victim_key(slot), slot));
        }
        let version = self.pool.index().version();
        self.refused = saved.refused.map(|(seq, known, needed)| Refused { seq, known, version, needed });
        Ok(())
    }
}
