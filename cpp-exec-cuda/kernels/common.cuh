// What kernels share: reading and writing bf16, sums over warps and blocks, the rows of a batch.
#pragma once
#ifndef CPP_EMULATION
#include "ptx.cuh"
#endif

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// A row of a batch: positions start..start + len of one request. The host's twin is `cuda::layout::Row`.
struct Row {
    int first; // place of its first token in the batch
    int len;   // its tokens
    int start; // position of its first token
    int table; // where its block table begins in the batch's tables
};

__device__ __forceinline__ float widen(bf16 number) {
    return __uint_as_float(static_cast<unsigned>(number.bits) << 16);
}

__device__ __forceinline__ float minus_infinity() {
    return __uint_as_float(0xff800000u);
}

// The lower and the upper number of a register.
__device__ __forceinline__ float widen_low(unsigned pair) {
    return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float widen_high(unsigned pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

// Numbers that are read and written at once; PAIRS of 2 or 4, so 8 or 16 bytes, aligned to that.
template <int PAIRS>
struct __align__(4 * PAIRS) Packed {
    unsigned pair[PAIRS];
};
using Eight = Packed<4>;

template <int PAIRS>
__device__ __forceinline__ Packed<PAIRS> load_packed(const bf16* from) {
    return *reinterpret_cast<const Packed<PAIRS>*>(from);
}
__device__ __forceinline__ Eight load8(const bf16* from) {
    return load_packed<4>(from);
}
__device__ __forceinline__ void store8(bf16* to, const Eight& eight) {
    *reinterpret_cast<Eight*>(to) = eight;
}

__device__ __forceinline__ void widen8(float (&out)[8], const Eight& eight) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = widen_low(eight.pair[i]);
        out[2 * i + 1] = widen_high(eight.pair[i]);
    }
}
__device__ __forceinline__ Eight round8(const float (&numbers)[8]) {
    Eight eight;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        eight.pair[i] = round_bf16x2(numbers[2 * i], numbers[2 * i + 1]);
    }
    return eight;
}

__device__ __forceinline__ float warp_sum(float number) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        number += __shfl_xor_sync(ALL_LANES, number, distance);
    }
    return number;
}

// The sum over all THREADS threads of a block, in each of them, in one order whatever the number of rows. Once in a kernel.
template <int THREADS>
__device__ __forceinline__ float block_sum(float number) {
    static_assert(THREADS % WARP == 0 && THREADS <= WARP * WARP, "whole warps, and one lane for each");
    SHARED_ARRAY(float, sums, THREADS / WARP);
    const int lane = threadIdx.x % WARP;
    number = warp_sum(number);
    if (lane == 0) {
        sums[threadIdx.x / WARP] = number;
    }
    __syncthreads();
    float all = 0.0f;
    if (lane < THREADS / WARP) {
        all = sums[lane];
    }
    return warp_sum(all);
}

// Copies `size` numbers, a multiple of 8, with the threads of a block.
__device__ __forceinline__ void copy_numbers(bf16* to, const bf16* from, int size) {
    for (int i = threadIdx.x * 8; i < size; i += blockDim.x * 8) {
        store8(to + i, load8(from + i));
    }
}
