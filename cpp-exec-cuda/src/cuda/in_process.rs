//! An edge between two stages of one process: a copy within a device's memory, or from one device to another, ordered by events.
//!
//! The sender offers where a batch lies once its stream comes to it; the receiver takes the offer, copies on its own stream behind the sender's, and
//! the sender's stream waits for that copy. So what is sent is through when the receiver has it, as with NCCL.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::{CudaContext, DriverError, result};

use super::edge::{DeviceAddress, EdgeEnd, EdgeError, Progress, RawStream, ReceiveEnd, SendEnd};
use super::error::CudaError;
use super::gpu::Gpu;
use super::planted::is_due;
use super::stream::{Event, Stream};

/// An edge, before its stages are there: each takes its end, and another end when another stage takes its place.
#[derive(Clone, Debug)]
pub struct InProcessEdge(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The sender's device and the receiver's, which may be the same.
    from: Arc<CudaContext>,
    to: Arc<CudaContext>,
    /// The sender's stream has come to what it offers.
    offered: Event,
    /// The receiver's stream has copied it.
    taken: Event,
    state: Mutex<State>,
}

/// What both ends know.
#[derive(Debug, Default)]
struct State {
    sender: Side,
    receiver: Side,
    offer: Option<Offer>,
}

/// One end: which of those that were made, and for which generation it is ready.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    life: u64,
    generation: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    from: DeviceAddress,
    values: usize,
    taken: bool,
}

