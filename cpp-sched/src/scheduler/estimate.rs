//! When a request would get its first token, and what memory it would need, if it were submitted now.

use alloc::collections::VecDeque;

use smallvec::SmallVec;

use super::Scheduler;
use crate::config::{Chunking, Pipelining};
use crate::cost::Attos;
use crate::error::SubmitError;
use crate::kv::Digest;
use crate::planner::{Segment, Work};
use crate::policy::RequestView;
use crate::request::Request;
use crate::state::{Chain, State};

/// What [`Scheduler::estimate`] predicts. Times are nanoseconds; without a cost model they are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Estimate {
    /// From the arrival of the request (its `arrival_ns`, else the clock) to its first token.
    pub ttft_ns: u64,
    /// From now until its first chunk enters the first stage.
    pub queue_ns: u64,
    /// Prompt work that comes first by the policy, as cost without the constants of batches.
    pub ahead_ns: u64,
    /// Its own prompt work beyond what the prefix cache has.
    pub own_ns: u64,
    /// Tokens of its prompt that the prefix cache has now.
    pub cached_tokens: u32,
    /// Blocks that its prompt needs beyond those.
    pub prompt_blocks: u32,
    /// Blocks that its longest run needs, cached ones included.
    pub most_blocks: u32,
    /// Whether a slot and the blocks of its prompt are there now, beyond what the requests that come first will take.
    pub fits_now: bool,
}

/// How often requests end while others wait to be admitted: what those wait for where slots or blocks are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(super) struct Turnover {
    /// When the last one ended while somebody waited, since somebody does.
    last_ns: Option<u64>,
    /// Nanoseconds from one end to the next, the last 64 counting most; 0 = not seen yet.
    gap_ns: u64,
}

impl Turnover {
    /// A request ends now. O(1).
    fn note(&mut self, now_ns: u64, somebody_waits: bool) {
        let before = core::mem::replace(&mut self.last_ns, somebody_waits.then_some(now_ns));
        if let Some(last) = before.filter(|_| somebody_waits) {
            // Several may end at one time: gaps of 0 belong to the mean.
            self.gap_ns = (self.gap_ns - self.gap_ns / 64).saturating_add(now_ns.saturating_sub(last).min(1 << 50) / 64);
        }
    }

    /// Whether a stored one can be.
    #[cfg(feature = "serde")]
    pub(super) fn is_sane(&self) -> bool {
        self.gap_ns < 1 << 60
    }
}

impl Scheduler {
    /// A request that was admitted has ended.
    pub(super) fn note_end(&mut self) {
        self.turnover.note(self.now_ns, self.waiting.peek().is_some());
    }

    /// Predicts the time to the first token of a request, and its need of KV, were it submitted now: for routers, and for refusing early
    /// ([`Latency::reject_above_millionths`](crate::Latency::reject_above_millionths)). Changes nothing.
    ///
    /// The prediction is *backlog ahead by the order of the policy + pipeline fill + own work*: batches in flight run on from when they were
    /// scheduled, then come as many batches under the rules of chunking as the prompt work ahead and the request's own need, each with its share
    /// of the decodes that run now; the last one passes all stages. What arrives later is not foreseen: under policies that let it pass, the
    /// answer is a lower bound. Where slots or blocks are short, requests end as often as they have lately while others waited (before any did:
    /// after as many tokens as the ended ones had on average).
    ///
    /// O(prompt tokens hashed, with prefix caching + requests with prompt work + stages * 64).
    ///
    /// # Errors
    /// As [`submit`](Self::submit) would refuse it, but for [`SubmitError::TooLate`].
    ///
    /// ```
    /// use cpp_sched::{Attos, Config, CostModel, Request, RequestId, Scheduler};
    /// let mut cost = CostModel::default();
    /// cost.c0 = Attos::from_ns(1_000);
    /// cost.c1 = Attos::from_ns(10);
    /// let mut config = Config::default();
    /// config.stages = 2;
    /// config.max_batch_tokens = 100;
    /// config.cost = Some(cost);
    /// let mut scheduler = Scheduler::new(config)?;
    /// let request = |id, tokens| Request::new(RequestId(id), vec![1; tokens], 5);
    /// // Two chunks of 2,000 ns, and one more stage for the second: 3 * 2,000.
    /// assert_eq!(scheduler.estimate(&request(1, 200)).unwrap().ttft_ns, 6_000);
    /// scheduler.submit(request(1, 200)).unwrap();
    /// // Behind it: a third chunk, of 50 tokens, leaves the second stage behind the two.
    /// let estimate = scheduler.estimate(&request(2, 50)).unwrap();
    /// assert_eq!((estimate.ahead_ns, estimate.own_ns), (2_000, 500));
    /// assert_eq!(estimate.ttft_ns, 7_500);
    /// # Ok::<(), cpp_sched::ConfigError>(())
    /// ```
    pub fn estimate(&self, request: &Request) -> Result<Estimate, SubmitError> {
        let max_out = self.check(request)?;
        let digests = self.digests_of(request);
        Ok(self.predict(request, max_out, &digests))
    }

