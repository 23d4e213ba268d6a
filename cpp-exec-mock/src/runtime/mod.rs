//! The stage runtime: plans of the scheduler, run by a pipeline of workers, generic over the device that computes and the link between stages.
//!
//! ```text
//!            ┌───────── plans, aborts (Control) ─────────┐
//!  Driver ── Pipeline ◀── results, times (Report) ───────┤
//!            │                                           │
//!            ├──▶ Worker 0 ── Frame ──▶ Worker 1 ── Frame ──▶ Worker 2 …      each: a Mirror and a Device
//!            └──◀ tokens sampled, for rows that continue them (asynchronous scheduling)
//! ```
//!
//! - *Plans are messages.* A worker knows of requests what its [`Mirror`](cpp_sched::wire::Mirror) has been told, and nothing else.
//! - *Overlap.* Receiving, computing and sending have a thread each, with a ring of frames as long as the pipeline is deep.
//! - *A device may work by itself*: then several batches are under way on it ([`Device::start`]), and if it passes activations on as well, frames are
//!   no more than headers.
//! - *Order.* Every edge carries the batches in the order of the plans; a frame that is not the one that is due is an error.
//! - *Loss.* A batch that fails, or is not back by its deadline, ends the generation: all stages forget what is under way and say so, then the
//!   scheduler rolls back. A stage that is gone, or does not say so in time, gets a successor with empty memory; then everything is computed
//!   anew ([`Pipeline::recover`]).
//! - *Where workers run* is a [`Crew`]'s business: [`Threads`] of this process, or processes on one host or several ([`process`]).

mod calibration;
mod crew;
mod drafter;
mod error;
mod letters;
mod link;
mod message;
mod pipeline;
pub mod process;
mod stub;
mod timeline;
mod work;
mod worker;

pub use calibration::{Calibration, guess};
pub use crew::{Crew, Factory, Threads};
pub use drafter::{Drafter, PromptLookup};
pub use error::RuntimeError;
pub use letters::Letters;
#[cfg(unix)]
pub use link::SocketLink;
pub use link::{ChannelLink, DelayedLink, Edge, FrameReceiver, FrameSender, Link, LinkError, StreamReceiver, StreamSender};
pub use message::{Control, Frame, Report, Span};
pub use pipeline::{Patience, Pipeline, Timing};
pub use stub::Stub;
pub use timeline::timeline;
pub use work::{Device, Finished, RowSample, Started, Work, WorkRow};
pub use worker::{Inbox, Left, Post, Worker};
