//! What requests take: bytes each while they wait and while they run, and that nothing is left of those that have gone.

use allocation_counter::measure;
use cpp_sched::{Admission, Config, Event, Fork, Request, RequestId, Sample, Schedule, Scheduler, TokenId};

/// Bytes of a request beside 4 for each block and token and 16 for each hash.
const MOST: u64 = 256;

fn config(running: u32, caching: bool) -> Config {
    let mut config = Config::default();
    config.num_blocks = running * 16;
    config.max_requests = running;
    config.max_batch_requests = running;
    config.max_batch_tokens = running * 128;
    config.prefix_caching = caching;
    config
}

/// Bytes that are kept of each of so many requests once `work` has put them in.
fn bytes_each(requests: u64, work: impl FnOnce()) -> u64 {
    let info = measure(work);
    u64::try_from(info.bytes_current).expect("something is kept") / requests
}

fn tokens(id: u64, len: u32) -> Vec<TokenId> {
    (0..len).map(|at| (id as u32).wrapping_mul(0x9e37_79b9).wrapping_add(at)).collect()
}

#[test]
fn a_waiting_request_takes_few_bytes() {
    for requests in [20_000, 65_537, 100_000, 150_000] {
        let mut scheduler = Scheduler::new(config(64, true)).unwrap();
        let bytes = bytes_each(requests, || {
            for id in 0..requests {
                scheduler.submit(Request::with_lengths(RequestId(id), 500, Vec::new(), 100)).unwrap();
            }
        });
        println!("{requests} that wait, tokens kept by the caller: {bytes} bytes each");
        assert!(bytes <= MOST, "{requests} requests take {bytes} bytes each");
    }
    // With its tokens, and a name for each whole block and for the root of the chain.
    let requests = 20_000;
    let mut scheduler = Scheduler::new(config(64, true)).unwrap();
    let bytes = bytes_each(requests, || {
        for id in 0..requests {
            let mut prompt = Vec::with_capacity(500);
            prompt.extend(tokens(id, 100));
            scheduler.submit(Request::new(RequestId(id), prompt, 100)).unwrap();
        }
    });
    let own = bytes - 4 * 100 - 16 * (100 / 16 + 1);
    println!("{requests} that wait, with 100 tokens and their hashes: {bytes} bytes each, {own} beside them");
    assert!(own <= MOST, "{own} bytes beside tokens and hashes");
}

/// What is copied when lists grow, and is kept twice meanwhile. A list of records that begin at lines of the cache was copied as a whole by most
/// allocators, each time: that took longer than all the rest of `submit`.
#[test]
fn those_that_wait_are_not_copied_when_others_come() {
    let requests = 100_000;
    let mut scheduler = Scheduler::new(config(64, true)).unwrap();
    let info = measure(|| {
        for id in 0..requests {
            scheduler.submit(Request::with_lengths(RequestId(id), 500, Vec::new(), 100)).unwrap();
        }
    });
    let (asked, most) = (info.bytes_total / requests, info.bytes_max / requests);
    println!("{requests} that wait: {asked} bytes each were asked for in all, {most} at most at a time");
    assert!(asked <= 1024 && most <= MOST, "{asked} bytes each were asked for in all, {most} at a time");
}

#[test]
fn a_running_request_takes_few_bytes() {
    for running in [1024, 4096] {
        let (prompt, outputs) = (60u32, 180u32);
        let mut scheduler = Scheduler::new(config(running, true)).unwrap();
        let mut rows = 0;
        let bytes = bytes_each(running.into(), || {
            let mut next = 0;
            for token in 0..running / 32 + 8 {
                // They come few at a time: a queue is as long as it ever was.
                for id in next..running.min(next + 32) {
                    scheduler.submit(Request::new(RequestId(id.into()), tokens(id.into(), prompt), outputs)).unwrap();
                }
                next += 32;
                let Schedule::Batch(batch) = scheduler.schedule() else { panic!("work is left") };
                let id = batch.id();
                rows = batch.rows().len() as u64;
                let token = [token];
                let samples: Vec<_> = batch.rows().iter().map(|row| Sample { request: row.request, tokens: &token }).collect();
                scheduler.complete(id, &samples).unwrap();
                scheduler.events().for_each(drop);
            }
        });
        assert_eq!((rows, scheduler.stats().running), (running.into(), running));
        // Room for all outputs is made at the admission: 15 blocks, 240 tokens; 3 blocks of the prompt are hashed.
        let own = bytes - 4 * 15 - 4 * u64::from(prompt + outputs) - 16 * 4;
        // A row, an event and a place in the queue of decodes are of the batch, and grow with it alone.
        let of_batch = (size_of::<cpp_sched::Row>() + size_of::<Event>()) as u64;
        println!(
            "{running} that run: {bytes} bytes each, {own} beside blocks, tokens and hashes, {of_batch} or more of that for its row and event"
        );
        // Beside its record it stands in the queue of decodes and among the victims; places in three lists are kept for it.
        assert!(own - of_batch <= MOST, "{own} bytes beside blocks, tokens and hashes");
    }
}

