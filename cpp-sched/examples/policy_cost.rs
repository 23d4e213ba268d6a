//! What a decision costs under each policy, by the number of requests that wait.
//!
//! `cargo run --release -p cpp-sched --example policy_cost [STEPS]`
//!
//! Four prompts are served in each step, and four new ones come; the clock moves before each step, so that keys that move with time do. Times are
//! medians over the steps, in nanoseconds, of this machine; what matters is how they grow down a column.

use std::hint::black_box;
use std::time::Instant;

use cpp_sched::{Attos, Config, CostModel, Policy, PolicyKind, Rank, Request, RequestId, RequestView, Sample, Schedule, Scheduler};

const PER_STEP: u64 = 4;
const TOKENS: u32 = 100;

/// Slack over what is left, as a plug-in.
#[derive(Debug)]
struct Plugin;

impl Policy for Plugin {
    fn name(&self) -> &'static str {
        "slack-per-rest"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        let zero_ns = view.deadline_ns.map_or(i128::MAX, |deadline| i128::from(deadline) - i128::from(view.work_left));
        Rank::Falling { zero_ns, per: view.work_left }
    }
}

fn config(policy: PolicyKind, relegation: bool, guard: bool) -> Config {
    let mut cost = CostModel::default();
    cost.c1 = Attos::from_ns(1000);
    let mut config = Config::default();
    config.policy = policy;
    config.max_batch_tokens = PER_STEP as u32 * TOKENS;
    config.num_blocks = 1000;
    config.cost = Some(cost);
    (config.relegation, config.feasibility_guard) = (relegation, guard);
    config
}

struct Load {
    scheduler: Scheduler,
    next: u64,
    state: u64,
}

impl Load {
    fn submit(&mut self, waiting: u64) {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let draw = self.state >> 33;
        let mut request = Request::with_lengths(RequestId(self.next), TOKENS / 2 + (draw % u64::from(TOKENS)) as u32, Vec::new(), 1);
        // Deadlines spread over what all that wait take, so that some can be met and some cannot.
        request.ttft_slo_ns = Some(draw % (waiting * 120_000 + 1));
        request.priority = (draw % 16) as i64;
        request.tenant = Some(draw % 50);
        self.next += 1;
        self.scheduler.submit(request).expect("it fits");
    }

    /// One step: the time of `tick` and `schedule`, of `complete`, and of the submits.
    fn step(&mut self, waiting: u64) -> Option<[u64; 3]> {
        let start = Instant::now();
        let now = self.scheduler.now_ns() + u64::from(TOKENS) * PER_STEP * 1000;
        self.scheduler.tick(now);
        let Schedule::Batch(batch) = self.scheduler.schedule() else { return None };
        let scheduled = start.elapsed();
        let id = black_box(batch.id());
        let samples: Vec<_> =
            batch.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[1] }).collect();
        let start = Instant::now();
        self.scheduler.complete(id, &samples).ok()?;
        let completed = start.elapsed();
        self.scheduler.events().for_each(drop);
        let start = Instant::now();
        samples.iter().for_each(|_| self.submit(waiting));
        Some([scheduled, completed, start.elapsed()].map(|time| time.as_nanos() as u64))
    }
}

fn main() {
    let steps = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(2000);
    let plain = |name, policy| (name, config(policy, false, false), false);
    let rows = [
        plain("fcfs", PolicyKind::Fcfs),
        plain("priority", PolicyKind::Priority),
        plain("edf", PolicyKind::Edf),
        plain("srpf", PolicyKind::Srpf),
        plain("hybrid", PolicyKind::Hybrid),
        plain("lars", PolicyKind::Lars),
        plain("fair", PolicyKind::Fair),
        ("plug-in", config(PolicyKind::Fcfs, false, false), true),
        ("edf+relegation", config(PolicyKind::Edf, true, false), false),
        ("lars+guard", config(PolicyKind::Lars, false, true), false),
        ("lars+guard+relegation", config(PolicyKind::Lars, true, true), false),
    ];
    println!("{:<24}{:>9} {:>12} {:>12} {:>12}", "policy", "waiting", "schedule", "complete", "submit (4)");
    for (name, config, plugin) in rows {
        for waiting in [1000, 10_000, 100_000] {
            let scheduler = if plugin { Scheduler::with_policy(config, Box::new(Plugin)) } else { Scheduler::new(config) };
            let mut load = Load { scheduler: scheduler.expect("it is valid"), next: 0, state: 1 };
            (0..waiting).for_each(|_| load.submit(waiting));
            let mut times: [Vec<u64>; 3] = Default::default();
            for step in 0..steps + steps / 10 {
                let Some(taken) = load.step(waiting) else { continue };
                if step >= steps / 10 {
                    times.iter_mut().zip(taken).for_each(|(all, time)| all.push(time));
                }
            }
            let [schedule, complete, submit] = times.map(|mut all| {
                all.sort_unstable();
                all.get(all.len() / 2).copied().unwrap_or(0)
            });
            println!("{name:<24}{waiting:>9} {schedule:>12} {complete:>12} {submit:>12}");
        }
    }
}
