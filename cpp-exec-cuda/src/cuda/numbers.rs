//! Which kernels a stage runs.

use super::error::CudaError;
use super::gpu::Gpu;

/// The kernels that a stage runs, by their numbers.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) embed: usize,
    pub(super) gather: usize,
    pub(super) copy: usize,
    pub(super) norm: usize,
    pub(super) add: usize,
    pub(super) rotate: usize,
    pub(super) prefill: usize,
    pub(super) decode: usize,
    pub(super) merge: usize,
    pub(super) swiglu: usize,
    pub(super) argmax: usize,
    pub(super) candidates: usize,
}

impl Numbers {
    /// Those for heads of this size.
    pub(super) fn new(head_dim: usize) -> Result<Self, CudaError> {
        let number = |name: &str| {
            let rule = "a head of 32, 64, 96 or 128 numbers";
            Gpu::kernel(name).ok_or(CudaError::Shape { what: "head_dim", found: head_dim, rule })
        };
        Ok(Self {
            embed: number("embed_tokens")?,
            gather: number("gather_rows")?,
            copy: number("copy_blocks")?,
            norm: number("add_rms_norm")?,
            add: number("add_residual")?,
            rotate: number("rotate_and_store")?,
            prefill: number(&format!("attention_prefill_{head_dim}"))?,
            decode: number(&format!("attention_decode_{head_dim}"))?,
            merge: number("attention_merge")?,
            swiglu: number("swiglu")?,
            argmax: number("argmax_rows")?,
            candidates: number("top_candidates")?,
        })
    }
}
