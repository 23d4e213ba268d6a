//! The knobs, and what makes a configuration valid.

use crate::cost::{Attos, CostModel, CostTerms};
use crate::error::ConfigError;
use crate::flops::ModelDims;
use crate::kv::{KvGroup, KvGroups};

macro_rules! serde_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$vmeta:meta])* $variant:ident),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
        #[non_exhaustive]
        pub enum $name { $($(#[$vmeta])* $variant),* }
    };
}

serde_enum! {
    /// How many batches in flight may hold the same request.
    pub enum Pipelining {
        /// The next chunk of a prompt may be scheduled while earlier ones are in flight: one chunk a stage.
        #[default]
        Chunk,
        /// A request has at most one batch in flight; others fill the pipeline.
        Request,
        /// One batch in flight over all, whatever the stages.
        None,
    }
}

serde_enum! {
    /// The order in which prompt work is given out, over admitted and waiting requests alike. Ties go to the earlier submit.
    pub enum PolicyKind {
        /// As submitted.
        #[default]
        Fcfs,
        /// The smaller [`priority`](crate::Request::priority) first.
        Priority,
        /// Earliest deadline (arrival + TTFT target) first; none = last.
        Edf,
        /// Fewest prompt tokens still to compute first.
        Srpf,
        /// Least relative slack first: `(deadline - now - left) / total`, `left` and `total` being the cost (without a cost model: the tokens) of
        /// the prompt still to compute and of the whole; no deadline = last.
        Lars,
        /// The tenant with the least cost (without a cost model: tokens) served per weight first.
        Fair,
        /// Earliest of deadline + [`hybrid_alpha_ns`](crate::Config::hybrid_alpha_ns) for each prompt token still to compute first: between `Edf`
        /// (alpha 0) and `Srpf` (a large alpha); no deadline = last. Niyama/QoServe, arXiv 2503.22562.
        Hybrid,
        /// The caller's own, given to [`Scheduler::with_policy`](crate::Scheduler::with_policy).
        Custom,
    }
}

serde_enum! {
    /// What is set aside when a request is admitted.
    pub enum Admission {
        /// Blocks for the whole known sequence, so that a prompt under way never lacks one.
        #[default]
        ReservePrompt,
        /// Blocks for the next chunk only.
        Lazy,
        /// Blocks for prompt + `max_tokens`; nobody who runs is ever preempted (a fork or session that waits may have to give back what it holds).
        NoEvict,
    }
}

serde_enum! {
    /// How decodes spread over the batches in flight. Off is best where token targets shape batches
    /// ([`Latency::follow_slack`](crate::Latency::follow_slack)): they say how much rides in one, and who waits for a lighter one is late by it.
    pub enum Balance {
        /// As many as the budget allows, in every batch.
        #[default]
        Off,
        /// With n requests decoding, no batch holds more than ceil(n / D) decodes.
        Count,
        /// No batch holds more than 1/D of the cost (without a cost model: of the contexts) of all decodes, plus that of the largest one.
        Cost,
    }
}

serde_enum! {
    /// What this scheduler's machine does of a request.
    pub enum Role {
        /// Prompt and output.
        #[default]
        Unified,
        /// The prompt; a request ends when its KV is handed over.
        Prefill,
        /// The output; the prompt's KV arrives from elsewhere.
        Decode,
    }
}

serde_enum! {
    /// What happens to a result in flight of a request that was preempted meanwhile.
    pub enum PreemptedOutput {
        /// Its token counts; the request resumes after it.
        #[default]
        Deliver,
        /// It leaves no trace; the token is computed again.
        Drop,
    }
}

/// How prompts are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Chunking {
    /// A chunk is as long as the prompt, `max`, the budget and the blocks allow.
    Tokens {
        /// Tokens in a chunk at most; none = the batch budget alone.
        max: Option<u32>,
    },
    /// Every batch, its decodes included, is filled up to a cost; a batch may exceed it only as a single item of the smallest size.
    Cost {
        /// The target, in nanoseconds.
        target_ns: u64,
        /// Chunks end on a multiple of this many tokens, counted from the start of the sequence (or at the end of what is known); with a
        /// [`State`](KvGroup::State) group on a multiple of its grain as well.
        align: u32,
        /// A chunk has at least this many tokens, where alignment, budget and the end of the prompt allow it.
        min: u32,
    },
    /// The kernel chooses the target itself, from the prefill work of the busy period and the depth of the pipeline. Needs no tuning;
    /// [`Config::adaptive`] sets limits for those who want some.
    Adaptive,
}

impl Default for Chunking {
    fn default() -> Self {
        Self::Tokens { max: None }
    }
}

