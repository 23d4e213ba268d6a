//! The token account and the decision digest, over many random workloads and configurations.

mod common;

use std::fmt::Write as _;

use common::{balances, config, cost, machine, requests, run, workload};
use cpp_exec_mock::pipeline::{Granularity, Scheduling, Transfer};
use cpp_exec_mock::sim::{Machine, Mode, SimError, Slo, simulate};
use cpp_exec_mock::workload::{Synthetic, Workload};
use cpp_sched::{Admission, Balance, Chunking, Config, ConfigError, Pipelining, PolicyKind, PreemptedOutput};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Requests whose prompts often begin alike.
fn random_workload(rng: &mut ChaCha8Rng) -> Workload {
    let mut lines = String::new();
    let mut at = 0.0;
    for _ in 0..rng.random_range(1..60) {
        at += rng.random_range(0.0..2e-5);
        let blocks = rng.random_range(1..12u32);
        let (input, output) = (blocks * 16 - rng.random_range(0..16u32).min(blocks * 16 - 1), rng.random_range(1..30));
        let family = rng.random_range(0..3u32);
        let shared = rng.random_range(0..=blocks);
        let ids: Vec<String> = (0..input.div_ceil(16))
            .map(|b| if b < shared { format!("{}", family * 100 + b) } else { format!("{}", rng.random_range(10_000..1_000_000_000)) })
            .collect();
        let priority = rng.random_range(-2..3);
        let _ = writeln!(
            lines,
            r#"{{"arrival_s":{at:.9},"input_tokens":{input},"output_tokens":{output},"priority":{priority},"tenant":"t{family}","hash_ids":[{}],"hash_block":16}}"#,
            ids.join(",")
        );
    }
    workload(&lines)
}

fn random_config(rng: &mut ChaCha8Rng) -> Config {
    let mut config = config(rng.random_range(1..6));
    config.block_size = [4, 16, 32][rng.random_range(0..3usize)];
    // Some pools so small that requests are refused, or preempted often.
    config.num_blocks = (rng.random_range(150..1200) / config.block_size).max(1);
    config.max_batch_tokens = rng.random_range(8..200);
    config.max_batch_requests = rng.random_range(1..40);
    config.max_requests = rng.random_range(1..40);
    config.max_in_flight = rng.random_bool(0.5).then(|| rng.random_range(1..8));
    config.pipelining = [Pipelining::Chunk, Pipelining::Request, Pipelining::None][rng.random_range(0..3usize)];
    config.policy = [PolicyKind::Fcfs, PolicyKind::Priority, PolicyKind::Srpf, PolicyKind::Fair][rng.random_range(0..4usize)];
    config.admission = [Admission::ReservePrompt, Admission::Lazy, Admission::NoEvict][rng.random_range(0..3usize)];
    config.balance = [Balance::Off, Balance::Count, Balance::Cost][rng.random_range(0..3usize)];
    config.prefix_caching = rng.random_bool(0.6);
    config.async_scheduling = rng.random_bool(0.4);
    config.async_distance = rng.random_range(1..=config.stages);
    config.preempted_output = if rng.random_bool(0.5) { PreemptedOutput::Deliver } else { PreemptedOutput::Drop };
    config.chunks_per_batch = rng.random_range(1..3);
    config.cost = Some(cost("500", "10", "0.01"));
    config.chunking = match rng.random_range(0..3) {
        0 => Chunking::Tokens { max: rng.random_bool(0.5).then(|| rng.random_range(1..100)) },
        1 => Chunking::Cost { target_ns: rng.random_range(1..3000), align: rng.random_range(1..=8), min: rng.random_range(1..=8) },
        _ => Chunking::Adaptive,
    };
    config
}

