//! skeleton
pub mod profile;
pub mod workload;
