//! `cpp-run` as a user meets it, with a tiny model.

#[path = "support/folder.rs"]
mod folder;

use std::process::{Command, Output};

use cpp_exec_mock::model::TinyLlama;
use folder::Folder;

fn cpp_run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cpp-run")).args(args).output().expect("cpp-run starts")
}

fn generate(folder: &str, more: &[&str]) -> Output {
    cpp_run(&[&["generate", "--model", folder, "--device", "cpu", "--max-tokens", "12"], more].concat())
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The one line on stderr of a command that must fail with status 2.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
    text
}

#[test]
fn stages_chunks_links_and_drafts_give_the_same_text() {
    let folder = Folder::tiny("same");
    let prompts = ["--prompt", "a tiny model says nothing of use", "--prompt", "a tiny model says it twice"];
    let expected = stdout(&generate(folder.text(), &prompts));
    assert!(expected.starts_with("[1] ") && expected.contains("\n[2] "), "{expected}");
    for more in [
        &["--stages", "2"][..],
        &["--stages", "4", "--max-batch-tokens", "7", "--split", "cost"],
        &["--stages", "3", "--link", "socket", "--async"],
        &["--stages", "3", "--async=true", "--drafts", "3"],
        &["--stages", "2", "--async", "false"],
        &["--stages", "2", "--drafts", "3", "--block-size", "4"],
        &["--stages", "2", "--adaptive"],
    ] {
        assert_eq!(stdout(&generate(folder.text(), &[&prompts[..], more].concat())), expected, "{more:?}");
    }
}

#[test]
fn times_are_told_at_the_end_and_seeds_decide() {
    let folder = Folder::tiny("times");
    let with_seed = |seed| generate(folder.text(), &["--prompt", "once", "--temperature", "2.5", "--seed", seed]);
    let (one, again, other) = (with_seed("1"), with_seed("1"), with_seed("2"));
    assert_eq!(stdout(&one), stdout(&again));
    assert_ne!(stdout(&one), stdout(&other));
    let told = String::from_utf8_lossy(&one.stderr);
    for what in ["time to first token: mean ", "from token to token: mean ", "12 tokens in "] {
        assert!(told.contains(what), "{told}");
    }
}

#[test]
fn batches_are_predicted_and_drawn() {
    let folder = Folder::tiny("batches");
    let file = folder.0.join("timeline.json");
    let file = file.to_str().expect("printable");
    let prompt = ["--prompt", "a prompt of several chunks", "--max-batch-tokens", "8", "--stages", "2"];
    let output = generate(folder.text(), &[&prompt[..], &["--adaptive", "--batches", "--timeline", file]].concat());
    let _ = stdout(&output);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("batch 0: 1 rows, ") && told.contains("predicted / measured ") && told.contains("% at the end"), "{told}");
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).expect("written")).expect("JSON");
    let slices = trace["traceEvents"].as_array().expect("events").iter().filter(|event| event["args"]["tokens"].is_u64());
    assert_eq!(slices.count(), 2 * told.lines().filter(|line| line.contains("predicted / measured")).count());
}

#[test]
fn prompts_come_from_a_file_too() {
    let folder = Folder::tiny("file");
    let file = folder.0.join("prompts.txt");
    std::fs::write(&file, "first\n\nsecond\n").expect("written");
    let expected = stdout(&generate(folder.text(), &["--prompt", "first", "--prompt", "second"]));
    assert_eq!(stdout(&generate(folder.text(), &["--prompts", file.to_str().expect("printable")])), expected);
}

#[test]
fn without_a_cuda_device_one_line_offers_the_processor() {
    let folder = Folder::tiny("gpu");
    let without = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
        command.args(args).args(["--model", folder.text()]).env_remove("CPP_CUDA_LIB_DIR").output().expect("cpp-run starts")
    };
    let asked = without(&["generate", "--prompt", "x", "--device", "cuda"]);
    if asked.status.success() {
        println!("not tested: this machine has a CUDA device");
        return;
    }
    let why = refused(&asked);
    assert!(why.ends_with("; run on the processor with --device cpu\n"), "{why}");
    let selftest =
        Command::new(env!("CARGO_BIN_EXE_cpp-run")).arg("selftest").env_remove("CPP_CUDA_LIB_DIR").output().expect("cpp-run starts");
    assert_eq!(refused(&selftest).replace("; a selftest needs a GPU", "; run on the processor with --device cpu"), why);
    let worker = refused(&without(&["worker", "--device", "cuda"]));
    assert_eq!(worker, why);
    // Without a wish it runs on the processor, and says so.
    let auto = without(&["generate", "--prompt", "x", "--max-tokens", "3"]);
    assert_eq!(stdout(&auto), stdout(&without(&["generate", "--prompt", "x", "--max-tokens", "3", "--device", "cpu"])));
    let told = String::from_utf8_lossy(&auto.stderr);
    assert!(told.starts_with("cpp-run: on the processor: ") && told.contains("3 tokens in "), "{told}");
}

