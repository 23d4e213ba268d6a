//! One request as the driver sees it.

use cpp_sched::{BlockId, Config, FinishReason, Gate, GateSet, PreemptedOutput, RequestId, Role, TokenId};

use super::groups::{cross_tokens, need_of_more};
use crate::op::Shape;
use crate::truth::Text;

/// One request: its truth, and what the scheduler has shown of it.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// The caller's name for it.
    pub id: RequestId,
    /// How it was asked for.
    pub shape: Shape,
    /// Its tokens, the coming ones included.
    pub text: Text,
    /// Tokens of the prompt.
    pub prompt_len: u32,
    /// Output tokens at most, cut to the model length.
    pub max_out: u32,
    /// Its stop token.
    pub stop: Option<TokenId>,
    /// Output tokens delivered.
    pub delivered: u32,
    /// How it ended.
    pub terminal: Option<FinishReason>,
    /// Aborted, but something of it is in flight or pinned.
    pub aborting: bool,
    /// The gates that are shut.
    pub gates: GateSet,
    /// A session between two inputs.
    pub paused: bool,
    /// It started over the prompt of another one.
    pub forked: bool,
    /// Rows of epochs before this one bring nothing.
    pub void_before: u32,
    /// Digests that were given with its prompt cover so many tokens; what comes behind has none. Only for those that hand in lengths.
    pub hashed_len: u32,
    /// One past the last position that was ever scheduled and given up.
    pub reached: u32,
    /// When its transfer is overdue.
    pub lease: Option<u64>,
    /// Role prefill: its time has run out, in the present call.
    pub overdue: bool,
    /// Consumers that have read everything.
    pub acks: u64,
    /// Role decode: its KV is still awaited.
    pub waits_kv: bool,
    /// Times it was preempted; counts its epochs.
    pub epoch: u32,
    /// Next position to schedule.
    pub cursor: u32,
    /// Positions that are final.
    pub done: u32,
    /// Its blocks, as far as rows showed them.
    pub table: Vec<BlockId>,
    /// The tables of further KV groups, as its last row showed them.
    pub groups: Vec<Vec<BlockId>>,
    /// How often it was admitted, as far as rows show.
    pub admissions: u32,
    /// The same with what it found in the prefix cache and gave up before a row of it showed that.
    pub perhaps_reached: u32,
    /// It may have been admitted without a row.
    pub perhaps_admitted: bool,
    /// Where the first row of the present epoch began.
    pub first_start: Option<u32>,
    /// Nothing of the present epoch was scheduled: the first row may start behind a prefix hit.
    pub fresh: bool,
    /// Its last row sampled: what comes next is a decode, and no output computed again.
    pub caught_up: bool,
    /// Scheduled, and neither ended nor preempted since.
    pub admitted: bool,
    /// A gate was shut since: it may have given up its slot to another one.
    pub set_aside: bool,
    /// Drafts proposed after each token, now.
    pub drafts: u32,
    /// Number of its first batch.
    pub first_batch: Option<u64>,
    /// Number of the call that submitted it.
    pub submitted_at: u64,
    /// Number of the call that opened its gate.
    pub opened_at: u64,
    /// When it should have its first token; `u64::MAX` = whenever.
    pub deadline_ns: u64,
    /// Role prefill: positions announced to the peer.
    pub announced: u32,
    /// Role decode: positions that the peer may write now.
    pub wanted: Option<(u32, u32)>,
    /// Blocks under a transfer.
    pub pins: Vec<BlockId>,
}

