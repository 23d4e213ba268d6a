// What sampling with a temperature chooses from: the most likely tokens of each row, in order.
//
// The host draws from them exactly as the CPU device draws, since the order (greater logit first, equal ones by token) is the same. Rows
// that may draw from more than 256 tokens have their logits copied instead.
// A radix select over 64-bit keys, logit above token: keys are unique, so a threshold divides exactly, and the outcome does not depend on the order
// of atomics. Grid: a block of 1024 threads for each row of logits. O(8 · vocabulary).
#include "common.cuh"

constexpr int SELECT_THREADS = 1024;
constexpr int MOST_CANDIDATES = 256;
using Key = unsigned long long;

// Grows with the logit (in the total order of IEEE 754) and falls with the token.
__device__ __forceinline__ Key key_of(float logit, int token) {
    const unsigned bits = __float_as_uint(logit);
    const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << 32 | (0xffffffffu - static_cast<unsigned>(token));
}

// `tokens` and `chosen` get `count` (1 to 256, at most the vocabulary) tokens and logits of each row.
extern "C" __global__ void __launch_bounds__(SELECT_THREADS)
    top_candidates(int* tokens, float* chosen, const float* logits, int vocabulary, int count) {
    SHARED_ARRAY(int, counts, 256);
    SHARED_ARRAY(int, state, 3); // digit of the threshold, keys still wanted below it, keys collected
    SHARED_ARRAY(Key, best, MOST_CANDIDATES);
    const float* row = logits + static_cast<size_t>(blockIdx.x) * vocabulary;
    const int thread = threadIdx.x;

    // Digit by digit from the top: the `count`-th greatest key.
    Key threshold = 0;
    int wanted = count;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (thread < 256) {
            counts[thread] = 0;
        }
        __syncthreads();
        for (int token = thread; token < vocabulary; token += SELECT_THREADS) {
            const Key key = key_of(row[token], token);
            // The digits above are those of the threshold; a shift by 64 is none.
            if (shift == 56 || key >> (shift + 8) == threshold >> (shift + 8)) {
                atomicAdd(&counts[static_cast<int>(key >> shift & 255)], 1);
            }
        }
        __syncthreads();
        if (thread == 0) {
            int digit = 255, left = wanted;
            while (digit > 0 && counts[digit] < left) {
                left -= counts[digit];
                digit--;
            }
            state[0] = digit;
            state[1] = left;
            state[2] = 0;
        }
        __syncthreads();
        threshold |= static_cast<Key>(state[0]) << shift;
        wanted = state[1];
    }

    if (thread < MOST_CANDIDATES) {
        best[thread] = 0;
    }
    __syncthreads();
    for (int token = thread; token < vocabulary; token += SELECT_THREADS) {
        const Key key = key_of(row[token], token);
        if (key >= threshold) {
            best[atomicAdd(&state[2], 1)] = key;
        }
    }
    __syncthreads();

    // A bitonic sort (Batcher, 1968), greatest first.
    for (int size = 2; size <= MOST_CANDIDATES; size *= 2) {
        for (int distance = size / 2; distance > 0; distance /= 2) {
            const int other = thread ^ distance;
            if (thread < MOST_CANDIDATES && other > thread) {
                const Key a = best[thread], b = best[other];
                const bool falling = (thread & size) == 0;
                if (falling ? a < b : a > b) {
                    best[thread] = b;
                    best[other] = a;
                }
            }
            __syncthreads();
        }
    }
    if (thread < count) {
        const int token = static_cast<int>(0xffffffffu - static_cast<unsigned>(best[thread] & 0xffffffffu));
        tokens[static_cast<size_t>(blockIdx.x) * count + thread] = token;
        chosen[static_cast<size_t>(blockIdx.x) * count + thread] = row[token];
    }
}
