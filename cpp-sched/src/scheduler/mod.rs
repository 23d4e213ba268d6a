//! The state machine.
//!
//! | files | what |
//! |---|---|
//! | [`submit`], [`fork`], [`session`] | requests come in, or go on |
//! | [`schedule`], with [`decode`], [`prompt`], [`admit`], [`chunk`], [`encode`], [`preempt`] | a batch is made: decodes, prompts, who is admitted, how long a chunk is, what is encoded, who gives blocks up |
//! | [`complete`], [`fail`] | the fate of a batch |
//! | [`end`], [`transfer`] | a request ends; its KV goes to, or comes from, another machine |
//! | [`groups`] | several KV groups |
//! | [`rank`], [`round`], [`relegate`], [`latency`] | who comes first, who may preempt whom again, who can be on time, what decodes allow a batch to cost |
//! | [`target`], [`estimate`] | what a batch should cost, and when a request would have its first token |
//! | [`control`] | gates, pauses, budgets and resets |
//! | [`view`], [`explain`], [`gauges`] | what can be seen; why a request waits; how many do |
//! | [`queues`] | in which queues and counts a request stands |
//! | [`invariants`] | all that is kept incrementally, worked out anew |
//! | `snapshot` | the whole scheduler as a value, with the feature `serde` |

mod admit;
mod chunk;
mod complete;
mod control;
mod decode;
mod encode;
mod end;
mod estimate;
mod explain;
mod fail;
mod fork;
mod gauges;
mod groups;
mod invariants;
mod latency;
mod preempt;
mod prompt;
mod queues;
mod rank;
mod relegate;
mod round;
mod schedule;
mod session;
#[cfg(feature = "serde")]
mod snapshot;
mod submit;
mod target;
mod transfer;
mod view;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Reverse;

pub use control::Pause;
pub use estimate::Estimate;
pub use invariants::Violation;
#[cfg(feature = "serde")]
pub use snapshot::{RestoreError, Snapshot};

use crate::batch::{Batch, Ended};
use crate::config::{Config, PolicyKind};
use crate::encoder::{EncoderCache, EncoderItem};
use crate::error::ConfigError;
use crate::event::Event;
use crate::ids::RequestId;
use crate::kv::{Hashing, Pool};
use crate::outcome::Outcome;
use crate::policy::{self, Feasible, FixedKey, Key, Policy, Tenants};
use crate::queue::{IndexedHeap, PromptQueue, ReadyQueue};
use crate::state::{Demand, IdHasher, Slots};
use crate::stats::Stats;
use schedule::Build;
use target::Target;

