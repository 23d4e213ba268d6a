//! What every message begins with, and the digest of the stream.

use alloc::vec::Vec;
use core::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use super::bytes::{ORDINALS, Reader, put32};
use super::error::MirrorError;
use crate::config::Config;
use crate::ids::{BlockId, RequestId};
use crate::kv::KvGroups;

pub(super) const MAGIC: [u8; 4] = *b"CPPW";
pub(super) const VERSION: u8 = 1;
/// Where the length stands, the sequence number, the digest, and where the body begins.
const LENGTH: usize = 6;
const SEQUENCE: usize = 14;
const DIGEST: usize = 22;
pub(super) const BODY: usize = 38;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Plan = 1,
    Resync = 2,
    Transfer = 3,
}

/// The digest of the stream up to a message: of its bytes, but the digest itself, after the digest of the stream before it.
///
/// SipHash-1-3 with 128 bits under the key zero: it finds accidents, and does not authenticate; the connection does.
pub(super) fn chain(before: u128, message: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(&before.to_le_bytes());
    hasher.write(&message[..DIGEST]);
    hasher.write(&message[BODY..]);
    hasher.finish128().as_u128()
}

/// In the kind of a message: it has a section about an encoder.
const SECTION: u8 = 0x80;

/// The message that begins at `at` has a section about an encoder.
pub(super) fn mark_section(out: &mut [u8], at: usize) {
    out[at + MAGIC.len() + 1] |= SECTION;
}

/// Begins a message at the end of `out`; where it begins.
pub(super) fn begin(out: &mut Vec<u8>, kind: Kind, sequence: u64) -> usize {
    let at = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[VERSION, kind as u8]);
    out.extend_from_slice(&[0; SEQUENCE - LENGTH]);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&[0; BODY - DIGEST]);
    at
}

/// Ends the message that begins at `at`: fills in length and digest. Gives the digest.
pub(super) fn seal(out: &mut [u8], at: usize, before: u128) -> u128 {
    let message = &mut out[at..];
    let length = message.len() as u64;
    message[LENGTH..SEQUENCE].copy_from_slice(&length.to_le_bytes());
    let digest = chain(before, message);
    message[DIGEST..BODY].copy_from_slice(&digest.to_le_bytes());
    digest
}

/// The digest that a sealed message states; 0 for bytes that are shorter than a header.
pub(super) fn digest_of(message: &[u8]) -> u128 {
    message.get(DIGEST..BODY).and_then(|bytes| bytes.try_into().ok()).map_or(0, u128::from_le_bytes)
}

/// A header that fits its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// It has a section about an encoder.
    pub(super) section: bool,
    pub(super) sequence: u64,
    pub(super) digest: u128,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, MirrorError> {
        let found = bytes.len() as u64;
        let expected = length(bytes)?.ok_or(MirrorError::Short { expected: BODY as u64, found })?;
        if found < expected {
            return Err(MirrorError::Short { expected, found });
        }
        if found > expected {
            return Err(MirrorError::Long { expected, found });
        }
        let byte = bytes[MAGIC.len() + 1];
        let section = byte & SECTION != 0;
        let kind = match byte {
            0x01 | 0x81 => Kind::Plan,
            0x02 | 0x82 => Kind::Resync,
            3 => Kind::Transfer,
            kind => return Err(MirrorError::Kind(kind)),
        };
        let sequence = u64::from_le_bytes(Reader::new(bytes, SEQUENCE).array("header")?);
        if sequence >= ORDINALS {
            return Err(MirrorError::Number { what: "sequence", at: SEQUENCE as u64 });
        }
        let digest = u128::from_le_bytes(Reader::new(bytes, DIGEST).array("header")?);
        Ok(Self { kind, section, sequence, digest })
    }

    /// The message is the one that is due after a stream.
    pub(super) fn follows(&self, sequence: u64, before: u128, bytes: &[u8]) -> Result<(), MirrorError> {
        let (expected, found) = (sequence, self.sequence);
        if found < expected {
            return Err(MirrorError::Repeated { expected, found });
        }
        if found > expected {
            return Err(MirrorError::Gap { expected, found });
        }
        if chain(before, bytes) == self.digest { Ok(()) } else { Err(MirrorError::Digest) }
    }
}

/// The length of the message that `bytes` begin with, for whoever cuts a stream of bytes into messages. `None`: more bytes are needed to tell.
/// Do not trust it with memory: it is only what the sender says.
///
/// # Errors
/// The bytes do not begin like a message of this version.
pub fn length(bytes: &[u8]) -> Result<Option<u64>, MirrorError> {
    let begin = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(begin) {
        return Err(MirrorError::Magic);
    }
    match bytes.get(MAGIC.len()) {
        Some(&found) if found != VERSION => return Err(MirrorError::Version { expected: VERSION, found }),
        _ => {}
    }
    let Some(header) = bytes.first_chunk::<BODY>() else { return Ok(None) };
    let length = u64::from_le_bytes(Reader::new(header, LENGTH).array("header")?);
    if length < BODY as u64 { Err(MirrorError::Number { what: "length", at: LENGTH as u64 }) } else { Ok(Some(length)) }
}

/// How leader and workers count blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) block_size: u32,
    pub(super) num_blocks: u32,
}

impl Geometry {
    pub(super) fn of(config: &Config) -> Self {
        Self { block_size: config.block_size.max(1), num_blocks: config.num_blocks }
    }

    pub(super) fn put(self, groups: &KvGroups, out: &mut Vec<u8>) {
        super::groups::put_kinds(groups, out);
        put32(out, self.block_size);
        put32(out, self.num_blocks);
    }

    pub(super) fn check(self, groups: &KvGroups, reader: &mut Reader<'_>) -> Result<(), MirrorError> {
        let first = reader.number32("block_size")?;
        super::groups::check_kinds(groups, first == 0, reader)?;
        let block_size = if first == 0 { reader.number32("block_size")? } else { first };
        let found = (block_size, reader.number32("num_blocks")?);
        let expected = (self.block_size, self.num_blocks);
        if found == expected { Ok(()) } else { Err(MirrorError::Geometry { expected, found }) }
    }

    pub(super) fn blocks(self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    pub(super) fn check_block(self, request: RequestId, block: u32) -> Result<(), MirrorError> {
        if block < self.num_blocks { Ok(()) } else { Err(MirrorError::Block { request, block: BlockId(block) }) }
    }
}
