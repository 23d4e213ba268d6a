//! Published measurements: each profile is what its fit points give, and its predictions are as near as the documentation says.

use cpp_exec_mock::profile::{Free, Profile, Published, builtin_names, fit, measure, ratios};
use cpp_sched::Attos;

fn find(name: &str) -> (Profile, Published) {
    (Profile::find(name).unwrap(), Published::find(name).unwrap().unwrap())
}

/// The worst relative error of the points of fit, and of those of prediction.
fn errors(name: &str) -> (f64, Vec<f64>) {
    let (profile, published) = find(name);
    let off = |point: &_| measure(&profile, &published, point).unwrap();
    let worst = published.fit.iter().map(|point| (off(point) / point.published_ns() - 1.0).abs()).fold(0.0, f64::max);
    (worst, published.prediction.iter().map(|point| off(point) / point.published_ns() - 1.0).collect())
}

fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = part * (sorted.len() - 1) as f64;
    let (low, high) = (sorted[rank as usize], sorted[(rank as usize + 1).min(sorted.len() - 1)]);
    low + (high - low) * rank.fract()
}

/// Fitted again, every profile has the values that are in its file.
#[test]
fn files_hold_what_their_fit_points_give() {
    let mut fitted = 0;
    for name in builtin_names() {
        let Some(published) = Published::find(name).unwrap() else { continue };
        assert!(published.source.starts_with("https://"), "{name}");
        assert!(!published.prediction.is_empty(), "{name}");
        for point in &published.fit {
            assert!(published.prediction.iter().all(|other| other.what != point.what), "{name}: {} is on both sides", point.what);
        }
        let Some(result) = fit(&Profile::find(name).unwrap(), &published).unwrap() else { continue };
        for (free, file, value) in result.values {
            assert!((value / file - 1.0).abs() < 1e-4, "{name}: {free} is {file} in the file, fitted {value}");
            fitted += 1;
        }
    }
    assert!(fitted >= 9, "{fitted}");
}

/// From other values the fit comes to the same: it does not just stay where it is.
#[test]
fn a_fit_finds_its_way_back() {
    for name in ["qwen3-235b-h20", "deepseek-v3.1-h20", "kimi-k2.5-mi355x", "llama-8b-h200"] {
        let (mut profile, published) = find(name);
        let right = fit(&profile, &published).unwrap().unwrap().values;
        // What is free is wrong by 30 %, and percentages are anywhere.
        let wrong = |attos: &mut Attos| attos.0 = attos.0 * 13 / 10;
        for free in &published.free {
            match free {
                Free::C0 => wrong(&mut profile.per_batch),
                Free::C1 => wrong(&mut profile.whole.c1),
                Free::C2 => wrong(&mut profile.whole.c2),
                Free::Speed => [&mut profile.whole.c1, &mut profile.whole.c2, &mut profile.whole.c4].into_iter().for_each(wrong),
                Free::LinearPercent => profile.device.as_mut().unwrap().linear_percent = 20,
                Free::BandwidthPercent => profile.device.as_mut().unwrap().bandwidth_percent = 99,
                other => panic!("{other} is not made wrong"),
            }
        }
        let again = fit(&profile, &published).unwrap().unwrap();
        // SGLang's chunks move in steps of 64 tokens with the ratio of the two values, so that others nearby do as well.
        let near = if name == "qwen3-235b-h20" { 0.1 } else { 1e-3 };
        for ((free, _, value), (_, _, wanted)) in again.values.iter().zip(&right) {
            assert!((value / wanted - 1.0).abs() < near, "{name}: {free} is {value}, not {wanted}");
        }
        for point in published.fit.iter().filter(|point| point.prompt.is_some()) {
            let off = measure(&again.profile, &published, point).unwrap() / point.published_ns() - 1.0;
            assert!(off.abs() < 0.01, "{name}: {} is {off} off", point.what);
        }
    }
}

