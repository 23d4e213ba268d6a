//! Streams, events and pinned memory: what orders a batch on a device.
//!
//! Everything that puts one thing behind another goes through here, and each call knows where it stands ([`planted`]): tests leave
//! out one at a time and see whether it is missed.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DeviceRepr, DriverError, ValidAsZeroBits, result};

use super::blas::bind_to_drop;
use super::edge::{DeviceAddress, RawStream};
use super::error::{CudaError, Doing};
use super::planted;

/// A stream: what is put on it runs in order.
#[derive(Clone, Debug)]
pub(super) struct Stream(Arc<CudaStream>);

/// A place on a stream: that of its last record.
#[derive(Debug)]
pub(super) struct Event(CudaEvent);

/// Which streams go first where the device must choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// Kernels.
    Usual,
    /// What neighbours wait for.
    Highest,
}

impl Stream {
    /// A stream. At start only.
    pub(super) fn new(context: &Arc<CudaContext>, priority: Priority) -> Result<Self, CudaError> {
        context.bind_to_thread().doing("making a stream")?;
        let stream = match priority {
            Priority::Usual => context.new_stream(),
            Priority::Highest => result::stream::get_priority_range().and_then(|(_, highest)| context.new_stream_with_priority(highest)),
        };
        stream.doing("making a stream").map(Self)
    }

    /// Somebody else's stream, who keeps it alive.
    pub(super) fn borrowed(context: &Arc<CudaContext>, stream: RawStream) -> Self {
        #[allow(unsafe_code)]
        // SAFETY: the ends of an edge get it from a stage, which keeps its streams until it has aborted its edges (`edge::EdgeEnd`).
        Self(unsafe { context.wrap_borrowed_stream(stream) })
    }

    pub(super) const fn inner(&self) -> &Arc<CudaStream> {
        &self.0
    }

    pub(super) fn raw(&self) -> RawStream {
        self.0.cu_stream()
    }

    /// What is put here from now on waits until the event's place is reached.
    #[track_caller]
    pub(super) fn wait(&self, event: &Event) -> Result<(), DriverError> {
        if planted::left_out() { Ok(()) } else { self.0.wait(&event.0) }
    }

    /// Copies the first numbers of pinned memory to the device.
    pub(super) fn copy_in<T: DeviceRepr>(&self, from: &Pinned<T>, numbers: usize, to: DeviceAddress) -> Result<(), CudaError> {
        if numbers == 0 {
            return Ok(());
        }
        self.0.context().bind_to_thread().doing("copying a batch to the device")?;
        #[allow(unsafe_code)]
        // SAFETY: the pinned memory is a slot's, which is not used for another batch before this one is through (`Stage::free`); `to` is
        // memory of the same slot with as much room.
        unsafe { result::memcpy_htod_async(to, &from.as_slice()[..numbers], self.0.cu_stream()) }.doing("copying a batch to the device")
    }

    /// Copies numbers from the device to a place in pinned memory.
    pub(super) fn copy_out<T: DeviceRepr>(
        &self,
        from: DeviceAddress,
        to: &mut Pinned<T>,
        place: usize,
        numbers: usize,
    ) -> Result<(), CudaError> {
        if numbers == 0 {
            return Ok(());
        }
        self.0.context().bind_to_thread().doing("copying results from the device")?;
        #[allow(unsafe_code)]
        // SAFETY: as `copy_in`; it is read when the event behind the copy has been seen.
        unsafe { result::memcpy_dtoh_async(&mut to.as_mut_slice()[place..place + numbers], from, self.0.cu_stream()) }
            .doing("copying results from the device")
    }
}

impl Event {
    /// An event that was never recorded counts as reached. At start only.
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        context.new_event(None).doing("making an event").map(Self)
    }

    /// From now on it stands for everything that is on the stream.
    #[track_caller]
    pub(super) fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        if planted::left_out() { Ok(()) } else { self.0.record(&stream.0) }
    }

    /// Whether its place is reached. Never waits; tells of anything that has gone wrong on the device.
    #[track_caller]
    pub(super) fn is_complete(&self) -> Result<bool, DriverError> {
        if planted::left_out() { Ok(true) } else { self.0.try_is_complete() }
    }
}

/// Memory of the host that the device copies from and to while the host does something else.
pub(super) struct Pinned<T> {
    first: *mut T,
    numbers: usize,
    context: Arc<CudaContext>,
}

impl<T> fmt::Debug for Pinned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}

#[allow(unsafe_code)]
// SAFETY: it owns its memory, which any thread may use.
unsafe impl<T: Send> Send for Pinned<T> {}

impl<T: DeviceRepr + ValidAsZeroBits> Pinned<T> {
    /// Memory of zeros. At start only. Not write-combined, since the host reads results from it.
    pub(super) fn zeros(context: &Arc<CudaContext>, numbers: usize) -> Result<Self, CudaError> {
        let numbers = numbers.max(1);
        context.bind_to_thread().doing("reserving pinned memory")?;
        #[allow(unsafe_code)]
        // SAFETY: it is written before it is read.
        let first = unsafe { result::malloc_host(numbers * size_of::<T>(), 0) }.doing("reserving pinned memory")?.cast::<T>();
        #[allow(unsafe_code)]
        // SAFETY: the driver has given so many bytes; zeros are a value of `T`.
        unsafe {
            first.write_bytes(0, numbers);
        }
        Ok(Self { first, numbers, context: Arc::clone(context) })
    }
}

impl<T> Pinned<T> {
    /// What it holds. Whoever reads results has seen the event behind their copy.
    pub(super) const fn as_slice(&self) -> &[T] {
        #[allow(unsafe_code)]
        // SAFETY: so many numbers, initialised, and freed with `self` alone. That no copy of the device writes to them meanwhile is what events
        // are for: the stage reads what a slot holds when its event is complete.
        unsafe {
            std::slice::from_raw_parts(self.first, self.numbers)
        }
    }

    /// The same, to be written: no copy of the device may be under way.
    pub(super) const fn as_mut_slice(&mut self) -> &mut [T] {
        #[allow(unsafe_code)]
        // SAFETY: as `as_slice`.
        unsafe {
            std::slice::from_raw_parts_mut(self.first, self.numbers)
        }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        // Nobody is left to be told.
        bind_to_drop(&self.context);
        #[allow(unsafe_code)]
        // SAFETY: from `malloc_host`, freed once; the stage has seen to it that no copy is under way (`Stage::drain`).
        let _ = unsafe { result::free_host(self.first.cast()) };
    }
}
