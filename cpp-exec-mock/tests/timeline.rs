//! The timeline as a viewer reads it: one track a stage, slices that touch each other, batches with their chunks, idle time with its cause.

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::TempFile;
use serde_json::Value;

/// Microseconds with three digits, as nanoseconds.
fn ns(value: &Value) -> u64 {
    let text = value.to_string();
    let (whole, part) = text.split_once('.').expect("three digits");
    assert_eq!(part.len(), 3, "{text}");
    whole.parse::<u64>().unwrap() * 1000 + part.parse::<u64>().unwrap()
}

fn run(more: &[&str]) -> (Value, Value) {
    let (timeline, report) = (TempFile::new(".json", ""), TempFile::new(".json", ""));
    let base = [
        "run",
        "--synthetic",
        "--requests",
        "40",
        "--rate",
        "4",
        "--profile",
        "demo",
        "--json",
        report.path(),
        "--timeline",
        timeline.path(),
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args([&base[..], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |file: &TempFile| serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
    (read(&timeline), read(&report))
}

#[test]
fn slices_of_a_track_touch_and_add_up_to_the_report() {
    for more in [
        &["--stages", "3"][..],
        &["--granularity", "request", "--sends", "blocking", "--receives", "blocking", "--scheduling", "sync", "--piece-ns", "7777"],
        &["--layers", "4,9,3", "--stage-buffer", "1", "--granularity", "chunk"],
    ] {
        let (timeline, report) = run(more);
        let events = timeline["traceEvents"].as_array().unwrap();
        let stages = report["stages"].as_array().unwrap();
        let names = events.iter().filter(|e| e["ph"] == "M" && e["name"] == "thread_name");
        assert_eq!(names.count(), stages.len());
        let duration = (report["duration_s"].as_f64().unwrap() * 1e9).round();
        let (mut tokens, mut chunk_tokens) = (0, 0);
        for (s, stage) in stages.iter().enumerate() {
            let mut slices: Vec<(u64, u64, &Value)> =
                events.iter().filter(|e| e["ph"] == "X" && e["tid"] == s).map(|e| (ns(&e["ts"]), ns(&e["dur"]), e)).collect();
            slices.sort_by_key(|slice| slice.0);
            let mut by_cause = BTreeMap::new();
            let mut at = slices[0].0;
            for (ts, dur, event) in &slices {
                assert_eq!(*ts, at, "stage {s}: {event}");
                at += dur;
                let busy = event["cat"] == "batch";
                let name = if busy { "busy" } else { event["name"].as_str().unwrap() };
                *by_cause.entry(name).or_insert(0u64) += dur;
                if busy && s == 0 {
                    let args = &event["args"];
                    let chunks = args["chunks"].as_array().unwrap().iter().map(|chunk| chunk["tokens"].as_u64().unwrap()).sum::<u64>();
                    tokens += args["tokens"].as_u64().unwrap();
                    chunk_tokens += chunks;
                    assert_eq!(chunks + args["decodes"].as_u64().unwrap(), args["tokens"].as_u64().unwrap(), "{event}");
                }
            }
            assert_eq!((at - slices[0].0) as f64, duration, "stage {s}");
            for (cause, fraction) in stage.as_object().unwrap() {
                let in_timeline = by_cause.get(cause.as_str()).copied().unwrap_or(0) as f64 / duration;
                assert!((in_timeline - fraction.as_f64().unwrap()).abs() < 1e-9, "stage {s}, {cause}");
            }
        }
        let reported = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap();
        assert_eq!(tokens, reported("/tokens/computed"), "{more:?}");
        assert_eq!(chunk_tokens, reported("/tokens/prompt"), "{more:?}: nothing is cached or computed again");
    }
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error_before_the_run() {
    let args = ["run", "--synthetic", "--requests", "2", "--timeline", "/nowhere/at/all.json"];
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("/nowhere/at/all.json"), "{told}");
}
