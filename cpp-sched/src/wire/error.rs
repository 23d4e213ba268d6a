//! What can be wrong with a message, on either side.

use core::fmt;

use crate::encoder::EncoderItem;
use crate::ids::{BatchId, BlockId, RequestId};

/// Why an [`Encoder`](super::Encoder) writes no message. The caller is wrong; nothing was written and nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum EncodeError {
    /// Every batch goes into the stream, once and in order: this is not the next one.
    Order {
        /// The batch that is due.
        expected: BatchId,
        /// The batch given.
        found: BatchId,
    },
    /// The request of a row has moved on since the batch was scheduled: its table and tokens are not those of the batch any more.
    Late(RequestId),
    /// The drafts given for a row are fewer than the row carries.
    Drafts {
        /// Whose row.
        request: RequestId,
        /// Drafts of the row.
        expected: u32,
        /// Tokens given.
        given: u32,
    },
    /// The scheduler counts blocks otherwise than the configuration that the encoder was made with.
    Geometry {
        /// Tokens per block and blocks, the encoder's.
        expected: (u32, u32),
        /// The same of the scheduler.
        found: (u32, u32),
    },
    /// The scheduler has other KV groups than the configuration that the encoder was made with.
    Groups,
    /// The batch does not go on from what was told: it is of another scheduler, or of one that was restored from an older snapshot.
    Foreign(BatchId),
    /// A transfer for a request that is not alive, or over positions that its block table does not cover.
    Transfer(RequestId),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { expected, found } => {
                write!(f, "{found} is not the next of the stream, {expected} is: encode every batch right after schedule")
            }
            Self::Late(request) => {
                write!(f, "{request} has moved on since its batch was scheduled: encode every batch right after schedule")
            }
            Self::Drafts { request, expected, given } => {
                write!(f, "the row of {request} carries {expected} drafts, {given} tokens are given: give all of them or none")
            }
            Self::Geometry { expected, found } => write!(
                f,
                "the encoder was made for {} tokens per block and {} blocks, the scheduler has {} and {}: make it from the scheduler's config",
                expected.0, expected.1, found.0, found.1
            ),
            Self::Groups => f.write_str("the encoder was made for other KV groups: make it from the scheduler's config"),
            Self::Foreign(batch) => {
                write!(
                    f,
                    "{batch} does not go on from what was told (another scheduler, or a restored one): attach a new encoder, and resync"
                )
            }
            Self::Transfer(request) => write!(f, "{request} has no blocks over the positions of the transfer"),
        }
    }
}

impl core::error::Error for EncodeError {}

