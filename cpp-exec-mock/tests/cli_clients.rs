//! Faults and clients on the command line.

mod common;

use std::process::{Command, Output};

use common::TempFile;
use serde_json::Value;

const RUN: [&str; 9] = ["run", "--profile", "demo", "--synthetic", "--requests", "120", "--output-mean", "30", "--prefix-caching=true"];

fn cpp_sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(RUN).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = cpp_sim(&[args, &["--json", "-"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn sums_to_one(report: &Value) {
    for stage in report["stages"].as_array().unwrap() {
        let sum: f64 = stage.as_object().unwrap().values().map(|v| v.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }
}

#[test]
fn faults_from_options_and_from_a_file_are_reported() {
    let file = TempFile::new(".txt", "# two at fixed times\nkind=die,stage=2,at=20s,for=5s\nkind=lose,at=40s # one result\n");
    let args = ["--rate", "2", "--faults", file.path(), "--fault", "kind=stall,every=10s,for=500ms", "--fault-timeout", "250ms"];
    let report = json(&args);
    sums_to_one(&report);
    assert_eq!(report["requests"]["finished"], 120);
    let faults = &report["faults"];
    let events = faults["events"].as_array().unwrap();
    assert!(events.iter().filter(|event| event["kind"] == "stall").count() >= 2, "{events:?}");
    let died = events.iter().find(|event| event["kind"] == "die").unwrap();
    assert_eq!((died["stage"].as_u64(), died["noticed_s"].as_f64(), died["up_s"].as_f64()), (Some(2), Some(20.25), Some(25.0)));
    assert!(died["recovery_s"].as_f64().unwrap() >= 5.0 && died["batches_lost"].as_u64().unwrap() > 0);
    assert!(faults["ttft_during_s"]["mean"].as_f64() > faults["ttft_before_s"]["mean"].as_f64());
    assert_eq!(report["config"]["machine"]["faults"]["timeout_ns"], 250_000_000);
    assert_eq!(json(&args)["decision_digest"], report["decision_digest"]);
    assert!(json(&["--rate", "2"]).get("faults").is_none());
    let table = String::from_utf8(cpp_sim(&args).stdout).unwrap();
    assert!(table.contains("recovered in") && table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn the_clients_of_a_workload_can_be_chosen() {
    let plain = json(&["--rate", "2"]);
    for args in [
        &["--users", "5", "--turns", "3", "--think", "2s"][..],
        &["--rate", "2", "--turns", "3", "--max-context", "20000"],
        &["--rate", "2", "--burst-on", "2s", "--burst-off", "8s"],
        &["--rate", "2", "--patience", "3s", "--impatient", "0.5"],
        &["--rate", "2", "--max-tokens", "500"],
    ] {
        let report = json(args);
        sums_to_one(&report);
        let requests = &report["requests"];
        assert_eq!(requests["submitted"], 120, "{args:?}");
        assert_eq!(requests["finished"].as_u64().unwrap() + requests["aborted"].as_u64().unwrap(), 120, "{args:?}");
        assert_eq!(requests["aborted"].as_u64() > Some(0), args.contains(&"--patience"), "{args:?}");
        // With blocks enough it changes nothing that the scheduler does not know when requests end.
        assert_eq!(report["decision_digest"] == plain["decision_digest"], args.contains(&"--max-tokens"), "{args:?}");
        let hidden = report["config"]["workload"]["source"].as_str().unwrap().contains("their number unknown");
        assert_eq!(hidden, args.contains(&"--max-tokens"));
        assert_eq!(report["decision_digest"], json(args)["decision_digest"], "{args:?}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let file = TempFile::new(".txt", "kind=lose,at=1s\n\nkind=lose\n");
    for (args, problem) in [
        (&["--fault", "kind=stall,at=1s"][..], "needs for=TIME"),
        (&["--faults", file.path()], "line 3: fault `kind=lose`: say when"),
        (&["--fault", "kind=stall,stage=9,at=1s,for=1s"], "there is no stage 9"),
        (&["--fault", "kind=lose,every=1ns,until=1s"], "more than 100000 faults"),
        (&["--users", "5", "--rate", "3"], "--rate"),
        (&["--users", "0"], "users: must be at least 1"),
        (&["--think", "1s"], "need --turns or --users"),
        (&["--patience", "1s", "--impatient", "2"], "impatient: 2 must be from 0 to 1"),
        (&["--max-tokens", "0"], "max-tokens: must be at least 1"),
        (&["--burst-on", "1s"], "--burst-off"),
        (&["--spread-ticks", "1s"], "--spread-ticks"),
    ] {
        let output = cpp_sim(args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
        assert!(told.contains(problem), "{told}");
    }
}
