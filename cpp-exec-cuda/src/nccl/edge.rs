//! An edge between two stages over NCCL.
//!
//! Each generation of the pipeline has a communicator of its own: the earlier stage makes an id for it and tells the later one over another channel
//! ([`Introduction`]), both connect, and when a batch is lost both abort and do so again. An end belongs to the issuing thread of its stage.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cpp_exec_mock::runtime::Letters;
use cudarc::driver::CudaContext;

use super::communicator::{Communicator, Progress, Rank};
use super::library::Nccl;
use super::types::{DataType, EdgeConfig, UniqueId};
use crate::cuda::planted::{happens, is_due};
use crate::cuda::{DeviceAddress, EdgeEnd, EdgeError, Gpu, RawStream, ReceiveEnd, SendEnd};

/// How long a call may go on, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an end that is dropped waits for what it has sent and received, before it aborts.
const PEACE: Duration = Duration::from_secs(1);

/// How the ends of an edge find each other: ids go from the earlier stage to the later one, each with its generation. Nothing blocks.
pub trait Introduction: Send + fmt::Debug {
    /// Sends the id of a generation to the other end.
    ///
    /// # Errors
    /// There is no way to it, and why.
    fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String>;

    /// The id of a generation, if it has come. Those of earlier ones are thrown away, those of later ones stay.
    ///
    /// # Errors
    /// None will come any more, and why.
    fn hear(&mut self, generation: u64) -> Result<Option<UniqueId>, String>;
}

/// Within one process.
#[derive(Clone, Debug, Default)]
pub struct LocalIntroduction {
    ids: Arc<Mutex<VecDeque<(u64, UniqueId)>>>,
}

impl LocalIntroduction {
    fn ids(&self) -> MutexGuard<'_, VecDeque<(u64, UniqueId)>> {
        // Nobody panics while holding it.
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Introduction for LocalIntroduction {
    fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String> {
        self.ids().push_back((generation, id));
        Ok(())
    }

    fn hear(&mut self, generation: u64) -> Result<Option<UniqueId>, String> {
        let mut ids = self.ids();
        while ids.front().is_some_and(|(of, _)| *of < generation) && happens() {
            ids.pop_front();
        }
        let due = is_due(ids.front().is_some_and(|(of, _)| *of == generation));
        Ok(if due { ids.pop_front().map(|(_, id)| id) } else { None })
    }
}

/// Between processes, over the connection that carries the headers of their frames.
impl Introduction for Letters {
    fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String> {
        self.send(generation, &id.to_bytes()).map_err(|error| error.to_string())
    }

    fn hear(&mut self, generation: u64) -> Result<Option<UniqueId>, String> {
        let Some(letter) = self.take(generation) else { return Ok(None) };
        let bytes = <[u8; UniqueId::SIZE]>::try_from(letter).map_err(|letter| format!("an id of {} bytes has come", letter.len()))?;
        Ok(Some(UniqueId::from_bytes(bytes)))
    }
}

/// One end of an edge over NCCL; see the [module](super).
#[derive(Debug)]
pub struct NcclEnd {
    nccl: Nccl,
    rank: Rank,
    config: EdgeConfig,
    context: Arc<CudaContext>,
    introduction: Box<dyn Introduction>,
    /// Of the generation that was asked for last.
    communicator: Option<(u64, Communicator)>,
    /// An id that could not be told yet.
    untold: Option<(u64, UniqueId)>,
    /// How long a call may go on.
    patience: Duration,
    /// Since when one does.
    since: Option<Instant>,
}

impl NcclEnd {
    /// An end that is not connected yet.
    #[must_use]
    pub fn new(nccl: Nccl, rank: Rank, config: EdgeConfig, gpu: &Gpu, introduction: impl Introduction + 'static) -> Self {
        let context = Arc::clone(gpu.context());
        Self {
            nccl,
            rank,
            config,
            context,
            introduction: Box::new(introduction),
            communicator: None,
            untold: None,
            patience: PATIENCE,
            since: None,
        }
    }

    /// How long the other end may take to connect, and NCCL to put an operation on its stream. Default 30 seconds.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The id of a generation: made and told, or heard.
    fn id(&mut self, generation: u64) -> Result<Option<UniqueId>, EdgeError> {
        if self.rank == Rank::Downstream {
            return self.introduction.hear(generation).map_err(EdgeError::Rendezvous);
        }
        let id = match self.untold {
            Some((of, id)) if is_due(of == generation) => id,
            _ => self.nccl.unique_id()?,
        };
        self.untold = Some((generation, id));
        // The other stage may be about to be replaced: that is found out by others, and sooner than this end gives up.
        Ok(self.introduction.tell(generation, id).is_ok().then(|| {
            self.untold = None;
            id
        }))
    }

