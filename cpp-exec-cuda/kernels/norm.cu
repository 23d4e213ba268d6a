// The residual stream and RMSNorm (Zhang and Sennrich, 2019).
//
// Rounding: a sum with the residual is taken in f32 and rounded to bf16 once, where the stream is stored. The mean square is taken of the rounded
// stream, in f32; the normed row is multiplied with its weights in f32 and rounded once.
// Grid: a block of 256 threads for each token. `hidden` is a multiple of 8.
#include "common.cuh"

constexpr int NORM_THREADS = 256;

// The residual at `at`, plus `x` and `bias` where there are any; stored if it changed.
__device__ __forceinline__ void add_eight(float (&sum)[8], bf16* residual, const bf16* x, const bf16* bias, size_t at, int column) {
    widen8(sum, load8(residual + at));
    if (x == nullptr) {
        return;
    }
    float other[8];
    widen8(other, load8(x + at));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] += other[i];
    }
    if (bias != nullptr) {
        widen8(other, load8(bias + column));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[i] += other[i];
        }
    }
    const Eight rounded = round8(sum);
    store8(residual + at, rounded);
    widen8(sum, rounded);
}

// residual += x + bias, then out = residual / rms(residual) · weight. `x` may be null, then only the norm is taken; `bias` may be null.
extern "C" __global__ void __launch_bounds__(NORM_THREADS)
    add_rms_norm(bf16* out, bf16* residual, const bf16* x, const bf16* bias, const bf16* weight, int hidden, float eps) {
    const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
    float squares = 0.0f;
    for (int i = threadIdx.x * 8; i < hidden; i += NORM_THREADS * 8) {
        float numbers[8];
        add_eight(numbers, residual, x, bias, row + i, i);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            squares += numbers[j] * numbers[j];
        }
    }
    const float scale = rsqrtf(block_sum<NORM_THREADS>(squares) / hidden + eps);
    // A thread reads what it has itself written.
    for (int i = threadIdx.x * 8; i < hidden; i += NORM_THREADS * 8) {
        float numbers[8], weights[8];
        widen8(numbers, load8(residual + row + i));
        widen8(weights, load8(weight + i));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            numbers[j] = numbers[j] * scale * weights[j];
        }
        store8(out + row + i, round8(numbers));
    }
}

// residual += x: what a stage does last, so that one matrix goes on to the next.
extern "C" __global__ void __launch_bounds__(NORM_THREADS) add_residual(bf16* residual, const bf16* x, int hidden) {
    const size_t row = static_cast<size_t>(blockIdx.x) * hidden;
    for (int i = threadIdx.x * 8; i < hidden; i += NORM_THREADS * 8) {
        float numbers[8];
        add_eight(numbers, residual, x, nullptr, row + i, i);
    }
}
