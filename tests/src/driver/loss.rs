//! The executor lost batches: every one in flight, or one of them.

use std::collections::BTreeSet;

use cpp_sched::journal::Input;
use cpp_sched::{BatchId, CompleteError};

use super::flight::{Flight, Flying};
use super::groups::grain;
use super::{Driver, Line, ensure};

impl Driver {
    /// The executor lost everything: cursors go back, and what was being written is rubbish.
    pub(super) fn fail(&mut self) -> Result<(), String> {
        self.recorder.input(&Input::Fail);
        let lost = self.scheduler.fail();
        ensure!(lost as usize == self.flight.len(), "fail tells {lost} batches, {} were in flight", self.flight.len());
        let first = self.flight.front().map_or(u64::MAX, |flight| flight.id.0);
        self.encodings.lose(|batch| batch.0 >= first);
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
                self.spoil(&row, flight.id);
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
            let before = self.state();
            self.recorder.input(&Input::Lose(batch));
            let answer = self.scheduler.lose(batch);
            ensure!(answer == Err(CompleteError::Unknown(batch)), "lose of {batch} answers {answer:?}");
            ensure!(before == self.state(), "{answer:?}, but something has changed");
            return self.quiet("lose");
        };
        let batch = flight.id;
        self.recorder.input(&Input::Lose(batch));
        self.scheduler.lose(batch).map_err(|error| format!("lose of {batch}: {error}"))?;
        self.counts.lost += 1;
        // Late results are of one epoch at most: what was run again waits for them.
        let hit: BTreeSet<(usize, u32)> = self.flight[at].rows.iter().filter(|row| !row.void).map(|row| (row.who, row.epoch)).collect();
        for (who, epoch) in hit {
            self.void_from(who, epoch, at);
        }
        // A session may have gone on since its copy was made.
        for copy in self.flight[at].copies.clone() {
            if copy.is_of(copy.who, &self.requests[copy.who]) && self.requests[copy.who].epoch != copy.epoch {
                self.meet("a copy lost behind the end of an output");
                self.void_from(copy.who, self.requests[copy.who].epoch, at);
            }
        }
        // So are those that used what the batch was to encode.
        for (who, epoch, from) in self.using_lost(at) {
            self.meet("lost with the encoding that it used");
            self.void_from(who, epoch, from);
        }
        self.encodings.lose(|lost| lost == batch);
        self.meet_grouped("one batch lost, several groups", "one batch lost");
        self.undo_copies(&self.flight[at].clone());
        self.flight[at].copies.clear();
        self.flight[at].lost = true;
        self.drop_lost();
        let events = self.take_events()?;
        for event in &events {
            self.see_other(event)?;
        }
        self.end_call(Line::Done("lose"), events)
    }

    /// Rows of a request from the `at`th batch in flight on have written rubbish and bring nothing; it goes on from the row before. A state cannot be
    /// taken back by a token: with one, rows before that end behind the last grain which stands run again as well.
    fn void_from(&mut self, who: usize, epoch: u32, at: usize) {
        let c = self.config;
        let request = &self.requests[who];
        let current = request.is_alive() && request.epoch == epoch && request.void_before <= epoch;
        let mine = |row: &&Flying| row.who == who && row.epoch == epoch && !row.void;
        let copied = self.flight.iter().skip(at).flat_map(|flight| &flight.copies).filter(|copy| copy.is_of(who, request) && current);
        let copy = copied.map(|copy| copy.index * c.block_size).min().unwrap_or(u32::MAX);
        let stands = match grain(&c).filter(|_| current) {
            None => u32::MAX,
            Some(grain) => {
                let ends = self.flight.iter().take(at).flat_map(|flight| &flight.rows).filter(mine).map(|row| row.end);
                ends.filter(|end| end.is_multiple_of(grain)).fold(request.done - request.done % grain, u32::max)
            }
        };
        // Rows before the copy wrote to the block that it was made from.
        let stands = stands.min(copy);
        let last = self.flight.iter().take(at).flat_map(|flight| &flight.rows).filter(mine).map(|row| row.end).filter(|end| *end <= stands);
        let last = last.max();
        if current {
            let request = &mut self.requests[who];
            request.reached = request.reached.max(request.cursor);
            request.done = request.done.min(stands);
            request.cursor = last.unwrap_or(request.done);
            request.caught_up = false;
        }
        for index in 0..self.flight.len() {
            for number in 0..self.flight[index].rows.len() {
                let row = &mut self.flight[index].rows[number];
                if !mine(&&*row) || (index < at && row.end <= stands) {
                    continue;
                }
                row.void = true;
                if index < at {
                    let what = if copy < u32::MAX { "run again for a copy" } else { "run again for a state" };
                    *self.met.get_mut().entry(what).or_default() += 1;
                }
                // Those before the lost batch did run.
                if index >= at {
                    let (row, batch) = (row.clone(), self.flight[index].id);
                    self.spoil(&row, batch);
                    self.forgive_overrun(&row);
                }
            }
        }
    }

    /// Rows that ran past the end of an output count for nothing: what their request itself wrote over them, in the same block, need not be right.
    fn forgive_overrun(&mut self, row: &Flying) {
        let block = (row.start / self.config.block_size) as usize;
        let overrun = |old: &&mut Flying| old.who == row.who && old.epoch < row.epoch && old.table.get(block) == row.table.get(block);
        for old in self.flight.iter_mut().flat_map(|flight| &mut flight.rows).filter(overrun) {
            old.until = old.until.min(row.start);
        }
    }

    /// What a row has written is rubbish.
    fn spoil(&mut self, row: &Flying, batch: BatchId) {
        self.write_groups(row, batch, true);
        for position in row.start..row.end {
            self.memory.lose(&row.table, position, batch);
        }
    }

    /// Blocks that the batch should have got by a copy hold nothing, and their requests compute them.
    fn undo_copies(&mut self, flight: &Flight) {
        for copy in &flight.copies {
            let request = &mut self.requests[copy.who];
            if copy.is_of(copy.who, request) {
                request.reached = request.reached.max(request.cursor);
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
