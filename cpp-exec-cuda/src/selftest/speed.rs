//! How fast it is, beside what it could be: ceilings are measured on the same GPU, in the same minute.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cpp_exec_mock::bench::{Lengths, Memory, decode};
use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{Device, Work};
use cpp_sched::{BatchId, BlockId, RequestId};

use super::bench::Bench;
use super::overlap;
use super::random::Random;
use super::report::{Line, Unit};
use super::shape::Shape;
use super::{Listener, SelftestError, SelftestOptions};
use crate::cuda::{CudaStage, Gpu, WeightSource};

/// Steps of the decodes that are not counted.
const WARM_UP: u32 = 4;

/// All figures of one GPU, each as it comes.
pub(super) fn measure(gpu: &Arc<Gpu>, options: &SelftestOptions, shape: &Shape, to: &mut dyn Listener) {
    to.begins("the ceilings: a product, a copy");
    let flops =
        Figure { what: format!("product of {0} x {0} matrices, bf16", shape.product), unit: Unit::FlopRate }.tell(product(gpu, shape), to);
    let what = format!("copy of {} KiB, read and written", shape.copied >> 9);
    let bandwidth = Figure { what, unit: Unit::Bandwidth }.tell(copy(gpu, shape), to);
    let step = match stage(gpu, shape, to) {
        Ok(mut stage) => {
            prompts(&mut stage, shape, flops, to);
            decode_steps(&mut stage, options, shape, bandwidth, to)
        }
        Err(error) => {
            to.line(Line::not_measured("prefill and decode", error.to_string()));
            None
        }
    };
    to.begins("a link beside compute");
    match overlap::measure(gpu, shape) {
        Ok(overlap) => {
            to.line(Line::seconds("link that copies chunks to pinned memory, in the place of NCCL", overlap.link));
            to.line(Line::share("  its time hidden behind compute", overlap.share(), 0.9));
        }
        Err(error) => to.line(Line::not_measured("link", error.to_string())),
    }
    to.begins("scheduling");
    let scheduling = scheduling(shape.requests);
    to.line(Line::seconds(format!("scheduling of a step of {} decodes", shape.requests), scheduling));
    to.line(share_of("  its share of the step", step, |step| {
        Line::share_below("  its share of the step", scheduling.as_secs_f64() / step.as_secs_f64(), 0.01)
    }));
}

/// A figure without a goal.
struct Figure {
    what: String,
    unit: Unit,
}

impl Figure {
    fn tell(self, found: Result<f64, SelftestError>, to: &mut dyn Listener) -> Option<f64> {
        to.line(match &found {
            Ok(found) => Line::figure(self.what, *found, self.unit),
            Err(error) => Line::not_measured(self.what, error.to_string()),
        });
        found.ok()
    }
}

/// The line of a share, if there is what it is a share of.
fn share_of<T>(what: &str, whole: Option<T>, line: impl FnOnce(T) -> Line) -> Line {
    whole.map_or_else(|| Line::not_measured(what, "what it is held against was not measured"), line)
}

fn stage(gpu: &Arc<Gpu>, shape: &Shape, to: &mut dyn Listener) -> Result<CudaStage, SelftestError> {
    to.begins("a model of random weights");
    Ok(CudaStage::load(gpu, &shape.model, WeightSource::Random(1), &shape.part(), shape.kv(), shape.room(), |_| ())?)
}

fn prompts(stage: &mut CudaStage, shape: &Shape, flops: Option<f64>, to: &mut dyn Listener) {
    to.begins("prompts in chunks");
    let tokens = u64::from(shape.chunk) * u64::from(shape.chunks);
    let what = format!("prefill of {tokens} tokens in chunks of {}", shape.chunk);
    let took = Figure { what, unit: Unit::Seconds }.tell(prefill(stage, shape).map(|took| took.as_secs_f64()), to);
    let what = "  its FLOP rate, of the product's";
    to.line(share_of(what, took.zip(flops), |(took, flops)| Line::share(what, shape.prefill_flops(tokens) as f64 / took / flops, 0.5)));
}

