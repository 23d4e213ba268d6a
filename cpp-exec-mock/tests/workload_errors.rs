//! Bad files: each is refused with the place and what is wrong, in one line; nothing is skipped.

use std::path::Path;

use cpp_exec_mock::workload::{LoadOptions, Workload, WorkloadError};

/// The error that a file with this content gives, without the folder.
fn error(name: &str, content: impl AsRef<[u8]>) -> String {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    let error = Workload::load(&path, &LoadOptions::default()).expect_err(name).to_string();
    assert!(!error.contains('\n'), "{error}");
    error.strip_prefix(&format!("{}/", folder.display())).unwrap_or(&error).to_owned()
}

#[test]
fn bad_csv_rows_are_named() {
    const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n2031-01-01 00:00:00.0000000,5,5\n";
    for (name, row, problem) in [
        ("words.csv", "2031-01-01 00:00:01,five,5", "ContextTokens `five` is not a whole number below 2^32"),
        ("negative.csv", "2031-01-01 00:00:01,5,-5", "GeneratedTokens `-5` is not a whole number below 2^32"),
        ("large.csv", "2031-01-01 00:00:01,4294967296,5", "ContextTokens `4294967296` is not a whole number below 2^32"),
        ("blank.csv", "2031-01-01 00:00:01,,5", "ContextTokens `` is not a whole number below 2^32"),
        ("short.csv", "2031-01-01 00:00:01,5", "2 fields, but the header has 3"),
        ("long.csv", "2031-01-01 00:00:01,5,5,5", "4 fields, but the header has 3"),
        ("empty-prompt.csv", "2031-01-01 00:00:01,0,5", "a request needs at least 1 input token"),
        ("no-time.csv", "yesterday,5,5", "TIMESTAMP `yesterday` is not a time such as 2023-11-16 18:15:46.6805900, from 1970 on"),
    ] {
        assert_eq!(error(name, format!("{AZURE}{row}\n")), format!("{name}, line 3: {problem}"));
    }
    assert_eq!(error("bytes.csv", [AZURE.as_bytes(), b"2031-01-01 00:00:01,\xff,5\n"].concat()), "bytes.csv, line 3: not UTF-8 text");
    let burst = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";
    assert_eq!(
        error("burst.csv", format!("{burst}1,m,5,5,10,x\n-2,m,5,5,10,x\n")),
        "burst.csv, line 3: Timestamp `-2` is not a number of seconds, 0 or more"
    );
    let weka = "trace,agent,t_s,input_tokens,cached_tokens,output_tokens\n";
    assert_eq!(error("weka.csv", format!("{weka}1,0,0,100,128,5\n")), "weka.csv, line 2: cached_tokens 128 are more than input_tokens 100");
}

