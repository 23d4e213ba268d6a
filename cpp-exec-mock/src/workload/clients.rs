//! What clients do beside sending requests: they think before the next one, lose patience, and do not say how much they want to read.

use rand_distr::{Distribution, OpenClosed01};

use super::synthetic::stream;
use super::{TimeScale, Workload, WorkloadError};

/// No time: the item arrives at a time of its own, or its client waits for ever.
pub(super) const NEVER: u64 = u64::MAX;

/// Behaviour of the clients of a workload; the lists have one entry an item, or none at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clients {
    /// From the end of the item before it to its arrival.
    pub(super) think_ns: Vec<u64>,
    pub(super) patience_ns: Vec<u64>,
    max_tokens: Option<u32>,
}

impl Clients {
    pub(super) fn truncate(&mut self, items: usize) {
        self.think_ns.truncate(items);
        self.patience_ns.truncate(items);
    }

    /// Thought is a part of how requests arrive; patience is not.
    pub(super) fn scale_time(&mut self, scale: TimeScale) {
        for think_ns in self.think_ns.iter_mut().filter(|ns| **ns != NEVER) {
            *think_ns = scale.apply(*think_ns).unwrap_or(NEVER - 1);
        }
    }
}

impl Workload {
    /// For an item that arrives only so long after the end of the one before it: how long, in nanoseconds. Its own `arrival_ns` means nothing then.
    #[must_use]
    pub fn follows_after_ns(&self, index: usize) -> Option<u64> {
        self.clients.think_ns.get(index).copied().filter(|&ns| ns != NEVER)
    }

    /// How long after its arrival the client of an item hangs up, if it has not ended by then, in nanoseconds; none: never.
    #[must_use]
    pub fn patience_ns(&self, index: usize) -> Option<u64> {
        self.clients.patience_ns.get(index).copied().filter(|&ns| ns != NEVER)
    }

    /// The outputs that every request is allowed, of which the scheduler alone is told: it learns where a request ends from a stop token. None: the
    /// scheduler knows how long each output will be.
    #[must_use]
    pub const fn max_tokens(&self) -> Option<u32> {
        self.clients.max_tokens
    }

    /// From now on the scheduler is told `most` outputs for every request, not how long it will be. Outputs end there at the latest.
    ///
    /// # Errors
    /// 0 outputs.
    pub fn hide_output_lengths(&mut self, most: u32) -> Result<(), WorkloadError> {
        if most == 0 {
            return Err(WorkloadError::Parameter { name: "max-tokens", problem: "must be at least 1".to_owned() });
        }
        self.clients.max_tokens = Some(most);
        self.source.push_str(&format!(", at most {most} outputs each, their number unknown"));
        Ok(())
    }

    /// Clients hang up: a part of them, drawn from `seed`, after an exponential time with the given mean from the arrival on.
    ///
    /// # Errors
    /// A mean of 0, or a part that is not from 0 to 1; nothing is changed.
    pub fn lose_patience(&mut self, mean_ns: u64, part: f64, seed: u64) -> Result<(), WorkloadError> {
        if mean_ns == 0 {
            return Err(WorkloadError::Parameter { name: "patience", problem: "must be above 0".to_owned() });
        }
        if !(0.0..=1.0).contains(&part) {
            return Err(WorkloadError::Parameter { name: "impatient", problem: format!("{part} must be from 0 to 1") });
        }
        let mut rng = stream(seed, 3);
        let mut draw = || {
            let [chosen, uniform]: [f64; 2] = [(); 2].map(|()| OpenClosed01.sample(&mut rng));
            if chosen <= part { exponential_ns(uniform, mean_ns).min(NEVER - 1) } else { NEVER }
        };
        self.clients.patience_ns = self.items.iter().map(|_| draw()).collect();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        self.source.push_str(&format!(", {part} of clients hang up after {} s in the mean", mean_ns as f64 / 1e9));
        Ok(())
    }
}

/// An exponential time with this mean from a number in (0, 1], rounded; the same on all machines.
#[expect(clippy::cast_precision_loss, reason = "a mean of whole nanoseconds, rounded again")]
pub(super) fn exponential_ns(uniform: f64, mean_ns: u64) -> u64 {
    (-libm::log(uniform) * mean_ns as f64 + 0.5) as u64
}
