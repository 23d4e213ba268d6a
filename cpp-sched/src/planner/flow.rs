//! How long batches take on equal stages when no more than so many are in flight.
//!
//! `C[j,s] = max(C[j-1,s], C[j,s-1]) + t[j]`, and a batch starts on the first stage only when the one `D` before it has left the last. With more
//! batches in flight than stages, costs that differ a little leave no gaps, and `sum + (P-1) * largest` is the time. With as many, every gap stays:
//! each `P` batches take `P` times the dearest of them.

use crate::cost::Attos;

/// Stages that are followed one by one, at most.
const MAX_STAGES: usize = 32;

/// The pipeline, empty at the start.
pub(super) struct Flow {
    /// When each stage is free, in units of `1 << shift` attoseconds.
    free: [u64; MAX_STAGES],
    /// When each of the last batches left the last stage.
    left: [u64; MAX_STAGES],
    stages: usize,
    depth: usize,
    batches: usize,
    shift: u32,
}

impl Flow {
    /// For batches that cost at most `total` together. None where the closed form says the same, or the pipeline is too deep to follow.
    pub(super) fn new(drain_millionths: u64, depth: u32, total: Attos) -> Option<Self> {
        let stages = (drain_millionths.div_ceil(1_000_000) + 1) as usize;
        let depth = depth as usize;
        if depth > stages || depth == 0 || !(2..=MAX_STAGES).contains(&stages) {
            return None;
        }
        // Forty bits, and room for sums.
        let shift = (128 - total.0.leading_zeros()).saturating_sub(40);
        Some(Self { free: [0; MAX_STAGES], left: [0; MAX_STAGES], stages, depth, batches: 0, shift })
    }

    /// The next batch.
    pub(super) fn push(&mut self, cost: Attos) {
        let cost = u64::try_from(cost.0 >> self.shift).unwrap_or(u64::MAX >> 8);
        let place = self.batches % self.depth;
        let mut at = self.left[place];
        for free in &mut self.free[..self.stages] {
            at = at.max(*free).saturating_add(cost);
            *free = at;
        }
        self.left[place] = at;
        self.batches += 1;
    }

    /// When the last batch has left the last stage.
    pub(super) fn time(&self) -> u128 {
        u128::from(self.free[self.stages - 1]) << self.shift
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(stages: u64, depth: u32, costs: &[u128]) -> Option<u128> {
        let mut flow = Flow::new((stages - 1) * 1_000_000, depth, Attos(costs.iter().sum()))?;
        costs.iter().for_each(|&cost| flow.push(Attos(cost)));
        Some(flow.time())
    }

    #[test]
    fn equal_costs_leave_no_gap_and_others_do() {
        assert_eq!(time(4, 4, &[5; 10]), Some(10 * 5 + 3 * 5));
        assert_eq!(time(2, 2, &[3, 5, 3, 5]), Some(3 + 5 + 5 + 5 + 5));
        // One in flight: every batch alone.
        assert_eq!(time(3, 1, &[1, 2, 3]), Some(18));
        // More in flight than stages: the closed form says it. Too deep a pipeline: it must do.
        assert!(time(4, 5, &[5]).is_none() && time(33, 33, &[5]).is_none() && time(1, 1, &[5]).is_none());
    }
}
