//! Stages as processes, on one host or several: a crew whose workers are wherever a launcher has started them.
//!
//! ```text
//!  leader: Driver ── Pipeline ── Processes ── Desk (a port: 127.0.0.1 unless told otherwise)
//!                                    │ one connection a worker: plans, aborts, posts ▶, ◀ results, times, heartbeats
//!              ┌─────────────────────┼──────────────────────┐
//!        process 0 ── frames ──▶ process 1 ── frames ──▶ process 2        each: serve(), a Worker, and a port for the stage before it
//! ```
//!
//! - *Nobody else.* Both ends of every connection prove that they know a [`Secret`] before anything else is read (`handshake.rs`), and every message
//!   carries a code (`sealed.rs`). What strangers did is told as a [`Notice`], and disturbs nobody.
//! - *Who starts them.* The leader, on its own host, with a command for a stage ([`Launch`]); or a launcher of distributed programs, whose
//!   environment says who is who ([`Rendezvous`]).
//! - *Loss.* A worker whose connection ends, or that is silent, is gone. The leader starts another one, or waits until the launcher does;
//!   [`Pipeline::recover`](super::Pipeline::recover) does the rest. A worker without a leader ends.

mod desk;
mod edge;
mod handshake;
mod leader;
mod message;
mod reach;
mod rendezvous;
mod sealed;
mod secret;
mod serve;
mod visitors;

use std::time::Duration;

pub use desk::{JoinError, Refused};
pub use handshake::{HandshakeError, PROTOCOL};
pub use leader::{Launch, Notice, ProcessOptions, Processes};
pub use message::{Refusal, Welcome};
pub use rendezvous::{Rendezvous, RendezvousError};
pub use sealed::SealError;
pub use secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret, SecretError};
pub use serve::{WorkerError, WorkerOptions, serve};

/// How long processes wait for each other.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by struct update from its default")]
pub struct ProcessPatience {
    /// For a new connection to prove itself, and for an edge to be made. Default five seconds.
    pub handshake: Duration,
    /// Without a word from the other end; each says something four times as often. Default 20 seconds.
    pub silence: Duration,
    /// For workers to join, from when one is missing; loading may take any time. Default two minutes.
    pub join: Duration,
    /// For a worker to leave its post. Default 30 seconds.
    pub leave: Duration,
}

impl Default for ProcessPatience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { handshake: seconds(5), silence: seconds(20), join: seconds(120), leave: seconds(30) }
    }
}
