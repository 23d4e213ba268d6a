//! Distributions of times, and the time to the first token over the length of the prompt.

use std::fmt::Write as _;

use super::observe::Done;
use super::svg::{Chart, Scale, escape};
use super::{HtmlRun, series, series_legend};
use crate::report::units;

/// Points of a curve at most.
const CURVE: usize = 240;
/// Dots of a cloud at most.
const CLOUD: usize = 700;

type Time = fn(&Done) -> Option<u64>;

/// Cumulative distributions of TTFT, TPOT and E2E, all runs in one chart.
pub(super) fn cdfs(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"latency\"><h2>Latency</h2><p>Share of the finished requests that took at most so long");
    if let Some(every) = runs.iter().map(|run| run.seen.requests.every()).max().filter(|&every| every > 1) {
        let _ = write!(out, "; one request of {every} is drawn");
    }
    out.push_str(".</p>");
    series_legend(out, runs);
    out.push_str("<div class=\"cards three\">");
    let times: [(&str, Time); 3] = [
        ("TTFT: arrival to first token", |done| Some(done.ttft_ns)),
        ("TPOT: time per output token after the first", |done| done.tpot_ns),
        ("E2E: arrival to last token", |done| Some(done.e2e_ns)),
    ];
    for (title, time) in times {
        let curves: Vec<Vec<f64>> = runs.iter().map(|run| sorted(run.seen.requests.kept(), time)).collect();
        let x = Scale::log(curves.iter().flatten().copied());
        let mut chart = Chart::new(x, Scale::Linear { low: 0.0, high: 1.0 });
        for (index, curve) in curves.iter().enumerate() {
            chart.line(series(index), quantiles(curve));
        }
        let svg = chart.finish(title, ("seconds, logarithmic", show_seconds), ("share of requests", |v| format!("{:.0} %", v * 100.0)));
        let _ = write!(out, "<figure><figcaption>{title}</figcaption>{svg}</figure>");
    }
    out.push_str("</div></section>");
}

/// TTFT over prompt length: a cloud, with medians and 90th percentiles by length.
pub(super) fn over_prompt(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"prompt\"><h2>TTFT over prompt length</h2><p>Dots are requests; lines the median (solid) and the 90th percentile (dashed) of requests of similar length.</p>");
    series_legend(out, runs);
    let requests = || runs.iter().flat_map(|run| run.seen.requests.kept());
    let x = Scale::log(requests().map(|done| f64::from(done.input_tokens)));
    let y = Scale::log(requests().map(|done| done.ttft_ns as f64 / 1e9));
    let mut chart = Chart::new(x, y).wide().high(360.0);
    for (index, run) in runs.iter().enumerate() {
        let kept = run.seen.requests.kept();
        let step = kept.len().div_ceil(CLOUD / runs.len().max(1)).max(1);
        chart.dots(series(index), kept.iter().step_by(step).map(|done| (f64::from(done.input_tokens), done.ttft_ns as f64 / 1e9)));
    }
    for (index, run) in runs.iter().enumerate() {
        let lines = by_length(run.seen.requests.kept());
        chart.line(series(index), lines.iter().map(|&(length, median, _)| (length, median)));
        chart.line(&format!("{} thin", series(index)), lines.iter().map(|&(length, _, p90)| (length, p90)));
    }
    let name = "time to first token over prompt length";
    let svg = chart.finish(name, ("prompt tokens, logarithmic", show_tokens), ("TTFT, logarithmic", show_seconds));
    let _ = write!(out, "<figure>{svg}</figure>{}</section>", by_length_table(runs));
}

/// The same as numbers, for four ranges of length.
fn by_length_table(runs: &[HtmlRun]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr><th>prompt tokens</th>");
    for run in runs {
        let _ = write!(out, "<th>{} median</th><th>p90</th>", escape(run.name()));
    }
    out.push_str("<th>requests</th></tr></thead><tbody>");
    for (from, to) in [(0, 1024), (1024, 8192), (8192, 65_536), (65_536, u32::MAX)] {
        let inside = |run: &HtmlRun| -> Vec<f64> {
            let done = run.seen.requests.kept().iter().filter(|done| (from..to).contains(&done.input_tokens));
            let mut times: Vec<f64> = done.map(|done| done.ttft_ns as f64 / 1e9).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        if runs.iter().all(|run| inside(run).is_empty()) {
            continue;
        }
        let range = match (from, to) {
            (0, to) => format!("below {}", units::count(to.into())),
            (from, u32::MAX) => format!("from {}", units::count(from.into())),
            (from, to) => format!("{} to {}", units::count(from.into()), units::count((to - 1).into())),
        };
        let _ = write!(out, "<tr><td>{range}</td>");
        for run in runs {
            let times = inside(run);
            let at = |part: f64| units::seconds(quantile(&times, part));
            let _ = write!(out, "<td>{}</td><td>{}</td>", at(0.5), at(0.9));
        }
        let count = |run: &HtmlRun| inside(run).len() as u64 * run.seen.requests.every();
        let _ = write!(out, "<td>{}</td></tr>", units::count(runs.iter().map(count).max().unwrap_or(0)));
    }
    out.push_str("</tbody></table></div>");
    out
}

fn sorted(requests: &[Done], time: Time) -> Vec<f64> {
    let mut times: Vec<f64> = requests.iter().filter_map(time).map(|ns| ns as f64 / 1e9).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// A curve through a sorted sample.
fn quantiles(times: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let points = times.len().min(CURVE);
    (0..points).map(move |i| {
        let index = if points < 2 { 0 } else { i * (times.len() - 1) / (points - 1) };
        (times[index], (index + 1) as f64 / times.len() as f64)
    })
}

/// The quantile of a sorted sample, as numpy has it.
fn quantile(times: &[f64], part: f64) -> Option<f64> {
    let rank = part * times.len().checked_sub(1)? as f64;
    let (low, high) = (times[rank as usize], times[(rank as usize + 1).min(times.len() - 1)]);
    Some(low + (high - low) * rank.fract())
}

/// Requests of neighbouring lengths in groups of one size: mean length, median and 90th percentile.
fn by_length(requests: &[Done]) -> Vec<(f64, f64, f64)> {
    let mut sorted: Vec<(u32, f64)> = requests.iter().map(|done| (done.input_tokens, done.ttft_ns as f64 / 1e9)).collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let group = sorted.len().div_ceil(16).max(20);
    let groups = sorted.chunks(group).filter(|chunk| chunk.len() >= 4);
    groups
        .map(|chunk| {
            let length = chunk.iter().map(|&(tokens, _)| f64::from(tokens)).sum::<f64>() / chunk.len() as f64;
            let mut times: Vec<f64> = chunk.iter().map(|&(_, time)| time).collect();
            times.sort_by(f64::total_cmp);
            let at = |part| quantile(&times, part).unwrap_or(0.0);
            (length, at(0.5), at(0.9))
        })
        .collect()
}

/// Ticks of an axis of times.
pub(super) fn show_seconds(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        v if v < 0.999e-3 => format!("{} us", short(v * 1e6)),
        v if v < 0.999 => format!("{} ms", short(v * 1e3)),
        v => format!("{} s", short(v)),
    }
}

/// Ticks of an axis of tokens, requests or blocks.
pub(super) fn show_tokens(value: f64) -> String {
    match value {
        v if v >= 999_500.0 => format!("{}M", short(v / 1e6)),
        v if v >= 999.5 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
