//! How much batches differ in what they cost.

use std::fmt::Write as _;

use super::HtmlRun;
use super::latency::{show_seconds, show_tokens};
use super::summary::legend;
use super::svg::{Chart, Scale, escape};
use crate::report::units;

const KINDS: [(&str, &str); 3] = [("f-s1", "prompt work alone"), ("f-s2", "prompts and decodes"), ("f-s0", "decodes alone")];

/// The classes of cost of each run, and what the spread amounts to.
pub(super) fn section(out: &mut String, runs: &[HtmlRun]) {
    out.push_str("<section id=\"batches\"><h2>Batch cost spread</h2><p>How long batches kept the stage on which they took longest. Neighbours: of as many batches in a row as there are stages, the dearest over their mean; a pipeline full of equal batches has 1, and its inverse bounds how busy the stages can be.</p>");
    legend(out, KINDS.into_iter());
    out.push_str("<div class=\"cards\">");
    for run in runs {
        let _ = write!(out, "<figure data-chart=\"batches\"><figcaption>{}</figcaption>{}", escape(run.name()), histogram(run));
        let spread = &run.seen.cost;
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.2}"));
        let _ = write!(
            out,
            "<dl><dt>batches</dt><dd>{}</dd><dt>mean</dt><dd>{}</dd><dt>deviation / mean</dt><dd>{}</dd><dt>neighbours, dearest / mean</dt><dd>{}</dd></dl></figure>",
            units::count(spread.batches),
            units::seconds(spread.mean()),
            number(spread.variation()),
            number(spread.peak())
        );
    }
    out.push_str("</div></section>");
}

fn histogram(run: &HtmlRun) -> String {
    let classes: Vec<(f64, f64, [u64; 3])> = run.seen.costs.iter().map(|(low, high, counts)| (low / 1e9, high / 1e9, *counts)).collect();
    let x = Scale::log(classes.iter().flat_map(|&(low, high, _)| [low, high]));
    let y = Scale::linear(classes.iter().map(|(.., counts)| counts.iter().sum::<u64>() as f64));
    let mut chart = Chart::new(x, y);
    for (low, high, counts) in classes {
        let mut base = 0.0;
        for ((class, name), count) in KINDS.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
            let top = base + count as f64;
            let range = format!("{} to {}", units::seconds(Some(low)), units::seconds(Some(high)));
            chart.rect(class, (low, base), (high, top), &format!("{} batches, {name}, {range}", units::count(count)));
            base = top;
        }
    }
    chart.finish("batches by cost", ("time on the dearest stage, logarithmic", show_seconds), ("batches", show_tokens))
}
