//! A communicator of two ranks that never blocks.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::error::{NcclCode, NcclError};
use super::library::Nccl;
use super::types::{Config, DataType, EdgeConfig, Handle, UniqueId};
use crate::cuda::planted::{happens, is_due};

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an operation that is still pending may not be on its stream yet"]
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
pub enum Progress {
    /// It goes on: poll again.
    Pending,
    /// It is through. Of a send or receive: it is on its stream, and events may be recorded.
    Done,
}

/// One end of an edge between two stages. All of a stage are used by one thread, its issuing thread; dropped before it is [closed](Self::is_closed), it is aborted.
///
/// One call at a time: after each, [`poll`](Self::poll) until it is [`Done`](Progress::Done). A call that is made before is refused with
/// [`NcclCode::Usage`].
#[derive(Debug)]
pub struct Communicator {
    nccl: Nccl,
    handle: Handle,
    rank: c_int,
    /// What has been called and is not known to be through.
    pending: Option<&'static str>,
    state: State,
}

#[allow(unsafe_code)]
// SAFETY: NCCL binds no communicator to a thread; `&mut self` makes its calls one at a time, and they say which device they are for.
unsafe impl Send for Communicator {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Closing,
    Closed,
}

impl Communicator {
    /// Begins to connect to the other rank; both make one with the same id. The current CUDA device of the thread is used.
    ///
    /// # Errors
    /// NCCL's: no device, for example.
    pub fn connect(nccl: &Nccl, id: UniqueId, rank: Rank, config: EdgeConfig) -> Result<Self, NcclError> {
        let (mut handle, mut config) = (ptr::null_mut(), Config::new(config));
        let rank = rank.number();
        #[allow(unsafe_code)]
        // SAFETY: NCCL copies what the configuration says, and writes one handle.
        let result = unsafe { (nccl.functions.init_rank_config)(&raw mut handle, 2, id, rank, &raw mut config) };
        let call = "ncclCommInitRankConfig";
        let mut made = Self { nccl: *nccl, handle, rank, pending: None, state: if handle.is_null() { State::Closed } else { State::Open } };
        // What was made before it failed is aborted where `made` is dropped.
        let _ = made.note(call, result)?;
        if handle.is_null() {
            return Err(NcclError { call, code: NcclCode::Internal, text: "no communicator was made".into(), detail: String::new() });
        }
        Ok(made)
    }

    /// Whether what was called last is through; errors that have occurred behind it, of the network for example, come out here as well.
    ///
    /// # Errors
    /// What has failed. The communicator is of no more use.
    pub fn poll(&mut self) -> Result<Progress, NcclError> {
        if matches!(self.state, State::Failed | State::Closed) {
            return Err(self.misuse("ncclCommGetAsyncError"));
        }
        let mut result = 0;
        #[allow(unsafe_code)]
        // SAFETY: the handle is alive in these states; NCCL writes one number.
        let asked = unsafe { (self.nccl.functions.async_error)(self.handle, &raw mut result) };
        let call = self.pending.unwrap_or("ncclCommGetAsyncError");
        let progress = match self.nccl.check("ncclCommGetAsyncError", asked, self.handle) {
            Ok(_) => self.note(call, result),
            Err(error) => Err(self.fail(error)),
        }?;
        if progress == Progress::Done && self.state == State::Closing && happens() {
            self.destroy()?;
        }
        Ok(progress)
    }

    /// Sends `count` numbers from device memory to the other rank, in the order of the stream.
    ///
    /// # Errors
    /// NCCL's, or that a call before is not through.
    ///
    /// # Safety
    /// `from` is device memory of so many numbers, and `stream` a stream of the communicator's device; both live, and the memory is not
    /// written, until the stream has come past the operation or the communicator is aborted.
    #[allow(unsafe_code)]
    pub unsafe fn send(&mut self, from: *const c_void, count: usize, kind: DataType, stream: *mut c_void) -> Result<Progress, NcclError> {
        self.may("ncclSend")?;
        // SAFETY: the caller's promise; the handle is alive, since the state is open.
        let result = unsafe { (self.nccl.functions.send)(from, count, kind.number(), 1 - self.rank, self.handle, stream) };
        self.note("ncclSend", result)
    }

