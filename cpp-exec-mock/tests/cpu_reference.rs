//! The processor's stages against the plain definition of the model in double precision: no pages, chunks, batches or stages.

#[path = "common/folder.rs"]
mod folder;
#[path = "common/plain.rs"]
mod plain;

use cpp_exec_mock::cpu::{CpuError, CpuStage, KvShape, Part, Sampling};
use cpp_exec_mock::model::{Format, LlamaConfig, Split, TinyLlama, Weights};
use cpp_exec_mock::runtime::{Device, RowSample, Work};
use cpp_sched::{BatchId, BlockId, RequestId, TokenId};
use folder::Folder;
use plain::Plain;
use serde_json::{Value, json};

const KV: KvShape = KvShape { block_size: 4, num_blocks: 64 };

fn stages(tiny: &TinyLlama, count: usize) -> (LlamaConfig, Vec<CpuStage>) {
    let folder = Folder::new();
    tiny.write(folder.path()).unwrap();
    let config = LlamaConfig::read(folder.path()).unwrap();
    let weights = Weights::open(folder.path()).unwrap();
    let parts = Split::Even.layers(&config, count).unwrap().into_iter().enumerate();
    let load = |(stage, layers)| CpuStage::load(&config, &weights, &Part { stage, stages: count, layers }, KV, |_| {}).unwrap();
    let stages = parts.map(load).collect();
    (config, stages)
}

/// One batch through all stages; what came out of the last layer, and the samples.
fn run(stages: &mut [CpuStage], work: &Work) -> (Vec<f32>, Vec<RowSample>) {
    let (mut x, mut samples) = (Vec::new(), Vec::new());
    for stage in stages {
        let mut output = Vec::new();
        stage.run(work, &x, &mut output, &mut samples).unwrap();
        x = output;
    }
    (x, samples)
}

/// A table of the pool's blocks, in no order.
fn table(first: u32, blocks: u32) -> Vec<BlockId> {
    (0..blocks).map(|block| BlockId(first + block * 7 % blocks)).collect()
}

fn prompt(len: u32, seed: u32) -> Vec<TokenId> {
    (0..len).map(|at| (at * 37 + seed * 101 + at * at % 11) % 256).collect()
}

fn variants() -> Vec<TinyLlama> {
    let scaled = |rope_scaling: Value| TinyLlama { rope_scaling, ..TinyLlama::default() };
    vec![
        TinyLlama::default(),
        TinyLlama { tied: false, qkv_bias: true, seed: 2, ..TinyLlama::default() },
        TinyLlama { num_kv_heads: 4, head_dim: 8, hidden_size: 48, vocab_size: 250, seed: 3, ..TinyLlama::default() },
        TinyLlama { format: Format::Bf16, num_kv_heads: 1, seed: 4, ..TinyLlama::default() },
        scaled(json!({ "rope_type": "linear", "factor": 4.0 })),
        scaled(
            json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64 }),
        ),
        scaled(json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 })),
    ]
}

#[test]
fn logits_are_those_of_the_definition() {
    for tiny in variants() {
        let (config, mut stages) = stages(&tiny, 2);
        let tokens: Vec<_> = prompt(40, 1).into_iter().map(|token| token % tiny.vocab_size as u32).collect();
        let mut work = Work::new(BatchId(0));
        work.push(RequestId(1), 0, &tokens, 0, &table(3, 10), Some(Sampling::default()));
        let (x, samples) = run(&mut stages, &work);
        let expected = Plain::new(&tiny, &config).logits(&tokens);
        let last = stages.last().unwrap();
        for (position, (x, expected)) in x.chunks(config.hidden_size).zip(&expected).enumerate() {
            let logits = last.logits(x).unwrap();
            let spread = expected.iter().fold(0.0, |most: f64, logit| most.max(logit.abs()));
            for (logit, expected) in logits.iter().zip(expected) {
                assert!((f64::from(*logit) - expected).abs() < 2e-5 * spread, "{logit} and {expected} at {position} of {tiny:?}");
            }
        }
        let best = expected[39].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
        assert_eq!(samples, [RowSample { row: 0, tokens: vec![best as TokenId] }]);
    }
}

/// Runs a request alone, in chunks of these lengths, then decodes; everything that came out.
fn chunked(stages: &mut [CpuStage], tokens: &[TokenId], chunks: &[usize], first_block: u32) -> Vec<f32> {
    let (mut out, mut start) = (Vec::new(), 0);
    for &len in chunks {
        let mut work = Work::new(BatchId(0));
        let blocks = table(first_block, 16);
        work.push(RequestId(1), start as u32, &tokens[start..start + len], 0, &blocks, None);
        out.extend(run(stages, &work).0);
        start += len;
    }
    out
}

