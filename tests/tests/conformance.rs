//! Every conformance scenario, judged by the oracle in Rust and, where there is a python3, by `check.py` as well; some hundred random
//! scenarios; and logs that are damaged on purpose, each of which must be found out.

use std::path::{Path, PathBuf};
use std::process::Command;

use cpp_exec_mock::conformance::Scenario;
use cpp_sched_tests::play::{log_of, problems};
use cpp_sched_tests::{generate, oracle};
use serde_json::{Value, json};

/// Random scenarios that every test run plays; more with `cargo run --release -p cpp-sched-tests --example mixed -- --seeds A..B`.
const RANDOM: std::ops::Range<u64> = 0..300;

/// How many of them `check.py` judges too.
const RANDOM_FOR_PYTHON: usize = 60;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// Names and texts of all scenarios.
fn scenarios() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder().join("scenarios")).expect("the scenarios are part of the package");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.sort();
    let read = |file: PathBuf| {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&file).expect("a readable scenario"))
    };
    files.into_iter().map(read).collect()
}

fn is_bad(text: &str) -> bool {
    let scenario: Value = serde_json::from_str(text).expect("JSON");
    scenario["expect"]["error"] == json!(true)
}

fn text_of(name: &str) -> String {
    let found = scenarios().into_iter().find(|(file, _)| file.starts_with(name));
    found.unwrap_or_else(|| panic!("no scenario {name}")).1
}

