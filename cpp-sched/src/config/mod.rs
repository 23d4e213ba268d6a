//! The knobs.

mod chunking;
mod kinds;
mod validate;

pub use chunking::{Adaptive, Chunking, Latency, Workspace};
pub use kinds::{Admission, Balance, Pipelining, PolicyKind, PreemptedOutput, Role};

use crate::cost::CostModel;
use crate::flops::ModelDims;
use crate::kv::{KvGroup, KvGroups};

/// A key for the keyed hashes: give every process its own random one, and keep it secret from those who choose prompts and ids.
///
/// It decides no batch: equal inputs give equal batches under any key.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct HashKey(pub [u8; 16]);

impl core::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// The configuration of a [`Scheduler`](crate::Scheduler). Every field has a default; set what differs.
///
/// ```
/// use cpp_sched::{Config, Scheduler};
/// let mut config = Config::default();
/// config.stages = 4;
/// config.max_batch_tokens = 2048;
/// config.num_blocks = 10_000;
/// let scheduler = Scheduler::new(config)?;
/// assert_eq!(scheduler.config().depth(), 4);
///
/// config.max_batch_tokens = 0;
/// let error = Scheduler::new(config).unwrap_err();
/// assert_eq!(error.to_string(), "max_batch_tokens must be at least 1");
/// # Ok::<(), cpp_sched::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Config {
    /// Tokens per KV block. Default 16.
    pub block_size: u32,
    /// Usable KV blocks. About 64 bytes of the kernel's memory each, allocated at once. Default 256.
    pub num_blocks: u32,
    /// Tokens in one batch at most, drafts included. Default 2048.
    pub max_batch_tokens: u32,
    /// Rows (items) in one batch at most. Default 256.
    pub max_batch_requests: u32,
    /// Requests admitted at once, over all batches. Default 256.
    pub max_requests: u32,
    /// Prompt + output of one request at most. Default `block_size * num_blocks`.
    pub max_model_len: Option<u32>,
    /// Pipeline stages P. Default 1.
    pub stages: u32,
    /// Batches in flight at most (D). Default `stages`.
    pub max_in_flight: Option<u32>,
    /// Default [`Pipelining::Chunk`].
    pub pipelining: Pipelining,
    /// Default [`PolicyKind::Fcfs`].
    pub policy: PolicyKind,
    /// Default [`Admission::ReservePrompt`].
    pub admission: Admission,
    /// Whether whole blocks of completed batches are found again by requests with the same beginning. Default false.
    pub prefix_caching: bool,
    /// Whether a decode may be scheduled before the token that it continues is known. Default false.
    pub async_scheduling: bool,
    /// Default [`Chunking::Tokens`] without a maximum.
    pub chunking: Chunking,
    /// Limits of [`Chunking::Adaptive`]. Default none.
    pub adaptive: Adaptive,
    /// How latency targets shape batches and admission.
    pub latency: Latency,
    /// Memory of a batch beside the KV cache, for chunking by cost and adaptive chunking; a batch may always hold a single smallest chunk.
    /// Default: no limit.
    pub workspace: Option<Workspace>,
    /// Chunks of one request that one batch may hold, each a row of its own. Default 1.
    pub chunks_per_batch: u32,
    /// What a batch costs in time; needed by [`Chunking::Cost`] and [`Chunking::Adaptive`].
    pub cost: Option<CostModel>,
    /// Dimensions of the model, for FLOPs.
    pub model: Option<ModelDims>,
    /// Default [`Balance::Off`].
    pub balance: Balance,
    /// Default [`Role::Unified`].
    pub role: Role,
    /// Default [`PreemptedOutput::Deliver`]. [`Role::Prefill`] always drops.
    pub preempted_output: PreemptedOutput,
    /// Tokens of one prompt in one batch at most, over all its chunks there. Default none.
    pub max_prompt_tokens_per_batch: Option<u32>,
    /// Requests admitted and still in their prompt at most. Default none.
    pub max_partial_prefills: Option<u32>,
    /// How many others, in each batch, may be admitted past a request that comes first and cannot be admitted. Default 0: strict order.
    pub max_bypass: u32,
    /// Full batches of decodes alone after which prompt work comes first once, so that decodes that fill every batch cannot starve prompts. Default 8.
    pub max_prompt_wait: u32,
    /// With asynchronous scheduling: a decode whose token is not known yet is scheduled at the earliest this many batches after the one that
    /// samples that token. Default 1: at once. Where stages run batches in order, a batch with such a decode waits in front of stage 0 until the
    /// token is back, so pipelines want `stages` here, and `max_in_flight` of `stages` + 1 to gain by it. A request with
    /// drafts is not scheduled ahead at all: see [`Scheduler::set_drafts`](crate::Scheduler::set_drafts).
    pub async_distance: u32,
    /// Distinct adapters in one batch at most. Default none.
    pub max_adapters_per_batch: Option<u32>,
    /// Positions behind a decode that a drafter writes to, for which it must have blocks too. Default 0.
    pub lookahead_tokens: u32,
    /// Tokens of the budget that a drafter's own rows take, for each row of a batch. Default 0.
    pub draft_slots: u32,
    /// Encoder tokens in one batch at most ([`Span::encoder_tokens`](crate::Span::encoder_tokens)): an item that is encoded is encoded by one
    /// batch, so none may be larger. Default none.
    pub encoder_budget_tokens: Option<u32>,
    /// Encoder tokens whose outputs workers keep at most. With a limit, outputs that no request needs any more are kept for others until their
    /// room is needed; without one they are given up at once. Default none.
    pub encoder_cache_tokens: Option<u32>,
    /// Role prefill: consumers (stages of the peer) that acknowledge each transfer; it has ended when all have. At most 64. Default 1.
    pub kv_consumers: u32,
    /// Time after which a transfer that was not reported as ended counts as failed: for role prefill from its last announcement, for role decode
    /// from `KvWanted`. The peer must not touch the blocks after it. Default none.
    pub kv_lease_ns: Option<u64>,
    /// Whether changes of the prefix cache are told by [`kv_events`](crate::Scheduler::kv_events). Default false.
    pub kv_events: bool,
    /// Key of the prefix hash and of the map of ids.
    pub hash_key: HashKey,
    /// Layers that keep different parts of the past, with block tables of their own. More than one group goes with [`Role::Unified`] alone.
    /// Default: full attention alone.
    pub kv_groups: KvGroups,
    /// [`PolicyKind::Srpf`] with ageing: so long a wait counts as much as one prompt token less. What arrives later than this for each of its
    /// tokens left comes after a request, so it cannot starve. Default none.
    pub srpf_ageing_ns: Option<u64>,
    /// [`PolicyKind::Priority`] with ageing: so long a wait counts as much as one level of priority. Default none.
    pub priority_ageing_ns: Option<u64>,
    /// [`PolicyKind::Hybrid`]: what a prompt token still to compute adds to the deadline. Default 8 ms, which Niyama (arXiv 2503.22562) found best
    /// under high load, and 1 ms under low.
    pub hybrid_alpha_ns: u64,
    /// How long a policy of the caller's may put a request off with [`Rank::NotNow`](crate::Rank::NotNow) between two of its chunks, in all.
    /// Default one second.
    pub max_deferral_ns: u64,
    /// Requests that cannot be on time are served last, as far as there is room (QoServe's relegation, arXiv 2503.22562): before each batch, as few as
    /// possible are given up so that all others can meet their [`ttft_slo_ns`](crate::Request::ttft_slo_ns), by dropping the largest (Moore and Hodgson
    /// 1968). Who was given up comes back when there is room in time. Needs a cost model. Works with every policy, and is exact where the
    /// others are served in the order of their deadlines. Who is given up waits without bound while the overload lasts, unless
    /// [`Latency::max_prefill_wait_ns`] is set. Default off.
    pub relegation: bool,
    /// When requests could be late if one more batch went to others, those that are due until then go first, in the order of their deadlines; made
    /// for [`PolicyKind::Lars`], which by itself misses deadlines that `Edf` meets. Needs a cost model. Default off.
    pub feasibility_guard: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            block_size: 16,
            num_blocks: 256,
            max_batch_tokens: 2048,
            max_batch_requests: 256,
            max_requests: 256,
            max_model_len: None,
            stages: 1,
            max_in_flight: None,
            pipelining: Pipelining::Chunk,
            policy: PolicyKind::Fcfs,
            admission: Admission::ReservePrompt,
            prefix_caching: false,
            async_scheduling: false,
            chunking: Chunking::Tokens { max: None },
            adaptive: Adaptive::default(),
            latency: Latency::default(),
            workspace: None,
            chunks_per_batch: 1,
            cost: None,
            model: None,
            balance: Balance::Off,
            role: Role::Unified,
            preempted_output: PreemptedOutput::Deliver,
            max_prompt_tokens_per_batch: None,
            max_partial_prefills: None,
            max_bypass: 0,
            max_prompt_wait: 8,
            async_distance: 1,
            max_adapters_per_batch: None,
            lookahead_tokens: 0,
            draft_slots: 0,
            encoder_budget_tokens: None,
            encoder_cache_tokens: None,
            kv_consumers: 1,
            kv_lease_ns: None,
            kv_events: false,
            hash_key: HashKey([0; 16]),
            kv_groups: KvGroups::default(),
            srpf_ageing_ns: None,
            priority_ageing_ns: None,
            hybrid_alpha_ns: 8_000_000,
            max_deferral_ns: 1_000_000_000,
            relegation: false,
            feasibility_guard: false,
        }
    }
}

