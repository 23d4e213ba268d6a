//! The timeline as a viewer reads it: one track a stage, slices that touch each other, batches with their chunks, idle time with its cause.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use common::TempFile;
use cpp_exec_mock::runtime::{self, ChannelLink, Patience, Pipeline, Stub, Threads};
use cpp_sched::driver::Driver;
use cpp_sched::{Config, Request, RequestId, Scheduler};
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

/// What kinds of events there are: phase, category, and every key, of arguments and chunks too.
fn structure(trace: &Value) -> BTreeSet<String> {
    let keys = |value: &Value| value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let kind = |event: &Value| {
        let name = if event["ph"] == "M" { event["name"].clone() } else { event["cat"].clone() };
        let mut chunks: Vec<_> = event["args"]["chunks"].as_array().into_iter().flatten().map(keys).collect();
        chunks.dedup();
        format!("{} {name} {:?} {:?} {chunks:?}", event["ph"], keys(event), keys(&event["args"]))
    };
    trace["traceEvents"].as_array().unwrap().iter().map(kind).chain(keys(trace)).collect()
}

#[test]
fn real_stages_are_drawn_as_simulated_ones() {
    let mut config = Config::default();
    (config.stages, config.max_batch_tokens) = (2, 16);
    let stub = |stage| Stub { per_batch: Duration::from_millis(1), per_token: Duration::from_micros(50), samples: stage == 1 };
    let threads = Threads::start(&config, Box::new(move |stage| Ok(stub(stage))), ChannelLink, Duration::from_secs(5)).unwrap();
    let mut driver = Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, Patience::default()));
    driver.submit(Request::new(RequestId(7), vec![1; 50], 4)).unwrap();
    while driver.step().unwrap().is_progress() {}
    let timings = driver.executor_mut().timings();
    let mut bytes = Vec::new();
    runtime::timeline(&mut bytes, 2, &timings).unwrap();
    let real: Value = serde_json::from_slice(&bytes).unwrap();
    let (simulated, _) = run(&["--stages", "2"]);
    assert_eq!(structure(&real), structure(&simulated));

    let events = real["traceEvents"].as_array().unwrap();
    let mut ends = Vec::new();
    for stage in 0..2 {
        let mut at = 0;
        for slice in events.iter().filter(|event| event["ph"] == "X" && event["tid"] == stage) {
            assert_eq!(ns(&slice["ts"]), at, "{slice}");
            at += ns(&slice["dur"]);
        }
        ends.push(at);
        let chunks = events.iter().filter(|event| event["tid"] == stage).filter_map(|event| event["args"]["chunks"].as_array()).flatten();
        let starts: Vec<_> = chunks.map(|chunk| (chunk["request"].as_u64(), chunk["start"].as_u64(), chunk["tokens"].as_u64())).collect();
        let chunk = |start, tokens| (Some(7), Some(start), Some(tokens));
        assert_eq!(starts, [chunk(0, 16), chunk(16, 16), chunk(32, 16), chunk(48, 2)]);
    }
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn a_timeline_that_cannot_be_written_is_an_error_before_the_run() {
    let args = ["run", "--synthetic", "--requests", "2", "--timeline", "/nowhere/at/all.json"];
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("/nowhere/at/all.json"), "{told}");
}
