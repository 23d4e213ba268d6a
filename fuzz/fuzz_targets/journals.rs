//! Journals from anywhere.
#![cfg_attr(fuzzing, no_main)]

use cpp_sched_tests::malformed;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| malformed::journals(bytes));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    cpp_sched_fuzz::replay(malformed::journals)
}
