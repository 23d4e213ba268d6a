//! Any bytes are a world: the driver runs it and judges every answer, exactly as the property tests do.
//!
//! Built by cargo-fuzz this is a libFuzzer target. Built by plain cargo it runs the files that it is given, to look at a finding without a
//! fuzzer: `cargo run -p cpp-sched-fuzz --bin operations -- FILE…`.
#![cfg_attr(fuzzing, no_main)]

use cpp_sched_tests::driver::Driver;
use cpp_sched_tests::world::World;

fn run(world: &World) {
    if let Err(failure) = Driver::run(world) {
        panic!("{failure}\n{world:?}");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|world: World| run(&world));

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    use cpp_sched_tests::world::Kind;
    for path in std::env::args().skip(1) {
        match std::fs::read(&path) {
            Ok(bytes) => {
                let world = World::from_bytes(Kind::Any, &bytes);
                println!("{path}: {world:?}");
                run(&world);
            }
            Err(error) => {
                eprintln!("{path}: {error}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    std::process::ExitCode::SUCCESS
}
