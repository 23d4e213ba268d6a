// Attention of decodes, and of any row with at most 16 packed query rows (a group of heads times a token and its drafts), with the keys of a row
// split among blocks (Flash-Decoding: Dao et al., 2023), over paged memory.
//
// A decode reads each key and value once, so they go from global memory straight into fragments. That works with 16 bytes at a time because
// the order of sums is free: a product over numbers 8c..8c+7 of a head may call them columns 2c, 2c+1, 2c+8, 2c+9 of two steps, if queries and
// keys do so alike; and fragment i of the output may be numbers i, i + 8, i + 16.. of a head, if it is stored like that.
// Four warps take tiles of 16 keys in turn; what they have seen is put together in shared memory, and what the blocks of a row have seen by
// attention_merge.
// Grid: (splits, kv heads), 128 threads. attention.cuh says how rows are packed and what is rounded.
#include "attention.cuh"

constexpr int DECODE_WARPS = 4;
constexpr int DECODE_KEYS = 16;

// Keys begin..end of one row. The host's twin is `cuda::layout::Split`.
struct Split {
    int row;
    int begin;
    int end;
    int slot; // place of what it has seen, for attention_merge; -1: the row has no other split
};

// The splits of one row: slots slot..slot + count. The host's twin is `cuda::layout::Merge`.
struct Merge {
    int row;
    int slot;
    int count;
};

// How the numbers of a head lie in fragments of values and output: chunks of 8 · EACH, of which lane group g has EACH numbers in sequence.
template <int DIM>
struct Chunks {
    static constexpr int EACH = DIM % 64 == 0 ? 8 : 4;
    static constexpr int COUNT = DIM / (8 * EACH);
};

// The left matrix of scores. Rows beyond the last are zero.
template <int DIM>
__device__ __forceinline__ void load_queries(unsigned (&query)[DIM / 16][4], const bf16* qkv, const Row& row, int kv_head, int heads, int kv_heads) {
    const int group = heads / kv_heads, lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int packed = lane / 4 + 8 * half, token = packed / group;
        const bf16* from = qkv + (static_cast<size_t>(row.first + token) * (heads + 2 * kv_heads) + kv_head * group + packed % group) * DIM;
#pragma unroll
        for (int chunk = 0; chunk < DIM / 32; chunk++) {
            Eight eight = {{0, 0, 0, 0}};
            if (token < row.len) {
                eight = load8(from + 32 * chunk + lane % 4 * 8);
            }
#pragma unroll
            for (int step = 0; step < 2; step++) {
                query[2 * chunk + step][half] = eight.pair[2 * step];
                query[2 * chunk + step][half + 2] = eight.pair[2 * step + 1];
            }
        }
    }
}

// The 16 keys from `first_key` on, as right matrices: of keys g and g + 8. Beyond `end` nothing is read.
template <int DIM>
struct Keys {
    Eight key[2][DIM / 32];
};
template <int DIM>
__device__ __forceinline__ void load_keys(Keys<DIM>& key, const bf16* keys, const int* table, int first_key, int end, int kv_head, int kv_heads,
                                          int block_shift) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
        const int own = first_key + 8 * tile + lane / 4;
#pragma unroll
        for (int chunk = 0; chunk < DIM / 32; chunk++) {
            key.key[tile][chunk] = {{0, 0, 0, 0}};
        }
        if (own < end) {
            const bf16* from = keys + place_of<DIM>(table, own, kv_head, kv_heads, block_shift) + lane % 4 * 8;
#pragma unroll
            for (int chunk = 0; chunk < DIM / 32; chunk++) {
                key.key[tile][chunk] = load8(from + 32 * chunk);
            }
        }
    }
}

// score = query · keysᵀ.
template <int DIM>
__device__ __forceinline__ void multiply_keys(float (&score)[2][4], const unsigned (&query)[DIM / 16][4], const Keys<DIM>& key) {
#pragma unroll
    for (int tile = 0; tile < 2; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            score[tile][i] = 0.0f;
        }
#pragma unroll
        for (int chunk = 0; chunk < DIM / 32; chunk++) {
            const Eight& eight = key.key[tile][chunk];
            multiply_16x8x16(score[tile], query[2 * chunk], eight.pair[0], eight.pair[1]);
            multiply_16x8x16(score[tile], query[2 * chunk + 1], eight.pair[2], eight.pair[3]);
        }
    }
}

