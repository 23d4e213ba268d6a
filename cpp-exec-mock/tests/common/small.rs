//! A model and a configuration of which a run takes moments, and has many batches.

use std::sync::Arc;

use cpp_exec_mock::model::TinyLlama;
use cpp_sched::Config;

use crate::folder::Folder;
use crate::harness::Model;

/// A tiny model; its folder may go, since the weights are mapped.
pub(crate) fn tiny(seed: u64) -> Arc<Model> {
    let folder = Folder::new();
    TinyLlama { seed, ..TinyLlama::default() }.write(folder.path()).unwrap();
    Model::open(folder.path())
}

pub(crate) fn config(stages: u32) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 4;
    config.num_blocks = 64;
    config.max_batch_tokens = 9;
    config.prefix_caching = true;
    config
}
