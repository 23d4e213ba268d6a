//! What can be wrong with a profile.

use std::fmt;

/// Why there is no profile, or none for so many stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    place: String,
    line: Option<u64>,
    problem: String,
}

impl ProfileError {
    pub(super) fn new(place: &str, line: Option<u64>, problem: String) -> Self {
        Self { place: place.to_owned(), line, problem }
    }

    /// The line of the file, counted from 1, where one is to blame.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.line
    }
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}: {}", self.place, self.problem),
            None => write!(f, "{}: {}", self.place, self.problem),
        }
    }
}

impl std::error::Error for ProfileError {}
