//! Edges over the stand-in for NCCL, whose operations come to their streams late, between two threads of this process.
//!
//! Needs a driver or its stand-in, and NCCL_MULTI_RANK_GPU_ENABLE=1, since both ends are on one GPU: `bash .ci/run kernels` sets both.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};

use super::{EdgeError, LocalIntroduction, NcclEnd};
use crate::cuda::{EdgeEnd, Gpu, KernelCache, ReceiveEnd, SendEnd, standard_folders};
use crate::nccl::{EdgeConfig, Introduction, Nccl, NcclCode, Progress, Rank, UniqueId};

const PATIENCE: Duration = Duration::from_secs(20);

fn gpu() -> Option<(Arc<Gpu>, Nccl)> {
    let missing = |why: String| {
        assert!(std::env::var_os("CPP_CUDA_DEVICE").is_none(), "CPP_CUDA_DEVICE is set, so there must be one: {why}");
        println!("not tested: {why}");
    };
    if std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").as_deref() != Ok("1") {
        missing("NCCL_MULTI_RANK_GPU_ENABLE is not 1, so two ranks on one GPU are refused".into());
        return None;
    }
    let folders = standard_folders();
    let cache = KernelCache::at(std::env::temp_dir().join("cpp-run-test-kernels"));
    let gpu = Gpu::open(0, &folders, Some(&cache)).map_err(|error| missing(error.to_string())).ok()?;
    let nccl = Nccl::load_near(&folders).map_err(|error| missing(error.to_string())).ok()?;
    Some((gpu, nccl))
}

/// One end with a stream and memory, as a stage has them.
struct Stage {
    end: NcclEnd,
    stream: Arc<CudaStream>,
    memory: CudaSlice<u16>,
    numbers: usize,
}

impl Stage {
    fn new(gpu: &Gpu, end: NcclEnd, numbers: usize) -> Self {
        let stream = gpu.context().new_stream().unwrap();
        let memory = stream.alloc_zeros(numbers).unwrap();
        stream.synchronize().unwrap();
        Self { end, stream, memory, numbers }
    }

    fn until_done(&mut self, mut step: impl FnMut(&mut NcclEnd) -> Result<Progress, EdgeError>) -> Result<(), EdgeError> {
        let until = Instant::now() + PATIENCE;
        while step(&mut self.end)? == Progress::Pending {
            assert!(Instant::now() < until, "it does not get through");
            thread::yield_now();
        }
        Ok(())
    }

    fn connect(&mut self, generation: u64) -> Result<(), EdgeError> {
        self.until_done(|end| end.connect(generation))?;
        let address = self.memory.device_ptr(&self.stream).0;
        #[allow(unsafe_code)]
        // SAFETY: the memory lives as long as the stage, and nothing else uses it.
        let _ = unsafe { self.end.warm_up(address, self.stream.cu_stream())? };
        self.until_done(EdgeEnd::poll)?;
        self.stream.synchronize().unwrap();
        Ok(())
    }

    fn write(&mut self, first: u16) {
        let numbers: Vec<u16> = (0..self.numbers as u16).map(|i| first.wrapping_add(i)).collect();
        self.stream.memcpy_htod(&numbers, &mut self.memory).unwrap();
        self.stream.synchronize().unwrap();
    }

    fn read(&self) -> Vec<u16> {
        // On a stream of its own: nothing that the edge's stream still has to do is waited for.
        let stream = self.stream.context().new_stream().unwrap();
        let mut numbers = vec![0; self.numbers];
        stream.memcpy_dtoh(&self.memory, &mut numbers).unwrap();
        stream.synchronize().unwrap();
        numbers
    }

    fn send(&mut self, values: usize) -> Result<Progress, EdgeError> {
        let address = self.memory.device_ptr(&self.stream).0;
        #[allow(unsafe_code)]
        // SAFETY: the memory lives as long as the stage, and is written after the stream was waited for.
        unsafe {
            self.end.send(0, address, values, self.stream.cu_stream())
        }
    }

    fn receive(&mut self, values: usize) -> Result<Progress, EdgeError> {
        let address = self.memory.device_ptr_mut(&self.stream).0;
        #[allow(unsafe_code)]
        // SAFETY: the memory lives as long as the stage, and is read after the event.
        unsafe {
            self.end.receive(0, address, values, self.stream.cu_stream())
        }
    }

    fn event(&self) -> CudaEvent {
        self.stream.record_event(None).unwrap()
    }
}

fn pair(gpu: &Gpu, nccl: Nccl, numbers: usize) -> (Stage, Stage) {
    let introduction = LocalIntroduction::default();
    let end = |rank| NcclEnd::new(nccl, rank, EdgeConfig::default(), gpu, introduction.clone());
    (Stage::new(gpu, end(Rank::Upstream), numbers), Stage::new(gpu, end(Rank::Downstream), numbers))
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Its memory goes behind this, on whatever thread it is.
        let _ = self.stream.context().bind_to_thread();
    }
}

