//! Re-computes everything that is kept incrementally, and compares.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{Scheduler, gauges};
use crate::config::{Pipelining, PolicyKind, Role};
use crate::kv::{GroupTable, KvGroup};
use crate::planner::Work;
use crate::state::{Demand, Slot, State, Trait};

/// An invariant that does not hold: a bug in this crate. Please report it with the calls that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant violated: {}", self.0)
    }
}

impl core::error::Error for Violation {}

/// What is counted over all requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    reserved: u32,
    owed: u32,
    admitted: u32,
    partial: u32,
    alive: u32,
    decoding: u32,
    decoding_tokens: u64,
    with_output: u32,
    ready: u32,
    open: u32,
}

impl Scheduler {
    /// Compares all that is kept incrementally with what it must be. For tests: O(requests + rows in flight + blocks).
    ///
    /// # Errors
    /// The first difference, which is a bug in this crate.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let mut problems = Vec::new();
        self.check_sums(&mut problems);
        self.check_gauges(&mut problems);
        self.check_rows(&mut problems);
        self.check_blocks(&mut problems);
        problems.extend(self.encoder_problem().map(String::from));
        for (slot, s) in self.slots.iter() {
            self.check_slot(slot, s, &mut problems);
            self.check_tail(s, &mut problems);
            if self.is_grouped() && s.state != State::Gone {
                self.check_groups(slot, s, &mut problems);
            }
        }
        match problems.into_iter().next() {
            Some(problem) => Err(Violation(problem)),
            None => Ok(()),
        }
    }

    fn check_sums(&self, problems: &mut Vec<String>) {
        let mut sums = Sums::default();
        let mut rest = Work::default();
        for (slot, s) in self.slots.iter() {
            sums.reserved += s.reserved;
            sums.owed += self.slots.cold(slot).owed;
            sums.admitted += u32::from(s.state == State::Running);
            sums.partial += u32::from(s.has(Trait::Partial));
            sums.alive += u32::from(s.state != State::Gone);
            sums.decoding += u32::from(s.has(Trait::Decoding));
            sums.decoding_tokens += if s.has(Trait::Decoding) { u64::from(s.known()) } else { 0 };
            sums.with_output += u32::from(s.outputs > 0 && !matches!(s.state, State::Gone | State::Aborting | State::Paused));
            sums.ready += u32::from(s.ticket != 0);
            let unscheduled = self.slots.unscheduled(slot);
            sums.open += u32::from(unscheduled.end > unscheduled.start);
            rest.tokens += Work::of(unscheduled).tokens;
            rest.pairs += Work::of(unscheduled).pairs;
        }
        let kept_rest = self.target.period.rest();
        must(problems, kept_rest == rest, || alloc::format!("{kept_rest:?} to prefill is kept, {rest:?} is counted"));
        let kept = Sums {
            reserved: self.reserved,
            owed: self.owed,
            admitted: self.admitted,
            partial: self.partial,
            alive: self.alive,
            decoding: self.decoding,
            decoding_tokens: self.decoding_tokens,
            with_output: self.with_output,
            ready: self.ready.len(),
            open: self.target.open,
        };
        must(problems, sums == kept, || alloc::format!("{kept:?} are kept, {sums:?} are counted"));
        must(problems, self.slots.num_ids() == self.alive as usize, || "ids and requests alive differ".into());
        must(problems, self.in_flight.len() <= self.depth as usize, || "more than max_in_flight batches are in flight".into());
        must(problems, self.reserved <= self.pool.available(), || {
            alloc::format!("{} blocks are set aside, fewer are there", self.reserved)
        });
        let paced = self.slots.iter().filter(|&(slot, s)| s.has(Trait::Decoding) && self.slots.cold(slot).tbt_slo_ns.is_some()).count();
        must(problems, self.paced.is_consistent() && self.paced.len() == paced, || {
            alloc::format!("{} requests keep a pace, {paced} are counted", self.paced.len())
        });
        let queues = [("prompts", &self.prompts), ("waiting", &self.waiting), ("resident", &self.resident), ("wanting", &self.wanting)];
        for (name, queue) in queues {
            must(problems, queue.is_consistent(), || alloc::format!("the queue {name} is out of order"));
            for (key, slot) in queue.iter() {
                // What a policy of the caller's would say now is not asked.
                let own = self.policy.is_none();
                must(problems, !own || key == self.key(slot), || alloc::format!("{name}: slot {slot} has an old key"));
                let until = self.put_off.iter().find(|&(_, other)| other == slot).map(|((until, _), _)| until);
                must(problems, key.deferred_until_ns() == until || name == "wanting", || {
                    alloc::format!("{name}: slot {slot} is put off until {until:?}, its key is {key:?}")
                });
            }
        }
        must(problems, self.victims.is_consistent() && self.idle.is_consistent(), || "the queue of victims is out of order".into());
        let fair = self.config.policy == PolicyKind::Fair;
        must(problems, !fair || self.tenants.requests() == self.alive, || "tenants and requests alive differ".into());
    }

    /// The gauges are what a count over all requests gives.
    fn check_gauges(&self, problems: &mut Vec<String>) {
        let mut counts = gauges::Counts::default();
        for (slot, s) in self.slots.iter() {
            let (bits, counted) = (gauges::bits(s, self.slots.cold(slot)), self.slots.cold(slot).counted);
            must(problems, bits == counted, || alloc::format!("request {}: counted as {:b}, must be {bits:b}", s.id, counted));
            for (bit, count) in counts.iter_mut().enumerate() {
                *count += u32::from(bits & (1 << bit) != 0);
            }
        }
        must(problems, counts == self.gauges, || alloc::format!("{:?} are kept, {counts:?} wait", self.gauges));
    }

    fn check_rows(&self, problems: &mut Vec<String>) {
        let mut rows = alloc::collections::BTreeMap::<u32, (u32, u32, u32, u32)>::new();
        for (at, batch) in self.in_flight.iter().enumerate() {
            let id = self.next_batch - (self.in_flight.len() - at) as u64;
            must(problems, batch.id.0 == id, || alloc::format!("{} stands where batch {id} must", batch.id));
            let mut named = batch.preempted.clone();
            named.sort_unstable();
            let twice = named.windows(2).any(|pair| pair[0] == pair[1]);
            must(problems, !twice, || alloc::format!("{} names a preempted request twice", batch.id));
            // Budgets are no invariant: they may have been lowered since the batch was made.
            let tokens = batch.terms.tokens;
            must(problems, tokens == batch.rows.iter().map(|r| u64::from(r.num_scheduled_tokens)).sum::<u64>(), || {
                "tokens of a batch".into()
            });
            for row in &batch.rows {
                let s = &self.slots[row.slot];
                let counts = rows.entry(row.slot).or_default();
                let live = s.epoch == row.epoch && s.state == State::Running;
                counts.0 += 1;
                counts.1 += u32::from(live);
                counts.2 += u32::from(live && row.samples);
                counts.3 += u32::from(row.epoch == self.slots.cold(row.slot).stale_epoch && row.samples);
                must(problems, !live || batch.id.0 <= s.last_batch, || alloc::format!("{}: last_batch is behind", row.request));
            }
        }
        for (slot, s) in self.slots.iter() {
            let (all, live, samples, stale) = rows.get(&slot).copied().unwrap_or_default();
            must(problems, s.rows == all, || alloc::format!("request {}: {} rows kept, {all} in flight", s.id, s.rows));
            if s.state == State::Running {
                let kept = (s.live_rows, s.live);
                must(problems, kept == (live, samples), || alloc::format!("request {}: {kept:?} kept, {live}, {samples} in flight", s.id));
            }
            let late = self.slots.cold(slot).stale;
            must(problems, (late > 0) == s.has(Trait::Late), || alloc::format!("request {}: {late} late, told otherwise", s.id));
            must(problems, late == 0 || late == stale, || alloc::format!("request {}: {late} late, {stale} in flight", s.id));
        }
    }

    fn check_blocks(&self, problems: &mut Vec<String>) {
        let usage = self.pool.usage();
        must(problems, self.pool.is_consistent(), || alloc::format!("the pool's lists do not fit its blocks: {usage:?}"));
        let mut used = alloc::vec![(0u32, 0u32); usage.total as usize];
        for (slot, s) in self.slots.iter() {
            let holds = matches!(s.state, State::Running | State::Paused) || (s.state == State::Waiting && !s.waits_kv);
            let announced = match self.config.role {
                Role::Prefill => self.config.blocks(self.slots.cold(slot).ready_to) as usize,
                _ => usize::MAX,
            };
            for (index, block) in s.table.iter().enumerate() {
                used[block.0 as usize].0 += u32::from(holds);
                used[block.0 as usize].1 += u32::from(s.pinned && index < announced);
            }
            for block in self.slots.cold(slot).groups.iter().flat_map(GroupTable::held) {
                used[block.0 as usize].0 += u32::from(holds);
            }
        }
        for copied in &self.build.copies {
            used[copied.from.0 as usize].0 += 1;
        }
        for (block, &(refs, pins)) in (0..).zip(&used) {
            let (kept_refs, kept_pins, fenced) = self.pool.inspect(block);
            must(problems, (refs, pins) == (kept_refs, kept_pins), || {
                alloc::format!("block {block}: {kept_refs} holders and {kept_pins} transfers kept, {refs} and {pins} counted")
            });
            must(problems, !fenced || !self.in_flight.is_empty(), || alloc::format!("block {block} is fenced, nothing is in flight"));
        }
    }

    /// A block that a request may write to, from what is final on, is its own, or it is known that it may be another's.
    fn check_tail(&self, s: &Slot, problems: &mut Vec<String>) {
        let holds = matches!(s.state, State::Running | State::Paused) || (s.state == State::Waiting && !s.waits_kv);
        if !holds || s.shared_tail || self.is_grouped() {
            return;
        }
        for &block in s.table.iter().skip((s.committed / self.config.block_size) as usize) {
            let owns = self.pool.holders(block) == 1 && !self.pool.index().is_hashed(block.0);
            must(problems, owns, || alloc::format!("request {}: {block} may be written to, and belongs to others too", s.id));
        }
    }

    /// The tables of the further groups are as long as that of the first one says, and hold what positions from the base on read.
    fn check_groups(&self, slot: u32, s: &Slot, problems: &mut Vec<String>) {
        let (id, size, len, cold) = (s.id, self.config.block_size, s.table.len() as u32, self.slots.cold(slot));
        let base = self.config.kv_groups.base(s.committed);
        must(problems, cold.groups.len() == self.config.kv_groups.more().len(), || alloc::format!("request {id}: its groups"));
        for (table, &group) in cold.groups.iter().zip(self.config.kv_groups.more()) {
            let (first, end) = (table.front(), table.len());
            let entries = match group {
                KvGroup::Cross if s.state == State::Running => self.config.blocks(cold.cross_tokens),
                KvGroup::Cross => end,
                _ => group.entries_of_blocks(len, size),
            };
            must(problems, end == entries, || alloc::format!("request {id}: {group:?} has {end} entries, must have {entries}"));
            let front = group.front(base, size);
            must(problems, first <= front || len == 0, || alloc::format!("request {id}: {group:?} begins with {first}, {front} is needed"));
            must(problems, len > 0 || group == KvGroup::Cross || (first, end) == (0, 0), || {
                alloc::format!("request {id}: {group:?} has blocks")
            });
            let sliding = table.held().iter().all(|&block| self.pool.slides(block) == group.slides());
            must(problems, sliding, || alloc::format!("request {id}: {group:?} has a block of another group"));
        }
    }

    fn check_slot(&self, slot: u32, s: &Slot, problems: &mut Vec<String>) {
        let id = s.id;
        must(problems, s.committed <= s.scheduled, || alloc::format!("request {id}: {} committed, {} scheduled", s.committed, s.scheduled));
        must(problems, s.live_rows > 0 || s.scheduled == s.committed, || {
            alloc::format!("request {id}: work is scheduled, but not in flight")
        });
        must(problems, s.outputs <= s.max_out, || alloc::format!("request {id}: {} outputs", s.outputs));
        let running = s.state == State::Running;
        let room = u64::from(s.table.len() as u32) * u64::from(self.config.block_size);
        must(problems, !running || u64::from(s.scheduled) <= room, || alloc::format!("request {id}: positions without a block"));
        must(problems, s.ticket == 0 || running, || alloc::format!("request {id}: ready, but not admitted"));
        let queued = (self.waiting.contains(slot), self.resident.contains(slot));
        let runnable = (s.is_runnable() && s.table.is_empty(), s.is_runnable() && !s.table.is_empty());
        must(problems, queued == runnable, || alloc::format!("request {id}: (waiting, resident) must be {runnable:?}, is {queued:?}"));
        let free_to_go = running && s.gates.is_empty() && !(self.config.pipelining == Pipelining::Request && s.live_rows > 0);
        let demand = if free_to_go { s.demand(self.config.async_scheduling) } else { Demand::Nothing };
        let places = (self.prompts.contains(slot), s.ticket != 0);
        let expected = (demand == Demand::Prompt, demand == Demand::Decode);
        must(problems, places == expected, || alloc::format!("request {id}: wants {demand:?}, queued as (prompt, decode) {places:?}"));
        let holds = running || (matches!(s.state, State::Waiting | State::Paused) && !s.waits_kv && !s.table.is_empty());
        let holds = holds && !s.pinned;
        let idle = s.state == State::Paused || !s.gates.is_empty();
        let places = (self.victims.contains(slot), self.idle.contains(slot));
        must(problems, places == (holds && !idle, holds && idle), || {
            alloc::format!("request {id}: holds {holds}, idle {idle}, among (victims, idle) {places:?}")
        });
        must(problems, self.is_placed(slot), || alloc::format!("request {id}: wrong among those that are to be on time"));
        // By them the blocks behind are named.
        let named =
            s.table.iter().zip(&*self.slots.cold(slot).digests).take(if s.has(Trait::Cacheable) { s.published as usize } else { 0 });
        let right = named.into_iter().all(|(block, &digest)| self.pool.index().digest(block.0).is_none_or(|found| found == digest));
        must(problems, right, || alloc::format!("request {id}: a block is found by another prefix than its own"));
        let work = self.slots.unscheduled(slot);
        must(problems, self.counts_work(slot, work), || alloc::format!("request {id}: {work:?} is not what it has to prefill"));
        must(problems, !s.has(Trait::Decoding) || running, || alloc::format!("request {id}: decodes, but is not admitted"));
    }
}

fn must(problems: &mut Vec<String>, holds: bool, problem: impl FnOnce() -> String) {
    if !holds {
        problems.push(problem());
    }
}
