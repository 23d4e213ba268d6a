//! Options of the pipeline on the command line, and the table over granularities.

mod common;

use std::process::{Command, Output};

use serde_json::Value;

fn cpp_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = cpp_sim(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

const RUN: [&str; 13] = [
    "run",
    "--json",
    "-",
    "--synthetic",
    "--requests",
    "60",
    "--rate",
    "4",
    "--profile",
    "demo",
    "--prefix-caching=false",
    "--layers",
    "8,8,8,16",
];

#[test]
fn every_option_of_the_pipeline_reaches_the_machine() {
    let options: [(&str, &str, &str, Value); 12] = [
        ("--tp", "2", "/collectives/ranks", 2.into()),
        ("--hop-latency-ns", "7", "/hop/latency_ns", 7.into()),
        ("--hop-bytes-per-s", "1000000", "/hop/bytes_per_s", 1_000_000.into()),
        ("--sends", "blocking", "/links/sends", "blocking".into()),
        ("--receives", "blocking", "/links/receives", "blocking".into()),
        ("--stage-buffer", "1", "/links/buffer", 1.into()),
        ("--scheduling", "sync", "/scheduling", "sync".into()),
        ("--scheduler-ns", "900000", "/scheduler_ns", 900_000.into()),
        ("--granularity", "request", "/granularity", "request".into()),
        ("--piece-ns", "300000", "/piece_ns", 300_000.into()),
        ("--sampling-ns", "2000000", "/sampling_ns", 2_000_000.into()),
        ("--return-ns", "5000000", "/return_ns", 5_000_000.into()),
    ];
    let plain = json(&RUN);
    for (option, value, path, expected) in options {
        let report = json(&[&RUN[..], &[option, value]].concat());
        assert_eq!(report.pointer(&format!("/config/machine{path}")), Some(&expected), "{option}");
        assert_ne!(report["stages"], plain["stages"], "{option} changes no time");
        for stage in report["stages"].as_array().unwrap() {
            let sum: f64 = stage.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{option}");
        }
    }
    assert_eq!(plain["config"]["scheduler"]["stages"], 4);
    assert_ne!(json(&RUN[..RUN.len() - 2])["e2e_s"], plain["e2e_s"], "--layers");
}

#[test]
fn options_that_contradict_each_other_are_refused_in_one_line() {
    for (args, problem) in [
        (&["--stage-buffer", "2", "--receives", "blocking"][..], "--stage-buffer needs --receives overlapped"),
        (&["--layers", "1,2,3", "--stages", "4"], "--layers has 3 numbers for 4 stages"),
        (&["--layers", "1,0"], "at least 1 layer"),
        (&["--sends", "sometimes"], "--sends"),
        (&["--stage-buffer", "0"], "--stage-buffer"),
    ] {
        let output = cpp_sim(&[&RUN[..RUN.len() - 2], args].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
        assert!(told.contains(problem), "{told}");
    }
}

#[test]
fn requests_as_pieces_are_slower_unless_nothing_blocks() {
    // The finding of the proposals for chunked pipeline parallelism, on three seeds.
    let (mut sync_gain, mut ahead_gain) = (0.0, 0.0);
    for seed in ["0", "1", "2"] {
        let report = json(&["granularity", "--json", "-", "--seed", seed]);
        let runs = report["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 12);
        let find = |scheduling: &str, transfers: &str, granularity: &str| {
            let named =
                |run: &&Value| run["scheduling"] == scheduling && run["transfers"] == transfers && run["granularity"] == granularity;
            &runs.iter().find(named).unwrap()["report"]
        };
        let ttft = |s: &str, t: &str, g: &str| find(s, t, g)["ttft_s"]["mean"].as_f64().unwrap();
        for scheduling in ["sync", "ahead"] {
            let whole = ttft(scheduling, "blocking", "batch");
            assert!(ttft(scheduling, "blocking", "request") > 1.1 * whole, "seed {seed}, {scheduling}");
            assert!(ttft(scheduling, "blocking", "request") > ttft(scheduling, "blocking", "chunk"), "seed {seed}, {scheduling}");
        }
        let gain = |scheduling| ttft(scheduling, "overlapped", "request") / ttft(scheduling, "overlapped", "batch");
        assert!(gain("ahead") < 1.0, "seed {seed}: {}", gain("ahead"));
        sync_gain += gain("sync");
        ahead_gain += gain("ahead");
        // The causes say why.
        let mean = |report: &Value, cause: &str| {
            let stages = report["stages"].as_array().unwrap();
            stages.iter().map(|stage| stage[cause].as_f64().unwrap()).sum::<f64>() / stages.len() as f64
        };
        let (blocking, overlapped) = (find("ahead", "blocking", "request"), find("ahead", "overlapped", "request"));
        assert!(mean(blocking, "communication") > 3.0 * mean(overlapped, "communication"));
        let (sync, ahead) = (find("sync", "overlapped", "request"), find("ahead", "overlapped", "request"));
        assert!(mean(sync, "scheduler") > mean(ahead, "scheduler"));
    }
    assert!(ahead_gain < sync_gain - 0.05, "synchronous decisions take a part of the gain: {sync_gain} {ahead_gain}");
    let table = String::from_utf8(cpp_sim(&["granularity"]).stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.lines().filter(|line| line.contains(" | ")).count() >= 12, "{table}");
}

#[test]
fn measured_times_of_a_stage_replace_the_costs() {
    // 1000 ns a token and 100 us for each batch, without a formula for it.
    let rows: Vec<String> = [1u32, 256, 512, 1024]
        .iter()
        .flat_map(|x| [0u32, 4096].map(|l| format!("{x},{l},0,0,{}", 100_000 + 1000 * x)))
        .chain([1u32, 16, 64].iter().flat_map(|n| [0u32, 4096].map(|c| format!("0,0,{n},{c},{}", 100_000 + 1000 * n))))
        .collect();
    let file = common::TempFile::new(".csv", &format!("new_tokens,history,decodes,context,time_ns\n{}\n", rows.join("\n")));
    let run = |more: &[&str]| {
        json(&[&RUN[..RUN.len() - 2], &["--scheduler-ns", "0", "--return-ns", "0", "--hop-latency-ns", "0"], more].concat())
    };
    let table = run(&["--stage-table", file.path(), "--hop-bytes-per-s", "0"]);
    let tokens = table["tokens"]["computed"].as_u64().unwrap();
    let busy = table["stages"][0]["busy"].as_f64().unwrap() * table["duration_s"].as_f64().unwrap();
    let batches = table["batches"].as_u64().unwrap();
    let expected = tokens as f64 * 1e-6 + batches as f64 * 1e-4;
    // Mixed batches pay the least time of decodes, 101 us, once too little, and their decodes once more than that.
    assert!((busy / expected - 1.0).abs() < 0.02, "{busy} {expected}");
    assert!(table["config"]["machine"]["table"]["prompts"]["sizes"].as_array().unwrap().len() == 4);
    let bad = common::TempFile::new(".csv", "new_tokens,time_ns\n1,5\n1,6\n");
    let output = cpp_sim(&["run", "--synthetic", "--stage-table", bad.path()]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
    assert!(told.contains("two rows for 1 tokens"), "{told}");
}
