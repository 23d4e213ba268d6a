// Copies of KV blocks, as a batch asks for before its rows run.
//
// Grid: (copies, layers, 2 for keys and values); any number of threads. No block may be both source and target in one launch: blocks of a grid
// run in no order. The host cuts a list where that would happen.
#include "common.cuh"

// `cache` holds for each layer the keys of all blocks, then the values of all blocks; a block has `block_numbers` of each (a multiple of 8) and
// there are `num_blocks`. `pairs` are (from, to).
extern "C" __global__ void copy_blocks(bf16* cache, const int* pairs, int block_numbers, int num_blocks) {
    const size_t half = (static_cast<size_t>(blockIdx.y) * 2 + blockIdx.z) * num_blocks;
    const size_t from = half + pairs[2 * blockIdx.x], to = half + pairs[2 * blockIdx.x + 1];
    copy_numbers(cache + to * block_numbers, cache + from * block_numbers, block_numbers);
}
