//! The commands that compare arrangements of devices: `pools`, and the layouts of `plan`.

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

fn mean(run: &Value, what: &str) -> f64 {
    run[what]["mean"].as_f64().unwrap()
}

#[test]
fn pools_are_compared_with_the_same_devices_for_both() {
    let report = json(&["pools", "--json", "-"]);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 6);
    for point in points {
        let runs = point["runs"].as_array().unwrap();
        assert_eq!(runs.iter().map(|run| run["name"].as_str().unwrap()).collect::<Vec<_>>(), ["colocated", "end", "chunk", "layer"]);
        assert!(runs.iter().all(|run| run["finished"] == 300 && run["rejected"] == 0));
        // The prefill pool does not know how KV is handed over, unless it waits for it.
        assert!(mean(&runs[3], "handover_s") < mean(&runs[1], "handover_s"), "{point}");
        for run in &runs[1..] {
            assert!((0.0..=1.0).contains(&run["link_idle"].as_f64().unwrap()));
        }
        let best = point["best"]["tpot"].as_str().unwrap();
        let least = runs.iter().map(|run| mean(run, "tpot_s")).fold(f64::INFINITY, f64::min);
        assert_eq!(mean(runs.iter().find(|run| run["name"] == best).unwrap(), "tpot_s"), least);
    }
    // Long prompts: to hand over as it comes saves most of the time of the link.
    let long = points[4]["runs"].as_array().unwrap();
    assert!(mean(&long[2], "handover_s") < 0.5 * mean(&long[1], "handover_s"));
}

#[test]
fn pools_take_a_workload_of_ones_own_and_transfers_that_never_end() {
    let own = ["pools", "--synthetic", "--requests", "50", "--rate", "2", "--json", "-", "--profile"];
    let told = String::from_utf8(cpp_sim(&[&own[..], &["demo"]].concat()).stderr).unwrap();
    assert!(told.contains("profile demo does not say: give --kv-bytes-per-token"), "{told}");
    let with = |profile: &str, more: &[&str]| json(&[&own[..], &[profile, "--kv-bytes-per-token", "100000"], more].concat());
    let hang = with("demo", &["--kv-hang", "5s", "--kv-hang", "6s", "--kv-timeout", "2s"]);
    let runs = hang["points"][0]["runs"].as_array().unwrap();
    assert!(runs[1..].iter().all(|run| run["transfers_failed"] == 2 && run["finished"] == 50));
    assert_eq!(with("demo", &["--kv-hang", "5s", "--kv-hang", "6s", "--kv-timeout", "2s"]), hang);
    let small = ["pools", "--synthetic", "--requests", "20", "--kv-hang", "1s"];
    let table = String::from_utf8(cpp_sim(&small).stdout).unwrap();
    assert!(table.lines().all(|line| line.chars().count() <= 100) && table.contains("best: TTFT"), "{table}");
    assert!(table.contains("0 rejected, 1 transfers failed"), "{table}");
    let shared = with("llama-70b-h100-tp8", &["--decode-stages", "1", "--decode-tp", "4"]);
    assert!(shared["system"].as_str().unwrap().contains("decode pool of 1 of 4 devices each; colocated: 2 of 4 stages"));
    for (args, problem) in [
        (&["pools", "--stages", "3"][..], "not --stages"),
        (&["pools", "--fault", "kind=lose,at=1s"], "not --fault"),
        (&["pools", "--tp", "2"], "not --tp"),
    ] {
        let output = cpp_sim(args);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(2), 1), "{told}");
        assert!(told.contains(problem), "{told}");
    }
}

#[test]
fn a_plan_that_its_profile_does_not_run_says_so() {
    let plan = ["plan", "--prompt", "100000", "--stages", "4", "--profile", "demo"];
    let chunks = |output: &std::process::Output| -> Vec<u64> {
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["chunks"].as_array().unwrap().iter().map(|chunk| chunk.as_u64().unwrap()).collect()
    };
    let free = cpp_sim(&plan);
    let told = String::from_utf8(free.stderr.clone()).unwrap();
    assert!(chunks(&free).into_iter().max() > Some(512));
    assert!(told.contains("--max-batch-tokens 512") && told.lines().count() == 1, "{told}");
    let kept = cpp_sim(&[&plan[..], &["--max-batch-tokens", "512"]].concat());
    assert!(kept.stderr.is_empty(), "{}", String::from_utf8_lossy(&kept.stderr));
    let kept = chunks(&kept);
    assert_eq!((kept.iter().max(), kept.iter().sum()), (Some(&512), 100_000u64));
    let fixed = cpp_sim(&[&plan[..], &["--fixed", "700", "--max-batch-tokens", "512"]].concat());
    assert_eq!(chunks(&fixed).into_iter().max(), Some(512));
}

#[test]
fn layouts_with_two_groups_a_device_are_compared() {
    let plan = ["plan", "--prompt", "4096", "--stages", "4", "--cost", "c0=0,c1=1000", "--fixed", "1024", "--layouts"];
    let report = json(&plan);
    let layout = |report: &Value, name: &str, what: &str| report["layouts"][name][what].as_f64().unwrap();
    // Four chunks of 1.024 ms: 4 + 3 of them; with halves 4 and three halves; forth and back as long as without.
    assert_eq!(layout(&report, "linear", "makespan_ns"), 7.0 * 1_024_000.0);
    assert_eq!(layout(&report, "interleaved", "makespan_ns"), 5.5 * 1_024_000.0);
    assert_eq!(layout(&report, "v", "makespan_ns"), 7.0 * 1_024_000.0);
    assert_eq!(report["makespan_ns"], report["layouts"]["linear"]["makespan_ns"]);
    assert_eq!((layout(&report, "linear", "hops"), layout(&report, "interleaved", "hops"), layout(&report, "v", "hops")), (3.0, 7.0, 6.0));
    // Hops, and a constant that each group pays, take from the gain.
    let dear = json(&[&plan[..5], &["--cost", "c0=1000000,c1=1000", "--fixed", "1024", "--layouts", "--hop-ns", "500000"]].concat());
    assert!(layout(&dear, "interleaved", "makespan_ns") > layout(&dear, "linear", "makespan_ns"));
    assert!(json(&plan[..plan.len() - 1]).get("layouts").is_none());
}
