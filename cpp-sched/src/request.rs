//! What a caller hands in.

use alloc::vec::Vec;

use crate::encoder::Span;
use crate::gate::GateSet;
use crate::ids::{RequestId, TokenId};

/// The prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Prompt {
    /// The tokens. The kernel keeps them (4 bytes each) and hashes them once, block by block, when prefix caching is on.
    Tokens(Vec<TokenId>),
    /// The caller keeps the tokens and gives their number, and one digest of the whole prefix for each whole block: two prompts with the same
    /// digest share that block. Empty: nothing of this request is found in or put into the prefix cache. Its outputs are never cached.
    Lengths {
        /// Tokens of the prompt.
        len: u32,
        /// One digest a whole block (`len / block_size`), or none; none with an [extension](crate::Scheduler::extend). From a keyed hash of 128 bits or more, else tenants can forge prefixes.
        block_hashes: Vec<[u8; 16]>,
    },
}

impl Prompt {
    /// Tokens of the prompt, cut off at `u32::MAX`.
    #[must_use]
    pub fn num_tokens(&self) -> u32 {
        match self {
            Self::Tokens(tokens) => u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            Self::Lengths { len, .. } => *len,
        }
    }
}

/// A request: what to compute, and how it stands among others.
///
/// ```
/// use cpp_sched::{Request, RequestId};
/// let mut request = Request::new(RequestId(7), vec![1, 2, 3], 100);
/// request.stop_tokens = vec![2];
/// request.priority = -1;
/// assert_eq!(request.prompt.num_tokens(), 3);
/// ```
///
/// With serde, `id`, `prompt` and `max_tokens` are enough where the format names fields (JSON): `{"id": 7, "prompt": {"tokens": [1, 2, 3]},
/// "max_tokens": 100}` is the request above without its standing. Fields that are left out are as in [`new`](Self::new).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Request {
    /// The caller's name for it.
    pub id: RequestId,
    /// What to read.
    pub prompt: Prompt,
    /// Output tokens at most; cut to what is left below `max_model_len`.
    pub max_tokens: u32,
    /// An output of one of these ends the request with reason [`Stop`](crate::FinishReason::Stop); it is delivered.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stop_tokens: Vec<TokenId>,
    /// For [`PolicyKind::Priority`](crate::PolicyKind::Priority): smaller first. Default 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub priority: i64,
    /// When it arrived, in nanoseconds of the caller's clock. Default: the clock at its submit.
    #[cfg_attr(feature = "serde", serde(default))]
    pub arrival_ns: Option<u64>,
    /// First token wanted within this time from the arrival.
    #[cfg_attr(feature = "serde", serde(default))]
    pub ttft_slo_ns: Option<u64>,
    /// Time between tokens wanted at most, on average from the first one on.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tbt_slo_ns: Option<u64>,
    /// For [`PolicyKind::Fair`](crate::PolicyKind::Fair): who is served. Default: a tenant of its own.
    #[cfg_attr(feature = "serde", serde(default))]
    pub tenant: Option<u64>,
    /// For [`PolicyKind::Fair`](crate::PolicyKind::Fair): the tenant's share, in millionths. Default 1,000,000 (1.0).
    #[cfg_attr(feature = "serde", serde(default = "whole"))]
    pub weight_millionths: u64,
    /// Requests find each other's cached prefixes and encoder outputs only under the same salt: one for each tenant keeps them apart. Default
    /// empty: shared with all that have none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cache_salt: Vec<u8>,
    /// Not runnable until these are open ([`ready`](crate::Scheduler::ready), [`open`](crate::Scheduler::open)): it waits for something outside
    /// and is in nobody's way.
    #[cfg_attr(feature = "serde", serde(default))]
    pub gates: GateSet,
    /// Its tokens are constrained by a grammar: with asynchronous scheduling never two of them are in flight at once.
    #[cfg_attr(feature = "serde", serde(default))]
    pub constrained: bool,
    /// No stop token counts before so many outputs. Default 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub min_tokens: u32,
    /// The adapter that it runs with: part of its prefix's name, and counted by
    /// [`max_adapters_per_batch`](crate::Config::max_adapters_per_batch).
    #[cfg_attr(feature = "serde", serde(default))]
    pub adapter: Option<u32>,
    /// It takes nothing from the prefix cache, since every prompt position must be computed (prompt log-probabilities); what it computes is
    /// found by others all the same.
    #[cfg_attr(feature = "serde", serde(default))]
    pub skip_cache_read: bool,
    /// An embedding or pooling request: it yields no token, and ends with [`Computed`](crate::FinishReason::Computed) when its whole prompt is
    /// computed. `max_tokens` is not looked at.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pooling: bool,
    /// At its end it keeps its KV and waits for more input ([`Paused`](crate::Event::Paused), [`extend`](crate::Scheduler::extend)).
    #[cfg_attr(feature = "serde", serde(default))]
    pub session: bool,
    /// Drafts proposed after each of its tokens; [`set_drafts`](crate::Scheduler::set_drafts) changes it, and says what asynchronous
    /// scheduling makes of it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub drafts: u32,
    /// Positions of an encoder's output that the layers of a [`Cross`](crate::KvGroup::Cross) group read. Since what is computed depends on that
    /// output, the request takes part in the prefix cache only under a `cache_salt` that names it. Default 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cross_tokens: u32,
    /// What of the prompt stands for images, audio and the like, in order, not overlapping. With [`Prompt::Tokens`] their digests are part of
    /// the prefix's name; [`Prompt::Lengths`] comes with hashes that cover them. Default none.
    #[cfg_attr(feature = "serde", serde(default))]
    pub spans: Vec<Span>,
}

