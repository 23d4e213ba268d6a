// Attention of prompts: tiles of 64 packed query rows against tiles of 64 keys, on tensor cores (FlashAttention-2: Dao, 2023), over paged memory.
//
// Four warps have 16 rows each and share the tiles of keys and values, which are copied asynchronously into shared memory: values while scores are
// computed, the next keys while values are added. Rows of shared memory are 16 bytes longer than their numbers, so that the eight rows of a
// fragment lie in different banks.
// Grid: (tiles of query rows, kv heads), 128 threads. attention.cuh says how rows are packed and what is rounded.
#include "attention.cuh"

constexpr int PREFILL_WARPS = 4;
constexpr int PREFILL_KEYS = 64;

// 64 packed rows of one row of the batch, from `first` on. The host's twin is `cuda::layout::Tile`.
struct Tile {
    int row;
    int first;
};

// Begins to copy keys (or values) `first_key`.. into `tile`; zeros beyond `end`, since 0 · NaN is not 0.
template <int DIM, class SharedTile>
__device__ __forceinline__ void fetch_tile(SharedTile& tile, const bf16* memory, const int* table, int first_key, int end, int kv_head, int kv_heads,
                                           int block_shift) {
    constexpr int VECTORS = DIM / 8;
#pragma unroll
    for (int i = threadIdx.x; i < PREFILL_KEYS * VECTORS; i += PREFILL_WARPS * WARP) {
        const int key = i / VECTORS, number = i % VECTORS * 8;
        const bool wanted = first_key + key < end;
        const bf16* from = wanted ? memory + place_of<DIM>(table, first_key + key, kv_head, kv_heads, block_shift) + number : memory;
        copy_async(&tile[key * (DIM + 8) + number], from, wanted);
    }
    commit_copies();
}

// The left matrix of scores: this warp's 16 rows of queries. Rows beyond the last are zero.
template <int DIM>
__device__ __forceinline__ void load_queries(unsigned (&query)[DIM / 16][4], const bf16* qkv, const Row& row, int tile_row, int kv_head, int heads,
                                             int kv_heads) {
    const int group = heads / kv_heads, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int packed = tile_row + threadIdx.x % WARP / 4 + 8 * half, token = packed / group;
        const bf16* from = qkv + (static_cast<size_t>(row.first + token) * (heads + 2 * kv_heads) + kv_head * group + packed % group) * DIM;
#pragma unroll
        for (int step = 0; step < DIM / 16; step++) {
            query[step][half] = token < row.len ? load_packed<1>(from + 16 * step + column).pair[0] : 0;
            query[step][half + 2] = token < row.len ? load_packed<1>(from + 16 * step + column + 8).pair[0] : 0;
        }
    }
}

// score = query · keysᵀ for the tile of keys.
template <int DIM, class SharedTile>
__device__ __forceinline__ void multiply_keys(float (&score)[PREFILL_KEYS / 8][4], const unsigned (&query)[DIM / 16][4], SharedTile& keys) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int tile = 0; tile < PREFILL_KEYS / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            score[tile][i] = 0.0f;
        }
#pragma unroll
        for (int step = 0; step < DIM / 16; step += 2) {
            // Eight keys, 32 numbers of each: the right matrices of two steps.
            unsigned b[4];
            load_matrices(b, &keys[(8 * tile + lane % 8) * (DIM + 8) + 16 * step + lane / 8 * 8]);
            multiply_16x8x16(score[tile], query[step], b[0], b[1]);
            multiply_16x8x16(score[tile], query[step + 1], b[2], b[3]);
        }
    }
}

// out += weights · values for the tile of values.
template <int DIM, class SharedTile>
__device__ __forceinline__ void multiply_values(float (&out)[DIM / 8][4], const float (&weight)[PREFILL_KEYS / 8][4], SharedTile& values) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 0; step < PREFILL_KEYS / 16; step++) {
        unsigned a[4];
        pack_weights(a, weight[2 * step], weight[2 * step + 1]);
#pragma unroll
        for (int tile = 0; tile < DIM / 8; tile += 2) {
            // Sixteen keys, 16 numbers of each: the right matrices of two tiles.
            unsigned b[4];
            load_matrices_transposed(b, &values[(16 * step + lane % 16) * (DIM + 8) + 8 * tile + lane / 16 * 8]);
            multiply_16x8x16(out[tile], a, b[0], b[1]);
            multiply_16x8x16(out[tile + 1], a, b[2], b[3]);
        }
    }
}