#[test]
fn a_large_pool_costs_what_is_used_of_it() {
    let mut config = Config::default();
    (config.num_blocks, config.prefix_caching, config.stages) = (1 << 20, true, 2);
    config.max_batch_tokens = 1 << 20;
    let mut scheduler = None;
    let info = measure(|| scheduler = Some(Scheduler::new(config).unwrap()));
    let each = info.bytes_current / (1 << 20);
    println!("a pool of a million blocks: room for {each} bytes a block, in {} allocations", info.count_total);
    // Room that is asked for in few large pieces, most of it all zeros, so that an allocator over virtual memory need not touch it.
    assert!(each <= 80 && info.count_total < 32, "{each} bytes a block, {} allocations", info.count_total);
    let mut scheduler = scheduler.unwrap();
    // A context of ten million tokens, its tokens kept by the caller.
    let len = 10_000_000;
    scheduler.submit(Request::with_lengths(RequestId(1), len, vec![[7; 16]; len as usize / 16], 2)).unwrap();
    let mut tokens = 0;
    while !scheduler.is_idle() {
        while let Schedule::Batch(_) = scheduler.schedule() {}
        let oldest = scheduler.oldest_in_flight().expect("something is in flight");
        let (id, samples) = (oldest.id(), oldest.num_samples());
        let sample = [Sample { request: RequestId(1), tokens: &[5] }];
        scheduler.complete(id, &sample[..samples as usize]).unwrap();
        tokens += scheduler.events().filter(|event| matches!(event, Event::Token { .. })).count();
    }
    assert_eq!((tokens, scheduler.kv_usage().cached), (2, len / 16));
    scheduler.check_invariants().unwrap();
}

/// A pipeline that is always short of blocks, and requests of all kinds that come and go.
struct Crowd {
    scheduler: Scheduler,
    next: u64,
    draw: u64,
    events: Vec<Event>,
    sampling: Vec<(RequestId, usize)>,
    forked: u64,
    extended: u64,
}

impl Crowd {
    fn new() -> Self {
        let mut config = Config::default();
        (config.stages, config.block_size, config.num_blocks) = (2, 4, 150);
        (config.max_requests, config.max_batch_tokens, config.max_model_len) = (16, 64, Some(120));
        (config.prefix_caching, config.async_scheduling, config.admission) = (true, true, Admission::ReservePrompt);
        (config.async_distance, config.kv_events) = (2, true);
        let scheduler = Scheduler::new(config).unwrap();
        let (events, sampling) = (Vec::with_capacity(4096), Vec::with_capacity(64));
        Self { scheduler, next: 0, draw: 1, events, sampling, forked: 0, extended: 0 }
    }

