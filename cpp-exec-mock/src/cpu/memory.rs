//! Paged memory for keys and values.

use cpp_sched::BlockId;

/// Keys and values of some layers, in blocks. A block holds, for each head, the keys of its positions one behind the other.
#[derive(Debug)]
pub(super) struct KvMemory {
    block_size: usize,
    num_blocks: usize,
    heads: usize,
    head_dim: usize,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl KvMemory {
    pub(super) fn new(layers: usize, num_blocks: usize, block_size: usize, heads: usize, head_dim: usize) -> Self {
        let layer = || vec![0.0; num_blocks * block_size * heads * head_dim];
        let layers = || (0..layers).map(|_| layer()).collect();
        Self { block_size, num_blocks, heads, head_dim, keys: layers(), values: layers() }
    }

    pub(super) const fn block_size(&self) -> usize {
        self.block_size
    }

    pub(super) const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Copies one block, in all layers.
    pub(super) fn copy(&mut self, from: BlockId, to: BlockId) {
        let size = self.block_size * self.heads * self.head_dim;
        for layer in self.keys.iter_mut().chain(&mut self.values) {
            let start = from.0 as usize * size;
            layer.copy_within(start..start + size, to.0 as usize * size);
        }
    }

    /// Writes keys and values of all heads at one position.
    pub(super) fn write(&mut self, layer: usize, table: &[BlockId], position: usize, keys: &[f32], values: &[f32]) {
        let block = table[position / self.block_size];
        for head in 0..self.heads {
            let at = self.slot(block, head) + position % self.block_size * self.head_dim;
            let of_head = head * self.head_dim..(head + 1) * self.head_dim;
            self.keys[layer][at..at + self.head_dim].copy_from_slice(&keys[of_head.clone()]);
            self.values[layer][at..at + self.head_dim].copy_from_slice(&values[of_head]);
        }
    }

    /// Keys and values of one head in one block, position after position.
    pub(super) fn block(&self, layer: usize, block: BlockId, head: usize) -> (&[f32], &[f32]) {
        let at = self.slot(block, head);
        let size = self.block_size * self.head_dim;
        (&self.keys[layer][at..at + size], &self.values[layer][at..at + size])
    }

    const fn slot(&self, block: BlockId, head: usize) -> usize {
        (block.0 as usize * self.heads + head) * self.block_size * self.head_dim
    }
}
