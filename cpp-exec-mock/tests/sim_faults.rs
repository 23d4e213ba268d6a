//! Runs in which something fails: times by hand, every request ends, and the books say what it cost.

mod common;

use common::{balances, config, cost, machine, requests};
use cpp_exec_mock::pipeline::Cause;
use cpp_exec_mock::sim::{Extras, FaultSpec, Faults, Machine, Outcome, Slo, simulate_with};
use cpp_exec_mock::workload::{Synthetic, Workload};
use cpp_sched::journal::replay;
use cpp_sched::{Config, PreemptedOutput};

fn faults(lines: &str, stages: u32, timeout_ns: u64) -> Faults {
    Faults::new(&FaultSpec::lines(lines).unwrap(), stages, 7, 60_000_000_000, timeout_ns).unwrap()
}

fn run(workload: &Workload, machine: &Machine, config: Config) -> Outcome {
    simulate_with(workload, machine, config, Slo::default(), &mut |_| {}, Extras::default()).unwrap()
}

/// One prompt of four chunks of 100 ns each on three stages, and two outputs: chunks leave at 300, 400, 500, 600; the decode at 900.
fn small(lines: &str, timeout_ns: u64) -> Outcome {
    let workload = requests(&[(0.0, 40, 2)]);
    let mut config = config(3);
    config.max_batch_tokens = 10;
    let mut machine = machine(3, cost("100", "0", "0"));
    machine.faults = faults(lines, 3, timeout_ns);
    run(&workload, &machine, config)
}

fn ends(outcome: &Outcome) -> (u64, u64) {
    (outcome.ttft.max.unwrap(), outcome.e2e.max.unwrap())
}

#[test]
fn without_faults() {
    let outcome = small("", 50);
    assert_eq!(ends(&outcome), (600, 900));
    assert!(outcome.faults.is_none());
}

#[test]
fn a_stall_delays_by_its_length_and_loses_nothing() {
    let outcome = small("kind=stall,stage=1,at=250ns,for=70ns", 50);
    assert_eq!(ends(&outcome), (670, 970));
    assert_eq!((outcome.stats.batches_lost, outcome.tokens.recomputed), (0, 0));
    let fault = |stage: usize| outcome.stages[stage].idle_ns(Cause::Fault);
    assert_eq!((fault(1), fault(2)), (70, 70));
    let incident = outcome.faults.unwrap().incidents[0];
    // It waits for its first token all the time: recovered from as soon as the stage works again.
    assert_eq!((incident.began_ns, incident.noticed_ns, incident.up_ns), (Some(250), None, Some(320)));
    assert!(incident.recovered_ns >= Some(320));
}

#[test]
fn a_stage_that_stands_still_long_enough_fills_the_pipeline() {
    // Chunk 1 is on stage 2 from 200, stands still from 250 to 1250, and is back at 1300. Three batches are in flight, so chunk 4 is decided only then.
    let outcome = small("kind=stall,stage=2,at=250ns,for=1us", 50);
    assert_eq!(ends(&outcome), (1600, 1900));
    // Stage 0 has nothing to run from 300 on: until 1250 for the fault, then until 1300 because stage 2 is at work; stage 1 waits for it.
    for stage in [0, 1] {
        let idle = |cause| outcome.stages[stage].idle_ns(cause);
        assert_eq!((idle(Cause::Fault), idle(Cause::Downstream)), (950, 50), "stage {stage}");
    }
    assert_eq!(outcome.stages[2].idle_ns(Cause::Fault), 1000);
}

#[test]
fn a_slow_stage_delays_by_what_it_takes_longer() {
    // Chunks 2 and 3 take 150 on stage 1 from 200 on: [200,350], [350,500], then [500,600] as always, and the last [600,700].
    let outcome = small("kind=slow:1.5,stage=1,at=200ns,for=300ns", 50);
    assert_eq!(ends(&outcome), (800 - 100, 1000));
}

#[test]
fn a_stage_that_dies_takes_all_kv_with_it() {
    // At 350 stage 2 is gone; at 400 that is noticed. Chunk 1 was back at 300; the others are lost, and chunk 1 with the memory of stage 2. The stage
    // is back at 1350: four chunks leave at 1650 .. 1950, the decode at 2250.
    let outcome = small("kind=die,stage=2,at=350ns,for=1us", 50);
    assert_eq!(ends(&outcome), (1950, 2250));
    assert_eq!(outcome.requests.finished, 1);
    assert!(balances(&outcome));
    // Chunks 1 to 3 were decided by 300, the fourth then.
    assert_eq!((outcome.tokens.computed, outcome.tokens.recomputed), (81, 40));
    assert_eq!(outcome.stats.batches_lost, 3);
    let incident = outcome.faults.unwrap().incidents[0];
    assert_eq!((incident.began_ns, incident.noticed_ns, incident.up_ns, incident.batches_lost), (Some(350), Some(400), Some(1350), 3));
    // Stage 2 stands still from 350 on, is down until 1350, and is filled again until 1550.
    assert_eq!(outcome.stages[2].idle_ns(Cause::Fault), 1550 - 350);
}

