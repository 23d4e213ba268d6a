//! The scheduling kernel for chunked pipeline parallelism (CPP) of LLM inference: it decides, batch by batch, which tokens of which request
//! run next, while several batches are in the pipeline at once.
//!
//! A long prompt is cut into chunks; while stage 2 works on chunk 1, stage 1 already has chunk 2. So the scheduler counts a chunk's tokens as
//! computed when it schedules them, gives each batch a snapshot of its own, and never schedules a token twice.
//!
//! It is a pure state machine: `no_std` + `alloc`, without clock, thread, random source, logger or socket, without unsafe code, without
//! floating point in a decision. Equal inputs in equal order give equal batches, bit for bit, on every machine. It runs no model and opens no
//! connection: that is an executor's business.
//!
//! # The loop
//!
//! *Fill the pipeline, wait for the oldest batch, complete it.* Every call happens whole or, with an error, changes nothing.
//!
//! ```
//! use cpp_sched::{Config, Event, Request, RequestId, Sample, Schedule, Scheduler};
//! use std::collections::VecDeque;
//!
//! let mut config = Config::default();
//! config.stages = 4; // up to four batches in flight
//! config.max_batch_tokens = 256;
//! let mut scheduler = Scheduler::new(config)?;
//! scheduler.submit(Request::new(RequestId(1), vec![17; 1000], 8)).unwrap();
//! scheduler.submit(Request::new(RequestId(2), vec![23; 30], 8)).unwrap();
//!
//! let mut pipeline = VecDeque::new(); // stands for the executor
//! while !scheduler.is_idle() {
//!     while let Schedule::Batch(batch) = scheduler.schedule() {
//!         for row in batch.rows() {
//!             // Compute positions row.num_computed_tokens..row.end(), their KV in these blocks:
//!             assert!(batch.blocks(row).len() * 16 >= row.end() as usize);
//!         }
//!         pipeline.push_back((*batch).clone());
//!     }
//!     let batch = pipeline.pop_front().expect("not idle, so something is in flight");
//!     let tokens = [42]; // what the last stage sampled
//!     let sampled = batch.rows().iter().filter(|row| row.samples);
//!     let samples: Vec<_> = sampled.map(|row| Sample { request: row.request, tokens: &tokens }).collect();
//!     scheduler.complete(batch.id(), &samples).unwrap();
//!     for event in scheduler.events() {
//!         if let Event::Finished { request, reason } = event {
//!             println!("{request}: {reason:?}");
//!         }
//!     }
//! }
//! assert_eq!(scheduler.stats().output_tokens, 16);
//! # Ok::<(), cpp_sched::ConfigError>(())
//! ```
//!
//! An engine need not write this loop: [`Driver`] is it, around an [`Executor`] of the engine's own.
//!
//! # What always holds
//!
//! [`Scheduler::check_invariants`] re-computes what can be seen of these; the project's tests call it after every step.
//!
//! | | |
//! |---|---|
//! | I1 | The rows of a request tile its sequence: each starts where the one before it ended, from 0 or behind a prefix hit. |
//! | I2 | A result is applied to the epoch that it was scheduled in, or delivered late, or dropped; never to another epoch. |
//! | I3 | Tokens are delivered once, in order, none left out, over preemptions, failures and aborts of others. |
//! | I4 | `free + held + cached + fenced + pinned = total` blocks. |
//! | I5 | A block that was let go is not written, nor lent to a transfer, while a batch in flight has it in a table. |
//! | I6 | Only whole blocks of completed batches are found in the prefix cache, and only under their salt. |
//! | I7 | A batch keeps to every budget: tokens, rows, cost, encoder tokens; it cuts no atomic span and runs none that is not encoded. |
//! | I8 | With nothing in flight and a runnable request, a batch is not empty, unless all blocks that it needs are under transfers. |
//! | I9 | Every accepted request ends, and its end is told once. |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `serde` | `Serialize` and `Deserialize` on configuration, requests, batches, events and statistics; snapshots of the whole scheduler |
//! | `journal` | a [`journal`] of inputs, and runs from it |
//!
//! Features only add; none changes a decision. Minimum Rust: 1.85.
//!
//! Words: a *batch* is what the pipeline runs at once; a *row* is one request's part of it, a prefill *chunk* or a *decode*; *D* is the most
//! batches in flight.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod batch;
mod config;
mod cost;
pub mod driver;
mod encoder;
mod error;
mod event;
mod flops;
mod gate;
mod ids;
pub mod journal;
mod kv;
mod layers;
mod outcome;
pub mod planner;
mod policy;
mod queue;
mod request;
mod scheduler;
mod splitmix;
mod state;
mod stats;
#[cfg(feature = "serde")]
mod tagged;
#[cfg(feature = "serde")]
mod wide;
pub mod wire;

pub use batch::{Batch, GroupBlocks, Row, RowKind, Sample, Scheduled};
pub use config::{
    Adaptive, Admission, Balance, Chunking, Config, HashKey, Latency, Pipelining, PolicyKind, PreemptedOutput, Role, Workspace,
};
pub use cost::{Attos, CostModel, CostTerms, ParseAttosError, causal_pairs};
pub use driver::{Driver, Executor};
pub use encoder::{EncoderInput, EncoderItem, Span};
pub use error::{CompleteError, ConfigError, ExtendError, ForkError, SubmitError};
pub use event::{Event, FinishReason};
pub use flops::ModelDims;
pub use gate::{Gate, GateSet};
pub use ids::{BatchId, BlockId, RequestId, TokenId};
pub use kv::{KvEvent, KvGroup, KvGroups, MAX_KV_GROUPS};
pub use layers::{Layer, Mixer, Mlp, windowed_pairs};
pub use outcome::{EmptyReason, KvUsage, Outcome, Schedule, WaitReason};
pub use policy::{Policy, Rank, RequestView};
pub use request::{Fork, Prompt, Request};
pub use scheduler::{Estimate, Pause, Scheduler, Violation};
#[cfg(feature = "serde")]
pub use scheduler::{RestoreError, Snapshot};
pub use stats::{Stats, Waiting};

/// The examples of the crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