fn random_links(machine: &mut Machine, rng: &mut ChaCha8Rng) {
    let transfer = |blocking| if blocking { Transfer::Blocking } else { Transfer::Overlapped };
    machine.links.sends = transfer(rng.random_bool(0.4));
    machine.links.receives = transfer(rng.random_bool(0.4));
    machine.links.buffer = rng.random_bool(0.4).then(|| rng.random_range(0..4));
    machine.hop.bytes_per_token = rng.random_range(0..50);
    machine.hop.bytes_per_s = 1_000_000_000;
    machine.scheduling = if rng.random_bool(0.4) { Scheduling::Sync } else { Scheduling::Ahead };
    machine.granularity = [Granularity::Batch, Granularity::Request, Granularity::Chunk][rng.random_range(0..3usize)];
    machine.piece_ns = if rng.random_bool(0.5) { 0 } else { rng.random_range(0..300) };
    machine.sampling_ns = rng.random_range(0..200);
    // Unequal stages.
    for model in &mut machine.stage_costs {
        if rng.random_bool(0.3) {
            *model = cost(&rng.random_range(0..2000).to_string(), &rng.random_range(0..30).to_string(), "0.02");
        }
    }
}

#[test]
fn the_account_balances_and_runs_repeat_whatever_the_configuration() {
    let (mut preempted, mut cached, mut recomputed, mut rejected, mut busy) = (0, 0, 0, 0, 0);
    for seed in 0..400 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let workload = random_workload(&mut rng);
        let config = random_config(&mut rng);
        let mut machine = machine(config.stages as usize, cost("500", "10", "0.01"));
        machine.scheduler_ns = rng.random_range(0..400);
        machine.hop.latency_ns = rng.random_range(0..100);
        machine.return_ns = rng.random_range(0..100);
        random_links(&mut machine, &mut rng);
        let go = || simulate(&workload, &machine, config, Slo::default(), &mut |_| {});
        let outcome = go().unwrap_or_else(|error| panic!("seed {seed}: {error}\n{config:?}"));
        assert!(balances(&outcome), "seed {seed}: {:?}", outcome.tokens);
        let requests = outcome.requests;
        assert_eq!(requests.submitted, workload.items().len() as u64, "seed {seed}");
        assert_eq!((requests.finished + requests.rejected, requests.unfinished), (requests.submitted, 0), "seed {seed}");
        assert_eq!(outcome.ttft.count, requests.finished, "seed {seed}");
        assert_eq!(outcome.itl.count, outcome.tokens.output - requests.finished, "seed {seed}");
        for stage in &outcome.stages {
            assert_eq!((stage.sum_ns(), stage.window_ns), (outcome.duration_ns, outcome.duration_ns), "seed {seed}");
            busy += stage.busy_ns;
        }
        let again = go().unwrap();
        assert_eq!(again.decision_digest.to_string(), outcome.decision_digest.to_string(), "seed {seed}");
        assert_eq!((again.ttft, again.e2e, again.tokens), (outcome.ttft, outcome.e2e, outcome.tokens), "seed {seed}");
        preempted += outcome.stats.preemptions;
        cached += outcome.tokens.cached;
        recomputed += outcome.tokens.recomputed;
        rejected += requests.rejected;
    }
    // The cases did meet what they are there for.
    assert!(busy > 0);
    assert!(preempted > 100 && cached > 1000 && recomputed > 1000 && rejected > 10, "{preempted} {cached} {recomputed} {rejected}");
}

#[test]
fn cached_tokens_are_those_of_the_common_prefix() {
    // The second prompt shares 4 whole blocks of 16 and comes when the first is done.
    let workload = workload(
        r#"{"arrival_s":0,"input_tokens":100,"output_tokens":2,"hash_ids":[1,2,3,4,5,6,7],"hash_block":16}
{"arrival_s":1,"input_tokens":90,"output_tokens":3,"hash_ids":[1,2,3,4,15,16],"hash_block":16}
"#,
    );
    let mut config = config(2);
    config.prefix_caching = true;
    let t = run(&workload, &machine(2, cost("10", "1", "0")), config).tokens;
    assert_eq!((t.prompt, t.output, t.cached, t.recomputed, t.computed), (190, 5, 64, 0, 101 + 92 - 64));
    config.prefix_caching = false;
    let t = run(&workload, &machine(2, cost("10", "1", "0")), config).tokens;
    assert_eq!((t.cached, t.computed), (0, 101 + 92));
}

