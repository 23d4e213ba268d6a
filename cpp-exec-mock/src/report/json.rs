//! The JSON of `cpp-sim run` and `compare`: a public contract. A field keeps its name, unit and meaning; more may be added.

use std::collections::BTreeMap;

use cpp_sched::Config;
use serde::{Serialize, Serializer};

use super::faults::FaultsReport;
use crate::profile::Profile;
use crate::sim::{Distribution, Machine, Mode, Outcome, Regret, Slo};
use crate::workload::{TimeScale, Workload};

/// Everything about one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The whole effective configuration.
    pub config: ConfigReport,
    /// Requests by how they ended.
    pub requests: RequestsReport,
    /// Tokens over the finished requests.
    pub tokens: TokensReport,
    /// From the first arrival to the last result, in seconds of virtual time.
    pub duration_s: f64,
    /// Batches scheduled.
    pub batches: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Rates over `duration_s`.
    pub throughput: Throughput,
    /// Finished requests per second that met the SLO; null without one.
    pub goodput_requests_per_s: Option<f64>,
    /// Arrival to first token.
    pub ttft_s: DistributionReport,
    /// The same over requests whose prompt is longer than twice `max_batch_tokens`.
    pub ttft_long_s: DistributionReport,
    /// (E2E - TTFT) / (outputs - 1), over requests with more than one output.
    pub tpot_s: DistributionReport,
    /// Gaps between tokens, of all requests together.
    pub itl_s: DistributionReport,
    /// Arrival to last token.
    pub e2e_s: DistributionReport,
    /// Arrival to the decision of the first batch.
    pub queue_s: DistributionReport,
    /// Fractions of each stage's time, by cause; each row sums to 1.
    pub stages: Vec<BTreeMap<&'static str, f64>>,
    /// How much longer the pipeline was busy with prompts than it had to be; null if nobody looked.
    pub prefill: Option<PrefillReport>,
    /// What faults cost; only with faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultsReport>,
    /// Prompt tokens found in the prefix cache, counted once per admission.
    pub cache_hit_tokens: u64,
    /// Hash over every decision.
    pub decision_digest: String,
    /// Real time spent in the kernel per call, in nanoseconds.
    pub scheduler_ns: SchedulerNs,
}

/// The whole effective configuration of a run.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigReport {
    /// Of this package.
    pub version: &'static str,
    /// The mode that gave pipelining, chunking, balance and scheduling their defaults.
    pub mode: &'static str,
    /// Seed of everything drawn at random.
    pub seed: u64,
    /// Where the requests come from.
    pub workload: WorkloadReport,
    /// The machine that batches ran on.
    pub profile: Profile,
    /// The pipeline as it ran: the profile and what options changed of it.
    pub machine: Machine,
    /// The scheduler's configuration, in its own units: coefficients of cost are attoseconds.
    pub scheduler: Config,
    /// What a request must meet.
    pub slo: SloReport,
}

/// Where the requests come from.
#[derive(Clone, Debug, Serialize)]
pub struct WorkloadReport {
    /// The workload's own words.
    pub source: String,
    /// Requests in it.
    pub requests: u64,
    /// Factor on arrival times.
    pub time_scale: f64,
}

/// What a request must meet, in seconds; null is always met.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SloReport {
    /// Time to the first token.
    pub ttft_s: Option<f64>,
    /// Time per output token after the first.
    pub tpot_s: Option<f64>,
}

/// Requests by how they ended.
#[derive(Clone, Debug, Serialize)]
pub struct RequestsReport {
    /// Of the workload.
    pub submitted: u64,
    /// With their last token.
    pub finished: u64,
    /// By an abort.
    pub aborted: u64,
    /// Refused at submit.
    pub rejected: u64,
    /// Alive at the end.
    pub unfinished: u64,
    /// Refusals by reason.
    pub rejected_by_reason: BTreeMap<&'static str, u64>,
}

/// Tokens over the finished requests: `computed - recomputed = prompt - cached + output - finished`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TokensReport {
    /// Of the prompts.
    pub prompt: u64,
    /// Needed positions that no batch of the request ever ran.
    pub cached: u64,
    /// Positions that batches ran.
    pub computed: u64,
    /// Of these the surplus.
    pub recomputed: u64,
    /// Delivered.
    pub output: u64,
}

/// Rates over the whole run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Throughput {
    /// Finished requests.
    pub requests_per_s: f64,
    /// Output tokens of finished requests.
    pub output_tokens_per_s: f64,
    /// Their prompt and output tokens.
    pub total_tokens_per_s: f64,
}

/// Real time per call of the kernel.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SchedulerNs {
    /// Calls of `schedule`.
    pub schedule: DistributionReport,
    /// Calls of `complete`.
    pub complete: DistributionReport,
}

/// Busy periods of prompt work against the least time they could have taken, see [`RegretMeter`](crate::sim::RegretMeter).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrefillReport {
    /// Times during which some prompt was unfinished.
    pub periods: u64,
    /// How long they were together, in seconds.
    pub busy_s: f64,
    /// How long they had to be at least, whatever the cutting.
    pub least_s: f64,
    /// `busy_s / least_s - 1`; null without a period.
    pub regret: Option<f64>,
}