impl InProcessEdge {
    /// An edge between two stages on this device.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(gpu: &Gpu) -> Result<Self, CudaError> {
        Self::between(gpu, gpu)
    }

    /// An edge from a stage on one device to a stage on another. The driver copies directly where the devices reach each other, else through the host.
    ///
    /// # Errors
    /// The driver's.
    pub fn between(from: &Gpu, to: &Gpu) -> Result<Self, CudaError> {
        let (from, to) = (Arc::clone(from.context()), Arc::clone(to.context()));
        // An event is recorded on streams of its own device, and waited for by any.
        let (offered, taken) = (Event::new(&from)?, Event::new(&to)?);
        Ok(Self(Arc::new(Shared { from, to, offered, taken, state: Mutex::default() })))
    }

    /// The end of the earlier stage. One that was there before is of no more use.
    #[must_use]
    pub fn sender(&self) -> Box<dyn SendEnd> {
        let mut state = self.0.lock();
        state.sender = Side { life: state.sender.life + 1, generation: None };
        state.offer = None;
        Box::new(Sender { edge: Arc::clone(&self.0), life: state.sender.life, offering: None })
    }

    /// The end of the later stage. One that was there before is of no more use.
    #[must_use]
    pub fn receiver(&self) -> Box<dyn ReceiveEnd> {
        let mut state = self.0.lock();
        state.receiver = Side { life: state.receiver.life + 1, generation: None };
        Box::new(Receiver { edge: Arc::clone(&self.0), life: state.receiver.life, wanted: None })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an end is the newest of its side.
fn own(side: &mut Side, life: u64) -> Result<&mut Side, EdgeError> {
    if side.life == life { Ok(side) } else { Err(EdgeError::Rendezvous("another stage has taken this one's place".to_owned())) }
}

fn driver(doing: &'static str) -> impl Fn(DriverError) -> EdgeError {
    move |error| EdgeError::Driver { doing, error }
}

const SENDING: &str = "sending activations";
const RECEIVING: &str = "receiving activations";

#[derive(Debug)]
struct Sender {
    edge: Arc<Shared>,
    life: u64,
    /// The stream of what is offered and not known to be taken.
    offering: Option<Stream>,
}

impl EdgeEnd for Sender {
    fn connect(&mut self, generation: u64) -> Result<Progress, EdgeError> {
        let mut state = self.edge.lock();
        own(&mut state.sender, self.life)?.generation = Some(generation);
        // Before that, the other end would take what is meant for a later batch.
        Ok(if is_due(state.receiver.generation == Some(generation)) { Progress::Done } else { Progress::Pending })
    }

    #[allow(unsafe_code)]
    unsafe fn warm_up(&mut self, _: DeviceAddress, _: RawStream) -> Result<Progress, EdgeError> {
        // A copy within a device needs nothing.
        Ok(Progress::Done)
    }

    fn poll(&mut self) -> Result<Progress, EdgeError> {
        let mut state = self.edge.lock();
        own(&mut state.sender, self.life)?;
        let Some(stream) = &self.offering else { return Ok(Progress::Done) };
        if !state.offer.is_some_and(|offer| offer.taken) {
            return Ok(Progress::Pending);
        }
        stream.wait(&self.edge.taken).map_err(driver(SENDING))?;
        state.offer = None;
        self.offering = None;
        Ok(Progress::Done)
    }

    fn abort(&mut self) -> Result<(), EdgeError> {
        let taken = {
            let mut state = self.edge.lock();
            if let Ok(side) = own(&mut state.sender, self.life) {
                side.generation = None;
            }
            self.offering.take().and_then(|_| state.offer.take()).is_some_and(|offer| offer.taken)
        };
        // Nothing on this stage's streams waits for the copy yet, and it reads this stage's memory. It waits for nothing but kernels.
        while taken && !self.edge.taken.is_complete().map_err(driver(SENDING))? {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl SendEnd for Sender {
    #[allow(unsafe_code)]
    unsafe fn send(&mut self, _: usize, from: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError> {
        let mut state = self.edge.lock();
        own(&mut state.sender, self.life)?;
        if self.offering.is_some() || state.offer.is_some() {
            return Err(EdgeError::Misuse("a send while another one is not through"));
        }
        let stream = Stream::borrowed(&self.edge.from, stream);
        self.edge.offered.record(&stream).map_err(driver(SENDING))?;
        state.offer = Some(Offer { from, values, taken: false });
        self.offering = Some(stream);
        Ok(Progress::Pending)
    }
}

#[derive(Debug)]
struct Receiver {
    edge: Arc<Shared>,
    life: u64,
    /// Where what is due goes, and on which stream.
    wanted: Option<(DeviceAddress, usize, Stream)>,
}

impl EdgeEnd for Receiver {
    fn connect(&mut self, generation: u64) -> Result<Progress, EdgeError> {
        let mut state = self.edge.lock();
        own(&mut state.receiver, self.life)?.generation = Some(generation);
        // What is offered before that belongs to a batch that is lost.
        Ok(if is_due(state.sender.generation == Some(generation)) { Progress::Done } else { Progress::Pending })
    }

    #[allow(unsafe_code)]
    unsafe fn warm_up(&mut self, _: DeviceAddress, _: RawStream) -> Result<Progress, EdgeError> {
        Ok(Progress::Done)
    }

    fn poll(&mut self) -> Result<Progress, EdgeError> {
        let mut state = self.edge.lock();
        own(&mut state.receiver, self.life)?;
        let Some((into, expected, stream)) = &self.wanted else { return Ok(Progress::Done) };
        let Some(offer) = state.offer.as_mut().filter(|offer| !offer.taken) else { return Ok(Progress::Pending) };
        if offer.values != *expected {
            return Err(EdgeError::Size { expected: *expected, found: offer.values });
        }
        stream.wait(&self.edge.offered).map_err(driver(RECEIVING))?;
        let (from, to, bytes) = (&self.edge.from, &self.edge.to, 2 * offer.values);
        #[allow(unsafe_code)]
        // SAFETY: the sender's memory is not written before its stream has waited for `taken`, nor given back before it has aborted; the
        // receiver's is nobody else's until its own stream is past this. Both have so many values.
        unsafe {
            if from == to {
                result::memcpy_dtod_async(*into, offer.from, bytes, stream.raw())
            } else {
                result::memcpy_peer_async(to.cu_ctx(), *into, from.cu_ctx(), offer.from, bytes, stream.raw())
            }
        }
        .map_err(driver(RECEIVING))?;
        self.edge.taken.record(stream).map_err(driver(RECEIVING))?;
        offer.taken = true;
        self.wanted = None;
        Ok(Progress::Done)
    }

    fn abort(&mut self) -> Result<(), EdgeError> {
        self.wanted = None;
        let mut state = self.edge.lock();
        if let Ok(side) = own(&mut state.receiver, self.life) {
            side.generation = None;
        }
        Ok(())
    }
}

impl ReceiveEnd for Receiver {
    #[allow(unsafe_code)]
    unsafe fn receive(&mut self, _: usize, into: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError> {
        if self.wanted.is_some() {
            return Err(EdgeError::Misuse("a receive while another one is not through"));
        }
        self.wanted = Some((into, values, Stream::borrowed(&self.edge.to, stream)));
        self.poll()
    }
}