/// Decides which tokens of which request run next, with several batches in flight.
///
/// Its methods are of four kinds. *Commands* put something in: requests by [`submit`](Self::submit), [`fork`](Self::fork),
/// [`extend`](Self::extend) and [`abort`](Self::abort); what they wait for by [`open`](Self::open), [`shut`](Self::shut), [`ready`](Self::ready)
/// and the `kv_` reports of transfers; [`set_drafts`](Self::set_drafts); time by [`tick`](Self::tick); and an operator's
/// [`pause`](Self::pause), [`drain`](Self::drain), [`reconfigure`](Self::reconfigure), [`set_stage_costs`](Self::set_stage_costs) and
/// [resets](Self::reset_all_kv). [`schedule`](Self::schedule) takes a batch out; [`complete`](Self::complete), [`lose`](Self::lose) and
/// [`fail`](Self::fail) hand its fate back, results oldest first. [`events`](Self::events) says what happened to requests; take them after each
/// call. The rest only looks.
///
/// ```
/// use cpp_sched::{Config, Event, Request, RequestId, Sample, Schedule, Scheduler};
///
/// let mut config = Config::default();
/// config.stages = 2;
/// config.max_batch_tokens = 64;
/// let mut scheduler = Scheduler::new(config)?;
/// scheduler.submit(Request::new(RequestId(1), vec![5; 100], 1)).unwrap();
///
/// // Two chunks of one prompt in flight at once.
/// let first = scheduler.schedule().batch().unwrap();
/// assert_eq!((first.rows()[0].num_computed_tokens, first.rows()[0].num_scheduled_tokens), (0, 64));
/// let first = first.id();
/// let second = scheduler.schedule().batch().unwrap();
/// assert_eq!((second.rows()[0].num_computed_tokens, second.rows()[0].samples), (64, true));
/// let second = second.id();
///
/// scheduler.complete(first, &[]).unwrap();
/// scheduler.complete(second, &[Sample { request: RequestId(1), tokens: &[9] }]).unwrap();
/// assert!(scheduler.events().any(|e| e == Event::Token { request: RequestId(1), index: 0, token: 9 }));
/// assert!(scheduler.is_idle());
/// # Ok::<(), cpp_sched::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Scheduler {
    config: Config,
    /// The policy, if it is the caller's.
    policy: Option<Arc<dyn Policy>>,
    depth: u32,
    model_len: u32,
    hashing: Hashing,
    now_ns: u64,
    next_seq: u64,
    next_batch: u64,
    slots: Slots,
    pool: Pool,
    encoder: EncoderCache,
    /// Encoder outputs given up since the last batch.
    encoder_freed: Vec<EncoderItem>,
    /// Requests whose next step is a decode, longest waiting first.
    ready: ReadyQueue,
    /// Admitted requests with prompt work that may be scheduled now.
    prompts: PromptQueue,
    /// Runnable requests that are not admitted.
    waiting: PromptQueue,
    /// Runnable requests that are not admitted, but hold the blocks of what they have computed or received.
    resident: PromptQueue,
    /// Role decode: requests that wait for blocks to receive their KV in.
    wanting: PromptQueue,
    /// Requests that hold blocks and may be made to give them up, least urgent first.
    victims: IndexedHeap<Reverse<FixedKey>>,
    /// Requests that hold blocks and cannot run (a shut gate, a paused session): in nobody's way, so they give way to anybody.
    idle: IndexedHeap<Reverse<FixedKey>>,
    /// The most senior admitted request that lacked a block when last looked at: nobody who could be its victim is admitted before it has
    /// one, or the blocks that a victim gave up would go back to that victim, for ever.
    lacking: Option<(Key, u32)>,
    /// Requests with prompt work by when they got their last chunk, where that is bounded. Some may have left their queue.
    waits: IndexedHeap<(u64, u64)>,
    /// Requests that the policy has put off, by until when; some may have left their queue.
    put_off: IndexedHeap<(u64, u64)>,
    /// Requests that wait for their first token, by their deadlines, where it matters whether they can be on time.
    feasible: Feasible,
    pace: relegate::Pace,
    round: round::Round,
    turnover: estimate::Turnover,
    /// Requests that decode and whose tokens are to keep a pace, the tightest first.
    paced: IndexedHeap<(u64, u32)>,
    refused: Option<admit::Refused>,
    tenants: Tenants<IdHasher>,
    /// Batches in flight, oldest first.
    in_flight: VecDeque<Box<Batch>>,
    /// Records of batches that are done, for the next ones.
    #[allow(clippy::vec_box, reason = "records move from hand to hand in each step, and are 300 bytes long")]
    spare: Vec<Box<Batch>>,
    build: Build,
    /// Requests of which a block has become whole, while a result is taken.
    whole: Vec<u32>,
    events: Vec<Event>,
    /// Preempted since the last batch.
    preempted: Vec<RequestId>,
    /// Ended since the last batch, of those that were admitted.
    ended: Vec<Ended>,
    /// Sum of `Slot::reserved`.
    reserved: u32,
    /// Sum of `Rare::owed`.
    owed: u32,
    admitted: u32,
    partial: u32,
    alive: u32,
    /// Requests that decode, and the tokens that they know: what balance is measured by.
    decoding: u32,
    decoding_tokens: u64,
    /// Requests alive with an output.
    with_output: u32,
    /// Batches in a row in which decodes left nothing for prompt work that waited.
    prompt_wait: u32,
    pause: Pause,
    draining: bool,
    /// Ends of transfers that the peer must keep, earliest first, those of one moment in the order of submission.
    leases: IndexedHeap<(u64, u64)>,
    /// Blocks of batches before this one are not published.
    publish_from: u64,
    keyed_at_ns: u64,
    target: Target,
    stats: Stats,
    /// Requests by what they wait for.
    gauges: gauges::Counts,
}

