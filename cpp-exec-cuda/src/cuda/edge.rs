//! What carries activations between stages on devices: asynchronous, in the order of a stream.
//!
//! An edge has two ends, one at each stage. The issuing thread of a stage calls its ends, nothing here blocks, and how far a call has come is asked
//! for with [`EdgeEnd::poll`]: only then may an event be recorded behind it, since what is not on the stream yet would come after the event.
//!
//! ```text
//!  connect (generation) … Done ─▶ warm_up … Done ─▶ { send or receive … poll … Done } ─▶ abort ─▶ connect (next generation) …
//! ```

use std::fmt;

use cudarc::driver::{DriverError, sys};

use crate::nccl::NcclError;
pub use crate::nccl::Progress;

/// A stream of the driver.
pub type RawStream = sys::CUstream;
/// An address in the memory of a device.
pub type DeviceAddress = sys::CUdeviceptr;

/// Why an edge is of no more use. Both ends are aborted and connected anew, with the next generation.
#[derive(Debug)]
#[non_exhaustive]
pub enum EdgeError {
    /// The driver refused something.
    Driver {
        /// What was being done.
        doing: &'static str,
        /// The driver's word.
        error: DriverError,
    },
    /// NCCL did, or the other rank is gone.
    Nccl(NcclError),
    /// The other end has sent another number of values than are due here.
    Size {
        /// Values that are due.
        expected: usize,
        /// Values that were sent.
        found: usize,
    },
    /// A call that may not be made now: another one is not through, or the edge is not connected.
    Misuse(&'static str),
    /// The ends cannot find each other: what else connects them has failed.
    Rendezvous(String),
}

impl fmt::Display for EdgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { doing, error } => write!(f, "{doing}: the CUDA driver says {error}"),
            Self::Nccl(error) => error.fmt(f),
            Self::Size { expected, found } => write!(f, "{found} values were sent where {expected} are due"),
            Self::Misuse(what) => f.write_str(what),
            Self::Rendezvous(problem) => write!(f, "the stages of an edge do not find each other: {problem}"),
        }
    }
}

impl std::error::Error for EdgeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Driver { error, .. } => Some(error),
            Self::Nccl(error) => Some(error),
            _ => None,
        }
    }
}

impl From<NcclError> for EdgeError {
    fn from(error: NcclError) -> Self {
        Self::Nccl(error)
    }
}

/// One end of an edge. One call at a time: after each, [`poll`](Self::poll) until it is [`Done`](Progress::Done).
pub trait EdgeEnd: Send + fmt::Debug {
    /// Begins or goes on with finding the other end: called again and again until it is [`Done`](Progress::Done). Both ends name the same
    /// generation: how often the pipeline has been aborted. Never blocks; its caller keeps the deadline.
    ///
    /// # Errors
    /// There is no way to the other end.
    fn connect(&mut self, generation: u64) -> Result<Progress, EdgeError>;

    /// Passes one value over, from both sides, so that what is set up at the first use is set up before the first batch. Then
    /// [`poll`](Self::poll) until it is done.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    ///
    /// # Safety
    /// `scratch` is device memory of at least one bf16 value that nobody else uses, `stream` a stream of the device; both live until the stream
    /// has come past the operation, or the end is aborted.
    #[allow(unsafe_code)]
    unsafe fn warm_up(&mut self, scratch: DeviceAddress, stream: RawStream) -> Result<Progress, EdgeError>;

    /// Whether what was called last is on its stream, so that events may be recorded behind it. Errors that have occurred since come out here
    /// as well, so it is called now and then while the other end works.
    ///
    /// # Errors
    /// The edge is broken.
    fn poll(&mut self) -> Result<Progress, EdgeError>;

    /// Ends everything under way: what waits for the other end on a stream quits. The other end is not told. Returns when nothing of it reads or
    /// writes memory of this stage any more, or of the other one on behalf of this; idempotent.
    ///
    /// # Errors
    /// It could not be ended in order; it is over all the same.
    fn abort(&mut self) -> Result<(), EdgeError>;

    /// Ends it when nothing is under way, at the end of a run; the other end does the same. May wait for a moment. By default as
    /// [`abort`](Self::abort).
    ///
    /// # Errors
    /// It could not be ended in order; it is over all the same.
    fn close(&mut self) -> Result<(), EdgeError> {
        self.abort()
    }
}

/// The end that activations go into.
pub trait SendEnd: EdgeEnd {
    /// Sends `values` bf16 values of the batch in `slot`, when the stream comes to it. Every stage calls it in the order of the batches.
    ///
    /// # Errors
    /// As [`poll`](EdgeEnd::poll), or that a call before is not through.
    ///
    /// # Safety
    /// `from` is device memory of so many values, which lives and is not written until the stream has come past the operation or the end is
    /// aborted; `stream` is a stream of the device.
    #[allow(unsafe_code)]
    unsafe fn send(&mut self, slot: usize, from: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError>;
}

/// The end that activations come out of.
pub trait ReceiveEnd: EdgeEnd {
    /// Receives `values` bf16 values of the batch in `slot`, when the stream comes to it.
    ///
    /// # Errors
    /// As [`poll`](EdgeEnd::poll), or that a call before is not through.
    ///
    /// # Safety
    /// `into` is device memory of so many values, which lives and which nobody reads or writes until the stream has come past the operation or the
    /// end is aborted; `stream` is a stream of the device.
    #[allow(unsafe_code)]
    unsafe fn receive(&mut self, slot: usize, into: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError>;
}
