//! `cpp-run` with CUDA devices, as a user meets it. Runs on a GPU, or on stand-ins for CUDA's libraries: see `cuda_device.rs`.
#![cfg(all(feature = "cuda", unix))]

#[path = "support/stand_ins.rs"]
mod stand_ins;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output};

use cpp_exec_mock::model::{Format, TinyLlama};

struct Folder(PathBuf);

impl Folder {
    fn tiny(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cpp-run-cuda-{name}-{}", std::process::id()));
        let tiny = TinyLlama { seed: 3, num_heads: 4, num_kv_heads: 2, head_dim: 32, format: Format::Bf16, ..TinyLlama::default() };
        tiny.write(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(libraries: &OsString, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
    command.args(args).env("CPP_CUDA_LIB_DIR", libraries).env_remove("NCCL_MULTI_RANK_GPU_ENABLE");
    command.env("CPP_KERNEL_CACHE", std::env::temp_dir().join("cpp-run-test-kernels"));
    command
}

fn cpp_run(folder: &Folder, libraries: &OsString, args: &[&str]) -> Output {
    command(libraries, args).arg("--model").arg(&folder.0).output().expect("cpp-run starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const GENERATE: [&str; 9] =
    ["generate", "--max-tokens", "8", "--max-batch-tokens", "20", "--prompt", "a tiny model says nothing of use", "--prompt", "twice"];

#[test]
fn texts_are_those_of_the_processor() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("texts");
    let run = |more: &[&str]| cpp_run(&folder, &libraries, &[&GENERATE[..], more].concat());
    let expected = stdout(&run(&["--device", "cpu", "--rounding", "bf16"]));
    for more in
        [&["--device", "cuda"][..], &["--device", "cuda", "--stages", "2"], &["--stages", "2", "--processes", "--device", "cuda"], &[]]
    {
        let output = run(more);
        assert_eq!(stdout(&output), expected, "{more:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.starts_with("cpp-run: on ") && !told.contains("processor"), "{told}");
    }
}

#[test]
fn stages_on_two_gpus_say_what_the_processor_says() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let folder = Folder::tiny("two-gpus");
    let expected = stdout(&cpp_run(&folder, &libraries, &[&GENERATE[..], &["--device", "cpu", "--rounding", "bf16"]].concat()));
    let mut command = command(&libraries, &[&GENERATE[..], &["--device", "cuda", "--stages", "3", "--model"]].concat());
    let output = command.arg(&folder.0).env("CPP_FAKE_GPUS", "2").output().expect("cpp-run starts");
    assert_eq!(stdout(&output), expected);
    assert!(stderr(&output).contains("on an emulated GPU, an emulated GPU"), "{}", stderr(&output));
}

#[test]
fn folders_may_be_given_on_the_command_line() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("folders");
    let list = libraries.to_str().expect("printable");
    let nowhere = OsString::from("/nowhere");
    let output = cpp_run(
        &folder,
        &nowhere,
        &[&GENERATE[..], &["--device", "cuda", "--stages", "2", "--processes", "--cuda-lib-dir", list]].concat(),
    );
    assert_eq!(stdout(&output), stdout(&cpp_run(&folder, &libraries, &[&GENERATE[..], &["--device", "cuda"]].concat())));
}

#[test]
fn the_doctor_has_asked_the_libraries() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("doctor");
    let text = stdout(&cpp_run(&folder, &libraries, &["doctor"]));
    for what in [
        "CUDA driver         for CUDA ",
        "NVRTC               1",
        "cuBLAS              found",
        "GPU 0 ",
        ", sm_",
        "--device cuda  can run here",
    ] {
        assert!(text.contains(what), "{what} in {text}");
    }
}

#[test]
fn a_model_that_kernels_cannot_run_is_refused_with_its_reason() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("refused");
    TinyLlama::default().write(&folder.0).expect("written");
    let output = cpp_run(&folder, &libraries, &["generate", "--device", "cuda", "--prompt", "x"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && told.contains("head_dim is 16: kernels need a head of 32, 64, 96 or 128 numbers; --device cpu takes any"),
        "{told}"
    );
}

/// As `cpp_run`, over NCCL between processes; two ranks on one GPU are allowed unless a variable says otherwise.
fn over_nccl(folder: &Folder, libraries: &OsString, more: &[&str], variables: &[(&str, &str)]) -> Output {
    let args = [&GENERATE[..], &["--device", "cuda", "--processes", "--link", "nccl"], more].concat();
    let mut command = command(libraries, &args);
    command.arg("--model").arg(&folder.0).env("NCCL_MULTI_RANK_GPU_ENABLE", "1").envs(variables.iter().copied());
    command.output().expect("cpp-run starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn processes_over_nccl_say_what_the_processor_says() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let folder = Folder::tiny("nccl");
    let expected = stdout(&cpp_run(&folder, &libraries, &[&GENERATE[..], &["--device", "cpu", "--rounding", "bf16"]].concat()));
    for (stages, seed) in [("2", "1"), ("2", "2"), ("3", "3"), ("4", "4")] {
        let fake = format!("seed={seed},delay_us=2000");
        let output = over_nccl(&folder, &libraries, &["--stages", stages], &[("CPP_FAKE_NCCL", &fake)]);
        assert_eq!(stdout(&output), expected, "{stages} stages");
        assert!(!stderr(&output).contains("run again"), "{}", stderr(&output));
    }
}

#[test]
fn an_operation_that_fails_behind_the_scenes_is_made_good_with_a_new_communicator() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let folder = Folder::tiny("nccl-fails");
    let expected = stdout(&cpp_run(&folder, &libraries, &[&GENERATE[..], &["--device", "cpu", "--rounding", "bf16"]].concat()));
    // In every process, in the midst of the run.
    let failures =
        [("fail_at=4", "a failure that was asked for"), ("fail_at=7", "a failure"), ("stall_at=5", "a stall that was asked for")];
    for (fake, what) in failures {
        let output = over_nccl(&folder, &libraries, &["--stages", "3"], &[("CPP_FAKE_NCCL", fake)]);
        assert_eq!(stdout(&output), expected);
        assert!(stderr(&output).contains(what) && stderr(&output).contains("run again"), "{}", stderr(&output));
    }
}

#[test]
fn connections_that_never_come_end_the_run_with_a_reason() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let folder = Folder::tiny("nccl-hangs");
    let failed = |more: &[&str], variables: &[(&str, &str)]| {
        let output = over_nccl(&folder, &libraries, &[&["--stages", "2"], more].concat(), variables);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        stderr(&output)
    };
    let text = failed(&["--link-timeout", "1"], &[("CPP_FAKE_NCCL", "hang_init")]);
    assert!(text.contains("connecting two stages over NCCL took longer than 1 s"), "{text}");
    let text = failed(&[], &[("NCCL_MULTI_RANK_GPU_ENABLE", "0")]);
    assert!(text.contains("Duplicate GPU detected"), "{text}");
    let text = failed(&[], &[("CPP_NCCL_LIB", "/nowhere/libnccl.so.2")]);
    assert!(text.contains("NCCL is not on this machine: tried /nowhere/libnccl.so.2"), "{text}");
    let text = failed(&[], &[("CPP_FAKE_NCCL", "version=21805")]);
    assert!(text.contains("libnccl.so.2 is NCCL 2.18.5, and 2.19 or later is needed"), "{text}");
}

#[test]
fn an_nccl_that_is_too_old_is_told_by_the_doctor() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let doctor = |version: &str| {
        let output = command(&libraries, &["doctor"]).env("CPP_FAKE_NCCL", format!("version={version}")).output().expect("cpp-run starts");
        stdout(&output)
    };
    assert!(doctor("21805").contains("is NCCL 2.18.5, and 2.19 or later is needed"), "{}", doctor("21805"));
    assert!(doctor("21903").contains("NCCL                2.19.3"), "{}", doctor("21903"));
}