    /// Refuses a request that would be too late, where that is configured.
    pub(super) fn check_lateness(&self, request: &Request, max_out: u32) -> Result<(), SubmitError> {
        let (Some(most), Some(ttft_slo_ns)) = (self.config.latency.reject_above_millionths, request.ttft_slo_ns) else { return Ok(()) };
        let digests = self.digests_of(request);
        let ttft_ns = self.predict(request, max_out, &digests).ttft_ns;
        let limit = u128::from(ttft_slo_ns) * u128::from(most) / 1_000_000;
        if u128::from(ttft_ns) > limit { Err(SubmitError::TooLate { request: request.id, ttft_ns, ttft_slo_ns }) } else { Ok(()) }
    }

    fn digests_of(&self, request: &Request) -> Chain {
        let root = self.hashing.root(&request.cache_salt, request.adapter);
        self.digests(request, root, &self.named(&request.spans, root, request.adapter)).0
    }

    fn predict(&self, request: &Request, max_out: u32, digests: &[Digest]) -> Estimate {
        let prompt_len = request.prompt.num_tokens();
        let hits = if request.skip_cache_read { 0 } else { self.count_found(prompt_len, digests) };
        let cached_tokens = hits * self.config.block_size;
        let own = Segment { start: cached_tokens, end: prompt_len };
        let ahead = self.ahead_of(request, prompt_len, own);
        let prompt_blocks = self.config.due_behind(hits, self.config.blocks(prompt_len), request.cross_tokens);
        let missing = prompt_blocks.saturating_add(ahead.blocks).saturating_sub(self.unreserved());
        let slots = self.admitted.saturating_add(ahead.waiting).saturating_add(1).saturating_sub(self.config.max_requests);
        let mut estimate = Estimate {
            cached_tokens,
            prompt_blocks,
            most_blocks: self.config.need(prompt_len, max_out, request.cross_tokens),
            fits_now: missing == 0 && slots == 0,
            ..Estimate::default()
        };
        let Some(cost) = &self.config.cost else { return estimate };
        estimate.ahead_ns = ahead.work.cost(cost).to_ns();
        estimate.own_ns = Work::of(own).cost(cost).to_ns();
        let batch = self.typical_batch(ahead.work, own);
        let held_up = self.room_after(missing, slots, batch.cost_ns);
        let mut line = self.line_up();
        for _ in 0..line.skip(batch.before, batch.cost_ns) {
            line.pass(batch.cost_ns);
        }
        // What is ahead runs while it waits for room.
        let batch = if self.now_ns.saturating_add(held_up) > line.next_entry() { self.typical_batch(Work::default(), own) } else { batch };
        line.now(self.now_ns.saturating_add(held_up));
        estimate.queue_ns = line.next_entry().saturating_sub(self.now_ns);
        // Without chunked pipelining the next chunk waits until the last one is back.
        let alone = self.config.pipelining != Pipelining::Chunk;
        let own = if alone { batch.own.min(Line::BATCHES) } else { line.skip(batch.own, batch.cost_ns) };
        for _ in 0..own {
            let end = line.pass(batch.cost_ns);
            line.now(if alone { end } else { 0 });
        }
        if alone {
            let round = batch.cost_ns.saturating_mul(self.config.stages.into());
            line.now(line.earliest.saturating_add(round.saturating_mul(batch.own - own)));
        }
        let first_token = line.pass(batch.last_ns);
        estimate.ttft_ns = first_token.saturating_sub(request.arrival_ns.unwrap_or(self.now_ns));
        estimate
    }

    /// Whole blocks of a prompt that the prefix cache has; at least one token is left to compute.
    fn count_found(&self, prompt_len: u32, digests: &[Digest]) -> u32 {
        let most = (((prompt_len - 1) / self.config.block_size) as usize).min(digests.len());
        let hits = digests[..most].partition_point(|&digest| self.pool.find(digest).is_some()) as u32;
        if self.is_grouped() { self.common_hits(digests, hits) } else { hits }
    }

