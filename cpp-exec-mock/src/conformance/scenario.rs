//! A scenario, parsed strictly: whatever FORMAT.md does not allow is an error that names its key.

use std::collections::HashMap;
use std::path::Path;

use cpp_sched::{Attos, Config};
use serde_json::Value;

use super::fields::{COUNT, COUNT_OR_ZERO, Fields, ScenarioError, TIME, narrow, parse};

type Result<T> = std::result::Result<T, ScenarioError>;

/// A whole scenario. Requests are known by their place in `requests`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The scheduler's configuration, valid.
    pub config: Config,
    /// The requests, each with an id of its own.
    pub requests: Vec<RequestSpec>,
    /// The calls, one after the other.
    pub script: Vec<Step>,
}

/// One request of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestSpec {
    /// Its id.
    pub id: String,
    /// Its prompt.
    pub prompt: PromptSpec,
    /// Output tokens at most.
    pub max_tokens: u32,
    /// Smaller first.
    pub priority: i64,
    /// When it arrived; none: the clock at its submit.
    pub arrival_ns: Option<u64>,
    /// First token wanted within this time.
    pub ttft_slo_ns: Option<u64>,
    /// Time between two tokens wanted at most.
    pub tbt_slo_ns: Option<u64>,
    /// Whose it is, for policy "fair".
    pub tenant: Option<String>,
    /// The tenant's share in millionths, at least 1.
    pub weight_millionths: u64,
    /// Outputs that end it.
    pub stop_tokens: Vec<u32>,
    /// Under which cached prefixes are shared.
    pub cache_salt: Option<String>,
    /// Not runnable until the op `ready`.
    pub gated: bool,
    /// Drafts proposed after each of its tokens.
    pub drafts: u32,
    /// Once n tokens are delivered, how many of the next drafts are right: entry n modulo the length. Not empty.
    pub draft_accept: Vec<u32>,
}

/// A prompt: segments of generated tokens, joined. Never stored as tokens, for a segment may name 2^32 - 1 of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptSpec {
    /// Seed of each segment, and where it ends in the prompt.
    segments: Vec<(u32, u64)>,
}

/// One operation of the script, and the label of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to do.
    pub op: Op,
    /// The label that the line carries as `as`.
    pub label: Option<String>,
}

/// An operation; requests are given by their place in [`Scenario::requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in FORMAT.md, where each is described")]
pub enum Op {
    Submit(usize),
    Schedule,
    Complete,
    Fail,
    Abort(usize),
    Ready(usize),
    KvSent(usize),
    KvSendFailed(usize),
    KvArrived(usize),
    KvFailed(usize),
    Tick { now_ns: u64 },
    ResetPrefixCache,
    Drain { max: u32 },
}

impl PromptSpec {
    /// Tokens of the prompt; may exceed what a request may have.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.segments.last().map_or(0, |&(_, end)| end)
    }

    /// Whether it has no token (never, once parsed).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token at `position`, which must be below [`len`](Self::len). O(log segments).
    #[must_use]
    pub fn token(&self, position: u64) -> u32 {
        let at = self.segments.partition_point(|&(_, end)| end <= position);
        let start = if at == 0 { 0 } else { self.segments[at - 1].1 };
        prompt_token(self.segments[at].0, position - start)
    }

    /// All tokens in order.
    pub fn tokens(&self) -> impl Iterator<Item = u32> {
        let starts = std::iter::once(0).chain(self.segments.iter().map(|&(_, end)| end));
        self.segments.iter().zip(starts).flat_map(|(&(seed, end), start)| (0..end - start).map(move |i| prompt_token(seed, i)))
    }
}

/// The `i`-th token of a segment.
fn prompt_token(seed: u32, i: u64) -> u32 {
    // 2^32 * 1000003 + 2^32 * 7919 is far below 2^64.
    5 + narrow((u64::from(seed) * 1_000_003 + i * 7919) % 31991)
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// It cannot be read, is not UTF-8, or [`parse`](Self::parse) refuses it.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| ScenarioError::new("", format!("cannot be read: {error}")))?;
        let text = std::str::from_utf8(&bytes).map_err(|error| ScenarioError::new("", format!("not UTF-8 text: {error}")))?;
        Self::parse(text)
    }

    /// Parses and checks a scenario.
    ///
    /// # Errors
    /// The first thing that FORMAT.md does not allow: the key, and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self> {
        let value = parse(text)?;
        // `expect` is for the checker: nobody looks into it here.
        let top = Fields::of(&value, "", &["name", "about", "config", "requests", "script", "expect"])?;
        top.text("name")?;
        top.text("about")?;
        let config = top.get("config").map(super::config::read).transpose()?.unwrap_or_default();
        let requests = read_requests(top.need_list("requests")?, &config)?;
        let places: HashMap<&str, usize> = requests.iter().enumerate().map(|(i, request)| (request.id.as_str(), i)).collect();
        let script = match top.list("script")? {
            Some(steps) => {
                steps.iter().enumerate().map(|(i, step)| read_step(step, &format!("script[{i}]"), &places)).collect::<Result<_>>()?
            }
            None => (0..requests.len()).map(Op::Submit).chain([DRAIN]).map(|op| Step { op, label: None }).collect(),
        };
        Ok(Self { config, requests, script })
    }
}

const DRAIN: Op = Op::Drain { max: 10_000 };

fn read_requests(list: &[Value], config: &Config) -> Result<Vec<RequestSpec>> {
    let mut places = HashMap::new();
    let mut requests = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let path = format!("requests[{i}]");
        let request = read_request(value, &path)?;
        if let Some(first) = places.insert(request.id.clone(), i) {
            return Err(ScenarioError::new(format!("{path}.id"), format!("{:?} is the id of requests[{first}] already", request.id)));
        }
        if request.drafts > 0 && config.async_scheduling {
            return Err(ScenarioError::new(format!("{path}.drafts"), "drafts do not go with config.async_scheduling"));
        }
        requests.push(request);
    }
    Ok(requests)
}

