// Kernels that work row by row: embedding, gather, copies, norms, SwiGLU, rotary embedding.
#include "case.hpp"

#include "copy.cu"
#include "embedding.cu"
#include "gather.cu"
#include "norm.cu"
#include "rope.cu"
#include "swiglu.cu"

using namespace testing;
using emulation::launch;

// Threads for kernels that take any number of them.
static unsigned any_threads(Random& random) {
    return static_cast<unsigned>(between(random, 1, 256));
}

static void check_rows(const Buffer<bf16>& out, const Buffer<bf16>& from, const std::vector<int>& rows, int hidden) {
    for (size_t i = 0; i < out.size(); i++) {
        check_equal("out", i, out[i].bits, from[static_cast<size_t>(rows[i / hidden]) * hidden + i % hidden].bits);
    }
    out.check();
}

CASE(embedding) {
    Random random(seed);
    const int tokens = between(random, 1, 9), vocabulary = between(random, 1, 40), hidden = 8 * between(random, 1, 80);
    Buffer<bf16> table(static_cast<size_t>(vocabulary) * hidden), out(static_cast<size_t>(tokens) * hidden, POISON);
    fill_normal(table, random);
    std::vector<int> ids(tokens);
    for (int& id : ids) {
        id = between(random, 0, vocabulary - 1);
    }
    Buffer<int> given(ids);
    launch({unsigned(tokens), 1, 1}, any_threads(random), seed, [&] { embed_tokens(out.data(), table.data(), given.data(), hidden); });
    check_rows(out, table, ids, hidden);
}

CASE(gather) {
    Random random(seed);
    const int from_rows = between(random, 1, 30), out_rows = between(random, 1, 9), hidden = 8 * between(random, 1, 80);
    Buffer<bf16> from(static_cast<size_t>(from_rows) * hidden), out(static_cast<size_t>(out_rows) * hidden, POISON);
    fill_normal(from, random);
    std::vector<int> rows(out_rows);
    for (int& row : rows) {
        row = between(random, 0, from_rows - 1);
    }
    Buffer<int> given(rows);
    launch({unsigned(out_rows), 1, 1}, any_threads(random), seed, [&] { gather_rows(out.data(), from.data(), given.data(), hidden); });
    check_rows(out, from, rows, hidden);
}

CASE(copies) {
    Random random(seed);
    const int layers = between(random, 1, 3), blocks = between(random, 2, 12), numbers = 8 * between(random, 1, 64);
    Buffer<bf16> cache(static_cast<size_t>(layers) * 2 * blocks * numbers);
    fill_normal(cache, random);
    // Sources and targets apart: the first of a random order are targets.
    std::vector<int> order(blocks);
    for (int i = 0; i < blocks; i++) {
        order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random);
    const int copies = between(random, 1, blocks / 2);
    std::vector<int> pairs, source(blocks);
    for (int i = 0; i < blocks; i++) {
        source[order[i]] = order[i];
    }
    for (int i = 0; i < copies; i++) {
        source[order[i]] = order[between(random, copies, blocks - 1)];
        pairs.insert(pairs.end(), {source[order[i]], order[i]});
    }
    Buffer<int> given(pairs);
    const std::vector<bf16> before(cache.data(), cache.data() + cache.size());
    launch({unsigned(copies), unsigned(layers), 2}, any_threads(random), seed, [&] { copy_blocks(cache.data(), given.data(), numbers, blocks); });
    for (size_t i = 0; i < cache.size(); i++) {
        const size_t block = i / numbers, half = block / blocks;
        check_equal("cache", i, cache[i].bits, before[(half * blocks + source[block % blocks]) * numbers + i % numbers].bits);
    }
    cache.check();
}

CASE(norm) {
    Random random(seed);
    const int tokens = between(random, 1, 4), hidden = 8 * between(random, 1, 600);
    const bool added = between(random, 0, 3) > 0, biased = added && between(random, 0, 1);
    const size_t size = static_cast<size_t>(tokens) * hidden;
    Buffer<bf16> residual(size), x(size), bias(hidden), weight(hidden), out(size, POISON);
    fill_normal(residual, random, std::exp(between(random, -4, 4)));
    fill_normal(x, random);
    fill_normal(bias, random);
    fill_normal(weight, random);
    const std::vector<bf16> before(residual.data(), residual.data() + size);
    const float eps = 1e-5f;
    launch({unsigned(tokens), 1, 1}, NORM_THREADS, seed, [&] {
        add_rms_norm(out.data(), residual.data(), added ? x.data() : nullptr, biased ? bias.data() : nullptr, weight.data(), hidden, eps);
    });
    for (int token = 0; token < tokens; token++) {
        double squares = 0;
        for (int i = 0; i < hidden; i++) {
            const size_t at = static_cast<size_t>(token) * hidden + i;
            const double terms[3] = {value(before[at]), added ? value(x[at]) : 0.0, biased ? value(bias[i]) : 0.0};
            const double exact = terms[0] + terms[1] + terms[2];
            check("residual", at, value(residual[at]), exact, one_rounding(exact, std::fabs(terms[0]) + std::fabs(terms[1]) + std::fabs(terms[2])));
            squares += value(residual[at]) * value(residual[at]);
        }
        const double scale = 1.0 / std::sqrt(squares / hidden + eps);
        for (int i = 0; i < hidden; i++) {
            const size_t at = static_cast<size_t>(token) * hidden + i;
            const double exact = value(residual[at]) * scale * value(weight[i]);
            check("out", at, value(out[at]), exact, one_rounding(exact));
        }
    }
    residual.check();
    out.check();
}

