//! Faults of a run and what they cost.

use std::fmt::Write as _;

use super::HtmlRun;
use super::svg::escape;
use crate::report::units;

/// Faults shown one by one.
const SHOWN: usize = 40;

/// A table for each run that had faults; nothing without any.
pub(super) fn section(out: &mut String, runs: &[HtmlRun]) {
    if runs.iter().all(|run| run.report.faults.is_none()) {
        return;
    }
    out.push_str("<section id=\"faults\"><h2>Faults</h2><p>Recovered: when the backlog was down again to what it was before. Their idle time is in the plots above in the colour of faults.</p>");
    for run in runs {
        let Some(faults) = &run.report.faults else { continue };
        let _ = write!(out, "<h3>{}</h3><div class=\"scroll\"><table><thead><tr>", escape(run.name()));
        for column in ["fault", "stage", "began", "noticed", "up again", "recovered in", "batches lost", "backlog before", "at most"] {
            let _ = write!(out, "<th>{column}</th>");
        }
        out.push_str("</tr></thead><tbody>");
        for event in faults.events.iter().take(SHOWN) {
            let stage = event.stage.map_or_else(|| "-".to_owned(), |stage| stage.to_string());
            let _ = write!(out, "<tr><td>{}</td><td>{stage}</td>", escape(event.kind.name()));
            for time in [event.began_s, event.noticed_s, event.up_s, event.recovery_s] {
                let _ = write!(out, "<td>{}</td>", units::seconds(time));
            }
            for count in [event.batches_lost, event.backlog_before, event.backlog_peak] {
                let _ = write!(out, "<td>{}</td>", units::count(count));
            }
            out.push_str("</tr>");
        }
        out.push_str("</tbody></table></div><dl>");
        let times =
            [("before the first", &faults.ttft_before_s), ("while one goes on", &faults.ttft_during_s), ("after", &faults.ttft_after_s)];
        for (when, ttft) in times {
            let (mean, p99) = (units::seconds(ttft.mean), units::seconds(ttft.p99));
            let _ = write!(out, "<dt>TTFT {when}</dt><dd>{mean} mean, {p99} p99, {} requests</dd>", units::count(ttft.count));
        }
        let (lost, again) = (units::count(faults.batches_lost), units::count(faults.recomputed_tokens));
        let _ = write!(out, "<dt>lost</dt><dd>{lost} batches; {again} tokens computed once more</dd></dl>");
    }
    out.push_str("</section>");
}
