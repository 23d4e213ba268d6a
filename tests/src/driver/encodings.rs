//! Spans and the encoder: what workers have encoded, what rows need of it, and where they may end.

use std::collections::{BTreeMap, BTreeSet};

use cpp_sched::{Batch, BatchId, ConfigError, EncoderItem, RequestId, Span, SubmitError};

use super::flight::Flying;
use super::{Driver, ensure};

/// What workers have encoded, or will have when the batches in flight are done, and by which batch. What a lost batch encodes is not there.
#[derive(Debug, Default)]
pub(super) struct Encodings {
    there: BTreeMap<EncoderItem, BatchId>,
    /// Tokens that batches were to encode, ever.
    pub(super) tokens: u64,
    /// The kernel's name of each content, under each salt and adapter.
    names: BTreeMap<Content, Name>,
    contents: BTreeMap<Name, Content>,
}

type Name = [u8; 16];

/// What a span stands for: salt and adapter, where they keep requests apart, and the name that was given.
type Content = (u8, Option<u32>, Name);

fn tokens(items: impl Iterator<Item = EncoderItem>) -> u64 {
    items.map(|item| u64::from(item.encoder_tokens)).sum()
}

/// The spans that have a position in a row.
pub(super) fn in_row(spans: &[Span], start: u32, end: u32) -> impl Iterator<Item = &Span> {
    spans.iter().filter(move |span| span.start < end && start < span.end())
}

impl Encodings {
    pub(super) fn items(&self) -> BTreeSet<EncoderItem> {
        self.there.keys().copied().collect()
    }

    pub(super) fn total(&self) -> u64 {
        tokens(self.there.keys().copied())
    }

    /// These batches encode nothing.
    pub(super) fn lose(&mut self, lost: impl Fn(BatchId) -> bool) {
        self.there.retain(|_, batch| !lost(*batch));
    }
}

impl Driver {
    /// What can be wrong with spans of a prompt, or of what is added to one.
    pub(super) fn span_errors(&self, id: RequestId, spans: &[Span], len: u32) -> Vec<SubmitError> {
        let c = &self.config;
        let mut errors = Vec::new();
        if !spans.is_empty() && super::groups::grain(c).is_some() {
            errors.push(SubmitError::SpansWithState(id));
        }
        let mut at = 0;
        for (number, span) in (0..).zip(spans) {
            if span.len == 0 || span.start < at || span.end() > len {
                errors.push(SubmitError::Span { request: id, span: number });
            }
            at = span.end();
            errors.extend(size_errors(c, id, number, span));
        }
        errors
    }

    /// The kernel's names for the spans of a request: those that were given without a salt; with one, one for each content and no other's.
    pub(super) fn name_spans(&mut self, who: usize) -> Result<(), String> {
        let request = &mut self.requests[who];
        let named = self.scheduler.spans(request.id).unwrap_or_default().to_vec();
        let (given, salt) = (request.text.given_spans(), request.shape.salt);
        ensure!(named.len() == given.len(), "{}: spans {named:?}, must be {given:?}", request.id);
        for (named, given) in named.iter().zip(given) {
            let mut other = *named;
            other.digest = given.digest;
            ensure!(other == *given && (salt > 0 || named == given), "{}: {named:?} for {given:?}", request.id);
            let content = (salt, request.shape.extras.adapter.filter(|_| salt > 0), given.digest);
            let name = *self.encodings.names.entry(content).or_insert(named.digest);
            let owner = *self.encodings.contents.entry(named.digest).or_insert(content);
            ensure!(
                name == named.digest && owner == content,
                "{}: {named:?} for {content:?}, must be {name:?}, and is {owner:?}",
                request.id
            );
        }
        request.text.name_spans(&named);
        Ok(())
    }

    /// Whose spans would fit into no batch any more under another configuration.
    pub(super) fn span_refusals(&self, config: &cpp_sched::Config) -> Vec<ConfigError> {
        let living = self.requests.iter().filter(|request| request.is_alive());
        let first = |request: &super::Tracked| {
            let spans = request.text.spans();
            let first = (0..).zip(spans).find(|(number, span)| !size_errors(config, request.id, *number, span).is_empty());
            first.map(|(span, _)| ConfigError::Span { request: request.id, span })
        };
        living.filter_map(first).collect()
    }

