//! The kernel against the slow and obvious reference scheduler, call by call. `PROPTEST_CASES` scales the number of worlds.

use cpp_sched_tests::lockstep;
use cpp_sched_tests::world::{Kind, World};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn config() -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/reference_model.proptest-regressions");
    ProptestConfig { failure_persistence: Some(Box::new(seeds)), max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Equal calls give equal batches, row by row, equal preemptions, events and block counts.
    #[test]
    fn kernel_and_reference_agree(world in World::strategy(Kind::Reference, 120)) {
        if let Err(failure) = lockstep::compare(&world) {
            return Err(TestCaseError::fail(failure.to_string()));
        }
    }
}
