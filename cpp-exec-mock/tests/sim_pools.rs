//! Two pools and the links between them: times by hand.

mod common;

use common::{config, cost, machine, requests};
use cpp_exec_mock::sim::{Handover, KvLink, KvTransfers, PoolsOutcome, simulate_pools};
use cpp_exec_mock::workload::{Synthetic, Workload};
use cpp_sched::Config;

fn transfers(handover: Handover, bytes_per_s: u64) -> KvTransfers {
    let link = KvLink { latency_ns: 5, bytes_per_s, bytes_per_token: 2 };
    KvTransfers { handover, link, layers: 2, hangs_ns: Vec::new(), timeout_ns: 1000 }
}

fn small_config(stages: u32) -> Config {
    let mut config = config(stages);
    (config.block_size, config.max_batch_tokens) = (10, 10);
    config
}

/// A prompt of four chunks and three outputs through two stages of 100 ns for prompts and one of 50 ns for outputs. Chunks are back at 200, 300, 400 and 500.
fn small(transfers: &KvTransfers) -> PoolsOutcome {
    let workload = requests(&[(0.0, 40, 3)]);
    let (prefill, decode) = (machine(2, cost("100", "0", "0")), machine(1, cost("50", "0", "0")));
    simulate_pools(&workload, (&prefill, small_config(2)), (&decode, small_config(1)), transfers).unwrap()
}

fn times(outcome: &PoolsOutcome) -> (u64, u64, u64) {
    assert_eq!((outcome.requests.finished, outcome.output_tokens), (1, 3));
    (outcome.ttft.max.unwrap(), outcome.handover.max.unwrap(), outcome.e2e.max.unwrap())
}

#[test]
fn on_a_fast_link_the_last_part_alone_can_be_seen() {
    // A byte takes a nanosecond; each stage has one for each token. At the end: 40. After each chunk: the last 10. Layer by layer: the last 5, of stage 1.
    // Then latency, and two batches of the decode pool.
    for (handover, sends) in [(Handover::End, 40), (Handover::Chunk, 10), (Handover::Layer, 5)] {
        let outcome = small(&transfers(handover, 1_000_000_000));
        assert_eq!(times(&outcome), (500, sends + 5, 500 + sends + 5 + 100), "{handover:?}");
        assert_eq!(outcome.links_busy_ns, [40, 40]);
        for pool in [&outcome.prefill, &outcome.decode] {
            assert!(pool.stages.iter().all(|stage| stage.sum_ns() == outcome.duration_ns));
        }
        assert_eq!((outcome.prefill.stages[0].busy_ns, outcome.decode.stages[0].busy_ns), (400, 100));
        // The second token comes with the handover.
        assert_eq!(outcome.tpot.max, Some((sends + 105u64).div_ceil(2)));
    }
}

#[test]
fn on_a_slow_link_what_counts_is_when_it_begins() {
    // 1000 for each chunk: from 500 on; from 200 on; from the first layer of stage 1 on, at 150.
    for (handover, there) in [(Handover::End, 4505), (Handover::Chunk, 4205), (Handover::Layer, 4155)] {
        let outcome = small(&transfers(handover, 10_000_000));
        assert_eq!(times(&outcome), (500, there - 500, there + 100), "{handover:?}");
    }
}

#[test]
fn a_transfer_that_never_ends_is_given_up_and_the_prompt_computed_again() {
    for (handover, would_be) in [(Handover::End, 545), (Handover::Chunk, 515), (Handover::Layer, 510)] {
        let mut transfers = transfers(handover, 1_000_000_000);
        transfers.hangs_ns = vec![0];
        let outcome = small(&transfers);
        // 40 tokens and the first output are five batches of 50, of which the last gives the second output; then the third.
        assert_eq!((outcome.transfers_failed, outcome.e2e.max), (1, Some(would_be + 1000 + 250 + 50)), "{handover:?}");
        assert_eq!((outcome.requests.finished, outcome.handover.count), (1, 0));
    }
}

#[test]
fn nothing_is_sent_before_there_is_room_for_it() {
    // Five blocks a request: the second waits until the first has ended at 615, then for all that is ready by then, 40.
    let workload = requests(&[(0.0, 40, 3), (0.0, 40, 3)]);
    let (prefill, decode) = (machine(2, cost("100", "0", "0")), machine(1, cost("50", "0", "0")));
    let mut few = small_config(1);
    few.num_blocks = 6;
    let run = |config| {
        simulate_pools(&workload, (&prefill, small_config(2)), (&decode, config), &transfers(Handover::Chunk, 1_000_000_000)).unwrap()
    };
    let outcome = run(few);
    // Its chunks are back at 600 to 900: two blocks wait at 615, the last is there at 915.
    assert_eq!((outcome.requests.finished, outcome.e2e.max), (2, Some(915 + 100)));
    assert_eq!(outcome.e2e.mean, Some((615.0 + 1015.0) / 2.0));
    few.num_blocks = 4;
    assert_eq!(run(few).requests.rejected, 2);
}

#[test]
fn a_request_of_one_output_needs_no_transfer() {
    let workload = requests(&[(0.0, 40, 1)]);
    let (prefill, decode) = (machine(2, cost("100", "0", "0")), machine(1, cost("50", "0", "0")));
    let outcome =
        simulate_pools(&workload, (&prefill, small_config(2)), (&decode, small_config(1)), &transfers(Handover::Layer, 10)).unwrap();
    assert_eq!((outcome.requests.finished, outcome.e2e.max, outcome.links_busy_ns), (1, Some(500), vec![0, 0]));
}

#[test]
fn many_requests_end_whatever_is_short_and_two_runs_are_equal() {
    let p = Synthetic { requests: 400, rate: 40.0, input_mean: 600.0, output_mean: 30.0, seed: 5, ..Synthetic::default() };
    let workload = Workload::synthetic(&p).unwrap();
    let mut prefill = machine(4, cost("300000", "3000", "0.01"));
    (prefill.hop.latency_ns, prefill.return_ns, prefill.scheduler_ns) = (10_000, 20_000, 150_000);
    let mut decode = machine(2, cost("1000000", "3000", "0.01"));
    (decode.return_ns, decode.scheduler_ns) = (20_000, 100_000);
    for handover in Handover::ALL {
        let (mut prefills, mut decodes) = (config(4), config(2));
        (prefills.num_blocks, prefills.max_batch_tokens, prefills.max_in_flight) = (900, 256, Some(5));
        decodes.num_blocks = 900;
        let mut transfers = transfers(handover, 3_000_000);
        (transfers.hangs_ns, transfers.timeout_ns) = (vec![1_000_000_000, 2_000_000_000, 3_000_000_000], 200_000_000);
        let run = || simulate_pools(&workload, (&prefill, prefills), (&decode, decodes), &transfers).unwrap();
        let (first, second) = (run(), run());
        assert_eq!(first.requests.finished + first.requests.rejected, 400, "{handover:?}");
        assert_eq!(first.transfers_failed, 3);
        assert_eq!(
            (first.prefill.decision_digest, first.decode.decision_digest, first.e2e),
            (second.prefill.decision_digest, second.decode.decision_digest, second.e2e)
        );
    }
}
