//! The heaviest load that meets an SLO.

use std::fmt;

use super::store::Row;
use crate::failure::Failure;

/// Of a steady load so large a part ends while it goes on.
const STEADY: f64 = 0.9;

/// Where the knee is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// Here.
    At(f64),
    /// Here or beyond, as the sign says: the end of the range with the most load meets the SLO.
    Beyond(&'static str, f64),
    /// No load of the range meets the SLO.
    Nowhere,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(value) => value.fmt(f),
            Self::Beyond(sign, value) => write!(f, "{sign}{value}"),
            Self::Nowhere => f.write_str("none"),
        }
    }
}

/// The run at the knee, and where that is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) row: Row,
    pub(super) value: Value,
}

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

    /// What a value of the table says, where that needs words.
    pub(super) fn notes(&self, found: &[&Value]) -> Vec<String> {
        let mut notes = Vec::new();
        if found.iter().any(|value| matches!(value, Value::Beyond(..))) {
            notes.push(format!(
                "at least: >= or <= an end of the range, which meets the SLO still; give --knee {} a wider range",
                self.option
            ));
        }
        if found.contains(&&Value::Nowhere) {
            notes.push(format!("none: no load from {} to {} meets the SLO; the row is of the end that comes nearer", self.low, self.high));
        }
        notes
    }

    /// Whether the run at a knee was over before its load was steady: far fewer requests ended a second than came. A short run meets an SLO under a
    /// load that no long one does.
    pub(super) fn is_unsteady(&self, value: &Value, row: &Row) -> bool {
        let (Value::At(rate) | Value::Beyond(_, rate)) = value else { return false };
        self.option.trim_start_matches('-') == "rate" && row.load() < rate * STEADY
    }

    fn meets(&self, row: &Row) -> bool {
        row.within_slo() >= self.attain
    }

    /// The run at the knee: of two values that are close enough, one meets the SLO and the other, with more load, does not; the first. If both ends
    /// meet it, the run at the end with more load; if neither does, the one that comes nearer.
    ///
    /// A bisection by ratios: it takes the SLO to be met on one side of the knee and missed on the other.
    pub(super) fn find(&self, mut run: impl FnMut(f64) -> Result<Row, Failure>) -> Result<Found, Failure> {
        let (at_low, at_high) = (run(self.low)?, run(self.high)?);
        let (mut good, mut row, mut bad) = match (self.meets(&at_low), self.meets(&at_high)) {
            // Which way the load grows, the runs tell.
            (true, true) if at_low.load() > at_high.load() => return Ok(Found { row: at_low, value: Value::Beyond("<=", self.low) }),
            (true, true) => return Ok(Found { row: at_high, value: Value::Beyond(">=", self.high) }),
            (false, false) => {
                let row = if at_low.within_slo() >= at_high.within_slo() { at_low } else { at_high };
                return Ok(Found { row, value: Value::Nowhere });
            }
            (true, false) => (self.low, at_low, self.high),
            (false, true) => (self.high, at_high, self.low),
        };
        while (good / bad).max(bad / good) > self.within {
            // Four digits are enough for a name of the run, as long as they make progress.
            let exact = (good * bad).sqrt();
            let digits = 10f64.powi(3 - exact.log10().floor() as i32);
            let rounded = (exact * digits).round() / digits;
            let middle = if rounded > good.min(bad) && rounded < good.max(bad) { rounded } else { exact };
            let there = run(middle)?;
            if self.meets(&there) {
                (good, row) = (middle, there);
            } else {
                bad = middle;
            }
        }
        Ok(Found { row, value: Value::At(good) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str, load: impl Fn(f64) -> f64, meets: impl Fn(f64) -> bool) -> (Value, usize) {
        let knee = Knee::parse(text, 0.9, 1.02).unwrap();
        let mut runs = 0;
        let found = knee.find(|value| {
            runs += 1;
            Ok(Row::sample(&value.to_string(), if meets(value) { 0.95 } else { 0.5 }, load(value)))
        });
        let Found { row, value } = found.unwrap();
        if let Value::At(value) | Value::Beyond(_, value) = value {
            assert_eq!(row.command(), value.to_string());
        }
        (value, runs)
    }

    fn at(found: Value) -> f64 {
        match found {
            Value::At(value) => value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_knee_is_between_a_run_that_meets_and_one_that_does_not() {
        let (found, runs) = find("rate=0.5..50", |rate| rate, |rate| rate <= 7.3);
        let here = at(found);
        assert!(here <= 7.3 && here * 1.02 >= 7.3, "{here}");
        assert!(runs <= 12, "{runs}");
        // More load by smaller values.
        let here = at(find("time-scale=0.01..4", |scale| 1.0 / scale, |scale| scale >= 0.2).0);
        assert!((0.2..=0.2 * 1.02).contains(&here), "{here}");
    }

    #[test]
    fn a_knee_outside_of_the_range_is_said_to_be_there() {
        let (at_least, runs) = find("rate=1..2", |rate| rate, |_| true);
        assert_eq!((at_least.to_string(), runs), (">=2".to_owned(), 2));
        let (at_most, _) = find("time-scale=1..2", |scale| 1.0 / scale, |_| true);
        assert_eq!(at_most.to_string(), "<=1", "the heaviest load is at the low end");
        let (nowhere, runs) = find("rate=1..2", |rate| rate, |_| false);
        assert_eq!((nowhere.to_string(), runs), ("none".to_owned(), 2));
        let knee = Knee::parse("rate=1..2", 0.9, 1.02).unwrap();
        assert!(knee.notes(&[&at_least])[0].starts_with("at least"));
        assert!(knee.notes(&[&nowhere])[0].starts_with("none"));
        assert_eq!(knee.notes(&[&Value::At(1.5)]), [""; 0]);
    }

    #[test]
    fn a_run_that_ends_before_its_load_is_steady_is_told() {
        let knee = Knee::parse("rate=1..50", 0.9, 1.02).unwrap();
        let row = |load: f64| Row::sample("", 0.95, load);
        assert!(knee.is_unsteady(&Value::At(20.7), &row(5.4)) && knee.is_unsteady(&Value::Beyond(">=", 50.0), &row(5.4)));
        assert!(!knee.is_unsteady(&Value::At(5.5), &row(5.4)) && !knee.is_unsteady(&Value::Nowhere, &row(0.1)));
        let scale = Knee::parse("time-scale=1..50", 0.9, 1.02).unwrap();
        assert!(!scale.is_unsteady(&Value::At(20.0), &row(5.4)), "a scale is no rate");
        let text = super::super::store::table(&[("p".to_owned(), row(5.4), Some(Value::At(20.7)))], Some(&knee));
        assert!(text.contains("p: requests came faster than 5.400 a second ended"), "{text}");
    }

    #[test]
    fn ranges_are_checked() {
        for wrong in ["rate", "rate=1", "rate=0..2", "rate=3..2", "=1..2", "rate=1..x"] {
            assert!(Knee::parse(wrong, 0.9, 1.02).is_err(), "{wrong}");
        }
    }
}