#[test]
fn bad_json_lines_are_named() {
    const MOONCAKE: &str = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n";
    const JSONL: &str = "{\"arrival_s\": 0, \"input_tokens\": 5, \"output_tokens\": 5}\n\n";
    for (name, good, bad, line, problem) in [
        ("ids.jsonl", MOONCAKE, MOONCAKE.replace("600", "512"), 2, "2 hash ids for 512 input tokens; blocks of 512 make 1 at most"),
        ("time.jsonl", MOONCAKE, MOONCAKE.replace(": 0,", ": -1,"), 2, "timestamp -1 is not a number of milliseconds, 0 or more"),
        ("missing.jsonl", MOONCAKE, MOONCAKE.replace("output_length", "length"), 2, "missing field `output_length` (column 70)"),
        ("kind.jsonl", MOONCAKE, MOONCAKE.replace("600", "\"600\""), 2, "invalid type: string \"600\", expected u32 (column 38)"),
        ("empty.jsonl", MOONCAKE, MOONCAKE.replace("600", "0").replace("1, 2", ""), 2, "a request needs at least 1 input token"),
        ("syntax.jsonl", JSONL, "{\"arrival_s\": 0, input}".to_owned(), 3, "key must be a string (column 18)"),
        ("zero.jsonl", JSONL, JSONL.replace("\"output_tokens\": 5", "\"output_tokens\": 0"), 3, "a request needs at least 1 output token"),
        ("when.jsonl", JSONL, JSONL.replace(": 0", ": 1e10"), 3, "arrival_s 1e+10 is not a number of seconds from 0 to 9.2e9"),
        (
            "block.jsonl",
            JSONL,
            JSONL.replace('}', ", \"hash_ids\": [1]}"),
            3,
            "hash_ids need hash_block, the number of tokens that each stands for",
        ),
        ("no-ids.jsonl", JSONL, JSONL.replace('}', ", \"hash_block\": 1}"), 3, "hash_block is of no use without hash_ids"),
        (
            "zero-block.jsonl",
            JSONL,
            JSONL.replace('}', ", \"hash_ids\": [1], \"hash_block\": 0}"),
            3,
            "blocks of hash ids need at least 1 token",
        ),
        ("tenant.jsonl", JSONL, JSONL.replace('}', ", \"tenant\": []}"), 3, "tenant [] is neither a text nor a number"),
    ] {
        assert_eq!(error(name, format!("{good}{bad}")), format!("{name}, line {line}: {problem}"));
    }
    let unknown = error("unknown.jsonl", JSONL.replace('}', ", \"out\": 1}"));
    assert!(unknown.starts_with("unknown.jsonl, line 1: unknown field `out`, expected one of `arrival_s`"), "{unknown}");
}

#[test]
fn bad_raw_sessions_are_named() {
    let session = |entries: &str| format!("{{\"id\": \"x\", \"block_size\": 64,\n \"requests\": [{entries}]}}");
    let good = "{\"t\": 0, \"type\": \"n\", \"in\": 64, \"out\": 1, \"hash_ids\": [1]}";
    let nested = format!("{good}, {{\"t\": 1, \"type\": \"subagent\", \"requests\": [{}]}}", good.replace("\"out\": 1, ", ""));
    assert_eq!(error("nested.json", session(&nested)), "nested.json, requests[1].requests[0]: missing field `out`");
    assert_eq!(error("kind.json", session(&good.replace("\"n\"", "\"q\""))), "kind.json, requests[0]: type `q` is none of n, s, subagent");
    assert_eq!(
        error("ids.json", session(&good.replace("[1]", "[1, 2]"))),
        "ids.json, requests[0]: 2 hash ids for 64 input tokens; blocks of 64 make 1 at most"
    );
    assert_eq!(
        error("late.json", session(&good.replace(": 0,", ": -3,"))),
        "late.json, requests[0]: t -3 is not a number of seconds, 0 or more"
    );
    let broken = error("broken.json", session("{\"t\": 0}"));
    assert!(broken.starts_with("broken.json, line 2: missing field `type`"), "{broken}");
}

#[test]
fn files_as_a_whole() {
    assert_eq!(error("nothing.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n"), "nothing.csv: no request in it");
    let unknown = "the beginning looks like none of the formats azure, mooncake, burstgpt, weka, jsonl";
    assert_eq!(error("unknown.txt", "hello\n"), format!("unknown.txt: {unknown}"));
    assert_eq!(error("void", ""), format!("void: {unknown}"));
    let missing = Workload::load("no/such/file.csv", &LoadOptions::default()).unwrap_err();
    assert!(matches!(missing, WorkloadError::Io { .. }));
    assert!(missing.to_string().starts_with("no/such/file.csv: "), "{missing}");
    assert!(std::error::Error::source(&missing).is_some());
    // The magic number of gzip, and then nothing that can be unpacked.
    assert!(error("cut.gz", b"\x1f\x8b\x08\x00").starts_with("cut.gz: "));
    let options = LoadOptions { format: Some("azure".parse().unwrap()), ..LoadOptions::default() };
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-header.csv");
    std::fs::write(&path, "a,b\n1,2\n").unwrap();
    let wrong = Workload::load(&path, &options).unwrap_err().to_string();
    assert!(wrong.ends_with("wrong-header.csv, line 1: no column `TIMESTAMP`; the header has a, b"), "{wrong}");
}
