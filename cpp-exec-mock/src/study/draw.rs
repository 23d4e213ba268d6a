//! Requests of a study, drawn from a seed.

use cpp_sched::{Config, Request, RequestId, Scheduler};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, OpenClosed01, StandardNormal};

use super::file::{Capacity, Class, Lengths, Study, StudyError};
use super::play::play;
use crate::profile::Profile;
use crate::sim::Machine;
use crate::workload::{WorkItem, Workload};

/// One request of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Nanoseconds from the start.
    pub arrival_ns: u64,
    /// Which of the study's classes.
    pub class: usize,
    /// Which of the study's phases.
    pub phase: usize,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens of the output.
    pub output_tokens: u32,
    /// Whose.
    pub tenant: Option<u64>,
    /// Time to the first token alone on the machine, in nanoseconds.
    pub own_ns: u64,
    /// Cost of its prompt on a stage with the constants of its batches: what it takes of the machine's time.
    pub work_ns: u64,
    /// Wanted from the arrival to the first token.
    pub ttft_slo_ns: Option<u64>,
    /// Wanted between tokens, on average.
    pub tpot_slo_ns: Option<u64>,
}

impl Job {
    /// As the scheduler gets it.
    #[must_use]
    pub fn request(&self, id: u64) -> Request {
        let mut request = Request::with_lengths(RequestId(id), self.input_tokens, Vec::new(), self.output_tokens);
        request.arrival_ns = Some(self.arrival_ns);
        request.ttft_slo_ns = self.ttft_slo_ns;
        request.tbt_slo_ns = self.tpot_slo_ns;
        request.tenant = self.tenant;
        request
    }
}

/// The requests of a workload, without targets.
#[must_use]
pub fn jobs_of(workload: &Workload) -> Vec<Job> {
    let job = |item: &WorkItem| Job {
        arrival_ns: item.arrival_ns,
        class: 0,
        phase: 0,
        input_tokens: item.input_tokens,
        output_tokens: item.output_tokens,
        tenant: item.tenant.map(|tenant| u64::from(tenant.0)),
        own_ns: 0,
        work_ns: 0,
        ttft_slo_ns: None,
        tpot_slo_ns: None,
    };
    workload.items().iter().map(job).collect()
}

impl Study {
    /// The machine, and the scheduler's configuration for it with nothing chosen yet.
    ///
    /// # Errors
    /// The profile.
    pub fn machine(&self) -> Result<(Machine, Config), StudyError> {
        let profile = Profile::find(&self.profile)?;
        let mut config = profile.config(self.stages)?;
        config.adaptive.max_target_ns = self.max_batch_s.map(|seconds| (seconds * 1e9) as u64);
        Ok((Machine::new(&profile, self.stages)?, config))
    }

    /// Requests per second that the pipeline can take, measured as the study says, first come first served.
    ///
    /// # Errors
    /// The profile, or the simulation.
    pub fn capacity(&self, config: Config) -> Result<f64, StudyError> {
        let (machine, _) = self.machine()?;
        // Steady: several times as many as decode at once, without those at the start, which decode beside few others.
        let (count, skipped) = match self.capacity {
            Capacity::Prefill => (500, 0),
            Capacity::Steady => (6 * config.max_requests as usize, 2 * config.max_requests as usize),
        };
        let mut jobs = self.draw_many(self.seeds[0], count, |_| 0)?;
        for job in &mut jobs {
            (job.ttft_slo_ns, job.tpot_slo_ns) = (None, None);
        }
        let fates = play(&jobs, &machine, config)?;
        let mut firsts: Vec<u64> = fates.iter().filter_map(|fate| fate.first_token_ns).collect();
        firsts.sort_unstable();
        let start = skipped.checked_sub(1).map_or(0, |at| firsts[at]);
        let last = firsts.last().copied().unwrap_or(1);
        Ok((firsts.len() - skipped) as f64 / ((last - start) as f64 / 1e9))
    }

