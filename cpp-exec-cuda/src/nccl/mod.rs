//! NCCL between two stages, loaded when it is needed.
//!
//! There is no crate `nccl-rs`, and `cudarc`'s module was not made for this: it never looks for `libnccl.so.2` (the only name in NVIDIA's Python
//! package), panics when it finds nothing, does not report asynchronous errors and aborts only where a communicator is dropped. So here are
//! the eleven functions that a pipeline needs ([`Nccl`]), errors with a name and a text ([`NcclError`]), and a communicator of two ranks
//! that never blocks ([`Communicator`]), and on it an edge between two stages ([`NcclEnd`]).
//!
//! - *A communicator for each edge*, never one for both neighbours: NCCL serialises what goes over one communicator, whatever the streams, so that a
//!   receive posted early would hold up the send before it.
//! - *One thread* issues everything of a stage: NCCL forbids operations on several communicators of a device from several threads.
//! - *Nothing blocks*: every call returns at once and is then [polled](Communicator::poll) until it is through, by a deadline that the caller keeps.
//!   An event that is recorded before that may stand before the operation on the stream.
//! - *Abort* ends operations whose peer is gone. NCCL does not tell the peer; whoever aborts does.
//!
//! Sources: NCCL's user guide ("Creating a communicator with options", "Error handling and communicator abort", "Thread safety").

mod communicator;
mod edge;
mod error;
mod library;
mod types;

pub use communicator::{Communicator, Progress, Rank};
pub use edge::{Introduction, LocalIntroduction, NcclEnd};
pub use error::{LoadError, NcclCode, NcclError};
pub use library::Nccl;
pub use types::{DataType, EdgeConfig, UniqueId};

pub(crate) use error::reason;
