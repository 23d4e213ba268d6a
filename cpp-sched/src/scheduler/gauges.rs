//! Who waits for what, counted as it changes.
//!
//! Each request's part in the gauges is a set of bits that follows from its record. Where a record changes in a way that may matter, the bits are
//! worked out again, and the counts move by the difference: O(1), and nothing for a decode that goes on.

use super::Scheduler;
use crate::gate::Gate;
use crate::state::{Cold, Slot, State, Trait};
use crate::stats::{Stats, Waiting};

const ADMISSION: u16 = 1;
const GATES: u16 = 1 << 1;
const LATE: u16 = 1 << 2;
const TRANSFER_BLOCKS: u16 = 1 << 3;
const KV: u16 = 1 << 4;
const CONSUMERS: u16 = 1 << 5;
const INPUT: u16 = 1 << 6;
const ABORT: u16 = 1 << 7;
const AGAIN: u16 = 1 << 8;
/// Shut gates, from this bit on, in the order of [`Gate::ALL`].
const FIRST_GATE: u32 = 9;
/// Admitted, and behind a shut gate.
const SHUT_RUNNING: u16 = 1 << 14;
const BITS: usize = 15;

/// How many requests have each bit.
pub(super) type Counts = [u32; BITS];

/// The part of one request.
pub(super) fn bits(s: &Slot, cold: &Cold) -> u16 {
    let gates = || (FIRST_GATE..).zip(Gate::ALL).filter(|(_, gate)| s.gates.contains(*gate)).fold(0, |bits, (bit, _)| bits | 1 << bit);
    let again = if cold.admitted { AGAIN } else { 0 };
    match s.state {
        State::Vacant | State::Gone => 0,
        State::Aborting => ABORT,
        State::Sending => CONSUMERS,
        State::Paused => INPUT | gates(),
        State::Waiting if s.waits_kv => gates() | if s.pinned { KV } else { TRANSFER_BLOCKS },
        State::Waiting if !s.gates.is_empty() => GATES | gates() | again,
        State::Waiting if s.has(Trait::Late) => LATE | again,
        State::Waiting => ADMISSION | again,
        State::Running if !s.gates.is_empty() => GATES | gates() | SHUT_RUNNING,
        State::Running => 0,
    }
}

impl Scheduler {
    /// Counts the request by what it waits for now.
    pub(super) fn count_waiting(&mut self, slot: u32) {
        let new = bits(&self.slots[slot], self.slots.cold(slot));
        let old = core::mem::replace(&mut self.slots.cold_mut(slot).counted, new);
        let mut differing = old ^ new;
        while differing != 0 {
            let bit = differing.trailing_zeros();
            differing &= differing - 1;
            let count = &mut self.gauges[bit as usize];
            *count = if new & (1 << bit) != 0 { *count + 1 } else { *count - 1 };
        }
    }

    /// Whether somebody is admitted behind a shut gate.
    pub(super) fn is_somebody_shut(&self) -> bool {
        self.gauges[SHUT_RUNNING.trailing_zeros() as usize] > 0
    }

    /// Counters and gauges. O(batches in flight); allocates nothing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let count = |bit: u16| self.gauges[bit.trailing_zeros() as usize];
        let gate = |kind: usize| self.gauges[FIRST_GATE as usize + kind];
        let sum = |of: fn(&crate::batch::Batch) -> u64| self.in_flight.iter().fold(0u64, |sum, batch| sum.saturating_add(of(batch)));
        Stats {
            running: self.admitted,
            waiting: self.alive - self.admitted,
            waiting_for: Waiting {
                admission: count(ADMISSION),
                gates: count(GATES),
                late_results: count(LATE),
                transfer_blocks: count(TRANSFER_BLOCKS),
                kv: count(KV),
                consumers: count(CONSUMERS),
                input: count(INPUT),
                abort: count(ABORT),
                again: count(AGAIN),
                gate_other: gate(0),
                gate_grammar: gate(1),
                gate_kv: gate(2),
                gate_input: gate(3),
                gate_adapter: gate(4),
            },
            in_flight_batches: self.in_flight.len() as u32,
            in_flight_tokens: sum(|batch| batch.terms.tokens),
            in_flight_cost_ns: sum(|batch| batch.cost_ns),
            encoder_cached_tokens: self.encoder.used(),
            ..self.stats
        }
    }
}
