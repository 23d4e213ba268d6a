//! Real models over pipeline stages, for the `cpp-sched` scheduling kernel: the library behind the command `cpp-run`.
//!
//! Model files, the device that is this machine's processor, and the stage runtime are in `cpp-exec-mock`; here is what makes a command of them:
//! [`text`] (tokenizer and chat templates) and [`machine`] (what a machine has, as `cpp-run doctor` tells). The CUDA device and the NCCL link
//! will stand here. They will load CUDA's libraries when they run, so this crate builds and its tests pass on machines that have none.
#![forbid(unsafe_code)]

pub mod machine;
pub mod text;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
