//! The numbers of all runs side by side, with ratios to the first; and where the stages' time went.

use std::fmt::Write as _;

use super::svg::{WIDTH, escape, tenth};
use super::{HtmlRun, series_legend};
use crate::pipeline::Cause;
use crate::report::json::RunReport;
use crate::report::units;

type Value = fn(&RunReport) -> Option<f64>;
type Show = fn(Option<f64>) -> String;

/// A row: the path of its number in the JSON, what it is called, the number, and how it is shown.
type Row = (&'static str, &'static str, Value, Show);

#[expect(clippy::cast_precision_loss, reason = "counts, shown")]
fn rows() -> Vec<(&'static str, Vec<Row>)> {
    let count: Show = |value| value.map_or_else(|| "-".to_owned(), |v| units::count(v as u64));
    let percent: Show = |value| value.map_or_else(|| "-".to_owned(), units::percent);
    vec![
        (
            "time to first token",
            vec![
                ("ttft_s.mean", "mean", |r| r.ttft_s.mean, units::seconds),
                ("ttft_s.p50", "p50", |r| r.ttft_s.p50, units::seconds),
                ("ttft_s.p90", "p90", |r| r.ttft_s.p90, units::seconds),
                ("ttft_s.p99", "p99", |r| r.ttft_s.p99, units::seconds),
                ("ttft_long_s.mean", "mean, long prompts", |r| r.ttft_long_s.mean, units::seconds),
                ("ttft_long_s.p99", "p99, long prompts", |r| r.ttft_long_s.p99, units::seconds),
            ],
        ),
        (
            "after it",
            vec![
                ("tpot_s.mean", "TPOT mean", |r| r.tpot_s.mean, units::seconds),
                ("tpot_s.p99", "TPOT p99", |r| r.tpot_s.p99, units::seconds),
                ("itl_s.p50", "ITL p50", |r| r.itl_s.p50, units::seconds),
                ("itl_s.p99", "ITL p99", |r| r.itl_s.p99, units::seconds),
                ("itl_s.max", "ITL max", |r| r.itl_s.max, units::seconds),
                ("e2e_s.mean", "E2E mean", |r| r.e2e_s.mean, units::seconds),
                ("e2e_s.p99", "E2E p99", |r| r.e2e_s.p99, units::seconds),
                ("queue_s.mean", "queue mean", |r| r.queue_s.mean, units::seconds),
                ("queue_s.p99", "queue p99", |r| r.queue_s.p99, units::seconds),
            ],
        ),
        (
            "the run",
            vec![
                ("duration_s", "duration", |r| Some(r.duration_s), units::seconds),
                ("throughput.requests_per_s", "requests/s", |r| Some(r.throughput.requests_per_s), units::number),
                ("throughput.output_tokens_per_s", "output tokens/s", |r| Some(r.throughput.output_tokens_per_s), units::number),
                ("throughput.total_tokens_per_s", "tokens/s", |r| Some(r.throughput.total_tokens_per_s), units::number),
                ("goodput_requests_per_s", "within the SLO/s", |r| r.goodput_requests_per_s, units::number),
                ("prefill.regret", "regret of prompt work", |r| r.prefill.and_then(|p| p.regret), percent),
                ("requests.finished", "finished", |r| Some(r.requests.finished as f64), count),
                ("requests.rejected", "rejected", |r| Some(r.requests.rejected as f64), count),
                ("requests.aborted", "aborted", |r| Some(r.requests.aborted as f64), count),
                ("batches", "batches", |r| Some(r.batches as f64), count),
                ("preemptions", "preemptions", |r| Some(r.preemptions as f64), count),
                ("tokens.prompt", "prompt tokens", |r| Some(r.tokens.prompt as f64), count),
                ("tokens.cached", "of these cached", |r| Some(r.tokens.cached as f64), count),
                ("tokens.recomputed", "recomputed", |r| Some(r.tokens.recomputed as f64), count),
                ("tokens.output", "output tokens", |r| Some(r.tokens.output as f64), count),
            ],
        ),
    ]
}

/// The table. Each number is in the attribute `data-value` in full, with its path in the JSON in `data-key`.
pub(super) fn section(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"summary\"><h2>Summary</h2><p>");
    out.push_str(if runs.len() > 1 { "Ratios are to the first run. " } else { "" });
    out.push_str("Long prompts have more than twice the tokens that a batch may have. ");
    out.push_str("Regret: how much longer the pipeline was busy with prompts than the shortest time in which any cutting could have done what was run.</p>");
    out.push_str("<div class=\"scroll\"><table><thead><tr><th></th>");
    for (index, run) in runs.iter().enumerate() {
        let _ = write!(out, "<th>{}</th>", escape(run.name()));
        if index > 0 {
            out.push_str("<th></th>");
        }
    }
    out.push_str("</tr></thead><tbody>");
    for (group, rows) in rows() {
        let shown: Vec<&Row> = rows.iter().filter(|(_, _, value, _)| runs.iter().any(|run| value(&run.report).is_some())).collect();
        if shown.is_empty() {
            continue;
        }
        let _ = write!(out, "<tr class=\"group\"><td>{group}</td></tr>");
        for (key, name, value, show) in shown {
            let _ = write!(out, "<tr><td>{name}</td>");
            for (index, run) in runs.iter().enumerate() {
                let number = value(&run.report);
                let exact = number.map_or_else(|| "null".to_owned(), |v| v.to_string());
                let name = escape(run.name());
                let _ = write!(out, "<td data-run=\"{name}\" data-key=\"{key}\" data-value=\"{exact}\">{}</td>", show(number));
                if index > 0 {
                    let _ = write!(out, "<td class=\"ratio\">{}</td>", units::ratio(number, value(&runs[0].report)));
                }
            }
            out.push_str("</tr>");
        }
    }
    out.push_str("</tbody></table></div></section>");
}

