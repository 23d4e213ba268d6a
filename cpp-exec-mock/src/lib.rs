//! skeleton
pub mod pipeline;
