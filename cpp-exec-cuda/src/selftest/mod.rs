//! `cpp-run selftest`: what a GPU must show before it is trusted, and how fast it is beside what it could be.
//!
//! Correctness first: [every kernel](check_kernels) against plain arithmetic. Figures are measured where this runs, next to ceilings
//! that are measured there as well; what was not measured is said to be so.

mod attention;
mod bench;
mod error;
mod kernels;
mod random;

pub use error::SelftestError;
pub use kernels::{KernelCheck, KernelChecks, check_kernels};

#[cfg(test)]
mod tests;
