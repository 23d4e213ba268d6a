//! One test for each bug that other engines had, or that this kernel had on its way: named after what must not happen again.
//!
//! The driver judges every call here as everywhere; these tests say in addition what must come out.

mod blocks;
mod chunks;
mod play;
mod preemption;
mod sessions;
mod sharing;
