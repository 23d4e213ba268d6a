//! How engines cut prompts: published rules, in integers.

use cpp_sched::{Attos, CostModel, CostTerms, planner};
use serde::Deserialize;

/// A rule that gives the next chunk of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "rule", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum CutRule {
    /// Chunks of one size.
    Fixed {
        /// Tokens of each.
        tokens: u32,
    },
    /// SGLang's dynamic chunking (`ChunkSizePredictor` in `scheduler_pp_mixin.py`): runtime of a prompt without prefix as `a*l^2 + b*l`; the next chunk
    /// `x` after `L` tokens solves `a*x^2 + (2*a*L + b)*x = a*base^2 + b*base`, is moved towards the base by the smooth factor, is at least a
    /// quarter of the base, and ends on a multiple of 64 tokens of its own. The first chunk is the base.
    Sglang {
        /// The first chunk (`chunked_prefill_size`).
        base: u32,
        /// The smooth factor, in percent: 100 = as solved, 0 = the base.
        smooth_percent: u32,
    },
    /// ROCm/ATOM's: the largest chunk that costs no more than the base does without a prefix, ending on a multiple of `align` tokens of its own.
    /// Without smoothing and floor.
    EqualCost {
        /// The first chunk.
        base: u32,
        /// Multiple of tokens.
        align: u32,
    },
}

impl CutRule {
    pub(super) const fn is_valid(self) -> bool {
        match self {
            Self::Fixed { tokens } => tokens >= 64,
            Self::Sglang { base, smooth_percent } => base >= 64 && smooth_percent <= 100,
            Self::EqualCost { base, align } => base >= 64 && align >= 1,
        }
    }

    /// The chunks of a prompt, if batches cost so much on a stage. They sum to the prompt.
    ///
    /// ```
    /// use cpp_exec_mock::profile::CutRule;
    /// use cpp_sched::CostModel;
    /// let chunks = CutRule::Fixed { tokens: 4096 }.cut(10_000, &CostModel::default());
    /// assert_eq!(chunks, [4096, 4096, 1808]);
    /// ```
    #[must_use]
    pub fn cut(self, prompt: u32, cost: &CostModel) -> Vec<u32> {
        let (mut chunks, mut done) = (Vec::new(), 0);
        while done < prompt {
            let left = prompt - done;
            let chunk = match self {
                Self::Fixed { tokens } => tokens,
                Self::Sglang { base, .. } | Self::EqualCost { base, .. } if done == 0 => base,
                Self::Sglang { base, smooth_percent } => sglang(base, smooth_percent, done, cost),
                Self::EqualCost { base, align } => {
                    let target = Attos(cost.c0.0 + cost.items(&CostTerms::prefill(0, base)).0);
                    let fits = planner::longest_chunk(&[*cost], CostTerms::default(), done, base.min(left), target);
                    if fits == left { left } else { (fits / align * align).max(align) }
                }
            }
            .clamp(1, left);
            chunks.push(chunk);
            done += chunk;
        }
        chunks
    }
}

fn sglang(base: u32, smooth_percent: u32, done: u32, cost: &CostModel) -> u32 {
    // The cost of a prompt without prefix: c2*l*(l+1)/2 + c1*l.
    let a = cost.c2.0 as f64 / 2.0;
    let b = cost.c1.0 as f64 + a;
    let (base_tokens, done) = (f64::from(base), f64::from(done));
    let target = a * base_tokens * base_tokens + b * base_tokens;
    let slope = 2.0 * a * done + b;
    let solved = if a > 0.0 { ((slope * slope + 4.0 * a * target).sqrt() - slope) / (2.0 * a) } else { base_tokens };
    let smoothed = base_tokens + f64::from(smooth_percent) / 100.0 * (solved - base_tokens);
    ((smoothed as u32).max(base / 4) / 64 * 64).max(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(c0: u64, c1: f64, c2: f64, c4: f64) -> CostModel {
        let attos = |ns: f64| Attos((ns * 1e9).round() as u128);
        let mut cost = CostModel::default();
        (cost.c0, cost.c1, cost.c2, cost.c4) = (Attos::from_ns(c0), attos(c1), attos(c2), attos(c4));
        cost
    }

    /// Values computed by hand from the published formula: a = 1e-6, b = 0.02 (ms), base 4096.
    #[test]
    fn sglang_gives_the_published_formulas_sizes() {
        // a = c2 / 2 and b = c1 + c2 / 2, in nanoseconds.
        let cost = cost(0, 19_999.0, 2.0, 0.0);
        for (done, strict, smooth) in [(4096, 3136, 3328), (16_384, 1792, 2368), (65_536, 1024, 1472), (131_072, 1024, 1280)] {
            assert_eq!(sglang(4096, 100, done, &cost), strict, "after {done}");
            assert_eq!(sglang(4096, 75, done, &cost), smooth, "after {done}, smoothed");
        }
        assert_eq!(sglang(4096, 0, 1 << 20, &cost), 4096);
    }

    /// The sizes that the ATOM guide names: 16192 and 12416 after a first chunk of 32768, 13 in all.
    #[test]
    fn equal_cost_gives_the_published_chunks() {
        let cost = cost(26_100_000, 6029.675, 0.65, 539.0);
        let chunks = CutRule::EqualCost { base: 32_768, align: 64 }.cut(131_072, &cost);
        assert_eq!((chunks.len(), &chunks[..3]), (13, &[32_768, 16_192, 12_416][..]));
        assert_eq!(chunks.iter().sum::<u32>(), 131_072);
    }

    #[test]
    fn every_rule_covers_the_prompt() {
        let cost = cost(1000, 10.0, 0.001, 0.5);
        for rule in [
            CutRule::Fixed { tokens: 64 },
            CutRule::Sglang { base: 64, smooth_percent: 100 },
            CutRule::Sglang { base: 9000, smooth_percent: 65 },
            CutRule::EqualCost { base: 5000, align: 256 },
        ] {
            for prompt in [1, 63, 64, 65, 4999, 77_777] {
                let chunks = rule.cut(prompt, &cost);
                assert_eq!(chunks.iter().sum::<u32>(), prompt, "{rule:?}");
                assert!(chunks.iter().all(|&chunk| chunk > 0));
            }
        }
    }
}
