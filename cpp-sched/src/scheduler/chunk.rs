//! How long the next chunk of a prompt is.

use super::Scheduler;
use crate::config::Chunking;
use crate::cost::CostTerms;

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

    fn terms(&self, tokens: u32) -> CostTerms {
        if tokens == 1 && self.start >= self.prompt_len { CostTerms::decode(self.start, 1) } else { CostTerms::prefill(self.start, tokens) }
    }
}

impl Scheduler {
    /// Tokens of the next chunk, before blocks are looked at; 0: it does not fit into what is left of this batch. O(log tokens).
    pub(super) fn chunk_len(&self, stretch: &Stretch) -> u32 {
        let most = stretch.len().min(self.row_budget()).min(stretch.most);
        let fill = self.build.fill;
        let most = match self.config.chunking {
            Chunking::Tokens { max } => return most.min(max.unwrap_or(u32::MAX)),
            _ if fill.most.is_none() => return align_down(stretch, most, fill.align.min(most.max(1))),
            _ => most,
        };
        let fitting = self.fitting(stretch, most);
        let aligned = align_down(stretch, fitting, fill.align);
        let long_enough = aligned >= fill.min || aligned == stretch.len();
        if aligned > 0 && long_enough && self.within_target(stretch.terms(aligned)) {
            aligned
        } else if self.build.is_empty() {
            self.smallest(stretch)
        } else {
            0
        }
    }

    /// Tokens that one more row may have.
    fn row_budget(&self) -> u32 {
        self.build.tokens_left.saturating_sub(self.config.draft_slots)
    }

    /// The smallest chunk that the rules allow: a batch may consist of it alone, whatever it costs.
    pub(super) fn smallest(&self, stretch: &Stretch) -> u32 {
        let (align, min) = match self.config.chunking {
            Chunking::Tokens { .. } => return 1,
            _ => (self.build.fill.align, self.build.fill.min),
        };
        let most = stretch.len().min(self.config.max_batch_tokens - self.config.draft_slots).min(stretch.most);
        let end = (u64::from(stretch.start) + u64::from(min)).next_multiple_of(u64::from(align)).min(u64::from(stretch.end));
        let wanted = (end - u64::from(stretch.start)) as u32;
        if wanted <= most {
            wanted
        } else {
            // The budget comes before the least length, alignment before both where it leaves anything.
            let aligned = align_down(stretch, most, align);
            if aligned > 0 { aligned } else { most }
        }
    }

    /// The longest prefix of the stretch, at most `most`, that keeps the batch within its target.
    fn fitting(&self, stretch: &Stretch, most: u32) -> u32 {
        let (mut fits, mut too_long) = (0, most + 1);
        while too_long - fits > 1 {
            let middle = fits + (too_long - fits) / 2;
            if self.within_target(CostTerms::prefill(stretch.start, middle)) {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        fits
    }

    fn within_target(&self, terms: CostTerms) -> bool {
        let fill = &self.build.fill;
        let Some(most) = fill.most else { return true };
        if fill.limits_decodes {
            return self.cost_with(terms) <= most;
        }
        // Decodes ride on top: only the prompt work counts.
        let Some(cost) = &self.config.cost else { return true };
        let mut prompt = self.build.batch.terms;
        (prompt.decode_context, prompt.tokens, prompt.decodes) = (0, prompt.tokens.saturating_sub(prompt.decodes), 0);
        prompt.add(terms);
        cost.cost(&prompt) <= most
    }
}

/// The longest length up to `tokens` that ends on the grid, or at the end of the stretch.
pub(super) fn align_down(stretch: &Stretch, tokens: u32, align: u32) -> u32 {
    if tokens == stretch.len() || align == 1 {
        return tokens;
    }
    let end = (stretch.start + tokens) / align * align;
    end.saturating_sub(stretch.start)
}
