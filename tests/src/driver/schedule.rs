//! `schedule`: a batch comes out, and the executor runs it.

use std::collections::BTreeMap;

use cpp_sched::journal::Input;
use cpp_sched::{Admission, Balance, Batch, BatchId, Event, RowKind, Schedule};

use super::flight::{CopyOf, Flight, Flying, Tables};
use super::groups::padded;
use super::mirrors::Truth;
use super::{Driver, Line, LoggedRow, ensure};

impl Driver {
    /// Asks for a batch; whether there was one.
    pub(super) fn schedule(&mut self) -> Result<bool, String> {
        let decoding = self.decoding();
        self.mirrors.before(&self.scheduler, self.next_batch)?;
        self.recorder.input(&Input::Schedule);
        let mut right = BTreeMap::new();
        for (id, &who) in &self.alive {
            right.insert(*id, self.accepted(who, u32::MAX));
        }
        let (admissions, shown) = (self.scheduler.stats().admissions, self.counts.admissions);
        let candidates: Vec<_> = self.requests.iter().enumerate().filter(|(_, r)| r.may_be_admitted_unseen()).collect();
        let candidates: Vec<_> = candidates.into_iter().map(|(who, r)| (who, r.admissions)).collect();
        let answer = match self.scheduler.schedule() {
            Schedule::Batch(batch) => {
                self.recorder.batch(&batch);
                let mut truth =
                    Truth { requests: &mut self.requests, alive: &self.alive, flight: &self.flight, lost: self.counts.lost, right };
                self.mirrors.batch(&batch, &mut truth).map_err(|text| format!("{}: {text}", batch.id()))?;
                let more = |row| (1..batch.num_groups()).map(|group| padded(batch.group_table(row, group))).collect::<Vec<_>>();
                let tables = batch.rows().iter().map(|row| (batch.blocks(row).to_vec(), more(row))).collect::<Vec<_>>();
                Ok((batch.batch().clone(), tables))
            }
            Schedule::Empty(reason) => Err(reason),
        };
        let admitted = self.scheduler.stats().admissions - admissions;
        ensure!(self.pause == cpp_sched::Pause::Off || admitted == 0, "{admitted} are admitted while that is paused");
        let events = self.take_events()?;
        for event in &events {
            match *event {
                Event::Preempted { request } => self.see_preempted(request)?,
                Event::KvWanted { request, start, end } => self.see_kv_wanted(request, start, end)?,
                _ => return Err(format!("{event:?} out of schedule")),
            }
        }
        let (line, scheduled) = match answer {
            Ok((batch, tables)) => {
                self.check_batch(&batch, tables, decoding)?;
                self.check_encoded()?;
                let rows = batch.rows().iter().map(|row| LoggedRow {
                    request: row.request,
                    start: row.num_computed_tokens,
                    len: row.num_scheduled_tokens,
                    drafts: row.num_draft_tokens,
                    kind: row.kind,
                    samples: row.samples,
                });
                (Line::Batch(rows.collect(), batch.preempted().to_vec()), true)
            }
            Err(reason) => {
                self.check_empty(reason, !events.is_empty())?;
                (Line::Empty(reason), false)
            }
        };
        let preempted = events.iter().filter(|event| matches!(event, Event::Preempted { .. })).count();
        self.count_unseen(admitted, self.counts.admissions - shown, &candidates, preempted as u64)?;
        self.end_call(line, events)?;
        Ok(scheduled)
    }

    /// Those that the call admitted show it by a row, or by a preemption, but for the candidates, who may be admitted without a row, and show it later.
    fn count_unseen(&mut self, admitted: u64, shown: u64, candidates: &[(usize, u32)], preempted: u64) -> Result<(), String> {
        self.counts.all_admissions += admitted;
        let by_candidates: u32 = candidates.iter().map(|&(who, before)| self.requests[who].admissions - before).sum();
        let certain = shown - u64::from(by_candidates);
        let most = certain + candidates.len() as u64 + preempted;
        ensure!((certain..=most).contains(&admitted), "{admitted} are admitted, must be {certain} to {most}");
        for &(who, _) in candidates.iter().filter(|_| admitted > certain) {
            self.requests[who].perhaps_admitted = true;
        }
        Ok(())
    }

    fn see_preempted(&mut self, id: cpp_sched::RequestId) -> Result<(), String> {
        self.see_preempted_by(id, false)
    }

