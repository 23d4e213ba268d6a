//! Pools for prompts and outputs against the same devices for both.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::DistributionReport;
use super::units;
use crate::pipeline::StageTime;
use crate::sim::{Distribution, PoolsOutcome};

/// One arrangement under one load.
#[derive(Clone, Debug, Serialize)]
pub struct PoolsRun {
    /// `colocated`, or when KV is handed over.
    pub name: &'static str,
    /// Requests with their last token.
    pub finished: u64,
    /// Requests that a scheduler refused.
    pub rejected: u64,
    /// Virtual time from the first arrival to the last result.
    pub duration_s: f64,
    /// Arrival to first token.
    pub ttft_s: DistributionReport,
    /// (E2E - TTFT) / (outputs - 1).
    pub tpot_s: DistributionReport,
    /// Arrival to last token.
    pub e2e_s: DistributionReport,
    /// From the first token to the arrival of all KV; null where it stays.
    pub handover_s: Option<DistributionReport>,
    /// Transfers that never ended.
    pub transfers_failed: u64,
    /// Mean part of the time that stages are idle: those for prompts (colocated: all of them).
    pub prefill_idle: f64,
    /// Those for outputs.
    pub decode_idle: Option<f64>,
    /// Mean part of the time that links for KV are idle.
    pub link_idle: Option<f64>,
    /// Hashes over the decisions, of each scheduler.
    pub decision_digests: Vec<String>,
}

/// All arrangements under one load.
#[derive(Clone, Debug, Serialize)]
pub struct PoolsPoint {
    /// Where the requests come from.
    pub workload: String,
    /// Mean tokens of a prompt.
    pub prompt_mean: f64,
    /// Mean tokens of an output.
    pub output_mean: f64,
    /// Requests per second.
    pub rate: f64,
    /// Colocated first.
    pub runs: Vec<PoolsRun>,
    /// Which is best: by mean TTFT, TPOT and E2E.
    pub best: Best,
}

/// Names of the best arrangements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Best {
    /// By mean time to the first token.
    pub ttft: &'static str,
    /// By mean time per output token.
    pub tpot: &'static str,
    /// By mean time to the last token.
    pub e2e: &'static str,
}

/// A table of loads and arrangements.
#[derive(Clone, Debug, Serialize)]
pub struct PoolsReport {
    /// The devices, as text.
    pub system: String,
    /// The loads.
    pub points: Vec<PoolsPoint>,
}

/// The mean part of the time that some stages are idle.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
pub fn idle(stages: &[StageTime]) -> f64 {
    let parts = stages.iter().map(|stage| if stage.window_ns == 0 { 0.0 } else { 1.0 - stage.busy_ns as f64 / stage.window_ns as f64 });
    parts.sum::<f64>() / stages.len().max(1) as f64
}

impl PoolsRun {
    /// The report of two pools.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn of_pools(name: &'static str, outcome: &PoolsOutcome) -> Self {
        let seconds = |d: &Distribution| DistributionReport::new(d, 1e9);
        let window = outcome.duration_ns.max(1) as f64 * outcome.links_busy_ns.len() as f64;
        let busy: u64 = outcome.links_busy_ns.iter().sum();
        Self {
            name,
            finished: outcome.requests.finished,
            rejected: outcome.requests.rejected,
            duration_s: outcome.duration_ns as f64 / 1e9,
            ttft_s: seconds(&outcome.ttft),
            tpot_s: seconds(&outcome.tpot),
            e2e_s: seconds(&outcome.e2e),
            handover_s: Some(seconds(&outcome.handover)),
            transfers_failed: outcome.transfers_failed,
            prefill_idle: idle(&outcome.prefill.stages),
            decode_idle: Some(idle(&outcome.decode.stages)),
            link_idle: Some(1.0 - busy as f64 / window),
            decision_digests: vec![outcome.prefill.decision_digest.to_string(), outcome.decode.decision_digest.to_string()],
        }
    }

    /// The report of pipelines that do both.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn colocated(run: &Colocated) -> Self {
        let seconds = |d: &Distribution| DistributionReport::new(d, 1e9);
        Self {
            name: "colocated",
            finished: run.finished,
            rejected: run.rejected,
            duration_s: run.duration_ns as f64 / 1e9,
            ttft_s: seconds(&run.ttft),
            tpot_s: seconds(&run.tpot),
            e2e_s: seconds(&run.e2e),
            handover_s: None,
            transfers_failed: 0,
            prefill_idle: idle(&run.stages),
            decode_idle: None,
            link_idle: None,
            decision_digests: run.decision_digests.clone(),
        }
    }
}

/// What pipelines side by side have done, each with its part of the requests. Times are nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Colocated {
    /// Requests with their last token.
    pub finished: u64,
    /// Requests refused.
    pub rejected: u64,
    /// The longest of their windows.
    pub duration_ns: u64,
    /// Arrival to first token.
    pub ttft: Distribution,
    /// Time per output token.
    pub tpot: Distribution,
    /// Arrival to last token.
    pub e2e: Distribution,
    /// All their stages.
    pub stages: Vec<StageTime>,
    /// Hashes over their decisions.
    pub decision_digests: Vec<String>,
}

impl Best {
    /// Of some runs; the first of equal ones.
    #[must_use]
    pub fn of(runs: &[PoolsRun]) -> Self {
        let best = |value: fn(&PoolsRun) -> Option<f64>| {
            let known = runs.iter().filter_map(|run| Some((run.name, value(run)?)));
            known.min_by(|a, b| a.1.total_cmp(&b.1)).map_or("", |(name, _)| name)
        };
        Self { ttft: best(|run| run.ttft_s.mean), tpot: best(|run| run.tpot_s.mean), e2e: best(|run| run.e2e_s.mean) }
    }
}

/// The table for a terminal.
#[must_use]
pub fn pools_table(report: &PoolsReport) -> String {
    let mut out = format!("{}\n", report.system);
    for point in &report.points {
        let _ = writeln!(
            out,
            "\nprompts of {}, outputs of {}, {} requests/s",
            units::number(Some(point.prompt_mean)),
            units::number(Some(point.output_mean)),
            units::number(Some(point.rate))
        );
        let _ = writeln!(
            out,
            "{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10} |{:>9}{:>8}{:>6}",
            "", "TTFT", "p99", "TPOT", "p99", "E2E", "handover", "prefill", "decode", "link"
        );
        for run in &point.runs {
            let idle = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), units::whole_percent);
            let _ = writeln!(
                out,
                "{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10} |{:>9}{:>8}{:>6}",
                run.name,
                units::seconds(run.ttft_s.mean),
                units::seconds(run.ttft_s.p99),
                units::seconds(run.tpot_s.mean),
                units::seconds(run.tpot_s.p99),
                units::seconds(run.e2e_s.mean),
                run.handover_s.map_or_else(|| "-".to_owned(), |handover| units::seconds(handover.mean)),
                idle(Some(run.prefill_idle)),
                idle(run.decode_idle),
                idle(run.link_idle)
            );
            if run.rejected > 0 || run.transfers_failed > 0 {
                let _ = writeln!(out, "{:<10}{} rejected, {} transfers failed", "", run.rejected, run.transfers_failed);
            }
        }
        let _ = writeln!(out, "best: TTFT {}, TPOT {}, E2E {}", point.best.ttft, point.best.tpot, point.best.e2e);
    }
    out.push_str("\nhandover = from the first token to the arrival of all KV; right: percent of the time idle\n");
    out
}
