// What both attention kernels share: the online softmax over tiles of scores (Milakov and Gimelshein, 2018; Dao et al., FlashAttention).
//
// A warp holds 16 rows of queries of one kv head. Rows are packed: with `group` heads of queries for each kv head, row r is head r % group of
// token r / group. So keys and values are read once for the whole group, by decodes and prompts alike.
// A lane has numbers of two of these rows, g and g + 8 (g = lane / 4), at the columns that multiply_16x8x16 gives it.
//
// Rounding: scores are sums in f32 of products of bf16. Weights exp(score - maximum) are taken in f32, summed in f32 as they are, and rounded
// to bf16 where they are multiplied with values; that sum is f32, divided by the sum of weights, and rounded to bf16 once.
#pragma once
#include "common.cuh"

constexpr int TILE_ROWS = 16;

// What a warp has seen so far.
template <int DIM>
struct Seen {
    float out[DIM / 8][4]; // sums of weighted values: fragments of 8 columns
    float most[2];         // greatest score, times log2(e), of rows g and g + 8
    float sum[2];          // sum of weights over this lane's columns alone
};

template <int DIM>
__device__ __forceinline__ void clear(Seen<DIM>& seen) {
#pragma unroll
    for (int tile = 0; tile < DIM / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            seen.out[tile][i] = 0.0f;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        seen.most[half] = minus_infinity();
        seen.sum[half] = 0.0f;
    }
}

// The greatest number, or the sum, of the four lanes that share a row.
__device__ __forceinline__ float quad_max(float number) {
    number = fmaxf(number, __shfl_xor_sync(ALL_LANES, number, 1));
    return fmaxf(number, __shfl_xor_sync(ALL_LANES, number, 2));
}
__device__ __forceinline__ float quad_sum(float number) {
    number += __shfl_xor_sync(ALL_LANES, number, 1);
    return number + __shfl_xor_sync(ALL_LANES, number, 2);
}

// What weights relative to `most` are taken relative to: where nothing has been seen any number does, but infinity.
__device__ __forceinline__ float base_of(float most) {
    return most == minus_infinity() ? 0.0f : most;
}

// Makes weights of the scores of KEYS keys from `first_key` on, relative to the greatest score so far, and what was seen relative to it as well.
// Row g sees keys below visible[0], row g + 8 those below visible[1]. `scale` is that of scores, times log2(e).
template <int DIM, int KEYS>
__device__ __forceinline__ void weigh(Seen<DIM>& seen, float (&score)[KEYS / 8][4], int first_key, const int (&visible)[2], float scale) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = seen.most[half];
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; tile++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& number = score[tile][2 * half + i];
                number = first_key + 8 * tile + column + i < visible[half] ? number * scale : minus_infinity();
                most = fmaxf(most, number);
            }
        }
        most = quad_max(most);
        const float base = base_of(most), fade = exp2_fast(seen.most[half] - base);
        float sum = seen.sum[half] * fade;
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; tile++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float& number = score[tile][2 * half + i];
                number = exp2_fast(number - base);
                sum += number;
            }
        }
#pragma unroll
        for (int tile = 0; tile < DIM / 8; tile++) {
            seen.out[tile][2 * half] *= fade;
            seen.out[tile][2 * half + 1] *= fade;
        }
        seen.most[half] = most;
        seen.sum[half] = sum;
    }
}

// Weights of 16 keys, two tiles of 8, as the left matrix of a product with values.
__device__ __forceinline__ void pack_weights(unsigned (&a)[4], const float (&first)[4], const float (&second)[4]) {
    a[0] = round_bf16x2(first[0], first[1]);
    a[1] = round_bf16x2(first[2], first[3]);
    a[2] = round_bf16x2(second[0], second[1]);
    a[3] = round_bf16x2(second[2], second[3]);
}

// Where position `key` of a request lies in the memory of keys, or of values: [block][kv head][position in the block][number].
template <int DIM>
__device__ __forceinline__ size_t place_of(const int* table, int key, int kv_head, int kv_heads, int block_shift) {
    const size_t block = table[key >> block_shift];
    return (((block * kv_heads + kv_head) << block_shift) + (key & ((1 << block_shift) - 1))) * DIM;
}
