// Attention of prompts.
#include "attention.hpp"

#include "attention_prefill.cu"

using namespace testing;
using emulation::launch;

template <int DIM>
static void prefill(uint64_t seed) {
    Random random(seed);
    const int groups[6] = {1, 2, 3, 4, 7, 8};
    const Batch batch = random_batch(random, DIM, groups[between(random, 0, 5)], 150, 200);
    std::vector<Tile> tiles;
    for (size_t row = 0; row < batch.rows.size(); row++) {
        for (int first = 0; first < batch.rows[row].len * batch.group(); first += PREFILL_WARPS * TILE_ROWS) {
            tiles.push_back({static_cast<int>(row), first});
        }
    }
    std::shuffle(tiles.begin(), tiles.end(), random);
    const Buffer<bf16> qkv(batch.qkv), keys(batch.keys), values(batch.values);
    const Buffer<int> tables(batch.tables);
    const Buffer<Row> rows(batch.rows);
    const Buffer<Tile> given(tiles);
    Buffer<bf16> out(static_cast<size_t>(batch.tokens) * batch.heads * DIM, POISON);
    launch({unsigned(tiles.size()), unsigned(batch.kv_heads), 1}, PREFILL_WARPS * WARP, seed, [&] {
        attend_prefill<DIM>(out.data(), qkv.data(), keys.data(), values.data(), tables.data(), rows.data(), given.data(), batch.heads,
                            batch.kv_heads, batch.shift, batch.scale);
    });
    compare(batch, out);
}

CASE(prefill_32) {
    prefill<32>(seed);
}
CASE(prefill_64) {
    prefill<64>(seed);
}
CASE(prefill_96) {
    prefill<96>(seed);
}
CASE(prefill_128) {
    prefill<128>(seed);
}
