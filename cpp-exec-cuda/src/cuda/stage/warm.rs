//! Before the first batch: batches that nobody wants, which run every kernel once, and every product.

use cpp_exec_mock::cpu::{KvShape, Sampling};
use cpp_exec_mock::model::LlamaConfig;
use cpp_exec_mock::runtime::Work;
use cpp_sched::{BatchId, BlockId, RequestId};

use super::{CudaStage, Room};
use crate::cuda::error::CudaError;
use crate::cuda::lists::Shape;
use crate::cuda::planted::happens;

impl CudaStage {
    /// Runs every kernel once, and every product at sizes up to the largest batch's: what is loaded at the first use would wait for whatever is on the
    /// device, which may wait for this stage, and would break a capture. A size between two of these may have cuBLAS choose yet another kernel; its
    /// load waits for the device once more, which gets there, since what a stage waits for never waits for a later batch of it.
    pub(super) fn warm_up(&mut self) -> Result<(), CudaError> {
        let (layers, slot) = (&self.layers, &mut self.slots[0]);
        let batches = batches(&layers.config, layers.kv, self.room);
        for work in &batches {
            self.layout.fill(work, self.first)?;
            let shape = Shape::of(&self.layout);
            let numbers = slot.fill(work, &self.layout, shape, self.nobody, layers.config.hidden_size);
            let stream = layers.queue.stream().clone();
            let batch = slot.batch(&layers.queue, shape);
            stream.copy_in(&slot.meta, numbers, batch.lists.address())?;
            layers.copy_blocks(&batch, &self.layout.copy_launches)?;
            layers.run(&batch)?;
            layers.merge_nothing(&batch)?;
            if let Some(chosen) = &mut slot.chosen {
                chosen.begin(work, layers.config.vocab_size);
                layers.sample(&batch, chosen, self.layout.samples.len())?;
            }
            layers.queue.wait()?;
        }
        if happens() {
            sizes(self.room.tokens as usize).try_for_each(|tokens| layers.products(tokens))?;
        }
        layers.queue.wait()
    }
}

/// Tokens that products are run with: 1, 2, 3, 4, 6, 8, 12, 16 .. and the most that there can be. Graphs are of these sizes alone.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    let powers = (0..usize::BITS - 2).map(|power| 1 << power).take_while(move |size| *size < most);
    powers.flat_map(|size: usize| [size, size + size / 2]).filter(move |size| *size < most).skip(usize::from(most > 1)).chain([most])
}

/// A prompt that takes the kernel for prompts, if one can be that long, then a decode with candidates and a copy of a block.
fn batches(config: &LlamaConfig, kv: KvShape, room: Room) -> Vec<Work> {
    let group = (config.num_heads / config.num_kv_heads) as u32;
    let blocks: Vec<BlockId> = (0..kv.num_blocks.min(17)).map(BlockId).collect();
    let longest = room.tokens.min(room.positions).min(kv.block_size.saturating_mul(kv.num_blocks)).min(17);
    let mut batches = Vec::new();
    for len in [longest, longest.min(16 / group).max(1)] {
        if len == 0 || room.rows == 0 {
            continue;
        }
        let mut work = Work::new(BatchId(0));
        let table = &blocks[..len.div_ceil(kv.block_size) as usize];
        work.push(RequestId(0), 0, &vec![0; len as usize], 0, table, Some(Sampling { temperature: 1.0, top_k: 1, ..Sampling::default() }));
        if kv.num_blocks > 1 {
            work.copies.push((BlockId(0), BlockId(1)));
        }
        batches.push(work);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::sizes;

    #[test]
    fn sizes_are_powers_of_two_and_halves_between_up_to_the_most() {
        let of = |most| sizes(most).collect::<Vec<_>>();
        assert_eq!(of(1), [1]);
        assert_eq!(of(2), [1, 2]);
        assert_eq!(of(17), [1, 2, 3, 4, 6, 8, 12, 16, 17]);
        assert_eq!(of(64).last(), Some(&64));
    }
}
