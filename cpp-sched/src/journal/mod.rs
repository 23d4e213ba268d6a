//! A journal of inputs, and the digest of what was decided.
//!
//! A scheduler has no clock and no random source: equal configurations and equal calls in equal order give equal batches. So the calls are all
//! that must be written down to see a run again (`Input`, `JournalWriter`, `JournalReader`, `Replay`; feature `journal`), and one
//! number tells whether two runs decided the same ([`DecisionDigest`], always there).
//!
//! # Format
//!
//! `cppsched`, a byte 2 (the version), and records. A record is its length (four bytes, little-endian), the FNV-1a hash of its contents (four
//! bytes), and the contents in the format `postcard`: first the configuration or a snapshot, then an input each, and behind every `schedule` that gave a
//! batch its number and the digest of all batches up to it. What was written up to any record can be read; what is cut off or damaged is
//! found, with its place.

mod digest;
#[cfg(feature = "journal")]
mod format;
#[cfg(feature = "journal")]
mod input;
#[cfg(feature = "journal")]
mod replay;

pub use digest::{DecisionDigest, Decisions};
#[cfg(feature = "journal")]
pub use format::{JournalError, JournalReader, JournalWriter, Record, Start};
#[cfg(feature = "journal")]
pub use input::{Answer, Input};
#[cfg(feature = "journal")]
pub use replay::{Difference, Replay, replay, replay_with_policy, replay_within};