impl Config {
    /// D: batches in flight at most.
    #[must_use]
    pub fn depth(&self) -> u32 {
        if self.pipelining == Pipelining::None { 1 } else { self.max_in_flight.unwrap_or(self.stages) }
    }

    /// Prompt + output of one request at most, in tokens.
    #[must_use]
    pub fn model_len(&self) -> u32 {
        let pool = u64::from(self.block_size) * u64::from(self.num_blocks);
        self.max_model_len.unwrap_or_else(|| u32::try_from(pool).unwrap_or(u32::MAX))
    }

    pub(crate) fn drops_preempted_output(&self) -> bool {
        self.preempted_output == PreemptedOutput::Drop || self.role == Role::Prefill
    }

    /// Positions of the longest run that need a block: the KV of the last output is never needed; a drafter looks ahead.
    pub(crate) fn longest(&self, prompt_len: u32, max_out: u32) -> u32 {
        let end = prompt_len + max_out.saturating_sub(1);
        if max_out > 1 { end.saturating_add(self.lookahead_tokens).min(self.model_len()).max(end) } else { end }
    }

    pub(crate) fn blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// The least common multiple of an alignment of chunks and the grain that they end on.
    pub(crate) fn grain_align(&self, align: u32) -> u32 {
        let (mut a, mut b) = (align.max(1), self.kv_groups.grain());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (align.max(1) / a).saturating_mul(self.kv_groups.grain())
    }

