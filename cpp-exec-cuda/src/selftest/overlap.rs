//! How much of the time of a link is hidden behind compute.
//!
//! The first stage of a pipeline puts out chunks over a link that copies them to pinned memory of the host, which takes about as long as a network of
//! some 50 GB/s. Each copy is timed by events on its own stream. The same chunks without the link tell how long compute takes; what the whole
//! takes longer with it was not hidden.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cpp_exec_mock::cpu::Part;
use cpp_exec_mock::runtime::{Device, Started, Work};
use cpp_sched::BatchId;
use cudarc::driver::{CudaContext, CudaEvent, PinnedHostSlice, sys};

use super::SelftestError;
use super::shape::Shape;
use super::speed::push;
use crate::cuda::{CudaStage, DeviceAddress, EdgeEnd, EdgeError, Ends, Gpu, Progress, RawStream, Room, SendEnd, WeightSource};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    /// All copies together.
    pub(super) link: Duration,
    /// All chunks, without and with the link.
    pub(super) without: Duration,
    pub(super) with: Duration,
}

impl Overlap {
    /// The share of the link's time that took no time.
    pub(super) fn share(&self) -> f64 {
        let more = self.with.saturating_sub(self.without);
        (1.0 - more.as_secs_f64() / self.link.as_secs_f64().max(1e-12)).max(0.0)
    }
}

/// Beginnings and ends of copies.
type Times = Arc<Mutex<Vec<(CudaEvent, CudaEvent)>>>;

/// A link with one end: what is sent goes to the host and no further.
struct ToHost {
    context: Arc<CudaContext>,
    memory: Option<PinnedHostSlice<u16>>,
    times: Times,
}

impl std::fmt::Debug for ToHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ToHost({})", self.memory.is_some())
    }
}

impl EdgeEnd for ToHost {
    fn connect(&mut self, _: u64) -> Result<Progress, EdgeError> {
        Ok(Progress::Done)
    }

    #[allow(unsafe_code)]
    unsafe fn warm_up(&mut self, _: DeviceAddress, _: RawStream) -> Result<Progress, EdgeError> {
        Ok(Progress::Done)
    }

    fn poll(&mut self) -> Result<Progress, EdgeError> {
        Ok(Progress::Done)
    }

    fn abort(&mut self) -> Result<(), EdgeError> {
        Ok(())
    }
}

impl SendEnd for ToHost {
    #[allow(unsafe_code)]
    unsafe fn send(&mut self, _: usize, from: DeviceAddress, values: usize, stream: RawStream) -> Result<Progress, EdgeError> {
        let driver = |error| EdgeError::Driver { doing: "timing a link", error };
        let Some(memory) = &mut self.memory else { return Ok(Progress::Done) };
        let event = || self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
        let (begin, end) = (event()?, event()?);
        // The memory belongs to this stage's stream alone, which nobody waits for through it.
        let to = memory.as_mut_ptr().map_err(driver)?;
        // SAFETY: the caller's promise for `from` and `stream`; `to` has as many numbers as the largest batch, and lives as long as the stage.
        unsafe {
            sys::cuEventRecord(begin.cu_event(), stream).result().map_err(driver)?;
            sys::cuMemcpyDtoHAsync_v2(to.cast(), from, 2 * values.min(memory.len()), stream).result().map_err(driver)?;
            sys::cuEventRecord(end.cu_event(), stream).result().map_err(driver)?;
        }
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push((begin, end));
        Ok(Progress::Done)
    }
}

/// Runs a stage of a quarter of the layers over chunks of a prompt, with and without a link behind it.
pub(super) fn measure(gpu: &Arc<Gpu>, shape: &Shape) -> Result<Overlap, SelftestError> {
    let (without, _) = run(gpu, shape, false)?;
    let (with, link) = run(gpu, shape, true)?;
    Ok(Overlap { link, without, with })
}

fn run(gpu: &Arc<Gpu>, shape: &Shape, linked: bool) -> Result<(Duration, Duration), SelftestError> {
    let chunks = 2 * shape.chunks;
    let layers = (shape.model.num_layers / 4).max(1);
    let part = Part { stage: 0, stages: 2, layers: 0..layers };
    let room = Room { positions: chunks * shape.chunk, batches: 3, ..shape.room() };
    let kv = cpp_exec_mock::cpu::KvShape { num_blocks: (chunks * shape.chunk).div_ceil(Shape::BLOCK), ..shape.kv() };
    let context = Arc::clone(gpu.context());
    let numbers = shape.chunk as usize * shape.model.hidden_size;
    #[allow(unsafe_code)]
    // SAFETY: it is written before anybody reads it; nobody does.
    let memory = if linked { Some(unsafe { context.alloc_pinned_with_flags(numbers, 0) }?) } else { None };
    let times = Times::default();
    let end = ToHost { context, memory, times: Arc::clone(&times) };
    let ends = Ends { up: None, down: Some(Box::new(end)) };
    let mut stage = CudaStage::load_with(gpu, &shape.model, WeightSource::Random(1), &part, kv, room, ends, |_| ())?;
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        times.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let since = Instant::now();
        through(&mut stage, shape, chunks)?;
        took = since.elapsed();
    }
    // All of a stage's streams have run dry where it is dropped.
    drop(stage);
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let mut link = 0.0;
    for (begin, end) in &*times {
        link += f64::from(begin.elapsed_ms(end)?);
    }
    Ok((took, Duration::from_secs_f64(link / 1e3)))
}

/// All chunks, as many at once as the stage takes; until the last is through.
fn through(stage: &mut CudaStage, shape: &Shape, chunks: u32) -> Result<(), SelftestError> {
    let (mut started, mut finished) = (0, 0);
    while finished < chunks {
        if started < chunks {
            let mut work = Work::new(BatchId(started.into()));
            push(&mut work, 0, (started * shape.chunk, shape.chunk), 0, false);
            if stage.start(&work, &Vec::new(), &mut None, &mut Vec::new())? == Started::UnderWay {
                started += 1;
                continue;
            }
        }
        match stage.finished()? {
            Some(_) => finished += 1,
            None => std::thread::yield_now(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Overlap;
    use std::time::Duration;

    #[test]
    fn what_takes_longer_was_not_hidden() {
        let ms = Duration::from_millis;
        assert_eq!(Overlap { link: ms(10), without: ms(100), with: ms(101) }.share(), 0.9);
        assert_eq!(Overlap { link: ms(10), without: ms(100), with: ms(99) }.share(), 1.0);
        assert_eq!(Overlap { link: ms(10), without: ms(100), with: ms(130) }.share(), 0.0);
    }
}
