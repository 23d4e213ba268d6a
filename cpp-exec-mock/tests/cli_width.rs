//! Every command's output for people fits a terminal of 100 columns.

mod common;

use std::process::Command;

use common::TempFile;

/// Runs, and holds each line of stdout and stderr against 100 columns.
fn fits(args: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.is_empty(), "{args:?}");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{args:?}: {} columns: {line}", line.chars().count());
    }
}

/// Numbers as wide as they get: slow, long and many.
const WIDE: [&str; 15] = [
    "--synthetic",
    "--requests",
    "400",
    "--rate",
    "900",
    "--input-mean",
    "90000",
    "--input-sigma",
    "0.4",
    "--output-mean",
    "60",
    "--profile",
    "llama-8b-l4",
    "--slo-ttft",
    "0.001",
];

#[test]
fn runs_fit() {
    fits(&[&["run"], &WIDE[..]].concat());
    for mode in ["serial", "request", "chunk"] {
        fits(&["run", "--mode", mode, "--synthetic", "--requests", "40", "--profile", "demo", "--stages", "16", "--sends", "blocking"]);
    }
    fits(&["run", "--synthetic", "--requests", "40", "--profile", "demo", "--scheduling", "sync", "--stage-buffer", "1", "--rate", "0.01"]);
}

#[test]
fn comparisons_fit() {
    fits(&[]);
    fits(&[&["compare"], &WIDE[..]].concat());
    fits(&["granularity"]);
    fits(&["compare", "--synthetic", "--requests", "1", "--profile", "demo"]);
}

#[test]
fn faults_and_pools_fit() {
    let faults =
        ["--fault", "kind=die,stage=1,at=3s,for=2s", "--fault", "kind=slow:3,every=4s,for=500ms", "--fault", "kind=hang,stage=0,at=1s"];
    fits(&[&["run"], &["--synthetic", "--requests", "400", "--rate", "9", "--profile", "demo", "--patience", "30s"][..], &faults].concat());
    fits(&["pools"]);
}

#[test]
fn sweeps_fit() {
    let run = ["--", "--synthetic", "--requests", "30", "--profile", "demo"];
    fits(&[&["sweep", "--vary", "rate=1,1000", "--vary", "mode=request,chunk"], &run[..]].concat());
    fits(&[&["sweep", "--vary", "stages=2,4", "--knee", "rate=0.5..50"], &run[..], &["--slo-ttft", "2"]].concat());
}

#[test]
fn help_and_profiles_fit() {
    for args in [
        &["help"][..],
        &["run", "--help"],
        &["compare", "--help"],
        &["sweep", "--help"],
        &["granularity", "--help"],
        &["plan", "--help"],
        &["calibrate", "--help"],
        &["pools", "--help"],
        &["replay", "--help"],
        &["scenario", "--help"],
    ] {
        fits(args);
    }
    fits(&["run", "--list-profiles"]);
}

#[test]
fn fits_of_tables_fit() {
    let mut rows = String::from("gpu,a_column_with_a_rather_long_name_of_its_own,new_x,cached_L,attn_ms\n");
    for (i, tokens) in [64, 512, 4096, 16_384, 1_000_000].into_iter().enumerate() {
        for history in [0, 1000, 5_000_000] {
            rows += &format!("h200_sxm_with_a_long_name,and_a_value_that_is_just_as_long,{tokens},{history},{}\n", i + 1 + history / 1000);
        }
    }
    let table = TempFile::new(".csv", &rows);
    fits(&["calibrate", table.path()]);
}