/// SGLang: fitted on 128K and 512K, 256K and 1M within 5 %; four stages from one within 5 %.
#[test]
fn sglang_is_predicted_within_five_percent() {
    let (fit, predictions) = errors("qwen3-235b-h20");
    assert!(fit < 1e-3, "{fit}");
    assert!(predictions.len() == 3 && predictions.iter().all(|off| off.abs() < 0.03), "{predictions:?}");
    let (fit, predictions) = errors("deepseek-v3.1-h20");
    assert!(fit < 1e-3 && predictions.len() == 1 && predictions[0].abs() < 0.02, "{fit} {predictions:?}");
}

/// ATOM: the fixed chunks within 0.5 %; the dynamic ones come out 5 % too fast, as the documentation says.
#[test]
fn atom_is_fitted_within_half_a_percent() {
    let (fit, predictions) = errors("kimi-k2.5-mi355x");
    assert!(fit < 0.005, "{fit}");
    assert!((-0.055..-0.045).contains(&predictions[0]), "{predictions:?}");
}

/// vLLM: fitted on the row before the change alone, the published ratios lie in the central 90 % of paired seeds.
#[test]
fn vllm_ratios_lie_among_those_of_the_seeds() {
    let (profile, published) = find("llama-8b-l4");
    let mut drawn = published.workload.unwrap();
    drawn.seeds = 30;
    assert!(drawn.fit_seed + 60 <= drawn.predict_seed);
    let found = ratios(&profile, &drawn).unwrap();
    for (ratio, values) in [(0.86, &found.ttft_mean), (0.72, &found.ttft_p99), (0.96, &found.tpot_mean)] {
        let (low, high) = (quantile(values, 0.05), quantile(values, 0.95));
        assert!(low <= ratio && ratio <= high, "{ratio} is not between {low} and {high}");
    }
    assert!(quantile(&found.ttft_mean, 0.95) < 1.0, "{:?}", found.ttft_mean);
}

#[test]
fn a_wrong_point_is_said() {
    let parse = |points: &str| Published::parse(&format!("[published]\nsource = \"x\"\n{points}"), "mine.toml");
    let point = "[[published.fit]]\nwhat = \"a\"\n";
    for (points, wanted) in [
        (format!("{point}gemm = {{ m = 1, n = 1, k = 1 }}"), "mine.toml: published: a: one of ms and us must be a time above 0"),
        (format!("{point}ms = -1\ngemm = {{ m = 1, n = 1, k = 1 }}"), "mine.toml: published: a: one of ms and us must be a time above 0"),
        (format!("{point}ms = 1"), "mine.toml: published: a: exactly one of prompt, gemm and workload says what was measured"),
        (
            format!("{point}ms = 1\nworkload = {{ mode = \"chunk\", measure = \"ttft_mean\" }}"),
            "mine.toml: published: a: [published.workload] is missing",
        ),
        (
            format!("{point}ms = 1\nprompt = {{ layers = [1], tokens = 9, chunks = {{ rule = \"fixed\", tokens = 0 }} }}"),
            "mine.toml: published: a: a prompt has 1 to 2^26 tokens, and chunks of at least 64",
        ),
    ] {
        assert_eq!(parse(&points).unwrap_err().to_string(), wanted);
    }
    assert!(parse("free = [\"c9\"]").unwrap_err().to_string().contains("mine.toml"), "an unknown name");
    assert_eq!(Published::parse("name = \"x\"", "x").unwrap(), None);
    assert!(Published::find("none-such").unwrap_err().to_string().contains("there are demo"));
    // More values than points, and layers that the model has not.
    let (profile, mut published) = find("qwen3-235b-h20");
    published.fit.truncate(1);
    assert!(fit(&profile, &published).unwrap_err().to_string().contains("1 points cannot fit 2 values"));
    let (llama, _) = find("llama-8b-l4");
    let error = measure(&llama, &published, &published.fit[0]).unwrap_err().to_string();
    assert_eq!(error, "profile llama-8b-l4: a split into 94 layers, the model has 32");
}
