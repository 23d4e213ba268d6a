//! Every kernel against a plain computation in double precision, on random ragged batches.
//!
//! What is tolerated is one rounding to bf16 where the result is stored, and what f32 sums before it may be off by; copies must be exact.

use std::collections::BTreeMap;
use std::sync::Arc;

use cpp_exec_mock::model::from_bf16;
use cpp_exec_mock::runtime::Work;
use cpp_sched::{BatchId, BlockId, RequestId};

use super::SelftestError;
use super::attention;
use super::bench::Bench;
use super::random::{Random, wide};
use crate::cuda::{Gpu, Layout, LayoutLimits};

/// What came of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KernelCheck {
    /// Numbers that were compared.
    pub numbers: u64,
    /// The greatest error, as a share of what is tolerated there: above 1 it is wrong.
    pub worst: f64,
}

/// The kernels by their names.
pub type KernelChecks = BTreeMap<String, KernelCheck>;

/// What is tolerated of a number that is rounded to bf16 once: half a step, and a little for sums in f32 that came out the other way.
pub(super) fn one_rounding(exact: f64) -> f64 {
    exact.abs() * (2f64.powi(-8) + 2f64.powi(-12)) + 1e-30
}

/// Where the checks of a case go.
pub(super) struct Judge<'a>(pub(super) &'a mut KernelChecks);

impl Judge<'_> {
    pub(super) fn number(&mut self, kernel: &str, found: f64, exact: f64, tolerated: f64) {
        let check = self.0.entry(kernel.to_owned()).or_default();
        check.numbers += 1;
        let share = (found - exact).abs() / tolerated;
        // What is no number is as wrong as can be.
        check.worst = check.worst.max(if share.is_nan() { f64::INFINITY } else { share });
    }

    pub(super) fn equal<T: PartialEq>(&mut self, kernel: &str, found: &[T], exact: &[T]) {
        let check = self.0.entry(kernel.to_owned()).or_default();
        check.numbers += exact.len() as u64;
        if found != exact {
            check.worst = f64::INFINITY;
        }
    }
}

/// Runs every kernel on so many random batches from a seed on. O(batches · a second of a processor core).
///
/// # Errors
/// The device fails; what is wrong but runs is in the checks.
pub fn check_kernels(gpu: &Arc<Gpu>, seed: u64, batches: u64) -> Result<KernelChecks, SelftestError> {
    let bench = Bench::new(gpu)?;
    let mut checks = KernelChecks::new();
    for seed in seed..seed + batches {
        let mut random = Random::new(seed);
        let mut judge = Judge(&mut checks);
        rows(&bench, &mut random, &mut judge)?;
        norms(&bench, &mut random, &mut judge)?;
        feed_forward(&bench, &mut random, &mut judge)?;
        tokens(&bench, &mut random, &mut judge)?;
        for dim in [32, 64, 96, 128] {
            let case = Case::new(&mut random, dim);
            rotation(&bench, &mut random, &mut judge, &case)?;
            attention::check(&bench, &mut random, &mut judge, &case)?;
        }
    }
    Ok(checks)
}

/// A batch over paged memory.
pub(super) struct Case {
    pub(super) dim: usize,
    pub(super) kv_heads: usize,
    pub(super) heads: usize,
    pub(super) block_size: usize,
    pub(super) num_blocks: usize,
    pub(super) layout: Layout,
}

impl Case {
    /// Keys of a split; short, so that short rows are split as well.
    const SPLIT_KEYS: u32 = 64;