CASE(residual_sum) {
    Random random(seed);
    const int tokens = between(random, 1, 4), hidden = 8 * between(random, 1, 400);
    Buffer<bf16> residual(static_cast<size_t>(tokens) * hidden), x(residual.size());
    fill_normal(residual, random);
    fill_normal(x, random);
    const std::vector<bf16> before(residual.data(), residual.data() + residual.size());
    launch({unsigned(tokens), 1, 1}, NORM_THREADS, seed, [&] { add_residual(residual.data(), x.data(), hidden); });
    for (size_t i = 0; i < residual.size(); i++) {
        const double exact = value(before[i]) + value(x[i]);
        check("residual", i, value(residual[i]), exact, one_rounding(exact));
    }
    residual.check();
}

CASE(feed_forward) {
    Random random(seed);
    const int tokens = between(random, 1, 5), inner = 8 * between(random, 1, 200);
    Buffer<bf16> gate_up(static_cast<size_t>(tokens) * 2 * inner), out(static_cast<size_t>(tokens) * inner, POISON);
    fill_normal(gate_up, random, between(random, 1, 30));
    launch({unsigned(tokens), 1, 1}, any_threads(random), seed, [&] { swiglu(out.data(), gate_up.data(), inner); });
    for (size_t i = 0; i < out.size(); i++) {
        const size_t row = i / inner * 2 * inner + i % inner;
        const double gate = value(gate_up[row]), up = value(gate_up[row + inner]);
        const double exact = gate / (1 + std::exp(-gate)) * up;
        check("out", i, value(out[i]), exact, one_rounding(exact));
    }
    out.check();
}

CASE(rotary) {
    Random random(seed);
    const int heads = between(random, 1, 6), kv_heads = between(random, 1, 3), dim = 16 * between(random, 1, 8), shift = between(random, 0, 5);
    const int tokens = between(random, 1, 6), positions = between(random, tokens, 200), blocks = between(random, (tokens >> shift) + 1, 9);
    const bool biased = between(random, 0, 1);
    const int columns = (heads + 2 * kv_heads) * dim, half = dim / 2, slots = blocks << shift;
    Buffer<bf16> qkv(static_cast<size_t>(tokens) * columns), bias(columns), keys(static_cast<size_t>(slots) * kv_heads * dim, POISON),
        values(keys.size(), POISON);
    fill_normal(qkv, random);
    fill_normal(bias, random);
    Buffer<float> angles(static_cast<size_t>(positions) * dim);
    for (int position = 0; position < positions; position++) {
        for (int pair = 0; pair < half; pair++) {
            const double angle = position * std::pow(10000.0, -2.0 * pair / dim);
            angles[static_cast<size_t>(position) * dim + pair] = static_cast<float>(std::cos(angle));
            angles[static_cast<size_t>(position) * dim + half + pair] = static_cast<float>(std::sin(angle));
        }
    }
    std::vector<int> order(slots), where(tokens), which(tokens);
    for (int i = 0; i < slots; i++) {
        order[i] = i;
    }
    std::shuffle(order.begin(), order.end(), random);
    for (int token = 0; token < tokens; token++) {
        which[token] = order[token];
        where[token] = between(random, 0, positions - 1);
    }
    Buffer<int> position(where), slot(which);
    const std::vector<bf16> before(qkv.data(), qkv.data() + qkv.size());
    launch({unsigned(tokens), 1, 1}, any_threads(random), seed, [&] {
        rotate_and_store(qkv.data(), keys.data(), values.data(), angles.data(), biased ? bias.data() : nullptr, position.data(), slot.data(), heads,
                         kv_heads, dim, shift);
    });
    size_t stored = 0;
    for (int token = 0; token < tokens; token++) {
        const auto given = [&](int column) {
            return value(before[static_cast<size_t>(token) * columns + column]) + (biased ? value(bias[column]) : 0.0);
        };
        const auto stored_at = [&](int head, int number) {
            const int block = which[token] >> shift, offset = which[token] & ((1 << shift) - 1);
            return (((static_cast<size_t>(block) * kv_heads + head) << shift) + offset) * dim + number;
        };
        for (int head = 0; head < heads + kv_heads; head++) {
            for (int pair = 0; pair < half; pair++) {
                const double a = given(head * dim + pair), b = given(head * dim + pair + half);
                const double cosine = angles[static_cast<size_t>(where[token]) * dim + pair];
                const double sine = angles[static_cast<size_t>(where[token]) * dim + half + pair];
                const double turned[2] = {a * cosine - b * sine, b * cosine + a * sine};
                for (int i = 0; i < 2; i++) {
                    const size_t column = static_cast<size_t>(token) * columns + head * dim + pair + i * half;
                    const bf16 got = head < heads ? qkv[column] : keys[stored_at(head - heads, pair + i * half)];
                    check(head < heads ? "query" : "key", column, value(got), turned[i], one_rounding(turned[i], std::fabs(a) + std::fabs(b)));
                }
            }
        }
        for (int i = 0; i < 2 * kv_heads * dim; i++) {
            // Keys and values within qkv stay as they came.
            const size_t column = static_cast<size_t>(token) * columns + heads * dim + i;
            check_equal("qkv", column, qkv[column].bits, before[column].bits);
        }
        for (int i = 0; i < kv_heads * dim; i++) {
            const double exact = given((heads + kv_heads) * dim + i);
            check("value", i, value(values[stored_at(i / dim, i % dim)]), exact, one_rounding(exact));
            stored++;
        }
    }
    size_t written = 0;
    for (size_t i = 0; i < keys.size(); i++) {
        check_equal("whether key and value are written", i, keys[i].bits == POISON.bits, values[i].bits == POISON.bits);
        written += keys[i].bits != POISON.bits;
    }
    check_equal("written keys", 0, static_cast<long long>(written), static_cast<long long>(stored));
    keys.check();
    values.check();
}
