//! Which layers each stage gets.

use std::ops::Range;

use super::config::LlamaConfig;
use super::error::ModelError;

/// How layers are split over stages. Each stage gets at least one, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Split {
    /// As equal in number as can be; the first stages get one more.
    #[default]
    Even,
    /// So that the dearest stage is as cheap as can be, the head counted with the last one. A token's cost is the weights it multiplies with;
    /// of the head only this share in millionths, since few tokens are sampled after (a prompt of 1000 tokens: one).
    Cost {
        /// Millionths of the tokens that are sampled after.
        sampled_millionths: u32,
    },
    /// As given: layers of each stage.
    Layers(Vec<usize>),
}

impl Split {
    /// The layers of each stage. O(layers · log(cost)).
    ///
    /// # Errors
    /// There are fewer layers than stages, or those given are not all.
    pub fn layers(&self, config: &LlamaConfig, stages: usize) -> Result<Vec<Range<usize>>, ModelError> {
        let layers = config.num_layers;
        let error = ModelError::Stages { stages, layers };
        if stages == 0 || stages > layers {
            return Err(error);
        }
        let counts = match self {
            Self::Even => (0..stages).map(|stage| layers / stages + usize::from(stage < layers % stages)).collect(),
            Self::Cost { sampled_millionths } => {
                let head = u128::from(config.head_weights()) * u128::from(*sampled_millionths) / 1_000_000;
                by_cost(layers, stages, config.layer_weights().into(), head)
            }
            Self::Layers(counts) => {
                let sum = counts.iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
                if counts.len() != stages || sum != Some(layers) || counts.contains(&0) {
                    return Err(error);
                }
                counts.clone()
            }
        };
        let mut start = 0;
        let ranges = counts.into_iter().map(|count| {
            start += count;
            start - count..start
        });
        Ok(ranges.collect())
    }
}

/// Layers cost the same, the head comes on top of the last stage: as many layers there as make the dearest stage cheapest, the most of those.
fn by_cost(layers: usize, stages: usize, layer: u128, head: u128) -> Vec<usize> {
    if stages == 1 {
        return vec![layers];
    }
    let dearest = |last: usize| {
        let others = (layers - last).div_ceil(stages - 1) as u128 * layer;
        others.max(last as u128 * layer + head)
    };
    let last = (1..=layers - (stages - 1)).rev().min_by_key(|last| dearest(*last)).unwrap_or(1);
    let rest = layers - last;
    let mut counts: Vec<usize> = (0..stages - 1).map(|stage| rest / (stages - 1) + usize::from(stage < rest % (stages - 1))).collect();
    counts.push(last);
    counts
}

#[cfg(test)]
mod tests {
    use super::{Split, by_cost};
    use crate::model::{ModelError, TinyLlama};

    #[test]
    fn even_split_differs_by_one_at_most_and_covers_all() {
        let config = TinyLlama { num_layers: 7, ..TinyLlama::default() }.config();
        assert_eq!(Split::Even.layers(&config, 3).unwrap(), [0..3, 3..5, 5..7]);
        for stages in 1..=7 {
            let ranges = Split::Even.layers(&config, stages).unwrap();
            assert_eq!(ranges.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
        }
        for stages in [0, 8] {
            assert!(matches!(Split::Even.layers(&config, stages), Err(ModelError::Stages { layers: 7, .. })));
        }
    }

    #[test]
    fn a_dear_head_takes_layers_off_the_last_stage() {
        assert_eq!(by_cost(8, 2, 10, 0), [4, 4]);
        assert_eq!(by_cost(8, 2, 10, 40), [6, 2]);
        assert_eq!(by_cost(8, 2, 10, 1000), [7, 1]);
        assert_eq!(by_cost(30, 4, 10, 20), [8, 8, 8, 6]);
    }

    #[test]
    fn the_dearest_stage_is_as_cheap_as_any_split_makes_it() {
        for layers in 2..9 {
            for head in [0, 5, 13, 30] {
                let counts = by_cost(layers, 2, 10, head);
                let cost = |first: usize| (first as u128 * 10).max((layers - first) as u128 * 10 + head);
                assert_eq!(cost(counts[0]), (1..layers).map(cost).min().unwrap(), "{layers} layers, head {head}");
            }
        }
    }

    #[test]
    fn given_layers_must_be_all() {
        let config = TinyLlama::default().config();
        assert_eq!(Split::Layers(vec![1, 3]).layers(&config, 2).unwrap(), [0..1, 1..4]);
        for wrong in [vec![1, 2], vec![4, 0], vec![4], vec![1, 1, 2]] {
            assert!(matches!(Split::Layers(wrong).layers(&config, 2), Err(ModelError::Stages { .. })));
        }
    }
}
