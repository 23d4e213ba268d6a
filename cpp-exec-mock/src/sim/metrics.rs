//! Samples of durations, and their mean and percentiles.
//!
//! Percentiles are linear between order statistics, numpy's default: the q-quantile of n samples lies at rank q·(n-1) from 0. Up to
//! [`Samples::EXACT`] samples are kept and the answer is exact; more go into a logarithmic histogram of 256 classes per octave, whose middles are
//! less than 0.2 % off. Count, mean and maximum are always exact.

/// A growing collection of whole nanoseconds. 8 bytes a sample up to a million, then about 120 KiB in all.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    exact: Vec<u64>,
    classes: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

/// Bits of the class within an octave.
const CLASS_BITS: u32 = 8;

impl Samples {
    /// Samples up to which percentiles are exact.
    pub const EXACT: usize = 1_000_000;

    /// Adds one. Amortised O(1).
    pub fn push(&mut self, value: u64) {
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
        if self.classes.is_empty() {
            if self.exact.len() < Self::EXACT {
                return self.exact.push(value);
            }
            self.classes = vec![0; class_of(u64::MAX) + 1];
            for value in std::mem::take(&mut self.exact) {
                self.classes[class_of(value)] += 1;
            }
        }
        self.classes[class_of(value)] += 1;
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Mean and percentiles. O(n log n) while exact.
    #[must_use]
    pub fn distribution(mut self) -> Distribution {
        self.exact.sort_unstable();
        #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
        let mean = (self.count > 0).then(|| self.sum as f64 / self.count as f64);
        Distribution {
            count: self.count,
            mean,
            p50: self.percentile(50),
            p90: self.percentile(90),
            p99: self.percentile(99),
            max: (self.count > 0).then_some(self.max),
        }
    }

    /// The `percent`-th percentile; the samples kept must be sorted.
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    fn percentile(&self, percent: u64) -> Option<f64> {
        let last = self.count.checked_sub(1)?;
        let rank = u128::from(last) * u128::from(percent);
        let (below, part) = ((rank / 100) as u64, (rank % 100) as f64 / 100.0);
        let (low, high) = self.ranked(below, last);
        Some(low as f64 + (high as f64 - low as f64) * part)
    }

    /// The samples of rank `rank` and `rank + 1` (at most `last`), counted from 0.
    fn ranked(&self, rank: u64, last: u64) -> (u64, u64) {
        let next = (rank + 1).min(last);
        if self.classes.is_empty() {
            return (self.exact[rank as usize], self.exact[next as usize]);
        }
        let (mut seen, mut low) = (0, None);
        for (class, &count) in self.classes.iter().enumerate() {
            seen += count;
            if low.is_none() && seen > rank {
                low = Some(middle_of(class).min(self.max));
            }
            if let Some(low) = low
                && seen > next
            {
                return (low, middle_of(class).min(self.max));
            }
        }
        (self.max, self.max)
    }
}

/// The class of a value: itself below 2^8, else its exponent and the 8 bits after the leading one.
const fn class_of(value: u64) -> usize {
    if value < 1 << CLASS_BITS {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - CLASS_BITS;
    ((shift as usize) << CLASS_BITS) + (value >> shift) as usize
}

/// The middle of a class.
const fn middle_of(class: usize) -> u64 {
    if class < 1 << CLASS_BITS {
        return class as u64;
    }
    let shift = (class >> CLASS_BITS) as u32 - 1;
    let low = ((class as u64 & ((1 << CLASS_BITS) - 1)) | 1 << CLASS_BITS) << shift;
    low + ((1u64 << shift) >> 1)
}

/// Mean and percentiles of durations in nanoseconds; `None` without samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Samples.
    pub count: u64,
    /// Sum / count.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Largest.
    pub max: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    fn of(values: &[u64]) -> Distribution {
        let mut samples = Samples::default();
        values.iter().for_each(|&v| samples.push(v));
        samples.distribution()
    }

    #[test]
    fn linear_between_order_statistics() {
        // numpy.percentile([1, 2, 3, 4], [50, 90, 99]) = 2.5, 3.7, 3.97
        let d = of(&[4, 1, 3, 2]);
        assert_eq!((d.count, d.mean, d.p50, d.max), (4, Some(2.5), Some(2.5), Some(4)));
        assert!((d.p90.unwrap() - 3.7).abs() < 1e-12 && (d.p99.unwrap() - 3.97).abs() < 1e-12);
        assert_eq!(of(&[7]).p99, Some(7.0));
        assert_eq!(of(&[]), Distribution::default());
    }

    #[test]
    fn classes_tile_all_values_and_are_narrow() {
        let mut last = 0;
        for value in 0..70_000 {
            let class = class_of(value);
            assert!(class == last || class == last + 1, "{value}");
            last = class;
        }
        let powers = (16..64).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + (1 << (e - 9))]);
        for value in (0..70_000u64).chain(powers).chain([u64::MAX]) {
            let middle = middle_of(class_of(value));
            assert_eq!(class_of(middle), class_of(value), "{value}");
            assert!(middle.abs_diff(value) <= value / 512 + 1, "{value} stands for {middle}");
        }
    }

    #[test]
    fn above_a_million_within_half_a_percent() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(9);
        let n = Samples::EXACT + 100_000;
        // Over eight orders of magnitude.
        let mut values: Vec<u64> = (0..n).map(|_| 2f64.powf(rng.random_range(3.0..30.0)) as u64).collect();
        let mut samples = Samples::default();
        values.iter().for_each(|&v| samples.push(v));
        let d = samples.distribution();
        values.sort_unstable();
        for (percent, estimate) in [(50, d.p50), (90, d.p90), (99, d.p99)] {
            let h = (n - 1) as f64 * f64::from(percent) / 100.0;
            let (low, high) = (values[h as usize] as f64, values[h as usize + 1] as f64);
            let exact = low + (high - low) * h.fract();
            assert!((estimate.unwrap() / exact - 1.0).abs() < 0.005, "p{percent}: {estimate:?} for {exact}");
        }
        assert_eq!((d.count, d.max), (n as u64, values.last().copied()));
        let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n as f64;
        assert!((d.mean.unwrap() / mean - 1.0).abs() < 1e-9);
    }
}
