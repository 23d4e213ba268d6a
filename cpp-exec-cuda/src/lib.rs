//! The place of the CUDA and NCCL executor for `cpp-sched`.
//!
//! This crate is a stub: it holds no executor yet, has no dependencies, and nothing depends on it. It stands in the workspace so that the
//! workspace has its final shape. The executor will load CUDA's libraries at run time; the crate builds on machines that have none.
//!
//! To run batches today, see `cpp-exec-mock` (virtual time), or write an executor of your own as in `cpp-sched/examples/toy_engine.rs`.
#![forbid(unsafe_code)]
