//! Counters and gauges, against counts over the driver's own records.

use cpp_sched::{Gate, GateSet, Waiting};

use super::tracked::drops_late;
use super::{Driver, Tracked, ensure};

/// The driver's own copy of the kernel's counters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) submitted: u64,
    pub(super) rejected: u64,
    pub(super) finished: u64,
    pub(super) aborted: u64,
    pub(super) transfers_failed: u64,
    pub(super) batches: u64,
    pub(super) lost: u64,
    pub(super) scheduled_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) preemptions: u64,
    pub(super) preempted_tokens: u64,
    pub(super) recomputed: u64,
    pub(super) perhaps_recomputed: u64,
    pub(super) copies: u64,
    pub(super) drafts: u64,
    pub(super) accepted_drafts: u64,
    pub(super) queried: u64,
    pub(super) hit: u64,
    pub(super) hit_resumed: u64,
    /// What requests looked up and found at most of which it does not show whether it was for their first admission, or at all.
    pub(super) perhaps_queried: u64,
    pub(super) perhaps_hit: u64,
    /// Admissions that rows or preemptions show, and all that calls of `schedule` made.
    pub(super) admissions: u64,
    pub(super) all_admissions: u64,
}

/// How many for certain, and how many at most.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds(u32, u32);

impl Bounds {
    fn add(&mut self, certain: bool) {
        self.0 += u32::from(certain);
        self.1 += 1;
    }

    fn has(self, n: u32) -> bool {
        (self.0..=self.1).contains(&n)
    }
}

impl Driver {
    pub(super) fn audit_counters(&self) -> Result<(), String> {
        let (s, c) = (self.scheduler.stats(), &self.counts);
        let counters = [
            ("submitted", s.submitted, c.submitted),
            ("rejected", s.rejected, c.rejected),
            ("finished", s.finished, c.finished),
            ("aborted", s.aborted, c.aborted),
            ("transfers_failed", s.transfers_failed, c.transfers_failed),
            ("batches", s.batches, c.batches),
            ("batches_lost", s.batches_lost, c.lost),
            ("scheduled_tokens", s.scheduled_tokens, c.scheduled_tokens),
            ("output_tokens", s.output_tokens, c.output_tokens),
            ("preemptions", s.preemptions, c.preemptions),
            ("draft_tokens", s.draft_tokens, c.drafts),
            ("accepted_draft_tokens", s.accepted_draft_tokens, c.accepted_drafts),
            ("encoder_tokens", s.encoder_tokens, self.encodings.tokens),
        ];
        for (name, got, due) in counters {
            ensure!(got == due, "{name} is {got}, must be {due}");
        }
        let cached = [
            ("recomputed", s.recomputed_tokens, c.recomputed, c.perhaps_recomputed),
            ("preempted", s.preempted_tokens, c.preempted_tokens, c.perhaps_hit),
            ("cache_queried", s.cache_queried_tokens, c.queried, c.perhaps_queried),
            ("cache_hit", s.cache_hit_tokens, c.hit, c.perhaps_hit),
            ("cache_hit_resumed", s.cache_hit_tokens_resumed, c.hit_resumed, c.perhaps_hit),
        ];
        for (name, got, due, perhaps) in cached {
            let due = due..=due + perhaps;
            ensure!(due.contains(&got), "{name}_tokens is {got}, must be {due:?}");
        }
        let shown = c.admissions <= s.admissions;
        ensure!(
            shown && s.admissions == c.all_admissions,
            "admissions is {}, {} show, {} in all",
            s.admissions,
            c.admissions,
            c.all_admissions
        );
        let most = self.config.encoder_cache_tokens.map_or(u64::MAX, u64::from);
        ensure!(s.encoder_cached_tokens <= most, "encoder_cached_tokens is {}", s.encoder_cached_tokens);
        self.audit_gauges()
    }

