// Greedy sampling: the most likely token of each row.
//
// Grid: a block of 1024 threads for each row of logits. Equal logits go to the smaller token, NaN to none; token 0 if nothing is above -infinity:
// the choice of the CPU device.
#include "common.cuh"

constexpr int ARGMAX_THREADS = 1024;

struct Best {
    float logit;
    int token;
};

__device__ __forceinline__ Best better(Best a, Best b) {
    return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}

__device__ __forceinline__ Best warp_best(Best best) {
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        const Best other = {__shfl_xor_sync(ALL_LANES, best.logit, distance), __shfl_xor_sync(ALL_LANES, best.token, distance)};
        best = better(best, other);
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(ARGMAX_THREADS) argmax_rows(int* tokens, const float* logits, int vocabulary) {
    SHARED_ARRAY(float, warp_logit, ARGMAX_THREADS / WARP);
    SHARED_ARRAY(int, warp_token, ARGMAX_THREADS / WARP);
    const float* row = logits + static_cast<size_t>(blockIdx.x) * vocabulary;
    Best best = {minus_infinity(), 0x7fffffff};
    for (int token = threadIdx.x; token < vocabulary; token += ARGMAX_THREADS) {
        // In the order of tokens, so that the first of equals stays.
        if (row[token] > best.logit) {
            best = {row[token], token};
        }
    }
    best = warp_best(best);
    if (threadIdx.x % WARP == 0) {
        warp_logit[threadIdx.x / WARP] = best.logit;
        warp_token[threadIdx.x / WARP] = best.token;
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        best = {warp_logit[threadIdx.x], warp_token[threadIdx.x]};
        best = warp_best(best);
        if (threadIdx.x == 0) {
            tokens[blockIdx.x] = best.token == 0x7fffffff ? 0 : best.token;
        }
    }
}
