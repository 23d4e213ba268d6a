//! Plans as messages: the leader decides, workers apply, and no worker ever decides.
//!
//! A process that schedules for several workers sends each of them one message a batch. The [`Encoder`] writes it: a few bytes a row, for it
//! tells only what is new. The worker's [`Mirror`] rebuilds block tables, positions and tokens from the messages alone, checks that none is
//! missing, repeated or changed, and reports the first difference as an error without having changed.
//!
//! ```
//! use cpp_sched::wire::{Encoder, Mirror, Token};
//! use cpp_sched::{Config, Request, RequestId, Schedule, Scheduler};
//!
//! let config = Config::default();
//! // On the leader:
//! let mut scheduler = Scheduler::new(config)?;
//! let mut encoder = Encoder::new(&config);
//! scheduler.submit(Request::new(RequestId(7), vec![11, 12, 13], 4)).unwrap();
//! let mut message = Vec::new();
//! if let Schedule::Batch(batch) = scheduler.schedule() {
//!     encoder.encode(&batch, &mut message).unwrap();
//! }
//!
//! // On every worker, which knows the configuration and nothing else:
//! let mut mirror = Mirror::new(&config);
//! let plan = mirror.apply(&message).unwrap().plan().unwrap();
//! let row = plan.row(0).unwrap();
//! assert_eq!((row.request(), row.num_computed_tokens(), row.end()), (RequestId(7), 0, 3));
//! assert_eq!(row.blocks().len(), 1);
//! assert!(row.tokens().eq([11, 12, 13].map(Token::Known)));
//! assert_eq!(mirror.digest(), encoder.digest());
//! // The same message twice:
//! assert!(mirror.apply(&message).is_err());
//! # Ok::<(), cpp_sched::ConfigError>(())
//! ```
//!
//! # What a worker can rely on
//!
//! - *Order.* Messages are numbered and their digests chained: a missing, repeated or changed one is told apart, and refused.
//! - *Positions and tables.* A row starts where its request's last row ended, or the message says why it does not ([`Origin`]). Its table
//!   covers every position up to its end.
//! - *Tokens.* Each position has its token, or tells where it comes from ([`Token`]): sampled by a row of an earlier plan (asynchronous
//!   scheduling), proposed by a drafter, kept by the caller ([`Prompt::Lengths`](crate::Prompt::Lengths)). Whatever was assumed when a plan was
//!   made, the next plan of the request carries the tokens as they were delivered.
//! - *Encoder outputs.* A plan names what to forget and what to encode before its rows run, and no row needs anything else
//!   ([`Plan::encoder_inputs`], [`PlanRow::spans`]).
//! - *Loss.* After [`Scheduler::fail`](crate::Scheduler::fail) the next plan says how many batches were lost ([`Plan::lost`]); a row that goes
//!   back to the committed position says so. What a mirror knows of requests without a row stays as it is until they have one.
//! - *Ends.* An id may be used again by its caller; the [`incarnation`](PlanRow::incarnation) tells two requests apart.
//!
//! A worker that joins late applies [`Encoder::resync`] first. It knows then what the others know; whether it has the KV is its own business: a
//! worker that has lost its memory has lost the requests, and the leader must have them computed again.
//!
#![doc = include_str!("FORMAT.md")]

mod bytes;
mod check;
#[cfg(test)]
mod damage;
mod encoder;
mod error;
mod groups;
mod header;
mod message;
mod mirror;
mod plan;
mod resync;
mod spans;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod walk;

pub use encoder::Encoder;
pub use error::{EncodeError, MirrorError};
pub use header::length;
pub use message::Origin;
pub use mirror::{Mirror, Mirrored};
pub use plan::{Applied, Plan, PlanInput, PlanRow, Token, Transfer};
pub(crate) use resync::State;
