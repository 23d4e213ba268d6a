//! The HTML report: whole, self-contained, escaped, its numbers those of the JSON; and no larger for a longer run.

mod common;

use std::collections::BTreeMap;
use std::process::Command;

use common::TempFile;
use serde_json::Value;

const SMALL: [&str; 9] = ["--synthetic", "--requests", "80", "--rate", "4", "--input-mean", "3000", "--profile", "demo"];
const SECTIONS: [&str; 8] = ["summary", "bubbles", "latency", "prompt", "load", "gantt", "batches", "config"];

/// Runs with a page and JSON, and reads both.
fn page(command: &str, more: &[&str]) -> (String, Value) {
    let (html, json) = (TempFile::new(".html", "old"), TempFile::new(".json", ""));
    let args = [&[command, "--html", html.path(), "--json", json.path()], more].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    (std::fs::read_to_string(&html.0).unwrap(), serde_json::from_str(&std::fs::read_to_string(&json.0).unwrap()).unwrap())
}

/// The values of an attribute, in order.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    page.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn at<'a>(report: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(report, |value, key| &value[key])
}

/// Every number of the summary, by run and by path in the JSON.
fn numbers(page: &str) -> BTreeMap<(String, String), String> {
    let cells = page.split("<td data-run=\"").skip(1).map(|cell| cell.split('>').next().unwrap());
    cells
        .map(|cell| {
            let parts: Vec<&str> = cell.split('"').collect();
            ((parts[0].to_owned(), parts[2].to_owned()), parts[4].to_owned())
        })
        .collect()
}

/// `least` = how many numbers there are at least: rows without any are left out.
fn check_numbers(page: &str, run: &str, report: &Value, least: usize) {
    let mut checked = 0;
    for ((_, key), text) in numbers(page).iter().filter(|((name, _), _)| name == run) {
        let number: Option<f64> = text.parse().ok();
        assert_eq!(number, at(report, key).as_f64(), "{run} {key}");
        checked += 1;
    }
    assert!(checked >= least, "{run}: {checked} numbers");
}

#[test]
fn a_page_has_every_section_and_the_numbers_of_the_json() {
    let (page, report) = page("run", &[&SMALL[..], &["--slo-ttft", "2"]].concat());
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for section in SECTIONS {
        assert_eq!(page.matches(&format!("<section id=\"{section}\">")).count(), 1, "{section}");
    }
    check_numbers(&page, "cpp", &report, 25);
    assert!(numbers(&page).contains_key(&("cpp".to_owned(), "goodput_requests_per_s".to_owned())));
    // The parts of each stage's time, to the last digit.
    let bars = page.split("data-stage=\"").skip(1).map(|bar| bar.split('"').collect::<Vec<_>>());
    let mut sums = [0.0; 4];
    for bar in bars {
        let (stage, cause, value): (usize, &str, f64) = (bar[0].parse().unwrap(), bar[2], bar[4].parse().unwrap());
        assert_eq!(report["stages"][stage][cause].as_f64(), Some(value), "stage {stage} {cause}");
        sums[stage] += value;
    }
    assert!(sums.iter().all(|sum: &f64| (sum - 1.0).abs() < 1e-9), "{sums:?}");
}