// Values of the same keys, as rows of the right matrix: of keys 2c, 2c+1, 2c+8, 2c+9. Beyond `end` they are zero, since 0 · NaN is not 0.
template <int DIM>
struct Values {
    Packed<Chunks<DIM>::EACH / 2> key[4][Chunks<DIM>::COUNT];
};
template <int DIM>
__device__ __forceinline__ void load_values(Values<DIM>& value, const bf16* values, const int* table, int first_key, int end, int kv_head, int kv_heads,
                                            int block_shift) {
    constexpr int EACH = Chunks<DIM>::EACH, COUNT = Chunks<DIM>::COUNT;
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int key = first_key + lane % 4 * 2 + i % 2 + i / 2 * 8;
#pragma unroll
        for (int chunk = 0; chunk < COUNT; chunk++) {
#pragma unroll
            for (int pair = 0; pair < EACH / 2; pair++) {
                value.key[i][chunk].pair[pair] = 0;
            }
        }
        if (key < end) {
            const bf16* from = values + place_of<DIM>(table, key, kv_head, kv_heads, block_shift) + lane / 4 * EACH;
#pragma unroll
            for (int chunk = 0; chunk < COUNT; chunk++) {
                value.key[i][chunk] = load_packed<EACH / 2>(from + 8 * EACH * chunk);
            }
        }
    }
}

// out += weights · values.
template <int DIM>
__device__ __forceinline__ void multiply_values(float (&out)[DIM / 8][4], const float (&weight)[2][4], const Values<DIM>& value) {
    constexpr int EACH = Chunks<DIM>::EACH, COUNT = Chunks<DIM>::COUNT;
    unsigned a[4];
    pack_weights(a, weight[0], weight[1]);
#pragma unroll
    for (int chunk = 0; chunk < COUNT; chunk++) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            // Number i of each key: the lower or the upper halves of two registers.
            const unsigned halves = i % 2 == 0 ? 0x5410 : 0x7632;
            const unsigned b0 = __byte_perm(value.key[0][chunk].pair[i / 2], value.key[1][chunk].pair[i / 2], halves);
            const unsigned b1 = __byte_perm(value.key[2][chunk].pair[i / 2], value.key[3][chunk].pair[i / 2], halves);
            multiply_16x8x16(out[chunk * EACH + i], a, b0, b1);
        }
    }
}

// `seen_out` and `seen_weight` hold for each slot and kv head what a block has seen: 16 rows of DIM sums, and the greatest score and the sum of
// weights of these rows.
template <int DIM>
__device__ __forceinline__ void attend_decode(bf16* out, float* seen_out, float* seen_weight, const bf16* qkv, const bf16* keys, const bf16* values,
                                              const int* tables, const Row* rows, const Split* splits, int heads, int kv_heads, int block_shift,
                                              float scale) {
    constexpr int EACH = Chunks<DIM>::EACH;
    // Rows are a number longer, so that lanes which write the same numbers of eight rows write to different banks.
    constexpr int PITCH = DIM + 1;
    SHARED_ARRAY(float, warp_out, DECODE_WARPS * TILE_ROWS * PITCH);
    SHARED_ARRAY(float, warp_most, DECODE_WARPS * TILE_ROWS);
    SHARED_ARRAY(float, warp_weight, DECODE_WARPS * TILE_ROWS);
    const Split split = splits[blockIdx.x];
    if (split.begin >= split.end) {
        return; // nobody's, of a graph that is larger than its batch
    }
    const Row row = rows[split.row];
    const int* table = tables + row.table;
    const int kv_head = blockIdx.y, group = heads / kv_heads;
    const int warp = threadIdx.x / WARP, own_row = threadIdx.x % WARP / 4;
    const int visible[2] = {min(row.start + own_row / group + 1, split.end), min(row.start + (own_row + 8) / group + 1, split.end)};

    unsigned query[DIM / 16][4];
    load_queries<DIM>(query, qkv, row, kv_head, heads, kv_heads);
    Seen<DIM> seen;
    clear(seen);
    for (int first_key = split.begin + DECODE_KEYS * warp; first_key < split.end; first_key += DECODE_WARPS * DECODE_KEYS) {
        // Values are asked for before keys are waited for: what a warp has under way at once, 8 KiB with heads of 128, is what decides the speed.
        Keys<DIM> key;
        load_keys<DIM>(key, keys, table, first_key, split.end, kv_head, kv_heads, block_shift);
        Values<DIM> value;
        load_values<DIM>(value, values, table, first_key, split.end, kv_head, kv_heads, block_shift);
        float score[2][4];
        multiply_keys<DIM>(score, query, key);
        weigh<DIM, DECODE_KEYS>(seen, score, first_key, visible, scale);
        multiply_values<DIM>(seen.out, score, value);
    }

    const int wanted = min(row.len * group, TILE_ROWS);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int at = warp * TILE_ROWS + own_row + 8 * half;
        const float sum = quad_sum(seen.sum[half]);
        if (own_row + 8 * half >= wanted) {
            continue; // of four heads in a group, as of many models, only four rows of sixteen are anybody's
        }
        if (threadIdx.x % 4 == 0) {
            warp_most[at] = seen.most[half];
            warp_weight[at] = sum;
        }
#pragma unroll
        for (int fragment = 0; fragment < DIM / 8; fragment++) {
            // The lane's columns 2c and 2c + 1 of a fragment are numbers of two lane groups.
            const int number = fragment / EACH * 8 * EACH + threadIdx.x % 4 * 2 * EACH + fragment % EACH;
            warp_out[at * PITCH + number] = seen.out[fragment][2 * half];
            warp_out[at * PITCH + number + EACH] = seen.out[fragment][2 * half + 1];
        }
    }
    __syncthreads();
    const size_t place = (static_cast<size_t>(split.slot < 0 ? 0 : split.slot) * kv_heads + kv_head) * TILE_ROWS;
    for (int i = threadIdx.x; i < wanted * DIM; i += DECODE_WARPS * WARP) {
        const int packed = i / DIM;
        float most = minus_infinity();
#pragma unroll
        for (int other = 0; other < DECODE_WARPS; other++) {
            most = fmaxf(most, warp_most[other * TILE_ROWS + packed]);
        }
        const float base = base_of(most);
        float sum = 0.0f, weights = 0.0f;
#pragma unroll
        for (int other = 0; other < DECODE_WARPS; other++) {
            const float fade = exp2_fast(warp_most[other * TILE_ROWS + packed] - base);
            sum += warp_out[(other * TILE_ROWS + packed) * PITCH + i % DIM] * fade;
            weights += warp_weight[other * TILE_ROWS + packed] * fade;
        }
        if (split.slot < 0) {
            const size_t head = static_cast<size_t>(row.first + packed / group) * heads + kv_head * group + packed % group;
            out[head * DIM + i % DIM] = round_bf16(sum / weights);
        } else {
            seen_out[place * DIM + i] = sum;
            if (i % DIM == 0) {
                seen_weight[(place + packed) * 2] = most;
                seen_weight[(place + packed) * 2 + 1] = weights;
            }
        }
    }
}

