//! A plan as it is written: numbers without a look at what is known. The layout is in `FORMAT.md`; the encoder writes through
//! [`put_row`], the mirror reads through [`Message::parse`], so that both stand in one file.

use alloc::vec::Vec;
use core::ops::Range;

use super::bytes::{Reader, put, put32};
use super::error::MirrorError;
use super::groups::RawGroup;
use super::spans::{Section, parse_spans, put_spans};
use crate::batch::RowKind;
use crate::encoder::Span;
use crate::ids::{BlockId, TokenId};

const DECODE: u8 = 1;
const SAMPLES: u8 = 1 << 1;
const DRAFTS: u8 = 1 << 2;
const BLOCKS: u8 = 1 << 3;
/// Two bits: how many new tokens.
const TOKENS: u8 = 4;
const ONE_TOKEN: u8 = 1;
const MANY_TOKENS: u8 = 2;
const KEPT_TOKENS: u8 = 3;
/// Two bits: how the row stands to what is known of its request.
const ORIGIN: u8 = 6;

/// In the byte of an origin: spans follow the length of the prompt.
const SPANS: u8 = 4;

/// How a row stands to the rows of its request before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Origin {
    /// It starts where the one before it ended.
    Continues,
    /// So many drafts of the one before it were wrong, so it starts that much earlier.
    Rejected(u32),
    /// Batches in flight were lost, and the request goes on from the last position that was not.
    RolledBack,
    /// A session has got more input, and goes on from its last final position.
    Extended,
    /// The request was preempted, and is computed again into other blocks.
    Restarted,
    /// The first row of a request.
    New,
}

/// What a new request comes with; of one that is known, only the prompt's length is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: u64,
    pub(super) incarnation: u64,
    pub(super) prompt_len: u32,
}

/// A row as it stands in a message; `T` is where tokens and blocks are: slices on the way out, ranges of [`Message`]'s vectors on the way in.
#[derive(Clone, Debug)]
pub(super) struct RawRow<T> {
    pub(super) handle: u32,
    pub(super) origin: Origin,
    /// With [`Origin::New`], [`Origin::Restarted`] and [`Origin::Extended`].
    pub(super) identity: Identity,
    pub(super) kind: RowKind,
    pub(super) samples: bool,
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) drafts: u32,
    /// The drafts, if they are in the stream.
    pub(super) draft_tokens: Option<T>,
    /// Tokens that have become known.
    pub(super) new_tokens: u32,
    /// The same, if they are in the stream. None of none is `None` as well.
    pub(super) tokens: Option<T>,
    /// How many of the blocks told before stand, if not all.
    pub(super) keep: Option<u32>,
    /// New blocks, as steps.
    pub(super) blocks: T,
    /// What it tells of the tables of further KV groups: where it stands in [`Message::groups`].
    pub(super) groups: Range<usize>,
    /// New spans, on the way in.
    pub(super) spans: Range<usize>,
}

impl<T> RawRow<T> {
    pub(super) const fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Where its drafts begin.
    pub(super) const fn base(&self) -> u32 {
        self.end() - self.drafts
    }
}

/// Writes a row. Its blocks are given as steps.
#[inline]
pub(super) fn put_row<B>(out: &mut Vec<u8>, row: &RawRow<&[TokenId]>, spans: &[Span], blocks: B)
where
    B: ExactSizeIterator<Item = u32>,
{
    put32(out, row.handle);
    let tokens = match (row.new_tokens, row.tokens) {
        (0, _) => 0,
        (_, None) => KEPT_TOKENS,
        (1, _) => ONE_TOKEN,
        _ => MANY_TOKENS,
    };
    let origin = match row.origin {
        Origin::Continues => 0,
        Origin::Rejected(_) => 1,
        Origin::RolledBack => 2,
        Origin::Restarted | Origin::New | Origin::Extended => 3,
    };
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    out.push(
        flag(row.kind == RowKind::Decode, DECODE)
            | flag(row.samples, SAMPLES)
            | flag(row.drafts > 0, DRAFTS)
            | flag(blocks.len() > 0 || row.keep.is_some(), BLOCKS)
            | tokens << TOKENS
            | origin << ORIGIN,
    );
    let with_spans = if spans.is_empty() { 0 } else { SPANS };
    match row.origin {
        Origin::Rejected(drafts) => put32(out, drafts),
        Origin::Restarted => out.push(with_spans),
        Origin::New => {
            out.push(1 | with_spans);
            put(out, row.identity.id);
            put(out, row.identity.incarnation);
        }
        Origin::Extended => out.push(2 | with_spans),
        Origin::Continues | Origin::RolledBack => {}
    }
    if origin == 3 {
        put32(out, row.identity.prompt_len);
        if with_spans > 0 {
            put_spans(out, spans);
        }
    }
    put32(out, row.start);
    if row.drafts > 0 {
        put(out, u64::from(row.drafts) << 1 | u64::from(row.draft_tokens.is_some()));
        put_all(out, row.draft_tokens.unwrap_or_default());
    }
    if row.kind == RowKind::Prefill {
        put32(out, row.len);
    }
    if tokens > ONE_TOKEN {
        put32(out, row.new_tokens);
    }
    if tokens > 0 {
        put_all(out, row.tokens.unwrap_or_default());
    }
    if blocks.len() > 0 || row.keep.is_some() {
        put(out, (blocks.len() as u64) << 1 | u64::from(row.keep.is_some()));
        if let Some(keep) = row.keep {
            put32(out, keep);
        }
        for step in blocks {
            put32(out, step);
        }
    }
}

