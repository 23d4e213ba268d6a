//! Small runs whose times are known by hand, to the nanosecond.

mod common;

use common::{config, cost, machine, requests, run};
use cpp_exec_mock::pipeline::Cause;
use cpp_exec_mock::pipeline::recurrence::makespan_equal_stages;
use cpp_exec_mock::sim::{Slo, simulate};
use cpp_sched::{Chunking, CostTerms, Pipelining};

/// 10,000 tokens in chunks of 1,000: what each costs on a stage.
fn chunk_times(cost: &cpp_sched::CostModel) -> Vec<u64> {
    (0..10).map(|j| cost.cost(&CostTerms::prefill(j * 1000, 1000)).to_ns()).collect()
}

#[test]
fn one_prompt_takes_what_the_closed_form_says() {
    let cost = cost("1000", "2.5", "0.001");
    let workload = requests(&[(0.0, 10_000, 1)]);
    for stages in [1, 2, 4, 7] {
        let mut config = config(stages);
        config.max_batch_tokens = 1000;
        config.max_in_flight = Some(10);
        let outcome = run(&workload, &machine(stages as usize, cost), config);
        let exact = makespan_equal_stages(&chunk_times(&cost), stages, 0);
        assert_eq!((outcome.ttft.max, outcome.e2e.max, outcome.duration_ns), (Some(exact), Some(exact), exact), "{stages} stages");
        for stage in &outcome.stages {
            assert_eq!(stage.busy_ns, chunk_times(&cost).iter().sum::<u64>());
        }
    }
}

#[test]
fn at_request_level_each_chunk_makes_the_whole_trip() {
    let cost = cost("1000", "2.5", "0.001");
    let workload = requests(&[(0.0, 10_000, 1)]);
    for pipelining in [Pipelining::Request, Pipelining::None] {
        let mut config = config(4);
        config.max_batch_tokens = 1000;
        config.pipelining = pipelining;
        let mut machine = machine(4, cost);
        machine.hop.latency_ns = 30;
        machine.return_ns = 7;
        machine.scheduler_ns = 500;
        let outcome = run(&workload, &machine, config);
        let exact: u64 = chunk_times(&cost).iter().map(|t| 500 + 4 * t + 3 * 30 + 7).sum();
        assert_eq!(outcome.ttft.max, Some(exact));
    }
}

#[test]
fn a_hop_takes_its_latency_and_its_bytes() {
    let workload = requests(&[(0.0, 1000, 1)]);
    let mut machine = machine(3, cost("100", "0", "0"));
    machine.hop.latency_ns = 40;
    machine.hop.bytes_per_token = 8;
    machine.hop.bytes_per_s = 1_000_000_000;
    let outcome = run(&workload, &machine, config(3));
    assert_eq!(outcome.ttft.max, Some(3 * 100 + 2 * (40 + 8000)));
}

#[test]
fn decisions_delay_a_decode_unless_they_were_made_before() {
    let workload = requests(&[(0.0, 10, 101)]);
    let mut machine = machine(1, cost("1000", "0", "0"));
    machine.scheduler_ns = 300;
    let mut config = config(1);
    let sync = run(&workload, &machine, config);
    assert_eq!((sync.itl.mean, sync.itl.count), (Some(1300.0), 100));
    config.async_scheduling = true;
    config.max_in_flight = Some(2);
    let ahead = run(&workload, &machine, config);
    assert_eq!((ahead.itl.p50, ahead.itl.max), (Some(1000.0), Some(1000)));
    assert_eq!(ahead.tokens, sync.tokens);
    // A decision that takes longer than a batch cannot be hidden.
    machine.scheduler_ns = 1500;
    assert_eq!(run(&workload, &machine, config).itl.p50, Some(1500.0));
}

