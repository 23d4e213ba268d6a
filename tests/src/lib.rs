//! Conformance scenarios, reference scheduler and property tests of `cpp-sched`.

pub mod oracle;