/// From a copy of the program alone, as on a machine that has nothing else of this repository.
#[test]
fn the_selftest_of_a_copied_program_runs_every_line() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let folder = Folder::tiny("selftest");
    let copy = folder.0.join("cpp-run");
    std::fs::copy(env!("CARGO_BIN_EXE_cpp-run"), &copy).expect("copied");
    let mut command = Command::new(&copy);
    command.args(["selftest", "--tiny", "--batches", "2"]).current_dir(&folder.0).env_clear().env("CPP_CUDA_LIB_DIR", &libraries);
    let output = command.env("CPP_KERNEL_CACHE", folder.0.join("kernels")).output().expect("it starts");
    let table = stdout(&output);
    assert_eq!(table.lines().filter(|line| line.starts_with("kernel ") && line.contains("  passed  ")).count(), 18, "{table}");
    assert!(!table.contains("FAILED") && !table.contains("not measured"), "{table}");
    for what in [
        "logits of 1 stage ",
        "1 stage ",
        "2 stages, threads, through the host ",
        "2 stages, threads, on the device ",
        "2 stages, processes, through the host ",
        "2 stages, processes, NCCL ",
        "2 stages, processes, NCCL, one killed ",
    ] {
        assert!(table.lines().any(|line| line.starts_with(what) && line.contains("  passed  ")), "{what} in {table}");
    }
    for (what, goal) in [
        ("  its FLOP rate, of the product's ", ">= 50 %"),
        ("  time to read weights and KV once at the copy's bandwidth, of it ", ">= 60 %"),
        ("  its time hidden behind compute ", ">= 90 %"),
        ("  its share of the step ", "< 1 %"),
    ] {
        assert!(table.lines().any(|line| line.starts_with(what) && line.ends_with(goal)), "{what} in {table}");
    }
    // Each line was told when it came, before the table.
    let told = stderr(&output);
    let line_of = |text: &str| told.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text} in {told}"));
    assert!(line_of("kernel swiglu: passed") < line_of("stages as processes") && line_of("prefill of ") < line_of("decode step of "));
}

