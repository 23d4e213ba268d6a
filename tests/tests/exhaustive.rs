//! Every order of calls in the smaller tiny worlds; `cargo run --release -p cpp-sched-tests --example exhaustive` has them all.

use cpp_sched_tests::exhaustive::{explore, worlds};

#[test]
fn every_order_of_calls_in_tiny_worlds() {
    for (name, setup) in worlds().into_iter().take(7) {
        let explored = explore(setup, 1);
        assert_eq!(explored.wrong, None, "{name}");
        assert!(explored.states > 400, "{name}: {} states are no exploration", explored.states);
    }
}
