//! How long a busy period takes under a target, without laying its batches out.
//!
//! The tokens are counted by their history, in bins; in each bin chunks have the length that the grid leaves of what the target allows, so there are
//! `tokens / length` of them. Nothing but the count of the batches, what each costs beside its share of the work, and the largest depend on the target:
//! `time = W + sum over bins of batches * (c0 + c4 * history) + (P-1) * largest`. What this leaves out, the ends of prompts, matters only where there
//! are few batches, and those can be laid out.

use super::layout::{Rules, Segment, fitting_chunk};
use super::period::Work;
use super::{cost_of, ruling, scaled};
use crate::cost::{Attos, CostTerms};

/// Bins of history.
const BINS: usize = 24;

/// Work by history, and what it is priced with.
pub(super) struct Estimate<'a> {
    rules: Rules<'a>,
    bins: [u64; BINS],
    /// Where the first bin begins.
    start: u32,
    /// Where the last ends.
    end: u32,
    drain_millionths: u64,
    /// Batches that gaps spread over; 0 = there are more in flight than stages, and none are left.
    window: u32,
}

impl<'a> Estimate<'a> {
    /// The segments, or where there are none that can be looked at, `work` from the beginning of equal prompts.
    pub(super) fn new(rules: Rules<'a>, segments: &[Segment], work: Work, drain_millionths: u64, depth: u32) -> Self {
        let stages = u32::try_from(drain_millionths.div_ceil(1_000_000)).unwrap_or(u32::MAX).saturating_add(1);
        let window = if depth > stages { 0 } else { stages };
        let mut bins = [0; BINS];
        let whole = Segment { start: 0, end: u32::try_from(work.mean_history().saturating_mul(2)).unwrap_or(u32::MAX).max(1) };
        let some = || segments.iter().filter(|segment| segment.len() > 0);
        let start = some().map(|segment| segment.start).min().unwrap_or(whole.start);
        let end = some().map(|segment| segment.end).max().unwrap_or(whole.end);
        let mut estimate = Self { rules, bins, start, end, drain_millionths, window };
        if segments.is_empty() {
            bins = [work.tokens / BINS as u64; BINS];
            bins[0] += work.tokens % BINS as u64;
        }
        // Equal segments, which come one behind the other, are counted once.
        let (mut before, mut times) = (Segment::default(), 0);
        for &segment in segments.iter().chain(&[Segment::default()]) {
            if segment != before {
                estimate.count(&mut bins, before, times);
                (before, times) = (segment, 0);
            }
            times += 1;
        }
        estimate.bins = bins;
        estimate
    }

    fn count(&self, bins: &mut [u64; BINS], segment: Segment, times: u64) {
        if segment.start >= segment.end {
            return;
        }
        let first = self.bin_of(segment.start);
        let last = self.bin_of(segment.end - 1).max(first);
        for (bin, tokens) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
            let (low, high) = (self.edge(bin).max(segment.start), self.edge(bin + 1).min(segment.end));
            *tokens = tokens.saturating_add(times * u64::from(high.saturating_sub(low)));
        }
    }

    /// Where a bin begins.
    fn edge(&self, bin: usize) -> u32 {
        self.start + (u64::from(self.end - self.start) * bin as u64 / BINS as u64) as u32
    }

    fn bin_of(&self, position: u32) -> usize {
        let span = u64::from(self.end - self.start).max(1);
        let guess = (u64::from(position - self.start) * BINS as u64 / span).min(BINS as u64 - 1) as usize;
        // Edges are rounded down, so the guess may be one too low.
        if guess + 1 < BINS && self.edge(guess + 1) <= position { guess + 1 } else { guess }
    }

    /// What the target adds to the time of the work itself, for all of the period. O(bins).
    pub(super) fn of(&self, target: Attos) -> u128 {
        let rules = &self.rules;
        let fill = Attos(target.0.saturating_sub(rules.ride.0));
        let align = rules.grid.align;
        let (mut time, mut largest) = (0u128, 0u128);
        let mut len = 0;
        for (bin, &tokens) in self.bins.iter().enumerate() {
            if tokens == 0 {
                continue;
            }
            let (low, high) = (self.edge(bin), self.edge(bin + 1));
            let history = (low + (high - low) / 2) / align * align;
            let next = self.chunk(history, len, fill);
            // The largest batch lies where the length is about to fall, else at the end; the smallest chunk costs what it costs.
            let at_end = cost_of(rules.stages, &CostTerms::prefill(high.saturating_sub(next), next)).0;
            let top = match next {
                smallest if smallest <= align => at_end,
                _ if len > next => fill.0,
                _ => at_end.min(fill.0),
            };
            len = next;
            // In 1/65536 of a batch.
            let count = tokens.saturating_mul(1 << 16) / u64::from(len);
            let chunk = CostTerms::prefill(history, len);
            let cost = cost_of(rules.stages, &chunk).0;
            let mut extra = cost.saturating_sub(self.work(&chunk));
            if self.window > 0 {
                // The dearest of the batches around.
                let further = history.saturating_add(len.saturating_mul(self.window / 2));
                let dearest = cost_of(rules.stages, &CostTerms::prefill(further, len)).0.min(fill.0);
                extra = extra.saturating_add(dearest.saturating_sub(cost));
            }
            time = time.saturating_add((extra >> 16).saturating_mul(u128::from(count)));
            largest = largest.max(top);
        }
        let drain = scaled(largest.saturating_add(rules.ride.0), self.drain_millionths);
        time.saturating_add(drain)
    }

    /// The cost of the last chunk, if it has so many steps.
    pub(super) fn filled(&self, steps: u32) -> u128 {
        let len = steps.saturating_mul(self.rules.grid.align).min(self.end - self.start);
        cost_of(self.rules.stages, &CostTerms::prefill(self.end - len, len)).0
    }

    /// The length of a chunk in a bin, where it was `before` in the bin before, which had less history; 0 = unknown.
    fn chunk(&self, history: u32, before: u32, fill: Attos) -> u32 {
        let (rules, align) = (&self.rules, self.rules.grid.align);
        let mut len = before;
        for _ in 0..3 {
            if len <= align {
                break;
            }
            if cost_of(rules.stages, &CostTerms::prefill(history, len)) <= fill {
                return len;
            }
            len -= align;
        }
        if before > 0 && len <= align {
            return align;
        }
        let most = if before > 0 { len } else { rules.batch_tokens };
        let segment = Segment { start: history, end: history.saturating_add(most) };
        let fits = fitting_chunk(rules.stages, super::Grid { thrifty: false, ..rules.grid }, CostTerms::default(), segment, most, fill);
        (fits / align * align).max(align)
    }

    /// The part of a chunk's cost that does not depend on how prompts are cut.
    fn work(&self, chunk: &CostTerms) -> u128 {
        let work = Work::of_terms(chunk);
        ruling(self.rules.stages, work).map_or(0, |model| work.cost(model).0)
    }
}