#[test]
fn a_selftest_without_nccl_says_so_and_passes() {
    let Some(libraries) = stand_ins::nccl() else { return };
    let missing = Command::new(env!("CARGO_BIN_EXE_cpp-run"))
        .args(["selftest", "--tiny", "--batches", "2"])
        .env("CPP_CUDA_LIB_DIR", &libraries)
        .env("CPP_NCCL_LIB", "/nowhere/libnccl.so.2")
        .output()
        .expect("it starts");
    let table = stdout(&missing);
    assert!(missing.status.success() && !table.contains("FAILED"), "{table}{}", stderr(&missing));
    let line = table.lines().find(|line| line.starts_with("2 stages, processes, NCCL ")).expect("the line is there");
    assert!(line.contains("not measured") && line.contains("/nowhere/libnccl.so.2"), "{line}");
}

#[test]
fn options_are_offered_where_they_mean_something() {
    let folder = Folder::tiny("help");
    let help = |command: &str| stdout(&cpp_run(&folder, &OsString::new(), &[command, "--help"]));
    for (command, graphs) in [("generate", true), ("worker", true), ("selftest", true), ("doctor", false)] {
        assert_eq!(help(command).contains("--no-graphs"), graphs, "{command}");
    }
}

#[test]
fn links_that_cannot_be_are_refused() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("links");
    for (args, why) in [
        (&["--device", "cuda", "--link", "nccl"][..], "threads of one process have no need of it"),
        (&["--device", "cpu", "--processes", "--link", "nccl"], "it carries what is on GPUs"),
        (&["--device", "cpu", "--processes", "--link", "channel"], "processes share no memory"),
    ] {
        let output = cpp_run(&folder, &libraries, &[&GENERATE[..], args].concat());
        assert!(output.status.code() == Some(2) && stderr(&output).contains(why), "{}", stderr(&output));
    }
}
