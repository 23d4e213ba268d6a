//! Workers that know nothing but messages: in every world of the driver each batch is encoded, applied to two mirrors and compared. This test
//! asks whether the worlds met everything that a message can say; what is compared is in `driver/mirrors.rs`.

use cpp_sched_tests::driver::{Driver, Seen};
use cpp_sched_tests::op::GENE;
use cpp_sched_tests::world::{HEADER, Kind, World};

#[test]
fn the_worlds_meet_everything_that_a_message_can_say() {
    let mut sum = Seen::default();
    for seed in 0..1500u64 {
        let bytes: Vec<u8> = (0..(HEADER + 40 * GENE) as u64).map(|i| cpp_sched_tests::truth::mix(seed, i).to_le_bytes()[3]).collect();
        let world = World::from_bytes(Kind::Any, &bytes);
        let mut driver = Driver::new(world.config).unwrap();
        for (number, op) in world.ops.iter().enumerate() {
            driver.apply(op).unwrap_or_else(|error| panic!("seed {seed}, operation {number}: {error}\n{world:?}"));
        }
        driver.drain().unwrap_or_else(|error| panic!("seed {seed}, while draining: {error}\n{world:?}"));
        sum.add(&driver.seen());
    }
    let kinds = [sum.rows, sum.ended, sum.preempted, sum.lost, sum.resyncs, sum.transfers];
    assert!(kinds.iter().chain(&sum.origins).chain(&sum.tokens).all(|&count| count >= 50), "{sum:?}");
}
