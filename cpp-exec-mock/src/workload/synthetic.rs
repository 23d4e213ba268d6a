//! Workloads drawn at random: gamma arrivals, with pauses or without, log-normal lengths, conversations.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Gamma, OpenClosed01, StandardNormal};

use super::clients::exponential_ns;
use super::conversation::{Conversation, Sessions};
use super::decimal::MAX_ARRIVAL_NS;
use super::{Prefix, WorkItem, Workload, WorkloadError};

/// Parameters of a drawn workload. The same ones give the same workload on every machine.
///
/// ```
/// use cpp_exec_mock::workload::{Synthetic, Workload};
/// let workload = Workload::synthetic(&Synthetic { requests: 100, rate: 2.0, ..Synthetic::default() })?;
/// assert_eq!(workload.items().len(), 100);
/// # Ok::<(), cpp_exec_mock::workload::WorkloadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Synthetic {
    /// How many requests, from 1. Default 1000.
    pub requests: u32,
    /// Mean arrivals per second, above 0. Default 1.
    pub rate: f64,
    /// Coefficient of variation of the times between arrivals: 0 = like a clock, 1 = Poisson (default), more = bursts. At most 100.
    pub burstiness: f64,
    /// Mean prompt length in tokens, from 1. Default 2048.
    pub input_mean: f64,
    /// Standard deviation of the logarithm of the prompt length, 0 to 10. Default 1.
    pub input_sigma: f64,
    /// Mean output length in tokens, from 1. Default 256.
    pub output_mean: f64,
    /// Standard deviation of the logarithm of the output length, 0 to 10. Default 0.8.
    pub output_sigma: f64,
    /// Arrivals come in bursts: times with and without arrivals take turns (a Markov-modulated process whose second rate is 0). Default none.
    pub bursts: Option<Bursts>,
    /// Requests are turns of conversations, which wait for each other. Default none.
    pub sessions: Option<Sessions>,
    /// Default 0.
    pub seed: u64,
}

/// Times with arrivals and times without, of exponential lengths. While there are arrivals they come so much faster that their rate in the mean is what
/// it is without bursts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Mean length of a time with arrivals, in nanoseconds, above 0.
    pub on_ns: u64,
    /// Mean length of a time without, in nanoseconds.
    pub off_ns: u64,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self {
            requests: 1000,
            rate: 1.0,
            burstiness: 1.0,
            input_mean: 2048.0,
            input_sigma: 1.0,
            output_mean: 256.0,
            output_sigma: 0.8,
            bursts: None,
            sessions: None,
            seed: 0,
        }
    }
}

impl Workload {
    /// Draws a workload. Arrivals, prompt lengths, output lengths and so on come from independent streams of the seed, so that a change of one
    /// parameter leaves the others' draws as they are. Lengths are rounded, and at least 1.
    ///
    /// # Errors
    /// The first parameter that is out of range; a rate so small that the last arrival would be later than 2^63 - 1 ns.
    pub fn synthetic(parameters: &Synthetic) -> Result<Self, WorkloadError> {
        let p = parameters;
        if p.requests == 0 {
            return Err(out_of_range("requests", "must be at least 1"));
        }
        check("rate", p.rate, p.rate > 0.0, "must be above 0")?;
        check("burstiness", p.burstiness, (0.0..=100.0).contains(&p.burstiness), "must be from 0 to 100")?;
        for (name, mean) in [("input-mean", p.input_mean), ("output-mean", p.output_mean)] {
            check(name, mean, (1.0..=1e9).contains(&mean), "must be from 1 to 1e9 tokens")?;
        }
        for (name, sigma) in [("input-sigma", p.input_sigma), ("output-sigma", p.output_sigma)] {
            check(name, sigma, (0.0..=10.0).contains(&sigma), "must be from 0 to 10")?;
        }
        if p.bursts.is_some_and(|bursts| bursts.on_ns == 0) {
            return Err(out_of_range("burst-on", "must be above 0"));
        }
        let mut inputs = Lengths::new(p.input_mean, p.input_sigma, p.seed, 1);
        let mut outputs = Lengths::new(p.output_mean, p.output_sigma, p.seed, 2);
        let mut arrivals = Arriving::new(p)?;
        let mut workload = Self::default();
        workload.items.reserve_exact(p.requests as usize);
        if let Some(sessions) = &p.sessions {
            let mut conversation = Conversation::new(sessions, p.requests, p.seed)?;
            conversation.draw(&mut workload, &mut || arrivals.next_ns(), &mut || (inputs.draw(), outputs.draw()))?;
        } else {
            for _ in 0..p.requests {
                let arrival_ns = arrivals.next_ns()?;
                let (input_tokens, output_tokens) = (inputs.draw(), outputs.draw());
                workload.items.push(WorkItem {
                    arrival_ns,
                    priority: 0,
                    input_tokens,
                    output_tokens,
                    tenant: None,
                    prefix: Prefix::Unknown,
                });
            }
        }
        let rate = match &p.sessions {
            Some(Sessions { users: Some(users), .. }) => format!("of {users} users"),
            _ => format!("at {}/s (variation {})", p.rate, p.burstiness),
        };
        workload.source = format!(
            "synthetic: {} requests {rate}, prompts of {} (sigma {}), outputs of {} (sigma {}), seed {}",
            p.requests, p.input_mean, p.input_sigma, p.output_mean, p.output_sigma, p.seed
        );
        if let Some(Bursts { on_ns, off_ns }) = p.bursts {
            workload.source.push_str(&format!(", bursts of {} s every {} s", seconds(on_ns), seconds(on_ns.saturating_add(off_ns))));
        }
        if let Some(sessions) = &p.sessions {
            workload.source.push_str(&format!(", {} turns each, {} s of thought", sessions.turns_mean, seconds(sessions.think_ns)));
        }
        Ok(workload)
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

pub(super) fn out_of_range(name: &'static str, problem: impl Into<String>) -> WorkloadError {
    WorkloadError::Parameter { name, problem: problem.into() }
}

/// A number is good if it is finite and `holds`.
pub(super) fn check(name: &'static str, value: f64, holds: bool, rule: &str) -> Result<(), WorkloadError> {
    if value.is_finite() && holds { Ok(()) } else { Err(out_of_range(name, format!("{value} {rule}"))) }
}

/// A stream of the seed: 0 arrivals, 1 and 2 lengths, 3 patience, 4 and 5 conversations, 6 bursts.
pub(super) fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}

/// Arrivals one after the other.
struct Arriving {
    gaps: Gaps,
    at_ns: u64,
    /// What is left of the time with arrivals; none: it lasts for ever.
    bursts: Option<(Bursts, u64, ChaCha8Rng)>,
}

impl Arriving {
    fn new(p: &Synthetic) -> Result<Self, WorkloadError> {
        let mut bursts = p.bursts.map(|bursts| (bursts, 0, stream(p.seed, 6)));
        if let Some((bursts, left_ns, rng)) = &mut bursts {
            *left_ns = exponential_ns(OpenClosed01.sample(rng), bursts.on_ns);
        }
        Ok(Self { gaps: Gaps::new(p)?, at_ns: 0, bursts })
    }

