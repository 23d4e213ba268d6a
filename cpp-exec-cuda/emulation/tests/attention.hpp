// Random ragged batches over paged memory, and attention over them in f64.
//
// Tolerance: weights are rounded to bf16 (2^-8 of each), the result once more; so an output may be off by 2^-8 of the mean of |value| under the
// weights, and by 2^-8 of itself. Scores are sums in f32 and exponentials of them; 2^-13 of that mean is given to them, and more where scores are great.
#pragma once
#include <numeric>

#include "case.hpp"

#include "attention.cuh"

namespace testing {

// A batch with the memory that it attends to. Memory that no row may read is NaN.
struct Batch {
    int dim, heads, kv_heads, shift;
    float scale;
    std::vector<Row> rows;
    std::vector<int> tables;
    int tokens = 0;
    std::vector<bf16> qkv, keys, values;

    int group() const { return heads / kv_heads; }
    size_t place(const Row& row, int key, int kv_head) const {
        const size_t block = tables[row.table + (key >> shift)];
        return (((block * kv_heads + kv_head) << shift) + (key & ((1 << shift) - 1))) * dim;
    }
};

// Rows with `most_packed` packed query rows at most.
inline Batch random_batch(Random& random, int dim, int group, int most_packed, int most_context) {
    Batch batch;
    batch.dim = dim;
    batch.kv_heads = between(random, 1, 2);
    batch.heads = batch.kv_heads * group;
    batch.shift = between(random, 0, 5);
    batch.scale = 1.4426950408889634f / std::sqrt(static_cast<float>(dim));
    for (int i = between(random, 1, 3); i > 0; i--) {
        Row row;
        row.first = batch.tokens;
        row.len = between(random, 1, most_packed / group);
        row.start = between(random, 0, 4) ? between(random, 0, most_context - row.len) : 0;
        if (between(random, 0, 2) == 0) {
            // Keys that end with a tile.
            row.start = (row.start + row.len + 63) / 64 * 64 - row.len;
        }
        row.table = static_cast<int>(batch.tables.size());
        batch.tokens += row.len;
        batch.tables.resize(batch.tables.size() + ((row.start + row.len - 1) >> batch.shift) + 1);
        batch.rows.push_back(row);
    }
    // Blocks in any order, some of them nobody's.
    std::vector<int> order(batch.tables.size() + between(random, 0, 5));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::copy_n(order.begin(), batch.tables.size(), batch.tables.begin());
    batch.keys.assign((order.size() << batch.shift) * batch.kv_heads * dim, POISON);
    batch.values = batch.keys;
    // Now and then scores so great that one key has all the weight.
    const double sharp = between(random, 0, 3) ? 1.0 : 6.0;
    for (const Row& row : batch.rows) {
        for (int key = 0; key < row.start + row.len; key++) {
            for (int head = 0; head < batch.kv_heads; head++) {
                for (int i = 0; i < dim; i++) {
                    batch.keys[batch.place(row, key, head) + i] = normal(random, sharp);
                    batch.values[batch.place(row, key, head) + i] = normal(random);
                }
            }
        }
    }
    // Keys and values within qkv are not read: they are NaN.
    batch.qkv.assign(static_cast<size_t>(batch.tokens) * (batch.heads + 2 * batch.kv_heads) * dim, POISON);
    for (int token = 0; token < batch.tokens; token++) {
        for (int i = 0; i < batch.heads * dim; i++) {
            batch.qkv[static_cast<size_t>(token) * (batch.heads + 2 * batch.kv_heads) * dim + i] = normal(random);
        }
    }
    return batch;
}

inline void compare(const Batch& batch, const Buffer<bf16>& out) {
    const int dim = batch.dim;
    for (const Row& row : batch.rows) {
        for (int token = 0; token < row.len; token++) {
            for (int head = 0; head < batch.heads; head++) {
                const int visible = row.start + token + 1, kv_head = head / batch.group();
                const bf16* query = &batch.qkv[(static_cast<size_t>(row.first + token) * (batch.heads + 2 * batch.kv_heads) + head) * dim];
                std::vector<double> weight(visible);
                double most = -1e300, terms = 0, sum = 0;
                for (int key = 0; key < visible; key++) {
                    double score = 0, absolute = 0;
                    for (int i = 0; i < dim; i++) {
                        const double product = value(query[i]) * value(batch.keys[batch.place(row, key, kv_head) + i]);
                        score += product;
                        absolute += std::fabs(product);
                    }
                    weight[key] = score / std::sqrt(static_cast<double>(dim));
                    terms = std::max(terms, absolute / std::sqrt(static_cast<double>(dim)));
                    most = std::max(most, weight[key]);
                }
                for (double& one : weight) {
                    one = std::exp(one - most);
                    sum += one;
                }
                for (int i = 0; i < dim; i++) {
                    double exact = 0, mean = 0;
                    for (int key = 0; key < visible; key++) {
                        const double number = value(batch.values[batch.place(row, key, kv_head) + i]);
                        exact += weight[key] / sum * number;
                        mean += weight[key] / sum * std::fabs(number);
                    }
                    const size_t at = (static_cast<size_t>(row.first + token) * batch.heads + head) * dim + i;
                    check("out", at, value(out[at]), exact, mean * (0x1p-8 + 0x1p-13 + terms * 0x1p-20) + one_rounding(exact));
                }
            }
        }
    }
    out.check();
}

} // namespace testing
