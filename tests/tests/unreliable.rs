//! A worker behind a network that loses, repeats, delays, cuts and changes messages: it takes what every worker takes, or nothing.

use cpp_sched_tests::op::GENE;
use cpp_sched_tests::truth::mix;
use cpp_sched_tests::unreliable::{FAULTS, Met, deliver};
use cpp_sched_tests::world::{HEADER, Kind, World};

#[test]
fn a_worker_behind_an_unreliable_network_makes_the_same_plans_or_none() {
    let mut sum = Met::default();
    for seed in 0..400u64 {
        let bytes: Vec<u8> = (0..(FAULTS + HEADER + 40 * GENE) as u64).map(|i| mix(seed, i).to_le_bytes()[2]).collect();
        let (faults, world) = bytes.split_at(FAULTS);
        let world = World::from_bytes(Kind::Any, world);
        let met = deliver(&world, faults).unwrap_or_else(|failure| panic!("seed {seed}: {failure}\nfaults {faults:?}\n{world:?}"));
        sum.taken += met.taken;
        sum.resyncs += met.resyncs;
        sum.refused.iter_mut().zip(met.refused).for_each(|(sum, met)| *sum += met);
    }
    assert!([sum.taken, sum.resyncs].iter().chain(&sum.refused).all(|&count| count >= 100), "{sum:?}");
}
