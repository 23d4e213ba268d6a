//! The CUDA device against the CPU device: the same batches, the same model, activations and tokens.
//!
//! Runs on a GPU, or on the stand-ins for driver and cuBLAS, whose kernels are the emulated ones: `bash .ci/run kernels` builds them. Where there is
//! neither, each test says so and does nothing; with `CPP_CUDA_DEVICE=1` that is a failure.
#![cfg(all(feature = "cuda", unix))]

mod support;

use std::sync::Arc;

use cpp_exec_cuda::cuda::{CudaError, CudaStage, Gpu, LayoutError, standard_folders};
use cpp_exec_mock::cpu::{CpuStage, KvShape, Sampling};
use cpp_exec_mock::model::TinyLlama;
use cpp_exec_mock::runtime::{Device, RowSample, Work};
use cpp_sched::{BatchId, BlockId, RequestId, TokenId};

use support::{KV, Model, ROOM, Text, gpu, tiny};

/// What both devices make of a batch, over so many stages.
struct Both {
    cpu: Vec<CpuStage>,
    cuda: Vec<CudaStage>,
    /// The root of the mean square of what activations are off by, as a share of that of activations: of the worst batch.
    worst_activation: f32,
    worst_logit: f32,
    tokens: usize,
    equal: usize,
}

impl Both {
    fn new(model: &Model, gpu: &Arc<Gpu>, stages: usize) -> Self {
        let cpu = (0..stages).map(|stage| model.cpu(stage, stages)).collect();
        let cuda = (0..stages).map(|stage| model.cuda(gpu, stage, stages)).collect();
        Self { cpu, cuda, worst_activation: 0.0, worst_logit: 0.0, tokens: 0, equal: 0 }
    }

    /// Runs a batch on both and compares; what the CPU has sampled.
    fn run(&mut self, work: &Work) -> Vec<RowSample> {
        let (mut from_cpu, mut from_cuda) = (Vec::new(), Vec::new());
        let (mut cpu_samples, mut cuda_samples) = (Vec::new(), Vec::new());
        let stages = self.cpu.len();
        for stage in 0..stages {
            let (mut cpu_out, mut cuda_out) = (Vec::new(), Vec::new());
            self.cpu[stage].run(work, &from_cpu, &mut cpu_out, &mut cpu_samples).unwrap();
            self.cuda[stage].run(work, &from_cuda, &mut cuda_out, &mut cuda_samples).unwrap();
            if stage + 1 < stages {
                assert_eq!(cpu_out.len(), cuda_out.len());
                let size: f32 = cpu_out.iter().map(|x| x * x).sum();
                let error: f32 = cpu_out.iter().zip(&cuda_out).map(|(a, b)| (a - b) * (a - b)).sum();
                self.worst_activation = self.worst_activation.max((error / size).sqrt());
            }
            (from_cpu, from_cuda) = (cpu_out, cuda_out);
        }
        assert_eq!(cpu_samples.iter().map(|s| s.row).collect::<Vec<_>>(), cuda_samples.iter().map(|s| s.row).collect::<Vec<_>>());
        let hidden = from_cpu.len() / work.tokens.len();
        for (cpu, cuda) in cpu_samples.iter().zip(&cuda_samples) {
            let row = &work.rows[cpu.row as usize];
            let place = row.first + (row.len - row.drafts) as usize - 1;
            let logits = self.cpu[stages - 1].logits(&from_cpu[place * hidden..(place + 1) * hidden]).unwrap();
            // How much less likely than the CPU's first token the GPU's is, in logits: 0 if it is the same.
            let least = logits[cpu.tokens[0] as usize] - logits[cuda.tokens[0] as usize];
            self.worst_logit = self.worst_logit.max(least);
            self.tokens += 1;
            self.equal += usize::from(cpu.tokens == cuda.tokens);
        }
        cpu_samples
    }

    /// The GPU rounds to bf16 some ten times a layer, by up to 2^-8 and mostly a third of that; so activations may be off by some hundredths
    /// after four layers, and a token that is nearly as likely may come first. A wrong index gives errors of the size of the numbers.
    fn judge(&self) {
        let Self { worst_activation, worst_logit, tokens, equal, .. } = self;
        println!(
            "{equal} of {tokens} rows with equal tokens; activations off by {worst_activation:.4}, tokens by {worst_logit:.3} in logits"
        );
        assert!(*worst_activation < 0.05, "activations are off by {worst_activation} of their size");
        assert!(*worst_logit < 0.15, "a token is less likely by {worst_logit} than the best");
        assert!(equal * 10 >= tokens * 8, "{equal} of {tokens} rows have equal tokens");
    }
}

