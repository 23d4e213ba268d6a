//! The raw JSON of one of WEKA's agentic sessions: an object with `block_size` and `requests`.
//!
//! A request (`type` "n" or "s") has `t` (seconds), `in`, `out` and `hash_ids`, one for every whole block of its prompt, unique within the file. A sub-agent
//! (`type` "subagent") has `requests` of its own, whose times count from its `t`. Other keys are ignored, other types refused.

use std::io::{BufRead, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::Number;

use super::super::draft::{Draft, Numbers};
use super::super::{WorkloadError, decimal};

#[derive(Deserialize)]
struct Session {
    id: String,
    block_size: u32,
    requests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    t: Number,
    r#type: String,
    r#in: Option<u32>,
    out: Option<u32>,
    hash_ids: Option<Vec<u64>>,
    requests: Option<Vec<Self>>,
}

pub(super) fn read(path: &Path, mut content: Box<dyn BufRead>) -> Result<Draft, WorkloadError> {
    let mut text = Vec::new();
    content.read_to_end(&mut text).map_err(|error| WorkloadError::io(path, error))?;
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    let session: Session =
        serde_json::from_slice(text).map_err(|error| WorkloadError::line(path, error.line() as u64, error.to_string()))?;
    let mut reader = Entries { path, block: session.block_size, name: session.id, draft: Draft::unordered() };
    reader.add(&session.requests, 0, "requests")?;
    reader.draft.start_at_zero();
    Ok(reader.draft)
}

struct Entries<'a> {
    path: &'a Path,
    block: u32,
    name: String,
    draft: Draft,
}

impl Entries<'_> {
    /// Adds a list of entries that stands at `place` in the document, with times from `start_ns`. The depth is bounded by serde_json's own limit.
    fn add(&mut self, entries: &[Entry], start_ns: u64, place: &str) -> Result<(), WorkloadError> {
        for (index, entry) in entries.iter().enumerate() {
            let place = format!("{place}[{index}]");
            let bad = |problem: String| WorkloadError::entry(self.path, place.as_str(), problem);
            let missing = |key: &str| bad(format!("missing field `{key}`"));
            let at_ns = decimal::seconds(entry.t.as_str())
                .and_then(|ns| ns.checked_add(start_ns))
                .filter(|&ns| ns <= decimal::MAX_ARRIVAL_NS)
                .ok_or_else(|| bad(format!("t {} is not a number of seconds, 0 or more", entry.t)))?;
            match entry.r#type.as_str() {
                "n" | "s" => {
                    let input_tokens = entry.r#in.ok_or_else(|| missing("in"))?;
                    let output_tokens = entry.out.ok_or_else(|| missing("out"))?;
                    let ids = entry.hash_ids.as_ref().ok_or_else(|| missing("hash_ids"))?;
                    let content = self.draft.hashed(ids, self.block, input_tokens).map_err(bad)?;
                    let tenant = self.draft.tenant(&self.name);
                    let numbers = Numbers { arrival_ns: at_ns, input_tokens, output_tokens };
                    let pushed = self.draft.push_recorded(numbers, content);
                    pushed.map_err(|problem| WorkloadError::entry(self.path, place.as_str(), problem))?.tenant = Some(tenant);
                }
                "subagent" => {
                    let requests = entry.requests.as_ref().ok_or_else(|| missing("requests"))?;
                    self.add(requests, at_ns, &format!("{place}.requests"))?;
                }
                other => return Err(bad(format!("type `{other}` is none of n, s, subagent"))),
            }
        }
        Ok(())
    }
}
