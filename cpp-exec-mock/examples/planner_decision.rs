//! What the planner adds to one decision, with 1,000 requests alive.
//!
//! `cargo run --release -p cpp-exec-mock --example planner_decision [calibration|choices=N]`
//!
//! First: a closed population of 1,000 requests on 8 stages, prompts of 1k to 32k tokens, 100 outputs; who ends is followed by a new one. The same
//! requests with chunks of a fixed number of tokens, with a pinned target, and with the adaptive planner; nanoseconds of a call of `schedule`
//! that gave a batch, rounds taken in turn so that the machine's moods fall on all alike. The planner's share is the difference to fixed
//! chunks. Second: the choice of a target alone, for the questions that take longest. Third (alone with `calibration`): what a calibrator takes with each
//! batch, for each stage: a fit over the window, and without one.
//! With `choices=N` the second alone, N questions of each kind: to count instructions, `valgrind --tool=callgrind --toggle-collect='*choose_target*'`.

use std::time::Instant;

use cpp_exec_mock::splitmix::{decades, next as random};
use cpp_sched::planner::{Calibrator, Grid, Question, Rules, Segment, Work, choose_target};
use cpp_sched::{Attos, Chunking, Config, CostModel, CostTerms, Event, Request, RequestId, Sample, Schedule, Scheduler};

fn log_uniform(state: &mut u64, low: f64, high: f64) -> u32 {
    decades(state, low, high) as u32
}

fn cost() -> CostModel {
    let mut cost = CostModel::default();
    cost.c0 = Attos::from_ns(2_000_000);
    (cost.c1, cost.c2, cost.c3) = (Attos::from_ns(3600), Attos(83_000_000), Attos::from_ns(2));
    cost
}

/// One way of chunking, with its own scheduler and stream of requests.
struct Run {
    name: &'static str,
    scheduler: Scheduler,
    state: u64,
    next: u64,
    times: Vec<u64>,
    rows: usize,
}

impl Run {
    fn new(name: &'static str, chunking: Chunking, pinned: Option<u64>) -> Self {
        let mut config = Config::default();
        config.stages = 8;
        config.block_size = 64;
        config.num_blocks = 1_000_000;
        config.max_requests = 1000;
        config.max_batch_requests = 1000;
        config.max_batch_tokens = 8192;
        config.max_model_len = Some(1 << 20);
        config.cost = Some(cost());
        config.chunking = chunking;
        config.adaptive.target_ns = pinned;
        let scheduler = Scheduler::new(config).expect("valid");
        let mut run = Self { name, scheduler, state: 7, next: 0, times: Vec::new(), rows: 0 };
        (0..1000).for_each(|_| run.submit());
        run
    }

    fn submit(&mut self) {
        let prompt = log_uniform(&mut self.state, 1024.0, 32_768.0);
        self.scheduler.submit(Request::with_lengths(RequestId(self.next), prompt, Vec::new(), 100)).expect("fits");
        self.next += 1;
    }

    fn round(&mut self, count: bool) {
        loop {
            let begun = Instant::now();
            let scheduled = self.scheduler.schedule();
            let taken = begun.elapsed().as_nanos() as u64;
            let Schedule::Batch(batch) = scheduled else { break };
            if count {
                self.times.push(taken);
                self.rows += batch.rows().len();
            }
        }
        let Some(batch) = self.scheduler.oldest_in_flight() else { return };
        let id = batch.id();
        let sampling: Vec<_> = batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect();
        let samples: Vec<_> = sampling.iter().map(|&request| Sample { request, tokens: &[1] }).collect();
        self.scheduler.complete(id, &samples).expect("the oldest batch, with its samples");
        let ended = self.scheduler.events().filter(|event| matches!(event, Event::Finished { .. })).count();
        (0..ended).for_each(|_| self.submit());
    }

    /// Of the shorter 99 of 100 calls: the rest are those in which the machine did something else.
    fn mean(&mut self) -> f64 {
        self.times.sort_unstable();
        let calls = &self.times[..self.times.len() / 100 * 99];
        calls.iter().sum::<u64>() as f64 / calls.len() as f64
    }

    fn tell(&mut self, base: f64) {
        let mean = self.mean();
        let at = |part: f64| self.times[((self.times.len() - 1) as f64 * part) as usize];
        println!(
            "  {}: mean of the shorter 99 % {mean:.0} ns, median {} ns, p99 {} ns, p99.9 {} ns, largest {} ns; {:.1} rows a batch; planner {:+.0} ns",
            self.name,
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            self.rows as f64 / self.times.len() as f64,
            mean - base
        );
    }
}

