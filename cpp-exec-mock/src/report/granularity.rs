//! Whole batches, requests or chunks, with decisions and transfers that block or do not: twelve runs in one table.

use std::fmt::Write as _;

use serde::Serialize;

use super::json::RunReport;
use super::units;
use crate::pipeline::{Granularity, Scheduling, Transfer};

/// One of the runs.
#[derive(Clone, Debug, Serialize)]
pub struct GranularityRun {
    /// When batches were decided.
    pub scheduling: Scheduling,
    /// Sends and receives.
    pub transfers: Transfer,
    /// What passed the stages as one.
    pub granularity: Granularity,
    /// What was measured.
    pub report: RunReport,
}

/// All of them: each run with whole batches first, then the others that have the same scheduling and transfers.
#[derive(Clone, Debug, Serialize)]
pub struct GranularityReport {
    /// The runs.
    pub runs: Vec<GranularityRun>,
}

/// The runs as a table, with ratios to whole batches and the share of the stages' time by cause.
#[must_use]
pub fn granularity_table(report: &GranularityReport) -> String {
    let mut out = String::new();
    let Some(first) = report.runs.first() else { return out };
    super::table::heading(&mut out, &first.report, Some(first.report.config.mode));
    let _ = write!(out, "\n{:<7}{:<11}{:<7}{:>10}{:>7}{:>10}{:>10} |", "decide", "transfers", "pieces", "TTFT", "", "TTFT p99", "TPOT");
    let _ = writeln!(out, "{:>5}{:>6}{:>6}{:>7}{:>6}{:>6}", "busy", "comm.", "sched", "neigh.", "dep.", "other");
    let mut batch = None;
    for run in &report.runs {
        let (scheduling, transfers, granularity) = names(run);
        let ttft = run.report.ttft_s.mean;
        if run.granularity == Granularity::Batch {
            batch = ttft;
        }
        let _ = write!(
            out,
            "{scheduling:<7}{transfers:<11}{granularity:<7}{:>10}{:>7}{:>10}{:>10} |",
            units::seconds(ttft),
            units::ratio(ttft, batch),
            units::seconds(run.report.ttft_s.p99),
            units::seconds(run.report.tpot_s.mean)
        );
        let share = |causes: &[&str]| units::whole_percent(share(&run.report, causes));
        let _ = writeln!(
            out,
            "{:>5}{:>6}{:>6}{:>7}{:>6}{:>6}",
            share(&["busy"]),
            share(&["communication"]),
            share(&["scheduler"]),
            share(&["upstream", "downstream"]),
            share(&["dependency"]),
            share(&["fill", "drain", "no_work", "fault"])
        );
    }
    out.push_str(
        "\nThe ratio is to whole batches with the same decisions and transfers. Right: percent of all stages'\n\
         time, busy or idle by cause (neigh. = up- or downstream stages; other = fill, drain, no work).\n",
    );
    out
}

fn names(run: &GranularityRun) -> (&'static str, &'static str, &'static str) {
    let scheduling = match run.scheduling {
        Scheduling::Sync => "sync",
        Scheduling::Ahead => "ahead",
    };
    let transfers = match run.transfers {
        Transfer::Blocking => "blocking",
        Transfer::Overlapped => "overlapped",
    };
    let granularity = match run.granularity {
        Granularity::Batch => "batch",
        Granularity::Request => "request",
        Granularity::Chunk => "chunk",
    };
    (scheduling, transfers, granularity)
}

/// The mean over the stages of the fractions of some causes.
#[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
fn share(report: &RunReport, causes: &[&str]) -> f64 {
    let sum: f64 = report.stages.iter().flat_map(|stage| causes.iter().filter_map(|&cause| stage.get(cause))).sum();
    sum / report.stages.len().max(1) as f64
}
