//! Random scenarios: every field of the configuration, every operation, every role, from a seed.
//!
//! Each seed draws its own mixture (which operations occur at all, how tight the pool is, …), so that rare combinations get whole runs of
//! their own instead of drowning in the average.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use crate::oracle::outputs;

/// A scenario in the form of FORMAT.md. Equal seeds give equal scenarios.
#[must_use]
pub fn scenario(seed: u64) -> Value {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
    let config = config(&mut draw);
    let requests = requests(&mut draw, &config);
    let script = script(&mut draw, &config, &requests);
    json!({"name": format!("mixed-{seed}"), "about": "random mixture, general rules only",
        "config": config, "requests": requests, "script": script})
}

struct Draw(ChaCha8Rng);

impl Draw {
    fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.0.random_range(0..choices.len())].clone()
    }

    fn within(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to)
    }
}

fn config(draw: &mut Draw) -> Map<String, Value> {
    let mut config = Map::new();
    let mut set = |key: &str, value: Value| config.insert(key.to_owned(), value);
    let block_size = draw.of(&[1, 2, 4, 4, 8, 8, 16]);
    // From "the largest request just fits" (a prompt of some 80 tokens, as many outputs) to plenty.
    let tight = draw.of(&[40, 60, 80, 120, 160, 200, 340]);
    let max_batch_tokens = draw.of(&[1, 3, 7, 8, 16, 16, 17, 32, 33, 64, 128, 256]);
    set("block_size", json!(block_size));
    set("num_blocks", json!((tight + draw.within(0, 20)) / block_size));
    set("max_batch_tokens", json!(max_batch_tokens));
    set("stages", json!(draw.within(1, 5)));
    for (percent, key, choices) in [
        (30, "max_batch_requests", &[1u64, 2, 3, 5][..]),
        (30, "max_requests", &[1, 2, 3, 5]),
        (25, "max_in_flight", &[1, 2, 3, 6]),
        (15, "max_model_len", &[20, 50, 70, 100]),
        (30, "chunks_per_batch", &[2, 3, 4]),
    ] {
        if draw.chance(percent) {
            set(key, json!(draw.of(choices)));
        }
    }
    set("pipelining", json!(draw.of(&["chunk", "chunk", "chunk", "chunk", "request", "none"])));
    set("policy", json!(draw.of(&["fcfs", "fcfs", "priority", "edf", "srpf", "lars", "fair"])));
    let role = draw.of(&["unified", "unified", "unified", "prefill", "decode"]);
    let admissions = if role == "prefill" { &["reserve_prompt", "no_evict"][..] } else { &["reserve_prompt", "lazy", "no_evict", "lazy"] };
    set("role", json!(role));
    set("admission", json!(draw.of(admissions)));
    set("prefix_caching", json!(draw.chance(50)));
    set("async_scheduling", json!(draw.chance(35)));
    set("balance", json!(draw.of(&["off", "off", "count", "cost"])));
    set("preempted_output", json!(draw.of(&["deliver", "deliver", "drop"])));
    let (chunking, needs_cost) = chunking(draw, max_batch_tokens);
    set("chunking", chunking);
    if needs_cost || draw.chance(25) {
        let mut cost = Map::new();
        for (key, choices) in [
            ("c0", &[0.0, 500.0][..]),
            ("c1", &[1.0, 10.0, 0.5]),
            ("c2", &[0.0, 1.0, 0.001]),
            ("c3", &[0.0, 0.25, 2.0]),
            ("c4", &[0.0, 0.1]),
            ("c5", &[0.0, 7.0]),
        ] {
            if draw.chance(80) {
                cost.insert(key.to_owned(), json!(draw.of(choices)));
            }
        }
        set("cost", cost.into());
    }
    if draw.chance(15) {
        set("model", json!({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128}));
    }
    // Half of the fields may just as well be left at their defaults.
    config.retain(|key, _| {
        matches!(key.as_str(), "block_size" | "num_blocks" | "cost" | "chunking" | "role" | "admission") || draw.chance(85)
    });
    if !config.contains_key("max_batch_tokens") {
        config.insert("max_batch_tokens".to_owned(), json!(max_batch_tokens));
    }
    config
}

fn chunking(draw: &mut Draw, max_batch_tokens: u64) -> (Value, bool) {
    match draw.within(0, 9) {
        0..=3 => (json!({"kind": "tokens"}), false),
        4..=5 => (json!({"kind": "tokens", "max": draw.of(&[1, 3, 8, 16, 40])}), false),
        6..=8 => {
            let mut chunking = json!({"kind": "cost", "target_ns": draw.of(&[1, 40, 300, 700, 1500, 100_000])});
            for key in ["align", "min"] {
                if draw.chance(40) {
                    chunking[key] = json!(draw.of(&[1, 4, 8, 16, 64]).min(max_batch_tokens));
                }
            }
            (chunking, true)
        }
        _ => (json!({"kind": "adaptive"}), true),
    }
}