/// Another request over the prompt of one that is alive: a further sample, a branch of a search. What was computed of the prompt, and what it was
/// computed with (spans, salt, adapter, encoder output), is its parent's; the rest it has for itself. See [`fork`](crate::Scheduler::fork).
///
/// ```
/// use cpp_sched::{Fork, Request, RequestId};
/// let mut parent = Request::new(RequestId(1), vec![1, 2, 3], 100);
/// parent.priority = -1;
/// // Three more samples that stand as their parent does.
/// let samples: Vec<_> = (2..5).map(|id| Fork::like(&parent, RequestId(id))).collect();
/// assert!(samples.iter().all(|fork| (fork.max_tokens, fork.priority) == (100, -1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Fork {
    /// The caller's name for it.
    pub id: RequestId,
    /// As [`Request::max_tokens`].
    pub max_tokens: u32,
    /// As [`Request::min_tokens`].
    pub min_tokens: u32,
    /// As [`Request::stop_tokens`].
    pub stop_tokens: Vec<TokenId>,
    /// As [`Request::priority`].
    pub priority: i64,
    /// As [`Request::arrival_ns`].
    pub arrival_ns: Option<u64>,
    /// As [`Request::ttft_slo_ns`].
    pub ttft_slo_ns: Option<u64>,
    /// As [`Request::tbt_slo_ns`].
    pub tbt_slo_ns: Option<u64>,
    /// As [`Request::tenant`].
    pub tenant: Option<u64>,
    /// As [`Request::weight_millionths`].
    pub weight_millionths: u64,
    /// As [`Request::gates`].
    pub gates: GateSet,
    /// As [`Request::constrained`].
    pub constrained: bool,
    /// As [`Request::skip_cache_read`]: it matters once it was preempted.
    pub skip_cache_read: bool,
    /// As [`Request::session`].
    pub session: bool,
    /// As [`Request::drafts`].
    pub drafts: u32,
}

impl Fork {
    /// A fork with default standing.
    #[must_use]
    pub fn new(id: RequestId, max_tokens: u32) -> Self {
        Self::like(&Request::new(id, Vec::new(), max_tokens), id)
    }

    /// A fork that stands as this request does: its lengths, stops, targets, tenant and so on. Of the request's prompt nothing is copied.
    #[must_use]
    pub fn like(request: &Request, id: RequestId) -> Self {
        Self {
            id,
            max_tokens: request.max_tokens,
            min_tokens: request.min_tokens,
            stop_tokens: request.stop_tokens.clone(),
            priority: request.priority,
            arrival_ns: request.arrival_ns,
            ttft_slo_ns: request.ttft_slo_ns,
            tbt_slo_ns: request.tbt_slo_ns,
            tenant: request.tenant,
            weight_millionths: request.weight_millionths,
            gates: request.gates,
            constrained: request.constrained,
            skip_cache_read: request.skip_cache_read,
            session: request.session,
            drafts: request.drafts,
        }
    }

    /// The request that it is over its parent's prompt.
    pub(crate) fn over(self, prompt: Prompt, cross_tokens: u32, adapter: Option<u32>) -> Request {
        Request {
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            stop_tokens: self.stop_tokens,
            priority: self.priority,
            arrival_ns: self.arrival_ns,
            ttft_slo_ns: self.ttft_slo_ns,
            tbt_slo_ns: self.tbt_slo_ns,
            tenant: self.tenant,
            weight_millionths: self.weight_millionths,
            gates: self.gates,
            constrained: self.constrained,
            skip_cache_read: self.skip_cache_read,
            session: self.session,
            drafts: self.drafts,
            cross_tokens,
            adapter,
            ..Request::with_prompt(self.id, prompt, self.max_tokens)
        }
    }
}

/// A weight of 1.
const fn whole() -> u64 {
    1_000_000
}

impl Request {
    /// A request with default standing.
    #[must_use]
    pub fn new(id: RequestId, prompt: Vec<TokenId>, max_tokens: u32) -> Self {
        Self::with_prompt(id, Prompt::Tokens(prompt), max_tokens)
    }

    /// A request whose tokens the caller keeps: `len` of them, one digest a whole block (or none at all).
    #[must_use]
    pub fn with_lengths(id: RequestId, len: u32, block_hashes: Vec<[u8; 16]>, max_tokens: u32) -> Self {
        Self::with_prompt(id, Prompt::Lengths { len, block_hashes }, max_tokens)
    }

    fn with_prompt(id: RequestId, prompt: Prompt, max_tokens: u32) -> Self {
        Self {
            id,
            prompt,
            max_tokens,
            stop_tokens: Vec::new(),
            priority: 0,
            arrival_ns: None,
            ttft_slo_ns: None,
            tbt_slo_ns: None,
            tenant: None,
            weight_millionths: whole(),
            cache_salt: Vec::new(),
            gates: GateSet::NONE,
            constrained: false,
            min_tokens: 0,
            adapter: None,
            skip_cache_read: false,
            pooling: false,
            session: false,
            drafts: 0,
            cross_tokens: 0,
            spans: Vec::new(),
        }
    }
}