// `out` has for each token of the batch its heads; `qkv` what rotate_and_store has left; `tables` the block tables of all rows.
#define ATTENTION_DECODE(DIM)                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(DECODE_WARPS* WARP)                                                                                 \
        attention_decode_##DIM(bf16* out, float* seen_out, float* seen_weight, const bf16* qkv, const bf16* keys, const bf16* values,                \
                               const int* tables, const Row* rows, const Split* splits, int heads, int kv_heads, int block_shift, float scale) {     \
        attend_decode<DIM>(out, seen_out, seen_weight, qkv, keys, values, tables, rows, splits, heads, kv_heads, block_shift, scale);                \
    }
ATTENTION_DECODE(32)
ATTENTION_DECODE(64)
ATTENTION_DECODE(96)
ATTENTION_DECODE(128)

// Puts together what the splits of a row have seen. Grid: (rows with several splits, kv heads); any number of threads.
extern "C" __global__ void attention_merge(bf16* out, const float* seen_out, const float* seen_weight, const Row* rows, const Merge* merges,
                                           int heads, int kv_heads, int dim) {
    const Merge merge = merges[blockIdx.x];
    const Row row = rows[merge.row];
    const int kv_head = blockIdx.y, group = heads / kv_heads, wanted = min(row.len * group, TILE_ROWS);
    for (int i = threadIdx.x; i < wanted * dim; i += blockDim.x) {
        const int packed = i / dim;
        float most = minus_infinity();
        for (int split = 0; split < merge.count; split++) {
            const size_t place = (static_cast<size_t>(merge.slot + split) * kv_heads + kv_head) * TILE_ROWS + packed;
            most = fmaxf(most, seen_weight[place * 2]);
        }
        const float base = base_of(most);
        float sum = 0.0f, weights = 0.0f;
        for (int split = 0; split < merge.count; split++) {
            const size_t place = (static_cast<size_t>(merge.slot + split) * kv_heads + kv_head) * TILE_ROWS + packed;
            const float fade = exp2_fast(seen_weight[place * 2] - base);
            sum += seen_out[place * dim + i % dim] * fade;
            weights += seen_weight[place * 2 + 1] * fade;
        }
        const size_t head = static_cast<size_t>(row.first + packed / group) * heads + kv_head * group + packed % group;
        out[head * dim + i % dim] = round_bf16(sum / weights);
    }
}
