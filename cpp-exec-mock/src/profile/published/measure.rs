//! What the simulator says of a published point.

use cpp_sched::{BatchId, CostTerms};
use serde::Deserialize;

use super::{Drawn, Gemm, Pipelined, Point, Prompt, Published};
use crate::pipeline::{Piece, Pipe};
use crate::profile::{Profile, ProfileError};
use crate::sim::{Machine, Mode, Outcome, Slo, simulate};
use crate::workload::{Synthetic, Workload};

/// A number over a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Measure {
    /// Mean time to the first token.
    TtftMean,
    /// Its 99th percentile.
    TtftP99,
    /// Mean time per output token after the first.
    TpotMean,
}

/// After over before, seed by seed, in the order of the seeds.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Ratios {
    /// Of the mean time to the first token.
    pub ttft_mean: Vec<f64>,
    /// Of its 99th percentile.
    pub ttft_p99: Vec<f64>,
    /// Of the mean time per output token.
    pub tpot_mean: Vec<f64>,
}

/// The time of a point in nanoseconds, from a profile that may differ from the one in the file. Points of a workload are means over the seeds of the fit.
///
/// # Errors
/// The profile does not go with the point: layers, a missing device, a configuration that the scheduler refuses.
pub fn measure(profile: &Profile, published: &Published, point: &Point) -> Result<f64, ProfileError> {
    if let Some(prompt) = &point.prompt {
        return prompt_ns(profile, prompt);
    }
    if let Some(gemm) = &point.gemm {
        return gemm_ns(profile, *gemm);
    }
    let (Some(quantity), Some(drawn)) = (&point.workload, &published.workload) else {
        return Err(bad(profile, format!("{}: nothing to measure", point.what)));
    };
    let mut sum = 0.0;
    for seed in drawn.fit_seed..drawn.fit_seed + u64::from(drawn.seeds) {
        sum += quantity.measure.of(&play(profile, drawn, seed, quantity.mode)?);
    }
    Ok(sum / f64::from(drawn.seeds.max(1)))
}

/// Both ways of pipelining on the same requests, for each seed of the prediction.
///
/// # Errors
/// As [`measure`].
pub fn ratios(profile: &Profile, drawn: &Drawn) -> Result<Ratios, ProfileError> {
    let mut ratios = Ratios::default();
    for seed in drawn.predict_seed..drawn.predict_seed + u64::from(drawn.seeds) {
        let (before, after) = (play(profile, drawn, seed, Pipelined::Request)?, play(profile, drawn, seed, Pipelined::Chunk)?);
        let ratio = |measure: Measure| measure.of(&after) / measure.of(&before);
        ratios.ttft_mean.push(ratio(Measure::TtftMean));
        ratios.ttft_p99.push(ratio(Measure::TtftP99));
        ratios.tpot_mean.push(ratio(Measure::TpotMean));
    }
    Ok(ratios)
}

impl Measure {
    /// In nanoseconds; a workload without requests has none of it.
    fn of(self, outcome: &Outcome) -> f64 {
        let value = match self {
            Self::TtftMean => outcome.ttft.mean,
            Self::TtftP99 => outcome.ttft.p99,
            Self::TpotMean => outcome.tpot.mean,
        };
        value.unwrap_or(f64::NAN)
    }
}

/// The pipeline of the simulator, fed with the chunks of one prompt: as many in flight as there are stages, decided ahead.
fn prompt_ns(profile: &Profile, prompt: &Prompt) -> Result<f64, ProfileError> {
    let machine = Machine::split(profile, &prompt.layers)?;
    let stages = machine.stage_costs.len();
    let mut pipe = Pipe::new(stages as u32, machine.links, machine.return_ns, 0);
    pipe.work_came(0);
    // What the engine looks at: its first stage is the one that it times.
    let chunks = prompt.chunks.cut(prompt.tokens, &machine.stage_costs[0]);
    let (mut history, mut back_ns, mut decided_ns) = (0, vec![0u64; chunks.len()], 0u64);
    for (index, &tokens) in chunks.iter().enumerate() {
        let terms = CostTerms::prefill(history, tokens);
        let stage_ns: Vec<u64> = machine.stage_costs.iter().map(|cost| cost.cost(&terms).to_ns()).collect();
        let room_ns = index.checked_sub(stages).map_or(0, |before| back_ns[before]);
        decided_ns = decided_ns.max(room_ns) + machine.scheduler_ns;
        let piece = Piece {
            not_before_ns: decided_ns,
            stage_ns: &stage_ns,
            transmit_ns: machine.hop.transmit_ns(terms.tokens),
            latency_ns: machine.hop.latency_ns,
        };
        back_ns[index] = pipe.push(BatchId(index as u64), &piece).back_ns;
        history += tokens;
    }
    back_ns.last().map(|&ns| ns as f64).ok_or_else(|| bad(profile, "a prompt without tokens".to_owned()))
}

