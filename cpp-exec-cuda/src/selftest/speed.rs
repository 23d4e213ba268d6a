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
use super::{SelftestError, SelftestOptions};
use crate::cuda::{CudaStage, Gpu, WeightSource};

/// Steps of the decodes that are not counted.
const WARM_UP: u32 = 4;

/// All figures of one GPU.
pub(super) fn measure(
    gpu: &Arc<Gpu>,
    options: &SelftestOptions,
    shape: &Shape,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Line>, SelftestError> {
    tell("the ceilings: a product, a copy");
    let (flops, bandwidth) = ceilings(gpu, shape)?;
    let mut lines = vec![
        Line::figure(format!("product of {0} x {0} matrices, bf16", shape.product), flops, Unit::FlopRate),
        Line::figure(format!("copy of {} KiB, read and written", shape.copied >> 9), bandwidth, Unit::Bandwidth),
    ];
    tell("a model of random weights");
    let mut stage = CudaStage::load(gpu, &shape.model, WeightSource::Random(1), &shape.part(), shape.kv(), shape.room(), |_| ())?;
    tell("prompts in chunks");
    let prompt = prefill(&mut stage, shape)?;
    let tokens = u64::from(shape.chunk) * u64::from(shape.chunks);
    let rate = shape.prefill_flops(tokens) as f64 / prompt.as_secs_f64();
    lines.push(Line::figure(format!("prefill of {tokens} tokens in chunks of {}", shape.chunk), prompt.as_secs_f64(), Unit::Seconds));
    lines.push(Line::share("  its FLOP rate, of the product's", rate / flops, 0.5));
    tell("decodes");
    if options.graphs {
        stage.capture_graphs()?;
    }
    let step = decodes(&mut stage, shape)?;
    let context = u64::from(shape.context) + u64::from(WARM_UP + shape.steps / 2);
    let least = shape.decode_bytes(context) as f64 / bandwidth;
    lines.push(Line::figure(
        format!("decode step of {} requests of {} tokens", shape.requests, shape.context),
        step.as_secs_f64(),
        Unit::Seconds,
    ));
    lines.push(Line::share("  time to read weights and KV once at the copy's bandwidth, of it", least / step.as_secs_f64(), 0.6));
    drop(stage);
    tell("a link beside compute");
    let overlap = overlap::measure(gpu, shape)?;
    lines.push(Line::figure("link to pinned memory, all chunks of a stage", overlap.link.as_secs_f64(), Unit::Seconds));
    lines.push(Line::share("  its time hidden behind compute", overlap.share(), 0.9));
    let scheduling = scheduling(shape.requests);
    lines.push(Line::figure(format!("scheduling of a step of {} decodes", shape.requests), scheduling.as_secs_f64(), Unit::Seconds));
    lines.push(Line::share_below("  its share of the step", scheduling.as_secs_f64() / step.as_secs_f64(), 0.01));
    Ok(lines)
}

/// Floating point operations and bytes a second.
fn ceilings(gpu: &Arc<Gpu>, shape: &Shape) -> Result<(f64, f64), SelftestError> {
    let bench = Bench::new(gpu)?;
    let some = Random::new(7).halves(1 << 16);
    let (size, square) = (shape.product, shape.product * shape.product);
    let (a, b) = (bench.repeated(&some, square)?, bench.repeated(&some[1..], square)?);
    let out = bench.zeros::<u16>(square)?;
    let product = bench.time(shape.repeats, || bench.multiply(&a, &b, &out, size))?;
    let (from, mut to) = (bench.repeated(&some, shape.copied)?, bench.zeros::<u16>(shape.copied)?);
    let copy = bench.time(shape.repeats, || bench.copy(&from, &mut to))?;
    let flops = 2.0 * (size as f64).powi(3) / product.as_secs_f64();
    Ok((flops, 4.0 * shape.copied as f64 / copy.as_secs_f64()))
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
