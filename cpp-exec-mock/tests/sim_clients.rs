//! What clients do: they follow their own answers, hang up, and keep to themselves how much they will read. Times by hand.

mod common;

use common::{balances, config, cost, machine, run, workload};
use cpp_exec_mock::sim::Outcome;
use cpp_exec_mock::workload::{Bursts, LoadOptions, Prefix, Sessions, Synthetic, TimeScale, Workload};
use cpp_sched::Admission;

/// One stage of 100 ns a batch.
fn one_stage(workload: &Workload) -> Outcome {
    run(workload, &machine(1, cost("100", "0", "0")), config(1))
}

#[test]
fn a_request_that_follows_comes_after_the_end_of_the_one_before() {
    let workload = workload(
        r#"{"arrival_s":0,"input_tokens":10,"output_tokens":3}
{"after_s":0.000001,"input_tokens":20,"output_tokens":1}
{"after_s":0.0000005,"input_tokens":20,"output_tokens":2}"#,
    );
    // Ends at 300; 1300 to 1400; 1900 to 2100.
    let outcome = one_stage(&workload);
    assert_eq!((outcome.requests.submitted, outcome.requests.finished, outcome.duration_ns), (3, 3, 2100));
    assert_eq!((outcome.ttft.max, outcome.e2e.max, outcome.queue.max), (Some(100), Some(300), Some(0)));
}

#[test]
fn chains_stay_together_when_rows_are_sorted_and_scaled() {
    let mut workload = workload(
        r#"{"arrival_s":5,"input_tokens":50,"output_tokens":1,"patience_s":9}
{"after_s":2,"input_tokens":51,"output_tokens":1}
{"arrival_s":1,"input_tokens":10,"output_tokens":1}
{"after_s":3,"input_tokens":11,"output_tokens":1,"patience_s":7}"#,
    );
    let inputs = |workload: &Workload| workload.items().iter().map(|item| item.input_tokens).collect::<Vec<_>>();
    let thinks = |workload: &Workload| (0..4).map(|i| workload.follows_after_ns(i).map(|ns| ns / 1_000_000)).collect::<Vec<_>>();
    assert_eq!((inputs(&workload), thinks(&workload)), (vec![10, 11, 50, 51], vec![None, Some(3000), None, Some(2000)]));
    assert_eq!((0..4).map(|i| workload.patience_ns(i)).collect::<Vec<_>>(), [None, Some(7_000_000_000), Some(9_000_000_000), None]);
    workload.scale_time("0.5".parse::<TimeScale>().unwrap()).unwrap();
    assert_eq!(thinks(&workload), [None, Some(1500), None, Some(1000)]);
    workload.truncate(1);
    assert_eq!((one_stage(&workload).requests.finished, workload.follows_after_ns(1)), (1, None));
}

#[test]
fn a_client_that_hangs_up_ends_its_request_and_goes_on() {
    let workload = workload(
        r#"{"arrival_s":0,"input_tokens":10,"output_tokens":1000,"patience_s":0.00000105}
{"after_s":0.0000001,"input_tokens":10,"output_tokens":1,"patience_s":5}"#,
    );
    // A token each 100; at 1050 the eleventh batch is in flight, and with it the request ends at 1100. The next comes at 1200.
    let outcome = one_stage(&workload);
    assert_eq!((outcome.requests.aborted, outcome.requests.finished, outcome.requests.unfinished), (1, 1, 0));
    assert_eq!((outcome.duration_ns, outcome.aborted_tokens, outcome.tokens.computed), (1300, 10 + 10, 10));
    assert_eq!((outcome.ttft.count, outcome.ttft.max), (1, Some(100)));
}