/// Median and largest time of a choice, over questions with random segments.
fn choices(questions: usize, name: &str, cost: CostModel, align: u32, segments: usize, longest: u32, depth: u32) {
    let (mut state, mut times) = (3, Vec::new());
    let stages = [cost];
    for _ in 0..questions {
        let parts: Vec<Segment> = (0..segments)
            .map(|_| Segment { start: 0, end: log_uniform(&mut state, f64::from(longest) / 16.0, f64::from(longest)) })
            .collect();
        let work = parts.iter().fold(Work::default(), |sum, &segment| sum.plus(Work::of(segment)));
        let rules = Rules { stages: &stages, grid: Grid { align, min: align, thrifty: true }, batch_tokens: u32::MAX, ride: Attos::ZERO };
        let question = Question {
            rules,
            drain_millionths: 7_000_000,
            depth,
            rest: work,
            whole: work,
            segments: &parts,
            held: Attos::ZERO,
            grown: true,
        };
        let begun = Instant::now();
        std::hint::black_box(choose_target(std::hint::black_box(&question)));
        times.push(begun.elapsed().as_nanos());
    }
    times.sort_unstable();
    println!("  {name}: median {} ns, p99 {} ns, largest {} ns", times[questions / 2], times[questions * 99 / 100], times[questions - 1]);
}

/// Median times of taking an observation in and of fitting, with so many observations in the window.
fn calibration(waiting: u32) {
    let (truth, mut state) = (cost(), 5);
    let (mut taking, mut fitting) = (Vec::new(), Vec::new());
    for _ in 0..300 {
        let mut calibrator = Calibrator::new(truth);
        let mut one = |calibrator: &mut Calibrator| {
            let tokens = log_uniform(&mut state, 256.0, 4096.0);
            let mut terms = CostTerms::prefill(log_uniform(&mut state, 1.0, 100_000.0), tokens);
            (terms.tokens, terms.decodes, terms.decode_context) = (terms.tokens + 16, 16, 16 * u64::from(tokens));
            let measured = truth.cost(&terms).to_ns() / 100 * (98 + random(&mut state) % 5);
            let begun = Instant::now();
            calibrator.observe(&terms, measured);
            begun.elapsed().as_nanos()
        };
        (0..waiting + 1).for_each(|_| _ = one(&mut calibrator));
        taking.push(one(&mut calibrator));
        let begun = Instant::now();
        std::hint::black_box(&mut calibrator).refit();
        fitting.push(begun.elapsed().as_nanos());
    }
    taking.sort_unstable();
    fitting.sort_unstable();
    println!("  {waiting} observations: {} ns to take one in, {} ns to fit", taking[150], fitting[150]);
}

fn main() {
    let what = std::env::args().nth(1).unwrap_or_default();
    if let Some(questions) = what.strip_prefix("choices=").and_then(|n| n.parse().ok()) {
        choice_kinds(usize::max(questions, 1));
        return;
    }
    if what.is_empty() {
        decisions();
    }
    println!("a calibrator of one stage, medians");
    [4, 8, 16, 32, 64].into_iter().for_each(calibration);
}

fn decisions() {
    let mut runs = [
        Run::new("fixed chunks of 2048 tokens", Chunking::Tokens { max: Some(2048) }, None),
        Run::new("pinned target", Chunking::Adaptive, Some(20_000_000)),
        Run::new("adaptive", Chunking::Adaptive, None),
    ];
    for round in 0..60_000 {
        for run in &mut runs {
            run.round(round >= 10_000);
        }
    }
    println!("a call of schedule with 1,000 requests alive");
    let base = runs[0].mean();
    runs.iter_mut().for_each(|run| run.tell(base));
    choice_kinds(2000);
}

fn choice_kinds(questions: usize) {
    println!("one choice of a target (done when there is a sixteenth more work, and when the rest has halved)");
    let mut rereading = cost();
    rereading.c4 = Attos::from_ns(50);
    let mut coarse = cost();
    coarse.c0 = Attos::from_ns(100_000);
    choices(questions, "one prompt of 32k, fine grid", cost(), 16, 1, 32_768, 16);
    choices(questions, "one prompt of 128k", cost(), 64, 1, 131_072, 16);
    choices(questions, "one prompt of 32k, coarse grid", coarse, 64, 1, 32_768, 16);
    choices(questions, "one prompt of 32k, coarse grid, in flight = stages", coarse, 64, 1, 32_768, 8);
    choices(questions, "one prompt of 32k, c4", rereading, 64, 1, 32_768, 16);
    choices(questions, "64 prompts of 1k", cost(), 64, 64, 1024, 16);
    choices(questions, "64 prompts of 32k", cost(), 64, 64, 32_768, 16);
    choices(questions, "64 prompts of 1k, c4, coarse grid, in flight = stages", rereading, 256, 64, 1024, 8);
}