pub(super) fn put_all(out: &mut Vec<u8>, numbers: &[u32]) {
    for &number in numbers {
        put32(out, number);
    }
}

/// A plan that was read, and not looked at yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    pub(super) number: u64,
    pub(super) lost: u64,
    pub(super) ended: Vec<u32>,
    pub(super) preempted: Vec<u32>,
    pub(super) copies: Vec<(BlockId, BlockId)>,
    pub(super) rows: Vec<RawRow<Range<usize>>>,
    pub(super) tokens: Vec<TokenId>,
    pub(super) blocks: Vec<u32>,
    pub(super) groups: Vec<RawGroup>,
    pub(super) spans: Vec<Span>,
    pub(super) section: Section,
}

impl Message {
    /// Reads the body of a plan. Takes no more memory than a small multiple of the message's length.
    /// `groups`: KV groups behind the first one; `section`: it ends with a section about an encoder.
    pub(super) fn parse(&mut self, reader: &mut Reader<'_>, groups: usize, section: bool) -> Result<(), MirrorError> {
        self.spans.clear();
        self.section.clear();
        self.ended.clear();
        self.preempted.clear();
        self.copies.clear();
        self.rows.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.groups.clear();
        self.number = reader.ordinal("plan number")?;
        self.lost = reader.number("lost batches")?;
        let ended = reader.count("ended requests")?;
        reader.numbers("ended requests", ended, &mut self.ended)?;
        let preempted = reader.count("preempted requests")?;
        reader.numbers("preempted requests", preempted, &mut self.preempted)?;
        for _ in 0..reader.count("copies")? {
            let copy = (BlockId(reader.number32("copies")?), BlockId(reader.number32("copies")?));
            self.copies.push(copy);
        }
        for _ in 0..reader.count("rows")? {
            let mut row = self.parse_row(reader)?;
            let from = self.groups.len();
            for _ in 0..groups {
                let group = RawGroup::parse(reader, &mut self.blocks)?;
                self.groups.push(group);
            }
            row.groups = from..self.groups.len();
            self.rows.push(row);
        }
        if section {
            self.section.parse(reader)?;
        }
        reader.end()
    }

    fn parse_row(&mut self, reader: &mut Reader<'_>) -> Result<RawRow<Range<usize>>, MirrorError> {
        let handle = reader.number32("row")?;
        let flags = reader.byte("row")?;
        let mut identity = Identity::default();
        let mut spans = 0..0;
        let origin = match flags >> ORIGIN {
            0 => Origin::Continues,
            1 => Origin::Rejected(reader.number32("rejected drafts")?),
            2 => Origin::RolledBack,
            _ => {
                let byte = reader.byte("origin")?;
                let origin = match byte & !SPANS {
                    0 => Origin::Restarted,
                    1 => {
                        identity.id = reader.number("request id")?;
                        identity.incarnation = reader.number("incarnation")?;
                        Origin::New
                    }
                    2 => Origin::Extended,
                    _ => return Err(reader.odd("origin")),
                };
                identity.prompt_len = reader.number32("prompt length")?;
                if byte & SPANS != 0 {
                    spans = parse_spans(reader, &mut self.spans)?;
                }
                origin
            }
        };
        let start = reader.number32("start")?;
        let (mut drafts, mut draft_tokens) = (0, None);
        if flags & DRAFTS != 0 {
            let count = reader.number("drafts")?;
            drafts = (count >> 1).min(u64::from(u32::MAX)) as u32;
            if count & 1 == 1 {
                draft_tokens = Some(Self::list(reader, "drafts", count >> 1, &mut self.tokens)?);
            }
        }
        let kind = if flags & DECODE != 0 { RowKind::Decode } else { RowKind::Prefill };
        let len = match kind {
            RowKind::Decode => drafts.saturating_add(1),
            RowKind::Prefill => reader.number32("length")?,
        };
        let (new_tokens, tokens) = match flags >> TOKENS & 3 {
            0 => (0, None),
            ONE_TOKEN => (1, Some(Self::list(reader, "tokens", 1, &mut self.tokens)?)),
            KEPT_TOKENS => (reader.number32("tokens")?, None),
            _ => {
                let count = reader.count("tokens")?;
                (count, Some(Self::list(reader, "tokens", count.into(), &mut self.tokens)?))
            }
        };
        let count = if flags & BLOCKS != 0 { reader.number("blocks")? } else { 0 };
        let keep = if count & 1 == 1 { Some(reader.number32("blocks")?) } else { None };
        let blocks = Self::list(reader, "blocks", count >> 1, &mut self.blocks)?;
        let samples = flags & SAMPLES != 0;
        let groups = 0..0;
        Ok(RawRow {
            handle,
            origin,
            identity,
            kind,
            samples,
            start,
            len,
            drafts,
            draft_tokens,
            new_tokens,
            tokens,
            keep,
            blocks,
            groups,
            spans,
        })
    }

    fn list(reader: &mut Reader<'_>, what: &'static str, count: u64, to: &mut Vec<u32>) -> Result<Range<usize>, MirrorError> {
        let count = reader.fits(what, count)?;
        let from = to.len();
        reader.numbers(what, count, to)?;
        Ok(from..to.len())
    }
}

/// A byte that is 0 or 1.
pub(super) fn flag(reader: &mut Reader<'_>, what: &'static str) -> Result<bool, MirrorError> {
    match reader.byte(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.odd(what)),
    }
}
