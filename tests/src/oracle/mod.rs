//! Judges the log of a conformance scenario: an independent reading of FORMAT.md, which knows nothing of the scheduler.
//!
//! It re-computes what every position of every request must hold and plays the log line by line, so a wrong position, a block shared by mistake,
//! a token delivered twice or a block re-used under a batch in flight shows as a violation. `check.py` beside the scenarios is the same in
//! Python; this one is fast enough for thousands of random scenarios and also checks what that one leaves open (`work.rs`).
//!
//! | file | rules |
//! |---|---|
//! | `schedule.rs`, `item.rs` | a batch and its items: budgets, positions, tables, contents, writes |
//! | `cost.rs` | cost, FLOPs, balance |
//! | `work.rs` | order, longest hits, full batches, no starving |
//! | `calls.rs`, `events.rs` | all other calls, and what they report |
//! | `expect.rs` | what the scenario itself expects |

mod calls;
mod cost;
mod entry;
mod events;
mod expect;
mod item;
mod memory;
mod request;
mod schedule;
mod spec;
mod work;

use std::collections::{BTreeSet, HashMap, VecDeque};

use entry::Entry;
use memory::Memory;
use request::Track;
use spec::{ConfigSpec, Spec};

/// One item of a batch in flight.
#[derive(Clone, Debug)]
struct Flown {
    /// Place of the request.
    r: usize,
    start: u64,
    end: u64,
    /// Tokens without drafts.
    new: u64,
    samples: bool,
    /// Drafts that are right, and the others.
    accepted: u64,
    rejected: u64,
    table: Vec<u32>,
    prefill: bool,
    /// A decode of a request whose last item had sampled.
    steady: bool,
    /// Preemptions of the request before it.
    epoch: u64,
}

struct Checker {
    config: ConfigSpec,
    tracks: Vec<Track>,
    places: HashMap<String, usize>,
    /// Coefficients of the cost in units of 1e-9 ns.
    coefficients: Option<[i128; 6]>,
    memory: Memory,
    flight: VecDeque<(u64, Vec<Flown>)>,
    batches: u64,
    now: u64,
    line: usize,
    labels: HashMap<String, Entry>,
    errors: Vec<String>,
}

/// All violations in the log of a good scenario; none: it is right. `log` is one JSON object a line.
#[must_use]
pub fn judge(scenario: &str, log: &str) -> Vec<String> {
    let spec: Spec = match serde_json::from_str(scenario) {
        Ok(spec) => spec,
        Err(error) => return vec![format!("the scenario is malformed: {error}")],
    };
    let mut entries = Vec::new();
    for (i, line) in log.lines().enumerate() {
        match serde_json::from_str::<Entry>(line) {
            Ok(entry) => entries.push(entry),
            Err(error) => return vec![format!("line {}: malformed: {error}", i + 1)],
        }
    }
    Checker::new(&spec).run(&spec, &entries)
}

/// What a request of a scenario yields, up to so many outputs and whatever the configuration.
#[must_use]
pub fn outputs(request: &serde_json::Value, max_tokens: u64) -> Vec<u32> {
    let Ok(spec) = serde_json::from_value::<spec::RequestSpec>(request.clone()) else { return Vec::new() };
    let plenty = ConfigSpec { num_blocks: 1 << 30, ..ConfigSpec::default() };
    let track = Track::new(spec::RequestSpec { max_tokens, stop_tokens: Vec::new(), ..spec }, &plenty);
    track.truth[usize::try_from(track.prompt).unwrap_or_default().min(track.truth.len())..].to_vec()
}

impl Checker {
    fn new(spec: &Spec) -> Self {
        let tracks: Vec<Track> = spec.requests.iter().map(|request| Track::new(request.clone(), &spec.config)).collect();
        Self {
            places: tracks.iter().enumerate().map(|(place, track)| (track.spec.id.clone(), place)).collect(),
            coefficients: spec.config.cost.as_ref().map(cost::coefficients),
            config: spec.config.clone(),
            tracks,
            memory: Memory::default(),
            flight: VecDeque::new(),
            batches: 0,
            now: 0,
            line: 0,
            labels: HashMap::new(),
            errors: Vec::new(),
        }
    }

    fn bad(&mut self, text: impl AsRef<str>) {
        self.errors.push(format!("line {}: {}", self.line, text.as_ref()));
    }

    /// Place of the request with this id; a stranger is a violation of its own.
    fn place(&mut self, id: &str) -> Option<usize> {
        let place = self.places.get(id).copied();
        if place.is_none() {
            self.bad(format!("no request has the id {id:?}"));
        }
        place
    }

    fn run(mut self, spec: &Spec, log: &[Entry]) -> Vec<String> {
        self.follows_script(spec, log);
        for entry in log {
            self.line += 1;
            if let Some(label) = &entry.label {
                self.labels.insert(label.clone(), entry.clone());
            }
            match entry.op.as_str() {
                "submit" => self.submit(entry),
                "schedule" => self.schedule(entry),
                "complete" => self.complete(entry),
                "fail" => self.fail(entry),
                _ => self.other(entry),
            }
            self.after(entry);
        }
        if spec.script.as_ref().is_none_or(|script| script.last().is_some_and(|step| step.op == "drain")) {
            self.drained(log);
        }
        self.expect(&spec.expect);
        self.errors
    }