impl Scheduler {
    /// A scheduler with nothing in it. Room for `num_blocks` blocks is asked for, 32 bytes each and with prefix caching 73 at most; what is there for
    /// blocks that were never taken is not touched.
    ///
    /// # Errors
    /// The field of the configuration that is wrong.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Self::build(config, None)
    }

    fn build(config: Config, policy: Option<Arc<dyn Policy>>) -> Result<Self, ConfigError> {
        config.validate()?;
        if policy.is_none() && config.policy == PolicyKind::Custom {
            return Err(ConfigError::PolicyMissing);
        }
        let queue = if policy::moves_with_time(config.policy) { PromptQueue::moving } else { PromptQueue::default };
        let hasher = IdHasher::new(&config.hash_key.0);
        let mut pool = Pool::new(config.num_blocks, config.depth(), config.prefix_caching);
        if config.kv_events {
            pool.tell_events();
        }
        Ok(Self {
            depth: config.depth(),
            model_len: config.model_len(),
            hashing: Hashing::new(&config.hash_key.0),
            now_ns: 0,
            next_seq: 0,
            next_batch: 0,
            slots: Slots::new(hasher.clone()),
            pool,
            encoder: EncoderCache::new(config.encoder_cache_tokens, hasher.clone()),
            encoder_freed: Vec::new(),
            ready: ReadyQueue::default(),
            prompts: queue(),
            waiting: queue(),
            resident: queue(),
            wanting: queue(),
            victims: IndexedHeap::default(),
            idle: IndexedHeap::default(),
            lacking: None,
            waits: IndexedHeap::default(),
            put_off: IndexedHeap::default(),
            feasible: Feasible::default(),
            pace: relegate::Pace::default(),
            round: round::Round::default(),
            turnover: estimate::Turnover::default(),
            paced: IndexedHeap::default(),
            refused: None,
            tenants: Tenants::new(hasher),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            build: Build::default(),
            whole: Vec::new(),
            events: Vec::new(),
            preempted: Vec::new(),
            ended: Vec::new(),
            reserved: 0,
            owed: 0,
            admitted: 0,
            partial: 0,
            alive: 0,
            decoding: 0,
            decoding_tokens: 0,
            with_output: 0,
            prompt_wait: 0,
            pause: Pause::Off,
            draining: false,
            leases: IndexedHeap::default(),
            publish_from: 0,
            keyed_at_ns: 0,
            target: Target::new(config.cost, config.stages),
            stats: Stats::default(),
            gauges: gauges::Counts::default(),
            config,
            policy,
        })
    }

    /// From now on its next decode carries this many drafts, as far as budget, blocks and lengths allow. With a
    /// [`State`](crate::KvGroup::State) group none rides: a state cannot be taken back by a token.
    ///
    /// Drafts follow a token that is known. So with asynchronous scheduling a request is not scheduled ahead of its tokens while its number of
    /// drafts is above 0, whatever the [`async_distance`](Config::async_distance): it waits for each result, and others go on meanwhile. With 0 it
    /// goes ahead again, as soon as no drafts of it are in flight. What is in flight when the number changes stays there. O(log R).
    ///
    /// ```
    /// use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler};
    ///
    /// let mut config = Config::default();
    /// (config.stages, config.async_scheduling) = (2, true);
    /// let mut scheduler = Scheduler::new(config)?;
    /// for (id, drafts) in [(1, 3), (2, 0)] {
    ///     let mut request = Request::new(RequestId(id), vec![7; 20], 10);
    ///     request.drafts = drafts;
    ///     scheduler.submit(request)?;
    /// }
    /// let mut rows = Vec::new();
    /// for _ in 0..2 {
    ///     while let Schedule::Batch(batch) = scheduler.schedule() {
    ///         rows.push(batch.rows().iter().map(|row| (row.request.0, row.num_scheduled_tokens)).collect::<Vec<_>>());
    ///     }
    ///     let batch = scheduler.oldest_in_flight().ok_or("a batch")?.clone();
    ///     let samples = batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[5] });
    ///     scheduler.complete(batch.id(), &samples.collect::<Vec<_>>())?;
    /// }
    /// // Both prompts; the second one's decode ahead of its token; then its next one, and the first one's with three drafts.
    /// assert_eq!(rows, [vec![(1, 20), (2, 20)], vec![(2, 1)], vec![(2, 1), (1, 4)]]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_drafts(&mut self, request: RequestId, drafts: u32) -> Outcome {
        let Some(slot) = self.slots.find(request.0) else { return Outcome::NotAlive };
        self.slots[slot].drafts = self.drafts_that_ride(drafts);
        // It may go ahead of its tokens now, or no more; a decode whose token is known keeps its place.
        if self.slots[slot].ticket != 0 && self.slots[slot].demand(self.config.async_scheduling) == Demand::Nothing {
            self.leave_ready(slot);
            self.lacks_no_more(slot);
        }
        self.queue_running(slot);
        Outcome::Applied
    }

    fn drafts_that_ride(&self, drafts: u32) -> u32 {
        if self.config.kv_groups.has_state() { 0 } else { drafts }
    }

    /// What the encoder of plans looks at.
    pub(crate) fn wire_state(&self) -> crate::wire::State<'_> {
        crate::wire::State {
            tables: self.slots.tables(),
            in_flight: self.in_flight.iter(),
            next_batch: self.next_batch,
            encoded: &self.encoder,
        }
    }
}