    fn new(random: &mut Random, dim: usize) -> Self {
        let kv_heads = random.between(1, 2);
        let group = [1, 2, 3, 4, 8][random.between(0, 4)];
        let block_size = 4 << random.between(0, 2);
        let num_blocks = 4096 / block_size;
        let mut order = random.order(num_blocks).into_iter();
        let mut work = Work::new(BatchId(0));
        for id in 0..random.between(2, 5) as u64 {
            // Decodes, a few tokens, chunks; contexts of none, some, and several splits.
            let len = [1, 1, random.between(2, 9), random.between(10, 100)][random.between(0, 3)];
            let start = [0, random.between(0, 40), random.between(100, 400)][random.between(0, 2)];
            let table: Vec<BlockId> = order.by_ref().take((start + len).div_ceil(block_size)).map(BlockId).collect();
            work.push(RequestId(id), start as u32, &vec![0; len], 0, &table, None);
        }
        let limits = LayoutLimits {
            block_size: block_size as u32,
            num_blocks: num_blocks as u32,
            group: group as u32,
            vocabulary: 1,
            positions: 512,
            tokens: 512,
            rows: 8,
            split_keys: Self::SPLIT_KEYS,
        };
        let mut layout = Layout::new(limits).expect("limits of this very function");
        layout.fill(&work, true).expect("rows of this very function");
        Self { dim, kv_heads, heads: kv_heads * group, block_size, num_blocks, layout }
    }

    /// Numbers of the memory of keys, or of values.
    pub(super) fn memory(&self) -> usize {
        self.num_blocks * self.block_size * self.kv_heads * self.dim
    }

    /// Where the numbers of a head at a slot begin.
    pub(super) fn place(&self, slot: usize, kv_head: usize) -> usize {
        let (block, offset) = (slot / self.block_size, slot % self.block_size);
        ((block * self.kv_heads + kv_head) * self.block_size + offset) * self.dim
    }

    /// Columns of the product of queries, keys and values.
    pub(super) const fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }
}

fn rows(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>) -> Result<(), SelftestError> {
    let (hidden, height, count) = (8 * random.between(1, 80), random.between(1, 50), random.between(1, 40));
    let table = random.halves(hidden * height);
    let which: Vec<i32> = (0..count).map(|_| random.between(0, height - 1) as i32).collect();
    let expected: Vec<u16> = which.iter().flat_map(|&row| &table[row as usize * hidden..][..hidden]).copied().collect();
    let (from, numbers) = (bench.upload(&table)?, bench.upload(&which)?);
    for (kernel, threads) in [("embed_tokens", 128), ("gather_rows", 128)] {
        let out = bench.zeros::<u16>(count * hidden)?;
        let args = [bench.address(&out), bench.address(&from), bench.address(&numbers), super::bench::Arg::Int(hidden as i32)];
        bench.launch(kernel, [count, 1, 1], threads, &args)?;
        judge.equal(kernel, &bench.read(&out)?, &expected);
    }

    let (block, blocks, layers) = (8 * random.between(1, 40), random.between(4, 30), random.between(1, 3));
    let mut memory = random.halves(layers * 2 * blocks * block);
    let cache = bench.upload(&memory)?;
    let order = random.order(blocks);
    let pairs: Vec<i32> = order[..blocks / 2 * 2].iter().map(|&block| block as i32).collect();
    let list = bench.upload(&pairs)?;
    let args = [bench.address(&cache), bench.address(&list), super::bench::Arg::Int(block as i32), super::bench::Arg::Int(blocks as i32)];
    bench.launch("copy_blocks", [pairs.len() / 2, layers, 2], 128, &args)?;
    for half in memory.chunks_mut(blocks * block) {
        for pair in pairs.chunks(2) {
            half.copy_within(pair[0] as usize * block..(pair[0] as usize + 1) * block, pair[1] as usize * block);
        }
    }
    judge.equal("copy_blocks", &bench.read(&cache)?, &memory);
    Ok(())
}

