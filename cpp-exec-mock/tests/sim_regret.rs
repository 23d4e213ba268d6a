//! Regret of prompt work: exact for one prompt, never negative, and larger where the pipeline is worse used.

mod common;

use common::{config, cost, machine, requests};
use cpp_exec_mock::planning::{Problem, optimum};
use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::{Extras, Machine, Mode, Regret, RegretMeter, Slo, simulate_with};
use cpp_exec_mock::workload::{Synthetic, Workload};
use cpp_sched::planner::lower_bound;
use cpp_sched::{Attos, Config, CostTerms};

fn regret(workload: &Workload, machine: &Machine, config: Config) -> Regret {
    let mut meter = RegretMeter::new(machine);
    let extras = Extras { watch: vec![&mut meter], ..Extras::default() };
    simulate_with(workload, machine, config, Slo::default(), &mut |_| {}, extras).unwrap();
    meter.regret()
}

/// One prompt of 8 equal chunks on 4 stages: sum + 3 * largest, against the closed form.
#[test]
fn one_prompt_by_hand() {
    let cost = cost("1000", "10", "0");
    let machine = machine(4, cost);
    let mut config = config(4);
    config.max_batch_tokens = 100;
    let regret = regret(&requests(&[(0.5, 800, 1)]), &machine, config);
    // 8 chunks of 1000 + 100 * 10 ns.
    assert_eq!((regret.periods, regret.busy_ns), (1, 8 * 2000 + 3 * 2000));
    // (sqrt(8000) + sqrt(3000))^2 = 11000 + 2 * sqrt(24e6) = 20797.96
    assert_eq!(regret.least_ns, 20_798);
    assert!((regret.part().unwrap() - (22_000.0 / 20_798.0 - 1.0)).abs() < 1e-12);
}

/// Prompts that overlap are one period, others periods of their own; decodes go on after its end and belong to none.
#[test]
fn periods_end_with_their_last_prompt() {
    let machine = machine(2, cost("1000", "10", "0"));
    let mut config = config(2);
    config.max_batch_tokens = 100;
    let apart = regret(&requests(&[(0.0, 100, 50), (1.0, 100, 1), (2.0, 100, 1)]), &machine, config);
    assert_eq!((apart.periods, apart.busy_ns), (3, 3 * 4000));
    // The second comes 1 us after the first: it waits for stage 0 until 2000, and is done at 6000.
    let overlapping = regret(&requests(&[(0.0, 100, 50), (0.000_001, 100, 1)]), &machine, config);
    assert_eq!((overlapping.periods, overlapping.busy_ns), (1, 6000));
    // Both: 2000 of work and two batches' constants at the best: (sqrt(2000) + sqrt(1000))^2.
    assert_eq!(overlapping.least_ns, lower_bound(Attos::from_ns(1000), Attos::from_ns(2000), 1_000_000).to_ns());
    // One that comes late in a long period: nothing of it can be done before.
    let late = regret(&requests(&[(0.0, 1000, 1), (0.000_019, 100, 1)]), &machine, config);
    assert_eq!(late.periods, 1);
    assert!(late.least_ns >= 19_000 + 2000, "{late:?}");
}

/// No run of any mode is faster than the least, with unequal stages, hops, caches and preemptions.
#[test]
fn never_negative_and_ordered_by_mode() {
    let profile = Profile::find("demo").unwrap();
    for seed in 0..6 {
        let parameters =
            Synthetic { requests: 150, rate: 3.0, input_mean: 3000.0, input_sigma: 1.3, output_mean: 40.0, seed, ..Synthetic::default() };
        let workload = Workload::synthetic(&parameters).unwrap();
        let by_mode = Mode::ALL.map(|mode| {
            let mut config = profile.config(4).unwrap();
            mode.apply(&mut config);
            regret(&workload, &Machine::new(&profile, 4).unwrap(), config)
        });
        for regret in by_mode {
            assert!(regret.periods > 0 && regret.busy_ns >= regret.least_ns && regret.least_ns > 0, "seed {seed}: {by_mode:?}");
        }
        let part = |mode: usize| by_mode[mode].part().unwrap();
        assert!(part(1) > part(2) && part(1) > part(3), "request, chunk, cpp: {by_mode:?}");
        let mut config = profile.split_config(&[3, 1, 2]).unwrap();
        Mode::Chunk.apply(&mut config);
        let uneven = regret(&workload, &Machine::split(&profile, &[3, 1, 2]).unwrap(), config);
        assert!(uneven.busy_ns >= uneven.least_ns, "seed {seed}: {uneven:?}");
    }
}

/// How near the limit is to the optimum: one prompt alone, on the grid of 64 tokens.
#[test]
fn the_limit_is_near_the_optimum() {
    let profile = Profile::find("llama-70b-h100-tp8").unwrap();
    for (prompt, stages) in [(8192, 4), (32_768, 4), (32_768, 16), (131_072, 8)] {
        let cost = profile.stage_cost(stages).unwrap();
        let best = optimum(&Problem::new(prompt, stages, cost)).makespan.to_ns() as f64;
        let work = cost.items(&CostTerms::prefill(0, prompt));
        let limit = lower_bound(cost.c0, work, u64::from(stages - 1) * 1_000_000).to_ns() as f64;
        assert!((1.0..1.03).contains(&(best / limit)), "{prompt} on {stages}: {best} against {limit}");
        let mut config = profile.config(stages).unwrap();
        Mode::Cpp.apply(&mut config);
        config.max_batch_tokens = prompt;
        // Hops and decisions in no time, so that what is left is the cutting.
        let machine = machine(stages as usize, cost);
        let ours = regret(&requests(&[(0.0, prompt, 1)]), &machine, config);
        assert_eq!(ours.least_ns as f64, limit, "{prompt} on {stages}");
        assert!(ours.part().unwrap() < 0.05, "{prompt} on {stages}: {ours:?}");
    }
}
