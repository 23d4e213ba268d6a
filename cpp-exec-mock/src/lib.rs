//! Executors in virtual time for the `cpp-sched` scheduling kernel, and the simulator behind the tool `cpp-sim`.
//!
//! - [`sim`]: a workload through the scheduler and a simulated pipeline, with all metrics.
//! - [`workload`]: which requests arrive when, from recorded traces or drawn at random.
//! - [`profile`]: a model on a machine, in numbers a simulation can use.
//! - [`pipeline`]: how long batches take that pass P stages in order.
//! - [`mod@bench`]: how fast the scheduler itself is.
//! - [`calibrate`]: cost models from tables of measured times.
//! - [`planning`]: how prompts are cut, against the optimum.
//! - [`model`]: model files of the Llama family.
//! - [`cpu`]: this machine's processor as the device of a stage.
//! - [`runtime`]: stages as threads or processes, in real time.
//! - [`report`]: results as JSON and as tables.
//! - [`command`]: how commands end.
//! - [`conformance`]: the stand-in model and the runner of conformance scenarios.
//! - [`splitmix`]: numbers from a seed, for examples and tests.

pub mod bench;
pub mod calibrate;
pub mod command;
pub mod conformance;
pub mod cpu;
pub mod model;
pub mod pipeline;
pub mod planning;
pub mod profile;
pub mod report;
pub mod runtime;
pub mod sim;
pub mod splitmix;
pub mod study;
pub mod workload;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
