//! Options of the machine on three stages, each with times worked out by hand.

mod common;

use common::{config, cost, machine, requests, run};
use cpp_exec_mock::pipeline::{Cause, Granularity, Scheduling};
use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::{Machine, Outcome};
use cpp_sched::Chunking;

/// Idle time of a stage by cause, without those that took none, and busy time.
fn times(outcome: &Outcome, stage: usize) -> Vec<(&'static str, u64)> {
    outcome.stages[stage].parts().filter(|part| part.1 > 0).collect()
}

#[test]
fn decisions_ahead_hide_and_synchronous_ones_do_not() {
    // Three chunks of 10 ns a stage, 4 ns a decision.
    let workload = requests(&[(0.0, 30, 1)]);
    let mut machine = machine(3, cost("10", "0", "0"));
    machine.scheduler_ns = 4;
    let mut config = config(3);
    config.max_batch_tokens = 10;
    let ahead = run(&workload, &machine, config);
    assert_eq!(ahead.ttft.max, Some(4 + 3 * 10 + 2 * 10));
    assert_eq!(times(&ahead, 0), [("busy", 30), ("drain", 20), ("scheduler", 4)]);
    assert_eq!(times(&ahead, 2), [("busy", 30), ("fill", 20), ("scheduler", 4)]);
    machine.scheduling = Scheduling::Sync;
    let sync = run(&workload, &machine, config);
    assert_eq!(sync.ttft.max, Some(3 * (4 + 10) + 2 * 10));
    assert_eq!(times(&sync, 0), [("busy", 30), ("drain", 20), ("scheduler", 12)]);
    assert_eq!(times(&sync, 1), [("busy", 30), ("fill", 10), ("drain", 10), ("scheduler", 12)]);
    assert_eq!(times(&sync, 2), [("busy", 30), ("fill", 20), ("scheduler", 12)]);
    assert_eq!(sync.decision_digest.to_string(), ahead.decision_digest.to_string());
}

#[test]
fn sampling_takes_the_last_stage_and_the_way_back_takes_no_stage() {
    let workload = requests(&[(0.0, 30, 1)]);
    let mut machine = machine(3, cost("10", "0", "0"));
    machine.sampling_ns = 5;
    machine.return_ns = 3;
    let mut config = config(3);
    config.max_batch_tokens = 10;
    config.max_in_flight = Some(4);
    let outcome = run(&workload, &machine, config);
    // Of three chunks the last one samples.
    assert_eq!(outcome.ttft.max, Some(50 + 5 + 3));
    assert_eq!(times(&outcome, 0), [("busy", 30), ("drain", 28)]);
    assert_eq!(times(&outcome, 2), [("busy", 35), ("fill", 20), ("drain", 3)]);
}

#[test]
fn granularity_lets_parts_of_a_batch_overtake_its_whole() {
    // Two prompts of 10 tokens in one batch, then two decodes in one: c0 = 2, c1 = 1.
    let workload = requests(&[(0.0, 10, 2), (0.0, 10, 2)]);
    let mut machine = machine(3, cost("2", "1", "0"));
    let config = config(3);
    let ttft = |outcome: &Outcome| (outcome.ttft.p50, outcome.ttft.max, outcome.stages[0].busy_ns);
    // 22 ns a stage.
    assert_eq!(ttft(&run(&workload, &machine, config)), (Some(66.0), Some(66), 22 + 4));
    // 12 ns a stage and piece: 36 and 48. Each decode for itself, too.
    machine.granularity = Granularity::Request;
    assert_eq!(ttft(&run(&workload, &machine, config)), (Some(42.0), Some(48), 24 + 6));
    machine.granularity = Granularity::Chunk;
    assert_eq!(ttft(&run(&workload, &machine, config)), (Some(42.0), Some(48), 24 + 4));
    // Preparing a piece takes 5: the second is prepared while the first runs, or only after.
    machine.piece_ns = 5;
    assert_eq!(ttft(&run(&workload, &machine, config)), (Some(47.0), Some(53), 28));
    machine.scheduling = Scheduling::Sync;
    let sync = run(&workload, &machine, config);
    assert_eq!(ttft(&sync), (Some(49.5), Some(58), 28));
    assert_eq!(sync.stages[0].idle_ns(Cause::Scheduler), 3 * 5);
}

