//! From logits to a token.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use cpp_sched::TokenId;

/// How a request's tokens are chosen.
///
/// A choice depends on the logits, the seed and the position alone: computed again after a preemption or a loss, in another batch, or behind
/// drafts that were right, the token is the same.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(clippy::exhaustive_structs, reason = "made by struct update from its default")]
pub struct Sampling {
    /// What logits are divided by; 0 = always the most likely token. Default 0.
    pub temperature: f32,
    /// Only so many of the most likely tokens; 0 = all. Default 0.
    pub top_k: u32,
    /// Only the most likely tokens that together have this probability. Default 1.
    pub top_p: f32,
    /// What chance is drawn from.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

impl Sampling {
    /// The token at `position`. Equal logits go to the smaller token. O(vocabulary), with a temperature O(vocabulary · log(vocabulary)).
    #[must_use]
    pub fn choose(&self, logits: &[f32], position: u32) -> TokenId {
        if self.temperature.is_nan() || self.temperature <= 0.0 {
            return greedy(logits);
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        if self.top_k > 0 {
            order.truncate(self.top_k as usize);
        }
        let Some(&best) = order.first() else { return 0 };
        let weight = |token: usize| libm::exp((f64::from(logits[token]) - f64::from(logits[best])) / f64::from(self.temperature));
        let mut weights: Vec<f64> = order.iter().map(|&token| weight(token)).collect();
        let total: f64 = weights.iter().sum();
        let wanted = total * f64::from(self.top_p.clamp(0.0, 1.0));
        let mut sum = 0.0;
        let kept = weights.iter().position(|weight| {
            sum += weight;
            sum >= wanted
        });
        weights.truncate(kept.map_or(weights.len(), |last| last + 1));

        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(position.into());
        let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = uniform * weights.iter().sum::<f64>();
        let drawn = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        order[drawn.unwrap_or(weights.len() - 1)] as TokenId
    }
}

fn greedy(logits: &[f32]) -> TokenId {
    let best =
        logits.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (token, &logit)| if logit > best.1 { (token, logit) } else { best });
    best.0 as TokenId
}

#[cfg(test)]
mod tests {
    use super::Sampling;

    const LOGITS: [f32; 5] = [1.0, 3.0, 3.0, -2.0, 2.0];

    /// How often each token comes, over many positions.
    fn counts(sampling: Sampling) -> [u32; 5] {
        let mut counts = [0; 5];
        for position in 0..20_000 {
            counts[sampling.choose(&LOGITS, position) as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_best() {
        assert_eq!(Sampling::default().choose(&LOGITS, 9), 1);
        assert_eq!(Sampling { temperature: f32::NAN, ..Sampling::default() }.choose(&LOGITS, 9), 1);
        assert_eq!(Sampling { temperature: 1.0, top_k: 1, ..Sampling::default() }.choose(&LOGITS, 9), 1);
    }

    #[test]
    fn tokens_come_as_often_as_their_probability_says() {
        let sampling = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
        let weights = LOGITS.map(|logit| f64::from(logit).exp());
        let total: f64 = weights.iter().sum();
        for (count, weight) in counts(sampling).into_iter().zip(weights) {
            let (expected, spread) = (20_000.0 * weight / total, (20_000.0 * weight / total).sqrt());
            assert!((f64::from(count) - expected).abs() < 5.0 * spread + 1.0, "{count} times, not {expected}");
        }
    }

    #[test]
    fn a_high_temperature_flattens_and_a_low_one_sharpens() {
        let at = |temperature| counts(Sampling { temperature, ..Sampling::default() });
        assert!(at(10.0)[3] > 2_000 && at(0.2)[3] == 0 && at(0.2)[4] < 300);
    }

    #[test]
    fn top_k_and_top_p_cut_the_unlikely_off() {
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let top_k = counts(Sampling { top_k: 2, ..sampling });
        assert_eq!((top_k[0], top_k[3], top_k[4]), (0, 0, 0));
        assert!(top_k[1] > 9_000 && top_k[2] > 9_000);
        // 1 and 2 have 0.82 of the probability together, with 4 it is 0.97.
        let top_p = counts(Sampling { top_p: 0.9, ..sampling });
        assert!(top_p[4] > 0 && top_p[0] == 0 && top_p[3] == 0);
        assert_eq!(counts(Sampling { top_p: 0.0, ..sampling })[1], 20_000);
    }

    #[test]
    fn chance_hangs_on_seed_and_position_alone() {
        let sampling = |seed| Sampling { temperature: 5.0, seed, ..Sampling::default() };
        let tokens = |seed| (0..50).map(|position| sampling(seed).choose(&LOGITS, position)).collect::<Vec<_>>();
        assert_eq!(tokens(1), tokens(1));
        assert_ne!(tokens(1), tokens(2));
    }
}
