//! Conformance scenarios, reference scheduler and property tests of `cpp-sched`.

pub mod generate;
pub mod oracle;
pub mod play;
pub mod shrink;
