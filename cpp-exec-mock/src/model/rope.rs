//! Rotary position embedding: which angle each pair of a head turns by per position.
//!
//! Pair `j` of a head of `d` dimensions is (`j`, `j + d/2`), as in the weights of Hugging Face. Its frequency without scaling is
//! `theta^(-2j/d)` (Su et al., RoFormer). The scalings stretch the low frequencies so that a model reads further than it was trained for.

use std::f64::consts::PI;

use super::error::ModelError;
use super::fields::Fields;

/// How positions turn the heads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// The base of the frequencies.
    pub theta: f64,
    /// What is done to them.
    pub scaling: RopeScaling,
}

/// What is done to the frequencies.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Nothing.
    None,
    /// All divided by a factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Long waves divided by a factor, short ones left, those between interpolated (Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Waves longer than the original length over this are long.
        low_freq_factor: f64,
        /// Waves shorter than the original length over this are short.
        high_freq_factor: f64,
        /// Positions that the model was first trained for.
        original_max_position: f64,
    },
    /// As Llama 3 with a ramp over dimensions, and attention sharpened (Peng et al., YaRN).
    Yarn {
        /// The factor.
        factor: f64,
        /// Turns over the original length above which nothing is scaled.
        beta_fast: f64,
        /// Turns over the original length below which all is scaled.
        beta_slow: f64,
        /// What sine and cosine are multiplied with.
        attention_factor: f64,
        /// Positions that the model was first trained for.
        original_max_position: f64,
        /// Whether the ends of the ramp are whole dimensions.
        truncate: bool,
    },
}

impl Rope {
    /// Reads `rope_theta`, and `rope_scaling` or (in newer files) `rope_parameters`.
    pub(super) fn parse(config: &Fields<'_>, max_position: usize) -> Result<Self, ModelError> {
        let scaling = match config.inner("rope_scaling")? {
            Some(scaling) => Some(scaling),
            None => config.inner("rope_parameters")?,
        };
        let inner_theta = scaling.as_ref().map(|scaling| scaling.number("rope_theta")).transpose()?.flatten();
        let theta = match inner_theta {
            Some(theta) => theta,
            None => config.number("rope_theta")?.unwrap_or(10_000.0),
        };
        let scaling = scaling.map_or(Ok(RopeScaling::None), |scaling| RopeScaling::parse(&scaling, max_position))?;
        Ok(Self { theta, scaling })
    }

    /// The angle per position of each pair of a head, and the factor for sine and cosine. O(`head_dim`).
    #[must_use]
    pub fn frequencies(&self, head_dim: usize) -> (Vec<f64>, f64) {
        let dim = head_dim as f64;
        let plain = (0..head_dim / 2).map(|pair| libm::pow(self.theta, -2.0 * pair as f64 / dim));
        match self.scaling {
            RopeScaling::None => (plain.collect(), 1.0),
            RopeScaling::Linear { factor } => (plain.map(|frequency| frequency / factor).collect(), 1.0),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
                let scaled = plain.map(|frequency| {
                    // Waves over the original length: the share that stays as it is.
                    let waves = original_max_position * frequency / (2.0 * PI);
                    let keep = ((waves - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                    keep * frequency + (1.0 - keep) * frequency / factor
                });
                (scaled.collect(), 1.0)
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, original_max_position, truncate } => {
                // The dimension whose wave turns so often over the original length.
                let dimension = |turns: f64| dim * libm::log(original_max_position / (turns * 2.0 * PI)) / (2.0 * libm::log(self.theta));
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if high <= low {
                    high = low + 0.001;
                }
                let scaled = plain.enumerate().map(|(pair, frequency)| {
                    let scale = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    scale * frequency / factor + (1.0 - scale) * frequency
                });
                (scaled.collect(), attention_factor)
            }
        }
    }
}

impl RopeScaling {
    fn parse(fields: &Fields<'_>, max_position: usize) -> Result<Self, ModelError> {
        let kind = match fields.text("rope_type")? {
            Some(kind) => kind,
            None => fields.text("type")?.unwrap_or("default"),
        };
        let original = || Ok(fields.size("original_max_position_embeddings")?.unwrap_or(max_position) as f64);
        match kind {
            "default" => Ok(Self::None),
            "linear" => Ok(Self::Linear { factor: fields.need_number("factor")? }),
            "llama3" => {
                let low_freq_factor = fields.need_number("low_freq_factor")?;
                let high_freq_factor = fields.need_number("high_freq_factor")?;
                if high_freq_factor <= low_freq_factor {
                    return Err(fields.error("high_freq_factor", "must be above low_freq_factor"));
                }
                let factor = fields.need_number("factor")?;
                Ok(Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position: original()? })
            }
            "yarn" => {
                let factor = fields.need_number("factor")?;
                let softening = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * libm::log(factor) + 1.0 };
                let attention_factor =
                    match (fields.number("attention_factor")?, fields.number("mscale")?, fields.number("mscale_all_dim")?) {
                        (Some(given), _, _) => given,
                        (None, Some(one), Some(all)) => softening(one) / softening(all),
                        _ => softening(1.0),
                    };
                Ok(Self::Yarn {
                    factor,
                    beta_fast: fields.number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: fields.number("beta_slow")?.unwrap_or(1.0),
                    attention_factor,
                    original_max_position: original()?,
                    truncate: fields.flag("truncate", true)?,
                })
            }
            other => Err(fields.error("rope_type", format!("is {other}: default, linear, llama3 and yarn are known"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rope, RopeScaling};

    fn frequencies(scaling: RopeScaling) -> Vec<f64> {
        Rope { theta: 10_000.0, scaling }.frequencies(64).0
    }

    #[test]
    fn plain_frequencies_fall_from_one_by_a_constant_ratio() {
        let plain = frequencies(RopeScaling::None);
        assert_eq!((plain.len(), plain[0]), (32, 1.0));
        for pair in plain.windows(2) {
            assert!((pair[1] / pair[0] - 10_000f64.powf(-2.0 / 64.0)).abs() < 1e-12);
        }
    }

    #[test]
    fn linear_scaling_divides_all() {
        let (plain, linear) = (frequencies(RopeScaling::None), frequencies(RopeScaling::Linear { factor: 4.0 }));
        assert!(plain.iter().zip(&linear).all(|(plain, linear)| plain / 4.0 == *linear));
    }

    #[test]
    fn llama3_leaves_short_waves_and_divides_long_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 1024.0 };
        let (plain, scaled) = (frequencies(RopeScaling::None), frequencies(scaling));
        for (plain, scaled) in plain.iter().zip(&scaled) {
            let wave = 2.0 * std::f64::consts::PI / plain;
            match wave {
                _ if wave < 256.0 => assert_eq!(scaled, plain),
                _ if wave > 1024.0 => assert!((scaled - plain / 8.0).abs() < 1e-15),
                _ => assert!(*scaled < *plain && *scaled > plain / 8.0),
            }
        }
    }

    #[test]
    fn yarn_goes_from_left_alone_to_divided_and_sharpens() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.1,
            original_max_position: 2048.0,
            truncate: true,
        };
        let (scaled, attention) = Rope { theta: 10_000.0, scaling }.frequencies(64);
        let plain = frequencies(RopeScaling::None);
        assert_eq!((scaled[0], attention), (1.0, 1.1));
        assert!((scaled[31] - plain[31] / 4.0).abs() < 1e-12);
        let ratios: Vec<f64> = plain.iter().zip(&scaled).map(|(plain, scaled)| plain / scaled).collect();
        assert!(ratios.is_sorted_by(|a, b| *a <= *b + 1e-12), "{ratios:?}");
    }
}
