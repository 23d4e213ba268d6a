//! The executor lost batches: every one in flight, or one of them.

use std::collections::BTreeSet;

use cpp_sched::{BatchId, CompleteError};

use super::groups::grain;
use super::schedule::Flight;
use super::{Driver, Line, ensure};

impl Driver {
    /// The executor lost everything: cursors go back, and what was being written is rubbish.
    pub(super) fn fail(&mut self) -> Result<(), String> {
        let lost = self.scheduler.fail();
        ensure!(lost as usize == self.flight.len(), "fail tells {lost} batches, {} were in flight", self.flight.len());
        for flight in std::mem::take(&mut self.flight) {
            self.counts.lost += u64::from(!flight.lost);
            // The workers have not seen these, so the next batch tells them again.
            self.preempted.extend(&flight.preempted);
            self.undo_copies(&flight);
            for row in flight.rows {
                let request = &mut self.requests[row.who];
                if !row.void && row.epoch == request.epoch && request.is_alive() {
                    request.reached = request.reached.max(request.cursor);
                    // A state goes back to its last grain.
                    request.done -= grain(&self.config).map_or(0, |grain| request.done % grain);
                    request.cursor = request.done;
                    request.caught_up = false;
                }
                self.write_groups(&row, flight.id, true);
                for position in row.start..row.end {
                    self.memory.write(&row.table, position, None, None);
                }
            }
        }
        let events = self.take_events()?;
        for event in &events {
            self.see_other(event)?;
        }
        self.end_call(Line::Fail(lost), events)
    }

    /// One batch is lost: its rows and those that build on them bring nothing, everybody else goes on.
    pub(super) fn lose(&mut self, nth: u32) -> Result<(), String> {
        let at = nth as usize;
        let Some(flight) = self.flight.get(at).filter(|flight| !flight.lost) else {
            let batch = self.flight.get(at).map_or_else(|| BatchId(self.next_batch + u64::from(nth)), |flight| flight.id);
            let before = (self.observe(), format!("{:?}", self.scheduler));
            let answer = self.scheduler.lose(batch);
            ensure!(answer == Err(CompleteError::Unknown(batch)), "lose of {batch} answers {answer:?}");
            ensure!(before == (self.observe(), format!("{:?}", self.scheduler)), "{answer:?}, but something has changed");
            return self.quiet("lose");
        };
        let batch = flight.id;
        self.scheduler.lose(batch).map_err(|error| format!("lose of {batch}: {error}"))?;
        self.counts.lost += 1;
        // Late results are of one epoch at most: what was run again waits for them.
        let hit: BTreeSet<(usize, u32)> = self.flight[at].rows.iter().filter(|row| !row.void).map(|row| (row.who, row.epoch)).collect();
        let copied: Vec<(usize, u32)> =
            self.flight.iter().skip(at).flat_map(|flight| flight.copies.iter().map(|c| (c.who, c.index))).collect();
        for (who, epoch) in hit {
            let before = self.flight.iter().take(at).flat_map(|flight| &flight.rows);
            let last = before.filter(|row| row.who == who && row.epoch == epoch && !row.void).map(|row| row.end).max();
            let request = &mut self.requests[who];
            if request.is_alive() && request.epoch == epoch && request.void_before <= epoch {
                let copy = copied.iter().filter(|(copier, _)| *copier == who).map(|(_, index)| index * self.config.block_size).min();
                request.reached = request.reached.max(request.cursor);
                request.done = request.done.min(copy.unwrap_or(u32::MAX));
                request.cursor = last.unwrap_or(request.done).min(copy.unwrap_or(u32::MAX));
                request.caught_up = false;
            }
        }
        self.undo_copies(&self.flight[at].clone());
        self.flight[at].copies.clear();
        self.flight[at].lost = true;
        self.spoil_from(at);
        self.drop_lost();
        let events = self.take_events()?;
        for event in &events {
            self.see_other(event)?;
        }
        self.end_call(Line::Done("lose"), events)
    }

    /// Rows of the batch, and of later ones that build on them, have written rubbish and bring nothing.
    fn spoil_from(&mut self, at: usize) {
        let lost: BTreeSet<(usize, u32)> = self.flight[at].rows.iter().filter(|row| !row.void).map(|row| (row.who, row.epoch)).collect();
        for flight in self.flight.iter_mut().skip(at) {
            for row in flight.rows.iter_mut().filter(|row| lost.contains(&(row.who, row.epoch))) {
                if row.void {
                    continue;
                }
                row.void = true;
                for position in row.start..row.end {
                    self.memory.write(&row.table, position, None, None);
                }
            }
        }
    }

    /// Blocks that the batch should have got by a copy hold nothing, and their requests compute them.
    fn undo_copies(&mut self, flight: &Flight) {
        for copy in &flight.copies {
            let request = &mut self.requests[copy.who];
            if request.epoch == copy.epoch && request.is_alive() {
                request.done = request.done.min(copy.index * self.config.block_size);
                request.cursor = request.cursor.min(request.done);
            }
            self.memory.spoil(copy.to);
        }
    }

    /// Lost batches that nothing older is in flight before are gone.
    pub(super) fn drop_lost(&mut self) {
        while self.flight.front().is_some_and(|flight| flight.lost) {
            let Some(flight) = self.flight.pop_front() else { return };
            self.completed.push(flight.id);
            self.preempted.extend(flight.preempted);
        }
    }
}
