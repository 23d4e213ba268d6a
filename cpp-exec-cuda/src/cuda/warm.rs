//! Batches that nobody wants, which run every kernel once.

use cpp_exec_mock::cpu::{KvShape, Sampling};
use cpp_exec_mock::model::LlamaConfig;
use cpp_exec_mock::runtime::Work;
use cpp_sched::{BatchId, BlockId, RequestId};

use super::stage::Room;

/// A prompt that takes the kernel for prompts, if one can be that long, then a decode with candidates and a copy of a block.
pub(super) fn batches(config: &LlamaConfig, kv: KvShape, room: Room) -> Vec<Work> {
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
