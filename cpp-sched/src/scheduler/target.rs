//! What a batch may cost.

use super::Scheduler;
use crate::config::Chunking;
use crate::cost::Attos;

/// The prefill work of the busy period, from which the adaptive target follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(super) struct Target {
    /// Work of all prompts since the last time that none was unfinished, in attoseconds on one stage.
    busy_work: u128,
    /// Prompts of the busy period that are not done.
    unfinished: u32,
}

/// What a batch under construction is filled up to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// The most that the batch may cost; none = no limit but the budget.
    pub(super) most: Option<Attos>,
    /// Whether decodes are limited by it too, or ride on top.
    pub(super) limits_decodes: bool,
    pub(super) align: u32,
    pub(super) min: u32,
}

impl Fill {
    pub(super) const UNLIMITED: Self = Self { most: None, limits_decodes: false, align: 1, min: 1 };
}

/// Chunks of an adaptive plan end on multiples of this many tokens, where the budget allows it.
const ADAPTIVE_ALIGN: u32 = 64;

#[cfg(feature = "serde")]
impl Target {
    /// Whether counting on cannot overflow.
    pub(super) fn is_sane(&self) -> bool {
        self.unfinished < u32::MAX / 2
    }
}

impl Scheduler {
    pub(super) fn target_on_submit(&mut self, slot: u32) {
        if matches!(self.config.chunking, Chunking::Adaptive) {
            if let Some(cost) = &self.config.cost {
                let work = cost.items(&crate::cost::CostTerms::prefill(0, self.slots[slot].prompt_len));
                self.target.busy_work = self.target.busy_work.saturating_add(work.0);
                self.target.unfinished += 1;
            }
        }
    }

    /// A request's prompt is done, or will not be done.
    pub(super) fn target_on_prompt_end(&mut self) {
        if matches!(self.config.chunking, Chunking::Adaptive) {
            self.target.unfinished = self.target.unfinished.saturating_sub(1);
            if self.target.unfinished == 0 {
                self.target.busy_work = 0;
            }
        }
    }

    /// The filling rule of the next batch. For [`Chunking::Adaptive`] the target is `T* = c0 + sqrt(c0*W/(P-1))` with W the prefill work of the
    /// busy period: the closed form that makes the makespan of the period least. With one stage there is no fill to pay, and the budget alone
    /// rules.
    pub(super) fn fill(&self) -> Fill {
        match (self.config.chunking, &self.config.cost) {
            (Chunking::Cost { target_ns, align, min }, Some(_)) => {
                Fill { most: Some(Attos::from_ns(target_ns)), limits_decodes: true, align, min }
            }
            (Chunking::Adaptive, Some(cost)) if self.config.stages > 1 && self.target.busy_work > 0 => {
                let align = ADAPTIVE_ALIGN.min(self.config.max_batch_tokens);
                let share = self.target.busy_work / u128::from(self.config.stages - 1);
                let root = cost.c0.0.checked_mul(share).map_or(u128::MAX >> 64, u128::isqrt);
                Fill { most: Some(Attos(cost.c0.0.saturating_add(root))), limits_decodes: false, align, min: align }
            }
            _ => Fill::UNLIMITED,
        }
    }
}
