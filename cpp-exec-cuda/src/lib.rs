//! Real models over pipeline stages, for the `cpp-sched` scheduling kernel: the library behind the command `cpp-run`.
//!
//! Model files, the device that is this machine's processor, and the stage runtime are in `cpp-exec-mock`; here is what makes a command of them:
//! [`text`] (tokenizer and chat templates) and [`machine`] (what a machine has, as `cpp-run doctor` tells).
//!
//! With the feature `cuda` (on by default, Unix alone) there are `cuda` (a device of the stage runtime, with its kernels)
//! `nccl` (NCCL between two stages) and `selftest` (what a GPU must show). They load CUDA's libraries when they are used, so this crate builds and its tests pass on
//! machines that have none.
#![deny(unsafe_code, unsafe_op_in_unsafe_fn)]
#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]

#[cfg(all(feature = "cuda", unix))]
pub mod cuda;
pub mod machine;
#[cfg(all(feature = "cuda", unix))]
pub mod nccl;
#[cfg(all(feature = "cuda", unix))]
pub mod selftest;
pub mod text;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