    fn draw(&mut self, most: u64) -> u64 {
        self.draw = self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.draw >> 33) % most
    }

    fn submit(&mut self) {
        let (prefix, len, outputs, kind) = (self.draw(8), self.draw(60) + 4, self.draw(12) + 1, self.draw(12));
        let id = RequestId(self.next);
        self.next += 1;
        // One of a few prefixes, and a tail of its own.
        let prompt = (0..len).map(|at| if at < 24 { (prefix * 100 + at) as u32 } else { (id.0 * 64 + at) as u32 }).collect();
        let mut request = if kind == 0 {
            Request::with_lengths(id, len as u32, Vec::new(), outputs as u32)
        } else {
            Request::new(id, prompt, outputs as u32)
        };
        request.session = kind == 1;
        request.drafts = if kind == 2 { 3 } else { 0 };
        request.priority = if kind == 3 { -1 } else { 0 };
        request.ttft_slo_ns = (kind == 4).then_some(1_000);
        if kind == 5 {
            request.stop_tokens = vec![3, 5];
        }
        request.cache_salt = if kind == 6 { vec![1; 8] } else { Vec::new() };
        self.scheduler.submit(request).unwrap();
    }

    /// One round: somebody comes, somebody may go, the pipeline is filled, its oldest batch comes back or is lost.
    fn round(&mut self, open: bool) {
        while open && self.scheduler.num_unfinished() < 24 {
            self.submit();
        }
        self.scheduler.tick(self.scheduler.now_ns() + 50);
        let somebody = RequestId(self.next.saturating_sub(1 + self.draw(24)));
        match self.draw(64) {
            0..4 => _ = self.scheduler.abort(somebody),
            4..10 if open => {
                let child = Fork::new(RequestId(self.next), 6);
                if self.scheduler.fork(somebody, child).is_ok() {
                    (self.next, self.forked) = (self.next + 1, self.forked + 1);
                }
            }
            10 if self.draw(8) == 0 => _ = self.scheduler.fail(),
            11 if self.draw(8) == 0 => self.scheduler.reset_prefix_cache(),
            _ => {}
        }
        while let Schedule::Batch(_) = self.scheduler.schedule() {}
        if let Some(oldest) = self.scheduler.oldest_in_flight() {
            let id = oldest.id();
            self.sampling.clear();
            let samples = oldest.rows().iter().filter(|row| row.samples);
            self.sampling.extend(samples.map(|row| (row.request, row.num_draft_tokens as usize)));
            let drawn: [u32; 4] = core::array::from_fn(|_| self.draw(1000) as u32);
            let sampling = &self.sampling;
            let samples: Vec<_> =
                sampling.iter().map(|&(request, drafts)| Sample { request, tokens: &drawn[..1 + drafts.min(3) / 2] }).collect();
            self.scheduler.complete(id, &samples).unwrap();
        }
        self.scheduler.kv_events().for_each(drop);
        let mut events = core::mem::take(&mut self.events);
        events.extend(self.scheduler.events());
        for event in events.drain(..) {
            let Event::Paused { request, .. } = event else { continue };
            let input = cpp_sched::Prompt::Tokens(vec![9; 7]);
            if open && self.draw(3) > 0 && self.scheduler.extend(request, input, 5).is_ok() {
                self.extended += 1;
            } else {
                _ = self.scheduler.abort(request);
            }
        }
        self.events = events;
    }

    /// So many more requests, and then none.
    fn run(&mut self, requests: u64) {
        let end = self.next + requests;
        while self.next < end {
            self.round(true);
        }
        while !self.scheduler.is_idle() {
            self.round(false);
        }
    }
}

/// A few seconds. `CPP_REQUESTS=100000000 cargo test --release -p cpp-sched-tests --test memory -- --nocapture nothing` for a long run.
#[test]
fn nothing_is_left_of_requests_that_have_gone() {
    let requests = std::env::var("CPP_REQUESTS").map_or(1_000_000, |text| text.parse().expect("CPP_REQUESTS is a number"));
    let mut crowd = Crowd::new();
    crowd.run(20_000);
    let info = measure(|| crowd.run(requests));
    let stats = crowd.scheduler.stats();
    let (forked, extended, next) = (crowd.forked, crowd.extended, crowd.next);
    println!("{requests} requests: {} bytes more at the end, {} allocations", info.bytes_current, info.count_total);
    println!(
        "{} preempted, {} aborted, {} batches lost, {forked} forked, {extended} extended",
        stats.preemptions, stats.aborted, stats.batches_lost
    );
    assert_eq!(stats.finished + stats.aborted, next, "all have ended");
    for (what, count) in [
        ("preempted", stats.preemptions),
        ("aborted", stats.aborted),
        ("batches lost", stats.batches_lost),
        ("tokens found", stats.cache_hit_tokens),
        ("drafts accepted", stats.accepted_draft_tokens),
        ("forked", forked),
        ("extended", extended),
    ] {
        assert!(count > requests / 1000, "{what}: {count}");
    }
    // Lists that were never as long before may still grow; records, names and blocks of those that went may not stay.
    assert!(info.bytes_current < 4096, "{} bytes are left of {requests} requests", info.bytes_current);
    crowd.scheduler.check_invariants().unwrap();
}
