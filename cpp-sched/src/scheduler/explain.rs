//! Why a request does not run.

use super::{Pause, Scheduler};
use crate::config::Admission;
use crate::ids::RequestId;
use crate::outcome::WaitReason;
use crate::queue::{PromptQueue, compare};
use crate::state::{Demand, State, Trait};

impl Scheduler {
    /// Why a request is not in the next batch. `None`: not alive. O(log(its blocks) + its hits).
    #[must_use]
    pub fn why(&self, request: RequestId) -> Option<WaitReason> {
        let slot = self.slots.find(request.0)?;
        let s = &self.slots[slot];
        Some(match s.state {
            State::Vacant | State::Gone => return None,
            State::Aborting => WaitReason::Aborting,
            State::Paused => WaitReason::SessionPaused,
            State::Sending => WaitReason::Sending,
            State::Waiting if s.waits_kv && s.pinned => WaitReason::WaitingForKv,
            State::Waiting if s.waits_kv => WaitReason::WaitingForTransferBlocks,
            State::Waiting | State::Running if !s.gates.is_empty() => WaitReason::Gated,
            State::Waiting if s.has(Trait::Late) => WaitReason::WaitingForLateResult,
            _ if self.is_put_off(slot) => WaitReason::PutOff,
            _ if self.in_flight.len() >= self.depth as usize => WaitReason::PipelineFull,
            _ if self.pause == Pause::All || (self.pause == Pause::New && s.state == State::Waiting) => WaitReason::Paused,
            State::Waiting => self.why_not_admitted(slot),
            State::Running => self.why_not_running(slot),
        })
    }

    /// Whether its policy said "not now", and something else runs.
    fn is_put_off(&self, slot: u32) -> bool {
        !self.in_flight.is_empty() && self.put_off.contains(slot)
    }

    fn why_not_admitted(&self, slot: u32) -> WaitReason {
        match self.plan_admission(slot) {
            Err(reason) => reason,
            Ok(plan) if self.lacks_encoder(slot, plan.start) => WaitReason::NoEncoder,
            Ok(_) if [&self.waiting, &self.resident].iter().any(|queue| is_behind_head(queue, slot)) => WaitReason::BehindOthers,
            Ok(_) if self.is_behind_resident(slot) || self.is_behind_urgent(slot) => WaitReason::BehindOthers,
            Ok(plan) if self.config.admission == Admission::Lazy && self.slots[slot].table.is_empty() && !self.has_room(slot, &plan) => {
                WaitReason::NoBlocks
            }
            Ok(_) => WaitReason::Runnable,
        }
    }

    /// Whether a request that is not admitted lacks a slot or blocks.
    pub(super) fn lacks_room(&self, slot: u32) -> bool {
        let lazy = self.config.admission == Admission::Lazy && self.slots[slot].table.is_empty();
        self.plan_admission(slot).map_or(true, |plan| lazy && !self.has_room(slot, &plan))
    }

    /// Whether there are blocks for a first step of a request that would be admitted so.
    fn has_room(&self, slot: u32, plan: &super::admit::Plan) -> bool {
        if !self.is_grouped() {
            return plan.free > 0;
        }
        let s = &self.slots[slot];
        let stretch = self.stretch(plan.start, s.known(), s.prompt_len, 0);
        let blocks = self.config.blocks(plan.start + self.smallest(&stretch));
        self.config.kv_groups.growth(plan.hits, blocks, self.config.block_size) <= plan.free
    }

    /// Whether one that holds its blocks comes first, and cannot be admitted.
    fn is_behind_resident(&self, slot: u32) -> bool {
        match (self.waiting.peek(), self.resident.peek()) {
            (Some((key, head)), Some((other, resident))) if head == slot => {
                compare(&other, &key, self.now_ns).is_lt() && self.plan_admission(resident).is_err()
            }
            _ => false,
        }
    }

    fn why_not_running(&self, slot: u32) -> WaitReason {
        let s = &self.slots[slot];
        if s.ticket == 0 && !self.prompts.contains(slot) {
            return WaitReason::WaitingForResult;
        }
        let tokens = match s.demand(self.config.async_scheduling) {
            Demand::Nothing => return WaitReason::WaitingForResult,
            Demand::Decode if self.is_too_early(slot) => return WaitReason::WaitingForResult,
            Demand::Decode => 1 + self.lookahead(slot),
            Demand::Prompt => self.smallest_whole(slot, &self.stretch(s.scheduled, s.known(), s.prompt_len, 0)),
        };
        if self.lacks_encoder(slot, s.scheduled) {
            return WaitReason::NoEncoder;
        }
        let blocks =
            (self.config.blocks(s.scheduled + tokens) + u32::from(self.has_shared_tail(slot))).saturating_sub(s.table.len() as u32);
        let missing = if self.is_grouped() { self.growth(slot, blocks) } else { blocks };
        if missing > s.reserved + self.unreserved() { WaitReason::NoBlocks } else { WaitReason::Runnable }
    }
}

/// Whether another request of its queue is asked first.
fn is_behind_head(queue: &PromptQueue, slot: u32) -> bool {
    queue.contains(slot) && queue.peek().is_some_and(|(_, head)| head != slot)
}
