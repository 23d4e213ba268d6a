//! Digests of prefixes: who introduced the content that ends here.
//!
//! A prefix of `end` tokens is named by the item that has it first, and by `end`. For an item that continues another this is a walk up the tree
//! of [`Prefix`]: an end within the common part belongs to the earlier item. Two prompts therefore have equal names exactly as far as their
//! contents are equal. The names are spread over 128 bits by a bijection of their 64 bits and a second lane, so different names never collide.

use super::{Prefix, Workload};
use crate::splitmix::mix;

impl Workload {
    /// One digest of the whole prefix for each whole block of `block_size` tokens of item `index`'s prompt; equal exactly where contents are
    /// equal, over all items of this workload. Empty where nothing is known of the content ([`Prefix::Unknown`]).
    ///
    /// O(blocks + depth of the item in its tree of continuations).
    ///
    /// # Panics
    /// If there is no item `index`, or `block_size` is 0.
    #[must_use]
    pub fn digests(&self, index: usize, block_size: u32) -> Vec<[u8; 16]> {
        let item = &self.items[index];
        if item.prefix == Prefix::Unknown {
            return Vec::new();
        }
        let blocks = item.input_tokens / block_size;
        let mut digests = vec![[0; 16]; blocks as usize];
        // From the end backwards: the smaller the end, the further up the tree its owner.
        let mut owner = index;
        for block in (0..blocks).rev() {
            let end = (block + 1) * block_size;
            while let Prefix::Continues { item, tokens } = self.items[owner].prefix
                && end <= tokens
            {
                owner = item as usize;
            }
            digests[block as usize] = spread(owner as u64, end);
        }
        digests
    }
}

/// 128 well mixed bits, injective in (owner, end) for owners below 2^32.
fn spread(owner: u64, end: u32) -> [u8; 16] {
    let low = mix(owner << 32 | u64::from(end));
    let high = mix(low ^ 0x9e37_79b9_7f4a_7c15);
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}
