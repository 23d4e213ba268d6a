//! The table at the end.

use std::fmt;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Floating point operations a second.
    FlopRate,
    /// Bytes a second.
    Bandwidth,
    /// A part of a whole.
    Share,
}

/// A figure that is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::exhaustive_enums, reason = "above or below")]
pub enum Goal {
    /// At least.
    AtLeast(f64),
    /// Less than.
    Below(f64),
}

/// What has come of a line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// A check that must pass, and what it says.
    Check {
        /// Whether it has.
        passed: bool,
        /// Its words.
        text: String,
    },
    /// A measured figure.
    Figure {
        /// As measured.
        value: f64,
        /// What it counts.
        unit: Unit,
        /// What is aimed at. To miss it is no failure.
        goal: Option<Goal>,
    },
    /// Neither, and why not.
    NotMeasured(String),
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Line {
    /// What was looked at.
    pub what: String,
    /// What came of it.
    pub outcome: Outcome,
}

impl Line {
    pub(super) fn check(what: impl Into<String>, passed: bool, text: impl Into<String>) -> Self {
        Self { what: what.into(), outcome: Outcome::Check { passed, text: text.into() } }
    }

    pub(super) fn figure(what: impl Into<String>, value: f64, unit: Unit) -> Self {
        Self { what: what.into(), outcome: Outcome::Figure { value, unit, goal: None } }
    }

    pub(super) fn share(what: impl Into<String>, value: f64, at_least: f64) -> Self {
        let outcome = Outcome::Figure { value, unit: Unit::Share, goal: Some(Goal::AtLeast(at_least)) };
        Self { what: what.into(), outcome }
    }

    pub(super) fn share_below(what: impl Into<String>, value: f64, below: f64) -> Self {
        let outcome = Outcome::Figure { value, unit: Unit::Share, goal: Some(Goal::Below(below)) };
        Self { what: what.into(), outcome }
    }

    /// A measured time without a goal.
    #[must_use]
    pub fn seconds(what: impl Into<String>, time: std::time::Duration) -> Self {
        Self::figure(what, time.as_secs_f64(), Unit::Seconds)
    }

    /// A line for what could not be looked at.
    pub fn not_measured(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), outcome: Outcome::NotMeasured(why.into()) }
    }
}

impl fmt::Display for Line {
    /// On a line of its own, as it is told while others are still to come.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what.trim_start())?;
        match &self.outcome {
            Outcome::Check { passed, text } => write!(f, "{}, {text}", if *passed { "passed" } else { "FAILED" }),
            Outcome::Figure { value, unit, goal: None } => f.write_str(&figure(*value, *unit)),
            Outcome::Figure { value, unit, goal: Some(goal) } => write!(f, "{} (goal {goal})", figure(*value, *unit)),
            Outcome::NotMeasured(why) => write!(f, "not measured, {why}"),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, ">= {}", percent(*goal)),
            Self::Below(goal) => write!(f, "< {}", percent(*goal)),
        }
    }
}

/// The whole table.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Its lines, in order.
    pub lines: Vec<Line>,
}

impl Report {
    /// Checks that have failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line.outcome, Outcome::Check { passed: false, .. })).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.lines.iter().map(|line| line.what.chars().count()).max().unwrap_or(0);
        writeln!(f, "{:width$}  {:>16}  {:>10}", "", "measured", "goal")?;
        for line in &self.lines {
            write!(f, "{:width$}  ", line.what)?;
            match &line.outcome {
                Outcome::Check { passed, text } => writeln!(f, "{:>16}  {:>10}  {text}", if *passed { "passed" } else { "FAILED" }, "")?,
                Outcome::Figure { value, unit, goal } => {
                    let goal = goal.map_or_else(String::new, |goal| goal.to_string());
                    writeln!(f, "{:>16}  {goal:>10}", figure(*value, *unit))?;
                }
                Outcome::NotMeasured(why) => writeln!(f, "{:>16}  {:>10}  {why}", "not measured", "")?,
            }
        }
        Ok(())
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn figure(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds if value < 1e-3 => format!("{:.1} us", value * 1e6),
        Unit::Seconds if value < 1.0 => format!("{:.2} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::FlopRate => format!("{:.3} TFLOP/s", value / 1e12),
        Unit::Bandwidth => format!("{:.3} GB/s", value / 1e9),
        Unit::Share => format!("{:.2} %", value * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, Report, Unit};

    #[test]
    fn the_table_tells_checks_figures_goals_and_what_is_missing() {
        let lines = vec![
            Line::check("kernels", true, "18 of 18"),
            Line::check("tokens", false, "one is wrong"),
            Line::figure("product", 7.0e14, Unit::FlopRate),
            Line::figure("step", 0.0123, Unit::Seconds),
            Line::share("overlap", 0.934, 0.9),
            Line::share_below("scheduling", 0.0021, 0.01),
            Line::not_measured("two processes", "no NCCL"),
        ];
        let report = Report { lines };
        assert_eq!(report.failed(), 1);
        let expected = "                       measured        goal
kernels                  passed              18 of 18
tokens                   FAILED              one is wrong
product         700.000 TFLOP/s            
step                   12.30 ms            
overlap                 93.40 %     >= 90 %
scheduling               0.21 %       < 1 %
two processes      not measured              no NCCL
";
        assert_eq!(report.to_string(), expected);
        let told: Vec<String> = report.lines.iter().map(ToString::to_string).collect();
        assert_eq!(told[1], "tokens: FAILED, one is wrong");
        assert_eq!(
            told[4..],
            ["overlap: 93.40 % (goal >= 90 %)", "scheduling: 0.21 % (goal < 1 %)", "two processes: not measured, no NCCL"]
        );
    }
}
