//! A worker behind an unreliable network, in any world: the first 32 bytes say what happens to messages, the others are the world.
#![cfg_attr(fuzzing, no_main)]

use cpp_sched_tests::unreliable::{FAULTS, deliver};
use cpp_sched_tests::world::{Kind, World};

fn run(bytes: &[u8]) {
    let (faults, world) = bytes.split_at(bytes.len().min(FAULTS));
    let world = World::from_bytes(Kind::Any, world);
    if let Err(failure) = deliver(&world, faults) {
        panic!("{failure}\nfaults {faults:?}\n{world:?}");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    cpp_sched_fuzz::replay(run)
}
