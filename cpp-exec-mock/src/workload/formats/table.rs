//! CSV with a header, columns found by name, fields that say what is wrong with them.

use std::fmt::Display;
use std::io::BufRead;
use std::path::Path;

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};

use super::super::WorkloadError;

/// A table of which `N` columns are wanted.
pub(super) struct Table<'a, const N: usize> {
    path: &'a Path,
    reader: Reader<Box<dyn BufRead>>,
    record: StringRecord,
    names: [&'static str; N],
    columns: [usize; N],
}

/// The wanted fields of a row.
pub(super) struct Fields<'a, const N: usize> {
    path: &'a Path,
    pub(super) line: u64,
    names: [&'static str; N],
    values: [&'a str; N],
}

impl<'a, const N: usize> Table<'a, N> {
    /// Reads the header.
    pub(super) fn new(path: &'a Path, content: Box<dyn BufRead>, names: [&'static str; N]) -> Result<Self, WorkloadError> {
        let mut reader = ReaderBuilder::new().from_reader(content);
        let header = reader.headers().map_err(|error| problem(path, error))?.clone();
        let mut columns = [0; N];
        for (column, name) in columns.iter_mut().zip(names) {
            *column = header.iter().position(|found| found.trim() == name).ok_or_else(|| {
                let found: Vec<_> = header.iter().collect();
                WorkloadError::line(path, 1, format!("no column `{name}`; the header has {}", found.join(", ")))
            })?;
        }
        Ok(Self { path, reader, record: StringRecord::new(), names, columns })
    }

    /// The next row, or none at the end.
    pub(super) fn row(&mut self) -> Result<Option<Fields<'_, N>>, WorkloadError> {
        if !self.reader.read_record(&mut self.record).map_err(|error| problem(self.path, error))? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        // All rows are as long as the header, the reader sees to that.
        let values = self.columns.map(|column| self.record[column].trim());
        Ok(Some(Fields { path: self.path, line, names: self.names, values }))
    }
}

impl<'a, const N: usize> Fields<'a, N> {
    /// The text of a column.
    pub(super) fn text(&self, column: usize) -> &'a str {
        self.values[column]
    }

    /// A whole number below 2^32.
    pub(super) fn count(&self, column: usize) -> Result<u32, WorkloadError> {
        self.parse(column, |text| text.parse().ok(), "a whole number below 2^32")
    }

    /// What `parse` makes of the text of a column.
    pub(super) fn parse<T>(&self, column: usize, parse: impl Fn(&str) -> Option<T>, wanted: &str) -> Result<T, WorkloadError> {
        parse(self.values[column]).ok_or_else(|| self.bad(format!("{} `{}` is not {wanted}", self.names[column], self.values[column])))
    }

    /// An error of this row.
    pub(super) fn bad(&self, problem: impl Display) -> WorkloadError {
        WorkloadError::line(self.path, self.line, problem.to_string())
    }
}

fn problem(path: &Path, error: csv::Error) -> WorkloadError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        ErrorKind::Io(error) => WorkloadError::io(path, error),
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            WorkloadError::line(path, line, format!("{len} fields, but the header has {expected_len}"))
        }
        ErrorKind::Utf8 { .. } => WorkloadError::line(path, line, "not UTF-8 text"),
        other => WorkloadError::line(path, line, format!("not CSV: {other:?}")),
    }
}