#[test]
fn what_never_fits_is_counted_with_its_reason() {
    let workload = requests(&[(0.0, 100, 10), (0.1, 5000, 10), (0.2, 6000, 1), (0.3, 100, 10)]);
    let mut config = config(1);
    config.num_blocks = 100;
    config.max_model_len = Some(4000);
    let outcome = run(&workload, &machine(1, cost("10", "1", "0")), config);
    let requests = outcome.requests;
    assert_eq!((requests.submitted, requests.finished, requests.rejected), (4, 2, 2));
    let reasons: Vec<_> = outcome.rejected.iter().map(|(&word, rejection)| (word, rejection.count)).collect();
    assert_eq!(reasons, [("too_long", 2)]);
    assert!(outcome.rejected["too_long"].first.contains("5000 prompt tokens"), "{:?}", outcome.rejected);
    config.max_model_len = None;
    config.num_blocks = 300;
    let wide = run(&workload, &machine(1, cost("10", "1", "0")), config);
    assert_eq!(wide.rejected.keys().copied().collect::<Vec<_>>(), ["too_long"]);
    assert!(balances(&outcome) && balances(&wide));
}

#[test]
fn a_workload_of_which_nothing_runs_has_an_empty_window() {
    let mut config = config(2);
    config.num_blocks = 1;
    let outcome = run(&requests(&[(5.0, 100, 10)]), &machine(2, cost("10", "1", "0")), config);
    assert_eq!((outcome.duration_ns, outcome.requests.rejected, outcome.ttft.mean), (0, 1, None));
    for stage in &outcome.stages {
        assert_eq!(stage.fractions().map(|part| part.1).sum::<f64>(), 1.0);
    }
}

#[test]
fn digests_tell_decisions_apart() {
    let workload = Workload::synthetic(&Synthetic { requests: 200, rate: 50.0, ..Synthetic::default() }).unwrap();
    let digests: Vec<String> = Mode::ALL
        .iter()
        .map(|mode| {
            let mut config = config(4);
            config.cost = Some(cost("1000000", "1000", "0.01"));
            mode.apply(&mut config);
            run(&workload, &machine(4, cost("1000000", "1000", "0.01")), config).decision_digest.to_string()
        })
        .collect();
    for (i, digest) in digests.iter().enumerate() {
        assert_eq!(digest.len(), 32);
        assert!(!digests[..i].contains(digest), "{digests:?}");
    }
}

#[test]
fn wrong_inputs_are_typed_errors() {
    let workload = requests(&[(0.0, 10, 1)]);
    let go = |stages, config| simulate(&workload, &machine(stages, cost("1", "0", "0")), config, Slo::default(), &mut |_| {});
    let mut zero = config(2);
    zero.max_batch_tokens = 0;
    assert_eq!(go(2, zero).err(), Some(SimError::Config(ConfigError::Zero { field: "max_batch_tokens" })));
    assert_eq!(go(3, config(2)).err(), Some(SimError::Stages { config: 2, machine: 3 }));
}

#[test]
fn progress_ends_with_everything_done() {
    let workload = Workload::synthetic(&Synthetic { requests: 500, rate: 1000.0, ..Synthetic::default() }).unwrap();
    let mut seen = Vec::new();
    simulate(&workload, &machine(2, cost("1000", "1", "0")), config(2), Slo::default(), &mut |p| seen.push(p)).unwrap();
    assert!(seen.len() > 1 && seen.is_sorted_by_key(|p| (p.done, p.now_ns)));
    assert_eq!(seen.last().map(|p| (p.done, p.total)), Some((500, 500)));
}
