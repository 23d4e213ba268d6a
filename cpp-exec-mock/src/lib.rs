//! skeleton
pub mod pipeline;
pub mod profile;
pub mod report;
pub mod sim;
pub mod workload;
