//! A scheduler that is driven by hand.

use cpp_sched::{Config, Event, KvGroup, KvGroups, KvUsage, Request, RequestId, Sample, Schedule, Scheduler};

/// A scheduler that is checked after each step, and samples by position.
pub(crate) struct Bench(pub(crate) Scheduler);

/// A row: whose, from where, to where.
pub(crate) type Cell = (u64, u32, u32);

impl Bench {
    pub(crate) fn new(groups: &[KvGroup], set: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::default();
        (config.block_size, config.num_blocks, config.max_batch_tokens) = (4, 100, 8);
        config.kv_groups = KvGroups::new(groups).unwrap();
        set(&mut config);
        Self(Scheduler::new(config).unwrap())
    }

    pub(crate) fn submit(&mut self, id: u64, len: u32, max_tokens: u32) -> &mut Self {
        self.take(Request::new(RequestId(id), (0..len).collect(), max_tokens))
    }

    pub(crate) fn take(&mut self, request: Request) -> &mut Self {
        self.0.submit(request).unwrap();
        self.checked()
    }

    pub(crate) fn checked(&mut self) -> &mut Self {
        self.0.check_invariants().unwrap();
        self
    }

    /// The next batch.
    pub(crate) fn step(&mut self) -> Vec<Cell> {
        let rows = match self.0.schedule() {
            Schedule::Batch(batch) => batch.rows().iter().map(|row| (row.request.0, row.num_computed_tokens, row.end())).collect(),
            Schedule::Empty(_) => Vec::new(),
        };
        self.checked();
        rows
    }

    /// Batches until there is none.
    pub(crate) fn fill(&mut self) -> Vec<Vec<Cell>> {
        std::iter::from_fn(|| Some(self.step()).filter(|rows| !rows.is_empty())).collect()
    }

    /// The oldest batch comes back.
    pub(crate) fn complete(&mut self) -> &mut Self {
        let batch = self.0.oldest_in_flight().expect("a batch in flight").clone();
        let tokens: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| (row.request, 1000 + row.end())).collect();
        let samples: Vec<_> =
            tokens.iter().map(|(request, token)| Sample { request: *request, tokens: std::slice::from_ref(token) }).collect();
        self.0.complete(batch.id(), &samples).unwrap();
        self.checked()
    }

    /// Runs until nothing is left to do; the tokens of each request, in order.
    pub(crate) fn run(&mut self) -> Vec<(u64, u32)> {
        let mut tokens = Vec::new();
        loop {
            self.fill();
            tokens.extend(self.0.events().filter_map(|event| match event {
                Event::Token { request, token, .. } => Some((request.0, token)),
                _ => None,
            }));
            if self.0.in_flight() == 0 {
                return tokens;
            }
            self.complete();
            tokens.extend(self.0.events().filter_map(|event| match event {
                Event::Token { request, token, .. } => Some((request.0, token)),
                _ => None,
            }));
        }
    }

    pub(crate) fn run_to_end(&mut self) -> &mut Self {
        self.run();
        assert!(self.0.is_idle());
        let KvUsage { total, free, cached, .. } = self.0.kv_usage();
        assert_eq!(free + cached, total, "blocks leak");
        self
    }

    /// The entries that a request holds in a group.
    pub(crate) fn held(&self, id: u64, group: usize) -> (u32, u32) {
        let (first, blocks) = self.0.group_table(RequestId(id), group).unwrap();
        (first, first + blocks.len() as u32)
    }

    pub(crate) fn committed(&self, id: u64) -> u32 {
        self.0.num_committed_tokens(RequestId(id)).unwrap()
    }
}

pub(crate) const FULL: KvGroup = KvGroup::Full;

pub(crate) const fn window(tokens: u32) -> KvGroup {
    KvGroup::Window { tokens }
}

pub(crate) const fn local(tokens: u32) -> KvGroup {
    KvGroup::ChunkedLocal { tokens }
}

pub(crate) const fn state(grain: u32) -> KvGroup {
    KvGroup::State { grain }
}

/// With a prefix cache.
pub(crate) fn caching(groups: &[KvGroup], num_blocks: u32) -> Bench {
    Bench::new(groups, |c| (c.prefix_caching, c.num_blocks, c.max_batch_tokens) = (true, num_blocks, 64))
}
