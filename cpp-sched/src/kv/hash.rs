//! Names for prefixes: a chain of keyed hashes, one a whole block.
//!
//! SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), a pseudo-random function under a
//! secret key: who does not know the key can neither forge the digest of another prefix nor find two prefixes with one digest other than by
//! guessing. The digest of a block covers its tokens and the digest of the block before it; the first one's parent is made from the salt.

use siphasher::sip128::{Hasher128, SipHasher24};

use super::MAX_KV_GROUPS;
use crate::encoder::Span;
use crate::encoder::span::overlapping;
use crate::ids::TokenId;

/// The name of a prefix that ends at a block's end.
pub(crate) type Digest = u128;

/// The keyed hash.
#[derive(Clone)]
pub(crate) struct Hashing {
    keyed: SipHasher24,
    /// What tells the names of each further KV group from those of the first.
    tags: [Digest; MAX_KV_GROUPS - 1],
}

/// Without what the key could be read from.
impl core::fmt::Debug for Hashing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Hashing(..)")
    }
}

/// What is hashed, so that one kind of input can never pass for another.
#[derive(Clone, Copy)]
enum Domain {
    Root = 1,
    Tokens = 2,
    Given = 3,
    Span = 4,
    Group = 5,
    Item = 6,
}

impl Hashing {
    pub(crate) fn new(key: &[u8; 16]) -> Self {
        let mut hashing = Self { keyed: SipHasher24::new_with_key(key), tags: [0; MAX_KV_GROUPS - 1] };
        for index in 0..hashing.tags.len() {
            hashing.tags[index] = hashing.digest(Domain::Group, index as u128, &[]);
        }
        hashing
    }

    /// The parent of a first block: what separates salts and adapters.
    pub(crate) fn root(&self, salt: &[u8], adapter: Option<u32>) -> Digest {
        self.digest(Domain::Root, adapter.map_or(0, |adapter| u128::from(adapter) + 1), salt)
    }

    /// The name of the same prefix in the `index`th of the KV groups behind the first one. Names are pseudo-random and so are tags, so sums of
    /// them meet no more often than names do.
    pub(crate) fn in_group(&self, digest: Digest, index: usize) -> Digest {
        digest ^ self.tags[index]
    }

    /// The digest of a block of tokens after `parent`.
    pub(crate) fn block(&self, parent: Digest, tokens: &[TokenId]) -> Digest {
        use core::hash::Hasher;
        let mut hasher = self.keyed;
        let mut bytes = [0u8; 256];
        bytes[..16].copy_from_slice(&parent.to_le_bytes());
        bytes[16] = Domain::Tokens as u8;
        // Whole words keep the hasher on its fast path.
        let mut filled = 24;
        for chunk in tokens.chunks(58) {
            for token in chunk {
                bytes[filled..filled + 4].copy_from_slice(&token.to_le_bytes());
                filled += 4;
            }
            hasher.write(&bytes[..filled]);
            filled = 0;
        }
        hasher.finish128().as_u128()
    }

    /// The digest of a block that the caller has hashed, after `parent`: chained like the others, so that whatever a caller gives, a block is
    /// found only behind its parent.
    pub(crate) fn given(&self, parent: Digest, digest: &[u8; 16]) -> Digest {
        self.digest(Domain::Given, parent, digest)
    }

    /// The parent of a block that a span has positions in, `offset` being how many positions of the span come before the block, or (negative)
    /// how many of the block come before the span.
    pub(crate) fn span(&self, parent: Digest, span: &Span, offset: i64) -> Digest {
        let mut bytes = [0; 28];
        bytes[..16].copy_from_slice(&span.digest);
        bytes[16..24].copy_from_slice(&offset.to_le_bytes());
        bytes[24..].copy_from_slice(&span.len.to_le_bytes());
        self.digest(Domain::Span, parent, &bytes)
    }

    /// The name, among requests with this root, of what a span stands for.
    pub(crate) fn item(&self, root: Digest, digest: &[u8; 16]) -> [u8; 16] {
        self.digest(Domain::Item, root, digest).to_le_bytes()
    }

    /// The digest of the `index`th block of a prompt with spans: whatever they stand for is part of its name.
    pub(crate) fn block_at(&self, parent: Digest, tokens: &[TokenId], index: usize, spans: &[Span]) -> Digest {
        if spans.is_empty() {
            return self.block(parent, tokens);
        }
        let start = (index * tokens.len()) as u64;
        let position = |at: u64| u32::try_from(at).unwrap_or(u32::MAX);
        let inside = overlapping(spans, position(start), position(start + tokens.len() as u64));
        let parent = spans[inside].iter().fold(parent, |parent, span| self.span(parent, span, start as i64 - i64::from(span.start)));
        self.block(parent, tokens)
    }

    fn digest(&self, domain: Domain, parent: Digest, bytes: &[u8]) -> Digest {
        use core::hash::Hasher;
        let mut hasher = self.keyed;
        hasher.write(&parent.to_le_bytes());
        hasher.write(&(domain as u64).to_le_bytes());
        hasher.write(bytes);
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn digests_depend_on_everything_before_them() {
        let hashing = Hashing::new(&[7; 16]);
        let (a, b) = (hashing.root(b"", None), hashing.root(b"salt", None));
        assert_ne!(a, b);
        assert_ne!(a, hashing.root(b"", Some(0)));
        let tokens: Vec<u32> = (0..100).collect();
        assert_ne!(hashing.block(a, &tokens), hashing.block(b, &tokens));
        for changed in 0..100 {
            let mut other = tokens.clone();
            other[changed] ^= 1;
            assert_ne!(hashing.block(a, &tokens), hashing.block(a, &other), "token {changed}");
        }
        assert_ne!(hashing.block(a, &tokens), Hashing::new(&[8; 16]).block(a, &tokens));
        assert_ne!(hashing.block(a, &tokens[..99]), hashing.block(a, &tokens));
        assert_ne!(hashing.in_group(a, 0), a);
        assert_ne!(hashing.in_group(a, 0), hashing.in_group(a, 1));
    }
}