/// Limits of [`Chunking::Adaptive`]. The defaults set none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Adaptive {
    /// Chunks end on a multiple of this many tokens from the start of the sequence; cut to `max_batch_tokens`. A coarse grid costs time: each
    /// batch is half a step short on average. Default 64.
    pub align: u32,
    /// Tokens of a chunk at least. Default: `align`.
    pub min: Option<u32>,
    /// Pins the target, in nanoseconds: nothing is chosen any more. Default none.
    pub target_ns: Option<u64>,
    /// A batch costs at most this, in nanoseconds: how long an urgent prompt waits for the first stage. Default none.
    pub max_target_ns: Option<u64>,
    /// While decodes ride along, a token takes at most this long from step to step, in nanoseconds: a batch costs at most this over the batches
    /// in flight. [`Request::tbt_slo_ns`](crate::Request::tbt_slo_ns) asks for it by request ([`Latency::follow_slack`]). Default none.
    pub token_latency_ns: Option<u64>,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self { align: 64, min: None, target_ns: None, max_target_ns: None, token_latency_ns: None }
    }
}

/// How latency targets shape batches and admission. The defaults follow the targets that requests bring, and reserve nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct Latency {
    /// With [`Chunking::Adaptive`], targets limit what a batch costs. A target for a first token
    /// ([`Request::ttft_slo_ns`](crate::Request::ttft_slo_ns)): a half of the tightest in the busy period, over the stages and one more, so that a
    /// prompt that comes unforeseen can still be on time; though no less than 64 times what each batch costs anyway. A target between tokens
    /// ([`Request::tbt_slo_ns`](crate::Request::tbt_slo_ns)): its share of a round (the target over the batches in flight) limits every batch while
    /// such a request decodes, as its next step comes behind those that it does not ride in; and a batch that it rides in has to be out before its
    /// next token is due, by the stages' times. Both aim earlier by what results have lately taken longer than the cost model says. Tokens are due a
    /// target after one another from the first on: up to four late ones are made good, what came early is not spent. A batch may always cost
    /// three quarters of the share, so that decodes that are late already do not stop prompts. Off: a target between tokens gives its steady share
    /// to the batches that it rides in, and one for a first token nothing. Default on.
    pub follow_slack: bool,
    /// A decode that has waited for so many batches goes into the next one whatever latency caps say; budget, target, balance and blocks
    /// still count, and decodes go longest waiting first. Default 8.
    pub max_decode_wait: u32,
    /// A prompt that has got no chunk for so long (since its submit, or its last chunk) comes first in the next batch, whatever the policy
    /// says: the bound on starvation that a policy alone does not give. Default none.
    pub max_prefill_wait_ns: Option<u64>,
    /// An admitted prompt that comes first and has time left until its deadline leaves room in the batch: it keeps the share of the target that
    /// brings it home in time, `left / (deadline - now)`, and what nobody else wants (Medha's space sharing, arXiv 2409.17264). Needs a cost model
    /// and chunking by cost or adaptive chunking, else it does nothing. Default off.
    pub space_sharing: bool,
    /// Refuses, at submit, a request whose predicted time to the first token is above so many millionths of its
    /// [`ttft_slo_ns`](crate::Request::ttft_slo_ns); the prediction is [`Scheduler::estimate`](crate::Scheduler::estimate)'s, and comes with
    /// the error. Needs a cost model. Default none.
    pub reject_above_millionths: Option<u32>,
}

impl Default for Latency {
    fn default() -> Self {
        Self { follow_slack: true, max_decode_wait: 8, max_prefill_wait_ns: None, space_sharing: false, reject_above_millionths: None }
    }
}

/// Memory that prefill chunks take beside the KV cache while they run, such as activations, or keys and values expanded from a latent cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
#[allow(clippy::exhaustive_structs, reason = "three numbers of one formula")]
pub struct Workspace {
    /// Bytes that there are.
    pub bytes: u64,
    /// Bytes for each token of a batch.
    pub per_token: u64,
    /// Bytes for each token of a chunk's history.
    pub per_history: u64,
}

