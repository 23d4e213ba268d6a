//! Azure LLM inference traces (Azure/AzurePublicDataset, 2023 and 2024; CC-BY-4.0; Splitwise, ISCA '24).
//!
//! CSV with the columns `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`, others are ignored. Time stamps have up to nine decimal digits (seven in
//! 2023) and an optional offset; arrivals are relative to the first one. Nothing is known of contents.

use std::io::BufRead;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::super::WorkloadError;
use super::super::draft::{Draft, Numbers};
use super::super::prefix::Content;
use super::table::Table;

pub(super) fn read(path: &Path, content: Box<dyn BufRead>) -> Result<Draft, WorkloadError> {
    let mut table = Table::new(path, content, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"])?;
    let mut draft = Draft::default();
    // The epoch of time stamps is before all of them: arrivals are counted from 1970 first.
    while let Some(row) = table.row()? {
        let arrival_ns = row.parse(0, nanoseconds, "a time such as 2023-11-16 18:15:46.6805900, from 1970 on")?;
        let numbers = Numbers { arrival_ns, input_tokens: row.count(1)?, output_tokens: row.count(2)? };
        draft.push_recorded(numbers, Content::Unknown).map_err(|problem| row.bad(problem))?;
    }
    draft.start_at_zero();
    Ok(draft)
}

/// Nanoseconds since 1970; without an offset the time counts as UTC.
fn nanoseconds(text: &str) -> Option<u64> {
    const SECONDS: usize = "2023-11-16 18:15:46".len();
    let timestamp: Timestamp = if text.get(SECONDS..)?.contains(['+', '-', 'Z']) {
        text.parse().ok()?
    } else {
        Offset::UTC.to_timestamp(text.parse::<DateTime>().ok()?).ok()?
    };
    u64::try_from(timestamp.as_nanosecond()).ok().filter(|&ns| ns <= i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::nanoseconds;

    #[test]
    fn time_stamps_are_read_to_the_nanosecond() {
        assert_eq!(nanoseconds("1970-01-01 00:00:00.0000001"), Some(100));
        assert_eq!(nanoseconds("2000-03-01 00:00:00"), Some(951_868_800_000_000_000));
        assert_eq!(nanoseconds("2024-05-12 02:00:00.5+02:00"), nanoseconds("2024-05-12 00:00:00.500"));
        for wrong in
            ["", "2023-11-16", "2023-13-16 18:15:46", "2023-02-29 18:15:46", "2023-11-16 24:15:46", "1969-12-31 23:59:59", "46.68", "ü"]
        {
            assert_eq!(nanoseconds(wrong), None, "{wrong}");
        }
    }
}
