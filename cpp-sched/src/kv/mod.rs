//! KV blocks: who holds them ([`pool`]), and how they are found again by what they hold ([`hash`], [`index`]).

pub(crate) mod hash;
pub(crate) mod index;
pub(crate) mod links;
pub(crate) mod pool;

pub(crate) use hash::{Digest, Hashing};
pub(crate) use pool::Pool;

/// "No block", "no slot": one number that configurations may not reach.
pub(crate) const NIL: u32 = u32::MAX;