fn requests(draw: &mut Draw, config: &Map<String, Value>) -> Vec<Value> {
    let asynchronous = config.get("async_scheduling") == Some(&json!(true));
    // Beginnings that several requests share.
    let shared = [0, 1, 2].map(|seed| json!({"seed": seed, "len": draw.of(&[8, 16, 17, 31, 48])}));
    let (drafting, stopping, gating) = (draw.chance(50), draw.chance(60), draw.chance(40));
    let longest = draw.of(&[8, 20, 40, 60]);
    let count = draw.within(1, 12);
    (0..count)
        .map(|i| {
            let mut prompt: Vec<Value> = Vec::new();
            while prompt.len() < 2 && draw.chance(45) {
                prompt.push(draw.of(&shared));
            }
            if prompt.is_empty() || draw.chance(60) {
                prompt.push(json!({"seed": draw.within(3, 99), "len": draw.of(&[1, 2, 5, 7, 15, 16, 17, 30, 33, 60])}));
            }
            let max_tokens = draw.of(&[1, 2, 3, 5, 8, 13, 21, 40]).min(longest);
            let mut request = json!({"id": format!("R{i}"), "prompt": prompt, "max_tokens": max_tokens});
            if stopping && draw.chance(40) {
                let outputs = outputs(&request, max_tokens);
                request["stop_tokens"] = json!([draw.of(&outputs), 1]);
            }
            if !asynchronous && drafting && draw.chance(60) {
                request["drafts"] = json!(draw.within(1, 4));
                let n = draw.within(1, 4);
                request["draft_accept"] = (0..n).map(|_| draw.within(0, 4)).collect();
            }
            let mut maybe = |percent: u32, key: &str, value: Value| {
                if draw.chance(percent) {
                    request[key] = value;
                }
            };
            let (a, b) = (i * 7 % 5, i * 31 % 97);
            maybe(50, "priority", json!(i64::try_from(a).unwrap_or_default() - 2));
            maybe(45, "ttft_slo_ns", json!(b * 9_000));
            maybe(30, "tbt_slo_ns", json!(b * 5_000));
            maybe(25, "arrival_ns", json!(b * 1_000));
            maybe(40, "tenant", json!(if a < 2 { "s" } else { "t" }));
            maybe(30, "weight", json!([0.5, 1.0, 2.0, 3.75][usize::try_from(i % 4).unwrap_or_default()]));
            maybe(30, "cache_salt", json!(if a < 3 { "a" } else { "b" }));
            maybe(if gating { 40 } else { 0 }, "gated", json!(true));
            request
        })
        .collect()
}

/// One operation of the random part, as often as its weight says.
const OPERATIONS: &[(&str, u32)] = &[
    ("schedule", 40),
    ("complete", 30),
    ("submit", 14),
    ("abort", 4),
    ("ready", 5),
    ("transfer", 12),
    ("transfer_failed", 3),
    ("tick", 4),
    ("reset_prefix_cache", 2),
    ("fail", 2),
    ("drain", 2),
];

fn script(draw: &mut Draw, config: &Map<String, Value>, requests: &[Value]) -> Vec<Value> {
    let role = config["role"].as_str().unwrap_or_default();
    let (done, failed) = if role == "prefill" { ("kv_sent", "kv_send_failed") } else { ("kv_arrived", "kv_failed") };
    // Rare operations do not occur at all in most scenarios, and often in some.
    let weights: Vec<(&str, u32)> = OPERATIONS
        .iter()
        .filter(|(name, _)| role != "unified" || !name.starts_with("transfer"))
        .map(|&(name, weight)| match name {
            "schedule" | "submit" => (name, weight),
            "complete" | "transfer" => (name, weight * draw.of(&[1, 1, 1, 2]) / draw.of(&[1, 1, 1, 3])),
            _ => (name, weight * draw.of(&[0, 0, 1, 3])),
        })
        .collect();
    let total = weights.iter().map(|(_, weight)| weight).sum::<u32>();
    let ids: Vec<&str> = requests.iter().filter_map(|request| request["id"].as_str()).collect();
    let mut waiting = ids.iter();
    let (mut script, mut now) = (Vec::new(), 0);
    if draw.chance(30) {
        script.extend(waiting.by_ref().take(6).map(|id| json!({"op": "submit", "id": id})));
    }
    for _ in 0..draw.within(10, 120) {
        let mut at = draw.0.random_range(0..total);
        let drawn = weights.iter().find(|(_, weight)| at.checked_sub(*weight).map(|left| at = left).is_none());
        let id = draw.of(&ids);
        script.push(match drawn.map_or("schedule", |(name, _)| *name) {
            "submit" => match waiting.next() {
                Some(id) => json!({"op": "submit", "id": id}),
                None => json!({"op": "schedule"}),
            },
            "tick" => {
                now += draw.of(&[0, 1_000, 10_000, 200_000]);
                json!({"op": "tick", "now_ns": now})
            }
            "drain" => json!({"op": "drain", "max": draw.within(1, 8)}),
            "transfer" => json!({"op": done, "id": id}),
            "transfer_failed" => json!({"op": failed, "id": id}),
            name @ ("abort" | "ready") => json!({"op": name, "id": id}),
            name => json!({"op": name}),
        });
    }
    script.extend(waiting.map(|id| json!({"op": "submit", "id": id})));
    script.extend(ids.iter().map(|id| json!({"op": "ready", "id": id})));
    let rounds = if role == "unified" { 0 } else { ids.len() };
    for _ in 0..rounds {
        script.push(json!({"op": "drain"}));
        for id in &ids {
            script.push(json!({"op": if draw.chance(15) { failed } else { done }, "id": id}));
        }
    }
    script.push(json!({"op": "drain"}));
    script
}

/// A stream of seeds for a caller that wants many scenarios from one.
#[must_use]
pub fn seeds(seed: u64, count: usize) -> Vec<u64> {
    let mut draw = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| draw.next_u64()).collect()
}
