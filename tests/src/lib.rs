//! What the tests of cpp-sched are made of.
//!
//! | module | what |
//! |---|---|
//! | [`op`], [`world`] | operations and configurations as values, from proptest and from the fuzzer's bytes |
//! | [`truth`] | what every token and every KV slot must be |
//! | [`exhaustive`] | tiny worlds in which every order of calls is tried |
//! | [`malformed`] | bytes from anywhere, for everything that reads bytes |
//! | [`driver`] | runs a real scheduler with operations, plays the executor, judges every answer |
//! | [`hostile`] | a policy that answers whatever harms |
//! | [`mod@reference`] | a second scheduler, slow and obvious |
//! | [`lockstep`] | the two side by side |
//! | [`unreliable`] | a worker behind a network that loses, repeats, delays and changes messages |
//! | [`oracle`] | judges the log of a conformance scenario |
//! | [`generate`], [`play`], [`shrink`] | random scenarios, their run, and how a failing one is made small |

pub mod driver;
pub mod exhaustive;
pub mod generate;
pub mod hostile;
pub mod lockstep;
pub mod malformed;
pub mod op;
pub mod oracle;
pub mod play;
pub mod reference;
pub mod shrink;
pub mod truth;
pub mod unreliable;
pub mod world;

/// The examples of the project's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
