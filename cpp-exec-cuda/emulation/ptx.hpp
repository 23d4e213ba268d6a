// The twins of kernels/ptx.cuh: what each instruction does, on the processor. Layouts of fragments are those of the PTX ISA, element by element.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "fibres.hpp"
#include "shared.hpp"

struct bf16 {
    unsigned short bits;
};

namespace emulation {

using NumberAddress = SharedAddress<bf16>;

// A copy of 8 numbers that may come at any time until it is waited for; emulated as late as that.
struct PendingCopy {
    NumberAddress to;
    const bf16* from; // null: zeros
};
struct PendingCopies {
    std::vector<PendingCopy> open;
    std::vector<std::vector<PendingCopy>> groups;
};

inline float float_of(unsigned short bits) {
    const uint32_t wide = uint32_t{bits} << 16;
    float number;
    std::memcpy(&number, &wide, 4);
    return number;
}
inline float low_of(unsigned pair) {
    return float_of(static_cast<unsigned short>(pair));
}
inline float high_of(unsigned pair) {
    return float_of(static_cast<unsigned short>(pair >> 16));
}

// What a lane brings to a product, and where its sums are.
struct ProductLane {
    float* sum;
    unsigned a[4], b[2];
};

inline void multiply_fragments(void* const (&lanes)[LANES]) {
    const auto lane_of = [&](unsigned lane) { return static_cast<ProductLane*>(lanes[lane]); };
    float left[16][16], right[16][8];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned group = lane / 4, column = lane % 4 * 2;
        const unsigned* a = lane_of(planted.shift_lane ? (lane + 1) % LANES : lane)->a;
        const unsigned* b = lane_of(lane)->b;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned given = planted.swap_left && (i == 1 || i == 2) ? a[3 - i] : a[i];
            left[group + i % 2 * 8][column + i / 2 * 8] = low_of(given);
            left[group + i % 2 * 8][column + i / 2 * 8 + 1] = high_of(given);
        }
        for (unsigned i = 0; i < 2; i++) {
            const unsigned given = planted.swap_right ? b[1 - i] : b[i];
            right[column + 8 * i][group] = low_of(given);
            right[column + 8 * i + 1][group] = high_of(given);
        }
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            double sum = 0;
            for (unsigned k = 0; k < 16; k++) {
                sum += double{left[row][k]} * double{right[k][column]};
            }
            const unsigned at = planted.swap_result && (i == 1 || i == 2) ? 3 - i : i;
            lane_of(lane)->sum[at] = static_cast<float>(lane_of(lane)->sum[at] + sum);
        }
    }
}

struct LoadLane {
    unsigned* out;
    unsigned short row[8];
};

template <bool TRANSPOSED>
void load_fragments(void* const (&lanes)[LANES]) {
    for (unsigned lane = 0; lane < LANES; lane++) {
        for (unsigned matrix = 0; matrix < 4; matrix++) {
            const auto number = [&](unsigned row, unsigned column) {
                const unsigned first = 8 * (planted.shift_row ? (matrix + 1) % 4 : matrix);
                return unsigned{static_cast<LoadLane*>(lanes[first + row])->row[column]};
            };
            const unsigned group = lane / 4, pair = lane % 4 * 2;
            const bool transposed = TRANSPOSED != planted.transpose;
            const unsigned low = transposed ? number(pair, group) : number(group, pair);
            const unsigned high = transposed ? number(pair + 1, group) : number(group, pair + 1);
            static_cast<LoadLane*>(lanes[lane])->out[matrix] = low | high << 16;
        }
    }
}

template <bool TRANSPOSED>
void load_matrices(unsigned (&out)[4], const NumberAddress& row) {
    LoadLane own{out, {}};
    if (row.index % 8 != 0) {
        fail("gives a row of a matrix that is not aligned for 16 bytes");
    }
    for (unsigned i = 0; i < 8; i++) {
        own.row[i] = row.array.read(row.index + i).bits;
    }
    warp_operation(TRANSPOSED ? "a transposed load of matrices" : "a load of matrices", &own, load_fragments<TRANSPOSED>);
}

template <class T>
struct ShuffleLane {
    T value, result;
    int distance;
};

template <class T>
void exchange(void* const (&lanes)[LANES]) {
    for (unsigned lane = 0; lane < LANES; lane++) {
        auto* own = static_cast<ShuffleLane<T>*>(lanes[lane]);
        const int distance = planted.near_lane ? own->distance / 2 : own->distance;
        own->result = static_cast<ShuffleLane<T>*>(lanes[lane ^ static_cast<unsigned>(distance)])->value;
    }
}

} // namespace emulation

inline bf16 round_bf16(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    if (number != number) {
        return bf16{0x7fff};
    }
    return bf16{static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline unsigned round_bf16x2(float low, float high) {
    return round_bf16(low).bits | unsigned{round_bf16(high).bits} << 16;
}

// The instruction is allowed an error; none is emulated, but that results below the normal range are 0.
inline float exp2_fast(float number) {
    const float result = std::exp2(number);
    return result < 0x1p-126f ? 0.0f : result;
}

inline void multiply_16x8x16(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    emulation::ProductLane own{sum, {a[0], a[1], a[2], a[3]}, {b0, b1}};
    emulation::warp_operation("a product of matrices", &own, emulation::multiply_fragments);
}

inline void load_matrices(unsigned (&out)[4], const emulation::NumberAddress& row) {
    emulation::load_matrices<false>(out, row);
}
inline void load_matrices_transposed(unsigned (&out)[4], const emulation::NumberAddress& row) {
    emulation::load_matrices<true>(out, row);
}

inline void copy_async(const emulation::NumberAddress& to, const bf16* from, bool wanted) {
    if (to.index % 8 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0) {
        emulation::fail("copies from or to a place that is not aligned for 16 bytes");
    }
    for (unsigned i = 0; i < 8; i++) {
        to.array.begin_copy(to.index + i);
    }
    emulation::pending_copies().open.push_back({to, wanted ? from : nullptr});
}

inline void commit_copies() {
    auto& copies = emulation::pending_copies();
    copies.groups.push_back(std::move(copies.open));
    copies.open.clear();
}

template <int PENDING>
void wait_copies(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (emulation::skipped(file, line)) {
        return;
    }
    auto& groups = emulation::pending_copies().groups;
    while (groups.size() > PENDING) {
        for (const auto& copy : groups.front()) {
            for (unsigned i = 0; i < 8; i++) {
                copy.to.array.finish_copy(copy.to.index + i, copy.from ? copy.from[i] : bf16{0});
            }
        }
        groups.erase(groups.begin());
    }
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
    if (mask != 0xffffffffu) {
        emulation::fail("shuffles with a mask that is not full, which is not emulated");
    }
    emulation::ShuffleLane<T> own{value, value, distance};
    emulation::warp_operation("a shuffle", &own, emulation::exchange<T>);
    return own.result;
}