fn norms(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>) -> Result<(), SelftestError> {
    use super::bench::Arg;
    let (hidden, count) = (8 * random.between(1, 300), random.between(1, 9));
    let (stream, more) = (random.halves(count * hidden), random.halves(count * hidden));
    let (bias, weight) = (random.halves(hidden), random.halves(hidden));
    let (x, bias_there, weights) = (bench.upload(&more)?, bench.upload(&bias)?, bench.upload(&weight)?);
    for biased in [false, true] {
        let (residual, out) = (bench.upload(&stream)?, bench.zeros::<u16>(count * hidden)?);
        let bias_at = if biased { bench.address(&bias_there) } else { Arg::Address(0) };
        let args = [
            bench.address(&out),
            bench.address(&residual),
            bench.address(&x),
            bias_at,
            bench.address(&weights),
            Arg::Int(hidden as i32),
            Arg::Float(1e-5),
        ];
        bench.launch("add_rms_norm", [count, 1, 1], 256, &args)?;
        let (stored, normed) = (bench.read(&residual)?, bench.read(&out)?);
        for row in 0..count {
            let at = |column: usize| row * hidden + column;
            for column in 0..hidden {
                let sum = wide(stream[at(column)]) + wide(more[at(column)]) + if biased { wide(bias[column]) } else { 0.0 };
                judge.number("add_rms_norm", wide(stored[at(column)]), sum, one_rounding(sum) + 2f64.powi(-22));
            }
            // Of the stream as it is stored.
            let squares: f64 = (0..hidden).map(|column| wide(stored[at(column)]).powi(2)).sum();
            let scale = 1.0 / (squares / hidden as f64 + 1e-5).sqrt();
            for column in 0..hidden {
                let exact = wide(stored[at(column)]) * scale * wide(weight[column]);
                judge.number("add_rms_norm", wide(normed[at(column)]), exact, one_rounding(exact));
            }
        }
    }
    let residual = bench.upload(&stream)?;
    bench.launch("add_residual", [count, 1, 1], 256, &[bench.address(&residual), bench.address(&x), Arg::Int(hidden as i32)])?;
    for (found, (a, b)) in bench.read(&residual)?.iter().zip(stream.iter().zip(&more)) {
        let sum = wide(*a) + wide(*b);
        judge.number("add_residual", wide(*found), sum, one_rounding(sum));
    }
    Ok(())
}

fn feed_forward(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>) -> Result<(), SelftestError> {
    use super::bench::Arg;
    let (inner, count) = (8 * random.between(1, 200), random.between(1, 9));
    let gate_up: Vec<u16> =
        random.halves(count * 2 * inner).into_iter().map(|half| cpp_exec_mock::model::to_bf16(from_bf16(half) * 6.0)).collect();
    let (from, out) = (bench.upload(&gate_up)?, bench.zeros::<u16>(count * inner)?);
    bench.launch("swiglu", [count, 1, 1], 128, &[bench.address(&out), bench.address(&from), Arg::Int(inner as i32)])?;
    for (row, found) in bench.read(&out)?.chunks(inner).enumerate() {
        for (column, found) in found.iter().enumerate() {
            let (gate, up) = (wide(gate_up[row * 2 * inner + column]), wide(gate_up[row * 2 * inner + inner + column]));
            let exact = gate / (1.0 + (-gate).exp()) * up;
            judge.number("swiglu", wide(*found), exact, one_rounding(exact) + 1e-6);
        }
    }
    Ok(())
}

fn tokens(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>) -> Result<(), SelftestError> {
    use super::bench::Arg;
    let (vocabulary, count) = (random.between(300, 5000), random.between(1, 5));
    // Few different ones, so that many are equal.
    let logits: Vec<f32> = (0..count * vocabulary).map(|_| from_bf16(random.half()) * 4.0).collect();
    let wanted = random.between(1, 256);
    let (from, best) = (bench.upload(&logits)?, bench.zeros::<i32>(count)?);
    bench.launch("argmax_rows", [count, 1, 1], 1024, &[bench.address(&best), bench.address(&from), Arg::Int(vocabulary as i32)])?;
    let (chosen, values) = (bench.zeros::<i32>(count * wanted)?, bench.zeros::<f32>(count * wanted)?);
    let args = [bench.address(&chosen), bench.address(&values), bench.address(&from), Arg::Int(vocabulary as i32), Arg::Int(wanted as i32)];
    bench.launch("top_candidates", [count, 1, 1], 1024, &args)?;
    let (best, chosen, values) = (bench.read(&best)?, bench.read(&chosen)?, bench.read(&values)?);
    for (row, logits) in logits.chunks(vocabulary).enumerate() {
        let mut order: Vec<usize> = (0..vocabulary).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|logit| *logit == greatest).unwrap_or_default();
        judge.equal("argmax_rows", &best[row..=row], &[first as i32]);
        let expected: Vec<i32> = order[..wanted].iter().map(|&token| token as i32).collect();
        judge.equal("top_candidates", &chosen[row * wanted..(row + 1) * wanted], &expected);
        let expected: Vec<f32> = order[..wanted].iter().map(|&token| logits[token]).collect();
        judge.equal("top_candidates", &values[row * wanted..(row + 1) * wanted], &expected);
    }
    Ok(())
}

