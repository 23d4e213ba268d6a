//! BurstGPT (HPMLL/BurstGPT; CC-BY-4.0; Wang et al., KDD '25), with or without `Session ID` and `Elapsed time`.
//!
//! CSV with the columns `Timestamp` (seconds), `Request tokens`, `Response tokens`, others are ignored. Arrivals are relative to the first one;
//! time stamps have whole seconds, and requests of one second arrive together. Failed requests have 0 response tokens. Nothing is known of contents.

use std::io::BufRead;
use std::path::Path;

use super::super::draft::{Draft, Numbers};
use super::super::prefix::Content;
use super::super::{WorkloadError, decimal};
use super::table::Table;

pub(super) fn read(path: &Path, content: Box<dyn BufRead>) -> Result<Draft, WorkloadError> {
    let mut table = Table::new(path, content, ["Timestamp", "Request tokens", "Response tokens"])?;
    let mut draft = Draft::default();
    while let Some(row) = table.row()? {
        let arrival_ns = row.parse(0, decimal::seconds, "a number of seconds, 0 or more")?;
        let numbers = Numbers { arrival_ns, input_tokens: row.count(1)?, output_tokens: row.count(2)? };
        draft.push_recorded(numbers, Content::Unknown).map_err(|problem| row.bad(problem))?;
    }
    draft.start_at_zero();
    Ok(draft)
}
