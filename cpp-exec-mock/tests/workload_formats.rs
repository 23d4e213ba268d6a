//! Every trace format on a small sample: times, lengths, and which prompts share what.

use std::io::Write;
use std::path::{Path, PathBuf};

use cpp_exec_mock::workload::{Format, LoadOptions, Prefix, TimeScale, Workload};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/workload").join(name)
}

fn load(name: &str) -> Workload {
    Workload::load(sample(name), &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// (arrival ns, input, output) of each item.
fn rows(workload: &Workload) -> Vec<(u64, u32, u32)> {
    workload.items().iter().map(|item| (item.arrival_ns, item.input_tokens, item.output_tokens)).collect()
}

fn prefixes(workload: &Workload) -> Vec<Prefix> {
    workload.items().iter().map(|item| item.prefix).collect()
}

const fn continues(item: u32, tokens: u32) -> Prefix {
    Prefix::Continues { item, tokens }
}

#[test]
fn azure_times_have_seven_digits_and_start_at_the_first() {
    let workload = load("azure_2023.csv");
    assert_eq!(rows(&workload), [(0, 120, 7), (100, 95, 30), (1_750_000_000, 2048, 1), (1_750_000_000, 11, 4)]);
    assert_eq!(prefixes(&workload), [Prefix::Unknown; 4]);
    assert!(workload.digests(2, 16).is_empty());
    assert_eq!(workload.warnings(), ["rows with 0 output tokens, taken as 1: 1"]);
    assert!(workload.source().ends_with("azure_2023.csv (azure)"), "{}", workload.source());
}

#[test]
fn azure_columns_are_found_by_name_and_offsets_are_read() {
    assert_eq!(rows(&load("azure_2024.csv")), [(0, 300, 12), (9_930_000, 41, 5)]);
}

#[test]
fn mooncake_ticks_are_spread_and_blocks_shared() {
    let workload = load("mooncake.jsonl");
    // Three requests share the tick of 6000 ms, the next one is 2999 ms later; the last tick is spread over 3 s.
    assert_eq!(
        rows(&workload),
        [
            (0, 1100, 50),
            (999_666_666, 1536, 9),
            (1_999_333_333, 700, 20),
            (2_999_000_000, 1600, 3),
            (6_000_000_000, 512, 3),
            (7_500_000_000, 10, 1)
        ]
    );
    assert_eq!(prefixes(&workload), [Prefix::New, continues(0, 1024), Prefix::New, continues(0, 1536), continues(2, 512), Prefix::New]);
    assert!(workload.warnings().is_empty());
}

#[test]
fn burstgpt_is_read_with_and_without_sessions() {
    let workload = load("burstgpt.csv");
    assert_eq!(rows(&workload), [(0, 33, 10), (0, 410, 1), (2_500_000_000, 81, 25)]);
    assert_eq!(workload.warnings().len(), 1);
    assert_eq!(rows(&load("burstgpt_sessions.csv")), [(0, 512, 64), (3_000_000_000, 20, 8)]);
}

#[test]
fn weka_sessions_start_over_a_window_and_turns_continue() {
    let options = LoadOptions { session_window_s: 100, ..LoadOptions::default() };
    let seeds: Vec<_> = (0..20).map(|seed| Workload::load(sample("weka.csv"), &LoadOptions { seed, ..options }).unwrap()).collect();
    // One session starts at 0 and the other at 50 s; which is which depends on the seed.
    let a_first = seeds.iter().find(|workload| workload.items()[0].input_tokens == 1000).expect("a seed that starts with session a");
    let b_first = seeds.iter().find(|workload| workload.items()[0].input_tokens == 640).expect("a seed that starts with session b");
    let s = 1_000_000_000;
    assert_eq!(
        rows(a_first),
        [(0, 1000, 120), (20 * s, 1500, 40), (25 * s + s / 2, 700, 10), (30 * s, 1600, 1), (50 * s, 640, 5), (60 * s, 896, 5)]
    );
    assert_eq!(prefixes(a_first), [Prefix::New, continues(0, 960), continues(0, 512), continues(1, 1472), Prefix::New, continues(4, 640)]);
    assert_eq!(rows(b_first)[..3], [(0, 640, 5), (10 * s, 896, 5), (50 * s, 1000, 120)]);
    let tenants: Vec<_> = a_first.items().iter().map(|item| a_first.tenant_name(item.tenant.unwrap()).unwrap()).collect();
    assert_eq!(tenants, ["a", "a", "a", "a", "b", "b"]);
    assert_eq!(a_first.warnings().len(), 1, "the row without output: {:?}", a_first.warnings());
}

#[test]
fn weka_raw_sessions_have_sub_agents_inside() {
    let workload = load("weka_raw.json");
    let ms = 1_000_000;
    assert_eq!(rows(&workload), [(0, 200, 30), (4000 * ms, 270, 31), (5250 * ms, 130, 8), (5500 * ms, 400, 1), (6250 * ms, 192, 8)]);
    assert_eq!(prefixes(&workload), [Prefix::New, continues(0, 192), continues(0, 64), continues(0, 192), continues(2, 128)]);
    assert_eq!(workload.tenant_name(workload.items()[0].tenant.unwrap()), Some("session_x"));
}

#[test]
fn jsonl_keeps_arrivals_priorities_and_tenants() {
    let workload = load("requests.jsonl");
    assert_eq!(rows(&workload), [(1, 130, 5), (100_000_000, 64, 1), (250_000_000, 100, 10), (3_000_000_000, 120, 5)]);
    assert_eq!(prefixes(&workload), [Prefix::New, Prefix::Unknown, continues(0, 50), continues(0, 100)]);
    let items = workload.items();
    assert_eq!(items.iter().map(|item| item.priority).collect::<Vec<_>>(), [0, -3, 0, 0]);
    let name = |index: usize| items[index].tenant.and_then(|tenant| workload.tenant_name(tenant));
    assert_eq!([name(0), name(1), name(2), name(3)], [Some("7"), Some("blue"), None, Some("blue")]);
    assert_eq!(workload.warnings(), ["rows that arrive before the row above them, sorted by arrival: 2"]);
}

#[test]
fn gzip_is_known_by_its_content() {
    for name in ["azure_2023.csv", "mooncake.jsonl", "weka.csv", "weka_raw.json"] {
        let packed = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("packed-{name}"));
        let mut encoder = flate2::write::GzEncoder::new(std::fs::File::create(&packed).unwrap(), flate2::Compression::fast());
        encoder.write_all(&std::fs::read(sample(name)).unwrap()).unwrap();
        encoder.finish().unwrap();
        let unpacked = Workload::load(&packed, &LoadOptions::default()).unwrap();
        assert_eq!(unpacked.items(), load(name).items(), "{name}");
    }
}

#[test]
fn limit_keeps_the_first_arrivals_and_scale_stretches_them() {
    let scale: TimeScale = "0.1".parse().unwrap();
    let options = LoadOptions { limit: Some(2), time_scale: scale, ..LoadOptions::default() };
    let workload = Workload::load(sample("requests.jsonl"), &options).unwrap();
    assert_eq!(rows(&workload), [(0, 130, 5), (10_000_000, 64, 1)]);
    let mut whole = load("requests.jsonl");
    whole.scale_time(scale).unwrap();
    whole.truncate(2);
    assert_eq!(whole.items(), workload.items());
    let before = whole.clone();
    let error = whole.scale_time("1e13".parse().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "time-scale: 10000000000000 moves the last arrival beyond 2^63 - 1 ns");
    assert_eq!(whole, before);
}

#[test]
fn a_format_that_is_named_is_not_guessed() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("late-columns.jsonl");
    std::fs::write(&path, "\n{\"output_length\":1,\"hash_ids\":[],\"timestamp\":0.5,\n").unwrap();
    let options = LoadOptions { format: Some(Format::Mooncake), ..LoadOptions::default() };
    let error = Workload::load(&path, &options).unwrap_err().to_string();
    assert!(error.contains("late-columns.jsonl, line 2: EOF while parsing"), "{error}");
}
