//! The CUDA device rounds where `kernels/README.md` says, and nowhere else: its activations are those of a plain computation that does so.
//!
//! See `cuda_device.rs` for what it runs on.
#![cfg(all(feature = "cuda", unix))]

mod support;

use std::collections::BTreeMap;

use cpp_exec_mock::cpu::Rounding;
use cpp_exec_mock::model::{TinyLlama, from_bf16, to_bf16};
use cpp_exec_mock::runtime::{Device, Work};
use cpp_sched::{BatchId, TokenId};

use support::{Model, Text, gpu, tiny};

fn round(number: f64) -> f64 {
    from_bf16(to_bf16(number as f32)).into()
}

/// A model's layers over whole texts, in f64 between the places where bf16 is stored.
struct Plain {
    tiny: TinyLlama,
    weights: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Plain {
    fn weight(&self, name: &str) -> &[f32] {
        &self.weights[name].1
    }

    /// Rounded products of rows with a matrix.
    fn product(&self, name: &str, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let weights = self.weight(name);
        let dot = |row: &[f64], weights: &[f32]| row.iter().zip(weights).map(|(a, b)| a * f64::from(*b)).sum::<f64>();
        rows.iter().map(|row| weights.chunks_exact(row.len()).map(|weights| round(dot(row, weights))).collect()).collect()
    }

    fn norm(&self, name: &str, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let normed = |row: &Vec<f64>| {
            let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + 1e-5).sqrt();
            row.iter().zip(self.weight(name)).map(|(x, weight)| round(x * scale * f64::from(*weight))).collect()
        };
        rows.iter().map(normed).collect()
    }

    /// Queries or keys, turned; values if there is no turning.
    fn heads(&self, layer: usize, which: &str, normed: &[Vec<f64>], turned: bool) -> Vec<Vec<f64>> {
        let name = |kind: &str| format!("model.layers.{layer}.self_attn.{which}_proj.{kind}");
        let mut rows = self.product(&name("weight"), normed);
        if self.tiny.qkv_bias {
            let bias = self.weight(&name("bias"));
            rows.iter_mut().flat_map(|row| row.iter_mut().zip(bias)).for_each(|(x, bias)| *x += f64::from(*bias));
        }
        let (dim, half) = (self.tiny.head_dim, self.tiny.head_dim / 2);
        let (frequencies, _) = self.tiny.config().rope.frequencies(dim);
        for (position, row) in rows.iter_mut().enumerate().filter(|_| turned) {
            for head in row.chunks_exact_mut(dim) {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let angle = position as f64 * frequency;
                    let (cosine, sine) = (f64::from(angle.cos() as f32), f64::from(angle.sin() as f32));
                    let (a, b) = (head[pair], head[pair + half]);
                    (head[pair], head[pair + half]) = (a * cosine - b * sine, b * cosine + a * sine);
                }
            }
        }
        rows.iter_mut().flatten().for_each(|x| *x = round(*x));
        rows
    }

    fn attention(&self, layer: usize, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let [q, k, v] = [("q", true), ("k", true), ("v", false)].map(|(which, turned)| self.heads(layer, which, normed, turned));
        let (dim, group) = (self.tiny.head_dim, self.tiny.num_heads / self.tiny.num_kv_heads);
        let head = |query: &[f64], number: usize, visible: usize| -> Vec<f64> {
            let of = number / group * dim..(number / group + 1) * dim;
            let score = |key: &Vec<f64>| query.iter().zip(&key[of.clone()]).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt();
            let scores: Vec<f64> = k[..visible].iter().map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let sum = |i: usize| v[..visible].iter().zip(&weights).map(|(value, weight)| round(*weight) * value[of.start + i]).sum::<f64>();
            (0..dim).map(|i| round(sum(i) / total)).collect()
        };
        let row = |(position, row): (usize, &Vec<f64>)| {
            row.chunks_exact(dim).enumerate().flat_map(|(number, query)| head(query, number, position + 1)).collect()
        };
        q.iter().enumerate().map(row).collect()
    }

    /// The residual stream behind so many layers.
    fn activations(&self, tokens: &[TokenId], layers: usize) -> Vec<Vec<f64>> {
        let hidden = self.tiny.hidden_size;
        let embedding = self.weight("model.embed_tokens.weight");
        let row = |token: &TokenId| embedding[*token as usize * hidden..][..hidden].iter().map(|x| f64::from(*x)).collect();
        let mut x: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        let add = |x: &mut Vec<Vec<f64>>, more: Vec<Vec<f64>>| {
            x.iter_mut().flatten().zip(more.into_iter().flatten()).for_each(|(x, more)| *x = round(*x + more));
        };
        for layer in 0..layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let attended = self.attention(layer, &self.norm(&name("input_layernorm.weight"), &x));
            add(&mut x, self.product(&name("self_attn.o_proj.weight"), &attended));
            let normed = self.norm(&name("post_attention_layernorm.weight"), &x);
            let mut gate = self.product(&name("mlp.gate_proj.weight"), &normed);
            let up = self.product(&name("mlp.up_proj.weight"), &normed);
            gate.iter_mut()
                .flatten()
                .zip(up.into_iter().flatten())
                .for_each(|(gate, up)| *gate = round(*gate / (1.0 + (-*gate).exp()) * up));
            add(&mut x, self.product(&name("mlp.down_proj.weight"), &gate));
        }
        x
    }
}

