//! An edge on the device and a stage at one end of it, by hand: what each may do before the other has done its part.
//!
//! See `cuda_device.rs` for what it runs on. `emulation/faults.py` runs these with one wait or check left out at a time.
#![cfg(all(feature = "cuda", unix))]
#![allow(unsafe_code, reason = "ends take addresses of the device")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpp_exec_cuda::cuda::{CudaStage, EdgeError, Ends, Gpu, InProcessEdge, KernelCache, Progress, Room, standard_folders};
use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{Device, Started, Work};
use cpp_sched::{BatchId, BlockId, RequestId};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr};

use support::fake::{Fake, take_turns};
use support::world::smallest;
use support::{KV, Model, gpu};

/// Leaves out what `emulation/faults.py` says, until the test ends.
struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        #[cfg(feature = "planted-faults")]
        cpp_exec_cuda::cuda::plant_fault(None);
    }
}

impl Planted {
    fn new() -> Self {
        #[cfg(feature = "planted-faults")]
        if let Ok(place) = std::env::var("CPP_PLANTED_FAULT") {
            assert!(cpp_exec_cuda::cuda::plant_fault(Some(&place)), "CPP_PLANTED_FAULT is file:line");
        }
        Self
    }
}

fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("CPP_STREAM_SEEDS").ok();
    let parsed = given.as_deref().map(|text| text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?)));
    parsed.map_or(1..5, |seeds| seeds.expect("CPP_STREAM_SEEDS is A..B"))
}

fn address<T>(memory: &CudaSlice<T>, stream: &Arc<CudaStream>) -> u64 {
    memory.device_ptr(stream).0
}

#[test]
fn ends_of_an_edge_meet_in_one_generation() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let _planted = Planted::new();
    let edge = InProcessEdge::new(&gpu).unwrap();
    let (mut sender, mut receiver) = (edge.sender(), edge.receiver());
    assert_eq!(sender.connect(0).unwrap(), Progress::Pending);
    assert_eq!(receiver.connect(0).unwrap(), Progress::Done);
    assert_eq!(sender.connect(0).unwrap(), Progress::Done);
    // One of them has been told of an abort.
    sender.abort().unwrap();
    assert_eq!(sender.connect(1).unwrap(), Progress::Pending);
    receiver.abort().unwrap();
    assert_eq!(sender.connect(1).unwrap(), Progress::Pending);
    assert_eq!(receiver.connect(1).unwrap(), Progress::Done);
    receiver.abort().unwrap();
    assert_eq!(receiver.connect(2).unwrap(), Progress::Pending);
    assert_eq!(sender.connect(2).unwrap(), Progress::Done);
    // Another stage takes the receiver's place.
    let mut other = edge.receiver();
    assert!(matches!(receiver.connect(3), Err(EdgeError::Rendezvous(_))));
    assert_eq!(sender.connect(3).unwrap(), Progress::Pending);
    assert_eq!(other.connect(3).unwrap(), Progress::Done);
}

/// A sender's and a receiver's memory, and their streams.
struct Two {
    streams: [Arc<CudaStream>; 2],
    memory: [CudaSlice<u16>; 2],
}

impl Two {
    fn new(context: &Arc<CudaContext>) -> Self {
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        let memory = [0, 1].map(|end: usize| {
            let numbers = [end as u16 + 7; 4096];
            let memory = streams[end].clone_htod(&numbers).unwrap();
            streams[end].synchronize().unwrap();
            memory
        });
        Self { streams, memory }
    }

    fn at(&self, end: usize) -> u64 {
        address(&self.memory[end], &self.streams[end])
    }
}

