// Greedy sampling and the candidates for sampling with a temperature.
#include "case.hpp"

#include <numeric>

#include "argmax.cu"
#include "candidates.cu"

using namespace testing;
using emulation::launch;

// Logits with many equal ones, with infinities and NaNs now and then.
static std::vector<float> logits_of(Random& random, int rows, int vocabulary) {
    std::vector<float> logits(static_cast<size_t>(rows) * vocabulary);
    const int kinds = between(random, 0, 1) ? 5 : 1'000'000;
    const bool odd = between(random, 0, 3) == 0;
    for (size_t i = 0; i < logits.size(); i++) {
        logits[i] = static_cast<float>(between(random, -kinds, kinds)) / static_cast<float>(kinds) * 20.0f;
        if (odd && between(random, 0, 5) == 0) {
            const float odds[4] = {INFINITY, -INFINITY, NAN, -0.0f};
            logits[i] = odds[between(random, 0, 3)];
        }
    }
    return logits;
}

CASE(greedy) {
    Random random(seed);
    const int rows = between(random, 1, 3), vocabulary = between(random, 1, 3000);
    const Buffer<float> logits(logits_of(random, rows, vocabulary));
    Buffer<int> tokens(rows, -1);
    launch({unsigned(rows), 1, 1}, ARGMAX_THREADS, seed, [&] { argmax_rows(tokens.data(), logits.data(), vocabulary); });
    for (int row = 0; row < rows; row++) {
        int best = 0;
        float most = -INFINITY;
        for (int token = 0; token < vocabulary; token++) {
            if (logits[static_cast<size_t>(row) * vocabulary + token] > most) {
                most = logits[static_cast<size_t>(row) * vocabulary + token];
                best = token;
            }
        }
        check_equal("token", row, tokens[row], best);
    }
    tokens.check();
}

CASE(greedy_sees_nothing) {
    Buffer<float> logits(50, -INFINITY);
    Buffer<int> tokens(1, -1);
    launch({1, 1, 1}, ARGMAX_THREADS, seed, [&] { argmax_rows(tokens.data(), logits.data(), 50); });
    check_equal("token", 0, tokens[0], 0);
}

CASE(candidates) {
    Random random(seed);
    const int rows = between(random, 1, 2), vocabulary = between(random, 1, 2500);
    const int count = std::min(vocabulary, between(random, 0, 2) ? MOST_CANDIDATES : between(random, 1, MOST_CANDIDATES));
    const Buffer<float> logits(logits_of(random, rows, vocabulary));
    Buffer<int> tokens(static_cast<size_t>(rows) * count, -1);
    Buffer<float> chosen(tokens.size(), -1.0f);
    launch({unsigned(rows), 1, 1}, SELECT_THREADS, seed, [&] { top_candidates(tokens.data(), chosen.data(), logits.data(), vocabulary, count); });
    // The total order of IEEE 754, greatest first; equal ones by token.
    const auto rank = [](float logit) {
        const int bits = static_cast<int>(__float_as_uint(logit));
        return bits < 0 ? bits ^ 0x7fffffff : bits;
    };
    for (int row = 0; row < rows; row++) {
        const float* own = logits.data() + static_cast<size_t>(row) * vocabulary;
        std::vector<int> order(vocabulary);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(own[a]) > rank(own[b]); });
        for (int i = 0; i < count; i++) {
            const size_t at = static_cast<size_t>(row) * count + i;
            check_equal("token", at, tokens[at], order[i]);
            check_equal("logit", at, __float_as_uint(chosen[at]), __float_as_uint(own[order[i]]));
        }
    }
    tokens.check();
    chosen.check();
}