/// Mean and percentiles; null without samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DistributionReport {
    /// Sum / count.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<f64>,
    /// Samples.
    pub count: u64,
}

impl DistributionReport {
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub(super) fn new(d: &Distribution, unit_ns: f64) -> Self {
        let scale = |value: Option<f64>| value.map(|v| v / unit_ns);
        Self {
            mean: scale(d.mean),
            p50: scale(d.p50),
            p90: scale(d.p90),
            p99: scale(d.p99),
            max: scale(d.max.map(|v| v as f64)),
            count: d.count,
        }
    }
}

/// What a report says of a run's inputs.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The requests.
    pub workload: &'a Workload,
    /// Factor on arrival times.
    pub time_scale: TimeScale,
    /// Seed of everything drawn at random.
    pub seed: u64,
    /// The model on its hardware.
    pub profile: &'a Profile,
    /// The pipeline.
    pub machine: &'a Machine,
    /// The mode.
    pub mode: Mode,
    /// What a request must meet.
    pub slo: Slo,
}

impl RunReport {
    /// The report of a run.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn new(inputs: &Inputs<'_>, outcome: &Outcome) -> Self {
        const NS_PER_S: f64 = 1e9;
        let duration_s = outcome.duration_ns as f64 / NS_PER_S;
        let per_s = |count: u64| if outcome.duration_ns == 0 { 0.0 } else { count as f64 / duration_s };
        let seconds = |d: &Distribution| DistributionReport::new(d, NS_PER_S);
        let (requests, tokens, stats) = (&outcome.requests, &outcome.tokens, &outcome.stats);
        let slo_s = |ns: Option<u64>| ns.map(|ns| ns as f64 / NS_PER_S);
        Self {
            config: ConfigReport {
                version: env!("CARGO_PKG_VERSION"),
                mode: inputs.mode.name(),
                seed: inputs.seed,
                workload: WorkloadReport {
                    source: inputs.workload.source().to_owned(),
                    requests: inputs.workload.items().len() as u64,
                    time_scale: inputs.time_scale.to_string().parse().unwrap_or(f64::NAN),
                },
                profile: inputs.profile.clone(),
                machine: inputs.machine.clone(),
                scheduler: outcome.config,
                slo: SloReport { ttft_s: slo_s(inputs.slo.ttft_ns), tpot_s: slo_s(inputs.slo.tpot_ns) },
            },
            requests: RequestsReport {
                submitted: requests.submitted,
                finished: requests.finished,
                aborted: requests.aborted,
                rejected: requests.rejected,
                unfinished: requests.unfinished,
                rejected_by_reason: outcome.rejected.iter().map(|(&reason, r)| (reason, r.count)).collect(),
            },
            tokens: TokensReport {
                prompt: tokens.prompt,
                cached: tokens.cached,
                computed: tokens.computed,
                recomputed: tokens.recomputed,
                output: tokens.output,
            },
            duration_s,
            batches: stats.batches,
            preemptions: stats.preemptions,
            throughput: Throughput {
                requests_per_s: per_s(requests.finished),
                output_tokens_per_s: per_s(tokens.output),
                total_tokens_per_s: per_s(tokens.prompt + tokens.output),
            },
            goodput_requests_per_s: outcome.within_slo.map(per_s),
            ttft_s: seconds(&outcome.ttft),
            ttft_long_s: seconds(&outcome.ttft_long),
            tpot_s: seconds(&outcome.tpot),
            itl_s: seconds(&outcome.itl),
            e2e_s: seconds(&outcome.e2e),
            queue_s: seconds(&outcome.queue),
            stages: outcome.stages.iter().map(|stage| stage.fractions().collect()).collect(),
            prefill: None,
            faults: outcome.faults.as_ref().map(|faults| FaultsReport::new(faults, stats.batches_lost, stats.recomputed_tokens)),
            cache_hit_tokens: stats.cache_hit_tokens + stats.cache_hit_tokens_resumed,
            decision_digest: outcome.decision_digest.to_string(),
            scheduler_ns: SchedulerNs {
                schedule: DistributionReport::new(&outcome.schedule_real, 1.0),
                complete: DistributionReport::new(&outcome.complete_real, 1.0),
            },
        }
    }
}

impl RunReport {
    /// Adds what a [`RegretMeter`](crate::sim::RegretMeter) has found.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn with_regret(mut self, regret: Regret) -> Self {
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.prefill = Some(PrefillReport {
            periods: regret.periods,
            busy_s: seconds(regret.busy_ns),
            least_s: seconds(regret.least_ns),
            regret: regret.part(),
        });
        self
    }
}

/// The JSON of `compare`: `{"runs": {MODE: report, ...}}`, in the order of the runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CompareReport<'a> {
    #[serde(serialize_with = "by_mode")]
    runs: &'a [RunReport],
}

impl<'a> CompareReport<'a> {
    /// Of runs that have different modes.
    #[must_use]
    pub const fn new(runs: &'a [RunReport]) -> Self {
        Self { runs }
    }
}

fn by_mode<S: Serializer>(runs: &[RunReport], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(runs.iter().map(|run| (run.config.mode, run)))
}