#[test]
fn what_is_sent_is_the_receivers_when_an_end_says_so_and_the_senders_again_then() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the test orders everything itself.
    unsafe { context.disable_event_tracking() };
    for seed in seeds() {
        if let Some(fake) = Fake::find() {
            fake.seed(seed);
        }
        for round in 0..12u16 {
            let mut two = Two::new(&context);
            let _planted = Planted::new();
            let edge = InProcessEdge::new(&gpu).unwrap();
            let (mut sender, mut receiver) = (edge.sender(), edge.receiver());
            let _ = (sender.connect(0).unwrap(), receiver.connect(0).unwrap(), sender.connect(0).unwrap());
            let (from, into) = (two.at(0), two.at(1));
            let [out, back] = two.streams.clone();
            // What the sender's stream makes of its memory before it sends it.
            // Memory that lives until the streams have been waited for: the device may read it until then.
            let numbers = [100 + round; 4096];
            out.memcpy_htod(&numbers, &mut two.memory[0]).unwrap();
            // SAFETY: both ends have 4096 values until the test has waited for both streams.
            unsafe {
                assert_eq!(sender.send(0, from, 4096, out.cu_stream()).unwrap(), Progress::Pending);
                assert!(matches!(sender.send(1, from, 4096, out.cu_stream()), Err(EdgeError::Misuse(_))));
                assert_eq!(sender.poll().unwrap(), Progress::Pending);
                assert_eq!(receiver.receive(0, into, 4096, back.cu_stream()).unwrap(), Progress::Done);
            }
            if round % 2 == 0 {
                // The stream that sends is behind the copy: the memory may be written again.
                assert_eq!(sender.poll().unwrap(), Progress::Done);
                out.memcpy_htod(&[1; 4096], &mut two.memory[0]).unwrap();
            } else {
                // An end that is aborted has nothing under way: any stream may write the memory.
                sender.abort().unwrap();
                let third = context.new_stream().unwrap();
                third.memcpy_htod(&[2; 4096], &mut two.memory[0]).unwrap();
                third.synchronize().unwrap();
            }
            let mut received = vec![0; 4096];
            back.memcpy_dtoh(&two.memory[1], &mut received).unwrap();
            back.synchronize().unwrap();
            out.synchronize().unwrap();
            assert!(received.iter().all(|value| *value == 100 + round), "seed {seed}, round {round}: {:?}", &received[..4]);
        }
        println!("seed {seed}: as sent");
    }
}

/// Stages that are threads of one process, each with a GPU of its own.
#[test]
fn activations_go_from_one_gpu_to_another() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let fake = Fake::find();
    if let Some(fake) = &fake {
        fake.gpus(2);
    }
    let cache = KernelCache::at(std::env::temp_dir().join("cpp-run-test-kernels"));
    let Ok(other) = Gpu::open(1, &standard_folders(), Some(&cache)) else {
        println!("not tested: there is one GPU");
        return;
    };
    let model = Model::new("two-gpus", smallest(4));
    let room = Room { positions: 60, tokens: 40, rows: 4, batches: 1 };
    let peers = || fake.as_ref().map_or(0, |fake| fake.count(c"peer"));
    for (from, to, copies) in [(&gpu, &other, 4), (&other, &gpu, 4), (&other, &other, 0)] {
        let before = peers();
        let edges = [InProcessEdge::between(from, to).unwrap()];
        let load = |gpu: &Arc<Gpu>, stage: usize| {
            let (config, part) = (model.tiny.config(), model.part(stage, 2));
            CudaStage::load_with(gpu, &config, &model.weights, &part, KV, room, Ends::of(&edges, stage), |_| ()).unwrap()
        };
        let (mut stages, mut alone) = ([load(from, 0), load(to, 1)], model.cuda(&gpu, 0, 1));
        for number in 0..4u32 {
            let tokens: Vec<u32> = (0..20).map(|i| (i * 7 + number * 11) % 64).collect();
            let mut work = Work::new(BatchId(number.into()));
            work.push(RequestId(0), 0, &tokens, 0, &[BlockId(1), BlockId(2)], Some(Sampling::default()));
            let mut expected = Vec::new();
            alone.run(&work, &Vec::new(), &mut Vec::new(), &mut expected).unwrap();
            let (mut started, mut said) = ([false; 2], None);
            let until = Instant::now() + Duration::from_secs(20);
            while said.is_none() {
                assert!(Instant::now() < until, "batch {number} does not come through");
                for (stage, started) in stages.iter_mut().zip(&mut started) {
                    if !*started {
                        *started = stage.start(&work, &Vec::new(), &mut None, &mut Vec::new()).unwrap() == Started::UnderWay;
                    }
                }
                let _ = stages[0].finished().unwrap();
                said = stages[1].finished().unwrap();
            }
            assert_eq!(said.unwrap().samples, expected, "batch {number}");
        }
        assert!(fake.is_none() || peers() - before == copies, "{} copies between GPUs", peers() - before);
    }
    if let Some(fake) = &fake {
        fake.gpus(1);
    }
}

