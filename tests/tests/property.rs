//! Random worlds, judged by the driver after every call. `PROPTEST_CASES` scales the number of worlds.

use cpp_sched_tests::driver::{Driver, Failure};
use cpp_sched_tests::world::{Kind, World};
use cpp_sched_tests::{hostile, lockstep, unreliable};
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
    let run = |target: &str, least: usize, input: &dyn Fn(&[u8]) -> Result<(), String>| {
        let corpus = format!("{}/../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut inputs = 0;
        for entry in std::fs::read_dir(corpus).expect("the corpus is there") {
            let path = entry.expect("a file").path();
            if let Err(text) = input(&std::fs::read(&path).expect("a readable file")) {
                panic!("{}: {text}", path.display());
            }
            inputs += 1;
        }
        assert!(inputs >= least, "{inputs} inputs of {target}");
    };
    let failed = |failure: Failure, world: &World| format!("{failure}\n{world:?}");
    run("operations", 9, &|bytes| {
        let world = World::from_bytes(Kind::Any, bytes);
        Driver::run(&world).map(drop).map_err(|failure| failed(failure, &world))
    });
    run("reference", 4, &|bytes| {
        let world = World::from_bytes(Kind::Reference, bytes);
        lockstep::compare(&world).map_err(|failure| failed(failure, &world))
    });
    run("policies", 6, &hostile::run);
    run("mirrors", 8, &|bytes| {
        let (faults, world) = bytes.split_at(unreliable::FAULTS);
        let world = World::from_bytes(Kind::Any, world);
        unreliable::deliver(&world, faults).map(drop).map_err(|failure| failed(failure, &world))
    });
}
