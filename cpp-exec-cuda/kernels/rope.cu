// Rotary position embedding, and where keys and values go: into the blocks of their request.
//
// Pair j of a head of d numbers is (j, j + d/2), as in the weights of Hugging Face. The angles are a table that the host has made in f64, so that
// scalings (Llama 3, YaRN) are its business alone.
// Rounding: queries, keys and values come as bf16 from one product; a bias is added and the pair turned in f32, then rounded once. Values
// without a bias are copied.
// The paged memory of a layer's keys, and that of its values: [block][kv head][position in the block][number].
// Grid: a block for each token; any number of threads. `dim` is a multiple of 16.
#include "common.cuh"

__device__ __forceinline__ void add_bias(float (&numbers)[8], const bf16* bias, int column) {
    if (bias != nullptr) {
        float more[8];
        widen8(more, load8(bias + column));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            numbers[i] += more[i];
        }
    }
}

// `qkv` has for each token the heads of queries, then those of keys, then those of values. Queries are turned in place.
// `angles` has for each position dim/2 cosines, then dim/2 sines. `position` and `slot` are per token: the slot is
// block · block size + position in the block; the block size is 2^block_shift. `bias` is per column of `qkv`, or null.
extern "C" __global__ void rotate_and_store(bf16* qkv, bf16* keys, bf16* values, const float* angles, const bf16* bias, const int* position,
                                            const int* slot, int heads, int kv_heads, int dim, int block_shift) {
    const int token = blockIdx.x, half = dim / 2, vectors = half / 8;
    bf16* row = qkv + static_cast<size_t>(token) * (heads + 2 * kv_heads) * dim;
    const float* cosines = angles + static_cast<size_t>(position[token]) * dim;
    const int block = slot[token] >> block_shift, offset = slot[token] & ((1 << block_shift) - 1);
    const auto place = [&](int kv_head) { return (((static_cast<size_t>(block) * kv_heads + kv_head) << block_shift) + offset) * dim; };

    for (int i = threadIdx.x; i < (heads + kv_heads) * vectors; i += blockDim.x) {
        const int head = i / vectors, pair = i % vectors * 8, column = head * dim + pair;
        float first[8], second[8];
        widen8(first, load8(row + column));
        widen8(second, load8(row + column + half));
        add_bias(first, bias, column);
        add_bias(second, bias, column + half);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float cosine = cosines[pair + j], sine = cosines[half + pair + j];
            const float turned = first[j] * cosine - second[j] * sine;
            second[j] = second[j] * cosine + first[j] * sine;
            first[j] = turned;
        }
        bf16* to = head < heads ? row + column : keys + place(head - heads) + pair;
        store8(to, round8(first));
        store8(to + half, round8(second));
    }
    for (int i = threadIdx.x; i < kv_heads * 2 * vectors; i += blockDim.x) {
        const int head = i / (2 * vectors), number = i % (2 * vectors) * 8, column = (heads + kv_heads + head) * dim + number;
        float value[8];
        widen8(value, load8(row + column));
        add_bias(value, bias, column);
        store8(values + place(head) + number, round8(value));
    }
}
