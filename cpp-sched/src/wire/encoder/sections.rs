//! What the message of a batch holds: who has ended, who starts anew, what is copied, and the rows; and what workers know once they have it.

use alloc::vec::Vec;

use super::{Encoder, NONE, Record, steps};
use crate::batch::{Row, Scheduled};
use crate::ids::TokenId;
use crate::state::Trait;
use crate::wire::bytes::{put, put32};
use crate::wire::groups::{self, Told as ToldTable};
use crate::wire::message::{Identity, Origin, RawRow, put_all, put_row};

impl Encoder {
    fn put_groups(&mut self, batch: &Scheduled<'_>, row: &Row, origin: Origin, out: &mut Vec<u8>) {
        let Some(cold) = batch.tables.cold(row.slot) else { return };
        let (geometry, groups) = (self.geometry, self.groups);
        for ((told, table), &group) in self.told(row.slot).iter_mut().zip(&cold.groups).zip(groups.more()) {
            match origin {
                Origin::New | Origin::Restarted => *told = ToldTable::default(),
                Origin::RolledBack | Origin::Extended => told.shorten(groups::entries(geometry, group, row.num_computed_tokens)),
                Origin::Continues | Origin::Rejected(_) => {}
            }
            told.put(table, groups::entries(geometry, group, row.end()), out);
        }
    }

    pub(super) fn put_ended(&mut self, batch: &Scheduled<'_>, out: &mut Vec<u8>) {
        self.listed.clear();
        for ended in &batch.batch().ended {
            let record = self.record(ended.slot);
            if record.handle != NONE && record.seq == ended.seq {
                let handle = record.handle;
                *record = Record::UNKNOWN;
                self.listed.push(handle);
                self.vacant.push(handle);
            }
        }
        put(out, self.listed.len() as u64);
        put_all(out, &self.listed);
    }

    pub(super) fn put_preempted(&mut self, batch: &Scheduled<'_>, out: &mut Vec<u8>) {
        self.listed.clear();
        for &request in batch.preempted() {
            let Some(place) = batch.tables.find(request.0) else { continue };
            self.list_restarted(batch, place);
        }
        for at in 0..self.anew.len() {
            self.list_restarted(batch, self.anew[at]);
        }
        put(out, self.listed.len() as u64);
        put_all(out, &self.listed);
    }

    /// Lists a request of which workers have a block table that it has no more. One that had computed nothing gave it up without being preempted.
    fn list_restarted(&mut self, batch: &Scheduled<'_>, place: u32) {
        let Some(cold) = batch.tables.cold(place) else { return };
        let record = self.record(place);
        // What a lost batch named may have been admitted again since, and workers may know that.
        if record.handle != NONE && record.seq == cold.seq && record.running && !record.has_table_of(cold) {
            record.running = false;
            let handle = record.handle;
            self.listed.push(handle);
        }
    }

    /// Blocks to copy. Whoever got the copy has another block in its table from now on, which its next row tells.
    pub(super) fn put_copies(&mut self, batch: &Scheduled<'_>, out: &mut Vec<u8>) {
        put(out, batch.copies().len() as u64);
        for (&(from, to), &place) in batch.copies().iter().zip(&batch.batch().copied) {
            put32(out, from.0);
            put32(out, to.0);
            let Some((slot, cold)) = batch.tables.slot(place).zip(batch.tables.cold(place)) else { continue };
            // It is near the end: search from there.
            let index = slot.table.iter().rposition(|&block| block == to);
            let record = self.record(place);
            if let Some(index) = index.filter(|_| record.running && record.table_life == cold.table_life) {
                record.blocks = record.blocks.min(index as u32);
            }
        }
    }

    #[inline]
    pub(super) fn put_row(&mut self, batch: &Scheduled<'_>, row: &Row, drafts: Option<&[TokenId]>, out: &mut Vec<u8>) {
        let (geometry, plan) = (self.geometry, self.next_plan);
        let Some(slot) = batch.tables.slot(row.slot) else { return };
        let record = self.record(row.slot);
        let (mut identity, mut spans) = (Identity::default(), &[][..]);
        let origin = if record.running && record.epoch == row.epoch {
            match record.cursor.saturating_sub(row.num_computed_tokens) {
                0 => Origin::Continues,
                rejected if rejected <= record.drafts => Origin::Rejected(rejected),
                // One batch was lost, the request's rows before it were not.
                _ => Origin::RolledBack,
            }
        } else {
            let Some(cold) = batch.tables.cold(row.slot) else { return };
            let origin = if record.handle == NONE || record.seq != cold.seq {
                let handle = self.handle();
                *self.record(row.slot) = Record { handle, id: slot.id, seq: cold.seq, ..Record::UNKNOWN };
                Origin::New
            } else if record.has_table_of(cold) {
                if record.prompt_len == slot.prompt_len { Origin::RolledBack } else { Origin::Extended }
            } else {
                Origin::Restarted
            };
            identity = Identity { id: slot.id, incarnation: cold.seq, prompt_len: slot.prompt_len };
            let record = self.record(row.slot);
            (record.epoch, record.prompt_len) = (row.epoch, slot.prompt_len);
            if slot.has(Trait::Spans) {
                spans = cold.spans.get(record.spans as usize..).unwrap_or_default();
                record.spans = cold.spans.len() as u32;
            }
            if matches!(origin, Origin::New | Origin::Restarted) {
                (record.blocks, record.told, record.table_life) = (0, 0, cold.table_life);
                record.running = true;
            }
            origin
        };
        let record = self.record(row.slot);
        if matches!(origin, Origin::RolledBack | Origin::Extended) {
            // What lay behind was given back, and may be another block by now.
            record.blocks = record.blocks.min(geometry.blocks(row.num_computed_tokens));
        }
        let end = row.end();
        let known = slot.known();
        let tokens = if slot.keeps_tokens { slot.tokens.get(record.tokens as usize..known as usize) } else { None };
        let table = slot.table.get(record.blocks as usize..geometry.blocks(end) as usize).unwrap_or_default();
        let last = (record.blocks as usize).checked_sub(1).and_then(|last| slot.table.get(last)).map_or(0, |block| block.0);
        let raw = RawRow {
            handle: record.handle,
            origin,
            identity,
            kind: row.kind,
            samples: row.samples,
            start: row.num_computed_tokens,
            len: row.num_scheduled_tokens,
            drafts: row.num_draft_tokens,
            draft_tokens: drafts.and_then(|drafts| drafts.get(..row.num_draft_tokens as usize)),
            new_tokens: known.saturating_sub(record.tokens),
            tokens,
            keep: (record.blocks < record.told).then_some(record.blocks),
            blocks: &[][..],
            groups: 0..0,
            spans: 0..0,
        };
        put_row(out, &raw, spans, steps(last, table));
        record.tokens = known;
        record.blocks += table.len() as u32;
        record.told = record.blocks;
        record.cursor = end;
        record.drafts = row.num_draft_tokens;
        record.plan = plan;
        if !self.groups.is_single() {
            self.put_groups(batch, row, origin, out);
        }
    }
}
