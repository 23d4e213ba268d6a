//! What the tests of the CUDA device share: a device, tiny models on disk, requests.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

pub mod fake;
pub mod world;

use std::path::PathBuf;
use std::sync::Arc;

use cpp_exec_cuda::cuda::{CudaStage, Gpu, KernelCache, Room, standard_folders};
use cpp_exec_mock::cpu::{CpuStage, KvShape, Part, Rounding, Sampling};
use cpp_exec_mock::model::{Format, TinyLlama, Weights};
use cpp_exec_mock::runtime::Work;
use cpp_sched::{BlockId, RequestId, TokenId};

pub const KV: KvShape = KvShape { block_size: 16, num_blocks: 400 };
pub const ROOM: Room = Room { positions: 2000, tokens: 200, rows: 8, batches: 1 };

pub fn gpu() -> Option<Arc<Gpu>> {
    let cache = KernelCache::at(std::env::temp_dir().join("cpp-run-test-kernels"));
    match Gpu::open(0, &standard_folders(), Some(&cache)) {
        Ok(gpu) => Some(gpu),
        Err(error) => {
            assert!(std::env::var_os("CPP_CUDA_DEVICE").is_none(), "CPP_CUDA_DEVICE is set, so there must be one: {error}");
            println!("not tested: {error}");
            None
        }
    }
}

/// A model in a folder of its own.
pub struct Model {
    pub tiny: TinyLlama,
    pub folder: PathBuf,
    pub weights: Weights,
}

impl Model {
    pub fn new(name: &str, tiny: TinyLlama) -> Self {
        let folder = std::env::temp_dir().join(format!("cpp-run-device-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        tiny.write(&folder).unwrap();
        let weights = Weights::open(&folder).unwrap();
        Self { tiny, folder, weights }
    }

    pub fn part(&self, stage: usize, stages: usize) -> Part {
        let layers = self.tiny.num_layers;
        Part { stage, stages, layers: layers * stage / stages..layers * (stage + 1) / stages }
    }

    pub fn cpu(&self, stage: usize, stages: usize) -> CpuStage {
        CpuStage::load(&self.tiny.config(), &self.weights, &self.part(stage, stages), KV, |_| ()).unwrap()
    }

    pub fn cpu_rounding(&self, stage: usize, stages: usize, rounding: Rounding) -> CpuStage {
        let part = self.part(stage, stages);
        CpuStage::load_rounding(&self.tiny.config(), &self.weights, &part, KV, rounding, |_| ()).unwrap()
    }

    pub fn cuda(&self, gpu: &Arc<Gpu>, stage: usize, stages: usize) -> CudaStage {
        CudaStage::load(gpu, &self.tiny.config(), &self.weights, &self.part(stage, stages), KV, ROOM, |_| ()).unwrap()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// bf16 weights, so that both devices have the same.
pub fn tiny(seed: u64) -> TinyLlama {
    TinyLlama { seed, num_heads: 6, num_kv_heads: 2, head_dim: 32, format: Format::Bf16, ..TinyLlama::default() }
}

/// A request as the test knows it.
pub struct Text {
    pub id: u64,
    pub tokens: Vec<TokenId>,
    pub blocks: Vec<BlockId>,
    pub done: u32,
}

impl Text {
    pub fn new(id: u64, len: u32, most: u32) -> Self {
        let first = id as u32 * 120;
        // Blocks of its own, backwards.
        let blocks = (first..first + most.div_ceil(KV.block_size)).rev().map(BlockId).collect();
        Self { id, tokens: (0..len).map(|i| (i * 31 + id as u32 * 17 + i * i) % 256).collect(), blocks, done: 0 }
    }

    /// Adds its next tokens to a batch, with drafts that are not its own behind them.
    pub fn push(&mut self, work: &mut Work, len: u32, drafts: &[TokenId]) {
        let (start, end) = (self.done as usize, (self.done + len) as usize);
        let tokens = [&self.tokens[start..end], drafts].concat();
        let blocks = (end + drafts.len()).div_ceil(KV.block_size as usize);
        let sampling = (end == self.tokens.len()).then(Sampling::default);
        work.push(RequestId(self.id), self.done, &tokens, drafts.len() as u32, &self.blocks[..blocks], sampling);
        self.done += len;
    }
}
