//! Faults as text: `kind=slow:2.5,stage=1,at=10s,for=5s`, or `kind=stall,every=60s,for=2s` for random ones.

use std::fmt;
use std::str::FromStr;

use super::FaultKind;
use crate::workload::{decimal_thousandths, parse_duration};

/// One line of a faults file, or one option.
///
/// `kind=stall|slow:X|die|lose|hang`; `stage=S` (default 0, at random times any); `at=TIME` once, or `every=TIME` at random times with this mean between
/// them, up to `until=TIME` (default: the last arrival); `for=TIME` for those that last. A time is a number of seconds, or has one of the units s, ms, us,
/// ns.
///
/// ```
/// use cpp_exec_mock::sim::{FaultKind, FaultSpec};
/// let spec: FaultSpec = "kind=slow:2.5,stage=1,at=10s,for=500ms".parse()?;
/// assert_eq!(spec.kind(), FaultKind::Slow(2500));
/// let wrong = "kind=stall,at=1".parse::<FaultSpec>().unwrap_err();
/// assert_eq!(wrong.to_string(), "fault `kind=stall,at=1`: a stall needs for=TIME, how long it lasts");
/// # Ok::<(), cpp_exec_mock::sim::FaultError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    pub(super) text: String,
    pub(super) kind: FaultKind,
    pub(super) stage: Option<u32>,
    pub(super) when: When,
    pub(super) for_ns: u64,
}

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    At(u64),
    Every { mean_ns: u64, until_ns: Option<u64> },
}

/// A specification that cannot be: which, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultError {
    text: String,
    problem: String,
}

impl FaultError {
    pub(super) fn new(text: &str, problem: &str) -> Self {
        Self { text: text.to_owned(), problem: problem.to_owned() }
    }

    /// What is wrong, without the specification that it is wrong with.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault `{}`: {}", self.text, self.problem)
    }
}

impl std::error::Error for FaultError {}

impl FaultSpec {
    /// What goes wrong.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        self.kind
    }

    /// The specifications of a file: one a line; empty lines and what follows a `#` are left out.
    ///
    /// # Errors
    /// The first line that is wrong: its number, counted from 1, and what is wrong with it.
    pub fn lines(text: &str) -> Result<Vec<Self>, (usize, FaultError)> {
        let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.split('#').next().unwrap_or("").trim()));
        lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| line.parse().map_err(|error| (number, error))).collect()
    }

    pub(super) fn check(&self, stages: u32) -> Result<(), FaultError> {
        let wrong = |problem: String| Err(FaultError::new(&self.text, &problem));
        match self.stage {
            Some(stage) if stage >= stages => wrong(format!("there is no stage {stage}: stages are 0 to {}", stages - 1)),
            _ if self.kind == FaultKind::Hang && stages < 2 => wrong("one stage alone makes no transfers".to_owned()),
            Some(stage) if self.kind == FaultKind::Hang && stage + 1 >= stages => wrong(format!(
                "stage {stage} is the last, transfers leave stages 0 to {}; a result that does not come is kind=lose",
                stages - 2
            )),
            _ => Ok(()),
        }
    }
}

