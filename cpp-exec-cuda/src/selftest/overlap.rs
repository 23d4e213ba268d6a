//! How much of the time of a link is hidden behind compute.
//!
//! A stage of one layer, so that compute is not so much more than the link that its own variations hide everything, puts out chunks over a link that copies
//! them to pinned memory of the host, which takes about as long as a network of some 50 GB/s: the stand-in for one, since two ranks of NCCL on one
//! GPU take turns. Each copy is timed by events on its own stream. Passes with the link and without take turns too; the least of each but the first
//! counts, and what it takes longer with the link was not hidden. A chunk's copy can hide behind the next chunk, so the last one's is not counted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cpp_exec_mock::cpu::{KvShape, Part};
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
    /// All copies together but the last.
    pub(super) link: Duration,
    /// All chunks, without and with the link; the least of several times.
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

/// A link with one end: what is sent goes to the host and no further, or nowhere.
struct ToHost {
    context: Arc<CudaContext>,
    memory: PinnedHostSlice<u16>,
    connected: Arc<AtomicBool>,
    times: Times,
}

impl std::fmt::Debug for ToHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ToHost({:?})", self.connected)
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
        if !self.connected.load(Ordering::Relaxed) {
            return Ok(Progress::Done);
        }
        let event = || self.context.new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
        let (begin, end) = (event()?, event()?);
        // The memory belongs to this stage's stream alone, which nobody waits for through it.
        let most = self.memory.len();
        let to = self.memory.as_mut_ptr().map_err(driver)?;
        // SAFETY: the caller's promise for `from` and `stream`; `to` has as many numbers as the largest batch, and lives as long as the stage.
        unsafe {
            sys::cuEventRecord(begin.cu_event(), stream).result().map_err(driver)?;
            sys::cuMemcpyDtoHAsync_v2(to.cast(), from, 2 * values.min(most), stream).result().map_err(driver)?;
            sys::cuEventRecord(end.cu_event(), stream).result().map_err(driver)?;
        }
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push((begin, end));
        Ok(Progress::Done)
    }
}

/// Passes of each kind; the first does not count.
const PASSES: usize = 6;

/// Runs a stage of one layer over chunks of prompts, with and without a link behind it.
pub(super) fn measure(gpu: &Arc<Gpu>, shape: &Shape) -> Result<Overlap, SelftestError> {
    let context = Arc::clone(gpu.context());
    let part = Part { stage: 0, stages: 2, layers: 0..1 };
    let room = Room { positions: shape.chunk, batches: 3, ..shape.room() };
    let kv = KvShape { num_blocks: shape.chunk.div_ceil(Shape::BLOCK), ..shape.kv() };
    let numbers = shape.chunk as usize * shape.model.hidden_size;
    #[allow(unsafe_code)]
    // SAFETY: it is written before anybody reads it; nobody does.
    let memory = unsafe { context.alloc_pinned_with_flags(numbers, 0) }?;
    let (times, connected) = (Times::default(), Arc::new(AtomicBool::new(false)));
    let end = ToHost { context: Arc::clone(&context), memory, connected: Arc::clone(&connected), times: Arc::clone(&times) };
    let ends = Ends { up: None, down: Some(Box::new(end)) };
    let mut stage = CudaStage::load_with(gpu, &shape.model, WeightSource::Random(1), &part, kv, room, ends, |_| ())?;
    let chunks = 2 * shape.chunks;
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        connected.store(false, Ordering::Relaxed);
        without.push(through(&mut stage, shape, chunks)?);
        connected.store(true, Ordering::Relaxed);
        times.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let took = through(&mut stage, shape, chunks)?;
        // The last copy is still under way, and is none of the next pass.
        context.synchronize()?;
        let times = times.lock().unwrap_or_else(PoisonError::into_inner);
        let mut link = 0.0;
        for (begin, end) in times.iter().rev().skip(1) {
            link += f64::from(begin.elapsed_ms(end)?);
        }
        with.push((took, Duration::from_secs_f64(link / 1e3)));
    }
    let least = |took: Option<Duration>| took.ok_or_else(|| SelftestError::Other("there was no second pass".to_owned()));
    let without = least(without.into_iter().skip(1).min())?;
    let (with, link) = with.into_iter().skip(1).min().unwrap_or_default();
    Ok(Overlap { link, without, with })
}

/// The time of all chunks, as many at once as the stage takes, until the last is computed. Each begins a prompt, so that all are alike.
fn through(stage: &mut CudaStage, shape: &Shape, chunks: u32) -> Result<Duration, SelftestError> {
    let (mut started, mut finished) = (0, 0);
    let since = Instant::now();
    while finished < chunks {
        if started < chunks {
            let mut work = Work::new(BatchId(started.into()));
            push(&mut work, 0, (0, shape.chunk), 0, false);
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
    Ok(since.elapsed())
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
