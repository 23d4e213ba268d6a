//! Profiles from TOML: strict, and errors that name the key and its line.

use std::path::Path;

use cpp_exec_mock::profile::Profile;
use cpp_sched::Attos;

const GIVEN: &str = r#"name = "mine"
about = "a test"
source = "made up"

[cost]
stages = 2
c0 = 1000
c1 = 6029.675
c2 = 1e-3

[hop]
latency_ns = 5

[scheduler]
scheduler_ns = 1
return_ns = 2
block_size = 16
num_blocks = 100
max_batch_tokens = 64
max_requests = 8
"#;

fn error(text: &str) -> String {
    let error = Profile::parse(text, "mine.toml").unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[test]
fn numbers_are_taken_as_written() {
    let profile = Profile::parse(GIVEN, "mine.toml").unwrap();
    let cost = profile.stage_cost(2).unwrap();
    assert_eq!((cost.c0, cost.c1, cost.c2, cost.c3), (Attos::from_ns(1000), Attos(6_029_675_000_000), Attos(1_000_000), Attos::ZERO));
    // One stage has both parts of what is shared out.
    assert_eq!(profile.stage_cost(1).unwrap().c1, Attos(2 * 6_029_675_000_000));
    assert_eq!(profile.stage_cost(1).unwrap().c0, cost.c0);
    assert_eq!((profile.hop.ns(1000), profile.scheduler_ns, profile.return_ns), (5, 1, 2));
    let config = profile.config(3).unwrap();
    assert_eq!((config.block_size, config.num_blocks, config.max_batch_tokens), (16, 100, 64));
    assert_eq!((config.max_requests, config.max_batch_requests), (8, 8));
}

#[test]
fn a_file_is_found_by_its_path() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mine.toml");
    std::fs::write(&path, GIVEN).unwrap();
    assert_eq!(Profile::find(path.to_str().unwrap()).unwrap().name, "mine");
    let missing = Profile::find("llama-99b").unwrap_err().to_string();
    assert!(missing.starts_with("llama-99b: neither a built-in profile (demo, "), "{missing}");
}

#[test]
fn wrong_keys_and_values_are_named() {
    for (from, to, problem) in [
        (
            "c2 = 1e-3",
            "c9 = 1",
            "mine.toml, line 9: unknown field `c9`, expected one of `stages`, `c0`, `c0_shared`, `c1`, `c2`, `c3`, `c4`, `c5`",
        ),
        ("latency_ns = 5", "", "mine.toml, line 11: missing field `latency_ns`"),
        ("c1 = 6029.675", "c1 = -1", "mine.toml, line 8: -1 is no number of nanoseconds from 0 to 1000000000000"),
        ("c1 = 6029.675", "c1 = nan", "mine.toml, line 8: NaN is no number of nanoseconds from 0 to 1000000000000"),
        ("c1 = 6029.675", "c1 = 1e13", "mine.toml, line 8: 10000000000000 is no number of nanoseconds from 0 to 1000000000000"),
        ("c1 = 6029.675", "c1 = \"x\"", "mine.toml, line 8: invalid type: string \"x\", expected a number of nanoseconds"),
        ("max_requests = 8", "max_requests = 0", "mine.toml: scheduler.max_requests must be at least 1"),
        ("num_blocks = 100", "", "mine.toml: scheduler.num_blocks is missing, and there is no [device] whose memory tells it"),
        ("stages = 2", "stages = 0", "mine.toml: cost.stages must be at least 1"),
        (
            "source = \"made up\"",
            "source = \"made up\"\nper_batch_ns = 1",
            "mine.toml: a cost is either given in [cost] or derived from per_batch_ns, [model] and [device]",
        ),
        (
            "[cost]\nstages = 2\nc0 = 1000\nc1 = 6029.675\nc2 = 1e-3",
            "",
            "mine.toml: a profile needs [cost], or per_batch_ns with [model] and [device]",
        ),
    ] {
        assert!(GIVEN.contains(from), "{from}");
        assert_eq!(error(&GIVEN.replace(from, to)), problem);
    }
    assert!(error("name = \n").starts_with("mine.toml, line 1: "));
}

#[test]
fn derived_profiles_are_checked_too() {
    let derived = include_str!("../profiles/llama-8b-h200.toml");
    for (from, to, problem) in [
        ("layers = 32", "layers = 0", "mine.toml: model.layers must be at least 1"),
        ("peak_flops = 989_400_000_000_000", "peak_flops = 0", "mine.toml: device.peak_flops must be at least 1"),
        ("memory_percent = 90", "memory_percent = 101", "mine.toml: device.memory_percent must be from 1 to 100"),
        ("peak_flops = 989_400_000_000_000", "peak_flops = 1", "mine.toml: [device] is so slow that c1 is above 1000000000000 ns"),
        ("per_batch_ns = 1_000_000", "", "mine.toml: [device] needs per_batch_ns, the constant that each stage pays for each batch"),
    ] {
        assert!(derived.contains(from), "{from}");
        assert_eq!(error(&derived.replace(from, to)), problem);
    }
}

#[test]
fn a_given_cost_goes_with_a_device_that_tells_the_memory() {
    let text = GIVEN.replace("num_blocks = 100\n", "").replace("[hop]", "[model]\nlayers = 2\nhidden = 64\nheads = 2\nkv_heads = 1\nhead_dim = 32\nintermediate = 64\n\n[device]\npeak_flops = 1\nlinear_percent = 1\nattention_percent = 1\nmemory_bytes_per_s = 1\nbandwidth_percent = 1\nmemory_bytes = 1_000_000\nmemory_percent = 50\nweights_bytes = 244_000\nbytes_per_weight = 2\nbytes_per_kv = 2\npays_for_weights = true\n\n[hop]");
    let text = text.replace("c0 = 1000", "c0 = 1000\nc0_shared = 500");
    let profile = Profile::parse(&text, "mine.toml").unwrap();
    // 256 bytes of KV a token, 4096 a block of 16; (500,000 - 244,000) / 4096.
    assert_eq!(profile.num_blocks(1).unwrap(), 62);
    // The constant of each stage, and its part of what is shared out.
    assert_eq!((profile.stage_cost(1).unwrap().c0, profile.stage_cost(2).unwrap().c0), (Attos::from_ns(2000), Attos::from_ns(1500)));
    assert_eq!(profile.stage_cost(2).unwrap().c1, Attos(6_029_675_000_000));
}
