//! Makes a failing scenario small: drops operations, requests, options and tokens as long as it fails in the same way.

use serde_json::Value;

use crate::play::problems;

/// How a scenario fails, without the numbers and names that change while it shrinks; none: it does not.
#[must_use]
pub fn signature(scenario: &Value) -> Option<String> {
    let first = problems(&scenario.to_string()).into_iter().next()?;
    let words = first.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    Some(words.take(12).collect::<Vec<_>>().join(" "))
}

/// The smallest scenario found that fails with the same signature. Runs the scenario some hundred times.
#[must_use]
pub fn shrink(scenario: &Value) -> Value {
    let Some(wanted) = signature(scenario) else { return scenario.clone() };
    let fails = |candidate: &Value| signature(candidate).is_some_and(|found| found == wanted);
    let mut best = scenario.clone();
    loop {
        let before = best.to_string().len();
        drop_requests(&mut best, &fails);
        drop_steps(&mut best, &fails);
        drop_options(&mut best, &fails);
        lower_numbers(&mut best, &fails);
        if best.to_string().len() >= before {
            return best;
        }
    }
}

fn attempt(best: &mut Value, fails: &dyn Fn(&Value) -> bool, change: impl FnOnce(&mut Value)) -> bool {
    let mut candidate = best.clone();
    change(&mut candidate);
    let better = candidate != *best && fails(&candidate);
    if better {
        *best = candidate;
    }
    better
}

fn list<'a>(scenario: &'a mut Value, key: &str) -> &'a mut Vec<Value> {
    scenario[key].as_array_mut().expect("a generated scenario has this list")
}

fn drop_requests(best: &mut Value, fails: &dyn Fn(&Value) -> bool) {
    for i in (0..list(best, "requests").len()).rev() {
        attempt(best, fails, |scenario| {
            let gone = list(scenario, "requests").remove(i)["id"].clone();
            list(scenario, "script").retain(|step| step["id"] != gone);
        });
    }
}

/// Drops runs of operations, long ones first.
fn drop_steps(best: &mut Value, fails: &dyn Fn(&Value) -> bool) {
    let mut run = list(best, "script").len() / 2;
    while run > 0 {
        let mut at = 0;
        while at < list(best, "script").len() {
            let dropped = attempt(best, fails, |scenario| {
                let script = list(scenario, "script");
                script.drain(at..(at + run).min(script.len()));
            });
            at += if dropped { 0 } else { run };
        }
        run /= 2;
    }
}

fn drop_options(best: &mut Value, fails: &dyn Fn(&Value) -> bool) {
    let keys = |object: &Value| object.as_object().map(|map| map.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let remove = |object: &mut Value, key: &str| object.as_object_mut().map(|map| map.remove(key));
    for key in keys(&best["config"]) {
        attempt(best, fails, |scenario| {
            remove(&mut scenario["config"], &key);
        });
        for inner in keys(&best["config"][&key]) {
            attempt(best, fails, |scenario| {
                remove(&mut scenario["config"][&key], &inner);
            });
        }
    }
    for i in 0..list(best, "requests").len() {
        for key in keys(&best["requests"][i]) {
            attempt(best, fails, |scenario| {
                remove(&mut scenario["requests"][i], &key);
            });
        }
        for segment in (0..best["requests"][i]["prompt"].as_array().map_or(0, Vec::len)).rev() {
            attempt(best, fails, |scenario| {
                scenario["requests"][i]["prompt"].as_array_mut().map(|prompt| prompt.remove(segment));
            });
        }
    }
}

fn lower_numbers(best: &mut Value, fails: &dyn Fn(&Value) -> bool) {
    for key in ["num_blocks", "max_batch_tokens", "stages", "max_in_flight", "max_batch_requests", "max_requests", "block_size"] {
        lower(best, fails, &|scenario| scenario["config"].get_mut(key));
    }
    for i in 0..list(best, "requests").len() {
        lower(best, fails, &|scenario| scenario["requests"][i].get_mut("max_tokens"));
        lower(best, fails, &|scenario| scenario["requests"][i].get_mut("drafts"));
        for segment in 0..best["requests"][i]["prompt"].as_array().map_or(0, Vec::len) {
            lower(best, fails, &|scenario| scenario["requests"][i]["prompt"][segment].get_mut("len"));
        }
    }
}

/// Halves one number, then takes off one, as often as that works.
fn lower(best: &mut Value, fails: &dyn Fn(&Value) -> bool, place: &dyn Fn(&mut Value) -> Option<&mut Value>) {
    for smaller in [|n: u64| n / 2, |n: u64| n - 1] {
        while let Some(n) = place(best).and_then(|value| value.as_u64()).filter(|&n| n > 1) {
            let done = attempt(best, fails, |scenario| {
                if let Some(value) = place(scenario) {
                    *value = smaller(n).into();
                }
            });
            if !done {
                break;
            }
        }
    }
}

/// The scenario as the files of the suite are laid out: one request and one operation a line.
#[must_use]
pub fn pretty(scenario: &Value) -> String {
    let lines = |key: &str| {
        let list = scenario[key].as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|value| format!("  {value}")).collect::<Vec<_>>().join(",\n")
    };
    format!(
        "{{\n \"name\": {},\n \"about\": {},\n \"config\": {},\n \"requests\": [\n{}\n ],\n \"script\": [\n{}\n ]\n}}\n",
        scenario["name"],
        scenario["about"],
        scenario["config"],
        lines("requests"),
        lines("script")
    )
}