/// The root mean square of a difference, as a share of that of the numbers.
fn share(numbers: &[f32], wanted: &[f64]) -> f64 {
    let size: f64 = wanted.iter().map(|x| x * x).sum();
    let error: f64 = numbers.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (error / size).sqrt()
}

fn models() -> [TinyLlama; 2] {
    [tiny(21), TinyLlama { qkv_bias: true, tied: false, head_dim: 64, num_heads: 4, num_kv_heads: 1, ..tiny(22) }]
}

/// Runs a batch and gives what it puts out.
type Run<'a> = &'a mut dyn FnMut(&Work, &mut Vec<f32>);

/// What each device puts out for a text in prompts and short rows, and what the definition says.
fn activations(model: &Model, devices: &mut [Run<'_>]) -> (Vec<Vec<f32>>, Vec<f64>) {
    let plain = Plain { tiny: model.tiny.clone(), weights: model.tiny.weights() };
    let mut text = Text::new(0, 130, 200);
    let mut all = vec![Vec::new(); devices.len()];
    for (batch, len) in [70, 1, 40, 2, 1, 1, 15].into_iter().enumerate() {
        let mut work = Work::new(BatchId(batch as u64));
        text.push(&mut work, len, &[]);
        for (device, all) in devices.iter_mut().zip(&mut all) {
            let mut out = Vec::new();
            device(&work, &mut out);
            all.append(&mut out);
        }
    }
    (all, plain.activations(&text.tokens, model.tiny.num_layers / 2).concat())
}

#[test]
fn activations_are_those_of_the_documented_rounding() {
    let Some(gpu) = gpu() else { return };
    for (number, tiny) in models().into_iter().enumerate() {
        let model = Model::new(&format!("rounding-{number}"), tiny);
        let (mut cuda, mut cpu) = (model.cuda(&gpu, 0, 2), model.cpu(0, 2));
        let mut run_cuda = |work: &Work, out: &mut Vec<f32>| cuda.run(work, &Vec::new(), out, &mut Vec::new()).unwrap();
        let mut run_cpu = |work: &Work, out: &mut Vec<f32>| cpu.run(work, &Vec::new(), out, &mut Vec::new()).unwrap();
        let (all, wanted) = activations(&model, &mut [&mut run_cuda, &mut run_cpu]);
        assert_eq!(all[0].len(), wanted.len());
        let (of_cuda, of_cpu) = (share(&all[0], &wanted), share(&all[1], &wanted));
        println!("off by {of_cuda:.5} from the documented rounding; without any rounding by {of_cpu:.5}");
        // What is left: sums in f32 that round the other way, weights that were rounded before a greater score came, and what they lead to.
        assert!(of_cuda < 0.008, "off by {of_cuda}");
        assert!(of_cuda * 2.0 < of_cpu, "off by {of_cuda}, without rounding by {of_cpu}");
    }
}

/// Needs no GPU: the same for the CPU device where it rounds as kernels do.
#[test]
fn the_cpu_device_can_round_in_the_same_places() {
    for (number, tiny) in models().into_iter().enumerate() {
        let model = Model::new(&format!("rounding-cpu-{number}"), tiny);
        let mut stages = [Rounding::Bf16AtOpBorders, Rounding::F32].map(|rounding| model.cpu_rounding(0, 2, rounding));
        let [rounded, exact] = &mut stages;
        let mut run_rounded = |work: &Work, out: &mut Vec<f32>| rounded.run(work, &Vec::new(), out, &mut Vec::new()).unwrap();
        let mut run_exact = |work: &Work, out: &mut Vec<f32>| exact.run(work, &Vec::new(), out, &mut Vec::new()).unwrap();
        let (all, wanted) = activations(&model, &mut [&mut run_rounded, &mut run_exact]);
        let (of_rounded, of_exact) = (share(&all[0], &wanted), share(&all[1], &wanted));
        println!("off by {of_rounded:.5} from the documented rounding; without any rounding by {of_exact:.5}");
        assert!(all[0].iter().all(|number| number.to_bits() & 0xffff == 0), "what goes on to the next stage is bf16");
        assert!(of_rounded < 0.008 && of_rounded * 2.0 < of_exact, "off by {of_rounded}, without rounding by {of_exact}");
    }
}