#[test]
fn a_size_that_is_not_due_is_refused() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let context = CudaContext::new(0).unwrap();
    let two = Two::new(&context);
    let edge = InProcessEdge::new(&gpu).unwrap();
    let (mut sender, mut receiver) = (edge.sender(), edge.receiver());
    let _ = (sender.connect(0).unwrap(), receiver.connect(0).unwrap());
    // SAFETY: the memory has that many values, and nothing is copied.
    unsafe {
        let _ = sender.send(0, two.at(0), 32, two.streams[0].cu_stream()).unwrap();
        let error = receiver.receive(0, two.at(1), 64, two.streams[1].cu_stream()).unwrap_err();
        assert!(matches!(error, EdgeError::Size { expected: 64, found: 32 }), "{error}");
    }
}

#[test]
fn a_stage_is_through_with_a_batch_when_its_layers_have_run() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let Some(fake) = Fake::find() else {
        println!("not tested: the stand-in for the driver counts what has run");
        return;
    };
    let model = Model::new("through", smallest(4));
    let room = Room { positions: 60, tokens: 40, rows: 4, batches: 1 };
    for seed in seeds() {
        fake.seed(seed);
        let edge = InProcessEdge::new(&gpu).unwrap();
        let ends = Ends { up: None, down: Some(edge.sender()) };
        let mut stage =
            CudaStage::load_with(&gpu, &model.tiny.config(), &model.weights, &model.part(0, 2), KV, room, ends, |_| ()).unwrap();
        let _planted = Planted::new();
        stage.reset(0).unwrap();
        let mut receiver = edge.receiver();
        for number in 0..3 {
            let mut work = Work::new(BatchId(number));
            work.push(RequestId(0), 0, &[3; 30], 0, &[BlockId(1), BlockId(2)], None);
            let (mut output, mut samples) = (None, Vec::new());
            let until = Instant::now() + Duration::from_secs(10);
            while stage.start(&work, &Vec::new(), &mut output, &mut samples).unwrap() == Started::Full {
                let _ = receiver.connect(0).unwrap();
                assert!(Instant::now() < until && number < 2, "there is no room for batch {number}");
            }
            assert_eq!(output, Some(Vec::new()), "a header");
            let due = fake.count(c"launch");
            let finished = loop {
                if let Some(finished) = stage.finished().unwrap() {
                    break finished;
                }
                assert!(Instant::now() < until);
            };
            assert_eq!(fake.count(c"ran"), due, "seed {seed}: batch {number} is through before its layers have run");
            assert_eq!((finished.batch, finished.output), (BatchId(number), None));
            if number == 1 {
                // Two slots, and nobody has received anything: there is no room for a third.
                work.batch = BatchId(2);
                assert_eq!(stage.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::Full);
                break;
            }
        }
        println!("seed {seed}: through in time");
    }
}