#[test]
fn chunks_of_one_request_in_one_batch_are_pieces_of_their_own() {
    let workload = requests(&[(0.0, 30, 1)]);
    let mut machine = machine(3, cost("2", "1", "0"));
    let mut config = config(3);
    config.chunks_per_batch = 3;
    config.chunking = Chunking::Tokens { max: Some(10) };
    let ttft = |machine: &Machine| run(&workload, machine, config).ttft.max;
    assert_eq!(ttft(&machine), Some(3 * 32));
    machine.granularity = Granularity::Request;
    assert_eq!(ttft(&machine), Some(3 * 32));
    machine.granularity = Granularity::Chunk;
    assert_eq!(ttft(&machine), Some((3 + 2) * 12));
}

const PROFILE: &str = r#"
name = "four layers"
about = "-"
source = "-"
[cost]
stages = 4
c0 = 100
c1 = 10
[hop]
latency_ns = 0
[scheduler]
scheduler_ns = 0
return_ns = 0
block_size = 16
num_blocks = 100
max_batch_tokens = 10
max_requests = 10
"#;

#[test]
fn layers_are_split_as_given() {
    let profile = Profile::parse(PROFILE, "test").unwrap();
    let layers = [1, 2, 1];
    let machine = Machine::split(&profile, &layers).unwrap();
    let config = profile.split_config(&layers).unwrap();
    assert_eq!(config.cost, Some(machine.stage_costs[1]));
    // Chunks of 10 tokens: 200, 300 and 200 ns.
    let outcome = run(&requests(&[(0.0, 20, 1)]), &machine, config);
    assert_eq!(outcome.ttft.max, Some(200 + 2 * 300 + 200));
    assert_eq!(times(&outcome, 0), [("busy", 400), ("drain", 600)]);
    assert_eq!(times(&outcome, 1), [("busy", 600), ("fill", 200), ("drain", 200)]);
    assert_eq!(times(&outcome, 2), [("busy", 400), ("fill", 500), ("upstream", 100)]);
    // A split is checked.
    for (wrong, problem) in [(&[] as &[u32], "at least 1 layer"), (&[1, 0, 3], "at least 1 layer"), (&[u32::MAX, 1], "too many")] {
        let error = Machine::split(&profile, wrong).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    let llama = Profile::find("llama-70b-h100-tp8").unwrap();
    assert!(Machine::split(&llama, &[40, 41]).unwrap_err().to_string().contains("the model has 80"));
    let (even, uneven) = (llama.config(4).unwrap(), llama.split_config(&[26, 18, 18, 18]).unwrap());
    assert_eq!(llama.split_config(&[20; 4]).unwrap(), even);
    assert!(uneven.num_blocks < even.num_blocks, "the stage with most layers has least room");
}

#[test]
fn a_full_pipeline_is_told_from_a_result_on_its_way_back() {
    // One stage of two is slow: stage 0 has to wait until a batch is back, with two in flight.
    let workload = requests(&[(0.0, 40, 1)]);
    let mut machine = machine(2, cost("10", "0", "0"));
    machine.stage_costs[1] = cost("30", "0", "0");
    machine.return_ns = 5;
    let mut config = config(2);
    config.max_batch_tokens = 10;
    let outcome = run(&workload, &machine, config);
    // Stage 0: 0-10, 10-20, then at 45 (a result that left at 40), and at 75.
    assert_eq!(outcome.ttft.max, Some(10 + 4 * 30 + 5));
    assert_eq!(times(&outcome, 0), [("busy", 40), ("drain", 50), ("communication", 10), ("downstream", 35)]);
}
