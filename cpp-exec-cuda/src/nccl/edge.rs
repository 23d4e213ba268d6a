//! An edge between two stages over NCCL.
//!
//! Each generation of the pipeline has a communicator of its own: the earlier stage makes an id for it and tells the later one over another channel
//! ([`Introduction`]), both connect, and when a batch is lost both abort and do so again. An end belongs to the issuing thread of its stage.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;

use super::communicator::{Communicator, Progress, Rank};
use super::library::Nccl;
use super::types::{DataType, EdgeConfig, UniqueId};
use crate::cuda::{DeviceAddress, EdgeEnd, EdgeError, Gpu, RawStream, ReceiveEnd, SendEnd};

/// How long an end that is dropped waits for what it has sent and received, before it aborts.
const PEACE: Duration = Duration::from_secs(1);

/// How the ends of an edge find each other: ids go from the earlier stage to the later one, each with its generation. Nothing blocks.
pub trait Introduction: Send + fmt::Debug {
    /// Sends the id of a generation to the other end.
    ///
    /// # Errors
    /// There is no way to it, and why.
    fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String>;

    /// The next id that has come, and its generation.
    ///
    /// # Errors
    /// None will come any more, and why.
    fn hear(&mut self) -> Result<Option<(u64, UniqueId)>, String>;
}

/// An introduction within one process.
#[derive(Debug)]
pub struct LocalIntroduction {
    sender: Sender<(u64, UniqueId)>,
    receiver: Option<Receiver<(u64, UniqueId)>>,
}

impl LocalIntroduction {
    /// The earlier stage's, and the later one's.
    #[must_use]
    pub fn pair() -> (Self, Self) {
        let (sender, receiver) = channel();
        (Self { sender: sender.clone(), receiver: None }, Self { sender, receiver: Some(receiver) })
    }
}

impl Introduction for LocalIntroduction {
    fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String> {
        self.sender.send((generation, id)).map_err(|_| "the other stage is gone".to_owned())
    }

    fn hear(&mut self) -> Result<Option<(u64, UniqueId)>, String> {
        match self.receiver.as_ref().map(Receiver::try_recv) {
            Some(Ok(id)) => Ok(Some(id)),
            Some(Err(TryRecvError::Empty)) => Ok(None),
            Some(Err(TryRecvError::Disconnected)) | None => Err("the other stage is gone".to_owned()),
        }
    }
}

/// What ids arrive in that another thread hears, from a connection for example; see [`Mailbox::introduction`].
#[derive(Clone, Debug, Default)]
pub struct Mailbox {
    ids: Arc<Mutex<VecDeque<(u64, UniqueId)>>>,
}

impl Mailbox {
    /// Puts an id in.
    pub fn put(&self, generation: u64, id: UniqueId) {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).push_back((generation, id));
    }

    /// The introduction of the end whose ids are put in here.
    #[must_use]
    pub fn introduction(&self) -> impl Introduction + use<> {
        Letters { mailbox: self.clone() }
    }
}

#[derive(Debug)]
struct Letters {
    mailbox: Mailbox,
}

impl Introduction for Letters {
    fn tell(&mut self, _: u64, _: UniqueId) -> Result<(), String> {
        Err("ids come from the earlier stage".to_owned())
    }

    fn hear(&mut self) -> Result<Option<(u64, UniqueId)>, String> {
        Ok(self.mailbox.ids.lock().unwrap_or_else(PoisonError::into_inner).pop_front())
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
    /// An id that came early: of a generation that this stage has not heard of.
    early: Option<(u64, UniqueId)>,
}

impl NcclEnd {
    /// An end that is not connected yet.
    #[must_use]
    pub fn new(nccl: Nccl, rank: Rank, config: EdgeConfig, gpu: &Gpu, introduction: impl Introduction + 'static) -> Self {
        let context = Arc::clone(gpu.context());
        Self { nccl, rank, config, context, introduction: Box::new(introduction), communicator: None, early: None }
    }

    /// The id of a generation: made and told, or heard.
    fn id(&mut self, generation: u64) -> Result<Option<UniqueId>, EdgeError> {
        if self.rank == Rank::Upstream {
            let id = self.nccl.unique_id()?;
            self.introduction.tell(generation, id).map_err(EdgeError::Rendezvous)?;
            return Ok(Some(id));
        }
        loop {
            if let Some((of, id)) = self.early {
                if of > generation {
                    return Ok(None);
                }
                self.early = None;
                if of == generation {
                    return Ok(Some(id));
                }
                // Of a generation that was aborted before this stage came to it.
            }
            self.early = self.introduction.hear().map_err(EdgeError::Rendezvous)?;
            if self.early.is_none() {
                return Ok(None);
            }
        }
    }

    fn open(&mut self) -> Result<&mut Communicator, EdgeError> {
        match &mut self.communicator {
            Some((_, communicator)) => Ok(communicator),
            None => Err(EdgeError::Misuse("the edge is not connected")),
        }
    }

    fn bind(&self) -> Result<(), EdgeError> {
        self.context.bind_to_thread().map_err(|error| EdgeError::Driver { doing: "using the GPU for NCCL", error })
    }

    /// Begins to end it in peace: what was sent and received before comes to its end first. The other end does the same; to be
    /// [polled](EdgeEnd::poll) until it is done.
    ///
    /// # Errors
    /// NCCL's, or that a call before is not through.
    pub fn close(&mut self) -> Result<Progress, EdgeError> {
        match &mut self.communicator {
            Some((_, communicator)) => Ok(communicator.close()?),
            None => Ok(Progress::Done),
        }
    }

    fn close_in_peace(&mut self) -> Result<(), EdgeError> {
        let until = Instant::now() + PEACE;
        // What was called last may still be on its way.
        while self.communicator.is_some() && self.poll()? == Progress::Pending && Instant::now() < until {
            thread::sleep(Duration::from_micros(50));
        }
        let _ = self.close()?;
        while let Some((_, communicator)) = &mut self.communicator {
            if communicator.poll()? == Progress::Done || Instant::now() >= until {
                break;
            }
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl EdgeEnd for NcclEnd {
    fn connect(&mut self, generation: u64) -> Result<Progress, EdgeError> {
        match &mut self.communicator {
            Some((of, communicator)) if *of == generation => return Ok(communicator.poll()?),
            Some(_) => return Err(EdgeError::Misuse("an edge of another generation is connected: abort it first")),
            None => {}
        }
        let Some(id) = self.id(generation)? else { return Ok(Progress::Pending) };
        self.bind()?;
        let communicator = Communicator::connect(&self.nccl, id, self.rank, self.config)?;
        let (_, communicator) = self.communicator.insert((generation, communicator));
        Ok(communicator.poll()?)
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
        Ok(self.open()?.poll()?)
    }

    fn abort(&mut self) -> Result<(), EdgeError> {
        match self.communicator.take() {
            Some((_, communicator)) => Ok(communicator.abort()?),
            None => Ok(()),
        }
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
        // One that cannot end in peace is aborted where the communicator is dropped.
        let _ = self.close_in_peace();
    }
}

#[cfg(test)]
mod tests;