    /// Prompt work that comes before the request. O(requests with prompt work).
    fn ahead_of(&self, request: &Request, prompt_len: u32, own: Segment) -> Ahead {
        let arrival = request.arrival_ns.unwrap_or(self.now_ns);
        let view = RequestView {
            seq: self.next_seq,
            priority: request.priority,
            arrival_ns: arrival,
            deadline_ns: request.ttft_slo_ns.map(|slo| arrival.saturating_add(slo)),
            now_ns: self.now_ns,
            prompt_tokens: prompt_len,
            prompt_left: own.end - own.start,
            work_left: self.prompt_work(own.start, own.end),
            work_total: self.prompt_work(0, prompt_len),
            outputs: 0,
            tenant: request.tenant,
            weight_millionths: request.weight_millionths,
        };
        let key = self.key_of(&view);
        let mut ahead = Ahead::default();
        for (other, slot) in self.prompts.iter().chain(self.waiting.iter()).chain(self.resident.iter()) {
            if other.compare(&key, self.now_ns).is_gt() {
                continue;
            }
            let s = &self.slots[slot];
            let waits = s.state == State::Waiting;
            let start = if waits && s.table.is_empty() { self.count_hits(slot) * self.config.block_size } else { s.scheduled };
            let work = Work::of(Segment { start: start.min(s.known()), end: s.known() });
            ahead.work.tokens = ahead.work.tokens.saturating_add(work.tokens);
            ahead.work.pairs = ahead.work.pairs.saturating_add(work.pairs);
            if waits {
                let cross = self.slots.cold(slot).cross_tokens;
                let blocks = self.config.due_behind(start / self.config.block_size, self.config.blocks(s.known()), cross);
                (ahead.waiting, ahead.blocks) = (ahead.waiting + 1, ahead.blocks.saturating_add(blocks));
            }
        }
        ahead
    }

    /// What the batches until the first token are like.
    fn typical_batch(&self, ahead: Work, own: Segment) -> Batches {
        let stages = self.target.stages();
        let Some(cost) = stages.iter().max_by_key(|stage| stage.c0.0.saturating_add(ahead.cost(stage).0)) else {
            return Batches::default();
        };
        let ride = self.decode_share();
        let (own_work, fixed) = (Work::of(own).cost(cost), Attos(cost.c0.0.saturating_add(ride.0)));
        let work = Attos(ahead.cost(cost).0.saturating_add(own_work.0));
        let tokens = ahead.tokens + u64::from(own.end - own.start);
        let decodes = self.decoding / self.depth;
        let room = match self.config.chunking {
            Chunking::Tokens { max } if ahead.tokens == 0 => {
                max.unwrap_or(u32::MAX).min(self.config.max_batch_tokens.saturating_sub(decodes))
            }
            _ => self.config.max_batch_tokens.saturating_sub(decodes),
        };
        let by_tokens = tokens.div_ceil(u64::from(room.max(1))).max(1);
        let target = self.expected_target(ahead, own, ride);
        let by_cost = target.map_or(1, |target| {
            let each = target.0.saturating_sub(fixed.0).max(1);
            u64::try_from(work.0.div_ceil(each)).unwrap_or(u64::MAX)
        });
        let count = by_tokens.max(by_cost);
        let full = match target {
            Some(target) if by_cost >= by_tokens => target.0.saturating_sub(fixed.0),
            // As the tokens share the work.
            _ => work.0.saturating_mul(u128::from(room.max(1))) / u128::from(tokens.max(1)),
        };
        let filled = full.min(work.0);
        let remainder = work.0.saturating_sub(filled.saturating_mul(u128::from(count - 1)));
        let before = ahead.cost(cost).0.checked_div(filled).map_or(0, |n| u64::try_from(n).unwrap_or(u64::MAX)).min(count - 1);
        Batches {
            before,
            own: count - 1 - before,
            cost_ns: Attos(fixed.0.saturating_add(filled)).to_ns(),
            last_ns: Attos(fixed.0.saturating_add(remainder)).to_ns(),
        }
    }

    /// What batches will be filled up to; none = as their tokens allow.
    fn expected_target(&self, ahead: Work, own: Segment, ride: Attos) -> Option<Attos> {
        let options = self.config.adaptive;
        let chosen = match self.config.chunking {
            Chunking::Tokens { .. } => return None,
            Chunking::Cost { target_ns, .. } => return Some(Attos::from_ns(target_ns)),
            Chunking::Adaptive => match options.target_ns {
                Some(pinned) => Some(Attos::from_ns(pinned)),
                None => self.ideal_with(ahead, own, ride),
            },
        };
        let latency = options.token_latency_ns.filter(|_| self.decoding > 0).map(|latency| self.per_stage(latency));
        [chosen, options.max_target_ns.map(Attos::from_ns), latency, self.paced_share()].into_iter().flatten().min()
    }

