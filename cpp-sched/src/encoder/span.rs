//! Spans of a prompt that stand for something else than their tokens.

/// A span of prompt positions that stands for an image, a piece of audio or the like.
///
/// With `encoder_tokens` above 0 its encoder output must be there before any of its positions is run: a batch encodes it
/// ([`Batch::encoder_inputs`](crate::Batch::encoder_inputs)), or it is found in the encoder cache. An `atomic` span is never cut: no chunk ends
/// inside of it, since its positions attend to each other both ways.
///
/// ```
/// use cpp_sched::{Config, Request, RequestId, Schedule, Scheduler, Span};
/// let mut config = Config::default();
/// config.max_batch_tokens = 64;
/// config.encoder_budget_tokens = Some(100); // encoder tokens in one batch
/// let mut scheduler = Scheduler::new(config)?;
///
/// // 20 tokens of text, an image of 30, another of 30, a question. Each costs the encoder 80.
/// let mut request = Request::new(RequestId(1), vec![7; 90], 4);
/// request.spans = vec![Span::encoded(20, 30, 80, [1; 16]), Span::encoded(50, 30, 80, [2; 16])];
/// scheduler.submit(request).unwrap();
///
/// // The budget holds one image, so the chunk ends where the other begins.
/// let Schedule::Batch(batch) = scheduler.schedule() else { panic!() };
/// assert_eq!(batch.rows()[0].end(), 50);
/// assert_eq!((batch.encoder_inputs().len(), batch.encoder_inputs()[0].span), (1, 0));
/// # Ok::<(), cpp_sched::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Span {
    /// Its first position.
    pub start: u32,
    /// Its positions, at least 1.
    pub len: u32,
    /// What it takes of the encoder's budget and of the encoder cache, in the caller's unit (the encoder's tokens). 0: nothing is encoded.
    pub encoder_tokens: u32,
    /// Names what the span stands for. Equal names stand for equal contents: they are encoded once, and share KV where all before is equal. For
    /// a request with a [`cache_salt`](crate::Request::cache_salt) the kernel makes another name of it, under its key, that the same salt and
    /// adapter alone lead to; [`Scheduler::spans`](crate::Scheduler::spans) tells.
    pub digest: [u8; 16],
    /// No chunk ends inside of it. It may begin inside, behind a prefix that the cache has.
    pub atomic: bool,
}

impl Span {
    /// A span that is encoded before use, and may be cut.
    #[must_use]
    pub const fn encoded(start: u32, len: u32, encoder_tokens: u32, digest: [u8; 16]) -> Self {
        Self { start, len, encoder_tokens, digest, atomic: false }
    }

    /// A span that is never cut, and that nothing is encoded for. Set `encoder_tokens` for one that is both.
    #[must_use]
    pub const fn atomic(start: u32, len: u32, digest: [u8; 16]) -> Self {
        Self { start, len, encoder_tokens: 0, digest, atomic: true }
    }

    /// One past its last position, cut off at `u32::MAX`.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// What is encoded for it.
    #[must_use]
    pub const fn item(&self) -> Option<EncoderItem> {
        if self.encoder_tokens == 0 { None } else { Some(EncoderItem { digest: self.digest, encoder_tokens: self.encoder_tokens }) }
    }
}

/// Something encoded. Two are the same if both fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(clippy::exhaustive_structs, reason = "a name of two parts")]
pub struct EncoderItem {
    /// See [`Span::digest`]: for a request with a salt this is not the name that was given.
    pub digest: [u8; 16],
    /// See [`Span::encoder_tokens`].
    pub encoder_tokens: u32,
}

/// Something that a batch encodes before its rows run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct EncoderInput {
    /// A request of the batch whose span it is.
    pub request: crate::RequestId,
    /// Which of its spans, from 0.
    pub span: u32,
    /// The name of the result.
    pub item: EncoderItem,
    pub(crate) slot: u32,
}

/// The spans that have a position in `start..end`, as a range of indices. Spans are in order and do not overlap. O(log spans).
pub(crate) fn overlapping(spans: &[Span], start: u32, end: u32) -> core::ops::Range<usize> {
    let from = spans.partition_point(|span| span.end() <= start);
    from..spans.partition_point(|span| span.start < end).max(from)
}

/// The atomic span that has `end` strictly inside.
pub(crate) fn cut_by(spans: &[Span], end: u32) -> Option<&Span> {
    let before = spans.partition_point(|span| span.start < end);
    spans[..before].last().filter(|span| span.atomic && span.end() > end)
}

/// What can be wrong with a list of spans in a prompt, by itself: the first span that is empty, before its predecessor's end, or beyond the
/// prompt.
pub(crate) fn first_misplaced(spans: &[Span], prompt: core::ops::Range<u32>) -> Option<u32> {
    let mut at = prompt.start;
    for (index, span) in (0..).zip(spans) {
        let end = span.start.checked_add(span.len);
        match end {
            Some(end) if span.len > 0 && span.start >= at && end <= prompt.end => at = end,
            _ => return Some(index),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_found_by_position() {
        let spans = [Span::atomic(2, 3, [0; 16]), Span::encoded(5, 2, 1, [1; 16]), Span::atomic(9, 1, [2; 16])];
        assert_eq!(first_misplaced(&spans, 0..10), None);
        assert_eq!((overlapping(&spans, 0, 2), overlapping(&spans, 0, 3), overlapping(&spans, 4, 6)), (0..0, 0..1, 0..2));
        assert_eq!((overlapping(&spans, 5, 10), overlapping(&spans, 7, 9), overlapping(&spans, 10, 11)), (1..3, 2..2, 3..3));
        let cut = |end| cut_by(&spans, end).map(|span| span.start);
        assert_eq!([2, 3, 4, 5, 6, 9, 10].map(cut), [None, Some(2), Some(2), None, None, None, None]);
    }

    #[test]
    fn misplaced_spans_are_found() {
        let span = |start, len| Span::atomic(start, len, [0; 16]);
        assert_eq!(first_misplaced(&[span(0, 0)], 0..4), Some(0));
        assert_eq!(first_misplaced(&[span(0, 2), span(1, 1)], 0..4), Some(1));
        assert_eq!(first_misplaced(&[span(3, 2)], 0..4), Some(0));
        assert_eq!(first_misplaced(&[span(u32::MAX, 2)], 0..u32::MAX), Some(0));
        assert_eq!(first_misplaced(&[span(3, 1)], 4..8), Some(0));
    }
}
