// The embedding of each token of a batch.
//
// Grid: a block for each token; any number of threads. Nothing is rounded.
#include "common.cuh"

// out[token] = table[tokens[token]]; rows of `hidden` numbers, a multiple of 8. The host has checked the tokens against the vocabulary.
extern "C" __global__ void embed_tokens(bf16* out, const bf16* table, const int* tokens, int hidden) {
    const size_t token = blockIdx.x;
    copy_numbers(out + token * hidden, table + static_cast<size_t>(tokens[token]) * hidden, hidden);
}