    fn next_ns(&mut self) -> Result<u64, WorkloadError> {
        let mut gap_ns = self.gaps.draw_ns();
        if let Some((bursts, left_ns, rng)) = &mut self.bursts {
            // Gaps pass in the time with arrivals alone.
            let mut off_ns = 0u64;
            let drawn_ns = gap_ns;
            let mut passed_ns = 0u64;
            while drawn_ns - passed_ns > *left_ns {
                passed_ns += *left_ns;
                off_ns = off_ns.saturating_add(exponential_ns(OpenClosed01.sample(rng), bursts.off_ns));
                *left_ns = exponential_ns(OpenClosed01.sample(rng), bursts.on_ns);
            }
            *left_ns -= drawn_ns - passed_ns;
            gap_ns = drawn_ns.saturating_add(off_ns);
        }
        self.at_ns = self
            .at_ns
            .checked_add(gap_ns)
            .filter(|&ns| ns <= MAX_ARRIVAL_NS)
            .ok_or_else(|| out_of_range("rate", "so small that the last request would arrive after 2^63 - 1 ns"))?;
        Ok(self.at_ns)
    }
}

/// Times between arrivals.
struct Gaps {
    mean_ns: f64,
    /// One over the squared coefficient of variation; none: all gaps are equal.
    shape: Option<f64>,
    /// Shape `shape`, or `shape + 1` where that is below 1; scale 1.
    gamma: Gamma<f64>,
    rng: ChaCha8Rng,
}

impl Gaps {
    fn new(p: &Synthetic) -> Result<Self, WorkloadError> {
        let variance = p.burstiness * p.burstiness;
        // Below this the distribution is a point, as far as nanoseconds can tell.
        let shape = (variance >= 1e-12).then(|| 1.0 / variance);
        let drawn = shape.map_or(1.0, |shape| if shape < 1.0 { shape + 1.0 } else { shape });
        let gamma = Gamma::new(drawn, 1.0).map_err(|error| out_of_range("burstiness", error.to_string()))?;
        Ok(Self { mean_ns: mean_gap_ns(p), shape, gamma, rng: stream(p.seed, 0) })
    }

    /// Rounded; a float beyond the range of `u64` becomes its maximum.
    fn draw_ns(&mut self) -> u64 {
        let relative = match self.shape {
            None => 1.0,
            Some(shape) if shape < 1.0 => {
                // Gamma(a) = Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang 2000), with a power that is the same on all machines.
                let uniform: f64 = OpenClosed01.sample(&mut self.rng);
                self.gamma.sample(&mut self.rng) * libm::pow(uniform, 1.0 / shape) / shape
            }
            Some(shape) => self.gamma.sample(&mut self.rng) / shape,
        };
        (relative * self.mean_ns + 0.5) as u64
    }
}

/// The mean gap between arrivals: of conversations where there are some, and within bursts where there are some.
#[expect(clippy::cast_precision_loss, reason = "times of days at most, rounded to nanoseconds")]
fn mean_gap_ns(p: &Synthetic) -> f64 {
    let turns = p.sessions.map_or(1.0, |sessions| sessions.turns_mean);
    let on = p.bursts.map_or(1.0, |Bursts { on_ns, off_ns }| on_ns as f64 / (on_ns as f64 + off_ns as f64));
    1e9 / p.rate * turns * on
}

/// Lengths in tokens.
struct Lengths {
    mu: f64,
    sigma: f64,
    rng: ChaCha8Rng,
}

impl Lengths {
    fn new(mean: f64, sigma: f64, seed: u64, number: u64) -> Self {
        // The mean of exp(N(mu, sigma)) is exp(mu + sigma^2 / 2).
        Self { mu: libm::log(mean) - sigma * sigma / 2.0, sigma, rng: stream(seed, number) }
    }

    fn draw(&mut self) -> u32 {
        let normal: f64 = StandardNormal.sample(&mut self.rng);
        ((libm::exp(self.mu + self.sigma * normal) + 0.5) as u32).max(1)
    }
}
