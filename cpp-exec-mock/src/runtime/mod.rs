//! The stage runtime: plans of the scheduler, run by a pipeline of workers.

mod work;

pub use work::{Device, RowSample, Work, WorkRow};