/// The roofline of the device: the larger of computing, and reading the weights.
fn gemm_ns(profile: &Profile, gemm: Gemm) -> Result<f64, ProfileError> {
    let device = profile.device.as_ref().ok_or_else(|| bad(profile, "a matrix product needs [device]".to_owned()))?;
    let weights = (gemm.n * gemm.k) as f64;
    let compute = 2.0 * gemm.m as f64 * weights / (device.peak_flops as f64 * f64::from(device.linear_percent) / 100.0);
    let bytes = weights * f64::from(device.bytes_per_weight);
    let read = bytes / (device.memory_bytes_per_s as f64 * f64::from(device.bandwidth_percent) / 100.0);
    Ok(compute.max(read) * 1e9)
}

/// One seed of a workload, through the scheduler and the pipeline.
fn play(profile: &Profile, drawn: &Drawn, seed: u64, pipelined: Pipelined) -> Result<Outcome, ProfileError> {
    let wrong = |error: &dyn std::fmt::Display| bad(profile, error.to_string());
    let mean = |total: u32| f64::from(total) / f64::from(drawn.requests.max(1));
    let parameters = Synthetic {
        requests: drawn.requests,
        rate: drawn.rate,
        input_mean: mean(drawn.prompt_tokens),
        input_sigma: drawn.input_sigma,
        output_mean: mean(drawn.output_tokens),
        output_sigma: drawn.output_sigma,
        seed,
        ..Synthetic::default()
    };
    let mut workload = Workload::synthetic(&parameters).map_err(|error| wrong(&error))?;
    workload.scale_lengths(drawn.prompt_tokens, drawn.output_tokens);
    let mut config = profile.config(drawn.stages)?;
    config.max_batch_tokens = drawn.max_batch_tokens;
    let mode = match pipelined {
        Pipelined::Request => Mode::Request,
        Pipelined::Chunk => Mode::Chunk,
    };
    mode.apply(&mut config);
    let machine = Machine::new(profile, drawn.stages)?;
    simulate(&workload, &machine, config, Slo::default(), &mut |_| {}).map_err(|error| wrong(&error))
}

fn bad(profile: &Profile, problem: String) -> ProfileError {
    profile.bad(problem)
}

#[cfg(test)]
mod tests {
    use super::super::CutRule;
    use super::*;
    use cpp_sched::Chunking;

    /// The short way through the pipeline is the long one: scheduler, event loop and all.
    #[test]
    fn a_prompt_takes_what_the_simulator_says() {
        let profile = Profile::find("kimi-k2.5-mi355x").unwrap();
        let cost = profile.stage_cost(4).unwrap();
        for (rule, chunking, most) in [
            (CutRule::Fixed { tokens: 8192 }, Chunking::Tokens { max: None }, 8192),
            (
                CutRule::EqualCost { base: 32_768, align: 64 },
                Chunking::Cost { target_ns: cost.cost(&CostTerms::prefill(0, 32_768)).to_ns(), align: 64, min: 1 },
                32_768,
            ),
        ] {
            let prompt = Prompt { layers: vec![1; 4], tokens: 131_072, chunks: rule };
            let short = prompt_ns(&profile, &prompt).unwrap();
            let mut workload = Workload::synthetic(&Synthetic { requests: 1, ..Synthetic::default() }).unwrap();
            workload.scale_lengths(131_072, 1);
            let mut config = profile.config(4).unwrap();
            Mode::Chunk.apply(&mut config);
            (config.chunking, config.max_batch_tokens) = (chunking, most);
            let machine = Machine::new(&profile, 4).unwrap();
            let outcome = simulate(&workload, &machine, config, Slo::default(), &mut |_| {}).unwrap();
            assert_eq!(outcome.ttft.mean, Some(short), "{rule:?}");
        }
    }
}