#[test]
fn every_scenario_passes() {
    let all = scenarios();
    assert!(all.len() >= 128, "{} scenarios", all.len());
    let mut faults = Vec::new();
    for (name, text) in all.iter().filter(|(_, text)| !is_bad(text)) {
        faults.extend(problems(text).into_iter().take(5).map(|problem| format!("{name}: {problem}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_bad_scenario_is_refused_with_its_key() {
    let key_of = |name: &str| match &name[..3] {
        "036" => "config.max_batch_tokens",
        "037" => "config.max_batch_token",
        "038" => "config.chunking.align",
        "039" => "requests[0].drafts",
        "040" => "config.cost",
        "041" => "script[0].id",
        "042" => "config.admission",
        "099" => "config.model.hidden",
        other => panic!("which key does {other} mean?"),
    };
    let bad: Vec<(String, String)> = scenarios().into_iter().filter(|(_, text)| is_bad(text)).collect();
    assert!(bad.len() >= 8);
    for (name, text) in bad {
        let error = Scenario::parse(&text).expect_err(&name);
        assert_eq!(error.key, key_of(&name), "{name}: {error}");
    }
}

#[test]
fn random_scenarios_pass() {
    let mut faults = Vec::new();
    for seed in RANDOM {
        let text = generate::scenario(seed).to_string();
        faults.extend(problems(&text).first().map(|problem| format!("seed {seed}: {problem}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What `check.py` says about pairs of scenario and log; none where there is no python3.
fn check_py(name: &str, pairs: &[(String, String)]) -> Option<Vec<Vec<String>>> {
    const SCRIPT: &str = "import sys, json; sys.path.insert(0, sys.argv[1]); import check\n\
        print(json.dumps([check.judge(json.loads(s), l.splitlines()) for s, l in json.load(open(sys.argv[2]))]))";
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.json"));
    std::fs::write(&file, serde_json::to_string(pairs).expect("strings")).expect("a writable target folder");
    let output = match Command::new("python3").args(["-B", "-c", SCRIPT]).arg(folder()).arg(&file).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("check.py is skipped: python3 does not run here ({error})");
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "check.py: {}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_str(&text).expect("a list of lists"))
}

#[test]
fn check_py_agrees() {
    let fixed = scenarios().into_iter().filter(|(_, text)| !is_bad(text));
    let random = RANDOM.take(RANDOM_FOR_PYTHON).map(|seed| (format!("seed {seed}"), generate::scenario(seed).to_string()));
    let (names, texts): (Vec<String>, Vec<String>) = fixed.chain(random).unzip();
    let pairs: Vec<(String, String)> = texts.into_iter().map(|text| (text.clone(), log_of(&text).expect("a log"))).collect();
    let Some(verdicts) = check_py("all", &pairs) else { return };
    assert_eq!(verdicts.len(), names.len());
    let faults: Vec<String> = names.iter().zip(&verdicts).filter(|(_, found)| !found.is_empty()).map(|pair| format!("{pair:?}")).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A damage: the scenario, what is done to its log, and words of the violation that it must be found by.
type Damage = (&'static str, fn(&mut Vec<Value>), &'static str);

/// The first line of an op that satisfies a condition.
fn line<'a>(log: &'a mut [Value], op: &str, fits: impl Fn(&Value) -> bool) -> &'a mut Value {
    log.iter_mut().find(|line| line["op"] == op && fits(line)).expect("such a line")
}

fn batch(log: &mut [Value], number: u64) -> &mut Value {
    line(log, "schedule", |line| line["batch"] == number)
}

/// Damages that `check.py` finds as well.
const DAMAGES: &[Damage] = &[
    ("002", |log| batch(log, 1)["items"][0]["start"] = json!(63), "must start at 64"),
    ("002", |log| batch(log, 2)["items"][0]["start"] = json!(0), "must start at 128"),
    ("002", |log| batch(log, 2)["items"][0]["samples"] = json!(false), "samples must be true"),
    (
        "001",
        |log| {
            let complete = line(log, "complete", |line| line["batch"] == 1);
            let token = complete["events"][0].clone();
            complete["events"].as_array_mut().expect("events").push(token);
        },
        "tokens delivered",
    ),
    ("001", |log| line(log, "complete", |line| line["batch"] == 1)["events"][0]["token"] = json!(5), "must be token 1"),
    ("001", |log| line(log, "complete", |line| line["batch"] == 4)["events"] = json!([]), "tokens delivered"),
    (
        "003",
        |log| {
            // B gets A's block in every batch.
            let shared = batch(log, 0)["items"][0]["blocks"][0].clone();
            for item in log
                .iter_mut()
                .flat_map(|line| line.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten())
                .filter(|item| item["id"] == "B")
            {
                item["blocks"][0] = shared.clone();
            }
        },
        "that A holds",
    ),
    (
        "018",
        |log| {
            // B gets a block of A, which was aborted under batch 1.
            let fenced = batch(log, 1)["items"][0]["blocks"][0].clone();
            batch(log, 2)["items"][0]["blocks"][0] = fenced;
        },
        "of A under batch 1 in flight",
    ),
    ("081", |log| batch(log, 0)["cost_ns"] = json!(batch(log, 0)["cost_ns"].as_u64().map(|cost| cost + 3)), "cost_ns"),
    ("097", |log| batch(log, 1)["flops"] = json!(1), "FLOPs in the batch"),
    ("097", |log| batch(log, 1)["items"][0]["flops"] = json!(1), "FLOPs, must be"),
    ("018", |log| line(log, "complete", |line| line["as"] == "done")["kv"]["free"] = json!(0), "do not add up"),
    ("018", |log| line(log, "abort", |_| true)["in_flight"] = json!(2), "in_flight"),
    ("053", |log| line(log, "schedule", |line| line["items"][0]["start"] != 0)["items"][0]["blocks"][0] = json!(200), "holds"),
    ("087", |log| line(log, "complete", |line| line["events"][0]["kind"] == "kv_ready")["events"] = json!([]), "kv_ready covers"),
    ("094", |log| line(log, "submit", |_| true)["events"][0]["start"] = json!(16), "kv_wanted"),
    ("005", |log| line(log, "schedule", |line| line["as"] == "b")["items"] = json!([]), "0 items"),
];

/// The words of `check.py` differ from the oracle's, so only that it objects counts.
#[test]
fn damaged_logs_are_found_out() {
    let mut pairs = Vec::new();
    for (name, damage, words) in DAMAGES {
        let text = text_of(name);
        let log = log_of(&text).expect("a log");
        assert_eq!(oracle::judge(&text, &log), [""; 0], "{name}");
        let mut lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        damage(&mut lines);
        let damaged = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let found = oracle::judge(&text, &damaged);
        assert!(found.iter().any(|problem| problem.contains(words)), "{name}: {words:?} is not among {found:#?}");
        pairs.push((text, damaged));
    }
    let Some(verdicts) = check_py("damaged", &pairs) else { return };
    for ((name, _, words), found) in DAMAGES.iter().zip(verdicts) {
        assert!(!found.is_empty(), "{name}: check.py does not find {words:?}");
    }
}

/// A log that is right under one configuration breaks the rules of another: how the rules on what a batch should have held are tested.
#[test]
fn logs_of_another_configuration_are_found_out() {
    let many = |n: u64, len: u64| -> Vec<Value> {
        (0..n).map(|i| json!({"id": format!("R{i}"), "prompt": [{"seed": 1, "len": len}], "max_tokens": 3, "priority": 9 - i})).collect()
    };
    let fill = json!([{"op": "submit", "id": "R0"}, {"op": "drain"}, {"op": "submit", "id": "R1"}, {"op": "schedule"}, {"op": "submit", "id": "R2"},
        {"op": "submit", "id": "R3"}, {"op": "drain"}]);
    let cases = [
        (json!({"max_batch_tokens": 16}), json!({"max_batch_tokens": 32}), "and the batch has room"),
        (
            json!({"chunks_per_batch": 1, "chunking": {"kind": "tokens", "max": 4}}),
            json!({"chunks_per_batch": 2, "chunking": {"kind": "tokens", "max": 4}}),
            "and the batch has room",
        ),
        (json!({"prefix_caching": false}), json!({"prefix_caching": true}), "can be hit"),
        (json!({"policy": "fcfs", "max_requests": 1}), json!({"policy": "priority", "max_requests": 1}), "which comes first"),
        (json!({"max_batch_tokens": 16, "policy": "priority"}), json!({"max_batch_tokens": 16}), "comes first, has"),
        (
            json!({"max_in_flight": 1, "max_batch_tokens": 16}),
            json!({"max_in_flight": 1, "max_batch_tokens": 15}),
            "more than a batch may hold",
        ),
        (json!({"max_in_flight": 2, "max_batch_tokens": 16}), json!({"max_in_flight": 1, "max_batch_tokens": 16}), "with 1 in flight"),
        (
            json!({"pipelining": "request", "max_in_flight": 2, "max_batch_tokens": 16, "max_requests": 1}),
            json!({"max_in_flight": 2, "max_batch_tokens": 16, "max_requests": 1}),
            "has work, blocks and a slot",
        ),
        (
            json!({"max_in_flight": 2, "max_batch_tokens": 16}),
            json!({"pipelining": "request", "max_in_flight": 2, "max_batch_tokens": 16}),
            "a second batch in flight",
        ),
        (json!({"stages": 2}), json!({"stages": 2, "balance": "count", "max_in_flight": 3}), "decodes in one batch"),
    ];
    for (own, other, words) in cases {
        let scenario = |config: &Value| json!({"config": config, "requests": many(4, 40), "script": fill}).to_string();
        let log = log_of(&scenario(&own)).expect("a log");
        assert_eq!(oracle::judge(&scenario(&own), &log), [""; 0], "{own}");
        let found = oracle::judge(&scenario(&other), &log);
        assert!(found.iter().any(|problem| problem.contains(words)), "{own} as {other}: {words:?} is not among {found:#?}");
    }
}

#[test]
fn requests_too_long_for_memory_are_refused_by_their_length() {
    let longest = json!([{"seed": 1, "len": u32::MAX}, {"seed": 2, "len": u32::MAX}]);
    let scenario = json!({"requests": [
        {"id": "A", "prompt": longest, "max_tokens": 1},
        {"id": "B", "prompt": [{"seed": 1, "len": 20}], "max_tokens": u32::MAX, "stop_tokens": []}],
        "script": [{"op": "submit", "id": "A"}, {"op": "submit", "id": "B"}, {"op": "drain", "max": 3}]});
    let log = log_of(&scenario.to_string()).expect("a log");
    let first: Value = serde_json::from_str(log.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["result"], "rejected");
    assert!(first["reason"].as_str().is_some_and(|reason| reason.contains("max_model_len")), "{first}");
}
