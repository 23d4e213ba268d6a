//! Whether the random worlds meet each feature in company: a property that holds because nothing happened says nothing.

use std::collections::BTreeMap;

use cpp_sched_tests::driver::Driver;
use cpp_sched_tests::op::GENE;
use cpp_sched_tests::truth::mix;
use cpp_sched_tests::world::{HEADER, Kind, World};

const ALL: [&str; 30] = [
    "admission",
    "gates",
    "late results",
    "transfer blocks",
    "kv",
    "consumers",
    "input",
    "abort",
    "again",
    "killed",
    "killed, several groups",
    "new prices",
    "prices for each stage",
    "reconfigured",
    "reconfigured, several groups",
    "one batch lost",
    "one batch lost, several groups",
    "run again for a state",
    "extended",
    "extended with spans",
    "forked with spans",
    "forked over blocks",
    "forked over blocks, several groups",
    "encoded",
    "encoder output freed",
    "row to the end of an atomic span",
    "stored",
    "stored in a further group",
    "joined an idle pipeline",
    "joined under way",
];

#[test]
fn the_worlds_meet_every_feature() {
    let mut met = BTreeMap::<&str, u64>::new();
    for seed in 0..4000u64 {
        let bytes: Vec<u8> = (0..(HEADER + 150 * GENE) as u64).map(|i| mix(seed ^ 0xfea7, i).to_le_bytes()[5]).collect();
        let world = World::from_bytes(Kind::Any, &bytes);
        let mut driver = Driver::new(world.config).unwrap();
        for (number, op) in world.ops.iter().enumerate() {
            driver.apply(op).unwrap_or_else(|error| panic!("seed {seed}, operation {number}: {error}\n{world:?}"));
        }
        driver.drain().unwrap_or_else(|error| panic!("seed {seed}, while draining: {error}\n{world:?}"));
        for (what, count) in driver.met() {
            *met.entry(what).or_default() += count;
        }
    }
    let seldom: Vec<_> = ALL.into_iter().map(|what| (what, met.get(what).copied().unwrap_or(0))).filter(|(_, count)| *count < 3).collect();
    assert!(seldom.is_empty(), "met too seldom: {seldom:?}, all: {met:?}");
}
