//! Whatever is wrong with arguments or files: one line on stderr that says what and where, exit 2, nothing on stdout.

mod common;

use std::process::Command;

use common::TempFile;

/// Runs, expects exit 2 and one line, and gives the line.
fn refused(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
    assert_eq!(told.matches('\n').count(), 1, "{args:?}: {told}");
    assert!(told.ends_with('\n') && !told.contains("panicked") && output.stdout.is_empty(), "{args:?}: {told}");
    told
}

#[test]
fn wrong_arguments() {
    for (args, says) in [
        (&["plans"][..], "plans"),
        (&["run", "--frobnicate"], "--frobnicate"),
        (&["run"], "--trace"),
        (&["run", "--synthetic", "--trace", "x"], "--synthetic"),
        (&["run", "--rate", "3", "--trace", "x"], "--rate"),
        (&["run", "--rate", "3"], "--synthetic"),
        (&["run", "--synthetic", "--format", "azure"], "--format"),
        (&["run", "--synthetic", "--rate", "fast"], "--rate"),
        (&["run", "--synthetic", "--rate", "-1"], "rate"),
        (&["run", "--synthetic", "--rate", "nan"], "rate"),
        (&["run", "--synthetic", "--rate", "1e-300"], "rate"),
        (&["run", "--synthetic", "--requests", "0"], "requests"),
        (&["run", "--synthetic", "--requests", "-5"], "--requests"),
        (&["run", "--synthetic", "--input-mean", "0"], "input-mean"),
        (&["run", "--synthetic", "--time-scale", "-2"], "--time-scale"),
        (&["run", "--synthetic", "--mode", "turbo"], "turbo"),
        (&["run", "--synthetic", "--stages", "0"], "--stages"),
        (&["run", "--synthetic", "--stages", "81"], "80"),
        (&["run", "--synthetic", "--max-batch-tokens", "0"], "max_batch_tokens"),
        (&["run", "--synthetic", "--max-batch-tokens", "4294967296"], "--max-batch-tokens"),
        (&["run", "--synthetic", "--policy", "best"], "best"),
        (&["run", "--synthetic", "--async", "maybe"], "--async"),
        (&["run", "--synthetic", "--chunking", "cost"], "--chunk-target-ns"),
        (&["run", "--synthetic", "--chunking", "adaptive", "--chunk-tokens", "5"], "--chunk-tokens"),
        (&["run", "--synthetic", "--chunk-tokens", "5", "--chunk-align", "5"], "--chunk-tokens"),
        (&["run", "--synthetic", "--chunk-tokens", "0"], "chunking.max"),
        (&["run", "--synthetic", "--slo-ttft", "-1"], "--slo-ttft"),
        (&["run", "--synthetic", "--slo-ttft", "inf"], "--slo-ttft"),
        (&["run", "--synthetic", "--profile", "no-such-machine"], "no-such-machine"),
        (&["compare", "--synthetic", "--modes", "chunk,chunk"], "twice"),
        (&["compare", "--synthetic", "--modes", "chunk,turbo"], "turbo"),
        (&["compare", "--synthetic", "--modes", ""], "mode"),
        (&["scenario"], "FILE"),
        (&["run", "--synthetic", "--requests", "x"], "'x' for '--requests <N>': not a whole number from 0 on"),
        (&["run", "--synthetic", "--requests", ""], "--requests"),
        (&["run", "--synthetic", "--rate", "fast"], "'fast' for '--rate <R>': not a number"),
        (&["plan", "--prompt", "1000", "--stages", "4"], "give --cost c0=..,c1=.. or --profile NAME|FILE"),
        (&["plan", "--prompt", "-5", "--stages", "4", "--profile", "demo"], "'-5' for '--prompt <N>'"),
        (&["plan", "--prompt", "2000000000", "--stages", "4", "--profile", "demo"], "100000000"),
        (&["plan", "--prompt", "90000000", "--requests", "2", "--stages", "4", "--profile", "demo"], "at most 100000000 tokens"),
        (&["plan", "--prompt", "9", "--stages", "4", "--profile", "demo", "--max-batch-tokens", "0"], "--max-batch-tokens"),
        (&["sweep", "--vary", "stages=81", "--", "--synthetic"], "80"),
        (&["bench", "--steps", "-1"], "'-1' for '--steps <N>'"),
        (&["sweep"], "give --vary OPTION=V,V,.., --list FILE or --knee"),
        (&["sweep", "--", "--synthetic"], "sweep has nothing to vary"),
        (&["sweep", "--vary", "rate=,", "--", "--synthetic"], "there is no value"),
    ] {
        let told = refused(args);
        assert!(told.starts_with("cpp-sim: ") && told.contains(says), "{args:?}: {told}");
    }
}

