//! One run, or several side by side, as one HTML page: plots as inline SVG, no script, nothing loaded from anywhere.
//!
//! An [`Observer`] watches a run while it goes on and keeps what the plots need in bounded memory: bins of time, classes of cost, a thinned
//! sample of the requests, stretches of the timeline. So the page of a trace with a million requests is no larger than that of a thousand: a few
//! hundred KiB a run. Numbers come from the [`RunReport`], in full in attributes `data-value`.

mod batches;
mod bins;
mod faults;
mod gantt;
mod latency;
mod load;
mod observe;
mod summary;
mod svg;

use std::fmt::Write as _;

pub use observe::Observer;

use super::json::RunReport;
use svg::escape;

/// One run of a page.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HtmlRun {
    /// What was measured.
    pub report: RunReport,
    /// What was seen meanwhile.
    pub seen: Observer,
}

impl HtmlRun {
    /// A run and what was seen of it.
    #[must_use]
    pub const fn new(report: RunReport, seen: Observer) -> Self {
        Self { report, seen }
    }

    fn name(&self) -> &str {
        self.report.config.mode
    }
}

/// The page, complete. The first run is what others are compared with; four have colours of their own. O(what was kept), some MiB of text at most.
///
/// ```
/// use cpp_exec_mock::report::html_page;
/// assert!(html_page(&[]).starts_with("<!DOCTYPE html>"));
/// ```
#[must_use]
pub fn html_page(runs: &[HtmlRun]) -> String {
    let mut out = String::with_capacity(1 << 18);
    let names: Vec<&str> = runs.iter().map(HtmlRun::name).collect();
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    // Says to the browser what the page keeps to: nothing is loaded, nothing runs.
    out.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
    let _ =
        write!(out, "<title>cpp-sim: {}</title><style>\n{}</style></head><body>\n", escape(&names.join(", ")), include_str!("style.css"));
    summary::heading(&mut out, runs);
    for section in [
        summary::section,
        summary::bubbles,
        latency::cdfs,
        latency::over_prompt,
        load::section,
        gantt::section,
        batches::section,
        faults::section,
        configuration,
    ] {
        section(&mut out, runs);
        out.push('\n');
    }
    out.push_str("</body></html>\n");
    out
}

/// The whole effective configuration of each run, folded away.
fn configuration(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"config\"><h2>Configuration</h2>");
    for run in runs {
        // A report that cannot be written as JSON has been refused before this.
        let json = serde_json::to_string_pretty(&run.report.config).unwrap_or_default();
        let _ = write!(out, "<details><summary>{}</summary><pre>{}</pre></details>", escape(run.name()), escape(&json));
    }
    out.push_str("</section>");
}

/// The colour of a run's line.
fn series(index: usize) -> &'static str {
    ["s0", "s1", "s2", "s3"][index % 4]
}

/// Which colour is which run; nothing for one alone.
fn series_legend(out: &mut String, runs: &[HtmlRun]) {
    if runs.len() > 1 {
        summary::legend(out, runs.iter().enumerate().map(|(index, run)| (format!("f-{}", series(index)), run.name())));
    }
}