    /// Notes that something goes on, or is through. What goes on for too long will not come.
    fn keep_time(&mut self, progress: Progress, doing: &'static str) -> Result<Progress, EdgeError> {
        if progress == Progress::Done {
            self.since = None;
        } else if !is_due(self.since.get_or_insert_with(Instant::now).elapsed() <= self.patience) {
            self.since = None;
            return Err(EdgeError::Rendezvous(format!("{doing} took longer than {:.0} s", self.patience.as_secs_f64())));
        }
        Ok(progress)
    }

    fn open(&mut self) -> Result<&mut Communicator, EdgeError> {
        match &mut self.communicator {
            Some((_, communicator)) => Ok(communicator),
            None => Err(EdgeError::Misuse("the edge is not connected")),
        }
    }

    fn bind(&self) -> Result<(), EdgeError> {
        if happens() {
            self.context.bind_to_thread().map_err(|error| EdgeError::Driver { doing: "using the GPU for NCCL", error })?;
        }
        Ok(())
    }

    fn close_in_peace(&mut self) -> Result<(), EdgeError> {
        let until = Instant::now() + PEACE;
        // What was called last may still be on its way.
        while self.communicator.is_some() && !is_due(self.poll()? == Progress::Done) && Instant::now() < until {
            thread::sleep(Duration::from_micros(50));
        }
        let Some((_, communicator)) = &mut self.communicator else { return Ok(()) };
        let _ = communicator.close()?;
        while !is_due(communicator.poll()? == Progress::Done) && Instant::now() < until {
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl EdgeEnd for NcclEnd {
    fn connect(&mut self, generation: u64) -> Result<Progress, EdgeError> {
        if !is_due(self.communicator.as_ref().is_none_or(|(of, _)| *of == generation)) {
            return Err(EdgeError::Misuse("an edge of another generation is connected: abort it first"));
        }
        if self.communicator.is_none() {
            let Some(id) = self.id(generation)? else { return self.keep_time(Progress::Pending, "hearing of the other stage") };
            self.bind()?;
            self.communicator = Some((generation, Communicator::connect(&self.nccl, id, self.rank, self.config)?));
        }
        let progress = self.open()?.poll()?;
        self.keep_time(progress, "connecting two stages over NCCL")
    }

    #[allow(unsafe_code)]
    unsafe fn warm_up(&mut self, scratch: DeviceAddress, stream: RawStream) -> Result<Progress, EdgeError> {
        // One way is enough: nothing ever goes the other.
        let rank = self.rank;
        self.bind()?;
        let communicator = self.open()?;
        // SAFETY: the caller's promise: one value, which nobody else uses.
        Ok(unsafe {
            match rank {
                Rank::Upstream => communicator.send(scratch as *const c_void, 1, DataType::Bfloat16, stream.cast())?,
                Rank::Downstream => communicator.recv(scratch as *mut c_void, 1, DataType::Bfloat16, stream.cast())?,
            }
        })
    }

    fn poll(&mut self) -> Result<Progress, EdgeError> {
        let progress = self.open()?.poll()?;
        self.keep_time(progress, "an operation of NCCL")
    }

    fn abort(&mut self) -> Result<(), EdgeError> {
        self.since = None;
        match self.communicator.take() {
            Some((_, communicator)) => Ok(communicator.abort()?),
            None => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), EdgeError> {
        let closed = self.close_in_peace();
        // One that has not ended in peace is aborted.
        self.abort().and(closed)
    }
}

impl SendEnd for NcclEnd {
    #[allow(unsafe_code)]
    unsafe fn send(&mut self, _: usize, from: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError> {
        self.bind()?;
        let communicator = self.open()?;
        if values == 0 {
            return Ok(communicator.poll()?);
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { communicator.send(from as *const c_void, values, DataType::Bfloat16, stream.cast()) }?)
    }
}

impl ReceiveEnd for NcclEnd {
    #[allow(unsafe_code)]
    unsafe fn receive(&mut self, _: usize, into: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError> {
        self.bind()?;
        let communicator = self.open()?;
        if values == 0 {
            return Ok(communicator.poll()?);
        }
        // SAFETY: the caller's promise.
        Ok(unsafe { communicator.recv(into as *mut c_void, values, DataType::Bfloat16, stream.cast()) }?)
    }
}

impl Drop for NcclEnd {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests;
