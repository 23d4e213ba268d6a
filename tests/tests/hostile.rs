//! Policies cannot break the core: random worlds under one that answers whatever harms. `PROPTEST_CASES` scales the number of worlds.

use cpp_sched_tests::driver::Driver;
use cpp_sched_tests::hostile::Hostile;
use cpp_sched_tests::world::{Kind, World};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/hostile.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Every rule holds after every call and every accepted request finishes, whatever the policy says; and equal answers give equal runs.
    #[test]
    fn every_rule_holds_under_a_hostile_policy(world in World::strategy(Kind::Any, 120), seed: u64, max_deferral_ns in 0..100_000u64) {
        let mut given = world.config;
        given.max_deferral_ns = max_deferral_ns;
        let run = || Driver::with_policy(given, Box::new(Hostile::new(seed))).map(|driver| driver.run_through(&world));
        let first = run().map_err(|error| TestCaseError::fail(error.to_string()))?;
        let second = run().map_err(|error| TestCaseError::fail(error.to_string()))?;
        match (first, second) {
            (Ok(first), Ok(second)) => prop_assert!(first == second, "two runs differ"),
            (Err(failure), _) | (_, Err(failure)) => return Err(TestCaseError::fail(failure.to_string())),
        }
    }
}
