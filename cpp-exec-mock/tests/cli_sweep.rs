//! `cpp-sim sweep`: grids, lists, resuming, the knee.

mod common;

use std::process::{Command, Output};

use common::TempFile;

const ALL: [&str; 8] = ["--", "--synthetic", "--requests", "40", "--profile", "demo", "--mode", "chunk"];

fn sweep(args: &[&str], all: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-sim")).arg("sweep").args(args).args(all).output().unwrap()
}

fn table(output: &Output) -> Vec<Vec<String>> {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn rows(file: &TempFile) -> Vec<csv::StringRecord> {
    csv::Reader::from_path(&file.0).unwrap().records().map(|row| row.unwrap()).collect()
}

#[test]
fn a_grid_has_every_combination_in_order_whatever_the_number_of_jobs() {
    let csv = TempFile::new(".csv", "");
    let grid = ["--vary", "rate=2,8", "--vary", "stages=2,3", "--csv", csv.path(), "--jobs", "3"];
    let told = sweep(&grid, &ALL);
    let lines = table(&told);
    let points: Vec<String> = lines[1..].iter().map(|line| line[..2].join(" ")).collect();
    assert_eq!(points, ["rate=2 stages=2", "rate=2 stages=3", "rate=8 stages=2", "rate=8 stages=3"]);
    assert_eq!(rows(&csv).len(), 4);
    // One job, no file: the same table.
    assert_eq!(table(&sweep(&["--vary", "rate=2,8", "--vary", "stages=2,3", "--jobs", "1"], &ALL)), lines);
    // A row is what a run of its own says.
    let run = Command::new(env!("CARGO_BIN_EXE_cpp-sim"))
        .args(["run", "--json", "-", "--rate=8", "--stages=3"])
        .args(&ALL[1..])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let rows = rows(&csv);
    let row = rows.iter().find(|row| row[0].ends_with("--rate=8 --stages=3")).unwrap();
    assert_eq!(row[1], *report["decision_digest"].as_str().unwrap());
    let header = csv::Reader::from_path(&csv.0).unwrap().headers().unwrap().clone();
    let cell = |name: &str| row[header.iter().position(|column| column == name).unwrap()].parse::<f64>().unwrap();
    for (column, path) in [
        ("ttft_mean_s", "/ttft_s/mean"),
        ("ttft_long_p99_s", "/ttft_long_s/p99"),
        ("tpot_p90_s", "/tpot_s/p90"),
        ("queue_p99_s", "/queue_s/p99"),
        ("batches", "/batches"),
        ("duration_s", "/duration_s"),
    ] {
        assert!((cell(column) - report.pointer(path).unwrap().as_f64().unwrap()).abs() < 1e-9, "{column}");
    }
    let causes = header.iter().skip_while(|name| *name != "busy");
    assert!((causes.map(cell).sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn what_is_in_the_file_is_not_done_again() {
    let csv = TempFile::new(".csv", "");
    let go = |rates: &str| sweep(&["--vary", &format!("rate={rates}"), "--csv", csv.path()], &ALL);
    table(&go("2,4"));
    // Marked by hand, to see whether it is taken from the file; and a line that was cut off by a kill.
    let text = std::fs::read_to_string(&csv.0).unwrap();
    let digest = rows(&csv)[0][1].to_owned();
    std::fs::write(&csv.0, format!("{}\"--synthetic", text.replace(&digest, "from the file"))).unwrap();
    table(&go("2,4,8"));
    let rows = rows(&csv);
    assert_eq!(rows.len(), 3);
    assert_eq!(&rows[0][1], "from the file");
    std::fs::write(&csv.0, "some,other,file\n").unwrap();
    let told = go("2");
    assert_eq!(told.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&told.stderr).contains("columns"));
    assert_eq!(std::fs::read_to_string(&csv.0).unwrap(), "some,other,file\n", "left alone");
}

#[test]
fn a_list_has_a_run_a_line() {
    let list = TempFile::new(".txt", "# two runs\n--rate 2 --mode request\n\n--rate 4 --layers 3,5\n");
    let lines = table(&sweep(&["--list", list.path()], &ALL[..ALL.len() - 2]));
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2][..4], ["rate", "4", "layers", "3,5"]);
}

#[test]
fn the_knee_meets_the_slo_and_a_little_more_load_does_not() {
    let csv = TempFile::new(".csv", "");
    let slo = [&ALL[..], &["--slo-ttft", "0.5"]].concat();
    let lines = table(&sweep(&["--knee", "rate=0.5..64", "--within", "1.1", "--vary", "stages=2,4", "--csv", csv.path()], &slo));
    let knee = |line: &[String]| line[1].parse::<f64>().unwrap();
    assert!(knee(&lines[1]) < knee(&lines[2]), "more stages carry more: {lines:?}");
    for (line, stages) in lines[1..3].iter().zip(["--stages=2", "--stages=4"]) {
        let probes = rows(&csv);
        let probes: Vec<(f64, f64)> = probes
            .iter()
            .filter(|row| row[0].contains(stages))
            .map(|row| (row[0].rsplit_once("--rate=").unwrap().1.parse().unwrap(), row[2].parse().unwrap()))
            .collect();
        let met = probes.iter().find(|probe| probe.0 == knee(line)).unwrap().1;
        let next = probes.iter().filter(|probe| probe.0 > knee(line)).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        assert!(met >= 0.9 && next.1 < 0.9 && next.0 <= knee(line) * 1.1, "{probes:?}");
    }
}

#[test]
fn a_knee_that_was_not_reached_is_no_number() {
    let slo = |ttft| [&ALL[..], &["--slo-ttft", ttft]].concat();
    let told = sweep(&["--knee", "rate=0.5..1"], &slo("500"));
    let lines = table(&told);
    assert_eq!(lines[1][1], ">=1", "{lines:?}");
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.lines().any(|line| line.starts_with("at least: ")), "{text}");
    // Forty requests are over before one a second is a steady load.
    assert!(text.contains("\nrun: requests came faster than"), "{text}");
    // Time between arrivals: the smaller, the more load.
    let twice = [&slo("500")[..], &["--rate", "0.5"]].concat();
    assert_eq!(table(&sweep(&["--knee", "time-scale=0.5..1"], &twice))[1][1], "<=0.5");
    let told = sweep(&["--knee", "rate=0.5..1"], &slo("0.000001"));
    assert_eq!(table(&told)[1][1], "none");
    assert!(String::from_utf8_lossy(&told.stdout).lines().last().unwrap().starts_with("none: "));
}

#[test]
fn what_is_wrong_is_told_before_the_first_run() {
    let slo = [&ALL[..], &["--slo-ttft", "1"]].concat();
    for (args, all, problem) in [
        (&["--vary", "rate"][..], &ALL[..], "OPTION=VALUE"),
        (&["--vary", "speed=1,2"], &ALL, "--speed"),
        (&["--vary", "mode=request,fast"], &ALL[..ALL.len() - 2], "fast"),
        (&["--vary", "mode=request"], &ALL, "--mode"),
        (&["--knee", "rate=1..9"], &ALL, "--slo-ttft"),
        (&["--knee", "rate=9..1"], &slo, "LOW < HIGH"),
        (&["--jobs", "0"], &ALL, "--jobs"),
        (&["--list", "/nowhere"], &ALL, "/nowhere"),
        (&["--vary", "timeline=a,b"], &ALL, "--csv alone"),
    ] {
        let output = sweep(args, all);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{args:?}: {told}");
        assert!(told.contains(problem), "{args:?}: {told}");
    }
}
