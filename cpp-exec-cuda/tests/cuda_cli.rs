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

fn cpp_run(folder: &Folder, libraries: &OsString, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
    command.args(args).arg("--model").arg(&folder.0).env("CPP_CUDA_LIB_DIR", libraries);
    command.env("CPP_KERNEL_CACHE", std::env::temp_dir().join("cpp-run-test-kernels")).output().expect("cpp-run starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const GENERATE: [&str; 9] = ["generate", "--max-tokens", "8", "--max-batch-tokens", "20", "--prompt", "a tiny model says nothing of use", "--prompt", "twice"];

#[test]
fn texts_are_those_of_the_processor() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("texts");
    let run = |more: &[&str]| cpp_run(&folder, &libraries, &[&GENERATE[..], more].concat());
    let expected = stdout(&run(&["--device", "cpu", "--rounding", "bf16"]));
    for more in [&["--device", "cuda"][..], &["--device", "cuda", "--stages", "2"], &["--stages", "2", "--processes", "--device", "cuda"], &[]] {
        let output = run(more);
        assert_eq!(stdout(&output), expected, "{more:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.starts_with("cpp-run: on ") && !told.contains("processor"), "{told}");
    }
}

#[test]
fn folders_may_be_given_on_the_command_line() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("folders");
    let list = libraries.to_str().expect("printable");
    let nowhere = OsString::from("/nowhere");
    let output = cpp_run(&folder, &nowhere, &[&GENERATE[..], &["--device", "cuda", "--stages", "2", "--processes", "--cuda-lib-dir", list]].concat());
    assert_eq!(stdout(&output), stdout(&cpp_run(&folder, &libraries, &[&GENERATE[..], &["--device", "cuda"]].concat())));
}

#[test]
fn the_doctor_has_asked_the_libraries() {
    let Some(libraries) = stand_ins::libraries() else { return };
    let folder = Folder::tiny("doctor");
    let text = stdout(&cpp_run(&folder, &libraries, &["doctor"]));
    for what in ["CUDA driver         for CUDA ", "NVRTC               1", "cuBLAS              found", "GPU 0 ", ", sm_", "--device cuda  can run here"] {
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
    assert!(!output.status.success() && told.contains("head_dim is 16: kernels need a head of 32, 64, 96 or 128 numbers; --device cpu takes any"), "{told}");
}
