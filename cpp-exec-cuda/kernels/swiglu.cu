// SwiGLU (Shazeer, 2020): silu(gate) · up.
//
// Rounding: gate and up come as bf16 from one product; silu and product are taken in f32 and rounded once.
// Grid: a block for each token; any number of threads.
#include "common.cuh"

// `gate_up` has for each token `inner` numbers of the gate, then as many of up; `inner` is a multiple of 8.
extern "C" __global__ void swiglu(bf16* out, const bf16* gate_up, int inner) {
    const size_t token = blockIdx.x;
    const bf16* gates = gate_up + token * 2 * inner;
    for (int i = threadIdx.x * 8; i < inner; i += blockDim.x * 8) {
        float gate[8], up[8];
        widen8(gate, load8(gates + i));
        widen8(up, load8(gates + inner + i));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            gate[j] = gate[j] / (1.0f + expf(-gate[j])) * up[j];
        }
        store8(out + token * inner + i, round8(gate));
    }
}