/// Prompts in chunks, decodes, drafts, copies of blocks, all in one batch now and then.
fn ragged_batches(both: &mut Both) {
    let mut texts = [Text::new(0, 90, 400), Text::new(1, 5, 400), Text::new(2, 40, 400)];
    let mut batch = 0;
    let mut next = || {
        batch += 1;
        Work::new(BatchId(batch))
    };
    // Each chunk list ends with its prompt; then all decode.
    for chunks in [[60, 5, 7], [29, 0, 33], [1, 0, 0]] {
        let mut work = next();
        for (text, len) in texts.iter_mut().zip(chunks) {
            if len > 0 {
                text.push(&mut work, len, &[]);
            } else if text.done as usize == text.tokens.len() - 1 {
                text.push(&mut work, 1, &[]);
            }
        }
        for sample in both.run(&work) {
            let id = work.rows[sample.row as usize].request.0 as usize;
            texts[id].tokens.extend(sample.tokens);
        }
    }
    for step in 0..6u32 {
        let mut work = next();
        for text in &mut texts {
            if text.id == 1 && step == 2 {
                // Its first block moves: from now on the copy is read.
                work.copies.push((text.blocks[0], BlockId(399)));
                text.blocks[0] = BlockId(399);
            }
            let drafts: &[TokenId] = if step % 2 == 1 { &[9, 200] } else { &[] };
            text.push(&mut work, 1, drafts);
        }
        for sample in both.run(&work) {
            let id = work.rows[sample.row as usize].request.0 as usize;
            texts[id].tokens.push(sample.tokens[0]);
        }
    }
}

#[test]
fn activations_and_tokens_are_those_of_the_cpu_device() {
    let Some(gpu) = gpu() else { return };
    for stages in [1, 2, 4] {
        let model = Model::new(&format!("equal-{stages}"), tiny(stages as u64));
        let mut both = Both::new(&model, &gpu, stages);
        ragged_batches(&mut both);
        assert_eq!(both.tokens, 24);
        both.judge();
    }
}

#[test]
fn biases_own_heads_and_other_sizes_run_as_well() {
    let Some(gpu) = gpu() else { return };
    let sizes = [
        TinyLlama { qkv_bias: true, tied: false, head_dim: 64, num_heads: 2, num_kv_heads: 1, ..tiny(8) },
        TinyLlama { head_dim: 96, num_heads: 3, num_kv_heads: 3, intermediate_size: 104, vocab_size: 301, ..tiny(9) },
        TinyLlama { head_dim: 128, num_heads: 8, num_kv_heads: 1, num_layers: 2, ..tiny(10) },
    ];
    for (number, tiny) in sizes.into_iter().enumerate() {
        let model = Model::new(&format!("sizes-{number}"), tiny);
        let mut both = Both::new(&model, &gpu, 2);
        ragged_batches(&mut both);
        both.judge();
    }
}

#[test]
fn long_contexts_are_split_and_merged() {
    let Some(gpu) = gpu() else { return };
    let model = Model::new("long", TinyLlama { num_layers: 2, ..tiny(3) });
    let mut both = Both::new(&model, &gpu, 2);
    let mut text = Text::new(0, 1201, 1300);
    for batch in 0..8 {
        let mut work = Work::new(BatchId(batch));
        let len = if batch < 6 { 200 } else { 1 };
        text.push(&mut work, len, &[]);
        for sample in both.run(&work) {
            text.tokens.extend(sample.tokens);
        }
    }
    assert_eq!(both.tokens, 2);
    both.judge();
}

