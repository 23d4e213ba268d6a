//! What faults cost, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::DistributionReport;
use super::units;
use crate::sim::{FaultKind, FaultOutcome, Incident};

/// What all faults of a run cost.
#[derive(Clone, Debug, Serialize)]
pub struct FaultsReport {
    /// Each of them, in order of time.
    pub events: Vec<FaultReport>,
    /// Batches that were lost.
    pub batches_lost: u64,
    /// Tokens that were scheduled once more, after a loss or a preemption.
    pub recomputed_tokens: u64,
    /// TTFT of requests with a first token before the first fault.
    pub ttft_before_s: DistributionReport,
    /// Of those between whose arrival and first token a fault was going on, or had not been recovered from.
    pub ttft_during_s: DistributionReport,
    /// Of those that arrived after a recovery.
    pub ttft_after_s: DistributionReport,
}

/// One fault as it came about. Times are seconds from the start of the workload, null where it did not come so far.
#[derive(Clone, Debug, Serialize)]
pub struct FaultReport {
    /// What went wrong, and how much slower for `slow`.
    pub kind: FaultKind,
    /// Which stage; null for a lost result.
    pub stage: Option<u32>,
    /// When it came about.
    pub began_s: Option<f64>,
    /// When it was noticed; null for what is not noticed (`stall`, `slow`).
    pub noticed_s: Option<f64>,
    /// When all stages worked again.
    pub up_s: Option<f64>,
    /// When the backlog was down again to what it was before.
    pub recovered_s: Option<f64>,
    /// From the beginning until then.
    pub recovery_s: Option<f64>,
    /// Batches that were lost by it.
    pub batches_lost: u64,
    /// Requests without a first token when it began, or their mean until then, if that is more.
    pub backlog_before: u64,
    /// The most of them until it was recovered from.
    pub backlog_peak: u64,
}

#[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
fn seconds(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64 / 1e9)
}

impl FaultsReport {
    pub(super) fn new(outcome: &FaultOutcome, batches_lost: u64, recomputed_tokens: u64) -> Self {
        Self {
            events: outcome.incidents.iter().map(FaultReport::new).collect(),
            batches_lost,
            recomputed_tokens,
            ttft_before_s: DistributionReport::new(&outcome.ttft_before, 1e9),
            ttft_during_s: DistributionReport::new(&outcome.ttft_during, 1e9),
            ttft_after_s: DistributionReport::new(&outcome.ttft_after, 1e9),
        }
    }
}

impl FaultReport {
    fn new(incident: &Incident) -> Self {
        let kind = incident.fault.kind;
        Self {
            kind,
            stage: (kind != FaultKind::Lose).then_some(incident.fault.stage),
            began_s: seconds(incident.began_ns),
            noticed_s: seconds(incident.noticed_ns),
            up_s: seconds(incident.up_ns),
            recovered_s: seconds(incident.recovered_ns),
            recovery_s: seconds(incident.recovery_ns()),
            batches_lost: incident.batches_lost,
            backlog_before: incident.backlog_before,
            backlog_peak: incident.backlog_peak,
        }
    }
}

/// Faults that a table shows one by one.
const SHOWN: usize = 12;

/// The table of the faults of a run.
pub(super) fn faults_table(out: &mut String, report: &FaultsReport) {
    let _ = writeln!(
        out,
        "\n{:<8}{:>6}{:>12}{:>12}{:>12}{:>14}{:>14}{:>9}{:>9}",
        "fault", "stage", "began", "noticed", "up", "recovered in", "batches lost", "backlog", "peak"
    );
    for event in report.events.iter().take(SHOWN) {
        let _ = writeln!(
            out,
            "{:<8}{:>6}{:>12}{:>12}{:>12}{:>14}{:>14}{:>9}{:>9}",
            event.kind.name(),
            event.stage.map_or_else(|| "-".to_owned(), |stage| stage.to_string()),
            units::seconds(event.began_s),
            units::seconds(event.noticed_s),
            units::seconds(event.up_s),
            units::seconds(event.recovery_s),
            units::count(event.batches_lost),
            units::count(event.backlog_before),
            units::count(event.backlog_peak)
        );
    }
    if report.events.len() > SHOWN {
        let _ = writeln!(out, "and {} more, see --json", report.events.len() - SHOWN);
    }
    for (when, ttft) in
        [("before the first", &report.ttft_before_s), ("while one goes on", &report.ttft_during_s), ("after", &report.ttft_after_s)]
    {
        let (mean, p99) = (units::seconds(ttft.mean), units::seconds(ttft.p99));
        let _ = writeln!(out, "TTFT {when:<18}{mean:>10} mean, {p99} p99, {} requests", units::count(ttft.count));
    }
    let _ = writeln!(
        out,
        "{} batches lost, {} tokens computed once more (after losses and preemptions)",
        units::count(report.batches_lost),
        units::count(report.recomputed_tokens)
    );
}