template <int DIM>
__device__ __forceinline__ void attend_prefill(bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int* tables, const Row* rows,
                                               const Tile* tiles, int heads, int kv_heads, int block_shift, float scale) {
    SHARED_ARRAY(bf16, key_tile, PREFILL_KEYS * (DIM + 8));
    SHARED_ARRAY(bf16, value_tile, PREFILL_KEYS * (DIM + 8));
    const Tile tile = tiles[blockIdx.x];
    const Row row = rows[tile.row];
    const int* table = tables + row.table;
    const int kv_head = blockIdx.y, group = heads / kv_heads;
    const int tile_row = tile.first + threadIdx.x / WARP * TILE_ROWS, own_row = tile_row + threadIdx.x % WARP / 4;
    // A position sees itself and all before it; the last row of the block sees most.
    const int visible[2] = {row.start + own_row / group + 1, row.start + (own_row + 8) / group + 1};
    const int last_row = min(tile.first + PREFILL_WARPS * TILE_ROWS, row.len * group) - 1;
    const int end = row.start + last_row / group + 1;

    unsigned query[DIM / 16][4];
    load_queries<DIM>(query, qkv, row, tile_row, kv_head, heads, kv_heads);
    Seen<DIM> seen;
    clear(seen);
    fetch_tile<DIM>(key_tile, keys, table, 0, end, kv_head, kv_heads, block_shift);
    for (int first_key = 0; first_key < end; first_key += PREFILL_KEYS) {
        fetch_tile<DIM>(value_tile, values, table, first_key, end, kv_head, kv_heads, block_shift);
        wait_copies<1>();
        __syncthreads(); // the keys of all threads are there
        float score[PREFILL_KEYS / 8][4];
        multiply_keys<DIM>(score, query, key_tile);
        __syncthreads(); // nobody reads the keys any more
        if (first_key + PREFILL_KEYS < end) {
            fetch_tile<DIM>(key_tile, keys, table, first_key + PREFILL_KEYS, end, kv_head, kv_heads, block_shift);
        } else {
            commit_copies(); // an empty group, so that the values are the last but one here too
        }
        weigh<DIM, PREFILL_KEYS>(seen, score, first_key, visible, scale);
        wait_copies<1>();
        __syncthreads(); // the values of all threads are there
        multiply_values<DIM>(seen.out, score, value_tile);
        __syncthreads(); // nobody reads the values any more
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float inverse = 1.0f / quad_sum(seen.sum[half]);
        const int packed = own_row + 8 * half, token = packed / group;
        if (token < row.len) {
            bf16* to = out + (static_cast<size_t>(row.first + token) * heads + kv_head * group + packed % group) * DIM + threadIdx.x % 4 * 2;
#pragma unroll
            for (int column = 0; column < DIM / 8; column++) {
                const float* sums = &seen.out[column][2 * half];
                *reinterpret_cast<unsigned*>(to + 8 * column) = round_bf16x2(sums[0] * inverse, sums[1] * inverse);
            }
        }
    }
}

// `out` has for each token of the batch its heads; `qkv` what rotate_and_store has left; `tables` the block tables of all rows.
// Blocks that a multiprocessor must have room for: more hide more of what one waits for, until registers would be spilled.
#define ATTENTION_PREFILL(DIM)                                                                                                                       \
    extern "C" __global__ void __launch_bounds__(PREFILL_WARPS* WARP, DIM < 96 ? 3 : 2)                                                              \
        attention_prefill_##DIM(bf16* out, const bf16* qkv, const bf16* keys, const bf16* values, const int* tables, const Row* rows,                \
                                const Tile* tiles, int heads, int kv_heads, int block_shift, float scale) {                                          \
        attend_prefill<DIM>(out, qkv, keys, values, tables, rows, tiles, heads, kv_heads, block_shift, scale);                                       \
    }
ATTENTION_PREFILL(32)
ATTENTION_PREFILL(64)
ATTENTION_PREFILL(96)
ATTENTION_PREFILL(128)
