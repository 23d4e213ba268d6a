//! What can be wrong with a workload: where, and what.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why there is no workload.
#[derive(Debug)]
#[non_exhaustive]
pub enum WorkloadError {
    /// The file cannot be read, or its compression is broken.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The content of a file is wrong.
    Bad {
        /// The file.
        path: PathBuf,
        /// Where in the file.
        place: Place,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A parameter is out of range.
    Parameter {
        /// Its name, as in the command line without the dashes.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The file as a whole.
    File,
    /// A line, counted from 1.
    Line(u64),
    /// A value within a JSON document, such as `requests[3]`.
    Entry(String),
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Bad { path, place, problem } => match place {
                Place::File => write!(f, "{}: {problem}", path.display()),
                Place::Line(line) => write!(f, "{}, line {line}: {problem}", path.display()),
                Place::Entry(entry) => write!(f, "{}, {entry}: {problem}", path.display()),
            },
            Self::Parameter { name, problem } => write!(f, "{name}: {problem}"),
        }
    }
}

impl std::error::Error for WorkloadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl WorkloadError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn line(path: &Path, line: u64, problem: impl Into<String>) -> Self {
        Self::Bad { path: path.to_owned(), place: Place::Line(line), problem: problem.into() }
    }

    pub(super) fn entry(path: &Path, entry: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Bad { path: path.to_owned(), place: Place::Entry(entry.into()), problem: problem.into() }
    }

    pub(super) fn file(path: &Path, problem: impl Into<String>) -> Self {
        Self::Bad { path: path.to_owned(), place: Place::File, problem: problem.into() }
    }
}
