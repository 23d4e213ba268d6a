//! What the tests of cpp-sched are made of.
//!
//! | module | what |
//! |---|---|
//! | [`op`], [`world`] | operations and configurations as values, from proptest and from the fuzzer's bytes |
//! | [`truth`] | what every token and every KV slot must be |
//! | [`driver`] | runs a real scheduler with operations, plays the executor, judges every answer |

pub mod driver;
pub mod op;
pub mod truth;
pub mod world;
