//! The kernel against the slow reference scheduler: any bytes are a world of what both know, and every answer must be the same.
#![cfg_attr(fuzzing, no_main)]

use cpp_sched_tests::lockstep;
use cpp_sched_tests::world::{Kind, World};

fn run(bytes: &[u8]) {
    let world = World::from_bytes(Kind::Reference, bytes);
    if let Err(failure) = lockstep::compare(&world) {
        panic!("{failure}\n{world:?}");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    cpp_sched_fuzz::replay(run)
}
