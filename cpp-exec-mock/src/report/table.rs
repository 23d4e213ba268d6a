//! Tables for a terminal: plain text, at most 100 columns.

use std::fmt::Write as _;

use super::faults::faults_table;
use super::json::{DistributionReport, RunReport};
use super::units;

/// Columns that a table never exceeds.
const WIDTH: usize = 100;

/// One run, for people.
#[must_use]
pub fn run_table(report: &RunReport) -> String {
    let mut out = String::new();
    heading(&mut out, report, Some(report.config.mode));
    let requests = &report.requests;
    line(
        &mut out,
        "requests",
        &format!(
            "{} submitted, {} finished, {} aborted, {} rejected, {} unfinished",
            units::count(requests.submitted),
            units::count(requests.finished),
            units::count(requests.aborted),
            units::count(requests.rejected),
            units::count(requests.unfinished)
        ),
    );
    let tokens = &report.tokens;
    line(
        &mut out,
        "tokens",
        &format!(
            "{} prompt, {} cached, {} computed, {} recomputed, {} output",
            units::count(tokens.prompt),
            units::count(tokens.cached),
            units::count(tokens.computed),
            units::count(tokens.recomputed),
            units::count(tokens.output)
        ),
    );
    line(
        &mut out,
        "run",
        &format!(
            "{}, {} batches, {} preemptions",
            units::seconds(Some(report.duration_s)),
            units::count(report.batches),
            units::count(report.preemptions)
        ),
    );
    let goodput = report.goodput_requests_per_s.map_or_else(String::new, |g| format!(", {} within the SLO", units::number(Some(g))));
    line(
        &mut out,
        "per second",
        &format!(
            "{} requests{goodput}, {} output tokens, {} tokens in all",
            units::number(Some(report.throughput.requests_per_s)),
            units::number(Some(report.throughput.output_tokens_per_s)),
            units::number(Some(report.throughput.total_tokens_per_s))
        ),
    );
    if let Some(prefill) = &report.prefill {
        let regret = prefill.regret.map_or_else(|| "-".to_owned(), units::percent);
        let (busy, least) = (units::seconds(Some(prefill.busy_s)), units::seconds(Some(prefill.least_s)));
        let periods = units::count(prefill.periods);
        line(
            &mut out,
            "prompt work",
            &format!("{busy} in {periods} busy periods, regret {regret}: {least} is the least that any cutting takes"),
        );
    }
    line(&mut out, "decisions", &report.decision_digest);
    out.push('\n');
    let _ = writeln!(out, "{:<22}{:>12}{:>12}{:>12}{:>12}{:>12}{:>14}", "", "mean", "p50", "p90", "p99", "max", "count");
    for (name, d) in [
        ("TTFT", &report.ttft_s),
        ("TTFT, long prompts", &report.ttft_long_s),
        ("TPOT", &report.tpot_s),
        ("ITL", &report.itl_s),
        ("E2E", &report.e2e_s),
        ("queue", &report.queue_s),
    ] {
        distribution(&mut out, name, d, 1.0);
    }
    distribution(&mut out, "schedule(), real time", &report.scheduler_ns.schedule, 1e9);
    distribution(&mut out, "complete(), real time", &report.scheduler_ns.complete, 1e9);
    out.push('\n');
    stages(&mut out, report);
    if let Some(faults) = &report.faults {
        faults_table(&mut out, faults);
    }
    out
}

/// Several runs side by side, with ratios to the first; at most four fit.
#[must_use]
pub fn compare_table(reports: &[RunReport]) -> String {
    let mut out = String::new();
    let Some(first) = reports.first() else { return out };
    heading(&mut out, first, None);
    out.push('\n');
    let _ = write!(out, "{:<18}", "");
    for (i, report) in reports.iter().enumerate() {
        let _ = if i == 0 { write!(out, "{:>11}", report.config.mode) } else { write!(out, "{:>12}{:>8}", report.config.mode, "") };
    }
    trim_line(&mut out);
    type Value = fn(&RunReport) -> Option<f64>;
    let times: [(&str, Value); 13] = [
        ("TTFT mean", |r| r.ttft_s.mean),
        ("TTFT p50", |r| r.ttft_s.p50),
        ("TTFT p99", |r| r.ttft_s.p99),
        ("TTFT mean, long", |r| r.ttft_long_s.mean),
        ("TTFT p99, long", |r| r.ttft_long_s.p99),
        ("TPOT mean", |r| r.tpot_s.mean),
        ("TPOT p99", |r| r.tpot_s.p99),
        ("ITL p99", |r| r.itl_s.p99),
        ("E2E mean", |r| r.e2e_s.mean),
        ("E2E p99", |r| r.e2e_s.p99),
        ("queue mean", |r| r.queue_s.mean),
        ("queue p99", |r| r.queue_s.p99),
        ("duration", |r| Some(r.duration_s)),
    ];
    for (name, value) in times {
        compared(&mut out, name, reports, value, units::seconds);
    }
    let rates: [(&str, Value); 3] = [
        ("requests/s", |r| Some(r.throughput.requests_per_s)),
        ("output tokens/s", |r| Some(r.throughput.output_tokens_per_s)),
        ("stages busy", |r| {
            let busy: f64 = r.stages.iter().filter_map(|stage| stage.get("busy")).sum();
            (!r.stages.is_empty()).then(|| busy / r.stages.len() as f64)
        }),
    ];
    for (name, value) in rates {
        let show = if name == "stages busy" { |v: Option<f64>| v.map_or_else(String::new, units::percent) } else { units::number };
        compared(&mut out, name, reports, value, show);
    }
    if reports.iter().any(|report| report.prefill.is_some()) {
        compared(
            &mut out,
            "prompt regret",
            reports,
            |r| r.prefill.and_then(|p| p.regret),
            |v| v.map_or_else(|| "-".to_owned(), units::percent),
        );
    }
    if first.goodput_requests_per_s.is_some() {
        compared(&mut out, "within SLO/s", reports, |r| r.goodput_requests_per_s, units::number);
    }
    type Count = fn(&RunReport) -> u64;
    let counts: [(&str, Count); 5] = [
        ("finished", |r| r.requests.finished),
        ("rejected", |r| r.requests.rejected),
        ("batches", |r| r.batches),
        ("preemptions", |r| r.preemptions),
        ("recomputed", |r| r.tokens.recomputed),
    ];
    #[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
    for (name, value) in counts {
        let _ = write!(out, "{name:<18}");
        for (i, report) in reports.iter().enumerate() {
            let ratio = units::ratio(Some(value(report) as f64), Some(value(first) as f64));
            cell(&mut out, i, &units::count(value(report)), &ratio);
        }
        trim_line(&mut out);
    }
    out.push_str("\nlong = prompts of more than twice the token budget of a batch; ratios are to the first column\n");
    out
}

