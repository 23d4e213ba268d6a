//! Built-in profiles: they load, scale over stages, and their costs are the published ones.

use cpp_exec_mock::profile::{Hop, Profile, builtin_names, derive, list_profiles};
use cpp_sched::{Attos, CostTerms, ModelDims, Scheduler};

fn find(name: &str) -> Profile {
    Profile::find(name).unwrap_or_else(|error| panic!("{error}"))
}

fn seconds(cost: Attos) -> f64 {
    cost.to_ns() as f64 / 1e9
}

#[test]
fn all_load_and_make_schedulers() {
    assert!(builtin_names().len() >= 7);
    for name in builtin_names() {
        let profile = find(name);
        assert_eq!(profile.name, name);
        assert!(!profile.about.contains('\n') && !profile.source.trim().is_empty());
        for stages in [1, 2, 3, 4, 8, 16] {
            let config = profile.config(stages).unwrap();
            assert_eq!(config.stages, stages);
            assert_eq!(config.cost, Some(profile.stage_cost(stages).unwrap()));
            assert!(config.validate().is_ok(), "{name}, {stages} stages");
        }
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&list_profiles()).contains(&words(&format!("{name} {} {}", profile.about, profile.source))), "{name}");
    }
    // Small enough to be built here.
    Scheduler::new(find("demo").config(4).unwrap()).unwrap();
}

/// 32,768 tokens of a 70B Llama take 1.300 s on one node of eight H100, 131,072 tokens 9.468 s, both without the constant per chunk.
#[test]
fn llama_70b_takes_the_worked_times() {
    let cost = find("llama-70b-h100-tp8").stage_cost(1).unwrap();
    assert_eq!(cost.c0, Attos::from_ns(2_000_000));
    for (tokens, wanted) in [(32_768, 1.300), (131_072, 9.468)] {
        let time = seconds(cost.items(&CostTerms::prefill(0, tokens)));
        assert!((time / wanted - 1.0).abs() < 0.001, "{tokens} tokens: {time} s");
    }
}

/// The lower bound for 128k tokens on 8 stages is 1.455 s: `(sqrt(W) + sqrt((P - 1) * o))^2`.
#[test]
fn llama_70b_has_the_worked_bound_on_8_stages() {
    let cost = find("llama-70b-h100-tp8").stage_cost(8).unwrap();
    let (work, overhead) = (seconds(cost.items(&CostTerms::prefill(0, 131_072))), seconds(cost.c0));
    let bound = (work.sqrt() + (7.0 * overhead).sqrt()).powi(2);
    assert!((bound - 1.455).abs() < 0.001, "{bound}");
}

/// Decoding on one L4 is reading: 16-bit weights of the layers at 240 GB/s, assumed; what was fitted is 14 % more, and prefill at 65 % of the peak.
#[test]
fn llama_8b_on_l4_pays_for_its_weights() {
    let profile = find("llama-8b-l4");
    let (device, model) = (profile.device.clone().unwrap(), profile.model.unwrap());
    let derived = derive(&model, &device);
    let weights = 2.0 * model.weights() as f64 / (300e9 * 0.8);
    assert!((seconds(derived.c0) / weights - 1.0).abs() < 1e-6);
    let whole = profile.whole;
    assert!((1.1..1.2).contains(&(seconds(whole.c0) / weights)));
    assert!((0.90..0.95).contains(&(seconds(whole.c1) / seconds(derived.c1))));
    assert!((seconds(whole.c2) / seconds(derived.c2) - 1.0).abs() < 0.001 && (seconds(whole.c3) / seconds(derived.c3) - 1.0).abs() < 0.001);
    assert_eq!(device.kv_bytes_per_token(&model), 131_072);
    // One stage of four reads a quarter, and its constant stays.
    let quarter = profile.stage_cost(4).unwrap();
    assert_eq!(quarter.c0.0, (whole.c0.0 + 2) / 4 + Attos::from_ns(1_000_000).0);
}

/// Published times to the first token for 131,072 tokens with fixed chunks on 4 stages: sum of all chunks + 3 times the largest.
#[test]
fn kimi_reproduces_its_published_measurements() {
    let cost = find("kimi-k2.5-mi355x").stage_cost(4).unwrap();
    for (chunk, measured_ms) in [(32_768, 14_896.0), (16_384, 11_459.0), (8192, 10_121.0), (4096, 10_297.0), (2048, 12_286.0)] {
        let times: Vec<f64> =
            (0..131_072 / chunk).map(|index| 1e3 * seconds(cost.cost(&CostTerms::prefill(index * chunk, chunk)))).collect();
        let time = times.iter().sum::<f64>() + 3.0 * times.iter().copied().fold(0.0, f64::max);
        assert!((time / measured_ms - 1.0).abs() < 0.005, "chunks of {chunk}: {time} ms, measured {measured_ms}");
    }
}

#[test]
fn the_largest_stage_rules() {
    let profile = find("llama-70b-h100-tp8");
    let c1 = |stages| profile.stage_cost(stages).unwrap().c1.0 as f64;
    assert!((c1(1) / c1(8) - 8.0).abs() < 1e-9);
    // 80 layers over 3 stages: one has 27.
    assert!((c1(3) / c1(1) - 27.0 / 80.0).abs() < 1e-9);
    assert_eq!(profile.stage_cost(0).unwrap_err().to_string(), "profile llama-70b-h100-tp8: a pipeline has at least 1 stage");
    assert_eq!(profile.stage_cost(81).unwrap_err().to_string(), "profile llama-70b-h100-tp8: 80 layers make no 81 stages");
    // Without layers every stage has an equal part.
    let kimi = find("kimi-k2.5-mi355x");
    assert_eq!(kimi.stage_cost(8).unwrap().c4.0, kimi.stage_cost(4).unwrap().c4.0 / 2);
}

#[test]
fn kv_grows_with_the_memory_of_more_stages() {
    let profile = find("llama-8b-l4");
    // (0.9 * 24e9 - 16.061e9) / (131072 * 16) on one card.
    assert_eq!(profile.num_blocks(1).unwrap(), 2641);
    // (0.9 * 24e9 - 16.061e9 / 4) / (131072 * 16 / 4) on four.
    assert_eq!(profile.num_blocks(4).unwrap(), 33_540);
    let mut small = profile.clone();
    small.device.as_mut().unwrap().memory_bytes = 17_000_000_000;
    let error = small.num_blocks(1).unwrap_err().to_string();
    assert_eq!(error, "profile llama-8b-l4: a stage of 1 cannot hold its weights and one KV block; take more stages");
    assert_eq!(find("demo").num_blocks(7).unwrap(), 8192);
}

#[test]
fn hops_take_latency_and_bytes() {
    let hop = Hop { latency_ns: 20_000, bytes_per_token: 16_384, bytes_per_s: 50_000_000_000 };
    assert_eq!(hop.ns(0), 20_000);
    assert_eq!(hop.ns(2048), 20_000 + 671_089);
    assert_eq!(Hop { bytes_per_s: 0, ..hop }.ns(u64::MAX), 20_000);
    assert_eq!(Hop { bytes_per_s: 1, ..hop }.ns(u64::MAX), u64::MAX);
}

#[test]
fn an_absurd_machine_saturates() {
    let mut device = find("llama-70b-h100-tp8").device.unwrap();
    (device.peak_flops, device.linear_percent) = (1, 1);
    let giant = ModelDims::new(u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX);
    assert!(derive(&giant, &device).c1 > Attos::MAX_COEFFICIENT);
}
