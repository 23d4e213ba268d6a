//! One JSON object a line.

use std::io::BufRead;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::super::WorkloadError;

/// Lines of a file, each read as a `T`; blank lines hold nothing.
pub(super) struct JsonLines<'a> {
    path: &'a Path,
    content: Box<dyn BufRead>,
    text: Vec<u8>,
    pub(super) line: u64,
}

impl<'a> JsonLines<'a> {
    pub(super) fn new(path: &'a Path, content: Box<dyn BufRead>) -> Self {
        Self { path, content, text: Vec::new(), line: 0 }
    }

    /// The next object, or none at the end.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WorkloadError> {
        loop {
            self.text.clear();
            if self.content.read_until(b'\n', &mut self.text).map_err(|error| WorkloadError::io(self.path, error))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            let text = if self.line == 1 { self.text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.text) } else { &self.text };
            if !text.trim_ascii().is_empty() {
                return serde_json::from_slice(text).map(Some).map_err(|error| self.bad(describe(&error)));
            }
        }
    }

    /// An error of the line read last.
    pub(super) fn bad(&self, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::line(self.path, self.line, problem)
    }
}

/// The message without serde_json's own line number, which counts within the line.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
    format!("{message} (column {})", error.column())
}
