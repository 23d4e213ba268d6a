//! Mooncake traces (kvcache-ai/Mooncake, FAST '25; Apache-2.0).
//!
//! JSON lines of `timestamp` (milliseconds), `input_length`, `output_length`, `hash_ids` (one for every 512 tokens; equal ids are equal blocks);
//! other keys are ignored. Arrivals are relative to the first one. Time stamps lie on a grid of 3 s with up to dozens of requests each, so the
//! requests of one time stamp are laid evenly over the time until the next, 3 s at most: request i of n arrives i/n of that time later.

use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use serde_json::Number;

use super::super::draft::{Draft, Numbers};
use super::super::{WorkloadError, decimal};
use super::json_lines::JsonLines;

const BLOCK_TOKENS: u32 = 512;
const TICK_NS: u64 = 3_000_000_000;

#[derive(Deserialize)]
struct Row {
    timestamp: Number,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

pub(super) fn read(path: &Path, content: Box<dyn BufRead>) -> Result<Draft, WorkloadError> {
    let mut lines = JsonLines::new(path, content);
    let mut draft = Draft::with_ticks(TICK_NS);
    while let Some(row) = lines.next::<Row>()? {
        let arrival_ns = decimal::milliseconds(row.timestamp.as_str())
            .ok_or_else(|| lines.bad(format!("timestamp {} is not a number of milliseconds, 0 or more", row.timestamp)))?;
        let numbers = Numbers { arrival_ns, input_tokens: row.input_length, output_tokens: row.output_length };
        let content = draft.hashed(&row.hash_ids, BLOCK_TOKENS, row.input_length).map_err(|problem| lines.bad(problem))?;
        draft.push_recorded(numbers, content).map_err(|problem| lines.bad(problem))?;
    }
    draft.start_at_zero();
    Ok(draft)
}
