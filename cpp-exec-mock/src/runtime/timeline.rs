//! When each stage ran which batch, as a trace for Chrome's viewer or Perfetto: as the simulator writes it.

use std::io::{self, Write};

use super::pipeline::Timing;
use crate::pipeline::{Cause, Slice};
use crate::report::Timeline;

/// Writes the trace of a run over so many stages, in the format of [`Timeline`], from the first batch's beginning to the last one's end. Idle time
/// has the cause that times alone show:
///
/// - `fill` before a stage's first batch and `drain` after its last;
/// - `upstream` until the stage before was done with the batch, and `communication` from then on;
/// - for the first stage, `dependency` until the last result that came back meanwhile, and `scheduler` from then on.
///
/// O(batches · stages).
///
/// # Errors
/// What could not be written.
pub fn timeline<W: Write>(sink: W, stages: usize, timings: &[Timing]) -> io::Result<()> {
    let mut timeline = Timeline::new(sink, u32::try_from(stages).unwrap_or(u32::MAX));
    let spans = || timings.iter().flat_map(|timing| &timing.stages);
    let (zero, end) = (spans().map(|span| span.start_ns).min().unwrap_or(0), spans().map(|span| span.end_ns).max().unwrap_or(0));
    for stage in 0..stages {
        let slice =
            |idle, from_ns: u64, to_ns: u64| Slice { stage: stage as u32, piece: 0, idle, from_ns: from_ns - zero, to_ns: to_ns - zero };
        let mut free = zero;
        // Results that came back while the first stage waited: batches come back in order.
        let mut results = timings.iter().filter_map(|timing| timing.stages.last()).map(|span| span.end_ns).peekable();
        for (number, timing) in timings.iter().enumerate() {
            let Some(span) = timing.stages.get(stage) else { continue };
            // Clocks of processes differ by some microseconds; a track never goes back.
            let (start, stop) = (span.start_ns.max(free), span.end_ns.max(span.start_ns).max(free));
            let mut known = free;
            if stage > 0 {
                known = timing.stages[stage - 1].end_ns;
            } else {
                while let Some(result) = results.next_if(|result| *result <= start) {
                    known = known.max(result);
                }
            }
            let known = if number == 0 { start } else { known.clamp(free, start) };
            let [before, after] = match (number, stage) {
                (0, _) => [Cause::Fill, Cause::Fill],
                (_, 0) => [Cause::Dependency, Cause::Scheduler],
                _ => [Cause::Upstream, Cause::Communication],
            };
            for (cause, from, to) in [(before, free, known), (after, known, start)] {
                if from < to {
                    timeline.bubble(&slice(Some(cause), from, to), cause);
                }
            }
            timeline.piece(&slice(None, start, stop), timing.batch, &timing.rows, true);
            free = stop;
        }
        if free < end {
            timeline.bubble(&slice(Some(Cause::Drain), free, end), Cause::Drain);
        }
    }
    timeline.finish()
}

#[cfg(test)]
mod tests {
    use super::timeline;
    use crate::runtime::{Span, Timing};
    use cpp_sched::{BatchId, CostTerms};
    use serde_json::Value;

    fn trace(stages: usize, timings: &[Timing]) -> Value {
        let mut bytes = Vec::new();
        timeline(&mut bytes, stages, timings).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }

    #[test]
    fn slices_and_causes_tile_each_track() {
        let span = |start_ns, end_ns| Span { start_ns, end_ns };
        let timing = |batch, stages: [Span; 2]| Timing {
            batch: BatchId(batch),
            terms: CostTerms::prefill(0, 7),
            rows: Vec::new(),
            stages: stages.to_vec(),
        };
        let timings = [
            timing(0, [span(100, 200), span(210, 300)]),
            timing(1, [span(220, 350), span(370, 400)]),
            timing(2, [span(410, 450), span(450, 480)]),
        ];
        let trace = trace(2, &timings);
        let slices = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
        let text = |event: &Value| format!("{} {} {}+{}", event["tid"], event["name"].as_str().unwrap(), event["ts"], event["dur"]);
        let texts: Vec<_> = slices.map(text).collect();
        let expected = [
            "0 batch 0 0.000+0.100",
            "0 scheduler 0.100+0.020",
            "0 batch 1 0.120+0.130",
            "0 dependency 0.250+0.050",
            "0 scheduler 0.300+0.010",
            "0 batch 2 0.310+0.040",
            "0 drain 0.350+0.030",
            "1 fill 0.000+0.110",
            "1 batch 0 0.110+0.090",
            "1 upstream 0.200+0.050",
            "1 communication 0.250+0.020",
            "1 batch 1 0.270+0.030",
            "1 upstream 0.300+0.050",
            "1 batch 2 0.350+0.030",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn clocks_that_differ_make_no_track_go_back() {
        let span = |start_ns, end_ns| Span { start_ns, end_ns };
        let timing = Timing { batch: BatchId(0), terms: CostTerms::default(), rows: Vec::new(), stages: vec![span(50, 90), span(80, 70)] };
        let again = Timing { batch: BatchId(1), stages: vec![span(60, 95), span(75, 99)], ..timing.clone() };
        assert_eq!(trace(2, &[timing, again])["traceEvents"].as_array().unwrap().iter().filter(|event| event["cat"] == "batch").count(), 4);
        assert_eq!(trace(0, &[])["traceEvents"].as_array().unwrap().len(), 1);
    }
}
