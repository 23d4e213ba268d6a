//! The project's own format: one JSON object a line, `{"arrival_s", "input_tokens", "output_tokens"}` and optionally `"priority"` (smaller first),
//! `"tenant"` (a text or a number), `"hash_ids"` with `"hash_block"`: one id for every `hash_block` tokens of the prompt from its start on; blocks
//! with equal ids (and equal ids before them) are equal, tokens beyond the ids are the prompt's own. Arrivals are taken as they are. A key that is
//! none of these is an error, as are 0 tokens. A line with `"after_s"` in place of `"arrival_s"` arrives so many seconds after the end of the request in the
//! line above; `"patience_s"`: the client hangs up so long after its arrival.

use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Number, Value};

use super::super::draft::{Draft, Numbers};
use super::super::prefix::Content;
use super::super::{WorkloadError, decimal};
use super::json_lines::JsonLines;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    arrival_s: Option<Number>,
    after_s: Option<Number>,
    patience_s: Option<Number>,
    input_tokens: u32,
    output_tokens: u32,
    #[serde(default)]
    priority: i64,
    tenant: Option<Value>,
    hash_ids: Option<Vec<u64>>,
    hash_block: Option<u32>,
}

pub(super) fn read(path: &Path, content: Box<dyn BufRead>) -> Result<Draft, WorkloadError> {
    let mut lines = JsonLines::new(path, content);
    let mut draft = Draft::default();
    while let Some(row) = lines.next::<Row>()? {
        add(&mut draft, row).map_err(|problem| lines.bad(problem))?;
    }
    Ok(draft)
}

fn add(draft: &mut Draft, row: Row) -> Result<(), String> {
    let seconds = |name: &str, number: Number| {
        decimal::seconds(number.as_str()).ok_or_else(|| format!("{name} {number} is not a number of seconds from 0 to 9.2e9"))
    };
    let think_ns = row.after_s.map(|after| seconds("after_s", after)).transpose()?;
    let arrival_ns = match (row.arrival_s, think_ns) {
        (Some(arrival), None) => seconds("arrival_s", arrival)?,
        (None, Some(_)) => draft.last_arrival_ns().ok_or("after_s in the first line: there is no request before it")?,
        (Some(_), Some(_)) => return Err("arrival_s and after_s contradict each other: give one".to_owned()),
        (None, None) => return Err("missing field `arrival_s`".to_owned()),
    };
    let patience_ns = row.patience_s.map(|patience| seconds("patience_s", patience)).transpose()?;
    let content = match (row.hash_ids, row.hash_block) {
        (None, None) => Content::Unknown,
        (Some(ids), Some(block)) => draft.hashed(&ids, block, row.input_tokens)?,
        (Some(_), None) => return Err("hash_ids need hash_block, the number of tokens that each stands for".to_owned()),
        (None, Some(_)) => return Err("hash_block is of no use without hash_ids".to_owned()),
    };
    let tenant = match row.tenant {
        None => None,
        Some(Value::String(name)) => Some(draft.tenant(&name)),
        Some(Value::Number(number)) => Some(draft.tenant(number.as_str())),
        Some(other) => return Err(format!("tenant {other} is neither a text nor a number")),
    };
    let item = draft.push(Numbers { arrival_ns, input_tokens: row.input_tokens, output_tokens: row.output_tokens }, content)?;
    item.priority = row.priority;
    item.tenant = tenant;
    if let Some(think_ns) = think_ns {
        draft.follows(think_ns);
    }
    if let Some(patience_ns) = patience_ns {
        draft.hangs_up(patience_ns);
    }
    Ok(())
}
