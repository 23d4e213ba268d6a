//! Random inputs for a scheduler, of every kind, without a judge: what is compared is one scheduler with another.

#[path = "../../src/splitmix.rs"]
mod splitmix;

use cpp_sched::journal::Input;
use cpp_sched::{
    Admission, Attos, Balance, Batch, Chunking, Config, ConfigError, CostModel, Fork, Gate, HashKey, KvGroup, KvGroups, ModelDims, Pause,
    Pipelining, PolicyKind, PreemptedOutput, Prompt, Request, RequestId, Role, Scheduler, Span, TokenId, Workspace,
};

/// Draws inputs that fit the state of a scheduler, mostly.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    state: u64,
}

impl Inputs {
    /// The inputs of a seed.
    #[must_use]
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D }
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        splitmix::next(&mut self.state) % n.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A scheduler with a small pool and any configuration.
    pub(crate) fn scheduler(&mut self) -> Scheduler {
        loop {
            let config = self.config();
            match Scheduler::new(config) {
                Ok(scheduler) => return scheduler,
                // What does not go together is refused, and for the reason that is documented; the next draw is another one.
                Err(error) => assert!(is_documented(&config, error), "{config:?} is refused: {error}"),
            }
        }
    }

    fn config(&mut self) -> Config {
        use PolicyKind::{Edf, Fair, Fcfs, Hybrid, Lars, Priority, Srpf};
        let mut c = Config::default();
        c.block_size = self.pick(&[4, 1, 2, 3, 8]);
        c.num_blocks = 2 + self.below(23) as u32;
        c.max_batch_tokens = self.pick(&[16, 1, 3, 7, 32, 64]);
        c.max_batch_requests = self.pick(&[8, 1, 2, 4]);
        c.max_requests = self.pick(&[8, 1, 2, 4]);
        c.max_model_len = self.pick(&[None, None, Some(c.block_size * c.num_blocks / 2 + 1)]);
        c.stages = 1 + self.below(4) as u32;
        c.max_in_flight = self.pick(&[None, None, Some(1), Some(2), Some(6)]);
        c.pipelining = self.pick(&[Pipelining::Chunk, Pipelining::Chunk, Pipelining::Request, Pipelining::None]);
        c.policy = self.pick(&[Fcfs, Priority, Edf, Srpf, Lars, Fair, Hybrid, Lars]);
        c.srpf_ageing_ns = self.pick(&[None, Some(1), Some(40)]);
        c.priority_ageing_ns = self.pick(&[None, Some(1), Some(90)]);
        c.hybrid_alpha_ns = self.pick(&[8, 0, 1, 100]);
        c.admission = self.pick(&[Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict, Admission::Lazy]);
        c.prefix_caching = self.pick(&[true, true, false]);
        c.async_scheduling = self.one_in(3);
        c.async_distance = self.pick(&[1, 1, 3]);
        c.chunks_per_batch = self.pick(&[1, 1, 2, 4]);
        c.balance = self.pick(&[Balance::Off, Balance::Off, Balance::Count, Balance::Cost]);
        c.role = self.pick(&[Role::Unified, Role::Unified, Role::Unified, Role::Prefill, Role::Decode]);
        c.preempted_output = self.pick(&[PreemptedOutput::Deliver, PreemptedOutput::Drop]);
        c.max_prompt_tokens_per_batch = self.pick(&[None, None, Some(2), Some(6)]);
        c.max_partial_prefills = self.pick(&[None, None, Some(1), Some(2)]);
        c.max_bypass = self.pick(&[0, 0, 1, 3]);
        c.max_prompt_wait = self.pick(&[8, 1, 2]);
        c.max_adapters_per_batch = self.pick(&[None, None, None, Some(1)]);
        c.lookahead_tokens = self.pick(&[0, 0, 0, 2]);
        c.kv_consumers = self.pick(&[1, 2]);
        c.kv_lease_ns = self.pick(&[None, None, Some(500)]);
        c.kv_events = self.one_in(3);
        c.draft_slots = self.pick(&[0, 0, 0, 1, 2]);
        if self.one_in(3) {
            c.kv_groups = self.groups(c.block_size);
            c.num_blocks *= 1 + c.kv_groups.as_slice().len() as u32;
        }
        c.encoder_budget_tokens = self.pick(&[None, Some(6), Some(10), Some(20)]);
        c.encoder_cache_tokens = self.pick(&[None, None, Some(6), Some(9), Some(30)]);
        c.hash_key = HashKey([self.below(256) as u8; 16]);
        c.model = self.one_in(2).then(|| ModelDims::new(2, 64, 4, 2, 16, 128));
        let mut cost = CostModel::default();
        cost.c0 = Attos::from_ns(self.pick(&[0, 50, 400]));
        cost.c1 = Attos::from_ns(self.pick(&[10, 0, 1]));
        cost.c2 = Attos(self.pick(&[0, 500_000_000, 3_300_000_007]));
        cost.c3 = Attos::from_ns(self.pick(&[0, 1, 7]));
        cost.c4 = Attos(self.pick(&[0, 0, 250_000_000]));
        cost.c5 = Attos::from_ns(self.pick(&[0, 20]));
        cost.tile = self.pick(&[0, 0, 4]);
        cost.linear_floor = Attos::from_ns(self.pick(&[0, 0, 90]));
        cost.prefill_read = Attos(self.pick(&[0, 0, 700_000_000]));
        c.cost = self.one_in(2).then_some(cost);
        c.latency.follow_slack = self.one_in(2);
        c.latency.max_decode_wait = self.pick(&[8, 1, 2]);
        c.latency.max_prefill_wait_ns = self.pick(&[None, None, Some(1), Some(300)]);
        c.latency.space_sharing = self.one_in(3);
        c.latency.reject_above_millionths = self.pick(&[None, None, Some(1_000_000)]).filter(|_| c.cost.is_some());
        c.relegation = self.one_in(2) && c.cost.is_some();
        c.feasibility_guard = self.one_in(2) && c.cost.is_some();
        c.adaptive.align = self.pick(&[64, 1, 2, 5]);
        c.adaptive.min = self.pick(&[None, None, Some(2)]);
        c.adaptive.target_ns = self.pick(&[None, None, Some(300)]);
        c.adaptive.max_target_ns = self.pick(&[None, None, Some(500)]);
        c.adaptive.token_latency_ns = self.pick(&[None, None, Some(900)]);
        c.workspace =
            self.one_in(5).then(|| Workspace { bytes: self.pick(&[400, 40, 4000]), per_token: self.below(20), per_history: self.below(5) });
        c.chunking = match self.below(4) {
            0 if c.cost.is_some() => Chunking::Adaptive,
            1 if c.cost.is_some() => {
                Chunking::Cost { target_ns: self.pick(&[200, 1, 60, 1000]), align: self.pick(&[1, 1, 2]), min: self.pick(&[1, 1, 3]) }
            }
            _ => Chunking::Tokens { max: self.pick(&[None, Some(1), Some(3), Some(10)]) },
        };
        c
    }

    /// Full attention and one to three more groups.
    fn groups(&mut self, block_size: u32) -> KvGroups {
        let mut groups = vec![KvGroup::Full];
        let grain = block_size * (1 + self.below(2) as u32);
        for _ in 0..=self.below(3) {
            groups.push(match self.below(5) {
                0 => KvGroup::Full,
                1 => KvGroup::ChunkedLocal { tokens: 1 + self.below(12) as u32 },
                2 => KvGroup::State { grain },
                3 if !groups.contains(&KvGroup::Cross) => KvGroup::Cross,
                _ => KvGroup::Window { tokens: 1 + self.below(12) as u32 },
            });
        }
        KvGroups::new(&groups).expect("a full group first, one grain, one cross-attention")
    }

    fn id(&mut self) -> RequestId {
        RequestId(self.below(10))
    }

    fn prompt(&mut self, scheduler: &Scheduler) -> Prompt {
        let config = scheduler.config();
        let most = u64::from(config.model_len().min(60));
        let len = 1 + self.below(most) as u32;
        let family = self.below(3) as u32;
        let fork = self.below(u64::from(len) + 1) as u32;
        let own = self.below(1000) as u32;
        let token = |at: u32| if at < fork { family * 100 + at % 7 } else { own + at };
        if self.one_in(4) {
            let blocks = if self.one_in(3) { 0 } else { len / config.block_size };
            let hash = |block: u32| [(family * 31 + block) as u8 ^ (u8::from((block + 1) * config.block_size > fork) * own as u8); 16];
            Request::with_lengths(RequestId(0), len, (0..blocks).map(hash).collect(), 1).prompt
        } else {
            Prompt::Tokens((0..len).map(token).collect())
        }
    }

    fn request(&mut self, scheduler: &Scheduler) -> Request {
        let mut request = Request::new(self.id(), Vec::new(), 1 + self.below(12) as u32);
        request.prompt = self.prompt(scheduler);
        request.priority = self.below(4) as i64 - 1;
        request.stop_tokens = if self.one_in(3) { vec![self.below(20) as u32] } else { Vec::new() };
        request.ttft_slo_ns = self.one_in(2).then(|| self.below(5000));
        request.tbt_slo_ns = self.one_in(3).then(|| self.below(2000));
        request.arrival_ns = self.one_in(4).then(|| scheduler.now_ns().saturating_sub(self.below(100)));
        request.tenant = self.one_in(2).then(|| self.below(3));
        request.weight_millionths = 1 + self.below(3_000_000);
        request.cache_salt = if self.one_in(4) { vec![1] } else { Vec::new() };
        request.gates = if self.one_in(6) { Gate::Other.into() } else { request.gates };
        request.drafts = if self.one_in(3) { self.below(4) as u32 } else { 0 };
        request.constrained = self.one_in(5);
        request.min_tokens = if self.one_in(5) { self.below(3) as u32 } else { 0 };
        request.adapter = self.one_in(4).then(|| self.below(3) as u32);
        request.skip_cache_read = self.one_in(8);
        request.pooling = self.one_in(12);
        request.session = self.one_in(6);
        if scheduler.config().kv_groups.as_slice().contains(&KvGroup::Cross) || self.one_in(40) {
            request.cross_tokens = self.below(12) as u32;
        }
        request.spans = if self.one_in(2) { self.spans(request.prompt.num_tokens()) } else { Vec::new() };
        request
    }

    /// Spans of a prompt, mostly ones that fit, of few contents.
    fn spans(&mut self, len: u32) -> Vec<Span> {
        let (mut at, mut spans) = (0, Vec::new());
        loop {
            let start = at + self.below(8) as u32;
            let long = 1 + self.below(6) as u32;
            if start + long > len && !self.one_in(40) {
                return spans;
            }
            let content = self.below(5) as u32;
            let mut span = Span::encoded(start, long, 1 + content, [content as u8; 16]);
            span.atomic = self.one_in(3);
            if self.one_in(5) {
                span = Span::atomic(start, long, [9; 16]);
            }
            spans.push(span);
            if spans.len() == 12 {
                return spans;
            }
            at = span.end();
        }
    }

    /// A result of a batch.
    pub(crate) fn result(&mut self, batch: &Batch) -> Input {
        let sampling: Vec<_> = batch.rows().iter().filter(|row| row.samples).copied().collect();
        let samples = sampling.iter().map(|row| {
            let tokens = 1 + self.below(u64::from(row.num_draft_tokens) + 1) as u32;
            (row.request, (0..tokens).map(|i| (row.num_computed_tokens + i) * 7 % 20).collect::<Vec<TokenId>>())
        });
        Input::Complete { batch: batch.id(), samples: samples.collect() }
    }

    /// The next input.
    pub(crate) fn next(&mut self, scheduler: &Scheduler) -> Input {
        let id = self.id();
        match self.below(64) {
            0..=22 => Input::Schedule,
            23..=38 => match scheduler.oldest_in_flight() {
                Some(batch) => self.result(batch),
                None => Input::Schedule,
            },
            39..=46 => Input::Submit(Box::new(self.request(scheduler))),
            47 => Input::Abort(id),
            48 => Input::Ready(id),
            49 => Input::Tick(scheduler.now_ns().saturating_add(self.below(400))),
            50 if self.one_in(2) => Input::Fail,
            50 => Input::Lose(
                scheduler.oldest_in_flight().map_or(cpp_sched::BatchId(0), |b| cpp_sched::BatchId(b.id().0.saturating_add(self.below(3)))),
            ),
            51 => Input::SetDrafts(id, self.below(4) as u32),
            52 => Input::Open(id, Gate::Grammar),
            53 if self.one_in(2) => Input::Shut(id, Gate::Grammar),
            54 => Input::KvSent(id),
            55 => Input::KvSentBy(id, self.below(3) as u32),
            56 if self.one_in(4) => Input::KvSendFailed(id),
            57 | 58 => Input::KvArrived(id),
            59 if self.one_in(3) => Input::KvFailed(id),
            60 if self.one_in(2) => {
                let input = self.prompt(scheduler);
                let spans = self.spans(input.num_tokens());
                Input::ExtendWith { request: id, input, spans, max_tokens: 1 + self.below(5) as u32 }
            }
            60 => Input::Extend { request: id, input: self.prompt(scheduler), max_tokens: 1 + self.below(5) as u32 },
            61 => {
                let child = self.request(scheduler);
                Input::Fork { parent: id, child: Box::new(Fork::like(&child, child.id)) }
            }
            62 => match self.below(12) {
                0 => Input::Pause(Pause::All),
                1 => Input::Pause(Pause::New),
                2 => Input::ResetPrefixCache,
                3 => Input::ResetAllKv,
                4 => Input::Drain(true),
                5 | 6 => Input::Drain(false),
                7 => Input::Reconfigure(Box::new(self.changed(scheduler.config()))),
                8 => Input::SetStageCosts(self.costs(scheduler.config().stages)),
                _ => Input::Pause(Pause::Off),
            },
            _ => Input::Schedule,
        }
    }

    /// A configuration with a few other budgets, which need not be valid.
    fn changed(&mut self, config: &Config) -> Config {
        let mut c = *config;
        for _ in 0..=self.below(2) {
            match self.below(12) {
                0 => c.max_batch_tokens = 1 + self.below(40) as u32,
                1 => c.max_batch_requests = 1 + self.below(8) as u32,
                2 => c.max_requests = self.below(8) as u32,
                3 => c.chunking = Chunking::Tokens { max: self.pick(&[None, Some(2), Some(7)]) },
                4 => c.chunking = Chunking::Adaptive,
                5 => c.max_partial_prefills = self.pick(&[None, Some(1), Some(2)]),
                6 => c.max_prompt_tokens_per_batch = self.pick(&[None, Some(3), Some(9)]),
                7 => c.encoder_budget_tokens = self.pick(&[None, Some(5), Some(12)]),
                8 => c.kv_lease_ns = self.pick(&[None, Some(200)]),
                9 => c.balance = self.pick(&[Balance::Off, Balance::Count, Balance::Cost]),
                10 => c.latency.max_prefill_wait_ns = self.pick(&[None, Some(1), Some(300)]),
                _ => (c.max_bypass, c.draft_slots) = (self.below(4) as u32, self.below(3) as u32),
            }
        }
        c
    }

    /// A cost model for all stages, or one for each; now and then one too many.
    fn costs(&mut self, stages: u32) -> Vec<CostModel> {
        let count = if self.one_in(2) { 1 } else { u64::from(stages.min(9)) + self.below(2) };
        let mut model = || {
            let mut model = CostModel::default();
            model.c0 = Attos::from_ns(self.below(300));
            model.c1 = Attos::from_ns(self.below(20));
            model.c2 = Attos(u128::from(self.below(3)) * 700_000_000);
            model
        };
        (0..count).map(|_| model()).collect()
    }
}

/// Whether the configuration is refused for something that its documentation says.
fn is_documented(config: &Config, error: ConfigError) -> bool {
    let state = config.kv_groups.as_slice().iter().any(|group| matches!(group, KvGroup::State { .. }));
    match error {
        ConfigError::LazyPrefill => config.role == Role::Prefill && config.admission == Admission::Lazy,
        ConfigError::KvGroups { .. } => state || config.role != Role::Unified,
        ConfigError::TooLarge { field: "draft_slots", most } => u64::from(config.draft_slots) > most,
        ConfigError::TooLarge { field: "chunking.align" | "chunking.min", most } => most == u64::from(config.max_batch_tokens),
        _ => false,
    }
}