fn rotation(bench: &Bench, random: &mut Random, judge: &mut Judge<'_>, case: &Case) -> Result<(), SelftestError> {
    use super::bench::Arg;
    let (dim, half, columns, layout) = (case.dim, case.dim / 2, case.columns(), &case.layout);
    let tokens = layout.positions.len();
    let qkv = random.halves(tokens * columns);
    let bias = (random.between(0, 1) == 1).then(|| random.halves(columns));
    let positions = layout.positions.iter().max().map_or(1, |last| *last as usize + 1);
    let angles: Vec<f32> = (0..positions)
        .flat_map(|position| {
            let turn = move |pair: usize| position as f64 / 10_000f64.powf(pair as f64 / half as f64);
            (0..half).map(move |pair| turn(pair).cos() as f32).chain((0..half).map(move |pair| turn(pair).sin() as f32))
        })
        .collect();
    let before = random.halves(case.memory());
    let (rows, keys, values) = (bench.upload(&qkv)?, bench.upload(&before)?, bench.upload(&before)?);
    let (table, bias_there) = (bench.upload(&angles)?, bias.as_ref().map(|bias| bench.upload(bias)).transpose()?);
    let (position, slot) = (bench.upload(&layout.positions)?, bench.upload(&layout.slots)?);
    let args = [
        bench.address(&rows),
        bench.address(&keys),
        bench.address(&values),
        bench.address(&table),
        bias_there.as_ref().map_or(Arg::Address(0), |bias| bench.address(bias)),
        bench.address(&position),
        bench.address(&slot),
        Arg::Int(case.heads as i32),
        Arg::Int(case.kv_heads as i32),
        Arg::Int(dim as i32),
        Arg::Int(case.block_size.trailing_zeros() as i32),
    ];
    bench.launch("rotate_and_store", [tokens, 1, 1], 128, &args)?;
    let (rows, keys, values) = (bench.read(&rows)?, bench.read(&keys)?, bench.read(&values)?);
    let number = |token: usize, column: usize| wide(qkv[token * columns + column]) + bias.as_ref().map_or(0.0, |bias| wide(bias[column]));
    let mut expected_elsewhere = before.clone();
    for token in 0..tokens {
        let angle = layout.positions[token] as usize * dim;
        let slot = layout.slots[token] as usize;
        for head in 0..case.heads + case.kv_heads {
            let (queries, at) = (head < case.heads, head * dim);
            for pair in 0..half {
                let (cosine, sine) = (f64::from(angles[angle + pair]), f64::from(angles[angle + half + pair]));
                let (a, b) = (number(token, at + pair), number(token, at + half + pair));
                for (offset, exact) in [(pair, a * cosine - b * sine), (half + pair, b * cosine + a * sine)] {
                    let found = if queries {
                        rows[token * columns + at + offset]
                    } else {
                        let place = case.place(slot, head - case.heads) + offset;
                        expected_elsewhere[place] = keys[place];
                        keys[place]
                    };
                    judge.number("rotate_and_store", wide(found), exact, one_rounding(exact) + (a.abs() + b.abs()) * 2f64.powi(-22));
                }
            }
        }
    }
    judge.equal("rotate_and_store", &keys, &expected_elsewhere);
    let mut expected_elsewhere = before;
    for token in 0..tokens {
        for head in 0..case.kv_heads {
            let place = case.place(layout.slots[token] as usize, head);
            for offset in 0..dim {
                let exact = number(token, (case.heads + case.kv_heads + head) * dim + offset);
                judge.number("rotate_and_store", wide(values[place + offset]), exact, one_rounding(exact));
                expected_elsewhere[place + offset] = values[place + offset];
            }
        }
    }
    judge.equal("rotate_and_store", &values, &expected_elsewhere);
    Ok(())
}