/// A bar for each stage of each run: busy time and idle time by cause.
pub(super) fn bubbles(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"bubbles\"><h2>Where the stages' time went</h2><p>From the first arrival to the last result; every idle nanosecond has one cause.</p>");
    let names = std::iter::once("busy").chain(Cause::ALL.iter().map(|cause| cause.name()));
    let shown: Vec<&str> = names
        .filter(|name| runs.iter().any(|run| run.report.stages.iter().any(|stage| stage.get(name).is_some_and(|&v| v > 0.0))))
        .collect();
    legend(out, shown.iter().map(|&name| (class(name), label(name))));
    out.push_str("<div class=\"cards\">");
    for run in runs {
        let stages = &run.report.stages;
        let (left, row) = (58.0, 20.0);
        let _ = write!(out, "<figure><figcaption>{}</figcaption>", escape(run.name()));
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"stage time by cause\">",
            row * stages.len() as f64 + 4.0
        );
        for (index, stage) in stages.iter().enumerate() {
            let y = index as f64 * row + 2.0;
            let _ = write!(out, "<text class=\"end lab\" x=\"{}\" y=\"{}\">stage {index}</text>", left - 6.0, y + 12.0);
            let mut at = left;
            for &name in &shown {
                let fraction = stage.get(name).copied().unwrap_or(0.0);
                let width = fraction * (WIDTH - left - 12.0);
                if width > 0.0 {
                    let _ = write!(
                        out,
                        "<rect class=\"{}\" data-stage=\"{index}\" data-cause=\"{name}\" data-value=\"{fraction}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{}\"><title>stage {index}, {}: {}</title></rect>",
                        class(name),
                        tenth(at),
                        tenth(width),
                        row - 4.0,
                        label(name),
                        units::percent(fraction)
                    );
                    if width > 40.0 {
                        let _ = write!(
                            out,
                            "<text x=\"{}\" y=\"{}\" class=\"mid {}\">{:.0} %</text>",
                            tenth(at + width / 2.0),
                            y + 12.0,
                            if name == "no_work" { "lab" } else { "on" },
                            fraction * 100.0
                        );
                    }
                    at += width;
                }
            }
        }
        out.push_str("</svg></figure>");
    }
    out.push_str("</div></section>");
}

/// The colour of a part of a stage's time.
pub(super) fn class(name: &str) -> String {
    format!("f-{}", if name == "busy" { "prompt" } else { name })
}

pub(super) fn label(name: &str) -> &str {
    match name {
        "no_work" => "no work",
        "upstream" => "upstream heavier",
        "downstream" => "held up downstream",
        name => name,
    }
}

/// Colours and what they mean.
pub(super) fn legend<S: AsRef<str>, T: AsRef<str>>(out: &mut String, entries: impl Iterator<Item = (S, T)>) {
    out.push_str("<div class=\"legend\">");
    for (class, name) in entries {
        let _ = write!(out, "<span><i class=\"{}\"></i>{}</span>", class.as_ref(), escape(name.as_ref()));
    }
    out.push_str("</div>");
}

/// What was run, in a few lines for each run.
pub(super) fn heading(out: &mut String, runs: &[HtmlRun]) {
    let Some(first) = runs.first() else { return };
    let config = &first.report.config;
    let names: Vec<&str> = runs.iter().map(HtmlRun::name).collect();
    let _ = write!(out, "<header><h1>cpp-sim: {}</h1><dl>", escape(&names.join(", ")));
    let scheduler = &config.scheduler;
    let system = format!(
        "{}, {} stages, {} tokens a batch, {} blocks of {}",
        config.profile.name,
        scheduler.stages,
        units::count(scheduler.max_batch_tokens.into()),
        units::count(scheduler.num_blocks.into()),
        scheduler.block_size
    );
    let workload = format!("{} ({} requests)", config.workload.source, units::count(config.workload.requests));
    for (term, text) in [("workload", workload), ("system", system), ("profile", config.profile.about.clone())] {
        let _ = write!(out, "<dt>{term}</dt><dd>{}</dd>", escape(&text));
    }
    let digests: Vec<String> = runs.iter().map(|run| format!("{} {}", run.name(), run.report.decision_digest)).collect();
    let _ = write!(out, "<dt>decisions</dt><dd>{}</dd></dl></header>", escape(&digests.join(", ")));
    series_legend(out, runs);
}
