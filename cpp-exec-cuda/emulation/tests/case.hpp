// Cases: what a test programme runs, and what it judges by.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../buffer.hpp"
#include "../cuda.hpp"

namespace testing {

using emulation::Buffer;
using Random = std::mt19937_64;

// A result that is not what the reference says.
struct Mismatch : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A case: a kernel on random input, compared with a reference in f64. The same seed gives the same input and the same order of threads.
struct Case {
    const char* name;
    void (*run)(uint64_t seed);
};
std::vector<Case>& cases();

struct Register {
    Register(const char* name, void (*run)(uint64_t)) { cases().push_back({name, run}); }
};
#define CASE(name)                                                                                                                                    \
    static void name(uint64_t seed);                                                                                                                  \
    static const testing::Register register_##name(#name, name);                                                                                      \
    static void name(uint64_t seed)

// The greatest error so far as a share of what is tolerated; at most 1 in a case that holds.
extern double worst_share;

inline void check(const char* what, size_t index, double got, double wanted, double tolerance) {
    const double error = std::fabs(got - wanted);
    if (!(error <= tolerance)) {
        throw Mismatch(std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(got) + ", not " + std::to_string(wanted) +
                       ": off by " + std::to_string(error) + ", tolerated " + std::to_string(tolerance));
    }
    worst_share = std::max(worst_share, tolerance > 0 ? error / tolerance : 0.0);
}

inline void check_equal(const char* what, size_t index, long long got, long long wanted) {
    if (got != wanted) {
        throw Mismatch(std::string(what) + "[" + std::to_string(index) + "] is " + std::to_string(got) + ", not " + std::to_string(wanted));
    }
}

// Half a step of bf16 (8 bits of precision) at `exact`, and a little for sums in f32 before: what one rounding may be off by. Numbers that are
// nearly 0 may have lost their digits in a sum, of terms as large as `terms`.
inline double one_rounding(double exact, double terms = 0.0) {
    return std::fabs(exact) * (0x1p-8 + 0x1p-16) + terms * 0x1p-20 + 1e-30;
}

inline int between(Random& random, int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
}
inline bf16 normal(Random& random, double scale = 1.0) {
    return round_bf16(static_cast<float>(std::normal_distribution<double>(0.0, scale)(random)));
}
inline void fill_normal(Buffer<bf16>& buffer, Random& random, double scale = 1.0) {
    for (size_t i = 0; i < buffer.size(); i++) {
        buffer[i] = normal(random, scale);
    }
}
inline double value(bf16 number) {
    return emulation::float_of(number.bits);
}

// What unwritten memory holds: a NaN that no kernel produces.
constexpr bf16 POISON{0xffa5};

} // namespace testing
