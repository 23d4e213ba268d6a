//! Hostile policies in any world: the first bytes are the policy's answers, the others the world. Every rule of the core holds all the same.
#![cfg_attr(fuzzing, no_main)]

use cpp_sched_tests::hostile;

fn run(bytes: &[u8]) {
    if let Err(text) = hostile::run(bytes) {
        panic!("{text}");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    cpp_sched_fuzz::replay(run)
}