    /// `reset`: by the operator, and not for want of blocks.
    pub(super) fn see_preempted_by(&mut self, id: cpp_sched::RequestId, reset: bool) -> Result<(), String> {
        let who = *self.alive.get(&id).ok_or_else(|| format!("{id} is preempted, but not alive"))?;
        let request = &mut self.requests[who];
        ensure!(request.is_alive(), "{id} is preempted while it is aborting");
        // A fork or a session that waits may have to give back what it holds.
        let waits = !request.admitted && (request.forked || request.shape.extras.session);
        ensure!(reset || waits || self.config.admission != Admission::NoEvict, "{id} is preempted under no_evict");
        self.counts.preemptions += 1;
        self.counts.preempted_tokens += u64::from(request.done);
        if !request.admitted && request.fresh {
            // It was admitted, and got no row: what it found does not show.
            request.admissions += 1;
            self.counts.admissions += 1;
            if request.is_cacheable(&self.config) {
                // The first admission counts; there may have been one that did not show.
                let known = if request.admissions == 1 { u64::from(request.known()) } else { 0 };
                *(if request.perhaps_admitted { &mut self.counts.perhaps_queried } else { &mut self.counts.queried }) += known;
                self.counts.perhaps_hit += u64::from(request.known());
                request.perhaps_reached = request.known();
            }
        } else if !request.admitted || request.set_aside {
            request.perhaps_admitted = true;
        }
        request.preempt();
        self.preempted.push(id);
        Ok(())
    }

    fn check_batch(&mut self, batch: &Batch, tables: Vec<Tables>, decoding: usize) -> Result<(), String> {
        let c = self.config;
        ensure!(batch.id() == BatchId(self.next_batch), "{} must be batch {}", batch.id(), self.next_batch);
        ensure!(self.flight.len() < c.depth() as usize, "{} are in flight already, at most {}", self.flight.len(), c.depth());
        let (mut preempted, mut named) = (std::mem::take(&mut self.preempted), batch.preempted().to_vec());
        // What a lost batch named is named again, once.
        preempted.sort_unstable();
        preempted.dedup();
        named.sort_unstable();
        ensure!(named == preempted, "the batch names {named:?} as preempted, the events named {preempted:?}");
        let total: u64 = batch.rows().iter().map(|row| u64::from(row.num_scheduled_tokens)).sum();
        ensure!(!batch.rows().is_empty(), "a batch without rows");
        ensure!(batch.rows().len() <= c.max_batch_requests as usize, "{} rows, at most {}", batch.rows().len(), c.max_batch_requests);
        let slots = u64::from(c.draft_slots) * batch.rows().len() as u64;
        ensure!(total + slots <= u64::from(c.max_batch_tokens), "{total} tokens and {slots} of drafters, at most {}", c.max_batch_tokens);
        ensure!(self.pause != cpp_sched::Pause::All, "a batch while all is paused");
        let samples = batch.rows().iter().filter(|row| row.samples).count();
        ensure!(batch.num_samples() as usize == samples, "num_samples is {}, {samples} rows sample", batch.num_samples());

        let copies = self.check_copies(batch, &tables)?;
        let mut rows: Vec<Flying> = Vec::new();
        let mut new = Vec::new();
        let mut decodes = 0;
        for (row, (table, groups)) in batch.rows().iter().zip(tables) {
            let who = *self.alive.get(&row.request).ok_or_else(|| format!("{} is scheduled, but not alive", row.request))?;
            let flying = Flying {
                who,
                epoch: self.requests[who].epoch,
                start: row.num_computed_tokens,
                end: row.end(),
                drafts: row.num_draft_tokens,
                accepted: self.accepted(who, row.num_draft_tokens),
                until: u32::MAX,
                void: false,
                samples: row.samples,
                kind: row.kind,
                table,
                groups,
            };
            let copied: Vec<_> = copies.iter().filter(|copy| copy.who == who).map(|copy| copy.index).collect();
            self.check_row(&flying, &rows, &copied).map_err(|text| format!("{}: {} {row:?}: {text}", batch.id(), row.request))?;
            if self.requests[who].first_batch.is_none() {
                self.requests[who].first_batch = Some(self.next_batch);
                new.push(who);
            }
            // One that comes back after a gate is admitted, and not among those that are spread.
            let request = &self.requests[who];
            decodes += usize::from(row.kind == RowKind::Decode && request.caught_up && !request.set_aside);
            self.execute(&flying);
            rows.push(flying);
        }
        let inputs = self.check_encodings(batch, &rows)?;
        self.check_requests_per_batch(&rows)?;
        self.check_order(&new)?;
        self.check_sums(batch)?;
        if c.balance == Balance::Count {
            // Those that decode before the batch preempts anybody, or after it has ended prompts.
            let most = decoding.max(self.decoding()).div_ceil(c.depth() as usize);
            ensure!(decodes <= most, "{decodes} decodes in one batch, {decoding} requests decode: at most {most}");
        }
        self.counts.batches += 1;
        self.counts.scheduled_tokens += total;
        self.counts.drafts += rows.iter().map(|row| u64::from(row.drafts)).sum::<u64>();
        self.flight.push_back(Flight { id: batch.id(), rows, preempted, copies, inputs, cost_ns: batch.cost_ns(), lost: false });
        self.next_batch += 1;
        Ok(())
    }

