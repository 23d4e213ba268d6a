// Attention of decodes and drafts, over one or several splits of their keys.
#include "attention.hpp"

#include "attention_decode.cu"

using namespace testing;
using emulation::launch;

template <int DIM>
static void decode(uint64_t seed) {
    Random random(seed);
    const int groups[8] = {1, 2, 3, 4, 5, 7, 8, 16};
    const Batch batch = random_batch(random, DIM, groups[between(random, 0, 7)], TILE_ROWS, 300);
    std::vector<Split> splits;
    std::vector<Merge> merges;
    int slots = 0;
    for (size_t row = 0; row < batch.rows.size(); row++) {
        const int context = batch.rows[row].start + batch.rows[row].len;
        // Any lengths are right; some splits are empty of what a token may see, if drafts reach into the last.
        const int length = between(random, 0, 2) ? between(random, 1, context) : context;
        const int count = (context + length - 1) / length;
        if (count > 1) {
            merges.push_back({static_cast<int>(row), slots, count});
        }
        for (int i = 0; i < count; i++) {
            splits.push_back({static_cast<int>(row), i * length, std::min(context, (i + 1) * length), count > 1 ? slots++ : -1});
        }
    }
    if (between(random, 0, 1)) {
        splits.push_back({0, 0, 0, -1}); // nobody's, as graphs have them
    }
    std::shuffle(splits.begin(), splits.end(), random);
    const Buffer<bf16> qkv(batch.qkv), keys(batch.keys), values(batch.values);
    const Buffer<int> tables(batch.tables);
    const Buffer<Row> rows(batch.rows);
    const Buffer<Split> given(splits);
    const Buffer<Merge> merged(merges);
    Buffer<float> seen_out(static_cast<size_t>(slots) * batch.kv_heads * TILE_ROWS * DIM, NAN);
    Buffer<float> seen_weight(static_cast<size_t>(slots) * batch.kv_heads * TILE_ROWS * 2, NAN);
    Buffer<bf16> out(static_cast<size_t>(batch.tokens) * batch.heads * DIM, POISON);
    launch({unsigned(splits.size()), unsigned(batch.kv_heads), 1}, DECODE_WARPS * WARP, seed, [&] {
        attend_decode<DIM>(out.data(), seen_out.data(), seen_weight.data(), qkv.data(), keys.data(), values.data(), tables.data(), rows.data(),
                           given.data(), batch.heads, batch.kv_heads, batch.shift, batch.scale);
    });
    if (!merges.empty()) {
        launch({unsigned(merges.size()), unsigned(batch.kv_heads), 1}, unsigned(between(random, 1, 256)), seed, [&] {
            attention_merge(out.data(), seen_out.data(), seen_weight.data(), rows.data(), merged.data(), batch.heads, batch.kv_heads, DIM);
        });
    }
    compare(batch, out);
    seen_out.check();
    seen_weight.check();
}

CASE(decode_32) {
    decode<32>(seed);
}
CASE(decode_64) {
    decode<64>(seed);
}
CASE(decode_96) {
    decode<96>(seed);
}
CASE(decode_128) {
    decode<128>(seed);
}
