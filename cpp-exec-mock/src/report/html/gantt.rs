//! What each stage did when: the whole run in bins of time, and two stretches of it slice by slice.

use std::fmt::Write as _;

use super::HtmlRun;
use super::latency::show_seconds;
use super::observe::{Bar, Shares, Stretch};
use super::summary::{label, legend};
use super::svg::{Chart, Scale, WIDE, escape, tenth};
use crate::pipeline::Cause;
use crate::report::units;

/// Columns of the picture of a whole run.
const COLUMNS: usize = 320;
/// Stages drawn at most.
const MOST_STAGES: usize = 32;

/// The parts of a stage's time in the order of [`Shares`]: their colours and names.
fn parts() -> impl Iterator<Item = (String, &'static str)> {
    let busy = [("f-prompt".to_owned(), "busy, with prompt work"), ("f-decode".to_owned(), "busy, decodes alone")];
    busy.into_iter().chain(Cause::ALL.iter().map(|cause| (format!("f-{}", cause.name()), label(cause.name()))))
}

pub(super) fn section(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"gantt\"><h2>Stages over time</h2><p>Idle time in the colour of its cause. Above the whole run in columns: how much of each column's time went where; below stretches of it, slice by slice (point at a slice for its batch).</p>");
    let met = |part: usize| runs.iter().any(|run| run.seen.stages.iter().any(|stage| stage.iter().any(|(.., shares)| shares.0[part] > 0)));
    legend(out, parts().enumerate().filter(|&(part, _)| met(part)).map(|(_, entry)| entry));
    for run in runs {
        let _ = write!(out, "<h3>{}</h3><div class=\"wide\">", escape(run.name()));
        let _ = write!(out, "<figure data-chart=\"stages\"><figcaption>the whole run</figcaption>{}</figure>", whole(run));
        stretch(out, "how it began", &run.seen.first, run);
        if let Some(later) = run.seen.second() {
            stretch(out, "later", later, run);
        }
        out.push_str("</div>");
    }
    out.push_str("</section>");
}

/// A strip for each stage, its columns divided by what the time went to.
fn whole(run: &HtmlRun) -> String {
    let stages = &run.seen.stages[..run.seen.stages.len().min(MOST_STAGES)];
    let (left, right, row) = (58.0, 12.0, if stages.len() > 8 { 22.0 } else { 34.0 });
    let ends = |stage: &super::bins::TimeBins<Shares>| stage.iter().fold((u64::MAX, 0), |(from, to), bin| (bin.0.min(from), bin.1.max(to)));
    let (from, to) = stages.iter().map(ends).fold((u64::MAX, 0), |a, b| (a.0.min(b.0), a.1.max(b.1)));
    let height = row * stages.len() as f64 + 26.0;
    let mut out = format!("<svg viewBox=\"0 0 {WIDE} {height}\" role=\"img\" aria-label=\"what each stage did over the whole run\">");
    let long_ns = to.saturating_sub(from).max(1) as f64;
    let x = |ns: f64| left + (ns - from as f64) / long_ns * (WIDE - left - right);
    for (index, stage) in stages.iter().enumerate() {
        let top = index as f64 * row;
        let _ = write!(out, "<text class=\"end lab\" x=\"{}\" y=\"{}\">stage {index}</text>", left - 6.0, top + row / 2.0 + 2.0);
        // Neighbouring bins make a column.
        let bins: Vec<(u64, u64, Shares)> = stage.iter().map(|(begin, end, shares)| (begin, end, *shares)).collect();
        let columns: Vec<(u64, u64, Shares)> = bins
            .chunks(bins.len().div_ceil(COLUMNS).max(1))
            .map(|chunk| {
                let mut sum = Shares::default();
                for (.., shares) in chunk {
                    sum.0.iter_mut().zip(shares.0).for_each(|(sum, ns)| *sum += ns);
                }
                (chunk[0].0, chunk[chunk.len() - 1].1, sum)
            })
            .collect();
        let full = row - 6.0;
        for (part, (class, _)) in parts().enumerate() {
            let mut path = String::new();
            for (begin, end, shares) in columns.iter().filter(|(.., shares)| shares.0[part] > 0) {
                let all = shares.0.iter().sum::<u64>() as f64;
                // What the last column lacks is behind the end of the run.
                let end = (*end as f64).min(*begin as f64 + all * 1.0001).max(*begin as f64 + 1.0);
                let above = shares.0[..part].iter().sum::<u64>() as f64 / all * full;
                let high = shares.0[part] as f64 / all * full;
                // From the bottom up: busy below, idle on top.
                let y = top + full - above - high;
                let (from_x, to_x) = (x(*begin as f64), x(end));
                let _ = write!(
                    path,
                    "M{} {}h{}v{}H{}z",
                    tenth(from_x),
                    tenth(y),
                    tenth(to_x - from_x + 0.05).max(0.1),
                    tenth(high).max(0.1),
                    tenth(from_x)
                );
            }
            if !path.is_empty() {
                let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
            }
        }
    }
    for i in 0..=4 {
        let ns = long_ns * f64::from(i) / 4.0;
        let anchor = match i {
            0 => "",
            4 => "end",
            _ => "mid",
        };
        let _ = write!(
            out,
            "<text class=\"{anchor}\" x=\"{}\" y=\"{}\">{}</text>",
            tenth(x(from as f64 + ns)),
            height - 8.0,
            show_seconds(rounded(ns / 1e9))
        );
    }
    out.push_str("</svg>");
    if run.seen.stages.len() > MOST_STAGES {
        let _ = write!(out, "<p>The first {MOST_STAGES} of {} stages.</p>", run.seen.stages.len());
    }
    out
}

