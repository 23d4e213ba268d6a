//! One request: what its tokens must be whatever the schedule, and what the log has shown of it so far.

use std::collections::{BTreeSet, HashMap};

use super::spec::{ConfigSpec, RequestSpec};

/// Truths longer than this are not computed: no scenario of ours has them.
const LONGEST_TRUTH: u64 = 1 << 20;

/// 64-bit FNV-1a, a token as four little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fnv(pub(super) u64);

impl Fnv {
    pub(super) const START: Self = Self(0xcbf2_9ce4_8422_2325);

    pub(super) fn push(&mut self, token: u32) {
        for byte in token.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A transfer that the peer was asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) blocks: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Track {
    pub(super) spec: RequestSpec,
    /// Tokens of the prompt.
    pub(super) prompt: u64,
    /// Outputs at most.
    pub(super) max_out: u64,
    /// Prompt and outputs.
    pub(super) truth: Vec<u32>,
    /// Its end if nobody interferes: "stop" or "length".
    pub(super) natural: &'static str,
    /// Lines of its submit, and of when it could first run.
    pub(super) submitted: Option<usize>,
    pub(super) opened: usize,
    pub(super) deadline: u128,
    /// "rejected", or the reason of its finished event.
    pub(super) terminal: Option<String>,
    pub(super) gated: bool,
    pub(super) waits_kv: bool,
    pub(super) aborting: bool,
    pub(super) first_batch: Option<u64>,
    /// Tokens delivered.
    pub(super) delivered: u64,
    pub(super) preemptions: u64,
    /// Tokens in all its items.
    pub(super) computed: u64,
    /// The batches that sample for it.
    pub(super) samples_at: Vec<u64>,
    pub(super) wanted: Option<Wanted>,
    /// Blocks under a transfer.
    pub(super) pins: BTreeSet<u32>,
    /// Where the announced ranges end (role prefill).
    pub(super) ready_to: u64,
    /// The next position to schedule, the blocks up to there, and the positions that are final.
    pub(super) cursor: u64,
    pub(super) table: Vec<u32>,
    pub(super) done: u64,
    /// The longest table since its admission: a roll-back may leave it the blocks beyond its cursor.
    pub(super) longest_table: Vec<u32>,
    /// The next item may start elsewhere: after a hit or a roll-back.
    pub(super) fresh: bool,
    /// Admitted.
    pub(super) resident: bool,
    /// Its last item sampled.
    pub(super) caught_up: bool,
    /// Place in the table -> block and count of its writes, when its content was last found right.
    pub(super) seen: HashMap<usize, (u32, u64)>,
    /// Batches that passed over it though it could decode and there was room.
    pub(super) passed_over: u64,
}

impl Track {
    pub(super) fn new(spec: RequestSpec, config: &ConfigSpec) -> Self {
        let prompt = spec.prompt.iter().map(|segment| segment.len).sum::<u64>();
        let most = if config.role == "prefill" { 1 } else { spec.max_tokens };
        let mut track = Self {
            prompt,
            max_out: most.min(config.model_len().saturating_sub(prompt)),
            truth: Vec::new(),
            natural: "length",
            submitted: None,
            opened: 0,
            deadline: u128::MAX,
            terminal: None,
            gated: spec.gated,
            waits_kv: false,
            aborting: false,
            first_batch: None,
            delivered: 0,
            preemptions: 0,
            computed: 0,
            samples_at: Vec::new(),
            wanted: None,
            pins: BTreeSet::new(),
            ready_to: 0,
            cursor: 0,
            table: Vec::new(),
            done: 0,
            longest_table: Vec::new(),
            fresh: true,
            resident: false,
            caught_up: false,
            seen: HashMap::new(),
            passed_over: 0,
            spec,
        };
        if track.fits(config) && prompt + track.max_out <= LONGEST_TRUTH {
            track.tell_truth(config.role == "prefill");
        }
        track
    }

    /// Computes what its tokens must be. The first output of role prefill ends nothing.
    fn tell_truth(&mut self, hands_over: bool) {
        let mut hash = Fnv::START;
        for segment in &self.spec.prompt {
            for i in 0..segment.len {
                let token = 5 + (segment.seed * 1_000_003 + i * 7919) % 31991;
                self.truth.push(u32::try_from(token).unwrap_or_default());
            }
        }
        self.truth.iter().for_each(|&token| hash.push(token));
        for _ in 0..self.max_out {
            let token = u32::try_from(5 + hash.0 % 31991).unwrap_or_default();
            self.truth.push(token);
            hash.push(token);
            if !hands_over && self.spec.stop_tokens.contains(&token) {
                self.natural = "stop";
                break;
            }
        }
    }

    /// Forgets what it holds: it was never admitted, or was preempted.
    pub(super) fn leave(&mut self) {
        (self.cursor, self.done, self.passed_over) = (0, 0, 0);
        self.table.clear();
        self.longest_table.clear();
        self.seen.clear();
        (self.fresh, self.resident, self.caught_up) = (true, false, false);
    }

    /// Its block table is now this one.
    pub(super) fn take_table(&mut self, table: Vec<u32>) {
        if !self.longest_table.starts_with(&table) {
            self.longest_table.clone_from(&table);
        }
        self.table = table;
    }

    /// Blocks for its longest run: the KV of its last output is never written.
    pub(super) fn need(&self, config: &ConfigSpec) -> u64 {
        config.blocks(self.prompt + if config.role == "prefill" { 0 } else { self.max_out.saturating_sub(1) })
    }

    /// Whether it can run to its end alone.
    pub(super) fn fits(&self, config: &ConfigSpec) -> bool {
        self.max_out >= 1 && self.need(config) <= config.num_blocks
    }

    /// Outputs that it yields in all.
    pub(super) fn outputs(&self) -> u64 {
        (self.truth.len() as u64).saturating_sub(self.prompt)
    }

    /// Tokens that are known to the caller.
    pub(super) const fn known(&self) -> u64 {
        self.prompt + self.delivered
    }

    pub(super) const fn alive(&self) -> bool {
        self.submitted.is_some() && self.terminal.is_none() && !self.aborting
    }

    /// Alive, and waits for nothing outside.
    pub(super) fn runnable(&self, config: &ConfigSpec) -> bool {
        self.alive() && !self.gated && !self.waits_kv && (config.role != "prefill" || self.delivered == 0)
    }

    /// What position `p` must hold; none past the end of its truth.
    pub(super) fn token(&self, p: u64) -> Option<u32> {
        self.truth.get(usize::try_from(p).ok()?).copied()
    }

    /// How many of so many drafts proposed now are right.
    pub(super) fn right_drafts(&self, drafts: u64) -> u64 {
        let pattern = self.spec.draft_accept.as_deref().unwrap_or(&[0]);
        drafts.min(pattern[usize::try_from(self.delivered).unwrap_or_default() % pattern.len()])
    }
}
