//! What the tests of cpp-sched are made of.
//!
//! | module | what |
//! |---|---|
//! | [`op`], [`world`] | operations and configurations as values, from proptest and from the fuzzer's bytes |
//! | [`truth`] | what every token and every KV slot must be |
//! | [`driver`] | runs a real scheduler with operations, plays the executor, judges every answer |
//! | [`reference`] | a second scheduler, slow and obvious |
//! | [`lockstep`] | the two side by side |

pub mod driver;
pub mod lockstep;
pub mod op;
pub mod reference;
pub mod truth;
pub mod world;
