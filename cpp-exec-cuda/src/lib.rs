//! The place of the CUDA and NCCL executor for `cpp-sched`.
//!
//! This crate is a stub: it holds no executor yet, and nothing depends on it. It is listed so that the workspace has its final shape. To run
//! batches today, see `cpp-exec-mock` (virtual time), or write an executor of your own as in `cpp-sched/examples/toy_engine.rs`.
#![forbid(unsafe_code)]