impl Workspace {
    /// Tokens of a chunk after `history` computed ones for which a batch with these terms has room.
    pub(crate) fn room(&self, terms: &CostTerms, history: u32) -> u32 {
        let taken = u128::from(terms.tokens) * u128::from(self.per_token)
            + (u128::from(terms.prefill_history) + u128::from(history)) * u128::from(self.per_history);
        let left = u128::from(self.bytes).saturating_sub(taken);
        left.checked_div(u128::from(self.per_token)).map_or(if left > 0 { u32::MAX } else { 0 }, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}

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

    /// Checks every field and every combination.
    ///
    /// # Errors
    /// The first field that is wrong, and what is wrong with it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let positive = [
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("max_batch_tokens", self.max_batch_tokens),
            ("max_batch_requests", self.max_batch_requests),
            ("max_requests", self.max_requests),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
            ("stages", self.stages),
            ("max_in_flight", self.max_in_flight.unwrap_or(1)),
            ("chunks_per_batch", self.chunks_per_batch),
            ("max_prompt_tokens_per_batch", self.max_prompt_tokens_per_batch.unwrap_or(1)),
            ("max_partial_prefills", self.max_partial_prefills.unwrap_or(1)),
            ("max_prompt_wait", self.max_prompt_wait),
            ("adaptive.align", self.adaptive.align),
            ("adaptive.min", self.adaptive.min.unwrap_or(1)),
            ("async_distance", self.async_distance),
            ("max_adapters_per_batch", self.max_adapters_per_batch.unwrap_or(1)),
            ("encoder_budget_tokens", self.encoder_budget_tokens.unwrap_or(1)),
            ("encoder_cache_tokens", self.encoder_cache_tokens.unwrap_or(1)),
            ("kv_consumers", self.kv_consumers),
            ("latency.max_decode_wait", self.latency.max_decode_wait),
            ("latency.reject_above_millionths", self.latency.reject_above_millionths.unwrap_or(1)),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        let times = [
            ("adaptive.target_ns", self.adaptive.target_ns),
            ("adaptive.max_target_ns", self.adaptive.max_target_ns),
            ("adaptive.token_latency_ns", self.adaptive.token_latency_ns),
            ("latency.max_prefill_wait_ns", self.latency.max_prefill_wait_ns),
            ("srpf_ageing_ns", self.srpf_ageing_ns),
            ("priority_ageing_ns", self.priority_ageing_ns),
        ];
        if let Some((field, _)) = times.into_iter().find(|(_, time)| *time == Some(0)) {
            return Err(ConfigError::Zero { field });
        }
        // One number is kept back as "no block".
        if self.num_blocks == u32::MAX {
            return Err(ConfigError::TooLarge { field: "num_blocks", most: u64::from(u32::MAX - 1) });
        }
        for (field, value, most) in [("kv_consumers", self.kv_consumers, 64), ("draft_slots", self.draft_slots, self.max_batch_tokens - 1)]
        {
            if value > most {
                return Err(ConfigError::TooLarge { field, most: most.into() });
            }
        }
        self.validate_chunking()?;
        for (field, value) in self.cost.iter().flat_map(CostModel::coefficients) {
            if value > Attos::MAX_COEFFICIENT {
                return Err(ConfigError::TooLarge { field, most: Attos::MAX_COEFFICIENT.to_ns() });
            }
        }
        for (field, value) in self.model.iter().flat_map(ModelDims::dimensions) {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        if self.latency.reject_above_millionths.is_some() && self.cost.is_none() {
            return Err(ConfigError::NeedsCost { field: "latency.reject_above_millionths" });
        }
        for (field, on) in [("relegation", self.relegation), ("feasibility_guard", self.feasibility_guard)] {
            if on && self.cost.is_none() {
                return Err(ConfigError::NeedsCost { field });
            }
        }
        if self.role == Role::Prefill && self.admission == Admission::Lazy {
            return Err(ConfigError::LazyPrefill);
        }
        self.validate_groups()
    }

    /// With a state that is kept on a grain alone, a chunk must be able to reach the next multiple of it.
    fn validate_groups(&self) -> Result<(), ConfigError> {
        let what = |what| Err(ConfigError::KvGroups { what });
        if !self.kv_groups.is_single() && self.role != Role::Unified {
            return what("more than one group goes with role unified alone");
        }
        if !self.kv_groups.has_state() {
            return Ok(());
        }
        let grain = self.kv_groups.grain();
        let align = match self.chunking {
            Chunking::Tokens { max } => {
                if max.is_some_and(|max| max < grain) {
                    return what("chunking.max must be at least the grain of State");
                }
                grain
            }
            Chunking::Cost { align, .. } => self.grain_align(align),
            Chunking::Adaptive => grain,
        };
        let most = (self.max_batch_tokens - self.draft_slots).min(self.max_prompt_tokens_per_batch.unwrap_or(u32::MAX));
        if grain % self.block_size != 0 {
            return what("the grain of State must be a multiple of block_size");
        }
        if align > most {
            return what(
                "max_batch_tokens (without draft_slots) and max_prompt_tokens_per_batch must hold one grain of State, and one multiple of it \
                 that chunking.align divides",
            );
        }
        if self.chunks_per_batch > 1 {
            return what("chunks_per_batch must be 1 with a State group: a batch computes a state from one that was kept before it");
        }
        Ok(())
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

    fn validate_chunking(&self) -> Result<(), ConfigError> {
        match self.chunking {
            Chunking::Tokens { max: Some(0) } => Err(ConfigError::Zero { field: "chunking.max" }),
            Chunking::Tokens { .. } => Ok(()),
            Chunking::Cost { .. } | Chunking::Adaptive if self.cost.is_none() => Err(ConfigError::NeedsCost { field: "chunking" }),
            Chunking::Adaptive => Ok(()),
            Chunking::Cost { target_ns, align, min } => {
                for (field, value) in [("chunking.target_ns", target_ns), ("chunking.align", align.into()), ("chunking.min", min.into())] {
                    if value == 0 {
                        return Err(ConfigError::Zero { field });
                    }
                }
                for (field, value) in [("chunking.align", align), ("chunking.min", min)] {
                    if value > self.max_batch_tokens {
                        return Err(ConfigError::TooLarge { field, most: self.max_batch_tokens.into() });
                    }
                }
                Ok(())
            }
        }
    }
}
