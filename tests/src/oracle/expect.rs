//! What the scenario itself expects, beyond the general rules.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::Checker;
use super::entry::{Entry, EventEntry};

impl Checker {
    pub(super) fn expect(&mut self, expect: &BTreeMap<String, Value>) {
        let of = |value: &dyn Fn(&super::Track) -> Value| -> Value {
            self.tracks.iter().map(|track| (track.spec.id.clone(), value(track))).collect::<Map<_, _>>().into()
        };
        let gap = |track: &super::Track| track.samples_at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        let whole = json!({
            "batches": self.batches,
            "preemptions": self.tracks.iter().map(|track| track.preemptions).sum::<u64>(),
            "finished": of(&|track| json!(track.terminal)),
            "computed": of(&|track| json!(track.computed)),
            "preempted": of(&|track| json!(track.preemptions)),
            "gap": of(&|track| json!(gap(track))),
        });
        for (key, want) in expect {
            let plain = unbounded(key);
            if key == "started" {
                self.started(want);
            } else if let Some(got) = whole.get(plain) {
                self.compare("the run", key, got, want);
            } else if let Some(entry) = self.labels.get(key).cloned() {
                self.expect_line(key, &entry, want);
            } else {
                self.bad(format!("no line is labelled {key}"));
            }
        }
    }

    /// No one's first batch comes after the next one's.
    fn started(&mut self, want: &Value) {
        let ids = want.as_array().into_iter().flatten().filter_map(Value::as_str);
        let first: Vec<Option<u64>> = ids.map(|id| self.places.get(id).and_then(|&place| self.tracks[place].first_batch)).collect();
        if first.contains(&None) || !first.is_sorted() {
            self.bad(format!("the first batches of {want} are {first:?}"));
        }
    }

    fn expect_line(&mut self, label: &str, entry: &Entry, want: &Value) {
        let ids: Vec<&str> = entry.items.iter().map(|item| item.id.as_str()).collect();
        let (kv, tokens) = (entry.kv, entry.events.iter().filter(|event| event.kind == "token").count());
        let values = json!({
            "items": sorted(entry.items.iter().map(|item| json!([item.id, item.start, item.len])).collect()),
            "empty": entry.batch.is_none(),
            "preempted": sorted(entry.preempted.iter().map(|id| json!(id)).collect()),
            "victims": entry.preempted.len(),
            "result": entry.result,
            "events": sorted(entry.events.iter().filter(|event| event.kind != "token").map(short).collect()),
            "rows": entry.items.len(),
            "sum": entry.items.iter().map(|item| item.len).sum::<u64>(),
            "cost": entry.cost_ns,
            "tokens": tokens,
            "in_flight": entry.in_flight,
            "available": kv.free + kv.cached,
            "free": kv.free, "held": kv.held, "cached": kv.cached, "fenced": kv.fenced, "pinned": kv.pinned,
        });
        for (key, wanted) in want.as_object().into_iter().flatten() {
            let listed = || wanted.as_array().into_iter().flatten().filter_map(Value::as_str);
            match key.as_str() {
                "has" if listed().all(|id| ids.contains(&id)) => {}
                "has_not" if !listed().any(|id| ids.contains(&id)) => {}
                "has" | "has_not" => self.bad(format!("{label}: {key} {wanted}, but it holds {ids:?}")),
                _ => {
                    let wanted = wanted.as_array().map_or_else(|| wanted.clone(), |list| sorted(list.clone()));
                    match values.get(unbounded(key)) {
                        Some(got) => self.compare(label, key, got, &wanted),
                        None => self.bad(format!("{label}: unknown expectation {key}")),
                    }
                }
            }
        }
    }

    fn compare(&mut self, place: &str, key: &str, got: &Value, want: &Value) {
        if let Value::Object(wanted) = want {
            for (name, want) in wanted {
                self.compare(&format!("{place}, {name}"), key, got.get(name).unwrap_or(&Value::Null), want);
            }
            return;
        }
        let numbers = got.as_u64().zip(want.as_u64());
        let right = if key.ends_with("_at_most") {
            numbers.is_some_and(|(got, want)| got <= want)
        } else if key.ends_with("_at_least") {
            numbers.is_some_and(|(got, want)| got >= want)
        } else {
            got == want
        };
        if !right {
            self.bad(format!("{place}: {key} must be {want}, is {got}"));
        }
    }
}

/// The key without `_at_most` or `_at_least`.
fn unbounded(key: &str) -> &str {
    key.split_once("_at_").map_or(key, |(plain, _)| plain)
}

/// Lists of events, items and ids are compared without order.
fn sorted(mut list: Vec<Value>) -> Value {
    list.sort_by_key(Value::to_string);
    list.into()
}

fn short(event: &EventEntry) -> Value {
    let mut fields = vec![json!(event.kind), json!(event.id)];
    fields.extend(event.reason.as_ref().map(|reason| json!(reason)));
    fields.extend([event.start, event.end].into_iter().flatten().map(|position| json!(position)));
    fields.into()
}
