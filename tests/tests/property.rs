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

/// The inputs that the fuzzer starts from are worlds like others.
#[test]
fn the_fuzzers_corpus_is_clean() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/operations");
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).expect("the corpus is there") {
        let path = entry.expect("a file").path();
        let world = World::from_bytes(Kind::Any, &std::fs::read(&path).expect("a readable file"));
        if let Err(failure) = Driver::run(&world) {
            panic!("{}: {failure}\n{world:?}", path.display());
        }
        inputs += 1;
    }
    assert!(inputs >= 9, "{inputs} inputs");
}