#[test]
fn the_help_that_is_named_is_that_of_the_command() {
    for (args, help) in [
        (&["run", "--frobnicate"][..], "cpp-sim run --help"),
        (&["pools", "--link-latency", "long"], "cpp-sim pools --help"),
        (&["plan", "--prompt", "1000", "--stages", "4"], "cpp-sim plan --help"),
        (&["sweep", "--vary", "speed=1,2", "--", "--synthetic"], "cpp-sim run --help"),
        (&["plans"], "cpp-sim --help"),
    ] {
        let told = refused(args);
        assert!(told.trim_end().ends_with(&format!("(see {help})")), "{args:?}: {told}");
    }
}

#[test]
fn a_wrong_fault_is_told_once() {
    let told = refused(&["run", "--synthetic", "--fault", "kind=stall,at=1s"]);
    assert_eq!((told.matches("kind=stall,at=1s").count(), told.contains("a stall needs for=TIME")), (1, true), "{told}");
}

#[test]
fn files_that_are_not_there_or_cannot_be_written() {
    for args in [
        &["run", "--trace", "/no/such/file.csv"][..],
        &["run", "--synthetic", "--config", "/no/such/file.toml"],
        &["run", "--synthetic", "--profile", "/no/such/file.toml"],
        &["run", "--synthetic", "--json", "/no/such/file.json"],
        &["scenario", "/no/such/file.json"],
        &["run", "--trace", "/"],
    ] {
        let told = refused(args);
        assert!(told.contains(args[args.len() - 1]), "{told}");
    }
}

#[test]
fn a_bad_line_of_a_trace_is_named() {
    let trace =
        TempFile::new(".jsonl", "{\"arrival_s\":0,\"input_tokens\":5,\"output_tokens\":1}\n{\"arrival_s\":1,\"input_tokens\":\"x\"}\n");
    let told = refused(&["run", "--trace", trace.path()]);
    assert!(told.contains(trace.path()) && told.contains("line 2"), "{told}");
    let nothing = TempFile::new(".csv", "");
    assert!(refused(&["run", "--trace", nothing.path()]).contains(nothing.path()));
}

#[test]
fn a_bad_configuration_file_is_named_with_line_and_field() {
    for (content, line, says) in [
        ("stages = 2\nfrobs = 3\n", "line 2", "frobs"),
        ("# comment\n\nmax_batch_tokens = \"many\"\n", "line 3", "many"),
        ("stages = 2\npolicy = \"best\"\n", "line 2", "best"),
        ("block_size = -1\n", "line 1", "-1"),
        ("stages 2\n", "line 1", "="),
        ("[chunking]\nkind = \"cost\"\ntarget = 3\n", "line", "target"),
    ] {
        let file = TempFile::new(".toml", content);
        let told = refused(&["run", "--synthetic", "--requests", "2", "--config", file.path()]);
        assert!(told.contains(file.path()) && told.contains(line) && told.contains(says), "{content}: {told}");
    }
    let file = TempFile::new(".toml", "max_batch_tokens = 0\n");
    let told = refused(&["run", "--synthetic", "--requests", "2", "--config", file.path()]);
    assert!(told.contains("max_batch_tokens must be at least 1"), "{told}");
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["help"], &["run", "--help"], &["compare", "-h"], &["--version"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(args).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}