#[test]
fn a_page_needs_nothing_from_anywhere() {
    let (page, _) = page("run", &SMALL);
    for outside in ["<script", "<link", "<img", "<iframe", "<object", "@import", "url(", "http://", " onload", "javascript:"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(attributes(&page, "src").is_empty() && attributes(&page, "href").is_empty());
    assert!(page.contains("default-src 'none'") && page.contains("prefers-color-scheme: dark"));
    // Every element that is opened is closed.
    for element in ["section", "svg", "figure", "div", "table", "tr", "td", "title", "text", "g", "p", "h2", "dl"] {
        let opened = page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
    assert!(!page.contains("NaN") && !page.contains("inf"), "a number that is none");
}

#[test]
fn compared_runs_are_side_by_side_with_ratios() {
    let (page, report) = page("compare", &[&SMALL[..], &["--modes", "request,chunk"]].concat());
    for run in ["request", "chunk"] {
        check_numbers(&page, run, &report["runs"][run], 25);
    }
    let mean = |run: &str| at(&report["runs"][run], "ttft_s.mean").as_f64().unwrap();
    assert!(page.contains(&format!("<td class=\"ratio\">{:.2}x</td>", mean("chunk") / mean("request"))));
    for chart in ["queue", "kv", "stages", "batches"] {
        assert_eq!(page.matches(&format!("data-chart=\"{chart}\"")).count(), 2, "{chart}");
    }
}

#[test]
fn names_from_outside_are_escaped() {
    let trace = TempFile::new("<b onclick='x'>&.jsonl", "{\"arrival_s\":0,\"input_tokens\":700,\"output_tokens\":3}\n");
    let (page, _) = page("run", &["--trace", trace.path(), "--profile", "demo"]);
    assert!(page.contains("&lt;b onclick=&#39;x&#39;&gt;&amp;.jsonl"));
    assert!(!page.contains("<b onclick"));
}

#[test]
fn a_run_with_next_to_nothing_has_a_page_too() {
    let one = TempFile::new(".jsonl", "{\"arrival_s\":5,\"input_tokens\":1,\"output_tokens\":1}\n");
    let (page, report) = page("run", &["--trace", one.path(), "--profile", "demo", "--stages", "1"]);
    check_numbers(&page, "cpp", &report, 15);
    // Nothing at all: everything is refused.
    let refused = TempFile::new(".jsonl", "{\"arrival_s\":0,\"input_tokens\":900000,\"output_tokens\":1}\n");
    let (page, report) = self::page("run", &["--trace", refused.path(), "--profile", "demo"]);
    assert_eq!(report["requests"]["rejected"], 1);
    check_numbers(&page, "cpp", &report, 10);
    assert!(!page.contains("NaN"));
}

#[test]
fn twenty_times_the_requests_make_no_larger_page() {
    let size = |requests: &str| {
        page("run", &["--synthetic", "--requests", requests, "--rate", "20", "--output-mean", "4", "--profile", "demo"]).0.len()
    };
    let (few, many) = (size("1000"), size("20000"));
    assert!(many < few + few / 2 && many < 2_000_000, "{few} and {many} bytes");
}

#[test]
fn a_page_that_cannot_be_written_is_said_before_the_run() {
    let args = [&["run", "--html", "/no/such/folder/page.html"], &SMALL[..]].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_cpp-sim")).args(&args).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told.contains("/no/such/folder/page.html") && told.lines().count() == 1, "{told}");
}

#[test]
fn faults_and_clients_that_hang_up_are_in_the_page() {
    let more =
        ["--fault", "kind=die,stage=1,at=3s,for=2s", "--fault", "kind=slow:3,stage=2,at=8s,for=3s", "--patience", "9s", "--seed", "4"];
    let (page, report) = page("run", &[&SMALL[..], &more].concat());
    check_numbers(&page, "cpp", &report, 25);
    assert_eq!(page.matches("<section id=\"faults\">").count(), 1);
    assert!(report["requests"]["aborted"].as_u64().unwrap() > 0);
    for kind in ["<td>die</td>", "<td>slow</td>", "data-cause=\"fault\"", "b-fault"] {
        assert!(page.contains(kind), "{kind}");
    }
    // Regret ends although some prompts never do, and pays for the faults.
    let regret = |report: &Value| report["prefill"]["regret"].as_f64().unwrap();
    let (_, without) = self::page("run", &[&SMALL[..], &more[4..]].concat());
    assert!(regret(&report) > regret(&without) && regret(&without) >= 0.0, "{} {}", regret(&report), regret(&without));
}
