// The rows of a matrix that go on: those of positions that sample.
//
// Grid: a block for each row; any number of threads. Nothing is rounded.
#include "common.cuh"

// out[i] = from[rows[i]]; rows of `hidden` numbers, a multiple of 8.
extern "C" __global__ void gather_rows(bf16* out, const bf16* from, const int* rows, int hidden) {
    const size_t row = blockIdx.x;
    copy_numbers(out + row * hidden, from + static_cast<size_t>(rows[row]) * hidden, hidden);
}
