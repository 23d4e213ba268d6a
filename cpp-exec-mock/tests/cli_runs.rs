//! The tool's results: JSON, tables, the demonstration.

mod common;

use std::process::{Command, Output, Stdio};

use common::TempFile;
use serde_json::Value;

fn cpp_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Runs, expects success, and reads the JSON.
fn json(args: &[&str]) -> Value {
    let output = cpp_sim(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const SMALL: [&str; 9] = ["--synthetic", "--requests", "80", "--rate", "4", "--input-mean", "3000", "--profile", "demo"];

fn with<'a>(head: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [head, &SMALL, more].concat()
}

#[test]
fn the_demonstration_compares_four_modes_and_says_what_to_try_next() {
    let output = cpp_sim(&[]);
    assert_eq!(output.status.code(), Some(0));
    let text = stdout(&output);
    let header = text.lines().find(|line| line.contains("serial")).unwrap();
    assert_eq!(header.split_whitespace().collect::<Vec<_>>(), ["serial", "request", "chunk", "cpp"]);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("Try next:"));
    // The commands that it names are there.
    for line in text.lines().filter(|line| line.trim_start().starts_with("cpp-sim ")) {
        let command = line.split_whitespace().nth(1).unwrap();
        assert!(cpp_sim(&[command, "--help"]).status.success() || command == "help", "{line}");
    }
}

