//! How prompts fall into batches under one target: the rules of filling, and the whole layout of a short queue.

use super::{cost_of, longest_chunk};
use crate::cost::{Attos, CostModel, CostTerms};

/// Where chunks may end, and how short they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "an argument of a pure function: nothing will be added")]
pub struct Grid {
    /// Chunks end on a multiple of this many tokens from the start of the sequence, or at the end of what is known. At least 1.
    pub align: u32,
    /// Tokens of a chunk at least, where alignment, budget and the end of the prompt allow it. At least 1.
    pub min: u32,
    /// A chunk that only begins or continues a prompt behind other prompt work in the same batch must do more work than it re-reads (`c4` times
    /// its history); else the rest of the batch stays empty, as another cut costs more than it brings.
    pub thrifty: bool,
}

impl Grid {
    /// Without zeros: they count as one.
    pub(super) fn sane(self) -> Self {
        Self { align: self.align.max(1), min: self.min.max(1), ..self }
    }
}

/// What every batch keeps to.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "an argument of a pure function: nothing will be added")]
pub struct Rules<'a> {
    /// One cost model for each different stage.
    pub stages: &'a [CostModel],
    /// Where chunks end.
    pub grid: Grid,
    /// Tokens of prompts in one batch at most. At least 1.
    pub batch_tokens: u32,
    /// Cost of the decodes that ride along in each batch.
    pub ride: Attos,
}

impl Rules<'_> {
    /// Without zeros: they count as one.
    pub(super) fn sane(self) -> Self {
        Self { grid: self.grid.sane(), batch_tokens: self.batch_tokens.max(1), ..self }
    }
}

/// Known tokens without KV: positions `start..end` of a sequence; none if it ends before it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(clippy::exhaustive_structs, reason = "two positions: nothing will be added")]
pub struct Segment {
    /// Its first position.
    pub start: u32,
    /// One past its last.
    pub end: u32,
}

impl Segment {
    /// Its tokens.
    pub(crate) const fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

/// What batches under one target come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layout {
    /// How many there are.
    pub batches: u32,
    /// The sum of their costs, without the decodes that ride along.
    pub sum: Attos,
    /// The largest of their costs, with the decodes that ride along.
    pub largest: Attos,
    /// Chunks in them.
    pub chunks: u32,
    /// Tokens that did not fit into so many batches, and their causal pairs: 0 if all did.
    pub left_tokens: u64,
    /// See `left_tokens`.
    pub left_pairs: u128,
}

/// Segments that a [`Layout`] looks at, at most.
pub const MAX_SEGMENTS: usize = 64;

/// The longest length up to `tokens` that ends on the grid, or at the end of the segment.
pub(crate) fn align_down(segment: Segment, tokens: u32, align: u32) -> u32 {
    if tokens == segment.len() || align <= 1 {
        return tokens;
    }
    let end = segment.start.saturating_add(tokens) / align * align;
    end.saturating_sub(segment.start)
}

/// The next chunk of a segment, at most `most` tokens of it, in a batch that holds `base` already: predicted, aligned, and 0 if what remains of
/// it is too short. O(stages).
#[must_use]
pub fn fitting_chunk(stages: &[CostModel], grid: Grid, base: CostTerms, segment: Segment, most: u32, target: Attos) -> u32 {
    let len = segment.len();
    let fitting = longest_chunk(stages, base, segment.start, most.min(len), target);
    let aligned = align_down(segment, fitting, grid.align);
    let wasteful = || {
        let chunk = CostTerms::prefill(segment.start, aligned);
        stages.iter().any(|stage| stage.items(&chunk).0 < stage.c4.0.saturating_mul(2 * u128::from(segment.start)))
    };
    let long_enough = aligned >= grid.min || aligned == len;
    if !long_enough || (grid.thrifty && base.pairs > 0 && aligned < len && wasteful()) { 0 } else { aligned }
}

