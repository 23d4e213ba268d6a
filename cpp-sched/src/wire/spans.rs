//! Spans and encoder outputs in messages: with a request's identity come its spans, and a plan that encodes or frees something has a section
//! of its own, which the kind of the message announces. Messages without either are as if there were no encoder.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Range;

use super::bytes::{Reader, put, put32};
use super::error::MirrorError;
use crate::batch::Batch;
use crate::encoder::span::{first_misplaced, overlapping};
use crate::encoder::{EncoderItem, Span};
use crate::ids::RequestId;

fn put_item(out: &mut Vec<u8>, item: &EncoderItem) {
    out.extend_from_slice(&item.digest);
    put32(out, item.encoder_tokens);
}

fn parse_item(reader: &mut Reader<'_>) -> Result<EncoderItem, MirrorError> {
    let digest = reader.array("encoder item")?;
    Ok(EncoderItem { digest, encoder_tokens: reader.number32("encoder item")? })
}

pub(super) fn put_spans(out: &mut Vec<u8>, spans: &[Span]) {
    put(out, spans.len() as u64);
    for span in spans {
        put32(out, span.start);
        put32(out, span.len);
        put(out, u64::from(span.encoder_tokens) << 1 | u64::from(span.atomic));
        out.extend_from_slice(&span.digest);
    }
}

pub(super) fn parse_spans(reader: &mut Reader<'_>, to: &mut Vec<Span>) -> Result<Range<usize>, MirrorError> {
    let from = to.len();
    for _ in 0..reader.count("spans")? {
        let (start, len) = (reader.number32("spans")?, reader.number32("spans")?);
        let tokens = reader.number("spans")?;
        let encoder_tokens = u32::try_from(tokens >> 1).map_err(|_| reader.odd("spans"))?;
        to.push(Span { start, len, encoder_tokens, digest: reader.array("spans")?, atomic: tokens & 1 == 1 });
    }
    Ok(from..to.len())
}

/// What a plan says of encoder outputs.
#[derive(Clone, Debug, Default)]
pub(super) struct Section {
    pub(super) freed: Vec<EncoderItem>,
    /// Handles, and which of their spans.
    pub(super) inputs: Vec<(u32, u32)>,
    /// What these are; in order once they are checked.
    items: Vec<EncoderItem>,
}

impl Section {
    pub(super) fn is_empty(&self) -> bool {
        self.freed.is_empty() && self.inputs.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.freed.clear();
        self.inputs.clear();
        self.items.clear();
    }

    pub(super) fn parse(&mut self, reader: &mut Reader<'_>) -> Result<(), MirrorError> {
        for _ in 0..reader.count("freed encoder outputs")? {
            self.freed.push(parse_item(reader)?);
        }
        for _ in 0..reader.count("encoder inputs")? {
            let input = (reader.number32("encoder inputs")?, reader.number32("encoder inputs")?);
            self.inputs.push(input);
        }
        Ok(())
    }

    /// What is freed is there, and what is encoded is not, each named once. `item` finds an input.
    pub(super) fn check<F>(&mut self, cached: &BTreeSet<EncoderItem>, mut item: F) -> Result<(), MirrorError>
    where
        F: FnMut(u32, u32) -> Option<EncoderItem>,
    {
        self.freed.sort_unstable();
        for (index, freed) in self.freed.iter().enumerate() {
            if !cached.contains(freed) || (index > 0 && self.freed[index - 1] == *freed) {
                return Err(MirrorError::Freed(*freed));
            }
        }
        for &(handle, span) in &self.inputs {
            let item = item(handle, span).ok_or(MirrorError::Input { handle, span })?;
            if cached.contains(&item) && self.freed.binary_search(&item).is_err() {
                return Err(MirrorError::Input { handle, span });
            }
            self.items.push(item);
        }
        self.items.sort_unstable();
        match self.items.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(MirrorError::NotEncoded { request: None, item: pair[0] }),
            None => Ok(()),
        }
    }

    /// All that the spans need in a row is encoded, by this plan or before.
    pub(super) fn check_row(
        &self,
        cached: &BTreeSet<EncoderItem>,
        spans: &[Span],
        row: &Range<u32>,
        request: RequestId,
    ) -> Result<(), MirrorError> {
        let used = spans.get(overlapping(spans, row.start, row.end)).unwrap_or_default();
        for item in used.iter().filter_map(Span::item) {
            let before = cached.contains(&item) && self.freed.binary_search(&item).is_err();
            if !before && self.items.binary_search(&item).is_err() {
                return Err(MirrorError::NotEncoded { request: Some(request), item });
            }
        }
        Ok(())
    }

    /// What is encoded after the plan.
    pub(super) fn apply(&self, cached: &mut BTreeSet<EncoderItem>) {
        for item in &self.freed {
            cached.remove(item);
        }
        cached.extend(self.items.iter().copied());
    }
}

/// New spans of a request follow those before, inside of its prompt.
pub(super) fn check_spans(spans: &[Span], from: u32, prompt_len: u32, request: RequestId) -> Result<(), MirrorError> {
    let misplaced = first_misplaced(spans, from..prompt_len);
    if misplaced.is_none() { Ok(()) } else { Err(MirrorError::Spans(request)) }
}

/// The encoder's side: what workers have encoded.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) items: BTreeSet<EncoderItem>,
    freed: Vec<EncoderItem>,
}

impl Told {
    /// Notes what the batch frees and encodes. True: there is something to tell.
    pub(super) fn note(&mut self, batch: &Batch) -> bool {
        self.freed.clear();
        let items = &mut self.items;
        // What a lost batch named may have been told already.
        self.freed.extend(batch.encoder_freed().iter().filter(|item| items.remove(item)));
        items.extend(batch.encoder_inputs().iter().map(|input| input.item));
        !self.freed.is_empty() || !batch.encoder_inputs().is_empty()
    }

    /// Writes the section, with the handle of each slot.
    pub(super) fn put(&self, batch: &Batch, handle: impl Fn(u32) -> u32, out: &mut Vec<u8>) {
        put(out, self.freed.len() as u64);
        for item in &self.freed {
            put_item(out, item);
        }
        put(out, batch.encoder_inputs().len() as u64);
        for input in batch.encoder_inputs() {
            put32(out, handle(input.slot));
            put32(out, input.span);
        }
    }

    /// Writes what is encoded, for a resync.
    pub(super) fn put_all(&self, out: &mut Vec<u8>) {
        put(out, self.items.len() as u64);
        for item in &self.items {
            put_item(out, item);
        }
    }
}

/// Reads what is encoded, from a resync.
pub(super) fn parse_cached(reader: &mut Reader<'_>) -> Result<BTreeSet<EncoderItem>, MirrorError> {
    (0..reader.count("encoder outputs")?).map(|_| parse_item(reader)).collect()
}