const REQUEST_KEYS: &[&str] = &[
    "id",
    "prompt",
    "max_tokens",
    "priority",
    "arrival_ns",
    "ttft_slo_ns",
    "tbt_slo_ns",
    "tenant",
    "weight",
    "stop_tokens",
    "cache_salt",
    "gated",
    "drafts",
    "draft_accept",
];

fn read_request(value: &Value, path: &str) -> Result<RequestSpec> {
    let fields = Fields::of(value, path, REQUEST_KEYS)?;
    let draft_accept = fields.counts_or_zeros("draft_accept")?.unwrap_or_else(|| vec![0]);
    if draft_accept.is_empty() {
        return Err(fields.error("draft_accept", "must hold at least one count"));
    }
    Ok(RequestSpec {
        id: fields.need_text("id")?.to_owned(),
        prompt: read_prompt(&fields)?,
        max_tokens: fields.need_count("max_tokens")?,
        priority: read_priority(&fields)?,
        arrival_ns: fields.whole("arrival_ns", TIME)?,
        ttft_slo_ns: fields.whole("ttft_slo_ns", TIME)?,
        tbt_slo_ns: fields.whole("tbt_slo_ns", TIME)?,
        tenant: fields.text("tenant")?.map(str::to_owned),
        weight_millionths: read_weight(&fields)?,
        stop_tokens: fields.counts_or_zeros("stop_tokens")?.unwrap_or_default(),
        cache_salt: fields.text("cache_salt")?.map(str::to_owned),
        gated: fields.boolean("gated")?.unwrap_or_default(),
        drafts: fields.whole("drafts", COUNT_OR_ZERO)?.map_or(0, narrow),
        draft_accept,
    })
}

fn read_prompt(fields: &Fields<'_>) -> Result<PromptSpec> {
    let (mut segments, mut end) = (Vec::new(), 0u64);
    for (i, value) in fields.need_list("prompt")?.iter().enumerate() {
        let segment = Fields::of(value, &format!("{}[{i}]", fields.path_of("prompt")), &["seed", "len"])?;
        segment.need("seed")?;
        let seed = segment.whole("seed", COUNT_OR_ZERO)?.map_or(0, narrow);
        // No overflow: a file has far fewer than 2^32 segments.
        end += u64::from(segment.need_count("len")?);
        segments.push((seed, end));
    }
    if segments.is_empty() { Err(fields.error("prompt", "must hold at least one segment")) } else { Ok(PromptSpec { segments }) }
}

fn read_priority(fields: &Fields<'_>) -> Result<i64> {
    let Some(text) = fields.number("priority")? else { return Ok(0) };
    let parsed = text.parse::<i64>().ok().filter(|&n| n <= i64::from(u32::MAX));
    parsed.ok_or_else(|| fields.error("priority", format!("must be a whole number below 2^32, is {text}")))
}

/// A number above 0 as millionths, rounded but never to 0, saturating.
fn read_weight(fields: &Fields<'_>) -> Result<u64> {
    const MILLIONTH: u128 = Attos::PER_NS / 1_000_000;
    let Some(text) = fields.number("weight")? else { return Ok(1_000_000) };
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    if text.starts_with('-') || !mantissa.contains(|c: char| ('1'..='9').contains(&c)) {
        return Err(fields.error("weight", format!("must be a number above 0, is {text}")));
    }
    let millionths = match text.parse::<Attos>() {
        Ok(value) => value.0.saturating_add(MILLIONTH / 2) / MILLIONTH,
        // Above 0, but the exponent is out of all measure.
        Err(_) if text.contains("e-") || text.contains("E-") => 0,
        Err(_) => u128::MAX,
    };
    Ok(u64::try_from(millionths).unwrap_or(u64::MAX).max(1))
}

fn read_step(value: &Value, path: &str, places: &HashMap<&str, usize>) -> Result<Step> {
    let fields = Fields::open(value, path)?;
    let id = || {
        fields.only(&["op", "as", "id"])?;
        let id = fields.need_text("id")?;
        places.get(id).copied().ok_or_else(|| fields.error("id", format!("no request has the id {id:?}")))
    };
    let plain = |op| fields.only(&["op", "as"]).map(|()| op);
    let op = match fields.need_text("op")? {
        "submit" => Op::Submit(id()?),
        "schedule" => plain(Op::Schedule)?,
        "complete" => plain(Op::Complete)?,
        "fail" => plain(Op::Fail)?,
        "abort" => Op::Abort(id()?),
        "ready" => Op::Ready(id()?),
        "kv_sent" => Op::KvSent(id()?),
        "kv_send_failed" => Op::KvSendFailed(id()?),
        "kv_arrived" => Op::KvArrived(id()?),
        "kv_failed" => Op::KvFailed(id()?),
        "reset_prefix_cache" => plain(Op::ResetPrefixCache)?,
        "tick" => {
            fields.only(&["op", "as", "now_ns"])?;
            fields.need("now_ns")?;
            Op::Tick { now_ns: fields.whole("now_ns", TIME)?.unwrap_or_default() }
        }
        "drain" => {
            fields.only(&["op", "as", "max"])?;
            fields.whole("max", COUNT)?.map_or(DRAIN, |max| Op::Drain { max: narrow(max) })
        }
        other => return Err(fields.error("op", format!("unknown operation {other:?}"))),
    };
    Ok(Step { op, label: fields.text("as")?.map(str::to_owned) })
}