#[test]
fn chunks_stages_and_company_change_no_bit() {
    let tokens = prompt(30, 5);
    let tiny = TinyLlama::default();
    let whole = chunked(&mut stages(&tiny, 1).1, &tokens, &[30], 0);
    for count in [1, 2, 3, 4] {
        let (config, mut stages) = stages(&tiny, count);
        for chunks in [&[30][..], &[7, 16, 7], &[1; 30], &[4, 4, 4, 4, 14]] {
            assert_eq!(chunked(&mut stages, &tokens, chunks, 16), whole, "{count} stages, chunks {chunks:?}");
        }
        // The last 13 positions as two chunks of one batch, between rows of others.
        chunked(&mut stages, &tokens, &[17], 0);
        let mut work = Work::new(BatchId(0));
        work.push(RequestId(2), 0, &prompt(5, 8), 0, &table(32, 2), Some(Sampling::default()));
        work.push(RequestId(1), 17, &tokens[17..22], 0, &table(0, 16), None);
        work.push(RequestId(3), 0, &prompt(3, 9), 0, &table(40, 1), Some(Sampling::default()));
        work.push(RequestId(1), 22, &tokens[22..], 0, &table(0, 16), Some(Sampling::default()));
        let (x, _) = run(&mut stages, &work);
        let hidden = config.hidden_size;
        let rows = [&x[5 * hidden..10 * hidden], &x[13 * hidden..]].concat();
        assert_eq!(rows, whole[17 * hidden..]);
    }
}

#[test]
fn a_copied_block_is_read_and_its_source_stays() {
    let tokens = prompt(12, 6);
    let (_, mut stages) = stages(&TinyLlama::default(), 2);
    let whole = chunked(&mut stages, &tokens, &[12], 0);
    let (old, mut new) = (table(0, 16), table(0, 16));
    new[2] = BlockId(60);
    for (blocks, copies) in [(&new, vec![(old[2], BlockId(60))]), (&old, vec![])] {
        let mut work = Work::new(BatchId(0));
        work.copies = copies;
        work.push(RequestId(1), 11, &tokens[11..], 0, blocks, None);
        assert_eq!(run(&mut stages, &work).0, whole[11 * 64..]);
    }
}

/// Greedy tokens of a request, one decode after the other.
fn decode(stages: &mut [CpuStage], tokens: &[TokenId], outputs: usize, sampling: Sampling) -> Vec<TokenId> {
    let mut known = tokens.to_vec();
    let mut start = 0;
    while known.len() < tokens.len() + outputs {
        let mut work = Work::new(BatchId(0));
        work.push(RequestId(1), start as u32, &known[start..], 0, &table(0, 16), Some(sampling));
        start = known.len();
        known.extend(&run(stages, &work).1[0].tokens);
    }
    known.split_off(tokens.len())
}

#[test]
fn drafts_give_the_tokens_of_plain_decoding_however_many_are_right() {
    let tokens = prompt(9, 3);
    for sampling in [Sampling::default(), Sampling { temperature: 1.5, seed: 11, ..Sampling::default() }] {
        let (_, mut stages) = stages(&TinyLlama::default(), 2);
        let expected = decode(&mut stages, &tokens, 6, sampling);
        for right in 0..=4usize {
            chunked(&mut stages, &tokens, &[9], 0);
            let mut drafts = expected[1..5].to_vec();
            if let Some(draft) = drafts.get_mut(right) {
                *draft = (*draft + 1) % 256;
            }
            let row = [&expected[..1], &drafts].concat();
            let mut work = Work::new(BatchId(0));
            work.push(RequestId(1), 9, &row, 4, &table(0, 16), Some(sampling));
            let samples = run(&mut stages, &work).1;
            assert_eq!(samples[0].tokens, expected[1..2 + right], "{right} drafts are right");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused() {
    let (_, mut stages) = stages(&TinyLlama::default(), 2);
    let mut refuse =
        |stage: usize, input: &[f32], work: &Work| stages[stage].run(work, &input.to_vec(), &mut Vec::new(), &mut Vec::new()).unwrap_err();
    let row = |tokens: &[TokenId], drafts, table: &[BlockId]| {
        let mut work = Work::new(BatchId(0));
        work.push(RequestId(1), 0, tokens, drafts, table, Some(Sampling::default()));
        work
    };
    assert_eq!(refuse(0, &[], &row(&[1, 256], 0, &table(0, 1))), CpuError::Token(256));
    assert_eq!(refuse(0, &[], &row(&[1; 5], 0, &table(0, 1))), CpuError::Row(RequestId(1)));
    assert_eq!(refuse(0, &[], &row(&[1; 4], 0, &[BlockId(64)])), CpuError::Row(RequestId(1)));
    assert_eq!(refuse(0, &[], &row(&[1; 4], 4, &table(0, 1))), CpuError::Row(RequestId(1)));
    let mut copies = row(&[1], 0, &table(0, 1));
    copies.copies.push((BlockId(1), BlockId(64)));
    assert_eq!(refuse(0, &[], &copies), CpuError::Copy(BlockId(64)));
    assert_eq!(refuse(1, &[0.0; 64], &row(&[1, 2], 0, &table(0, 1))), CpuError::Input { expected: 128, found: 64 });
}
