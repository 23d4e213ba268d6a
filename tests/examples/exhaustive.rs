//! Every order of calls in tiny worlds: `cargo run --release -p cpp-sched-tests --example exhaustive`, or with the name of one world.
//!
//! Prints how many states each world has; exit 1 if one of them is wrong, with the calls that lead there.

use std::process::ExitCode;
use std::time::Instant;

use cpp_sched_tests::exhaustive::{explore, worlds};

fn main() -> ExitCode {
    let wanted = std::env::args().nth(1);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut total = 0;
    for (name, setup) in worlds() {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let start = Instant::now();
        let explored = explore(setup, threads);
        total += explored.states;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "{name:26} {:>9} states, {:>9} calls, longest way {:>3}, {seconds:>6.1} s",
            explored.states, explored.calls, explored.depth
        );
        if let Some(wrong) = explored.wrong {
            println!("{name}: {wrong}");
            return ExitCode::FAILURE;
        }
    }
    println!("{total} states in all");
    if total > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
