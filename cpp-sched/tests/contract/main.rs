//! The scheduling contract, feature by feature: one module each, named as in the table of the README.
//!
//! `cargo test -p cpp-sched --test contract drafts::` runs one of them.

mod aborts;
mod accounts;
mod admission;
mod async_scheduling;
mod bench;
mod chunks;
mod control;
mod disaggregation;
mod drafts;
mod events;
mod forks;
mod gates;
mod limits;
mod partial_loss;
mod pooling;
mod reasons;
mod sessions;