#[test]
fn a_decode_ahead_of_its_token_waits_in_front_of_stage_0() {
    // Two stages, and a decode that is scheduled at once after the batch that samples its token: one trip of 2000 ns for each token.
    let workload = requests(&[(0.0, 10, 50)]);
    let mut machine = machine(2, cost("1000", "0", "0"));
    machine.return_ns = 5;
    let mut config = config(2);
    config.async_scheduling = true;
    let outcome = run(&workload, &machine, config);
    assert_eq!((outcome.itl.p50, outcome.itl.max), (Some(2005.0), Some(2005)));
}

#[test]
fn a_request_that_decodes_between_chunks_of_another_is_timed_by_batches() {
    // Chunks of 100 ns each; the decode rides with them, on one stage.
    let workload = requests(&[(0.0, 8, 4), (0.0, 32, 1)]);
    let mut config = config(1);
    config.max_batch_tokens = 9;
    let outcome = run(&workload, &machine(1, cost("100", "0", "0")), config);
    // Batches: 8 + 1 | decode + 8 | decode + 8 | decode + 8 | 7.
    assert_eq!(outcome.stats.batches, 5);
    assert_eq!((outcome.itl.count, outcome.itl.max), (3, Some(100)));
    assert_eq!((outcome.ttft.p50, outcome.ttft.max), (Some(300.0), Some(500)));
    assert_eq!((outcome.tpot.count, outcome.tpot.mean), (1, Some(100.0)));
}

#[test]
fn time_without_work_is_told_from_time_that_waits() {
    let workload = requests(&[(1.0, 10, 1), (3.0, 10, 1)]);
    let outcome = run(&workload, &machine(2, cost("1000", "0", "0")), config(2));
    // From the first arrival at 1 s to the second result.
    let window = 2_000_000_000 + 2000;
    assert_eq!(outcome.duration_ns, window);
    for stage in &outcome.stages {
        assert_eq!((stage.busy_ns, stage.idle_ns(Cause::NoWork)), (2000, 2_000_000_000 - 2000));
        assert_eq!(stage.sum_ns(), window);
    }
    // Each request goes through alone: stage 1 waits for it twice, stage 0 is done with it twice.
    assert_eq!(outcome.stages[0].idle_ns(Cause::Drain), 2000);
    assert_eq!(outcome.stages[1].idle_ns(Cause::Fill), 2000);
}

#[test]
fn the_queue_is_left_with_the_first_decision() {
    // One admitted at a time: the second waits for the first.
    let workload = requests(&[(0.0, 10, 3), (0.0, 10, 1)]);
    let mut config = config(1);
    config.max_requests = 1;
    let outcome = run(&workload, &machine(1, cost("100", "0", "0")), config);
    assert_eq!((outcome.queue.p50, outcome.queue.max), (Some(150.0), Some(300)));
    assert_eq!(outcome.e2e.max, Some(400));
}

#[test]
fn goodput_counts_requests_that_meet_every_target() {
    let workload = requests(&[(0.0, 10, 3), (1.0, 10, 1), (2.0, 1000, 3)]);
    let machine = machine(1, cost("0", "10", "0"));
    let within = |ttft_ns, tpot_ns| {
        let slo = Slo { ttft_ns, tpot_ns };
        simulate(&workload, &machine, config(1), slo, &mut |_| {}).unwrap().within_slo
    };
    assert_eq!(within(None, None), None);
    assert_eq!(within(Some(100), None), Some(2));
    assert_eq!(within(Some(10_000), None), Some(3));
    // A request with one output has no time per output token to miss.
    assert_eq!(within(None, Some(9)), Some(1));
    assert_eq!(within(Some(100), Some(10)), Some(2));
}

#[test]
fn long_prompts_are_those_of_more_than_two_budgets() {
    let workload = requests(&[(0.0, 200, 1), (1.0, 201, 1), (2.0, 500, 1)]);
    let mut config = config(2);
    config.max_batch_tokens = 100;
    config.chunking = Chunking::Tokens { max: Some(64) };
    let outcome = run(&workload, &machine(2, cost("10", "1", "0")), config);
    assert_eq!((outcome.ttft.count, outcome.ttft_long.count), (3, 2));
}
