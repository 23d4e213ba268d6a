//! Studies of deadlines: classes of requests with targets, load in phases, one scheduler after another, and a clairvoyant to compare with.
//!
//! ```text
//! Study::load(path) / Study::parse(text)   the file: profile, stages, classes, phases, seeds (see `studies/` in this crate)
//! study.capacity(config)                   requests per second that the pipeline can prefill, measured: all of them at once
//! study.draw(seed, rate)                   -> Vec<Job>: arrivals, lengths, tenants, deadlines
//! play(jobs, machine, config)              -> Vec<Fate>: what became of each, in virtual time
//! clairvoyant(jobs)                        -> how many deadlines an EDF that knows all and drops the largest job meets
//! knee(study, rate, seed, config, ..)      -> the heaviest load of which at most 1 % miss a target
//! Summary::of(jobs, fates, which)          -> misses, percentiles, goodput, rejections
//! ```
//!
//! `cargo run --release -p cpp-exec-mock --example study -- FILE` runs one file and prints its table.

mod draw;
mod file;
mod knee;
mod oracle;
mod play;
mod summary;

pub use draw::{Job, jobs_of};
pub use file::{Capacity, Class, Lengths, Phase, Study, StudyError, Target};
pub use knee::{Knee, KneePoint, knee};
pub use oracle::clairvoyant;
pub use play::{Fate, play, play_predicting, play_unless};
pub use summary::Summary;
