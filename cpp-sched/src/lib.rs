//! The scheduling kernel for chunked pipeline parallelism (CPP) of LLM inference.
//!
//! skeleton docs

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod batch;
mod config;
mod cost;
mod error;
mod event;
mod flops;
mod ids;
mod kv;
mod outcome;
mod policy;
mod queue;
mod request;
mod scheduler;
mod state;
mod stats;

pub use batch::{Batch, Row, RowKind, Sample, Scheduled};
pub use config::{Admission, Balance, Chunking, Config, HashKey, Pipelining, PolicyKind, PreemptedOutput, Role};
pub use cost::{Attos, CostModel, CostTerms, ParseAttosError, causal_pairs};
pub use error::{CompleteError, ConfigError, SubmitError};
pub use event::{Event, FinishReason};
pub use flops::ModelDims;
pub use ids::{BatchId, BlockId, RequestId, TokenId};
pub use outcome::{EmptyReason, KvUsage, Schedule, WaitReason};
pub use request::{Prompt, Request};
pub use scheduler::{Scheduler, Violation};
pub use stats::Stats;
