//! Drawn workloads: the moments that were asked for, and nothing but the seed decides.

use cpp_exec_mock::workload::{Prefix, Synthetic, Workload};

fn draw(parameters: &Synthetic) -> Workload {
    Workload::synthetic(parameters).unwrap_or_else(|error| panic!("{error}"))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

fn gaps(workload: &Workload) -> Vec<f64> {
    workload.items().windows(2).map(|pair| (pair[1].arrival_ns - pair[0].arrival_ns) as f64).collect()
}

/// Bounds are five standard errors or more, for 200,000 draws.
#[test]
fn arrivals_have_the_rate_and_the_variation_asked_for() {
    for burstiness in [0.5, 1.0, 2.0] {
        let workload = draw(&Synthetic { requests: 200_000, rate: 40.0, burstiness, ..Synthetic::default() });
        let gaps = gaps(&workload);
        let (mean, deviation) = (mean(&gaps), deviation(&gaps));
        assert!((mean / 25e6 - 1.0).abs() < 0.012 * burstiness, "{burstiness}: mean {mean}");
        assert!((deviation / mean / burstiness - 1.0).abs() < 0.03, "{burstiness}: variation {}", deviation / mean);
    }
    let clock = draw(&Synthetic { requests: 100, rate: 3.0, burstiness: 0.0, ..Synthetic::default() });
    assert!(gaps(&clock).iter().all(|&gap| gap == 333_333_333.0));
}

#[test]
fn lengths_have_the_mean_and_the_spread_asked_for() {
    let p = Synthetic {
        requests: 200_000,
        input_mean: 3000.0,
        input_sigma: 0.7,
        output_mean: 200.0,
        output_sigma: 0.3,
        ..Synthetic::default()
    };
    let workload = draw(&p);
    let column = |field: fn(&cpp_exec_mock::workload::WorkItem) -> u32| {
        workload.items().iter().map(|item| f64::from(field(item))).collect::<Vec<_>>()
    };
    for (values, mean_wanted, sigma) in [(column(|i| i.input_tokens), 3000.0, 0.7), (column(|i| i.output_tokens), 200.0, 0.3)] {
        assert!((mean(&values) / mean_wanted - 1.0).abs() < 0.01, "mean {}", mean(&values));
        let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
        assert!((deviation(&logs) - sigma).abs() < 0.01, "sigma {}", deviation(&logs));
    }
    let short = draw(&Synthetic { requests: 10_000, input_mean: 1.0, input_sigma: 2.0, ..p });
    assert!(short.items().iter().all(|item| item.input_tokens >= 1 && item.output_tokens >= 1 && item.prefix == Prefix::Unknown));
    let equal = draw(&Synthetic { requests: 10, input_sigma: 0.0, output_sigma: 0.0, ..p });
    assert!(equal.items().iter().all(|item| (item.input_tokens, item.output_tokens) == (3000, 200)));
}

#[test]
fn a_seed_decides_and_parameters_do_not_disturb_each_other() {
    let p = Synthetic { requests: 500, ..Synthetic::default() };
    assert_eq!(draw(&p), draw(&p));
    assert_ne!(draw(&p).items(), draw(&Synthetic { seed: 1, ..p }).items());
    let (base, other) = (draw(&p), draw(&Synthetic { input_mean: 9000.0, ..p }));
    let times = |workload: &Workload| workload.items().iter().map(|item| (item.arrival_ns, item.output_tokens)).collect::<Vec<_>>();
    assert_eq!(times(&base), times(&other));
    // A longer run begins like the shorter one.
    assert_eq!(draw(&Synthetic { requests: 900, ..p }).items()[..500], *base.items());
}

/// The draws themselves are a promise: a number published with a seed can be reproduced.
#[test]
fn the_first_draws_of_seed_0() {
    let workload = draw(&Synthetic { requests: 4, ..Synthetic::default() });
    let rows: Vec<_> = workload.items().iter().map(|item| (item.arrival_ns, item.input_tokens, item.output_tokens)).collect();
    assert_eq!(rows, [(1_372_260_028, 4771, 111), (2_721_451_816, 2814, 364), (3_086_324_223, 2142, 341), (3_189_875_309, 2366, 94)]);
    let bursty = draw(&Synthetic { requests: 4, burstiness: 2.0, ..Synthetic::default() });
    assert_eq!(
        bursty.items().iter().map(|item| item.arrival_ns).collect::<Vec<_>>(),
        [794_325_008, 794_462_023, 5_014_254_593, 5_021_657_621]
    );
}
#[test]
fn parameters_out_of_range_are_named() {
    let p = Synthetic::default();
    for (parameters, problem) in [
        (Synthetic { requests: 0, ..p }, "requests: must be at least 1"),
        (Synthetic { rate: 0.0, ..p }, "rate: 0 must be above 0"),
        (Synthetic { rate: f64::NAN, ..p }, "rate: NaN must be above 0"),
        (Synthetic { rate: f64::INFINITY, ..p }, "rate: inf must be above 0"),
        (Synthetic { rate: 1e-12, ..p }, "rate: so small that the last request would arrive after 2^63 - 1 ns"),
        (Synthetic { burstiness: -1.0, ..p }, "burstiness: -1 must be from 0 to 100"),
        (Synthetic { input_mean: 0.5, ..p }, "input-mean: 0.5 must be from 1 to 1e9 tokens"),
        (Synthetic { output_mean: 1e10, ..p }, "output-mean: 10000000000 must be from 1 to 1e9 tokens"),
        (Synthetic { output_sigma: 11.0, ..p }, "output-sigma: 11 must be from 0 to 10"),
    ] {
        assert_eq!(Workload::synthetic(&parameters).unwrap_err().to_string(), problem);
    }
}

#[test]
fn an_item_is_small() {
    assert!(size_of::<cpp_exec_mock::workload::WorkItem>() <= 48);
}
