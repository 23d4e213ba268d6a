//! A pipeline in virtual integer time: how long batches take that pass P stages in order, and why stages are idle.
//!
//! - [`Pipe`]: the pipeline that the simulator drives. It takes one piece of a batch at a time, in the order in which they were scheduled, and
//!   answers at once when it is received, starts, ends and is sent on each stage, and when its result is back.
//! - [`Links`], [`Granularity`], [`Scheduling`]: how it is built.
//! - [`Cause`], [`StageTime`]: where the time of a stage went.
//! - [`Pace`], [`Window`], [`Pipe::hang`], [`Pipe::lose_oldest`], [`Pipe::outage`]: what goes wrong.
//! - [`layout_times`]: the same for devices with two groups of layers each.
//! - [`recurrence`]: the same times for a list of batches that is known beforehand, and the closed form for equal stages. They are what [`Pipe`]
//!   is checked against, and what a planner compares a cutting with.
//!
//! The model: a stage runs one piece at a time, first come first served. Unless [`Links`] say otherwise, buffers between stages never fill up, and
//! a hop to the next stage takes time but keeps neither stage busy. A result travels back to the scheduler after the last stage.

mod cause;
mod gap;
mod hand_on;
mod layout;
mod options;
mod outage;
mod pace;
mod pipe;
pub mod recurrence;

pub use cause::{Cause, Slice, StageTime};
pub use layout::{Layout, LayoutTimes, layout_times};
pub use options::{Granularity, Links, Scheduling, Transfer};
pub use pace::{Pace, Window};
pub use pipe::{Passage, Piece, Pipe, Step};