#[test]
fn sampling_with_a_temperature_is_that_of_the_same_logits() {
    let Some(gpu) = gpu() else { return };
    let model = Model::new("sampling", tiny(5));
    let (mut cuda, mut cpu) = (model.cuda(&gpu, 0, 1), model.cpu(0, 1));
    let batch = |sampling: Sampling, drafts: &[TokenId]| {
        let mut work = Work::new(BatchId(0));
        // Each seed has a prompt of its own.
        let tokens = [&[5, 6, 7, 8 + sampling.seed as u32][..], drafts].concat();
        work.push(RequestId(0), 0, &tokens, drafts.len() as u32, &[BlockId(3)], Some(sampling));
        work
    };
    let mut run = |sampling: Sampling, drafts: &[TokenId]| {
        let mut samples = Vec::new();
        cuda.run(&batch(sampling, drafts), &Vec::new(), &mut Vec::new(), &mut samples).unwrap();
        samples.remove(0).tokens
    };
    let mut run_on_cpu = |sampling: Sampling| {
        let mut samples = Vec::new();
        cpu.run(&batch(sampling, &[]), &Vec::new(), &mut Vec::new(), &mut samples).unwrap();
        samples.remove(0).tokens
    };
    let warm = |top_k, seed| Sampling { temperature: 2.0, top_k, seed, ..Sampling::default() };
    let (mut seen, mut equal) = (std::collections::BTreeSet::new(), 0);
    for seed in 0..30 {
        // Of 256 tokens, 256 candidates are all: both ways must choose alike.
        let token = run(warm(256, seed), &[]);
        assert_eq!(token, run(warm(0, seed), &[]));
        assert_eq!(token, run(warm(256, seed), &[]));
        // The same draw, among few, from nearly the same logits.
        equal += u32::from(run(warm(4, seed), &[]) == run_on_cpu(warm(4, seed)));
        seen.insert(token);
    }
    assert!(seen.len() > 5 && equal >= 25, "{equal} of 30 are equal; {seen:?}");
    let greedy = run(Sampling::default(), &[]);
    assert_eq!(greedy, run(warm(1, 0), &[]));
    // A draft that is right is taken, and what follows it; one that is wrong is not.
    let two = run(Sampling::default(), &[greedy[0]]);
    assert_eq!((two.len(), two[0]), (2, greedy[0]));
    assert_eq!(run(Sampling::default(), &[greedy[0], two[1]])[..2], two[..]);
    assert_eq!(run(Sampling::default(), &[(greedy[0] + 1) % 256]), greedy);

    // Rows that choose in different ways, in one batch: each as alone.
    let ways = [warm(0, 3), Sampling::default(), warm(0, 4), warm(9, 5), warm(2, 6)];
    let (mut work, mut alone) = (Work::new(BatchId(1)), Vec::new());
    for (number, sampling) in (0u32..).zip(ways) {
        alone.push(run(sampling, &[]));
        work.push(RequestId(number.into()), 0, &[5, 6, 7, 8 + sampling.seed as u32], 0, &[BlockId(number)], Some(sampling));
    }
    let mut samples = Vec::new();
    cuda.run(&work, &Vec::new(), &mut Vec::new(), &mut samples).unwrap();
    assert_eq!(samples.into_iter().map(|sample| sample.tokens).collect::<Vec<_>>(), alone);
}

#[test]
fn what_does_not_fit_is_refused_and_the_stage_goes_on() {
    let Some(gpu) = gpu() else { return };
    let model = Model::new("refused", tiny(6));
    let (mut first, mut last) = (model.cuda(&gpu, 0, 2), model.cuda(&gpu, 1, 2));
    let mut work = Work::new(BatchId(0));
    work.push(RequestId(7), 0, &[1, 2, 3], 0, &[BlockId(3)], Some(Sampling::default()));
    let (mut out, mut samples) = (Vec::new(), Vec::new());
    first.run(&work, &Vec::new(), &mut out, &mut samples).unwrap();
    let error = last.run(&work, &out[1..].to_vec(), &mut Vec::new(), &mut samples).unwrap_err();
    assert_eq!(error.to_string(), "191 numbers came from the stage before, the batch needs 192");
    let mut bad = work.clone();
    bad.blocks[0] = BlockId(400);
    let error = first.run(&bad, &Vec::new(), &mut Vec::new(), &mut samples).unwrap_err();
    assert!(matches!(error, CudaError::Layout(LayoutError::Row(RequestId(7)))), "{error}");
    assert!(samples.is_empty());
    last.run(&work, &out, &mut Vec::new(), &mut samples).unwrap();
    assert_eq!(samples.len(), 1);

    let refused = |tiny: TinyLlama, kv: KvShape| {
        let model = Model::new("shape", tiny);
        CudaStage::load(&gpu, &model.tiny.config(), &model.weights, &model.part(0, 1), kv, ROOM, |_| ()).unwrap_err().to_string()
    };
    assert!(refused(TinyLlama { head_dim: 16, ..tiny(1) }, KV).contains("head_dim is 16: kernels need a head of 32, 64, 96 or 128"));
    assert!(refused(TinyLlama { intermediate_size: 100, ..tiny(1) }, KV).contains("intermediate_size is 100"));
    assert!(refused(tiny(1), KvShape { block_size: 12, ..KV }).contains("a power of two"));
    let missing = Gpu::open(77, &standard_folders(), None).unwrap_err().to_string();
    assert!(missing.starts_with("opening the GPU: the CUDA driver says"), "{missing}");
}
