//! A pipeline in virtual integer time: how long batches take that pass P stages in order.
//!
//! - [`Pipe`]: the pipeline that the simulator drives. It takes one batch at a time, in the order in which they were scheduled, and answers at
//!   once when its result is back.
//! - [`recurrence`]: the same times for a list of batches that is known beforehand, and the closed form for equal stages. They are what [`Pipe`]
//!   is checked against, and what a planner compares a cutting with.
//!
//! The model: a stage runs one batch at a time, first come first served; buffers between stages never fill up; a hop to the next stage takes
//! time but keeps neither stage busy; a result travels back to the scheduler after the last stage.

mod pipe;
pub mod recurrence;

pub use pipe::{Passage, Pipe, Span};