/// The smallest chunk that the grid allows, at most `most` tokens: a batch may consist of it alone, whatever it costs. The budget comes before
/// the least length, and alignment before both where it leaves anything.
#[must_use]
pub fn smallest_chunk(grid: Grid, segment: Segment, most: u32) -> u32 {
    let most = most.min(segment.len());
    let end = (u64::from(segment.start) + u64::from(grid.min)).next_multiple_of(u64::from(grid.align.max(1))).min(u64::from(segment.end));
    let wanted = end.saturating_sub(u64::from(segment.start)) as u32;
    if wanted <= most {
        return wanted;
    }
    let aligned = align_down(segment, most, grid.align);
    if aligned > 0 { aligned } else { most }
}

/// Fills batches with the segments in order, each batch up to `target`, as the scheduler does: the rest of a batch goes to the segments behind.
/// At most [`MAX_SEGMENTS`] segments and `most_batches` batches; the rest is told as left. O(batches + segments), no allocation.
#[must_use]
pub fn lay_out(rules: &Rules<'_>, segments: &[Segment], target: Attos, most_batches: u32) -> Layout {
    lay_out_each(rules, segments, target, most_batches, |_| {})
}

/// [`lay_out`], telling the cost of each batch with the decodes that ride along.
pub(super) fn lay_out_each(
    rules: &Rules<'_>,
    segments: &[Segment],
    target: Attos,
    most_batches: u32,
    mut tell: impl FnMut(Attos),
) -> Layout {
    let rules = &rules.sane();
    let count = segments.len().min(MAX_SEGMENTS);
    let mut rest = [Segment::default(); MAX_SEGMENTS];
    rest[..count].copy_from_slice(&segments[..count]);
    let rest = &mut rest[..count];
    let mut layout = Layout::default();
    let (mut first, mut before) = (skip_empty(rest, 0), None);
    let target = Attos(target.0.saturating_sub(rules.ride.0));
    while first < count && layout.batches < most_batches {
        let (mut terms, mut tokens_left) = (CostTerms::default(), rules.batch_tokens);
        for (index, segment) in rest.iter_mut().enumerate().skip(first) {
            if segment.len() == 0 {
                continue;
            }
            let alone = terms.tokens == 0;
            let mut tokens = match before {
                Some((same, len)) if alone && same == index => shrunk_chunk(rules, *segment, len, tokens_left, target),
                _ => fitting_chunk(rules.stages, rules.grid, terms, *segment, tokens_left, target),
            };
            if tokens == 0 {
                if !alone {
                    break;
                }
                tokens = smallest_chunk(rules.grid, *segment, tokens_left);
            }
            if alone {
                before = Some((index, tokens));
            }
            layout.chunks += 1;
            terms.add(CostTerms::prefill(segment.start, tokens));
            segment.start += tokens;
            tokens_left -= tokens;
            if tokens_left == 0 {
                break;
            }
        }
        let cost = cost_of(rules.stages, &terms).0;
        let whole = Attos(cost.saturating_add(rules.ride.0));
        tell(whole);
        layout.batches += 1;
        layout.sum.0 = layout.sum.0.saturating_add(cost);
        layout.largest = layout.largest.max(whole);
        first = skip_empty(rest, first);
    }
    for segment in &rest[first..] {
        let left = CostTerms::prefill(segment.start, segment.len());
        layout.left_tokens += left.tokens;
        layout.left_pairs += left.pairs;
    }
    layout
}

/// The first segment from `first` on that has tokens.
fn skip_empty(rest: &[Segment], first: usize) -> usize {
    rest.iter().skip(first).take_while(|segment| segment.len() == 0).count() + first
}

