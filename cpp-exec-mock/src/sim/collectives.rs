//! What tensor parallelism costs beside computing: all-reduces.

use cpp_sched::{Attos, CostModel};
use serde::Serialize;

/// All-reduces per layer: one behind attention, one behind the feed-forward network (Shoeybi et al., Megatron-LM, 2019).
const PER_LAYER: u64 = 2;

/// The all-reduces of stages whose layers are shared by several devices.
///
/// A ring all-reduce of m bytes over n devices takes 2(n-1) steps of m/n bytes each (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009), so a
/// batch of X tokens takes a stage of l layers
/// `2·l·(2(n-1)·latency + ceil(2(n-1)·X·bytes_per_token / (n·bytes_per_s)))`. The devices do not compute meanwhile: of the stage's time it is
/// [`Communication`](crate::pipeline::Cause::Communication).
///
/// ```
/// use cpp_exec_mock::sim::Collectives;
/// let four = Collectives { ranks: 4, latency_ns: 10, bytes_per_s: 1_000_000_000, bytes_per_token: 8, layers: vec![1] };
/// // Two all-reduces of 6 steps: 10 ns of latency each, and 100 · 8 / 4 bytes.
/// assert_eq!(four.stage_ns(0, 100), 2 * (6 * 10 + 6 * 200));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collectives {
    /// Devices that share each layer; with 1 there is nothing to reduce.
    pub ranks: u32,
    /// Of one step, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes per second from a device to the next; 0 = a step takes its latency alone.
    pub bytes_per_s: u64,
    /// Bytes of activations per token.
    pub bytes_per_token: u64,
    /// Layers of each stage.
    pub layers: Vec<u32>,
}

impl Collectives {
    fn steps(&self) -> u64 {
        2 * u64::from(self.ranks.saturating_sub(1))
    }

    /// How long a batch of so many tokens takes a stage, in nanoseconds, saturating; 0 for a stage that is not there.
    #[must_use]
    pub fn stage_ns(&self, stage: usize, tokens: u64) -> u64 {
        let bytes = u128::from(self.steps()) * u128::from(tokens) * u128::from(self.bytes_per_token);
        let per_s = u128::from(self.ranks) * u128::from(self.bytes_per_s);
        let transmit_ns = if per_s == 0 { 0 } else { bytes.saturating_mul(1_000_000_000).div_ceil(per_s) };
        let one_ns = transmit_ns.saturating_add(u128::from(self.steps()) * u128::from(self.latency_ns));
        let layers = self.layers.get(stage).copied().unwrap_or(0);
        u64::try_from(one_ns.saturating_mul(u128::from(PER_LAYER * u64::from(layers)))).unwrap_or(u64::MAX)
    }

    /// A stage's cost with each layer shared: all but the constant is divided, rounded up.
    #[must_use]
    pub fn share(&self, cost: &CostModel) -> CostModel {
        let mut cost = *cost;
        let ranks = u128::from(self.ranks.max(1));
        for coefficient in
            [&mut cost.c1, &mut cost.c2, &mut cost.c3, &mut cost.c4, &mut cost.c5, &mut cost.linear_floor, &mut cost.prefill_read]
        {
            *coefficient = Attos(coefficient.0.div_ceil(ranks));
        }
        cost
    }

    /// A cost model with the all-reduces of the stage that has most layers in it, for a scheduler: they are linear in the tokens.
    #[must_use]
    pub fn add_to(&self, cost: &CostModel) -> CostModel {
        let mut cost = *cost;
        let all = u128::from(PER_LAYER * u64::from(self.layers.iter().copied().max().unwrap_or(0))) * u128::from(self.steps());
        cost.c0.0 = cost.c0.0.saturating_add(all * u128::from(self.latency_ns) * Attos::PER_NS);
        let per_s = u128::from(self.ranks) * u128::from(self.bytes_per_s);
        let bytes = (all * u128::from(self.bytes_per_token)).saturating_mul(Attos::PER_NS * 1_000_000_000);
        cost.c1.0 = cost.c1.0.saturating_add(bytes.checked_div(per_s).unwrap_or(0));
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpp_sched::CostTerms;

    #[test]
    fn what_the_scheduler_believes_is_what_a_stage_takes() {
        let all = Collectives { ranks: 8, latency_ns: 3000, bytes_per_s: 100_000_000_000, bytes_per_token: 16_384, layers: vec![20, 19] };
        let mut cost = CostModel::default();
        (cost.c0, cost.c1, cost.c2) = (Attos::from_ns(100_000), Attos::from_ns(8000), Attos::from_ns(8));
        let shared = all.share(&cost);
        assert_eq!((shared.c0, shared.c1, shared.c2), (cost.c0, Attos::from_ns(1000), Attos::from_ns(1)));
        for tokens in [1, 100, 2048] {
            let terms = CostTerms::prefill(0, tokens);
            let (believed, real) = (all.add_to(&shared).cost(&terms).to_ns(), shared.cost(&terms).to_ns() + all.stage_ns(0, tokens.into()));
            // Each all-reduce is rounded up.
            assert!(believed.abs_diff(real) <= 2 * 20, "{tokens}: {believed} {real}");
        }
        assert!(all.stage_ns(1, 100) < all.stage_ns(0, 100));
        assert_eq!(all.stage_ns(2, 100), 0);
        assert_eq!(Collectives { ranks: 1, ..all.clone() }.stage_ns(0, 100), 0);
        assert_eq!(Collectives { latency_ns: u64::MAX, ..all }.stage_ns(0, u64::MAX), u64::MAX);
    }
}
