//! The real traces, where `CPP_TRACES` names their folder: everything is read, and the counts are those that their sources state.
//!
//! Azure/AzurePublicDataset (CC-BY-4.0), kvcache-ai/Mooncake (Apache-2.0), callanjfox/kv-cache-tester (Apache-2.0).

use std::collections::HashSet;
use std::path::PathBuf;

use cpp_exec_mock::workload::{LoadOptions, Prefix, Workload};

/// Loads a real trace; none, with a word why, where there is none.
fn load(name: &str) -> Option<Workload> {
    let Some(folder) = std::env::var_os("CPP_TRACES") else {
        eprintln!("skipped: set CPP_TRACES to the folder that holds {name}");
        return None;
    };
    let path = PathBuf::from(folder).join(name);
    if !path.exists() {
        eprintln!("skipped: {} does not exist", path.display());
        return None;
    }
    let workload = Workload::load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    assert!(workload.items().windows(2).all(|pair| pair[0].arrival_ns <= pair[1].arrival_ns));
    Some(workload)
}

fn input_tokens(workload: &Workload) -> u64 {
    workload.items().iter().map(|item| u64::from(item.input_tokens)).sum()
}

/// Hit tokens of a prefix cache without bound, into which every prompt goes at once. Whoever has a block has all before it, so hits are searched for
/// by halving.
fn hit_tokens(workload: &Workload, block: u32) -> u64 {
    let mut seen = HashSet::<[u8; 16]>::new();
    let mut hits = 0;
    for index in 0..workload.items().len() {
        let digests = workload.digests(index, block);
        let hit = digests.partition_point(|digest| seen.contains(digest));
        hits += hit as u64;
        seen.extend(&digests[hit..]);
    }
    hits * u64::from(block)
}

#[test]
fn azure() {
    for (name, rows, first, last) in
        [("azure2023_conv.csv", 19_366, (374, 44), (197, 183)), ("azure2023_code.csv", 8_819, (4808, 10), (549, 173))]
    {
        let Some(workload) = load(name) else { return };
        let items = workload.items();
        assert_eq!(items.len(), rows);
        let lengths = |index: usize| (items[index].input_tokens, items[index].output_tokens);
        assert_eq!((lengths(0), lengths(rows - 1)), (first, last));
        assert_eq!(items[0].arrival_ns, 0);
        assert!(workload.warnings().is_empty(), "{:?}", workload.warnings());
        // An hour.
        assert!((3_400..3_700).contains(&(items[rows - 1].arrival_ns / 1_000_000_000)));
    }
}

#[test]
fn mooncake() {
    let Some(workload) = load("mooncake_conversation_trace.jsonl.gz") else { return };
    let items = workload.items();
    assert_eq!(items.len(), 12_031);
    assert_eq!(input_tokens(&workload) / 12_031, 12_035);
    assert!(workload.warnings().is_empty(), "{:?}", workload.warnings());
    // The bursts of the 3 s grid are gone, and nothing left its tick.
    assert!(items.windows(2).filter(|pair| pair[0].arrival_ns == pair[1].arrival_ns).count() < 10);
    assert!((3_536_999_000_000..3_540_000_000_000).contains(&items[12_030].arrival_ns));
    // The whole blocks of 512 tokens that an earlier request had after the same ids, counted by hand over the file: 37 %.
    assert_eq!(hit_tokens(&workload, 512), 54_063_104);
    assert_eq!(input_tokens(&workload), 144_793_823);
}

#[test]
fn weka() {
    let Some(workload) = load("weka_agentic_requests.csv.gz") else { return };
    let items = workload.items();
    assert_eq!(items.len(), 49_334);
    let sessions: HashSet<_> = items.iter().map(|item| item.tenant).collect();
    assert_eq!(sessions.len(), 710);
    assert_eq!(items.iter().map(|item| item.input_tokens).max().map(|tokens| tokens / 1000), Some(894));
    assert_eq!(workload.warnings(), ["rows with 0 output tokens, taken as 1: 27"]);
    let cached: u64 = items.iter().map(|item| if let Prefix::Continues { tokens, .. } = item.prefix { u64::from(tokens) } else { 0 }).sum();
    let (said, hit) = (cached as f64 / input_tokens(&workload) as f64, hit_tokens(&workload, 64) as f64 / input_tokens(&workload) as f64);
    eprintln!("weka: the trace says {:.2} % cached, an unbounded cache hits {:.2} %", 100.0 * said, 100.0 * hit);
    assert!((said - 0.9632).abs() < 0.0001 && (said - hit).abs() < 0.001, "{said} {hit}");
}

#[test]
fn weka_raw() {
    let Some(workload) = load("weka_raw_trace_0026.json") else { return };
    let lengths: Vec<_> =
        workload.items().iter().map(|item| (item.arrival_ns / 1_000_000_000, item.input_tokens, item.output_tokens)).collect();
    assert_eq!(lengths, [(0, 15_291, 2282), (94, 17_401, 2905), (146, 20_068, 107)]);
    let prefixes: Vec<_> = workload.items().iter().map(|item| item.prefix).collect();
    assert_eq!(prefixes[..2], [Prefix::New, Prefix::Continues { item: 0, tokens: 15_232 }]);
}
