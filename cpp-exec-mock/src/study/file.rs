//! The file that a study is written in.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

/// What is studied. All that matters is in the file, so that a figure can be taken again.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Study {
    /// Its name.
    pub name: String,
    /// What it is about, and where its numbers come from.
    pub about: String,
    /// A built-in profile or the path of one.
    pub profile: String,
    /// Stages.
    pub stages: u32,
    /// What a batch costs at most on a stage, in seconds, where chunks are adaptive; none = as the planner finds.
    #[serde(default)]
    pub max_batch_s: Option<f64>,
    /// What a load of 1 is.
    #[serde(default)]
    pub capacity: Capacity,
    /// Seeds that options may be chosen by.
    pub seeds: Vec<u64>,
    /// Seeds that only the final report uses.
    pub report_seeds: Vec<u64>,
    /// Kinds of requests.
    pub classes: Vec<Class>,
    /// Loads, one after the other.
    pub phases: Vec<Phase>,
}

/// How the capacity of the machine is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// First tokens of 500 requests that come at once, over the time of the last one. What they decode afterwards is not counted.
    #[default]
    Prefill,
    /// First tokens while as many decode as do for good, out of a queue that does not end: what can be asked for without end.
    Steady,
}

/// One kind of requests.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Its share of the arrivals, relative to the others'.
    pub share: f64,
    /// Prompt lengths.
    pub input: Lengths,
    /// Output lengths.
    pub output: Lengths,
    /// Target for the first token.
    #[serde(default)]
    pub ttft: Option<Target>,
    /// Target for the mean time between tokens, in seconds.
    #[serde(default)]
    pub tpot_s: Option<f64>,
    /// Whose requests these are.
    #[serde(default)]
    pub tenant: Option<u64>,
}

/// Lengths in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Lengths {
    /// All the same.
    Fixed {
        /// Tokens.
        tokens: u32,
    },
    /// Log-normal, cut to `[1, most]`.
    LogNormal {
        /// Mean before the cut.
        mean: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The longest.
        most: u32,
    },
    /// Equally likely in every octave from `least` to `most`.
    LogUniform {
        /// The shortest.
        least: u32,
        /// The longest.
        most: u32,
    },
}

/// When a first token is wanted: `own_times` the time that the request takes alone, plus `plus_s`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Times the time to the first token on an idle machine.
    #[serde(default)]
    pub own_times: f64,
    /// Seconds on top.
    pub plus_s: f64,
}

/// A stretch of time with one load.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Arrivals as a part of the measured capacity.
    pub load: f64,
    /// How long, in seconds.
    pub seconds: f64,
}

/// Why a study cannot be run.
#[derive(Debug)]
#[non_exhaustive]
pub enum StudyError {
    /// The file cannot be read.
    Read(std::path::PathBuf, std::io::Error),
    /// It is not what a study looks like.
    Parse(String),
    /// A value is out of range.
    Value(String),
    /// The profile.
    Profile(crate::profile::ProfileError),
    /// The simulation.
    Sim(crate::sim::SimError),
}

impl fmt::Display for StudyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Parse(problem) | Self::Value(problem) => f.write_str(problem),
            Self::Profile(error) => error.fmt(f),
            Self::Sim(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StudyError {}

impl From<crate::profile::ProfileError> for StudyError {
    fn from(error: crate::profile::ProfileError) -> Self {
        Self::Profile(error)
    }
}

impl From<crate::sim::SimError> for StudyError {
    fn from(error: crate::sim::SimError) -> Self {
        Self::Sim(error)
    }
}

impl Study {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, StudyError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| StudyError::Read(path.to_owned(), error))?;
        Self::parse(&text).map_err(|error| match error {
            StudyError::Parse(problem) | StudyError::Value(problem) => StudyError::Parse(format!("{}: {problem}", path.display())),
            other => other,
        })
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, StudyError> {
        let study: Self = toml::from_str(text).map_err(|error| StudyError::Parse(error.to_string().trim().replace('\n', " ")))?;
        study.check().map(|()| study)
    }

    fn check(&self) -> Result<(), StudyError> {
        let wrong = |problem: String| Err(StudyError::Value(problem));
        if self.classes.is_empty() || self.phases.is_empty() || self.seeds.is_empty() {
            return wrong("a study has at least one class, one phase and one seed".to_owned());
        }
        for class in &self.classes {
            let name = &class.name;
            if !(class.share > 0.0 && class.share.is_finite()) {
                return wrong(format!("class {name}: share {} must be above 0", class.share));
            }
            for lengths in [class.input, class.output] {
                let good = match lengths {
                    Lengths::Fixed { tokens } => tokens > 0,
                    Lengths::LogNormal { mean, sigma, most } => (1.0..1e9).contains(&mean) && (0.0..=10.0).contains(&sigma) && most > 0,
                    Lengths::LogUniform { least, most } => least > 0 && least <= most,
                };
                if !good {
                    return wrong(format!("class {name}: {lengths:?} are no lengths"));
                }
            }
            let times = class.ttft.map_or([0.0; 2], |target| [target.own_times, target.plus_s]);
            if times.into_iter().chain(class.tpot_s).any(|time| !(0.0..1e9).contains(&time)) {
                return wrong(format!("class {name}: a target is negative or too large"));
            }
        }
        if self.max_batch_s.is_some_and(|most| !(1e-6..1e9).contains(&most)) {
            return wrong("max_batch_s must be above 0".to_owned());
        }
        match self.phases.iter().find(|phase| !(phase.load > 0.0 && phase.load < 1e6 && phase.seconds > 0.0 && phase.seconds < 1e9)) {
            Some(phase) => wrong(format!("{phase:?}: load and seconds must be above 0")),
            None => Ok(()),
        }
    }
}