    /// Positions behind the base of a request that can be computed or written at once: what all batches in flight may hold, the rest of a grain,
    /// and the positions that a drafter looks ahead.
    pub(crate) fn ahead(&self) -> u64 {
        u64::from(self.depth()) * u64::from(self.max_batch_tokens) + u64::from(self.kv_groups.grain()) + u64::from(self.lookahead_tokens)
    }

    /// Blocks that a request needs to run to its end alone, over all groups.
    pub(crate) fn need(&self, prompt_len: u32, max_out: u32, cross_tokens: u32) -> u32 {
        let longest = self.longest(prompt_len, max_out);
        if self.kv_groups.is_single() {
            return self.blocks(longest);
        }
        self.kv_groups.need(longest, cross_tokens, self.block_size, self.ahead())
    }

    /// Blocks to be taken, at one time at most, for positions up to `wanted` blocks behind `hits` found ones, over all groups.
    pub(crate) fn due_behind(&self, hits: u32, wanted: u32, cross_tokens: u32) -> u32 {
        let (groups, size) = (&self.kv_groups, self.block_size);
        let due = groups.due(hits, wanted, size, self.ahead(), |index| groups.more()[index].front(hits * size, size));
        due.saturating_add(if groups.has_cross() { self.blocks(cross_tokens) } else { 0 })
    }

    /// The groups behind the first one, each with its number.
    pub(crate) fn more_groups(&self) -> impl Iterator<Item = (usize, KvGroup)> + use<> {
        let groups = self.kv_groups;
        (0..groups.more().len()).map(move |index| (index, groups.more()[index]))
    }
}