#[test]
fn a_lost_result_is_computed_again_and_those_that_build_on_it() {
    // Chunk 2 should be back at 400. That it is not is noticed at 500: chunks 2 to 4 again, from 500 on, and chunks 3 and 4 were void: the pipeline takes
    // chunk 2 when stage 0 is free (chunk 4 has left it at 400).
    let outcome = small("kind=lose,at=350ns", 100);
    assert_eq!(outcome.stats.batches_lost, 1);
    assert_eq!((outcome.tokens.computed, outcome.tokens.recomputed), (71, 30));
    let incident = outcome.faults.as_ref().unwrap().incidents[0];
    assert_eq!((incident.began_ns, incident.noticed_ns, incident.batches_lost), (Some(400), Some(500), 1));
    // Chunk 2 again [500, 800]; at 500 chunk 3 (back since 500) is taken as well, and chunk 4 is in flight until 600.
    assert_eq!(ends(&outcome), (1000, 1300));
}

#[test]
fn a_transfer_that_hangs_loses_what_is_behind_it() {
    // The first transfer from stage 1 at 250 or later is that of chunk 2, at 300. Noticed at 400: chunk 1 is back, chunks 2 to 4 are lost, memory is not.
    let outcome = small("kind=hang,stage=1,at=250ns", 100);
    assert_eq!(ends(&outcome), (400 + 500, 1200));
    assert_eq!((outcome.tokens.recomputed, outcome.stats.batches_lost), (30, 3));
    assert_eq!(outcome.stages[2].idle_ns(Cause::Fault), 300);
}

#[test]
fn a_fault_that_never_comes_about_says_so() {
    let outcome = small("kind=hang,stage=0,at=5s\nkind=lose,at=6s\nkind=stall,stage=0,at=7s,for=1s", 100);
    assert_eq!(ends(&outcome), (600, 900));
    assert!(outcome.faults.unwrap().incidents.iter().all(|incident| incident.began_ns.is_none()));
}

#[test]
fn under_random_faults_every_request_ends_and_two_runs_are_equal() {
    let workload = Workload::synthetic(&Synthetic { requests: 300, rate: 20.0, output_mean: 20.0, ..Synthetic::default() }).unwrap();
    let lines =
        "kind=stall,every=3s,for=200ms\nkind=slow:3.0,every=5s,for=1s\nkind=die,every=6s,for=700ms\nkind=lose,every=2s\nkind=hang,every=4s";
    for (i, sink) in [false, true, true].into_iter().enumerate() {
        let mut config = config(4);
        (config.num_blocks, config.prefix_caching) = (1500, true);
        config.async_scheduling = i > 0;
        config.max_in_flight = Some(5);
        config.preempted_output = if i == 2 { PreemptedOutput::Drop } else { config.preempted_output };
        let mut machine = machine(4, cost("2000000", "10000", "0.05"));
        (machine.hop.latency_ns, machine.return_ns, machine.scheduler_ns) = (20_000, 30_000, 100_000);
        machine.faults = faults(lines, 4, 150_000_000);
        assert!(machine.faults.list().len() > 20);
        let mut journal = Vec::new();
        let extras = Extras { journal: sink.then_some(&mut journal as _), ..Extras::default() };
        let outcome = simulate_with(&workload, &machine, config, Slo::default(), &mut |_| {}, extras).unwrap();
        assert_eq!((outcome.requests.finished, outcome.requests.unfinished), (300, 0));
        assert!(balances(&outcome) && outcome.tokens.recomputed > 0 && outcome.stats.batches_lost > 5);
        let faults = outcome.faults.as_ref().unwrap();
        assert!(faults.incidents.iter().filter(|incident| incident.recovered_ns.is_some()).count() > 10);
        assert_eq!(faults.ttft_before.count + faults.ttft_during.count + faults.ttft_after.count, 300);
        assert!(outcome.stages.iter().all(|stage| stage.idle_ns(Cause::Fault) > 0 && stage.sum_ns() == outcome.duration_ns));
        let again = run(&workload, &machine, config);
        assert_eq!((again.decision_digest, again.faults.unwrap().incidents), (outcome.decision_digest, faults.incidents.clone()));
        if sink {
            let replayed = replay(&journal).unwrap();
            assert_eq!((replayed.batches, replayed.digest), (outcome.stats.batches, outcome.decision_digest));
            assert!(replayed.difference.is_none());
        }
    }
}