    /// Who runs and who waits for what. One whose gate was shut may have given up its slot to another one, and one that holds blocks may have got a
    /// slot without a row, which shows only later.
    fn audit_gauges(&self) -> Result<(), String> {
        let s = self.scheduler.stats();
        let mut due = Waiting::default();
        let (mut running, mut admission, mut again) = (Bounds::default(), Bounds::default(), Bounds::default());
        for &who in self.alive.values() {
            let r = &self.requests[who];
            if r.aborting {
                due.abort += 1;
                continue;
            }
            if r.is_sending(&self.config) {
                due.consumers += 1;
                continue;
            }
            let before = r.admissions > 0 || r.perhaps_admitted;
            let certain = r.admissions > 0;
            count_gates(&mut due, r.gates);
            match r {
                r if r.paused => due.input += 1,
                r if r.waits_kv && r.wanted.is_some() => due.kv += 1,
                r if r.waits_kv => due.transfer_blocks += 1,
                r if !r.gates.is_empty() => {
                    due.gates += 1;
                    let unsure = r.admitted || r.may_hold_a_slot_unseen();
                    if unsure {
                        running.add(false);
                    }
                    if before {
                        again.add(certain && !unsure);
                    }
                }
                r if !r.admitted && self.awaits_late(who) => {
                    due.late_results += 1;
                    if before {
                        again.add(certain);
                    }
                }
                r if r.admitted && !r.set_aside => running.add(true),
                r => {
                    let unsure = r.admitted || r.may_hold_a_slot_unseen();
                    admission.add(!unsure);
                    if unsure {
                        running.add(false);
                    }
                    if before {
                        again.add(certain && !unsure);
                    }
                }
            }
        }
        let w = s.waiting_for;
        let waits = [w.admission, w.gates, w.late_results, w.transfer_blocks, w.kv, w.consumers, w.input, w.abort, w.again];
        let names = ["admission", "gates", "late results", "transfer blocks", "kv", "consumers", "input", "abort", "again"];
        names.into_iter().zip(waits).filter(|(_, waiting)| *waiting > 0).for_each(|(name, _)| self.meet(name));
        ensure!(running.has(s.running), "running is {}, must be {running:?}: {w:?}", s.running);
        ensure!(admission.has(w.admission), "{} wait for admission, must be {admission:?}: {w:?}", w.admission);
        ensure!(again.has(w.again), "{} wait again, must be {again:?}: {w:?}", w.again);
        (due.admission, due.again) = (w.admission, w.again);
        ensure!(w == due, "waiting_for is {w:?}, must be {due:?}");
        ensure!(s.running + s.waiting == self.alive.len() as u32, "{} run and {} wait", s.running, s.waiting);
        let tokens: u64 = self.flying().map(|row| u64::from(row.end - row.start)).sum();
        let cost: u64 = self.flight.iter().map(|flight| flight.cost_ns).sum();
        let got = (s.in_flight_batches as usize, s.in_flight_tokens, s.in_flight_cost_ns);
        ensure!(got == (self.flight.len(), tokens, cost), "in flight are {got:?}, must be {:?}", (self.flight.len(), tokens, cost));
        Ok(())
    }

    /// A result of before its preemption is still to be delivered.
    fn awaits_late(&self, who: usize) -> bool {
        let r: &Tracked = &self.requests[who];
        let late = |row: &super::flight::Flying| row.who == who && row.samples && !row.void && row.epoch >= r.void_before;
        !drops_late(&self.config) && self.flying().any(|row| late(row) && row.epoch != r.epoch)
    }
}

fn count_gates(due: &mut Waiting, gates: GateSet) {
    let counts = [
        (Gate::Other, &mut due.gate_other),
        (Gate::Grammar, &mut due.gate_grammar),
        (Gate::Kv, &mut due.gate_kv),
        (Gate::Input, &mut due.gate_input),
        (Gate::Adapter, &mut due.gate_adapter),
    ];
    for (gate, count) in counts {
        *count += u32::from(gates.contains(gate));
    }
}
