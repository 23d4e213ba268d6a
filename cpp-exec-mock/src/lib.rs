//! Executors in virtual time for the `cpp-sched` scheduling kernel.

pub mod conformance;
pub mod profile;
pub mod workload;