/// The time of a step.
fn decode_steps(
    stage: &mut CudaStage,
    options: &SelftestOptions,
    shape: &Shape,
    bandwidth: Option<f64>,
    to: &mut dyn Listener,
) -> Option<Duration> {
    to.begins("decodes");
    let graphs = if options.graphs { stage.capture_graphs().map(drop) } else { Ok(()) };
    let step = graphs.map_err(SelftestError::from).and_then(|()| decodes(stage, shape));
    let context = u64::from(shape.context) + u64::from(WARM_UP + shape.steps / 2);
    let what = format!("decode step of {} requests of {} tokens", shape.requests, shape.context);
    let step = Figure { what, unit: Unit::Seconds }.tell(step.map(|step| step.as_secs_f64()), to);
    let what = "  time to read weights and KV once at the copy's bandwidth, of it";
    to.line(share_of(what, step.zip(bandwidth), |(step, bandwidth)| {
        Line::share(what, shape.decode_bytes(context) as f64 / bandwidth / step, 0.6)
    }));
    step.map(Duration::from_secs_f64)
}

/// Floating point operations a second of one large product.
fn product(gpu: &Arc<Gpu>, shape: &Shape) -> Result<f64, SelftestError> {
    let bench = Bench::new(gpu)?;
    let some = Random::new(7).halves(1 << 16);
    let (size, square) = (shape.product, shape.product * shape.product);
    let (a, b) = (bench.repeated(&some, square)?, bench.repeated(&some[1..], square)?);
    let out = bench.zeros::<u16>(square)?;
    let took = bench.time(shape.repeats, || bench.multiply(&a, &b, &out, size))?;
    Ok(2.0 * (size as f64).powi(3) / took.as_secs_f64())
}

/// Bytes a second, read and written.
fn copy(gpu: &Arc<Gpu>, shape: &Shape) -> Result<f64, SelftestError> {
    let bench = Bench::new(gpu)?;
    let some = Random::new(8).halves(1 << 16);
    let (from, mut to) = (bench.repeated(&some, shape.copied)?, bench.zeros::<u16>(shape.copied)?);
    let took = bench.time(shape.repeats, || bench.copy(&from, &mut to))?;
    Ok(4.0 * shape.copied as f64 / took.as_secs_f64())
}

/// A row of one request, with tokens of no meaning.
pub(super) fn push(work: &mut Work, id: u64, (start, len): (u32, u32), first_block: u32, samples: bool) {
    let tokens: Vec<u32> = (start..start + len).map(|position| (position * 7 + id as u32) % 200).collect();
    let table: Vec<BlockId> = (0..(start + len).div_ceil(Shape::BLOCK)).map(|block| BlockId(first_block + block)).collect();
    work.push(RequestId(id), start, &tokens, 0, &table, samples.then(Sampling::default));
}

fn run(stage: &mut CudaStage, work: &Work) -> Result<(), SelftestError> {
    Ok(stage.run(work, &Vec::new(), &mut Vec::new(), &mut Vec::new())?)
}

/// The time of a prompt, until its first token is there; the second time that it runs.
fn prefill(stage: &mut CudaStage, shape: &Shape) -> Result<Duration, SelftestError> {
    let mut took = Duration::ZERO;
    for _ in 0..2 {
        let since = Instant::now();
        for chunk in 0..shape.chunks {
            let mut work = Work::new(BatchId(chunk.into()));
            push(&mut work, 0, (chunk * shape.chunk, shape.chunk), 0, chunk + 1 == shape.chunks);
            run(stage, &work)?;
        }
        took = since.elapsed();
    }
    Ok(took)
}

/// The mean time of a step, over contexts that have been computed.
fn decodes(stage: &mut CudaStage, shape: &Shape) -> Result<Duration, SelftestError> {
    for id in 0..shape.requests {
        let mut work = Work::new(BatchId(id.into()));
        push(&mut work, id.into(), (0, shape.context), id * shape.blocks(), true);
        run(stage, &work)?;
    }
    let mut step = |number: u32| {
        let mut work = Work::new(BatchId(number.into()));
        for id in 0..shape.requests {
            push(&mut work, id.into(), (shape.context + number, 1), id * shape.blocks(), true);
        }
        run(stage, &work)
    };
    for number in 0..WARM_UP {
        step(number)?;
    }
    let since = Instant::now();
    for number in WARM_UP..WARM_UP + shape.steps {
        step(number)?;
    }
    Ok(since.elapsed() / shape.steps)
}

/// What the scheduler needs for a step, median of many, on this machine's processor.
fn scheduling(requests: u32) -> Duration {
    let uncounted = |work: &mut dyn FnMut()| {
        work();
        Memory::default()
    };
    let measured = decode::measure(requests, Lengths::Spread, 200, uncounted);
    Duration::from_nanos(measured.schedule_ns + measured.complete_ns)
}
