//! Random worlds, judged by the driver after every call. `PROPTEST_CASES` scales the number of worlds.

use cpp_sched_tests::driver::Driver;
use cpp_sched_tests::world::{Kind, World};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/property.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever is configured and called, every rule holds after every call and every accepted request finishes.
    #[test]
    fn every_rule_holds_in_every_world(world in World::strategy(Kind::Any, 120)) {
        if let Err(failure) = Driver::run(&world) {
            return Err(TestCaseError::fail(failure.to_string()));
        }
    }
}
