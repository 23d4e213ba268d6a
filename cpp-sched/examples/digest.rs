//! What the kernel decides in some thousand random steps, as one number: equal for every build of it, on every machine.
//!
//! `cargo run -p cpp-sched --example digest -- [RUNS]`. `.ci/determinism.sh` compares builds with and without optimisation, debug assertions and
//! features, and one with 32-bit pointers.

use cpp_sched::journal::Decisions;
use cpp_sched::{
    Admission, Attos, Balance, Chunking, Config, CostModel, KvGroup, KvGroups, Pipelining, PolicyKind, Request, RequestId, Sample,
    Schedule, Scheduler, Span,
};

#[path = "../src/splitmix.rs"]
mod splitmix;

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        splitmix::next(&mut self.0) % n
    }

    fn pick<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N as u64) as usize]
    }

    fn config(&mut self) -> Config {
        use PolicyKind::{Edf, Fair, Fcfs, Hybrid, Lars, Priority, Srpf};
        let mut c = Config::default();
        (c.block_size, c.num_blocks, c.prefix_caching) = (self.pick([1, 4, 16]), 40, self.below(3) > 0);
        (c.max_batch_tokens, c.max_batch_requests, c.max_requests) = (self.pick([7, 40, 64]), 6, self.pick([4, 8]));
        c.stages = self.pick([1, 2, 4]);
        c.policy = self.pick([Fcfs, Priority, Edf, Srpf, Hybrid, Lars, Fair]);
        c.admission = self.pick([Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict]);
        c.pipelining = self.pick([Pipelining::Chunk, Pipelining::Chunk, Pipelining::Request, Pipelining::None]);
        (c.balance, c.async_scheduling) = (self.pick([Balance::Off, Balance::Count, Balance::Cost]), self.below(3) == 0);
        (c.encoder_budget_tokens, c.encoder_cache_tokens) = self.pick([(None, None), (Some(9), Some(20))]);
        if self.below(3) == 0 {
            c.kv_groups = KvGroups::new(&[KvGroup::Full, KvGroup::Window { tokens: 9 }]).expect("two groups");
        }
        if self.below(2) == 0 {
            let mut cost = CostModel::default();
            (cost.c0, cost.c1, cost.c2, cost.c3) = (Attos::from_ns(50), Attos::from_ns(10), Attos(330_000_007), Attos::from_ns(7));
            c.cost = Some(cost);
            c.chunking = self.pick([Chunking::Adaptive, Chunking::Cost { target_ns: 300, align: 2, min: 1 }, c.chunking]);
            (c.relegation, c.feasibility_guard) = (self.below(2) == 0, self.below(2) == 0);
        }
        c
    }

    fn request(&mut self, id: u64, now_ns: u64) -> Request {
        let (family, len) = (self.below(3) as u32, 1 + self.below(35) as u32);
        let mut request = Request::new(RequestId(id), (0..len).map(|at| family * 100 + at / 20 * self.below(2) as u32).collect(), 1);
        request.max_tokens = 1 + self.below(9) as u32;
        (request.priority, request.tenant) = (self.below(3) as i64, Some(self.below(3)));
        (request.ttft_slo_ns, request.arrival_ns) = (Some(self.below(5000)), Some(now_ns));
        request.tbt_slo_ns = (self.below(3) == 0).then(|| self.below(2000));
        request.cache_salt = vec![1; self.below(2) as usize];
        if len > 8 && self.below(3) == 0 {
            request.spans = vec![Span::encoded(2, 4, 3, [family as u8; 16])];
        }
        request
    }
}

/// One scheduler from beginning to end.
fn run(draw: &mut Draw, total: &mut u128) -> u64 {
    let config = draw.config();
    let mut scheduler = Scheduler::new(config).expect("a valid configuration");
    let mut decisions = Decisions::default();
    let mut fold = |value: u128| *total = total.rotate_left(13).wrapping_mul(0x2545_F491_4F6C_DD1D_9E37_79B9_7F4A_7C15) ^ value;
    let (mut next_id, mut steps) = (0, 0);
    while steps < 300 || !scheduler.is_idle() {
        steps += 1;
        match draw.below(12) {
            0..=1 if steps < 300 => {
                let request = draw.request(next_id, scheduler.now_ns());
                next_id += 1;
                let estimate = scheduler.estimate(&request).map_or(0, |estimate| estimate.ttft_ns ^ u64::from(estimate.cached_tokens));
                fold(u128::from(estimate) << 1 | u128::from(scheduler.submit(request).is_ok()));
            }
            2 => scheduler.tick(scheduler.now_ns() + draw.below(500)),
            3 if draw.below(20) == 0 => drop(scheduler.abort(RequestId(draw.below(next_id.max(1))))),
            4 if draw.below(20) == 0 => drop(scheduler.fail()),
            5..=8 => {
                if let Schedule::Batch(batch) = scheduler.schedule() {
                    decisions.add(&batch);
                }
            }
            _ => {
                let Some(oldest) = scheduler.oldest_in_flight() else { continue };
                let id = oldest.id();
                let sampling: Vec<_> = oldest.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
                let token = [draw.below(50) as u32];
                let samples: Vec<_> = sampling.into_iter().map(|request| Sample { request, tokens: &token }).collect();
                scheduler.complete(id, &samples).expect("a right result");
            }
        }
    }
    let stats = scheduler.stats();
    for count in
        [stats.finished, stats.preemptions, stats.cache_hit_tokens, stats.recomputed_tokens, stats.encoder_hit_tokens, stats.relegated]
    {
        fold(count.into());
    }
    fold(decisions.digest().value());
    stats.batches
}

fn main() {
    let runs = std::env::args().nth(1).and_then(|runs| runs.parse().ok()).unwrap_or(200);
    let (mut total, mut batches) = (0, 0);
    for seed in 0..runs {
        batches += run(&mut Draw(seed), &mut total);
    }
    println!("{total:032x} {runs} runs, {batches} batches");
}
