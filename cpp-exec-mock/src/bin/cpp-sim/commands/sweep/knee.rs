//! The heaviest load that meets an SLO.

use super::store::Row;
use crate::failure::Failure;

/// What is varied, between which values, and what must hold.
#[derive(Clone, Debug)]
pub(super) struct Knee {
    pub(super) option: String,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) attain: f64,
    within: f64,
}

impl Knee {
    pub(super) fn parse(text: &str, attain: f64, within: f64) -> Result<Self, Failure> {
        let wrong = || Failure::Usage(format!("--knee {text}: must be OPTION=LOW..HIGH with 0 < LOW < HIGH"));
        let (option, range) = text.split_once('=').ok_or_else(wrong)?;
        let (low, high) = range.split_once("..").ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
        let (low, high) = number(low).zip(number(high)).filter(|(low, high)| low < high && !option.is_empty()).ok_or_else(wrong)?;
        Ok(Self { option: option.to_owned(), low, high, attain, within })
    }

    fn meets(&self, row: &Row) -> bool {
        row.within_slo() >= self.attain
    }

    /// The run at the knee: of two values that are close enough, one meets the SLO and the other, with more load, does not; the first. If both ends
    /// meet it, the run at the high end; if neither does, the one that comes nearer, which the caller tells by its own numbers.
    ///
    /// A bisection by ratios: it takes the SLO to be met on one side of the knee and missed on the other.
    pub(super) fn find(&self, mut run: impl FnMut(f64) -> Result<Row, Failure>) -> Result<Row, Failure> {
        let (at_low, at_high) = (run(self.low)?, run(self.high)?);
        let (mut good, mut good_row, mut bad) = match (self.meets(&at_low), self.meets(&at_high)) {
            (true, true) => return Ok(at_high),
            (false, false) => return Ok(if at_low.within_slo() >= at_high.within_slo() { at_low } else { at_high }),
            (true, false) => (self.low, at_low, self.high),
            (false, true) => (self.high, at_high, self.low),
        };
        while (good / bad).max(bad / good) > self.within {
            // Four digits are enough for a name of the run, as long as they make progress.
            let exact = (good * bad).sqrt();
            let digits = 10f64.powi(3 - exact.log10().floor() as i32);
            let rounded = (exact * digits).round() / digits;
            let middle = if rounded > good.min(bad) && rounded < good.max(bad) { rounded } else { exact };
            let row = run(middle)?;
            if self.meets(&row) {
                (good, good_row) = (middle, row);
            } else {
                bad = middle;
            }
        }
        Ok(good_row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, meets: impl Fn(f64) -> bool) -> (String, usize) {
        let knee = Knee::parse(text, 0.9, 1.02).unwrap();
        let mut runs = 0;
        let row = knee.find(|value| {
            runs += 1;
            Ok(Row::sample(&value.to_string(), if meets(value) { 0.95 } else { 0.5 }))
        });
        (row.unwrap().command().to_owned(), runs)
    }

    #[test]
    fn the_knee_is_between_a_run_that_meets_and_one_that_does_not() {
        let (at, runs) = find("rate=0.5..50", |rate| rate <= 7.3);
        let at: f64 = at.parse().unwrap();
        assert!(at <= 7.3 && at * 1.02 >= 7.3, "{at}");
        assert!(runs <= 12, "{runs}");
        // More load by smaller values.
        let at: f64 = find("time-scale=0.01..4", |scale| scale >= 0.2).0.parse().unwrap();
        assert!((0.2..=0.2 * 1.02).contains(&at), "{at}");
        assert_eq!(find("rate=1..2", |_| true), ("2".to_owned(), 2));
        assert_eq!(find("rate=1..2", |_| false).1, 2);
    }

    #[test]
    fn ranges_are_checked() {
        for wrong in ["rate", "rate=1", "rate=0..2", "rate=3..2", "=1..2", "rate=1..x"] {
            assert!(Knee::parse(wrong, 0.9, 1.02).is_err(), "{wrong}");
        }
    }
}
