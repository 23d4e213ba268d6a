//! One scheduler through the requests of a study, in virtual time.

use cpp_sched::{Config, Event, RequestId, RowKind, Sample, Schedule, Scheduler, SubmitError};

use super::draw::Job;
use super::file::StudyError;
use crate::pipeline::{Piece, Pipe};
use crate::sim::{Machine, SimError};

/// What became of a request. Times are nanoseconds from the start of the study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// What was predicted for its first token at its submit, from its arrival; 0 unless asked for.
    pub predicted_ttft_ns: u64,
    /// First token; none: refused.
    pub first_token_ns: Option<u64>,
    /// Last token.
    pub last_token_ns: u64,
    /// Tokens.
    pub outputs: u32,
    /// The batch of its first chunk, counted from its submit.
    pub first_batch: Option<u64>,
    /// Refused as too late.
    pub rejected: bool,
    /// Relegated when its last chunk was scheduled.
    pub relegated: bool,
}

impl Fate {
    /// From the arrival to the first token.
    #[must_use]
    pub fn ttft_ns(&self, job: &Job) -> Option<u64> {
        Some(self.first_token_ns? - job.arrival_ns)
    }

    /// Mean time between tokens; none: fewer than two.
    #[must_use]
    pub fn tpot_ns(&self) -> Option<u64> {
        (self.last_token_ns - self.first_token_ns?).checked_div(u64::from(self.outputs.saturating_sub(1)))
    }

    /// Whether the first token came within its target; one that was refused never does.
    #[must_use]
    pub fn met_ttft(&self, job: &Job) -> bool {
        self.ttft_ns(job).is_some_and(|ttft| job.ttft_slo_ns.is_none_or(|target| ttft <= target))
    }

    /// Whether every target that the request has was met.
    #[must_use]
    pub fn met(&self, job: &Job) -> bool {
        self.met_ttft(job) && job.tpot_slo_ns.is_none_or(|target| self.tpot_ns().is_none_or(|tpot| tpot <= target))
    }
}

/// Runs all requests to their end. Results are taken first, then arrivals, then the pipeline is filled; as [`crate::sim`] does it.
///
/// # Errors
/// A configuration or a request that is not valid; anything else is a bug.
pub fn play(jobs: &[Job], machine: &Machine, config: Config) -> Result<Vec<Fate>, StudyError> {
    Ok(run(jobs, machine, config, Asked::default())?.unwrap_or_default())
}

/// As [`play`], but gives up, with nothing, as soon as more than `most_missed` requests have missed a target: whether a load can be met is known
/// long before the end where it cannot.
///
/// # Errors
/// As [`play`].
pub fn play_unless(jobs: &[Job], machine: &Machine, config: Config, most_missed: usize) -> Result<Option<Vec<Fate>>, StudyError> {
    run(jobs, machine, config, Asked { most_missed: Some(most_missed), ..Asked::default() })
}

/// As [`play`], and asks for a prediction before each submit. A prediction looks at every request that waits.
///
/// # Errors
/// As [`play`].
pub fn play_predicting(jobs: &[Job], machine: &Machine, config: Config) -> Result<Vec<Fate>, StudyError> {
    Ok(run(jobs, machine, config, Asked { predict: true, ..Asked::default() })?.unwrap_or_default())
}

/// What is wanted of a run beside the fates.
#[derive(Clone, Copy, Default)]
struct Asked {
    predict: bool,
    most_missed: Option<usize>,
}

fn run(jobs: &[Job], machine: &Machine, config: Config, asked: Asked) -> Result<Option<Vec<Fate>>, StudyError> {
    let mut missed = 0;
    let mut scheduler = Scheduler::new(config).map_err(SimError::from)?;
    let mut pipe = Pipe::new(config.stages, machine.links, machine.return_ns, 0);
    let mut fates = vec![Fate::default(); jobs.len()];
    let mut submitted_at = vec![0u64; jobs.len()];
    let (mut now, mut next, mut batches) = (0u64, 0usize, 0u64);
    let (mut stage_ns, mut touched) = (Vec::new(), Vec::new());
    loop {
        while let Some(id) = pipe.take_result(now) {
            scheduler.tick(now);
            let rows = scheduler.batch(id).map_or(&[][..], |batch| batch.rows());
            let samples: Vec<_> = rows.iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[0] }).collect();
            scheduler.complete(id, &samples).map_err(SimError::from)?;
            for event in scheduler.events() {
                if let Event::Token { request, .. } = event {
                    let fate = &mut fates[place(request)];
                    fate.first_token_ns.get_or_insert(now);
                    fate.last_token_ns = now;
                    fate.outputs += 1;
                    let job = &jobs[place(request)];
                    if fate.outputs == job.output_tokens && !fate.met(job) {
                        missed += 1;
                    }
                }
            }
            if asked.most_missed.is_some_and(|most| missed > most) {
                return Ok(None);
            }
        }
        while let Some(job) = jobs.get(next).filter(|job| job.arrival_ns <= now) {
            scheduler.tick(now);
            let request = job.request(next as u64);
            let fate = &mut fates[next];
            if asked.predict {
                fate.predicted_ttft_ns = scheduler.estimate(&request).map_or(0, |estimate| estimate.ttft_ns);
            }
            submitted_at[next] = batches;
            match scheduler.submit(request) {
                Ok(()) => {}
                Err(SubmitError::TooLate { .. }) => {
                    fate.rejected = true;
                    missed += 1;
                }
                Err(error) => return Err(StudyError::Value(error.to_string())),
            }
            next += 1;
        }
        scheduler.tick(now);
        if pipe.in_flight() < config.depth() as usize {
            match scheduler.schedule() {
                Schedule::Batch(scheduled) => {
                    let batch = scheduled.batch();
                    touched.clear();
                    for row in batch.rows() {
                        let at = place(row.request);
                        fates[at].first_batch.get_or_insert(batches - submitted_at[at]);
                        if config.relegation && row.kind == RowKind::Prefill {
                            touched.push(row.request);
                        }
                    }
                    batches += 1;
                    now += machine.scheduler_ns;
                    stage_ns.clear();
                    stage_ns.extend(machine.stage_costs.iter().map(|cost| cost.cost(batch.terms()).to_ns()));
                    let (transmit_ns, latency_ns) = (machine.hop.transmit_ns(batch.num_tokens()), machine.hop.latency_ns);
                    pipe.push(batch.id(), &Piece { not_before_ns: now, stage_ns: &stage_ns, transmit_ns, latency_ns });
                    for &request in &touched {
                        fates[place(request)].relegated = scheduler.is_relegated(request) == Some(true);
                    }
                    continue;
                }
                Schedule::Empty(reason) => {
                    if pipe.in_flight() == 0 && next == jobs.len() && !scheduler.is_idle() {
                        let unfinished = scheduler.num_unfinished();
                        return Err(SimError::Stuck { now_ns: now, unfinished, reason }.into());
                    }
                }
            }
        }
        let arrival = jobs.get(next).map(|job| job.arrival_ns);
        match arrival.into_iter().chain(pipe.next_result_ns()).min() {
            Some(time) => now = now.max(time),
            None => return Ok(Some(fates)),
        }
    }
}

const fn place(request: RequestId) -> usize {
    request.0 as usize
}