pub(super) fn heading(out: &mut String, report: &RunReport, mode: Option<&str>) {
    let config = &report.config;
    line(out, "workload", &format!("{} ({} requests)", config.workload.source, units::count(config.workload.requests)));
    let scheduler = &config.scheduler;
    let mode = mode.map_or_else(String::new, |mode| format!(", mode {mode}"));
    line(
        out,
        "system",
        &format!(
            "{}, {} stages, {} tokens a batch, {} blocks of {}{mode}",
            config.profile.name,
            scheduler.stages,
            units::count(scheduler.max_batch_tokens.into()),
            units::count(scheduler.num_blocks.into()),
            scheduler.block_size
        ),
    );
}

/// A label and a text, broken at spaces so that it stays within the width of the table.
fn line(out: &mut String, label: &str, text: &str) {
    const INDENT: usize = 12;
    let _ = write!(out, "{label:<INDENT$}");
    out.push_str(wrap(text, INDENT).trim_start());
    out.push('\n');
}

/// A text in lines of at most 100 columns, each indented, broken at spaces; a word that is longer stays whole. No line break at the end.
#[must_use]
pub fn wrap(text: &str, indent: usize) -> String {
    let mut out = " ".repeat(indent);
    let mut column = indent;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        }
        if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

fn distribution(out: &mut String, name: &str, d: &DistributionReport, per_second: f64) {
    let _ = write!(out, "{name:<22}");
    for value in [d.mean, d.p50, d.p90, d.p99, d.max] {
        let _ = write!(out, "{:>12}", units::seconds(value.map(|v| v / per_second)));
    }
    let _ = writeln!(out, "{:>14}", units::count(d.count));
}

/// One row a stage, one column a cause that takes any time at all.
fn stages(out: &mut String, report: &RunReport) {
    let causes = ["busy", "fill", "drain", "communication", "scheduler", "upstream", "downstream", "dependency", "no_work", "fault"];
    let fraction = |stage: usize, cause| report.stages[stage].get(cause).copied().unwrap_or(0.0);
    let shown: Vec<&str> =
        causes.into_iter().filter(|&cause| cause == "busy" || (0..report.stages.len()).any(|s| fraction(s, cause) > 0.0)).collect();
    let width = |cause: &str| cause.len().max(7) + 1;
    let _ = write!(out, "{:<5}", "stage");
    for cause in &shown {
        let _ = write!(out, "{cause:>width$}", width = width(cause));
    }
    out.push('\n');
    for stage in 0..report.stages.len() {
        let _ = write!(out, "{stage:<5}");
        for cause in &shown {
            let _ = write!(out, "{:>width$}", units::percent(fraction(stage, cause)), width = width(cause));
        }
        out.push('\n');
    }
}

fn compared(out: &mut String, name: &str, reports: &[RunReport], value: fn(&RunReport) -> Option<f64>, show: fn(Option<f64>) -> String) {
    let _ = write!(out, "{name:<18}");
    for (i, report) in reports.iter().enumerate() {
        cell(out, i, &show(value(report)), &units::ratio(value(report), value(&reports[0])));
    }
    trim_line(out);
}

/// The first column shows values, the others values and ratios.
fn cell(out: &mut String, column: usize, value: &str, ratio: &str) {
    let _ = if column == 0 { write!(out, "{value:>11}") } else { write!(out, "{value:>12}{ratio:>8}") };
}

fn trim_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}
