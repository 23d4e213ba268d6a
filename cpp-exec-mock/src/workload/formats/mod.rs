//! Readers of trace formats, one a file. Each fills a draft row by row and stops at the first bad one.

mod azure;
mod burstgpt;
mod json_lines;
mod jsonl;
mod mooncake;
mod table;
mod weka;
mod weka_raw;

use std::io::BufRead;
use std::path::Path;

use super::draft::Draft;
use super::{Format, LoadOptions, WorkloadError};

/// Reads the content of a file in a known format.
pub(super) fn read(format: Format, path: &Path, content: Box<dyn BufRead>, options: &LoadOptions) -> Result<Draft, WorkloadError> {
    match format {
        Format::Azure => azure::read(path, content),
        Format::Mooncake => mooncake::read(path, content),
        Format::Burstgpt => burstgpt::read(path, content),
        Format::Weka => weka::read(path, content, options),
        Format::Jsonl => jsonl::read(path, content),
    }
}