    /// Calls that no drain makes stand in the log as in the script.
    fn follows_script(&mut self, spec: &Spec, log: &[Entry]) {
        let own = |op: &str| !matches!(op, "schedule" | "complete" | "drain");
        let played: Vec<(&str, Option<&str>)> =
            log.iter().filter(|entry| own(&entry.op)).map(|entry| (entry.op.as_str(), entry.id.as_deref())).collect();
        let scripted: Vec<(&str, Option<&str>)> = match &spec.script {
            Some(script) => script.iter().filter(|step| own(&step.op)).map(|step| (step.op.as_str(), step.id.as_deref())).collect(),
            None => spec.requests.iter().map(|request| ("submit", Some(request.id.as_str()))).collect(),
        };
        let lines = spec.script.as_ref().filter(|script| script.iter().all(|step| step.op != "drain")).map(Vec::len);
        if played != scripted || lines.is_some_and(|lines| lines != log.len()) {
            self.bad("the log does not follow the script");
        }
    }

    /// What holds after every call.
    fn after(&mut self, entry: &Entry) {
        let (kv, used) = (entry.kv, self.in_use().len() as u64);
        if kv.total != self.config.num_blocks || kv.free + kv.held + kv.cached + kv.fenced + kv.pinned != kv.total {
            self.bad(format!("blocks do not add up to {}: {kv:?}", self.config.num_blocks));
        }
        if kv.held + kv.fenced + kv.pinned < used {
            self.bad(format!("{used} blocks are in use, only {kv:?} are counted"));
        }
        let empty = self.flight.is_empty();
        if (kv.fenced > 0 && empty) || (kv.cached > 0 && !self.config.prefix_caching) || (kv.pinned > 0 && self.config.role == "unified") {
            self.bad(format!("fenced with nothing in flight, cached without a cache, or pinned without a transfer: {kv:?}"));
        }
        if entry.in_flight != self.flight.len() {
            self.bad(format!("in_flight is {}, must be {}", entry.in_flight, self.flight.len()));
        }
        let flying: BTreeSet<usize> = self.flight.iter().flat_map(|(_, items)| items).map(|item| item.r).collect();
        for place in 0..self.tracks.len() {
            let track = &mut self.tracks[place];
            if track.aborting && track.terminal.is_none() && track.pins.is_empty() && !flying.contains(&place) {
                track.terminal = Some("aborted".to_owned());
                let id = track.spec.id.clone();
                self.bad(format!("{id} is aborted, nothing of it is in flight, and it has no finished event"));
            }
        }
        self.counts_no_leak(entry);
    }

    /// No more blocks are held, fenced or pinned than the log can account for.
    fn counts_no_leak(&mut self, entry: &Entry) {
        let mut known: BTreeSet<u32> = self.in_use();
        known.extend(self.tracks.iter().filter(|track| track.alive()).flat_map(|track| &track.longest_table));
        known.extend(self.tracks.iter().filter_map(|track| track.wanted.as_ref()).flat_map(|wanted| &wanted.blocks));
        let (kv, most) = (entry.kv, known.len() as u64);
        if kv.held + kv.fenced + kv.pinned > most {
            self.bad(format!("at most {most} blocks can be in use, but more are counted: {kv:?}"));
        }
    }

    /// Blocks that are certainly in use: in flight, held, or under a transfer.
    fn in_use(&self) -> BTreeSet<u32> {
        let mut used: BTreeSet<u32> = self.flight.iter().flat_map(|(_, items)| items).flat_map(|item| item.table.iter().copied()).collect();
        for track in &self.tracks {
            used.extend(self.holds(track));
            used.extend(&track.pins);
        }
        used
    }

    /// The blocks of what a request has had scheduled and certainly still has.
    fn holds<'a>(&self, track: &'a Track) -> &'a [u32] {
        let n = usize::try_from(self.config.blocks(track.cursor)).unwrap_or(usize::MAX);
        if track.alive() && track.cursor > 0 && !track.fresh { &track.table[..n.min(track.table.len())] } else { &[] }
    }

    /// After a last drain nothing that could run is left, and no block leaks.
    fn drained(&mut self, log: &[Entry]) {
        let left: Vec<String> =
            self.tracks.iter().filter(|track| track.runnable(&self.config)).map(|track| track.spec.id.clone()).collect();
        let flying = self.flight.len();
        if !left.is_empty() || flying > 0 {
            self.bad(format!("after the drain {left:?} are not finished and {flying} batches in flight"));
        } else if let Some(kv) = log.last().map(|entry| entry.kv) {
            let pins = self.tracks.iter().any(|track| !track.pins.is_empty());
            if kv.held > 0 || kv.fenced > 0 || (kv.pinned > 0 && !pins) {
                self.bad(format!("blocks leak after the drain: {kv:?}"));
            }
        }
    }
}