/// Both ends at once.
fn both<A: Send>(up: impl FnOnce() -> A + Send, down: impl FnOnce()) -> A {
    thread::scope(|scope| {
        let up = scope.spawn(up);
        down();
        up.join().unwrap()
    })
}

#[test]
fn values_come_over_in_order_and_events_behind_them_mean_it() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 5_000);
    let sizes: Vec<usize> = (0..30).map(|i| if i % 7 == 3 { 0 } else { i * 167 + 1 }).collect();
    both(
        || {
            up.connect(0).unwrap();
            for (batch, &values) in (0..).zip(&sizes) {
                up.write(batch);
                let _ = up.send(values).unwrap();
                up.until_done(EdgeEnd::poll).unwrap();
                up.event().synchronize().unwrap();
            }
        },
        || {
            down.connect(0).unwrap();
            for (batch, &values) in (0..).zip(&sizes) {
                let _ = down.receive(values).unwrap();
                down.until_done(EdgeEnd::poll).unwrap();
                down.event().synchronize().unwrap();
                let expected: Vec<u16> = (0..values as u16).map(|i| i.wrapping_add(batch)).collect();
                assert_eq!(down.read()[..values], expected);
            }
        },
    );
    // In peace: neither waits for long, since nothing is under way.
    let since = Instant::now();
    both(|| drop(up), || drop(down));
    assert!(since.elapsed() < PATIENCE);
}

/// A run may end while its last batch is on its way: that comes over all the same, and nobody is told of a failure.
#[test]
fn what_was_sent_before_both_ends_close_still_comes() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 100);
    for generation in 0..8 {
        let first = 300 + generation as u16;
        both(
            || {
                up.connect(generation).unwrap();
                up.write(first);
                let _ = up.send(100).unwrap();
                up.end.close().unwrap();
            },
            || {
                down.connect(generation).unwrap();
                let _ = down.receive(100).unwrap();
                down.end.close().unwrap();
                down.stream.synchronize().unwrap();
                assert_eq!(down.read()[0], first);
            },
        );
    }
}

/// An id that could not be told is that of its generation alone.
#[test]
fn a_new_generation_has_an_id_of_its_own() {
    #[derive(Clone, Debug, Default)]
    struct Closed(Arc<Mutex<Vec<(u64, UniqueId)>>>);
    impl Introduction for Closed {
        fn tell(&mut self, generation: u64, id: UniqueId) -> Result<(), String> {
            self.0.lock().unwrap().push((generation, id));
            Err("there is no way yet".to_owned())
        }
        fn hear(&mut self, _: u64) -> Result<Option<UniqueId>, String> {
            Ok(None)
        }
    }
    let Some((gpu, nccl)) = gpu() else { return };
    let closed = Closed::default();
    let mut end = NcclEnd::new(nccl, Rank::Upstream, EdgeConfig::default(), &gpu, closed.clone());
    for generation in [0, 0, 1] {
        assert_eq!(end.connect(generation).unwrap(), Progress::Pending);
    }
    let told = closed.0.lock().unwrap();
    assert!(told[0] == told[1] && told[2].0 == 1 && told[2].1 != told[0].1, "the same id again, then another");
}

/// Why an edge is polled before an event is recorded behind it: without that, the event means nothing.
#[test]
fn an_event_that_is_recorded_before_the_poll_comes_too_early() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 100);
    let early = 40;
    let mut wrong = 0;
    both(
        || {
            up.connect(0).unwrap();
            for batch in 0..early {
                up.write(1000 + batch);
                let _ = up.send(100).unwrap();
                up.until_done(EdgeEnd::poll).unwrap();
                up.stream.synchronize().unwrap();
            }
        },
        || {
            down.connect(0).unwrap();
            for batch in 0..early {
                let _ = down.receive(100).unwrap();
                down.event().synchronize().unwrap();
                wrong += u32::from(down.read()[0] != 1000 + batch);
                down.until_done(EdgeEnd::poll).unwrap();
                down.stream.synchronize().unwrap();
                assert_eq!(down.read()[0], 1000 + batch, "behind the poll it is there");
            }
        },
    );
    println!("{wrong} of {early} times the event came before the values");
    assert!(wrong > 0, "the stand-in shows a missing poll");
}