#[test]
fn with_both_drafts_and_steps_ahead_drafts_ride() {
    let folder = Folder::tiny("both");
    let prompts = ["--prompt", "again and again and again and again and", "--prompt", "another one"];
    let output = generate(folder.text(), &[&prompts[..], &["--stages", "3", "--async", "--drafts", "3"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    let drafts = told.split(" drafts right").next().and_then(|said| said.rsplit(' ').next()).and_then(|number| number.parse::<u32>().ok());
    assert!(drafts.is_some_and(|drafts| drafts > 0), "{told}");
}

#[test]
fn memory_that_is_rounded_up_to_whole_blocks_is_said() {
    let folder = Folder::tiny("rounded");
    let told = |kv_tokens: &str| {
        let output = generate(folder.text(), &["--prompt", "x", "--kv-tokens", kv_tokens]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(told("100").contains("--kv-tokens 100 is not whole blocks of 16: there is memory for 112 positions"));
    assert!(!told("112").contains("whole blocks"));
}

#[test]
fn what_is_wrong_is_told_in_one_line() {
    let folder = Folder::tiny("wrong");
    let text = |more: &[&str]| refused(&generate(folder.text(), more));
    assert!(text(&[]).contains("--prompt"));
    assert!(text(&["--prompt", "x", "--stages", "5"]).contains("5 stages for 4 layers"));
    for (option, value, says) in [
        ("--temperature", "-1", "give a number from 0 on"),
        ("--temperature", "hot", "give a number from 0 on"),
        ("--temperature", "inf", "give a number from 0 on"),
        ("--top-p", "3", "give a number from 0 to 1"),
        ("--top-p", "-0.5", "give a number from 0 to 1"),
        ("--kv-tokens", "-1", "-1 is not in 1.."),
        ("--top-k", "x", "not a whole number from 0 on"),
        ("--async", "maybe", "true, false"),
    ] {
        let told = text(&["--prompt", "x", option, value]);
        assert!(told.contains(&format!("'{value}' for '{option}")) && told.contains(says), "{told}");
        assert!(told.trim_end().ends_with("(see cpp-run generate --help)"), "{told}");
    }
    assert!(text(&["--prompts", "/nowhere"]).contains("/nowhere"));
    assert!(text(&["--prompt", "more than sixteen positions", "--kv-tokens", "16"]).contains("prompt 1"));
    assert!(refused(&generate("/nowhere", &["--prompt", "x"])).contains("no such folder"));

    let tokenizer = folder.0.join("tokenizer.json");
    std::fs::write(&tokenizer, "{}").expect("written");
    assert!(text(&["--prompt", "x"]).contains("no tokenizer"));
    std::fs::remove_file(&tokenizer).expect("removed");
    assert!(text(&["--prompt", "x"]).contains("fetch the tokenizer"));
    TinyLlama { vocab_size: 300, ..TinyLlama::default() }.write(&folder.0.join("other")).expect("written");
    std::fs::copy(folder.0.join("other/tokenizer.json"), &tokenizer).expect("copied");
    assert!(text(&["--prompt", "x"]).contains("another model's"));
}

#[test]
fn the_doctor_tells_what_is_here_and_what_a_model_needs() {
    let folder = Folder::tiny("doctor");
    let text = stdout(&cpp_run(&["doctor", "--model", folder.text()]));
    for what in ["processors", "libcuda.so.1", "--device cpu   can run here", "--device cuda", "4 layers", "KV 1.0 KiB for each position"] {
        assert!(text.contains(what), "{what} in {text}");
    }
    assert!(
        text.contains(concat!("cpp-run      ", env!("CARGO_PKG_VERSION"))) && text.contains("38 tensors are needed, there are 38 of F32\n"),
        "{text}"
    );
}

#[test]
fn the_doctor_finds_every_wrong_tensor() {
    let folder = Folder::tiny("tensors");
    let config = folder.0.join("config.json");
    let text = std::fs::read_to_string(&config).expect("there");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["intermediate_size"] = 97.into();
    std::fs::write(&config, json.to_string()).expect("written");
    let output = cpp_run(&["doctor", "--model", folder.text()]);
    let line = refused(&output);
    assert!(line.contains("mlp.gate_proj.weight has shape [96, 64], config.json asks for [97, 64]; and 11 more"), "{line}");
    let wrong = String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.starts_with("wrong: ")).count();
    assert_eq!(wrong, 12, "three tensors in each of four layers");
}