impl FromStr for FaultSpec {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let wrong = |problem: &str| FaultError::new(text, problem);
        let (mut kind, mut stage, mut at, mut every, mut until, mut lasts) = (None, None, None, None, None, None);
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=').map(|(key, value)| (key.trim(), value.trim())) else {
                return Err(wrong(&format!("`{part}` is not KEY=VALUE")));
            };
            let time = || {
                parse_duration(value).ok_or_else(|| wrong(&format!("{key}={value} is no time: write 10s, 500ms, 20us, 9ns, or seconds")))
            };
            let repeated = match key {
                "kind" => kind.replace(parse_kind(value).map_err(|problem| wrong(&problem))?).is_some(),
                "stage" => {
                    let number = value.parse::<u32>().map_err(|_| wrong(&format!("stage={value} is not a number of a stage")))?;
                    stage.replace(number).is_some()
                }
                "at" => at.replace(time()?).is_some(),
                "every" => every.replace(time()?).is_some(),
                "until" => until.replace(time()?).is_some(),
                "for" => lasts.replace(time()?).is_some(),
                _ => return Err(wrong(&format!("no key `{key}`: there are kind, stage, at, every, until and for"))),
            };
            if repeated {
                return Err(wrong(&format!("{key} is given twice")));
            }
        }
        let kind = kind.ok_or_else(|| wrong("say what goes wrong: kind=stall, slow:X, die, lose or hang"))?;
        let when = match (at, every) {
            (Some(_), None) if until.is_some() => return Err(wrong("until goes with every")),
            (Some(at_ns), None) => When::At(at_ns),
            (None, Some(0)) => return Err(wrong("every must be above 0")),
            (None, Some(mean_ns)) => When::Every { mean_ns, until_ns: until },
            _ => return Err(wrong("say when: either at=TIME or every=TIME")),
        };
        let for_ns = match lasts {
            Some(0) => return Err(wrong("for must be above 0")),
            Some(ns) if kind.lasts() => ns,
            None if kind.lasts() => return Err(wrong(&format!("a {} needs for=TIME, how long it lasts", kind.name()))),
            Some(_) => return Err(wrong(&format!("{} lasts until the timeout, for=TIME does not go with it", kind.name()))),
            None => 0,
        };
        Ok(Self { text: text.to_owned(), kind, stage, when, for_ns })
    }
}

fn parse_kind(text: &str) -> Result<FaultKind, String> {
    Ok(match text.split_once(':') {
        None if text == "stall" => FaultKind::Stall,
        None if text == "die" => FaultKind::Die,
        None if text == "lose" => FaultKind::Lose,
        None if text == "hang" => FaultKind::Hang,
        Some(("slow", factor)) => match decimal_thousandths(factor) {
            Some(thousandths) if thousandths > 1000 => FaultKind::Slow(thousandths),
            _ => return Err(format!("slow:{factor} is not a factor above 1, such as slow:2.5")),
        },
        _ => return Err(format!("no kind `{text}`: there are stall, slow:X, die, lose and hang")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FaultSpec, String> {
        text.parse().map_err(|error: FaultError| error.to_string())
    }

    #[test]
    fn specifications_are_read() {
        let spec = parse("kind=die, stage=3, at=1.5, for=20s").unwrap();
        assert_eq!((spec.kind, spec.stage, spec.when, spec.for_ns), (FaultKind::Die, Some(3), When::At(1_500_000_000), 20_000_000_000));
        let spec = parse("kind=lose,every=250ms,until=1s").unwrap();
        assert_eq!(spec.when, When::Every { mean_ns: 250_000_000, until_ns: Some(1_000_000_000) });
        let lines = FaultSpec::lines("# two\n\nkind=lose,at=1 # a comment\n kind=hang,stage=0,at=7us\n").unwrap();
        assert_eq!((lines.len(), lines[1].when), (2, When::At(7000)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, problem) in [
            ("", "`` is not KEY=VALUE"),
            ("kind=stall,at=1s", "needs for=TIME"),
            ("kind=stall,for=1s", "either at=TIME or every=TIME"),
            ("kind=lose,at=1s,every=2s", "either at=TIME or every=TIME"),
            ("kind=lose,at=1s,for=2s", "does not go with it"),
            ("kind=explode,at=1s", "no kind `explode`"),
            ("kind=slow:1,at=1s,for=1s", "not a factor above 1"),
            ("kind=lose,at=soon", "at=soon is no time"),
            ("kind=lose,at=1s,at=2s", "given twice"),
            ("kind=lose,at=1s,colour=red", "no key `colour`"),
            ("kind=lose,every=0", "every must be above 0"),
            ("kind=lose,at=1,until=2", "until goes with every"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(problem), "{told}");
        }
        assert_eq!(FaultSpec::lines("kind=lose,at=1\nkind=lose").unwrap_err().0, 2);
        let hang = parse("kind=hang,stage=3,at=1").unwrap();
        assert!(hang.check(4).unwrap_err().to_string().contains("stage 3 is the last"));
        assert!(hang.check(3).unwrap_err().to_string().contains("stages are 0 to 2"));
        assert_eq!(hang.check(5), Ok(()));
    }
}