    /// The requests of a seed, with Poisson arrivals at `load * rate` per second in each phase.
    ///
    /// # Errors
    /// The profile.
    pub fn draw(&self, seed: u64, rate: f64) -> Result<Vec<Job>, StudyError> {
        let mut gaps = stream(seed, 0);
        let (mut arrivals, mut start, mut at) = (Vec::new(), 0.0, 0.0);
        for (number, phase) in self.phases.iter().enumerate() {
            let end = start + phase.seconds;
            at = f64::max(at, start);
            loop {
                let uniform: f64 = OpenClosed01.sample(&mut gaps);
                at -= libm::log(uniform) / (phase.load * rate);
                if at >= end {
                    break;
                }
                arrivals.push(((at * 1e9) as u64, number));
            }
            start = end;
        }
        let mut jobs = self.draw_many(seed, arrivals.len(), |at| arrivals[at].0)?;
        for (job, (_, phase)) in jobs.iter_mut().zip(arrivals) {
            job.phase = phase;
        }
        Ok(jobs)
    }

    fn draw_many(&self, seed: u64, count: usize, arrival: impl Fn(usize) -> u64) -> Result<Vec<Job>, StudyError> {
        let (_, config) = self.machine()?;
        let idle = Scheduler::new(config).map_err(|error| StudyError::Value(error.to_string()))?;
        let all: f64 = self.classes.iter().map(|class| class.share).sum();
        let (mut classes, mut inputs, mut outputs) = (stream(seed, 1), stream(seed, 2), stream(seed, 3));
        let mut draw = |at: usize| {
            let uniform: f64 = OpenClosed01.sample(&mut classes);
            let mut left = uniform * all;
            let number = self.classes.iter().position(|class| {
                left -= class.share;
                left <= 0.0
            });
            let number = number.unwrap_or(self.classes.len() - 1);
            let class = &self.classes[number];
            let job = Job {
                arrival_ns: arrival(at),
                class: number,
                phase: 0,
                input_tokens: class.input.draw(&mut inputs),
                output_tokens: class.output.draw(&mut outputs),
                tenant: class.tenant,
                own_ns: 0,
                work_ns: 0,
                ttft_slo_ns: None,
                tpot_slo_ns: class.tpot_s.map(|seconds| (seconds * 1e9) as u64),
            };
            class.aim(job, &idle)
        };
        (0..count).map(&mut draw).collect()
    }
}

impl Class {
    /// Works out the targets of a request.
    fn aim(&self, mut job: Job, idle: &Scheduler) -> Result<Job, StudyError> {
        let mut request = job.request(0);
        request.arrival_ns = None;
        let estimate = idle.estimate(&request).map_err(|error| StudyError::Value(error.to_string()))?;
        job.own_ns = estimate.ttft_ns;
        // All but what the last batch needs for the stages behind the first.
        let config = idle.config();
        let batches = u64::from(job.input_tokens.div_ceil(config.max_batch_tokens));
        job.work_ns = estimate.own_ns + batches * config.cost.map_or(0, |cost| cost.c0.to_ns());
        job.ttft_slo_ns = self.ttft.map(|target| (target.own_times * job.own_ns as f64 + target.plus_s * 1e9) as u64);
        Ok(job)
    }
}

impl Lengths {
    fn draw(self, rng: &mut ChaCha8Rng) -> u32 {
        match self {
            Self::Fixed { tokens } => tokens,
            Self::LogNormal { mean, sigma, most } => {
                let normal: f64 = StandardNormal.sample(rng);
                let length = libm::exp(libm::log(mean) - sigma * sigma / 2.0 + sigma * normal);
                ((length + 0.5) as u32).clamp(1, most)
            }
            Self::LogUniform { least, most } => {
                let uniform: f64 = OpenClosed01.sample(rng);
                ((f64::from(least) * libm::pow(f64::from(most) / f64::from(least), uniform)) as u32).clamp(least, most)
            }
        }
    }
}

fn stream(seed: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number);
    rng
}