    /// Receives `count` numbers from the other rank into device memory, in the order of the stream.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    ///
    /// # Safety
    /// As [`send`](Self::send); nobody reads or writes the memory until then.
    #[allow(unsafe_code)]
    pub unsafe fn recv(&mut self, to: *mut c_void, count: usize, kind: DataType, stream: *mut c_void) -> Result<Progress, NcclError> {
        self.may("ncclRecv")?;
        // SAFETY: the caller's promise; the handle is alive, since the state is open.
        let result = unsafe { (self.nccl.functions.recv)(to, count, kind.number(), 1 - self.rank, self.handle, stream) };
        self.note("ncclRecv", result)
    }

    /// Begins to end it in peace: what was sent and received before comes to its end first. The other rank does the same; poll until
    /// it is [`Done`](Progress::Done), then it is [closed](Self::is_closed).
    ///
    /// # Errors
    /// NCCL's, or that a call before is not through.
    pub fn close(&mut self) -> Result<Progress, NcclError> {
        self.may("ncclCommFinalize")?;
        self.state = State::Closing;
        #[allow(unsafe_code)]
        // SAFETY: the handle is alive, and finalised once, since the state was open.
        let result = unsafe { (self.nccl.functions.finalize)(self.handle) };
        // Through at once or not: `poll` asks once more, and then destroys it.
        self.note("ncclCommFinalize", result).map(|_| Progress::Pending)
    }

    /// Ends it at once: kernels that wait for the other rank quit. Returns when they have. The other rank is not told.
    ///
    /// # Errors
    /// NCCL's. The communicator is gone all the same.
    pub fn abort(mut self) -> Result<(), NcclError> {
        self.abort_now()
    }

    /// Whether it has ended in peace.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// What has been called and is not known to be through.
    #[must_use]
    pub const fn pending(&self) -> Option<&'static str> {
        self.pending
    }

    fn destroy(&mut self) -> Result<(), NcclError> {
        self.state = State::Closed;
        #[allow(unsafe_code)]
        // SAFETY: the handle is alive and finalised; it is not used again, since the state is closed.
        let result = unsafe { (self.nccl.functions.destroy)(self.handle) };
        self.nccl.check("ncclCommDestroy", result, ptr::null_mut()).map(drop)
    }

    fn abort_now(&mut self) -> Result<(), NcclError> {
        if self.state == State::Closed || !happens() {
            return Ok(());
        }
        self.state = State::Closed;
        #[allow(unsafe_code)]
        // SAFETY: the handle is alive; it is not used again, since the state is closed.
        let result = unsafe { (self.nccl.functions.abort)(self.handle) };
        self.nccl.check("ncclCommAbort", result, ptr::null_mut()).map(drop)
    }

    /// Whether something new may be called.
    fn may(&self, call: &'static str) -> Result<(), NcclError> {
        if is_due(self.state == State::Open && self.pending.is_none()) { Ok(()) } else { Err(self.misuse(call)) }
    }

    fn misuse(&self, call: &'static str) -> NcclError {
        let text = match (self.state, self.pending) {
            (State::Open, Some(pending)) => format!("{pending} is not through yet"),
            (State::Open, None) => "nothing speaks against it".to_owned(),
            (State::Failed, _) => "the communicator has failed before".to_owned(),
            (State::Closing | State::Closed, _) => "the communicator is closed".to_owned(),
        };
        NcclError { call, code: NcclCode::Usage, text, detail: String::new() }
    }

    /// Notes what a call has come to.
    fn note(&mut self, call: &'static str, result: c_int) -> Result<Progress, NcclError> {
        let through = match self.nccl.check(call, result, self.handle) {
            Ok(through) => is_due(through),
            Err(error) => return Err(self.fail(error)),
        };
        self.pending = (!through).then_some(call);
        Ok(if through { Progress::Done } else { Progress::Pending })
    }

    fn fail(&mut self, error: NcclError) -> NcclError {
        if self.state != State::Closed {
            self.state = State::Failed;
        }
        self.pending = None;
        error
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.abort_now();
    }
}

/// Which end of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an edge has two ends")]
pub enum Rank {
    /// The earlier stage.
    Upstream,
    /// The later stage.
    Downstream,
}

impl Rank {
    const fn number(self) -> c_int {
        match self {
            Self::Upstream => 0,
            Self::Downstream => 1,
        }
    }
}

#[cfg(test)]
mod tests;
