//! The attention kernels against softmax(q · kᵀ) · v in double precision.

use super::SelftestError;
use super::bench::{Arg, Bench};
use super::kernels::{Case, Judge, one_rounding};
use super::random::{Random, wide};

/// Packed query rows of a tile of `attention_decode`, as it has them.
const DECODE_ROWS: usize = 16;

pub(super) fn check(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>, case: &Case) -> Result<(), SelftestError> {
    let layout = &case.layout;
    let tokens = layout.positions.len();
    let (qkv, keys, values) = (random.halves(tokens * case.columns()), random.halves(case.memory()), random.halves(case.memory()));
    let out = run(bench, case, &qkv, &keys, &values)?;
    for (number, row) in layout.rows.iter().enumerate() {
        let kernel = if layout.tiles.iter().any(|tile| tile.row == number as i32) {
            format!("attention_prefill_{}", case.dim)
        } else if layout.merges.iter().any(|merge| merge.row == number as i32) {
            "attention_merge".to_owned()
        } else {
            format!("attention_decode_{}", case.dim)
        };
        let slot = |position: usize| {
            let block = layout.tables[row.table as usize + position / case.block_size] as usize;
            block * case.block_size + position % case.block_size
        };
        for token in 0..row.len as usize {
            let visible = row.start as usize + token + 1;
            for head in 0..case.heads {
                let place = |position: usize| case.place(slot(position), head * case.kv_heads / case.heads);
                let query = &qkv[(row.first as usize + token) * case.columns() + head * case.dim..][..case.dim];
                let found = &out[((row.first as usize + token) * case.heads + head) * case.dim..][..case.dim];
                compare(
                    judge,
                    &kernel,
                    found,
                    query,
                    |position| &keys[place(position)..][..case.dim],
                    |position| &values[place(position)..][..case.dim],
                    visible,
                );
            }
        }
    }
    Ok(())
}

/// One head of one token.
fn compare<'a>(
    judge: &mut Judge<'_>,
    kernel: &str,
    found: &[u16],
    query: &[u16],
    key: impl Fn(usize) -> &'a [u16],
    value: impl Fn(usize) -> &'a [u16],
    visible: usize,
) {
    let root = (query.len() as f64).sqrt();
    let score = |position: usize| query.iter().zip(key(position)).map(|(a, b)| wide(*a) * wide(*b)).sum::<f64>() / root;
    let scores: Vec<f64> = (0..visible).map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    for (number, found) in found.iter().enumerate() {
        let (mut exact, mut mean) = (0.0, 0.0);
        for (position, weight) in weights.iter().enumerate() {
            let value = wide(value(position)[number]);
            exact += weight / sum * value;
            mean += weight / sum * value.abs();
        }
        // Each weight is rounded to bf16, and scores are sums in f32 that go through an exponential.
        judge.number(kernel, wide(*found), exact, mean * (2f64.powi(-8) + 2f64.powi(-12)) + one_rounding(exact));
    }
}

/// All rows of the batch, with the kernels and arguments of a stage.
fn run(bench: &Bench, case: &Case, qkv: &[u16], keys: &[u16], values: &[u16]) -> Result<Vec<u16>, SelftestError> {
    let layout = &case.layout;
    let flat = |list: &mut dyn Iterator<Item = i32>| {
        let mut numbers: Vec<i32> = list.collect();
        // No list is empty on a device.
        numbers.push(0);
        numbers
    };
    let rows = bench.upload(&flat(&mut layout.rows.iter().flat_map(|row| [row.first, row.len, row.start, row.table])))?;
    let tiles = bench.upload(&flat(&mut layout.tiles.iter().flat_map(|tile| [tile.row, tile.first])))?;
    let splits = bench.upload(&flat(&mut layout.splits.iter().flat_map(|split| [split.row, split.begin, split.end, split.slot])))?;
    let merges = bench.upload(&flat(&mut layout.merges.iter().flat_map(|merge| [merge.row, merge.slot, merge.count])))?;
    let (qkv, keys, values, tables) = (bench.upload(qkv)?, bench.upload(keys)?, bench.upload(values)?, bench.upload(&layout.tables)?);
    let out = bench.zeros::<u16>(layout.positions.len() * case.heads * case.dim)?;
    let slots = layout.num_slots.max(1) * case.kv_heads * DECODE_ROWS;
    let (seen_out, seen_weight) = (bench.zeros::<f32>(slots * case.dim)?, bench.zeros::<f32>(slots * 2)?);
    let at = |memory: &cudarc::driver::CudaSlice<u16>| bench.address(memory);
    let read = [at(&qkv), at(&keys), at(&values), bench.address(&tables), bench.address(&rows)];
    let scale = Arg::Float(std::f32::consts::LOG2_E / (case.dim as f32).sqrt());
    let heads = [Arg::Int(case.heads as i32), Arg::Int(case.kv_heads as i32)];
    let sizes = [heads[0], heads[1], Arg::Int(case.block_size.trailing_zeros() as i32), scale];
    let seen = [bench.address(&seen_out), bench.address(&seen_weight)];
    let prefill = [&[at(&out)][..], &read, &[bench.address(&tiles)], &sizes].concat();
    bench.launch(&format!("attention_prefill_{}", case.dim), [layout.tiles.len(), case.kv_heads, 1], 128, &prefill)?;
    let decode = [&[at(&out)][..], &seen, &read, &[bench.address(&splits)], &sizes].concat();
    bench.launch(&format!("attention_decode_{}", case.dim), [layout.splits.len(), case.kv_heads, 1], 128, &decode)?;
    let merge =
        [&[at(&out)][..], &seen, &[bench.address(&rows), bench.address(&merges), heads[0], heads[1], Arg::Int(case.dim as i32)]].concat();
    bench.launch("attention_merge", [layout.merges.len(), case.kv_heads, 1], 128, &merge)?;
    bench.read(&out)
}
