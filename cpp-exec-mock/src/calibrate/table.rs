//! Tables of measured times: CSV with a header line, gzipped or not.
//!
//! | column | meaning |
//! |---|---|
//! | `new_x`, `prefill_chunk`, `new_tokens`, `tokens`, `m` | new tokens of a prefill chunk |
//! | `cached_L`, `kv_prefill`, `history` | tokens computed before it |
//! | `batch`, `n_decode`, `decodes` | decodes |
//! | `kv_len`, `kv_decode`, `context` | tokens of context of each decode |
//! | whatever ends in `_ns`, `_us`, `_ms` or `_s` | a time; several in one row are added up |
//! | anything else | says which group the row belongs to |

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use cpp_sched::CostTerms;

/// One measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// What was run.
    pub terms: CostTerms,
    /// Tokens of the prefill chunk.
    pub new_tokens: u64,
    /// How long it took.
    pub time_ns: u64,
}

/// Rows that one model is to fit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a name and rows, for callers to build")]
pub struct Group {
    /// The other columns, as `column=value`, joined; empty if there is one group.
    pub name: String,
    /// In the order of the file.
    pub rows: Vec<Row>,
}

/// A whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Table {
    /// By name.
    pub groups: Vec<Group>,
    /// Rows left out because they took no time or ran nothing.
    pub skipped: usize,
}

/// Why a table cannot be read: the line (1 = the header) and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableError {
    /// 0 if it is not about a line.
    pub line: u64,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for TableError {}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Column {
    New,
    History,
    Decodes,
    Context,
    /// Nanoseconds for one of its units.
    Time(f64),
    Key,
}

impl Column {
    fn of(name: &str) -> Self {
        match name {
            "new_x" | "prefill_chunk" | "new_tokens" | "tokens" | "m" => Self::New,
            "cached_L" | "kv_prefill" | "history" => Self::History,
            "batch" | "n_decode" | "decodes" => Self::Decodes,
            "kv_len" | "kv_decode" | "context" => Self::Context,
            _ => [("_ns", 1.0), ("_us", 1e3), ("_ms", 1e6), ("_s", 1e9)]
                .into_iter()
                .find(|(unit, _)| name.ends_with(unit))
                .map_or(Self::Key, |(_, ns)| Self::Time(ns)),
        }
    }
}

impl Table {
    /// Reads a file, gzipped or not.
    ///
    /// # Errors
    /// It cannot be read, or is no table of times; the line and what is wrong.
    pub fn load(path: &Path) -> Result<Self, TableError> {
        let unreadable = |error: &dyn fmt::Display| TableError { line: 0, problem: error.to_string() };
        let mut file = BufReader::new(File::open(path).map_err(|error| unreadable(&error))?);
        let zipped = file.fill_buf().map_err(|error| unreadable(&error))?.starts_with(&[0x1f, 0x8b]);
        if zipped { Self::read(flate2::bufread::MultiGzDecoder::new(file)) } else { Self::read(file) }
    }

    /// Reads CSV.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(input: impl Read) -> Result<Self, TableError> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
        let wrong = |line: u64, problem: String| TableError { line, problem };
        let header = reader.headers().map_err(|error| wrong(1, error.to_string()))?.clone();
        let columns: Vec<Column> = header.iter().map(Column::of).collect();
        let has = |wanted: fn(&Column) -> bool| columns.iter().any(wanted);
        if !has(|column| matches!(column, Column::Time(_))) {
            return Err(wrong(1, "no column of times: one must end in _ns, _us, _ms or _s".to_owned()));
        }
        if !has(|column| matches!(column, Column::New | Column::Decodes)) {
            return Err(wrong(
                1,
                "no column of sizes: there must be new_tokens (tokens, new_x, m) or decodes (batch, n_decode)".to_owned(),
            ));
        }
        let (mut groups, mut skipped) = (BTreeMap::<String, Vec<Row>>::new(), 0);
        for record in reader.records() {
            let record = record.map_err(|error| wrong(error.position().map_or(0, csv::Position::line), error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            let (mut key, mut sizes, mut time) = (String::new(), [0u32; 4], 0.0);
            for ((name, column), value) in header.iter().zip(&columns).zip(&record) {
                let number = || value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
                let bad = || wrong(line, format!("{name}: {value:?} is no number from 0 on"));
                let size = || number().filter(|n| n.fract() == 0.0 && *n <= f64::from(u32::MAX)).map(|n| n as u32).ok_or_else(bad);
                match column {
                    Column::New => sizes[0] = size()?,
                    Column::History => sizes[1] = size()?,
                    Column::Decodes => sizes[2] = size()?,
                    Column::Context => sizes[3] = size()?,
                    // Operations that a row does not have are empty.
                    Column::Time(_) if value.is_empty() => {}
                    Column::Time(ns) => time += number().ok_or_else(bad)? * ns,
                    Column::Key => {
                        let separator = if key.is_empty() { "" } else { " " };
                        key = format!("{key}{separator}{name}={value}");
                    }
                }
            }
            let row = Row::new(sizes[1], sizes[0], sizes[2], sizes[3], time.round() as u64);
            if row.time_ns == 0 || row.terms.tokens == 0 {
                skipped += 1;
            } else {
                groups.entry(key).or_default().push(row);
            }
        }
        Ok(Self { groups: groups.into_iter().map(|(name, rows)| Group { name, rows }).collect(), skipped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name_and_times_are_added() {
        let text = "gpu,cached_L,new_x,attn_ms,reshape_ms\na,32,64,0.5,0.25\nb,0,64,0.0,0\na,64,1,1,\n";
        let table = Table::read(text.as_bytes()).unwrap();
        assert_eq!((table.groups.len(), table.skipped, table.groups[0].name.as_str()), (1, 1, "gpu=a"));
        assert_eq!(table.groups[0].rows, [Row::new(32, 64, 0, 0, 750_000), Row::new(64, 1, 0, 0, 1_000_000)]);
        let decodes = Table::read("batch,kv_len,attn_ms\n4,100,0.01\n".as_bytes()).unwrap();
        assert_eq!(decodes.groups[0].rows[0].terms.decode_context, 400);
    }

    #[test]
    fn bad_tables_say_where() {
        for (text, line) in [
            ("", 1),
            ("tokens\n1\n", 1),
            ("time_us\n1\n", 1),
            ("tokens,time_us\n1,2\nx,3\n", 3),
            ("tokens,time_us\n1,-2\n", 2),
            ("tokens,time_us\n1.5,2\n", 2),
            ("tokens,time_us\n1,2,3\n", 2),
        ] {
            assert_eq!(Table::read(text.as_bytes()).unwrap_err().line, line, "{text:?}");
        }
    }
}