/// To three digits, for labels at odd places.
fn rounded(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let power = 10f64.powf(2.0 - value.log10().floor());
    (value * power).round() / power
}

/// Slice by slice, with what each one is.
fn stretch(out: &mut String, title: &str, stretch: &Stretch, run: &HtmlRun) {
    // A long time without work at an end would squeeze the rest.
    let quiet = |bar: &&Bar| matches!(bar.slice.idle, Some(Cause::NoWork | Cause::Drain));
    let work = || stretch.slices.iter().filter(|bar| !quiet(bar));
    let (Some(from), Some(to)) = (work().map(|bar| bar.slice.from_ns).min(), work().map(|bar| bar.slice.to_ns).max()) else { return };
    let origin_ns = run.seen.stages.iter().filter_map(|stage| stage.iter().next()).map(|bin| bin.0).min().unwrap_or(from);
    let stages = run.seen.stages.len().min(MOST_STAGES);
    let seconds = |ns: u64| ns.saturating_sub(origin_ns) as f64 / 1e9;
    let row = if stages > 8 { 22.0 } else { 30.0 };
    let scale = Scale::Linear { low: seconds(from), high: seconds(to).max(seconds(from) + 1e-9) };
    let mut chart = Chart::new(scale, Scale::Linear { low: 0.0, high: stages as f64 }).wide().high(row * stages as f64 + 48.0);
    for bar in &stretch.slices {
        let (begin, end) = (bar.slice.from_ns.max(from), bar.slice.to_ns.min(to));
        if end <= begin || bar.slice.stage as usize >= stages {
            continue;
        }
        let height = stages as f64 - f64::from(bar.slice.stage) - 0.5;
        let long = units::seconds(Some((bar.slice.to_ns - bar.slice.from_ns) as f64 / 1e9));
        let (class, text) = match bar.slice.idle {
            Some(cause) => (format!("b-{}", cause.name()), format!("{}, {long}", label(cause.name()))),
            None => {
                let class = if bar.prefill { "b-prompt" } else { "b-decode" };
                let decodes = bar.decodes;
                (class.to_owned(), format!("batch {}: {} tokens, {decodes} decodes, {long}", bar.batch, bar.tokens))
            }
        };
        chart.bar(&class, seconds(begin), seconds(end), height, &text);
    }
    let svg = chart.finish(title, ("time since the first arrival", show_seconds), ("stage, 0 on top", |_| String::new()));
    let batch = stretch.from_batch;
    let _ = write!(
        out,
        "<figure data-chart=\"stretch\" class=\"{}\"><figcaption>{title} <small>from batch {batch}</small></figcaption>{svg}</figure>",
        if stages > 8 { "flat" } else { "" }
    );
}