    /// How long it takes until requests that run have ended so that blocks and slots are there.
    fn room_after(&self, blocks: u32, slots: u32, batch_ns: u64) -> u64 {
        if (blocks == 0 && slots == 0) || self.admitted == 0 {
            return 0;
        }
        let held = (self.pool.usage().held / self.admitted).max(1);
        let ends = u64::from(slots.max(blocks.div_ceil(held)));
        if self.turnover.gap_ns > 0 {
            return self.turnover.gap_ns.saturating_mul(ends);
        }
        let outputs = self.stats.output_tokens / self.stats.finished.max(1);
        // Those that run are halfway on average, and a token takes a round.
        let round = batch_ns.saturating_mul(self.depth.max(self.config.stages).into());
        let (life, ends) = (u128::from(outputs.max(1)) * u128::from(round), ends.min(self.admitted.into()));
        u64::try_from(life * u128::from(ends) / u128::from(self.admitted)).unwrap_or(u64::MAX)
    }

    /// The pipeline as it will be when what is in flight has run as predicted.
    fn line_up(&self) -> Line {
        let stages = self.config.stages.min(Line::STAGES) as usize;
        let depth = self.depth as usize;
        let mut line = Line {
            depth,
            free_at: SmallVec::from_elem(0, stages),
            extra: u64::from(self.config.stages) - stages as u64,
            ..Line::default()
        };
        for batch in &self.in_flight {
            line.now(batch.scheduled_ns);
            let end = line.pass(batch.cost_ns);
            // It is not back: the prediction was too early.
            line.shift(self.now_ns.saturating_sub(end));
        }
        line.now(self.now_ns);
        line
    }
}

/// What comes before a request.
#[derive(Clone, Copy, Debug, Default)]
struct Ahead {
    work: Work,
    /// Requests that are not admitted.
    waiting: u32,
    /// Blocks that their prompts need.
    blocks: u32,
}

/// Batches until a first token.
#[derive(Clone, Copy, Debug, Default)]
struct Batches {
    /// With other prompt work alone.
    before: u64,
    /// With own work, but for the last.
    own: u64,
    cost_ns: u64,
    last_ns: u64,
}

/// When each stage is free: stages run batches in order, one at a time.
#[derive(Clone, Debug, Default)]
struct Line {
    free_at: SmallVec<[u64; 16]>,
    /// Stages beyond those that are followed one by one; a batch passes them without waiting.
    extra: u64,
    earliest: u64,
    /// When the last batches are out, oldest first, as many as may be in flight.
    out_at: VecDeque<u64>,
    depth: usize,
}

impl Line {
    const STAGES: u32 = 64;
    /// Batches that are followed one by one; behind them the pipeline goes steadily.
    const BATCHES: u64 = 64;

    /// Nothing enters before this time.
    fn now(&mut self, now_ns: u64) {
        self.earliest = self.earliest.max(now_ns);
    }

    fn next_entry(&self) -> u64 {
        let slot = self.out_at.front().filter(|_| self.out_at.len() >= self.depth);
        self.free_at.first().copied().unwrap_or(0).max(self.earliest).max(slot.copied().unwrap_or(0))
    }

    /// A batch that takes `cost_ns` on each stage goes through; when it is out.
    fn pass(&mut self, cost_ns: u64) -> u64 {
        let slot = if self.out_at.len() < self.depth { None } else { self.out_at.pop_front() };
        let mut at = self.earliest.max(slot.unwrap_or(0));
        for free_at in &mut self.free_at {
            at = at.max(*free_at).saturating_add(cost_ns);
            *free_at = at;
        }
        let out = at.saturating_add(cost_ns.saturating_mul(self.extra));
        self.out_at.push_back(out);
        out
    }

    /// Everything is later by this.
    fn shift(&mut self, by_ns: u64) {
        for time in self.free_at.iter_mut().chain(&mut self.out_at) {
            *time = time.saturating_add(by_ns);
        }
    }

    /// Lets all but the last few of `batches` equal batches through at once; how many are left to pass one by one.
    fn skip(&mut self, batches: u64, cost_ns: u64) -> u64 {
        let steady = batches.saturating_sub(Self::BATCHES);
        if steady > 0 {
            // The first stage is busy all that time, and the others follow it.
            self.now(self.next_entry());
            self.now(self.earliest.saturating_add(steady.saturating_mul(cost_ns)));
            self.shift(steady.saturating_mul(cost_ns));
        }
        batches - steady
    }
}
