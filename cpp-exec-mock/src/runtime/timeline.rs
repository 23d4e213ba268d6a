//! When each stage ran which batch, as a trace for Chrome's viewer or Perfetto.

use std::fmt::Write as _;

use super::pipeline::Timing;

/// The trace of a run: one track a stage, one slice a batch with its rows and tokens, and what lies between two slices as a slice `idle`. Times are
/// in microseconds, as the format wants them. O(batches · stages).
#[must_use]
pub fn timeline(timings: &[Timing]) -> String {
    let mut text = String::from("{\"traceEvents\":[");
    let stages = timings.first().map_or(0, |timing| timing.stages.len());
    let us = |ns: u64| ns as f64 / 1e3;
    for stage in 0..stages {
        let comma = if stage > 0 { "," } else { "" };
        let _ = write!(
            text,
            "{comma}\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{stage},\"args\":{{\"name\":\"stage {stage}\"}}}}"
        );
        let mut free: Option<u64> = None;
        for timing in timings {
            let span = timing.stages[stage];
            if let Some(free) = free.filter(|free| *free < span.start_ns) {
                let (at, long) = (us(free), us(span.start_ns - free));
                let _ = write!(text, ",\n{{\"name\":\"idle\",\"ph\":\"X\",\"ts\":{at},\"dur\":{long},\"pid\":0,\"tid\":{stage}}}");
            }
            let (at, long) = (us(span.start_ns), us(span.end_ns.saturating_sub(span.start_ns)));
            let (batch, rows, tokens, decodes) = (timing.batch.0, timing.rows, timing.terms.tokens, timing.terms.decodes);
            let _ = write!(
                text,
                ",\n{{\"name\":\"batch {batch}\",\"ph\":\"X\",\"ts\":{at},\"dur\":{long},\"pid\":0,\"tid\":{stage},\
                 \"args\":{{\"rows\":{rows},\"tokens\":{tokens},\"decodes\":{decodes}}}}}"
            );
            free = Some(span.end_ns);
        }
    }
    text.push_str("\n]}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::timeline;
    use crate::runtime::{Span, Timing};
    use cpp_sched::{BatchId, CostTerms};

    #[test]
    fn slices_and_gaps_tile_each_track() {
        let span = |start_ns, end_ns| Span { start_ns, end_ns };
        let timing =
            |batch, stages: [Span; 2]| Timing { batch: BatchId(batch), terms: CostTerms::prefill(0, 7), rows: 2, stages: stages.to_vec() };
        let timings = [timing(0, [span(0, 1000), span(1500, 3000)]), timing(1, [span(1000, 2000), span(3500, 4000)])];
        let trace: serde_json::Value = serde_json::from_str(&timeline(&timings)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let names: Vec<_> = events.iter().map(|event| (event["name"].as_str().unwrap(), event["tid"].as_u64().unwrap())).collect();
        let expected =
            [("thread_name", 0), ("batch 0", 0), ("batch 1", 0), ("thread_name", 1), ("batch 0", 1), ("idle", 1), ("batch 1", 1)];
        assert_eq!(names, expected);
        assert_eq!((events[5]["ts"].as_f64(), events[5]["dur"].as_f64()), (Some(3.0), Some(0.5)));
        assert_eq!(events[1]["args"]["tokens"], 7);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&timeline(&[])).unwrap()["traceEvents"].as_array().unwrap().len(), 0);
    }
}