impl Tracked {
    pub(super) fn new(shape: &Shape, config: &Config, text: Text, call: u64, now_ns: u64) -> Self {
        let most = if shape.extras.pooling {
            0
        } else if config.role == Role::Prefill {
            1
        } else {
            shape.max_tokens
        };
        let mut tracked = Self {
            id: RequestId(shape.id),
            shape: shape.clone(),
            text,
            prompt_len: shape.len,
            max_out: most.min(config.model_len().saturating_sub(shape.len)),
            stop: None,
            delivered: 0,
            terminal: None,
            aborting: false,
            gates: if shape.gated { shape.extras.gates.with(Gate::Other) } else { shape.extras.gates },
            paused: false,
            forked: false,
            void_before: 0,
            hashed_len: if shape.hashed { shape.len } else { 0 },
            reached: 0,
            lease: None,
            overdue: false,
            acks: 0,
            waits_kv: config.role == Role::Decode,
            epoch: 0,
            cursor: 0,
            done: 0,
            table: Vec::new(),
            groups: Vec::new(),
            admissions: 0,
            perhaps_reached: 0,
            perhaps_admitted: false,
            first_start: None,
            fresh: true,
            admitted: false,
            caught_up: false,
            set_aside: false,
            drafts: shape.drafts,
            first_batch: None,
            submitted_at: call,
            opened_at: call,
            deadline_ns: shape.ttft_slo_ns.map_or(u64::MAX, |slo| now_ns.saturating_add(slo)),
            announced: 0,
            wanted: None,
            pins: Vec::new(),
        };
        tracked.stop = shape.stop_at.map(|index| tracked.text.token(shape.len + index));
        tracked
    }

    /// Tokens that exist: prompt and delivered outputs.
    #[must_use]
    pub fn known(&self) -> u32 {
        self.prompt_len + self.delivered
    }

    /// Neither ended nor aborted.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.terminal.is_none() && !self.aborting
    }

    /// Alive, and it waits for nothing outside.
    #[must_use]
    pub fn is_runnable(&self, config: &Config) -> bool {
        self.is_alive() && !self.paused && self.gates.is_empty() && !self.waits_kv && (config.role != Role::Prefill || self.delivered == 0)
    }

    /// Blocks for its longest run: the KV of the last output is never written.
    #[must_use]
    pub fn need(&self, config: &Config) -> u32 {
        let tokens = self.longest(config);
        tokens.div_ceil(config.block_size) + need_of_more(config, tokens, cross_tokens(config, self.shape.author))
    }

    /// Positions of its longest run, with those that a drafter looks ahead.
    #[must_use]
    pub fn longest(&self, config: &Config) -> u32 {
        let outputs = if config.role == Role::Prefill { 0 } else { self.max_out.saturating_sub(1) };
        let end = self.prompt_len + outputs;
        if outputs > 0 { (end + config.lookahead_tokens).min(config.model_len()).max(end) } else { end }
    }

    /// Whether its blocks are put into the prefix cache.
    #[must_use]
    pub fn is_cacheable(&self, config: &Config) -> bool {
        // What an encoder has read is in all that is computed, and only a salt names it.
        let named = cross_tokens(config, self.shape.author) == 0 || self.shape.salt > 0;
        config.prefix_caching && named && (!self.shape.lengths || self.hashed_len >= config.block_size)
    }

    /// Role prefill: everything is computed and announced.
    #[must_use]
    pub fn is_sending(&self, config: &Config) -> bool {
        config.role == Role::Prefill && self.is_alive() && self.delivered > 0
    }

    /// It holds blocks of before its admission, as a fork or with received KV: where the batch lacks a block for its first row, it was admitted all the
    /// same.
    #[must_use]
    pub fn may_hold_a_slot_unseen(&self) -> bool {
        self.is_alive() && !self.admitted && !self.fresh && !self.paused && !self.waits_kv
    }

    /// The kernel may have counted an admission of it that no row shows.
    #[must_use]
    pub fn may_be_admitted_unseen(&self) -> bool {
        self.may_hold_a_slot_unseen() || (self.is_alive() && self.admitted && self.set_aside)
    }

    /// Preempted: everything computed is lost.
    pub(super) fn preempt(&mut self) {
        self.reached = self.reached.max(self.cursor);
        self.epoch += 1;
        self.cursor = 0;
        self.done = 0;
        self.table.clear();
        self.fresh = true;
        self.first_start = None;
        self.admitted = false;
        self.caught_up = false;
    }
}

/// Whether results of an older epoch are dropped.
pub(super) fn drops_late(config: &Config) -> bool {
    config.preempted_output == PreemptedOutput::Drop || config.role == Role::Prefill
}