#[test]
fn run_reports_the_contract_of_its_json() {
    let report = json(&with(&["run", "--json", "-"], &["--slo-ttft", "1.5", "--seed", "3"]));
    for key in [
        "config",
        "requests",
        "tokens",
        "duration_s",
        "batches",
        "preemptions",
        "throughput",
        "goodput_requests_per_s",
        "ttft_s",
        "tpot_s",
        "itl_s",
        "e2e_s",
        "queue_s",
        "stages",
        "decision_digest",
        "scheduler_ns",
    ] {
        assert!(report.get(key).is_some_and(|value| !value.is_null()), "{key}");
    }
    let n = |path: &str| report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(n("/requests/submitted"), 80.0);
    assert_eq!(n("/requests/finished") + n("/requests/rejected"), 80.0);
    assert_eq!((n("/requests/aborted"), n("/requests/unfinished")), (0.0, 0.0));
    assert_eq!(
        n("/tokens/computed") - n("/tokens/recomputed"),
        n("/tokens/prompt") - n("/tokens/cached") + n("/tokens/output") - n("/requests/finished")
    );
    for d in ["/ttft_s", "/tpot_s", "/itl_s", "/e2e_s", "/queue_s", "/scheduler_ns/schedule", "/scheduler_ns/complete"] {
        let at = |field: &str| n(&format!("{d}/{field}"));
        assert!(at("p50") <= at("p90") && at("p90") <= at("p99") && at("p99") <= at("max") && at("count") > 0.0, "{d}");
        assert!(at("mean") <= at("max"), "{d}");
    }
    assert_eq!(n("/ttft_s/count"), n("/requests/finished"));
    let throughput = n("/requests/finished") / n("/duration_s");
    assert!((n("/throughput/requests_per_s") / throughput - 1.0).abs() < 1e-9);
    assert!(n("/goodput_requests_per_s") <= n("/throughput/requests_per_s"));
    let stages = report["stages"].as_array().unwrap();
    assert_eq!(stages.len(), 4);
    for stage in stages {
        let row = stage.as_object().unwrap();
        let mut names: Vec<_> = row.keys().map(String::as_str).collect();
        names.sort_unstable();
        let expected = ["busy", "communication", "dependency", "downstream", "drain", "fill", "no_work", "scheduler", "upstream"];
        assert_eq!(names, expected);
        assert!((row.values().map(|v| v.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert_eq!(report["config"]["seed"], 3);
    assert_eq!(report["config"]["mode"], "cpp");
    assert_eq!(report["config"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["config"]["scheduler"]["pipelining"], "chunk");
    assert_eq!(report["config"]["slo"]["ttft_s"].as_f64(), Some(1.5));
}

#[test]
fn without_a_target_there_is_no_goodput() {
    assert!(json(&with(&["run", "--json", "-"], &[]))["goodput_requests_per_s"].is_null());
}

#[test]
fn two_runs_decide_the_same_and_other_inputs_do_not() {
    let digest =
        |more: &[&str]| json(&with(&["run", "--json", "-", "--mode", "chunk"], more))["decision_digest"].as_str().unwrap().to_owned();
    let first = digest(&[]);
    assert_eq!(first.len(), 32);
    assert_eq!(digest(&[]), first);
    assert_ne!(digest(&["--seed", "9"]), first);
    assert_ne!(digest(&["--max-batch-tokens", "300"]), first);
}

#[test]
fn compare_reports_each_mode_under_its_name() {
    let report = json(&with(&["compare", "--json", "-"], &["--modes", "request,chunk"]));
    let runs = report["runs"].as_object().unwrap();
    assert_eq!(runs.len(), 2);
    for (mode, run) in runs {
        assert_eq!(run["config"]["mode"], mode.as_str());
        assert_eq!(run["config"]["scheduler"]["pipelining"], mode.as_str());
        assert_eq!(run["requests"]["submitted"], 80);
    }
    let table = cpp_sim(&with(&["compare"], &["--modes", "request,chunk"]));
    assert!(stdout(&table).lines().all(|line| line.chars().count() <= 100));
    assert!(stdout(&table).lines().any(|line| line.starts_with("TTFT mean, long") && line.trim_end().ends_with('x')));
}

#[test]
fn modes_are_what_they_stand_for() {
    let scheduler = |mode: &str| json(&with(&["run", "--json", "-"], &["--mode", mode]))["config"]["scheduler"].clone();
    for (mode, pipelining, chunking, balance, ahead) in [
        ("serial", "none", "tokens", "off", false),
        ("request", "request", "tokens", "off", false),
        ("chunk", "chunk", "tokens", "off", false),
        ("cpp", "chunk", "adaptive", "cost", true),
    ] {
        let s = scheduler(mode);
        assert_eq!((&s["pipelining"], &s["chunking"]["kind"], &s["balance"]), (&pipelining.into(), &chunking.into(), &balance.into()));
        assert_eq!(s["async_scheduling"], ahead, "{mode}");
    }
}

#[test]
fn single_options_win_over_the_file_and_the_file_over_mode_and_profile() {
    let file = TempFile::new(".toml", "stages = 3\nmax_batch_tokens = 100\npolicy = \"srpf\"\n[chunking]\nkind = \"tokens\"\nmax = 50\n");
    let args = with(&["run", "--json", "-", "--config", file.path()], &["--max-batch-tokens", "200", "--balance", "count"]);
    let report = json(&args);
    let s = &report["config"]["scheduler"];
    assert_eq!(
        (&s["stages"], &s["max_batch_tokens"], &s["policy"], &s["balance"]),
        (&3.into(), &200.into(), &"srpf".into(), &"count".into())
    );
    assert_eq!((&s["chunking"]["kind"], &s["chunking"]["max"]), (&"tokens".into(), &50.into()));
    // What neither of them says comes from mode and profile.
    assert_eq!((&s["async_scheduling"], &s["max_requests"]), (&true.into(), &64.into()));
    assert_eq!(report["stages"].as_array().unwrap().len(), 3);
    let report = json(&with(&["run", "--json", "-", "--config", file.path()], &["--stages", "2"]));
    assert_eq!(report["config"]["scheduler"]["stages"], 2);
}

#[test]
fn every_option_of_the_scheduler_reaches_it() {
    let report = json(&with(
        &["run", "--json", "-", "--mode", "serial"],
        &[
            "--pipelining",
            "chunk",
            "--chunking",
            "cost",
            "--chunk-target-ns",
            "9000000",
            "--chunk-align",
            "16",
            "--chunk-min",
            "32",
            "--async",
            "true",
            "--policy",
            "priority",
            "--admission",
            "no-evict",
            "--prefix-caching",
            "true",
            "--block-size",
            "32",
            "--num-blocks",
            "5000",
            "--max-batch-requests",
            "40",
            "--max-requests",
            "33",
            "--max-in-flight",
            "6",
            "--chunks-per-batch",
            "2",
        ],
    ));
    let s = &report["config"]["scheduler"];
    for (field, value) in [
        ("pipelining", Value::from("chunk")),
        ("async_scheduling", true.into()),
        ("policy", "priority".into()),
        ("admission", "no_evict".into()),
        ("prefix_caching", true.into()),
        ("block_size", 32.into()),
        ("num_blocks", 5000.into()),
        ("max_batch_requests", 40.into()),
        ("max_requests", 33.into()),
        ("max_in_flight", 6.into()),
        ("chunks_per_batch", 2.into()),
        ("chunking", serde_json::json!({"kind": "cost", "target_ns": 9_000_000, "align": 16, "min": 32})),
    ] {
        assert_eq!(s[field], value, "{field}");
    }
    let tokens = json(&with(&["run", "--json", "-"], &["--chunk-tokens", "77"]));
    assert_eq!(tokens["config"]["scheduler"]["chunking"], serde_json::json!({"kind": "tokens", "max": 77}));
}

#[test]
fn a_trace_runs_and_its_hash_ids_are_hit() {
    let trace = TempFile::new(
        ".jsonl",
        r#"{"arrival_s":0,"input_tokens":100,"output_tokens":2,"hash_ids":[1,2,3,4,5,6,7],"hash_block":16}
{"arrival_s":10,"input_tokens":90,"output_tokens":3,"hash_ids":[1,2,3,4,15,16],"hash_block":16}
"#,
    );
    let cached = |more: &[&str]| json(&[&["run", "--json", "-", "--trace", trace.path(), "--prefix-caching", "true"], more].concat());
    assert_eq!(cached(&[])["tokens"]["cached"], 64);
    assert_eq!(cached(&["--format", "jsonl", "--limit", "1"])["tokens"]["cached"], 0);
    // The second comes while the first is still in the pipeline: nothing is there to be hit.
    assert_eq!(cached(&["--time-scale", "0.0001"])["tokens"]["cached"], 0);
}

#[test]
fn refusals_are_told_and_counted() {
    let output = cpp_sim(&with(&["run", "--json", "-"], &["--num-blocks", "100"]));
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rejected = report["requests"]["rejected"].as_u64().unwrap();
    assert!(rejected > 0);
    let by_reason = report["requests"]["rejected_by_reason"].as_object().unwrap();
    assert_eq!(by_reason.values().map(|v| v.as_u64().unwrap()).sum::<u64>(), rejected);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("{rejected} requests rejected")), "{told}");
}

#[test]
fn json_goes_to_a_file_beside_the_table() {
    let file = TempFile::new(".json", "old content that is longer than nothing");
    let output = cpp_sim(&with(&["run"], &["--json", file.path()]));
    assert!(stdout(&output).contains("TTFT"));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
    assert_eq!(report["requests"]["submitted"], 80);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [vec![], with(&["run"], &[]), with(&["run", "--json", "-"], &[]), vec!["--help"], vec!["run", "--list-profiles"]] {
        let mut child =
            Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn yes_or_no_may_be_said_with_or_without_a_value() {
    for (args, expected) in [
        (&["--async"][..], true),
        (&["--async=true"], true),
        (&["--async", "true"], true),
        (&["--async=false"], false),
        (&["--async", "--policy", "fcfs"], true),
    ] {
        let report = json(&with(&["run", "--mode", "chunk", "--json", "-"], args));
        assert_eq!(report["config"]["scheduler"]["async_scheduling"], expected, "{args:?}");
    }
}