#[test]
fn calls_before_the_last_is_through_are_refused_and_change_nothing() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 100);
    assert!(matches!(up.send(1), Err(EdgeError::Misuse(_))));
    let early = both(
        || {
            up.connect(0).unwrap();
            up.write(5);
            let _ = up.send(100).unwrap();
            // It may be through by now; if not, the second call is refused.
            let early = up.send(100);
            up.until_done(EdgeEnd::poll).unwrap();
            early
        },
        || {
            down.connect(0).unwrap();
            let _ = down.receive(100).unwrap();
            down.until_done(EdgeEnd::poll).unwrap();
            down.stream.synchronize().unwrap();
            assert_eq!(down.read()[0], 5);
        },
    );
    assert!(matches!(early, Err(EdgeError::Nccl(error)) if error.code == NcclCode::Usage));
    assert!(matches!(up.end.connect(1), Err(EdgeError::Misuse(_))));
}

#[test]
fn a_receive_whose_peer_is_gone_ends_with_the_abort_and_new_ids_make_a_new_edge() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 100);
    for generation in [0, 3] {
        both(
            || {
                up.connect(generation).unwrap();
                up.write(7);
                let _ = up.send(100).unwrap();
                up.until_done(EdgeEnd::poll).unwrap();
                up.stream.synchronize().unwrap();
                // It dies: nobody is told.
                up.end.abort().unwrap();
                up.end.abort().unwrap();
            },
            || {
                down.connect(generation).unwrap();
                let _ = down.receive(100).unwrap();
                down.until_done(EdgeEnd::poll).unwrap();
                down.stream.synchronize().unwrap();
                assert_eq!(down.read()[0], 7);
                let _ = down.receive(100).unwrap();
                down.until_done(EdgeEnd::poll).unwrap();
                let event = down.event();
                thread::sleep(Duration::from_millis(30));
                assert!(!event.is_complete(), "nobody sends");
                assert!(down.end.poll().is_ok(), "and nobody says so");
                let since = Instant::now();
                down.end.abort().unwrap();
                event.synchronize().unwrap();
                assert!(since.elapsed() < PATIENCE, "the stream goes on after the abort");
            },
        );
    }
}

#[test]
fn sizes_that_differ_are_an_error_on_both_sides() {
    let Some((gpu, nccl)) = gpu() else { return };
    let (mut up, mut down) = pair(&gpu, nccl, 100);
    let wait = |stage: &mut Stage| {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Err(error) = stage.end.poll() {
                return error.to_string();
            }
            assert!(Instant::now() < until, "no error comes");
            thread::sleep(Duration::from_millis(1));
        }
    };
    let mut told = String::new();
    let said = both(
        || {
            up.connect(0).unwrap();
            let _ = up.send(100).unwrap();
            let said = wait(&mut up);
            up.end.abort().unwrap();
            said
        },
        || {
            down.connect(0).unwrap();
            let _ = down.receive(99).unwrap();
            // The receiver waits for what does not come: its abort is another's business.
            thread::sleep(Duration::from_millis(50));
            down.end.abort().unwrap();
            told.push_str("aborted");
        },
    );
    assert!(said.contains("200 bytes are sent, 198 received") && told == "aborted", "{said}");
}

#[test]
fn an_end_whose_peer_never_comes_gives_up_and_can_try_again() {
    let Some((gpu, nccl)) = gpu() else { return };
    let introduction = LocalIntroduction::default();
    let end = |rank| NcclEnd::new(nccl, rank, EdgeConfig::default(), &gpu, introduction.clone()).with_patience(Duration::from_millis(50));
    for rank in [Rank::Upstream, Rank::Downstream] {
        let mut end = end(rank);
        for generation in [1, 2] {
            let since = Instant::now();
            let error = loop {
                match end.connect(generation) {
                    Ok(Progress::Pending) => assert!(since.elapsed() < PATIENCE, "it waits for ever"),
                    Ok(Progress::Done) => panic!("there is nobody"),
                    Err(error) => break error,
                }
                thread::sleep(Duration::from_millis(1));
            };
            assert!(matches!(&error, EdgeError::Rendezvous(text) if text.ends_with("took longer than 0 s")), "{error}");
            end.abort().unwrap();
        }
        // The ids that the first end has told are nobody's any more.
        while introduction.clone().hear(1).unwrap().is_some() || introduction.clone().hear(2).unwrap().is_some() {}
    }
}

#[test]
fn ids_of_other_generations_are_not_taken() {
    let mut introduction = LocalIntroduction::default();
    let id = |byte: u8| UniqueId::from_bytes([byte; 128]);
    assert_eq!(introduction.hear(2), Ok(None));
    for (generation, byte) in [(0, 10), (1, 11), (2, 12), (5, 15)] {
        introduction.tell(generation, id(byte)).unwrap();
    }
    assert_eq!(introduction.hear(2), Ok(Some(id(12))), "older ones are thrown away");
    assert_eq!(introduction.hear(3), Ok(None), "one that is early stays");
    assert_eq!(introduction.hear(5), Ok(Some(id(15))));
}