    /// Each copy gives a request of this batch a block of its own in place of one that it shares, and is made before the rows run.
    fn check_copies(&mut self, batch: &Batch, tables: &[Tables]) -> Result<Vec<CopyOf>, String> {
        let mut copies = Vec::new();
        for &(from, to) in batch.copies() {
            let place = batch.rows().iter().zip(tables).find_map(|(row, (table, _))| {
                let index = table.iter().position(|block| *block == to)?;
                Some((*self.alive.get(&row.request)?, index))
            });
            let (who, index) = place.ok_or_else(|| format!("the copy to {to} is in no row's table"))?;
            let request = &self.requests[who];
            ensure!(request.table.get(index) == Some(&from), "{}: block {index} of {:?} is not {from}", request.id, request.table);
            let busy = self.flying().any(|row| row.table.contains(&to))
                || self.alive.iter().any(|(id, &other)| {
                    let held = self.scheduler.block_table(*id).unwrap_or_default();
                    (other != who && held.contains(&to)) || self.requests[other].pins.contains(&to)
                });
            ensure!(!busy, "{from} is copied to {to}, which is in use");
            self.memory.copy(from, to, batch.id());
            copies.push(CopyOf { who, epoch: request.epoch, index: index as u32, to });
        }
        self.counts.copies += copies.len() as u64;
        Ok(copies)
    }

    fn decoding(&self) -> usize {
        self.requests.iter().filter(|r| r.is_alive() && !r.paused && (r.delivered > 0 || r.cursor >= r.prompt_len)).count()
    }

    fn accepted(&self, who: usize, drafts: u32) -> u32 {
        let request = &self.requests[who];
        u32::from(request.shape.accept[request.delivered as usize % 2]).min(drafts)
    }

    /// The executor runs the row: all stages see batches in the order in which they were scheduled.
    fn execute(&mut self, row: &Flying) {
        let request = &mut self.requests[row.who];
        for position in row.start..row.end {
            let right = position < row.base() + row.accepted;
            let chain = right.then(|| request.text.chain(position));
            self.memory.write(&row.table, position, chain, Some(BatchId(self.next_batch)));
        }
        let before = |reached: u32| u64::from(reached.min(row.end).saturating_sub(row.start));
        self.counts.recomputed += before(request.reached);
        self.counts.perhaps_recomputed += before(request.perhaps_reached);
        request.first_start.get_or_insert(row.start);
        self.count_admission(row);
        self.write_groups(row, BatchId(self.next_batch), false);
        let request = &mut self.requests[row.who];
        request.fresh = false;
        request.groups.clone_from(&row.groups);
        (request.admitted, request.set_aside) = (true, false);
        request.caught_up = row.samples;
        if row.start > request.cursor {
            request.done = row.start;
        }
        request.cursor = row.end;
        request.table.clone_from(&row.table);
    }

    /// A row of a request that was not admitted is its admission; what it starts with comes out of the prefix cache.
    fn count_admission(&mut self, row: &Flying) {
        let c = self.config;
        let (request, counts) = (&mut self.requests[row.who], &mut self.counts);
        let looks_up = request.is_cacheable(&c) && (request.fresh || row.start > request.cursor);
        if looks_up && request.admissions == 0 && request.perhaps_admitted {
            counts.perhaps_queried += u64::from(request.known());
            counts.perhaps_hit += u64::from(row.start);
        } else if looks_up && request.admissions == 0 {
            counts.queried += u64::from(request.known());
            counts.hit += u64::from(row.start);
        } else if looks_up {
            counts.hit_resumed += u64::from(row.start);
        }
        if !request.admitted {
            request.admissions += 1;
            counts.admissions += 1;
        }
    }
}