/// Why a [`Mirror`](super::Mirror) refuses a message: the first difference that it found. The mirror has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum MirrorError {
    /// It is shorter than a header, or than the length that its header states: wait for the rest.
    Short {
        /// Bytes that there must be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// It is longer than the length that its header states: give one message at a time.
    Long {
        /// Bytes that there must be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// It does not begin like a message.
    Magic,
    /// It is of a version of the format that this mirror does not know: leader and workers must run the same version.
    Version {
        /// The one known here.
        expected: u8,
        /// The message's.
        found: u8,
    },
    /// There is no such kind of message.
    Kind(u8),
    /// Messages are missing before it: ask the leader for a resync.
    Gap {
        /// The number that is due.
        expected: u64,
        /// The message's.
        found: u64,
    },
    /// It was applied before.
    Repeated {
        /// The number that is due.
        expected: u64,
        /// The message's.
        found: u64,
    },
    /// Its bytes, or those of the stream before it, are not the ones that the leader wrote: ask the leader for a resync.
    Digest,
    /// Leader and worker count blocks differently.
    Geometry {
        /// Tokens per block and blocks, here.
        expected: (u32, u32),
        /// The same in the message.
        found: (u32, u32),
    },
    /// Leader and worker have other KV groups.
    Groups,
    /// A number is not written in the one way that the format allows, or is larger than it may be.
    Number {
        /// Which.
        what: &'static str,
        /// Offset in the message.
        at: u64,
    },
    /// The message ends inside of something.
    Ends {
        /// Inside of what.
        what: &'static str,
    },
    /// It announces more items than its rest could hold.
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// Bytes left for them.
        left: u64,
    },
    /// Bytes follow the last item.
    Rest {
        /// Offset of the first.
        at: u64,
    },
    /// The plan is not the next one.
    Plan {
        /// The plan that is due.
        expected: BatchId,
        /// The message's.
        found: BatchId,
    },
    /// It names a request that this mirror does not know.
    Unknown {
        /// The number under which the stream names it.
        handle: u32,
    },
    /// It gives a new request a number that is in use, or leaves numbers out.
    Handle {
        /// The number.
        handle: u32,
    },
    /// A row does not begin where the request's rows before it ended.
    Start {
        /// Whose row.
        request: RequestId,
        /// Where it must begin.
        expected: u32,
        /// Where it begins.
        found: u32,
    },
    /// A row says that drafts were rejected, more than the row before it had.
    Rejected {
        /// Whose row.
        request: RequestId,
        /// At most.
        most: u32,
        /// The message's.
        found: u32,
    },
    /// A row is rolled back, but no plan with a row of this request was lost.
    NotLost(RequestId),
    /// A row continues a request that has lost its blocks, or starts one again that has not.
    Running(RequestId),
    /// A row has no positions, more drafts than positions, or ends beyond what a position can be.
    Length(RequestId),
    /// New tokens of a request make no sense: fewer than its prompt, more than there can be, or values where the caller keeps them.
    Tokens(RequestId),
    /// A block table does not cover its row, or covers more than new positions.
    Table {
        /// Whose row.
        request: RequestId,
        /// New blocks that the row needs.
        expected: u32,
        /// New blocks that it brings.
        found: u32,
    },
    /// A row replaces blocks of its table that there are not.
    Keep {
        /// Whose row.
        request: RequestId,
        /// Blocks of its table.
        most: u32,
        /// How many of them shall stand: more than there are.
        found: u32,
    },
    /// The table of a KV group begins before where it began, or behind what it holds.
    Front {
        /// Whose row.
        request: RequestId,
        /// Where it began before.
        least: u32,
        /// Where it may begin at most.
        most: u32,
        /// Where it begins by the message.
        found: u32,
    },
    /// Spans of a request are not in order, or not inside of its prompt.
    Spans(RequestId),
    /// An encoder output is freed that is not there.
    Freed(EncoderItem),
    /// There is no such span to encode, or it is encoded already.
    Input {
        /// The number under which the stream names the request.
        handle: u32,
        /// Which of its spans.
        span: u32,
    },
    /// A row runs a span that is not encoded; or, without a request, a plan encodes something twice.
    NotEncoded {
        /// Whose row.
        request: Option<RequestId>,
        /// What is missing.
        item: EncoderItem,
    },
    /// There is no such block to copy.
    Copy {
        /// What is copied.
        from: BlockId,
        /// To where.
        to: BlockId,
    },
    /// There is no such block.
    Block {
        /// Whose table.
        request: RequestId,
        /// The block.
        block: BlockId,
    },
    /// A row runs a position whose token is neither known nor sampled by a plan before it.
    Position {
        /// Whose row.
        request: RequestId,
        /// The position.
        position: u32,
    },
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { expected, found } => write!(f, "the message has {found} bytes of {expected}: wait for the rest"),
            Self::Long { expected, found } => write!(f, "the message has {expected} bytes, {found} are given: give one at a time"),
            Self::Magic => f.write_str("the bytes do not begin like a message of a scheduler"),
            Self::Version { expected, found } => {
                write!(f, "the message is of format version {found}, known is {expected}: leader and workers must run the same version")
            }
            Self::Kind(kind) => write!(f, "there is no kind {kind} of message"),
            Self::Gap { expected, found } => {
                write!(f, "message {found} comes where {expected} is due: messages are missing, ask the leader for a resync")
            }
            Self::Repeated { expected, found } => write!(f, "message {found} was applied before, {expected} is due"),
            Self::Digest => f.write_str("the stream is not the one that the leader wrote (digest differs): ask the leader for a resync"),
            Self::Geometry { expected, found } => write!(
                f,
                "leader and worker count blocks differently: {} tokens per block and {} blocks here, {} and {} there",
                expected.0, expected.1, found.0, found.1
            ),
            Self::Groups => f.write_str("leader and worker have other KV groups: configure both alike"),
            Self::Number { what, at } => write!(f, "{what} at byte {at} is no number that may stand there"),
            Self::Ends { what } => write!(f, "the message ends inside of {what}"),
            Self::Count { what, count, left } => write!(f, "{count} {what} are announced, {left} bytes are left"),
            Self::Rest { at } => write!(f, "bytes follow the last item, from byte {at} on"),
            Self::Plan { expected, found } => write!(f, "the plan of {found} comes where that of {expected} is due"),
            Self::Unknown { handle } => write!(f, "no request is known under number {handle}"),
            Self::Handle { handle } => write!(f, "number {handle} cannot be given to a new request: it is in use, or not the next"),
            Self::Start { request, expected, found } => write!(f, "the row of {request} starts at {found}, must start at {expected}"),
            Self::Rejected { request, most, found } => write!(f, "{found} drafts of {request} are rejected, its last row had {most}"),
            Self::NotLost(request) => write!(f, "{request} is rolled back, but no plan with a row of it was lost"),
            Self::Running(request) => write!(f, "the row of {request} continues what was given up, or starts again what was not"),
            Self::Length(request) => write!(f, "the row of {request} has an impossible length"),
            Self::Tokens(request) => write!(f, "the new tokens of {request} do not fit what is known of it"),
            Self::Table { request, expected, found } => write!(f, "the row of {request} brings {found} new blocks and needs {expected}"),
            Self::Keep { request, most, found } => {
                write!(f, "the row of {request} replaces its table from block {found} on, which has {most}")
            }
            Self::Front { request, least, most, found } => {
                write!(f, "a group's table of {request} begins with {found}, must be {least} to {most}")
            }
            Self::Spans(request) => write!(f, "the spans of {request} are not in order, or not inside of its prompt"),
            Self::Freed(_) => f.write_str("an encoder output is freed that is not there"),
            Self::Input { handle, span } => {
                write!(f, "span {span} under number {handle} cannot be encoded: it is not there, or is encoded already")
            }
            Self::NotEncoded { request: Some(request), .. } => write!(f, "the row of {request} runs a span that is not encoded"),
            Self::NotEncoded { request: None, .. } => f.write_str("the plan encodes something twice"),
            Self::Copy { from, to } => write!(f, "{from} cannot be copied to {to}: there is no such block"),
            Self::Block { request, block } => write!(f, "the table of {request} names {block}, which there is not"),
            Self::Position { request, position } => {
                write!(f, "position {position} of {request} is run, but its token is neither known nor sampled before")
            }
        }
    }
}

impl core::error::Error for MirrorError {}
