//! Queue and KV memory over time.

use std::fmt::Write as _;

use cpp_sched::KvUsage;

use super::HtmlRun;
use super::latency::{show_seconds, show_tokens};
use super::summary::legend;
use super::svg::{Chart, Scale, escape};
use crate::report::units;

type Part = fn(&KvUsage) -> u32;

/// The states of a block that is not free, from the bottom up: their colours and names.
const PARTS: [(&str, &str, Part); 4] = [
    ("f-held", "held by requests", |kv| kv.held),
    ("f-pinned", "under a transfer", |kv| kv.pinned),
    ("f-fenced", "fenced by batches in flight", |kv| kv.fenced),
    ("f-cached", "cached", |kv| kv.cached),
];

/// Waiting and running requests, and the pool of KV blocks by state, for each run.
pub(super) fn section(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"load\"><h2>Queue and KV memory over time</h2><p>The most in each bin of time.</p>");
    legend(out, [("f-s1", "waiting to be admitted"), ("f-s0", "admitted")].into_iter());
    out.push_str("<div class=\"cards\">");
    for run in runs {
        let _ = write!(
            out,
            "<figure data-chart=\"queue\"><figcaption>{} <small>requests</small></figcaption>{}</figure>",
            escape(run.name()),
            queue(run)
        );
    }
    out.push_str("</div>");
    let met = |part: Part| runs.iter().any(|run| run.seen.load.iter().any(|(.., load)| load.kv.is_some_and(|kv| part(&kv) > 0)));
    legend(out, PARTS.into_iter().filter(|(.., part)| met(*part)).map(|(class, name, _)| (class, name)));
    out.push_str("<div class=\"cards\">");
    for run in runs {
        let _ = write!(
            out,
            "<figure data-chart=\"kv\"><figcaption>{} <small>KV blocks in use, of {}</small></figcaption>{}</figure>",
            escape(run.name()),
            units::count(run.report.config.scheduler.num_blocks.into()),
            memory(run)
        );
    }
    out.push_str("</div></section>");
}

/// The time axis: from the first bin to the end of the last.
fn times(run: &HtmlRun) -> (f64, Scale) {
    let (mut from, mut to) = (u64::MAX, 0);
    for (begin, end, _) in run.seen.load.iter() {
        (from, to) = (from.min(begin), to.max(end));
    }
    let from_s = if from == u64::MAX { 0.0 } else { from as f64 / 1e9 };
    let long = (to as f64 / 1e9 - from_s).max(1e-9);
    (from_s, Scale::Linear { low: 0.0, high: long })
}

fn queue(run: &HtmlRun) -> String {
    let (from_s, x) = times(run);
    let seen = || run.seen.load.iter().filter(|(.., load)| load.kv.is_some());
    let y = Scale::linear(seen().map(|(.., load)| f64::from(load.waiting.max(load.running))));
    let mut chart = Chart::new(x, y).high(200.0);
    let at = |begin: u64, end: u64| (begin as f64 + end as f64) / 2e9 - from_s;
    chart.line("s0", seen().map(|(begin, end, load)| (at(begin, end), f64::from(load.running))));
    chart.line("s1", seen().map(|(begin, end, load)| (at(begin, end), f64::from(load.waiting))));
    chart.finish("requests over time", ("time", show_seconds), ("requests", show_tokens))
}

fn memory(run: &HtmlRun) -> String {
    let (from_s, x) = times(run);
    let seen: Vec<(f64, KvUsage)> =
        run.seen.load.iter().filter_map(|(begin, end, load)| load.kv.map(|kv| ((begin as f64 + end as f64) / 2e9 - from_s, kv))).collect();
    let used = seen.iter().map(|(_, kv)| f64::from(kv.total - kv.free.min(kv.total)));
    let mut chart = Chart::new(x, Scale::linear(used)).high(200.0);
    let mut base = vec![0.0; seen.len()];
    for (class, _, part) in PARTS {
        if seen.iter().any(|(_, kv)| part(kv) > 0) {
            let band: Vec<(f64, f64, f64)> = seen.iter().zip(&base).map(|((at, kv), &low)| (*at, low, low + f64::from(part(kv)))).collect();
            chart.band(class, &band);
            base = band.into_iter().map(|(.., high)| high).collect();
        }
    }
    chart.finish("KV blocks over time", ("time", show_seconds), ("blocks", show_tokens))
}
