//! Executors in virtual time for the `cpp-sched` scheduling kernel.

pub mod conformance;
