// CUDA C on the processor: with this file included first, a C++17 compiler takes the kernels' source as it is.
//
// What kernels do not use is not here, and a kernel that begins to use it does not compile.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fibres.hpp"
#include "ptx.hpp"
#include "shared.hpp"

#define CPP_EMULATION 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
#define SHARED_ARRAY(type, name, size) static emulation::SharedArray<type> name(#name, size)
#define __syncthreads() emulation::barrier(__FILE__, __LINE__)

#define threadIdx emulation::thread_index
#define blockIdx emulation::block_index
#define blockDim emulation::block_size
#define gridDim emulation::grid_size

using std::max;
using std::min;

inline float __uint_as_float(unsigned bits) {
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
}
inline unsigned __float_as_uint(float number) {
    unsigned bits;
    std::memcpy(&bits, &number, 4);
    return bits;
}
inline float rsqrtf(float number) {
    return 1.0f / std::sqrt(number);
}

// Four bytes out of the eight of b:a, each chosen by the lower three bits of a digit of `selector`.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t{b} << 32 | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned chosen = selector >> 4 * i & 7;
        result |= static_cast<unsigned>(bytes >> 8 * chosen & 0xff) << 8 * i;
    }
    return result;
}

inline int atomicAdd(const emulation::SharedAddress<int>& place, int more) {
    return place.array.add(place.index, more);
}