#[test]
fn a_scheduler_that_does_not_know_where_outputs_end_sets_aside_what_they_may_need() {
    let mut workload = workload(&(0..8).map(|_| r#"{"arrival_s":0,"input_tokens":64,"output_tokens":4}"#).collect::<Vec<_>>().join("\n"));
    let mut config = config(1);
    (config.block_size, config.num_blocks, config.admission) = (16, 40, Admission::NoEvict);
    let machine = machine(1, cost("100", "0", "0"));
    // Known: 64 + 4 tokens are five blocks, eight fit at once.
    let known = run(&workload, &machine, config);
    assert_eq!((known.duration_ns, known.queue.max), (400, Some(0)));
    // 64 + 250 are twenty blocks: two at once, and four rounds.
    workload.hide_output_lengths(250).unwrap();
    let hidden = run(&workload, &machine, config);
    assert_eq!((hidden.tokens.output, hidden.duration_ns), (32, 4 * 400));
    // Asynchronous: a step past the end is found out only afterwards.
    (config.async_scheduling, config.max_in_flight) = (true, Some(2));
    let ahead = run(&workload, &machine, config);
    assert_eq!((ahead.tokens.output, ahead.requests.finished), (32, 8));
    assert!(ahead.tokens.recomputed > 0 && balances(&ahead), "{:?}", ahead.tokens);
    // What they are allowed is the end as well.
    workload.hide_output_lengths(3).unwrap();
    assert_eq!(run(&workload, &machine, config).tokens.output, 24);
}

fn conversations(sessions: Sessions, p: Synthetic) -> Workload {
    Workload::synthetic(&Synthetic { sessions: Some(sessions), ..p }).unwrap()
}

#[test]
fn users_have_one_request_at_a_time_each_and_prompts_grow() {
    let p = Synthetic { requests: 1000, input_mean: 200.0, output_mean: 50.0, ..Synthetic::default() };
    let sessions = Sessions { users: Some(7), think_ns: 20_000, max_context: 4000, ..Sessions::default() };
    let workload = conversations(sessions, p);
    assert_eq!((workload.items().len(), workload.items().windows(2).all(|pair| pair[0].arrival_ns <= pair[1].arrival_ns)), (1000, true));
    let opened = workload.items().iter().filter(|item| item.prefix == Prefix::New).count();
    assert!((120..320).contains(&opened), "about five turns each: {opened}");
    for (i, pair) in workload.items().windows(2).enumerate() {
        if let Prefix::Continues { item, tokens } = pair[1].prefix {
            assert_eq!((item as usize, tokens), (i, pair[0].input_tokens + pair[0].output_tokens));
            assert!(pair[1].input_tokens > tokens && pair[1].input_tokens + pair[1].output_tokens <= 4000);
        }
    }
    let mut config = config(2);
    config.prefix_caching = true;
    let machine = machine(2, cost("1000", "10", "0.001"));
    let outcome = run(&workload, &machine, config);
    assert_eq!(outcome.requests.finished, 1000);
    assert!(balances(&outcome) && outcome.tokens.cached > outcome.tokens.prompt / 4, "{:?}", outcome.tokens);
    assert_eq!(outcome.decision_digest, run(&workload, &machine, config).decision_digest);
    // A machine half as fast gets half the load, not a queue.
    let slow = run(&workload, &common::machine(2, cost("100000", "1000", "0.1")), config);
    assert!(slow.duration_ns > 10 * outcome.duration_ns);
    assert!(slow.queue.p90.unwrap() < 0.3 * slow.e2e.p90.unwrap());
}

#[test]
fn conversations_of_an_open_loop_begin_by_themselves() {
    let p = Synthetic { requests: 5000, rate: 10.0, ..Synthetic::default() };
    let workload = conversations(Sessions { turns_mean: 4.0, ..Sessions::default() }, p);
    let own: Vec<_> = (0..5000).filter(|&i| workload.follows_after_ns(i).is_none()).collect();
    let last_s = workload.items().last().unwrap().arrival_ns as f64 / 1e9;
    // 10 requests a second are 2.5 conversations a second.
    let rate = own.len() as f64 / last_s;
    assert!((2.25..2.75).contains(&rate), "{rate}");
    assert!(own.iter().all(|&i| workload.items()[i].prefix == Prefix::New));
    assert_eq!(workload, conversations(Sessions { turns_mean: 4.0, ..Sessions::default() }, p));
}

#[test]
fn bursts_keep_the_rate_and_leave_gaps() {
    let p = Synthetic {
        requests: 20_000,
        rate: 10.0,
        bursts: Some(Bursts { on_ns: 1_000_000_000, off_ns: 4_000_000_000 }),
        ..Synthetic::default()
    };
    let workload = Workload::synthetic(&p).unwrap();
    let seconds: Vec<u64> = workload.items().iter().map(|item| item.arrival_ns / 1_000_000_000).collect();
    let long = seconds.last().unwrap() + 1;
    let mut counts = vec![0u64; long as usize];
    seconds.iter().for_each(|&s| counts[s as usize] += 1);
    let mean = 20_000.0 / long as f64;
    assert!((8.5..11.5).contains(&mean), "{mean}");
    let variance = counts.iter().map(|&c| (c as f64 - mean).powi(2)).sum::<f64>() / long as f64;
    // Poisson arrivals have a variance of their mean.
    assert!(variance > 10.0 * mean, "{variance}");
    assert!(counts.iter().filter(|&&c| c == 0).count() as u64 > long / 2);
    assert_eq!(workload, Workload::synthetic(&p).unwrap());
}

#[test]
fn time_stamps_on_a_grid_are_spread_where_that_is_wanted() {
    let lines = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,x,10,1,11,a\n5,x,10,1,11,a\n6,x,10,1,11,a\n";
    let file = common::TempFile::new(".csv", lines);
    let arrivals = |tick_ns| {
        let workload = Workload::load(file.path(), &LoadOptions { tick_ns, ..LoadOptions::default() }).unwrap();
        workload.items().iter().map(|item| item.arrival_ns / 1_000_000).collect::<Vec<_>>()
    };
    assert_eq!(arrivals(None), [0, 0, 1000]);
    assert_eq!(arrivals(Some(1_000_000_000)), [0, 500, 1000]);
    assert_eq!(arrivals(Some(0)), [0, 0, 1000]);
}

#[test]
fn a_part_of_the_clients_loses_patience() {
    let mut workload = Workload::synthetic(&Synthetic { requests: 10_000, ..Synthetic::default() }).unwrap();
    workload.lose_patience(2_000_000_000, 0.25, 3).unwrap();
    let times: Vec<u64> = (0..10_000).filter_map(|i| workload.patience_ns(i)).collect();
    assert!((2300..2700).contains(&times.len()), "{}", times.len());
    let mean_s = times.iter().map(|&ns| ns as f64 / 1e9).sum::<f64>() / times.len() as f64;
    assert!((1.85..2.15).contains(&mean_s), "{mean_s}");
    assert!(workload.lose_patience(0, 0.5, 3).is_err() && workload.lose_patience(1, 1.5, 3).is_err());
}