/// [`fitting_chunk`] in an empty batch, for the segment whose chunk before had `len` tokens alone in its batch under the same target: with more history it
/// is no longer than that, up to a grid step, and mostly as long.
fn shrunk_chunk(rules: &Rules<'_>, segment: Segment, len: u32, most: u32, target: Attos) -> u32 {
    let (align, whole) = (rules.grid.align, segment.len());
    let longest = len.checked_next_multiple_of(align).unwrap_or(u32::MAX).saturating_add(align - 1).min(most);
    if longest >= whole && cost_of(rules.stages, &CostTerms::prefill(segment.start, whole)) <= target {
        return whole;
    }
    let mut tokens = align_down(segment, longest.min(whole - 1), align);
    for _ in 0..4 {
        if tokens == 0 {
            return 0;
        }
        if cost_of(rules.stages, &CostTerms::prefill(segment.start, tokens)) <= target {
            return if tokens >= rules.grid.min { tokens } else { 0 };
        }
        tokens = align_down(segment, tokens - 1, align);
    }
    fitting_chunk(rules.stages, rules.grid, CostTerms::default(), segment, most.min(tokens), target)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: CostModel = CostModel {
        c0: Attos::from_ns(2000),
        c1: Attos::from_ns(3),
        c2: Attos(4_000_000),
        c3: Attos::ZERO,
        c4: Attos::ZERO,
        c5: Attos::ZERO,
        tile: 0,
        linear_floor: Attos::ZERO,
        prefill_read: Attos::ZERO,
    };

    fn rules(align: u32) -> Rules<'static> {
        Rules { stages: &[COST], grid: Grid { align, min: align, thrifty: false }, batch_tokens: u32::MAX, ride: Attos::ZERO }
    }

    #[test]
    fn work_is_the_same_however_it_is_cut() {
        let segments = [Segment { start: 0, end: 5000 }, Segment { start: 128, end: 700 }];
        let work = segments.map(|s| COST.items(&CostTerms::prefill(s.start, s.end - s.start)).0).iter().sum::<u128>();
        for target in [2001, 4000, 10_000, 50_000, 1_000_000] {
            let target = Attos::from_ns(target);
            let layout = lay_out(&rules(64), &segments, target, u32::MAX);
            assert_eq!(layout.sum.0, work + u128::from(layout.batches) * COST.c0.0);
            assert!(layout.largest <= target || layout.largest == COST.cost(&CostTerms::prefill(4992, 8)).max(layout.largest));
            let first = lay_out(&rules(64), &segments, target, 1);
            let left = COST.c1.0 * u128::from(first.left_tokens) + COST.c2.0 * first.left_pairs;
            assert_eq!(first.sum.0 + left, work + COST.c0.0);
        }
    }

    #[test]
    fn the_chunk_after_another_is_found_without_a_root() {
        for (align, start) in [(64, 0), (64, 17), (1, 0), (1, 5), (100, 30)] {
            for target in [2100, 2600, 3000, 9000, 40_000, 300_000] {
                let (rules, target) = (rules(align), Attos::from_ns(target));
                for end in [9_900, 9_999, 9_984, 9_990, 9_964] {
                    let (mut segment, mut before) = (Segment { start, end }, None);
                    while segment.start < segment.end {
                        let fits = fitting_chunk(rules.stages, rules.grid, CostTerms::default(), segment, 5000, target);
                        if let Some(len) = before {
                            assert_eq!(shrunk_chunk(&rules, segment, len, 5000, target), fits, "{segment:?} {align} {target:?}");
                        }
                        let len = if fits > 0 { fits } else { smallest_chunk(rules.grid, segment, 5000) };
                        segment.start += len;
                        before = Some(len);
                    }
                }
            }
        }
    }

    #[test]
    fn a_larger_target_never_needs_more_batches_of_one_prompt() {
        let segments = [Segment { start: 0, end: 40_000 }];
        let mut before = u32::MAX;
        for target in (3000..300_000).step_by(777) {
            let batches = lay_out(&rules(64), &segments, Attos::from_ns(target), u32::MAX).batches;
            assert!(batches <= before);
            before = batches;
        }
    }

    #[test]
    fn ends_lie_on_the_grid_and_the_smallest_chunk_always_exists() {
        for (start, align, min) in [(0, 64, 64), (16, 64, 64), (48, 64, 64), (5, 24, 1), (5, 1, 7)] {
            let (grid, segment) = (Grid { align, min, thrifty: false }, Segment { start, end: 1000 });
            let smallest = smallest_chunk(grid, segment, 2048);
            assert!(smallest >= min && smallest < min + align && (start + smallest) % align == 0);
            assert_eq!(smallest_chunk(grid, segment, 3), 3.min(smallest));
            let chunk = fitting_chunk(&[COST], grid, CostTerms::default(), segment, 2048, Attos::from_ns(3100));
            assert!(chunk == 0 || (start + chunk) % align == 0);
        }
        assert_eq!(smallest_chunk(Grid { align: 64, min: 64, thrifty: false }, Segment { start: 960, end: 970 }, 2048), 10);
    }
}
