//! What leader and workers say over a sealed connection, as postcard writes it.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::sealed::{SealError, SealedReader, SealedWriter};
use crate::runtime::message::{Control, Report};

/// This package's version: the kernel's messages are understood by the same version alone.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A message of the leader is at most so long: a resync with the tokens of all requests.
pub(super) const LONGEST: u64 = 1 << 30;

/// A worker's first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Join {
    pub(super) version: String,
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) model: [u8; 32],
    pub(super) pid: u32,
}

/// Why a worker that knows the secret may not join all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// It is of another version.
    Version {
        /// The leader's.
        leader: String,
        /// The worker's.
        worker: String,
    },
    /// There is no such stage.
    Rank {
        /// Its rank.
        rank: usize,
        /// Stages that there are.
        stages: usize,
    },
    /// It was told of another number of ranks.
    WorldSize {
        /// What it was told.
        world_size: usize,
        /// Stages that there are.
        stages: usize,
    },
    /// The stage has a worker, which lives.
    Taken {
        /// The stage.
        rank: usize,
        /// The process of its worker.
        pid: u32,
    },
    /// It has another model.
    Model {
        /// Its rank.
        rank: usize,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { leader, worker } => {
                write!(f, "the worker is of version {worker}, the leader of {leader}: run the same cpp-run everywhere")
            }
            Self::Rank { rank, stages } => write!(f, "there is no stage {rank}: the pipeline has {stages}, ranks count from 0"),
            Self::WorldSize { world_size, stages } => {
                write!(f, "the worker was told of {world_size} ranks, the pipeline has {stages} stages: start as many workers as stages")
            }
            Self::Taken { rank, pid } => {
                write!(f, "stage {rank} has a worker already, process {pid}: two processes were started with the same rank")
            }
            Self::Model { rank } => {
                write!(f, "the worker of stage {rank} has another model than the leader: the folders differ from host to host")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// What a worker must know to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Welcome {
    /// Its stage.
    pub stage: usize,
    /// Stages that there are.
    pub stages: usize,
    /// Its layers.
    pub layers: Range<usize>,
    /// The scheduler's configuration, as JSON.
    pub(super) config: String,
    /// Numbers of a frame at most.
    pub(super) max_numbers: u64,
    /// Nanoseconds since the pipeline was started.
    pub(super) now_ns: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    Welcome(Box<Welcome>),
    Refused(Refusal),
    /// Connect to the stage behind, wait for the one before, and work.
    Post {
        post: u64,
        generation: u64,
        down: Option<SocketAddr>,
    },
    Control(Control),
    /// Come back from this post, and keep the device.
    Leave {
        post: u64,
    },
    /// Are you there?
    Ping,
    /// The run is over.
    Exit,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ToLeader {
    Join(Join),
    /// Bytes of weights that were read since the last time.
    Loaded(u64),
    /// Everything is in memory; the stage before connects to this port.
    Ready {
        port: u16,
    },
    /// The device cannot be made.
    Unable(String),
    Posted {
        post: u64,
    },
    /// An edge cannot be made.
    NoPost {
        post: u64,
        problem: String,
    },
    Report(Report),
    /// The worker has left its post, and keeps its device.
    Left {
        post: u64,
    },
    Pong,
}

/// A stage's first message to the one behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Edge {
    pub(super) post: u64,
    pub(super) from: usize,
}

impl SealedWriter {
    pub(super) fn say(&mut self, message: &impl Serialize) -> Result<(), SealError> {
        let bytes = postcard::to_stdvec(message).map_err(|error| SealError::Content(error.to_string()))?;
        self.send(&bytes)
    }
}

impl SealedReader {
    pub(super) fn hear<M: DeserializeOwned>(&mut self) -> Result<M, SealError> {
        postcard::from_bytes(self.receive()?).map_err(|error| SealError::Content(error.to_string()))
    }
}