    /// What the batch encodes and frees, and that all that its rows need is there.
    pub(super) fn check_encodings(&mut self, batch: &Batch, rows: &[Flying]) -> Result<Vec<EncoderItem>, String> {
        let c = self.config;
        for item in batch.encoder_freed() {
            self.encodings.there.remove(item);
        }
        let mut inputs = Vec::new();
        for input in batch.encoder_inputs() {
            let item = input.item;
            ensure!(!self.encodings.there.contains_key(&item), "{item:?} is encoded, and is there");
            let who = *self.alive.get(&input.request).ok_or_else(|| format!("{input:?} of nobody"))?;
            let span = self.requests[who].text.spans().get(input.span as usize);
            ensure!(span.and_then(Span::item) == Some(item), "{input:?} is not {span:?}");
            let needed = rows.iter().any(|row| row.who == who && span.is_some_and(|span| span.start < row.end && row.start < span.end()));
            ensure!(needed, "{input:?} is needed by no row of {}", input.request);
            self.encodings.there.insert(item, batch.id());
            inputs.push(item);
        }
        inputs.iter().for_each(|_| self.meet("encoded"));
        batch.encoder_freed().iter().for_each(|_| self.meet("encoder output freed"));
        let new = tokens(inputs.iter().copied());
        self.encodings.tokens += new;
        ensure!(c.encoder_budget_tokens.is_none_or(|most| new <= u64::from(most)), "{new} tokens are encoded, at most {c:?}");
        let total = self.encodings.total();
        ensure!(c.encoder_cache_tokens.is_none_or(|most| total <= u64::from(most)), "{total} tokens are kept");
        for row in rows {
            let request = &self.requests[row.who];
            for item in in_row(request.text.spans(), row.start, row.end).filter_map(Span::item) {
                ensure!(self.encodings.there.contains_key(&item), "{}: {item:?} is not encoded", request.id);
            }
            let cut = request.text.spans().iter().find(|span| span.atomic && span.start < row.end && row.end < span.end());
            if request.text.spans().iter().any(|span| span.atomic && span.end() == row.end) {
                self.meet("row to the end of an atomic span");
            }
            ensure!(cut.is_none(), "{}: a row ends at {}, within {cut:?}", request.id, row.end);
        }
        if c.encoder_cache_tokens.is_none() {
            let needed = |item: &EncoderItem| {
                let needs = |r: &super::Tracked| {
                    let between = |span: &&Span| span.start < r.cursor && r.done < span.end();
                    r.is_alive() && r.text.spans().iter().filter(between).any(|span| span.item() == Some(*item))
                };
                self.requests.iter().any(needs)
            };
            let idle = self.encodings.there.keys().find(|item| !needed(item));
            ensure!(idle.is_none(), "{idle:?} is kept, and nobody needs it");
        }
        Ok(inputs)
    }

    /// After a batch workers and scheduler agree.
    pub(super) fn check_encoded(&self) -> Result<(), String> {
        let (due, cached) = (self.encodings.total(), self.scheduler.stats().encoder_cached_tokens);
        ensure!(due == cached, "encoder_cached_tokens is {cached}, must be {due}");
        self.mirrors.check_encoded(&self.encodings.items())
    }

    /// Rows in flight that used what the `at`th batch in flight was to encode: whose, of which epoch, from which batch on.
    pub(super) fn using_lost(&self, at: usize) -> Vec<(usize, u32, usize)> {
        let mut lost = self.flight[at].inputs.clone();
        let mut using = Vec::new();
        for (index, flight) in self.flight.iter().enumerate().skip(at + 1) {
            // A later batch encodes it again.
            lost.retain(|item| !flight.inputs.contains(item));
            for row in flight.rows.iter().filter(|row| !row.void) {
                let spans = self.requests[row.who].text.spans();
                if in_row(spans, row.start, row.end).filter_map(Span::item).any(|item| lost.contains(&item)) {
                    using.push((row.who, row.epoch, index));
                }
            }
        }
        using
    }
}

fn size_errors(c: &cpp_sched::Config, request: RequestId, span: u32, of: &Span) -> Vec<SubmitError> {
    let mut errors = Vec::new();
    let chunk = match c.chunking {
        cpp_sched::Chunking::Tokens { max } => max.unwrap_or(u32::MAX),
        _ => u32::MAX,
    };
    let most = (c.max_batch_tokens - c.draft_slots).min(c.max_prompt_tokens_per_batch.unwrap_or(u32::MAX)).min(chunk);
    if of.atomic && of.len > most {
        errors.push(SubmitError::SpanTooLong { request, span, tokens: of.len, most });
    }
    let most = c.encoder_budget_tokens.unwrap_or(u32::MAX).min(c.encoder_cache_tokens.unwrap_or(u32::MAX));
    if of.encoder_tokens > most {
        errors.push(SubmitError::EncoderTooSmall { request, span, needed: of.encoder_tokens, most });
    }
    errors
}