#[test]
fn a_batch_that_has_not_come_is_not_through() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let model = Model::new("not-come", smallest(3));
    let room = Room { positions: 60, tokens: 40, rows: 4, batches: 1 };
    let (before, behind) = (InProcessEdge::new(&gpu).unwrap(), InProcessEdge::new(&gpu).unwrap());
    let ends = Ends { up: Some(before.receiver()), down: Some(behind.sender()) };
    let mut stage = CudaStage::load_with(&gpu, &model.tiny.config(), &model.weights, &model.part(1, 3), KV, room, ends, |_| ()).unwrap();
    let _planted = Planted::new();
    stage.reset(0).unwrap();
    assert!(stage.is_busy(), "nobody is at the other ends");
    let (mut sender, mut receiver) = (before.sender(), behind.receiver());
    let mut work = Work::new(BatchId(0));
    work.push(RequestId(0), 0, &[3; 9], 0, &[BlockId(1)], None);
    let (mut output, mut samples) = (None, Vec::new());
    assert_eq!(stage.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::Full);
    let _ = (sender.connect(0).unwrap(), receiver.connect(0).unwrap());
    assert_eq!(stage.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::UnderWay);
    assert!(!stage.is_busy());
    for _ in 0..50 {
        assert_eq!(stage.finished().unwrap(), None);
        std::thread::sleep(Duration::from_micros(200));
    }
    // It is forgotten, whoever waits for it.
    stage.reset(1).unwrap();
    assert_eq!(stage.finished().unwrap(), None);
    assert!(stage.is_busy());
    let _ = (sender.connect(1).unwrap(), receiver.connect(1).unwrap());
    work.batch = BatchId(1);
    assert_eq!(stage.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::UnderWay);

    // The same of a last stage, whose tokens the host waits for.
    let edge = InProcessEdge::new(&gpu).unwrap();
    let ends = Ends { up: Some(edge.receiver()), down: None };
    let mut last = CudaStage::load_with(&gpu, &model.tiny.config(), &model.weights, &model.part(2, 3), KV, room, ends, |_| ()).unwrap();
    let mut sender = edge.sender();
    last.reset(0).unwrap();
    let _ = (sender.connect(0).unwrap(), last.finished().unwrap(), sender.connect(0).unwrap());
    work.rows[0].sampling = Some(Sampling::default());
    assert_eq!(last.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::UnderWay);
    for _ in 0..50 {
        assert_eq!(last.finished().unwrap(), None);
        std::thread::sleep(Duration::from_micros(200));
    }

    // And of a first stage whose batch nobody has taken: what it offered is forgotten as well.
    let edge = InProcessEdge::new(&gpu).unwrap();
    let ends = Ends { up: None, down: Some(edge.sender()) };
    let mut first = CudaStage::load_with(&gpu, &model.tiny.config(), &model.weights, &model.part(0, 3), KV, room, ends, |_| ()).unwrap();
    let mut receiver = edge.receiver();
    for generation in 0..3 {
        first.reset(generation).unwrap();
        let _ = receiver.connect(generation).unwrap();
        work.batch = BatchId(generation);
        assert_eq!(first.start(&work, &Vec::new(), &mut output, &mut samples).unwrap(), Started::UnderWay);
    }
}

#[test]
fn what_comes_through_the_host_is_there_before_layers_run() {
    let _turn = take_turns();
    let Some(gpu) = gpu() else { return };
    let model = Model::new("through-host", smallest(3));
    let room = Room { positions: 60, tokens: 40, rows: 4, batches: 1 };
    let stage = || CudaStage::load(&gpu, &model.tiny.config(), &model.weights, &model.part(1, 3), KV, room, |_| ()).unwrap();
    let put_out = |stage: &mut CudaStage, number: u64| {
        let mut work = Work::new(BatchId(number));
        work.push(RequestId(0), 0, &[3; 4], 0, &[BlockId(1)], None);
        let input: Vec<f32> = (0..4 * 32).map(|at| ((at + 7 * number) % 13) as f32 / 4.0).collect();
        let mut output = Vec::new();
        stage.run(&work, &input, &mut output, &mut Vec::new()).unwrap();
        output
    };
    let mut alone = stage();
    let expected: Vec<Vec<f32>> = (0..13).map(|number| put_out(&mut alone, number)).collect();
    for seed in seeds() {
        if let Some(fake) = Fake::find() {
            fake.seed(seed);
        }
        let mut stage = stage();
        let _planted = Planted::new();
        for number in 0..40 {
            assert_eq!(put_out(&mut stage, number), expected[number as usize % 13], "seed {seed}: batch {number}");
        }
        println!("seed {seed}: it was there");
    }
}
