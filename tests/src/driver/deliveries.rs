//! What a leader sends in a world, as a list: for tests in which the network is to blame.

use cpp_sched::wire::{Mirror, Plan};

/// One message to workers.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The message.
    pub bytes: Vec<u8>,
    /// A resync: it may be given to any worker, and need not be.
    pub resync: bool,
    /// The stream that a worker must have followed to take it (any, for a resync): number of messages and digest.
    pub before: (u64, u128),
    /// The stream afterwards.
    pub after: (u64, u128),
    /// What a worker makes of it, see [`told`]; empty for a resync.
    pub told: String,
}

impl Delivery {
    pub(super) fn new(bytes: &[u8], before: (u64, u128), mirror: &Mirror, told: String) -> Self {
        Self { bytes: bytes.to_vec(), resync: false, before, after: (mirror.sequence(), mirror.digest()), told }
    }

    pub(super) fn resync(bytes: &[u8], mirror: &Mirror) -> Self {
        let after = (mirror.sequence(), mirror.digest());
        Self { bytes: bytes.to_vec(), resync: true, before: after, after, told: String::new() }
    }
}

/// A plan in words: everything that an executor acts on.
#[must_use]
pub fn told(plan: &Plan<'_>) -> String {
    let rows = plan.rows().map(|row| {
        let tokens: Vec<_> = row.tokens().collect();
        (row.request(), row.num_computed_tokens(), row.origin(), row.samples(), row.blocks().to_vec(), tokens)
    });
    let (rows, inputs) = (rows.collect::<Vec<_>>(), plan.encoder_inputs().count());
    format!("{} {rows:?} {:?} {:?} {:?} {inputs}", plan.batch(), plan.ended(), plan.preempted(), plan.copies())
}
