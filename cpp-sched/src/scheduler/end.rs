//! A request ends: by its last token, by an abort, or because its transfer ended.

use super::Scheduler;
use crate::batch::Ended;
use crate::config::{PolicyKind, Role};
use crate::event::{Event, FinishReason};
use crate::ids::RequestId;
use crate::outcome::Outcome;
use crate::state::State;

impl Scheduler {
    /// Ends a request in any state: no token of it is delivered and nothing of it scheduled from here on. Its end is told when its last batch
    /// and its transfer have ended, at once if there is none. [`NotAlive`](Outcome::NotAlive) and [`Already`](Outcome::Already) (aborted before) are
    /// normal: a client that hangs up crosses with the end of its request.
    ///
    /// O(log waiting + log admitted + its blocks).
    pub fn abort(&mut self, request: RequestId) -> Outcome {
        let Some(slot) = self.slots.find(request.0) else { return Outcome::NotAlive };
        if self.slots[slot].state == State::Aborting {
            return Outcome::Already;
        }
        self.leave(slot);
        self.slots[slot].state = State::Aborting;
        self.settle(slot);
        if self.config.role == Role::Decode {
            self.grant_transfers();
        }
        Outcome::Applied
    }

    /// The request has ended with its last token, or with its transfer.
    pub(super) fn finish(&mut self, slot: u32, reason: FinishReason) {
        self.leave(slot);
        self.tell_end(slot, reason);
        self.slots[slot].state = State::Gone;
        self.count_waiting(slot);
        self.slots[slot].pinned = false;
        self.settle(slot);
    }

    /// Takes the request out of everything but the batches in flight and its transfer.
    fn leave(&mut self, slot: u32) {
        self.unqueue(slot);
        self.release_encodings(slot);
        let s = &self.slots[slot];
        let (state, pinned) = (s.state, s.pinned);
        match state {
            // Its blocks were let go when sending began; the table only names what is pinned.
            State::Sending => {}
            // Blocks into which KV arrives belong to the transfer, and stay.
            State::Waiting if pinned && self.config.role == Role::Decode => {}
            _ if pinned => {
                self.release_pinned_holder(slot);
                self.begin_lease(slot);
            }
            _ => self.release_blocks(slot),
        }
        if state == State::Running {
            self.admitted -= 1;
            self.note_end();
        }
        let s = &mut self.slots[slot];
        self.with_output -= u32::from(s.outputs > 0 && state != State::Paused);
        self.reserved -= s.reserved;
        s.reserved = 0;
        s.state = State::Aborting;
        self.slots.set_stale(slot, 0);
        self.repay(slot);
        self.count_decoding(slot);
        self.count_partial(slot);
    }

    fn tell_end(&mut self, slot: u32, reason: FinishReason) {
        let request = RequestId(self.slots[slot].id);
        let cold = self.slots.cold(slot);
        if cold.admitted {
            self.ended.push(Ended { request, slot, seq: cold.seq });
        }
        self.slots.forget_id(slot);
        self.alive -= 1;
        if self.config.policy == PolicyKind::Fair {
            self.tenants.leave(self.slots.cold(slot).tenant);
        }
        match reason {
            FinishReason::Aborted => self.stats.aborted += 1,
            FinishReason::TransferFailed => self.stats.transfers_failed += 1,
            _ => self.stats.finished += 1,
        }
        self.events.push(Event::Finished { request, reason });
    }

    /// Lets the record go when nothing refers to it any more, and tells the end of an abort.
    pub(super) fn settle(&mut self, slot: u32) {
        let s = &self.slots[slot];
        if s.rows > 0 || s.pinned {
            return;
        }
        match s.state {
            State::Aborting => {
                self.tell_end(slot, FinishReason::Aborted);
                self.slots[slot].state = State::Gone;
                self.count_waiting(slot);
                self.slots.vacate(slot);
            }
            State::Gone => self.slots.vacate(slot),
            State::Vacant | State::Waiting | State::Running | State::Paused | State::Sending => {}
        }
    }
}
