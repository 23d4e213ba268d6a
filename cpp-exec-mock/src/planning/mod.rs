//! How prompts are cut, against the optimum: the kernel's own plan in virtual time, the best plan that there is on the same grid, and the closed
//! form that no plan can beat.

mod oracle;
mod plan;

pub use oracle::{Optimum, best_fixed, best_target, optimum};
pub use plan::{Plan, PlanError, Problem, plan};

use cpp_sched::{Attos, CostModel, causal_pairs, planner};

impl Problem {
    /// The prefill work of all requests on one stage, without what each batch costs.
    #[must_use]
    pub fn work(&self) -> Attos {
        let pairs = causal_pairs(self.cached, self.prompt - self.cached);
        let one = self.cost.c1.0 * u128::from(self.prompt - self.cached) + self.cost.c2.0 * pairs;
        Attos(one * u128::from(self.requests))
    }

    /// `(sqrt(W) + sqrt((P-1)*c0))^2`: no way of cutting takes less.
    #[must_use]
    pub fn bound(&self) -> Attos {
        planner::lower_bound(self.cost.c0, self.work(), self.drain_millionths())
    }

    fn drain_millionths(&self) -> u64 {
        u64::from(self.stages - 1) * 1_000_000
    }

    /// `sum + (P-1) * largest`: the time that batches take on equal stages without hops.
    fn makespan(&self, sum: u128, largest: u128) -> u128 {
        sum + u128::from(self.stages - 1) * largest
    }

    fn stages_cost(&self) -> [CostModel; 1] {
        [self.cost]
    }
}
