//! WEKA's agentic coding sessions (callanjfox/kv-cache-tester, traces/; Apache-2.0, (c) 2024 Callan Fox): a CSV over many sessions, or the raw JSON
//! of one session (see [`weka_raw`]).
//!
//! CSV with the columns `trace` (the session), `agent` (0, or a sub-agent that the session started), `t_s` (seconds from the start of the session),
//! `input_tokens`, `cached_tokens`, `output_tokens`; others are ignored.
//!
//! **Starts.** The source has no time of day. The sessions start evenly over a window of [`LoadOptions::session_window_s`]: with n sessions in an order
//! drawn from the seed, the k-th starts at k/n of the window. Each session is a tenant.
//!
//! **Prefixes.** The first `cached_tokens` of a turn are those of an earlier turn of its session, as a rule of the last one of its agent; the rest is
//! new. So a large enough cache that keeps up hits what the trace says. Sessions share nothing, as in the source, where a session's first turn
//! has no cached tokens.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::draft::{Draft, Numbers};
use super::super::prefix::Content;
use super::super::{LoadOptions, WorkloadError, decimal};
use super::table::Table;
use super::weka_raw;

pub(super) fn read(path: &Path, mut content: Box<dyn BufRead>, options: &LoadOptions) -> Result<Draft, WorkloadError> {
    let head = content.fill_buf().map_err(|error| WorkloadError::io(path, error))?;
    if head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head).trim_ascii_start().first() == Some(&b'{') {
        return weka_raw::read(path, content);
    }
    let mut table = Table::new(path, content, ["trace", "agent", "t_s", "input_tokens", "cached_tokens", "output_tokens"])?;
    let mut draft = Draft::unordered();
    let mut agents = HashMap::<String, u32>::new();
    let mut sessions = Vec::new();
    while let Some(row) = table.row()? {
        let arrival_ns = row.parse(2, decimal::seconds, "a number of seconds, 0 or more")?;
        let (input_tokens, cached) = (row.count(3)?, row.count(4)?);
        if cached > input_tokens {
            return Err(row.bad(format!("cached_tokens {cached} are more than input_tokens {input_tokens}")));
        }
        let session = draft.tenant(row.text(0));
        let agents_so_far = agents.len() as u32;
        let agent = match agents.get(row.text(1)) {
            Some(&agent) => agent,
            None => *agents.entry(row.text(1).to_owned()).or_insert(agents_so_far),
        };
        let turn = Content::Turn { session: session.0, agent, cached };
        let numbers = Numbers { arrival_ns, input_tokens, output_tokens: row.count(5)? };
        draft.push_recorded(numbers, turn).map_err(|problem| row.bad(problem))?.tenant = Some(session);
        sessions.push(session.0);
    }
    let starts = starts(sessions.iter().max().map_or(0, |&last| last as usize + 1), options);
    if !draft.delay(|index| starts[sessions[index] as usize]) {
        return Err(WorkloadError::Parameter {
            name: "session-window",
            problem: "sessions would start after the latest time allowed".to_owned(),
        });
    }
    Ok(draft)
}

/// When each of `count` sessions starts, in nanoseconds.
fn starts(count: usize, options: &LoadOptions) -> Vec<u64> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    // Fisher and Yates, spelled out so that no update of a dependency changes what a seed means.
    for last in (1..count).rev() {
        let other = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        order.swap(last, other as usize);
    }
    let window_ns = u128::from(options.session_window_s) * 1_000_000_000;
    let mut starts = vec![0; count];
    for (place, &session) in order.iter().enumerate() {
        starts[session] = u64::try_from(window_ns * place as u128 / count as u128).unwrap_or(u64::MAX);
    }
    starts
}
