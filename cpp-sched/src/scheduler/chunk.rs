//! How long the next chunk of a prompt is: the planner's answer, within what the batch and the memory leave.

use super::Scheduler;
use crate::config::Chunking;
use crate::cost::{Attos, CostTerms};
use crate::planner::{self, Segment};

/// A stretch of known tokens without KV.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Its first position.
    pub(super) start: u32,
    /// One past its last.
    pub(super) end: u32,
    /// Where the prompt ends: a single token from there on is a decode.
    pub(super) prompt_len: u32,
    /// Tokens that this batch may still take of it.
    pub(super) most: u32,
}

impl Stretch {
    fn len(&self) -> u32 {
        self.end - self.start
    }

    fn segment(&self) -> Segment {
        Segment { start: self.start, end: self.end }
    }
}

impl Scheduler {
    /// Tokens of the next chunk, before blocks are looked at; 0: it does not fit into what is left of this batch. O(stages).
    pub(super) fn chunk_len(&self, stretch: &Stretch) -> u32 {
        let tokens = self.planned_len(stretch);
        let grain = self.config.kv_groups.grain();
        if grain == 1 || tokens == 0 {
            return tokens;
        }
        // A state is kept on its grain alone: no chunk but the last ends elsewhere.
        let tokens = align_down(stretch, tokens, grain);
        if tokens == 0 && self.build.is_empty() { self.smallest(stretch) } else { tokens }
    }

    /// The same, whatever it ends on.
    fn planned_len(&self, stretch: &Stretch) -> u32 {
        let most = stretch.len().min(self.row_budget()).min(stretch.most);
        if let Chunking::Tokens { max } = self.config.chunking {
            return most.min(max.unwrap_or(u32::MAX));
        }
        let most = most.min(self.workspace_room(stretch.start));
        let fill = self.build.fill;
        let tokens = match fill.most {
            _ if most == 0 => 0,
            None => {
                let aligned = align_down(stretch, most, fill.align);
                if aligned > 0 { aligned } else { most }
            }
            Some(target) => {
                let (stages, before) = (self.target.stages(), self.build.batch.terms);
                let tokens = planner::fitting_chunk(stages, fill.grid(), before, stretch.segment(), most, target);
                if self.fits_as_decode(stretch, tokens) { tokens } else { 0 }
            }
        };
        if tokens > 0 || !self.build.is_empty() {
            return tokens;
        }
        // Some of the budget may be set aside for a prompt that shares this batch.
        let smallest = self.smallest(stretch);
        if smallest <= self.row_budget() { smallest } else { 0 }
    }

    /// Tokens of a chunk that costs at most `most` by itself, without `c0`.
    pub(super) fn chunk_within(&self, stretch: &Stretch, most: Attos) -> u32 {
        let (stages, fill) = (self.target.stages(), self.build.fill);
        let constant = planner::cost_of(stages, &CostTerms::default());
        let target = Attos(most.0.saturating_add(constant.0));
        planner::fitting_chunk(stages, fill.grid(), CostTerms::default(), stretch.segment(), stretch.len().min(stretch.most), target)
    }

    /// A single token behind the prompt is a decode, and costs what a decode costs: whether that keeps the batch within its target.
    pub(super) fn fits_as_decode(&self, stretch: &Stretch, tokens: u32) -> bool {
        match self.build.fill.most {
            Some(target) if tokens == 1 && stretch.start >= stretch.prompt_len => {
                self.cost_with(CostTerms::decode(stretch.start, 1)) <= target
            }
            _ => true,
        }
    }

    /// Tokens that one more row may have.
    pub(super) fn row_budget(&self) -> u32 {
        self.build.tokens_left.saturating_sub(self.build.slots)
    }

    /// The smallest chunk that the rules allow: a batch may consist of it alone, whatever it costs.
    pub(super) fn smallest(&self, stretch: &Stretch) -> u32 {
        match self.config.chunking {
            Chunking::Tokens { .. } => {
                let grain = self.config.kv_groups.grain();
                (grain - stretch.start % grain).min(stretch.end.saturating_sub(stretch.start)).max(1)
            }
            _ => {
                let most = stretch.most.min(self.config.max_batch_tokens - self.config.draft_slots);
                planner::smallest_chunk(self.build.fill.grid(), stretch.segment(), most)
            }
        }
    }

    /// Tokens of a chunk for which this batch still has workspace.
    pub(super) fn workspace_room(&self, history: u32) -> u32 {
        let Some(workspace) = &self.config.workspace else { return u32::MAX };
        workspace.room(&self.build.batch.terms, history)
    }
}

/// The longest length up to `tokens` that ends on the grid, or at the end of the stretch.
pub(super) fn align_down(stretch: &Stretch, tokens: u32, align: u32) -> u32 {
    planner::align_down(stretch.segment(), tokens, align)
}
