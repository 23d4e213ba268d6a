//! Decimal numbers, exactly: times in traces and the factor of `--time-scale`.

use std::fmt;
use std::str::FromStr;

use cpp_sched::Attos;

use super::WorkloadError;

/// The latest arrival that a workload may have: 2^63 - 1 ns, about 292 years.
pub(super) const MAX_ARRIVAL_NS: u64 = i64::MAX as u64;

/// A decimal number of 0 or more in billionths, further digits rounded; `None` if it is none or above 1e20.
///
/// The kernel's parser of nanoseconds to 1e-9 does exactly this, whatever the unit.
fn billionths(text: &str) -> Option<u128> {
    text.trim().parse::<Attos>().ok().map(|value| value.0)
}

/// Seconds to nanoseconds.
pub(super) fn seconds(text: &str) -> Option<u64> {
    u64::try_from(billionths(text)?).ok().filter(|&ns| ns <= MAX_ARRIVAL_NS)
}

/// Milliseconds to nanoseconds, halves up.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let ns = (billionths(text)? + 500) / 1000;
    u64::try_from(ns).ok().filter(|&ns| ns <= MAX_ARRIVAL_NS)
}

/// A time with a unit (s, ms, us or ns; none is seconds) in nanoseconds, halves up; `None` if it is none, or beyond 2^63 - 1 ns.
///
/// ```
/// use cpp_exec_mock::workload::parse_duration;
/// assert_eq!(["1.5ms", "2"].map(parse_duration), [Some(1_500_000), Some(2_000_000_000)]);
/// ```
#[must_use]
pub fn parse_duration(text: &str) -> Option<u64> {
    let text = text.trim();
    let units = [("ns", 1u128), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    let (number, unit) = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, 1_000_000_000));
    let ns = (billionths(number)?.checked_mul(unit)? + 500_000_000) / 1_000_000_000;
    u64::try_from(ns).ok().filter(|&ns| ns <= MAX_ARRIVAL_NS)
}

/// A number of 0 or more in thousandths, halves up.
pub(crate) fn decimal_thousandths(text: &str) -> Option<u32> {
    u32::try_from((billionths(text)? + 500_000) / 1_000_000).ok()
}

/// A factor for arrival times, exact to 1e-9.
///
/// ```
/// use cpp_exec_mock::workload::TimeScale;
/// let half: TimeScale = "0.5".parse()?;
/// assert_eq!(half.apply(7), Some(4));
/// assert_eq!(TimeScale::ONE.apply(7), Some(7));
/// # Ok::<(), cpp_exec_mock::workload::WorkloadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeScale {
    billionths: u128,
}

impl TimeScale {
    /// Times stay as they are.
    pub const ONE: Self = Self { billionths: 1_000_000_000 };

    /// `ns` times the factor, rounded to the nearest nanosecond (halves up); `None` beyond `i64::MAX`.
    #[must_use]
    pub fn apply(self, ns: u64) -> Option<u64> {
        let product = u128::from(ns).checked_mul(self.billionths)?;
        let scaled = product.checked_add(500_000_000)? / 1_000_000_000;
        u64::try_from(scaled).ok().filter(|&ns| ns <= MAX_ARRIVAL_NS)
    }
}

impl Default for TimeScale {
    fn default() -> Self {
        Self::ONE
    }
}

impl FromStr for TimeScale {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let problem = || WorkloadError::Parameter {
            name: "time-scale",
            problem: format!("`{text}` is not a decimal number of 0 or more, such as 0.5 (twice as fast)"),
        };
        billionths(text).map(|billionths| Self { billionths }).ok_or_else(problem)
    }
}

impl fmt::Display for TimeScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.billionths / 1_000_000_000, self.billionths % 1_000_000_000);
        if rest == 0 { write!(f, "{whole}") } else { write!(f, "{whole}.{}", format!("{rest:09}").trim_end_matches('0')) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(seconds("46.6805900"), Some(46_680_590_000));
        assert_eq!(seconds("19440110.0"), Some(19_440_110_000_000_000));
        assert_eq!(seconds("9223372036.854775807"), Some(MAX_ARRIVAL_NS));
        assert_eq!(seconds("9223372036.854775808"), None);
        assert_eq!(milliseconds("3000"), Some(3_000_000_000));
        assert_eq!(milliseconds("0.0000005"), Some(1));
        assert_eq!(
            ["2s", "1.5ms", "20 us", "7ns", "0.25"].map(parse_duration),
            [2_000_000_000, 1_500_000, 20_000, 7, 250_000_000].map(Some)
        );
        assert_eq!(["", "s", "1h", "-1s"].map(parse_duration), [None; 4]);
        assert_eq!(["2.5", "1.0005", "x"].map(decimal_thousandths), [Some(2500), Some(1001), None]);
        for wrong in ["", "-1", "1,5", "nan", "1s"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn scales_multiply_and_round() {
        let scale = |text: &str| text.parse::<TimeScale>().unwrap();
        assert_eq!(scale("0.333333333").apply(3_000_000_000), Some(999_999_999));
        assert_eq!(scale("1e-3").apply(1_499), Some(1));
        assert_eq!(scale("1e-3").apply(1_500), Some(2));
        assert_eq!(scale("0").apply(MAX_ARRIVAL_NS), Some(0));
        assert_eq!(scale("2").apply(MAX_ARRIVAL_NS), None);
        assert_eq!(scale("1e20").apply(u64::MAX), None);
        assert_eq!(scale("0.250").to_string(), "0.25");
        assert_eq!(scale("12").to_string(), "12");
        assert_eq!("-1".parse::<TimeScale>().unwrap_err().to_string().split(':').next(), Some("time-scale"));
    }
}
