//! Tests of the strict parser and of the stand-in model.

use cpp_sched::{Attos, BatchId, BlockId, Chunking};

use super::model::{Item, MAX_SLOTS, Model, ModelError};
use super::scenario::{Op, Scenario};

/// A scenario that uses every key.
const FULL: &str = r#"{
 "name": "full", "about": "every key",
 "config": {"block_size": 8, "num_blocks": 64, "max_batch_tokens": 128, "max_batch_requests": 4, "max_requests": 9, "max_model_len": 100,
  "stages": 3, "max_in_flight": 5, "pipelining": "request", "policy": "lars", "admission": "no_evict", "prefix_caching": true,
  "async_scheduling": false, "chunking": {"kind": "cost", "target_ns": 9223372036854775807, "align": 4, "min": 2}, "chunks_per_batch": 2,
  "cost": {"c0": 1e12, "c1": 0.000000001, "c2": 2.5, "c3": 0, "c4": 0.1, "c5": 7},
  "model": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 128},
  "balance": "cost", "role": "decode", "preempted_output": "drop"},
 "requests": [
  {"id": "A", "prompt": [{"seed": 0, "len": 3}, {"seed": 4294967295, "len": 2}], "max_tokens": 5, "priority": -3, "arrival_ns": 0,
   "ttft_slo_ns": 9223372036854775807, "tbt_slo_ns": 1, "tenant": "t", "weight": 0.5, "stop_tokens": [0, 7], "cache_salt": "s",
   "gated": true, "drafts": 2, "draft_accept": [0, 2]},
  {"id": "B", "prompt": [{"seed": 1, "len": 4294967295}, {"seed": 1, "len": 4294967295}], "max_tokens": 4294967295}],
 "script": [{"op": "submit", "id": "A", "as": "x"}, {"op": "schedule"}, {"op": "complete"}, {"op": "fail"}, {"op": "abort", "id": "B"},
  {"op": "ready", "id": "A"}, {"op": "kv_sent", "id": "A"}, {"op": "kv_send_failed", "id": "A"}, {"op": "kv_arrived", "id": "A"},
  {"op": "kv_failed", "id": "A"}, {"op": "tick", "now_ns": 0}, {"op": "reset_prefix_cache"}, {"op": "drain", "max": 3}, {"op": "drain"}],
 "expect": {"whatever": 0}
}"#;

#[test]
fn every_key_is_read() {
    let scenario = Scenario::parse(FULL).unwrap();
    let config = &scenario.config;
    assert_eq!((config.block_size, config.max_model_len, config.max_in_flight), (8, Some(100), Some(5)));
    assert_eq!(config.chunking, Chunking::Cost { target_ns: i64::MAX as u64, align: 4, min: 2 });
    let cost = config.cost.unwrap();
    assert_eq!((cost.c0, cost.c1, cost.c4), (Attos::from_ns(1_000_000_000_000), Attos(1), Attos(100_000_000)));
    let [a, b] = &scenario.requests[..] else { panic!("two requests") };
    assert_eq!((a.priority, a.weight_millionths, a.drafts, a.draft_accept.clone()), (-3, 500_000, 2, vec![0, 2]));
    assert_eq!(b.prompt.len(), 2 * u64::from(u32::MAX));
    assert_eq!((b.weight_millionths, b.draft_accept.clone()), (1_000_000, vec![0]));
    assert_eq!(scenario.script[0].label.as_deref(), Some("x"));
    assert_eq!(scenario.script[10].op, Op::Tick { now_ns: 0 });
    assert_eq!(scenario.script[12].op, Op::Drain { max: 3 });
    assert_eq!(scenario.script[13].op, Op::Drain { max: 10_000 });
}

#[test]
fn prompt_tokens_follow_the_formula() {
    let scenario = Scenario::parse(FULL).unwrap();
    let expected = |seed: u64, i: u64| u32::try_from(5 + (seed * 1_000_003 + i * 7919) % 31991).unwrap();
    let prompt = &scenario.requests[0].prompt;
    let tokens: Vec<u32> = prompt.tokens().collect();
    assert_eq!(tokens, [(0, 0), (0, 1), (0, 2), (4_294_967_295, 0), (4_294_967_295, 1)].map(|(seed, i)| expected(seed, i)));
    assert_eq!(tokens, (0..5).map(|i| prompt.token(i)).collect::<Vec<_>>());
}

#[test]
fn without_a_script_all_are_submitted_and_drained() {
    let text = r#"{"requests": [{"id": "A", "prompt": [{"seed": 1, "len": 2}], "max_tokens": 1}]}"#;
    let ops: Vec<Op> = Scenario::parse(text).unwrap().script.into_iter().map(|step| step.op).collect();
    assert_eq!(ops, [Op::Submit(0), Op::Drain { max: 10_000 }]);
}

/// Each line: what is replaced in the full scenario, by what, and the key that the error must name.
const BAD: &[(&str, &str, &str)] = &[
    (r#""name": "full""#, r#""name": 1"#, "name"),
    (r#""name": "full""#, r#""nam": "full""#, "nam"),
    (r#""config": {"#, r#""config": {"block_sizes": 1, "#, "config.block_sizes"),
    (r#""block_size": 8"#, r#""block_size": 0"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": 8.0"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": -8"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": "8""#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": null"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": true"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": 4294967296"#, "config.block_size"),
    (r#""block_size": 8"#, r#""block_size": 99999999999999999999999999"#, "config.block_size"),
    (r#""num_blocks": 64"#, r#""num_blocks": 4294967295"#, "config.num_blocks"),
    (r#""max_batch_requests": 4"#, r#""max_batch_requests": []"#, "config.max_batch_requests"),
    (r#""max_model_len": 100"#, r#""max_model_len": 0"#, "config.max_model_len"),
    (r#""max_in_flight": 5"#, r#""max_in_flight": 0"#, "config.max_in_flight"),
    (r#""pipelining": "request""#, r#""pipelining": "chunks""#, "config.pipelining"),
    (r#""policy": "lars""#, r#""policy": 3"#, "config.policy"),
    (r#""admission": "no_evict""#, r#""admission": "Lazy""#, "config.admission"),
    (r#""prefix_caching": true"#, r#""prefix_caching": 1"#, "config.prefix_caching"),
    (r#""async_scheduling": false"#, r#""async_scheduling": true"#, "requests[0].drafts"),
    (r#""kind": "cost","#, r#""kind": "costs","#, "config.chunking.kind"),
    (r#""kind": "cost","#, "", "config.chunking.kind"),
    (r#""kind": "cost","#, r#""kind": "cost", "max": 3,"#, "config.chunking.max"),
    (r#""kind": "cost","#, r#""kind": "tokens","#, "config.chunking.align"),
    (r#""kind": "cost","#, r#""kind": "adaptive","#, "config.chunking.align"),
    (r#""target_ns": 9223372036854775807,"#, "", "config.chunking.target_ns"),
    (r#""target_ns": 9223372036854775807"#, r#""target_ns": 0"#, "config.chunking.target_ns"),
    (r#""target_ns": 9223372036854775807"#, r#""target_ns": 9223372036854775808"#, "config.chunking.target_ns"),
    (r#""align": 4"#, r#""align": 129"#, "config.chunking.align"),
    (r#""min": 2"#, r#""min": 129"#, "config.chunking.min"),
    (r#""cost": {"c0""#, r#""cost": {"c6": 1, "c0""#, "config.cost.c6"),
    (r#""c0": 1e12"#, r#""c0": 1.0001e12"#, "config.cost.c0"),
    (r#""c5": 7"#, r#""c5": -7"#, "config.cost.c5"),
    (r#""c5": 7"#, r#""c5": "7""#, "config.cost.c5"),
    (r#""c5": 7"#, r#""c5": 1e999999999999"#, "config.cost.c5"),
    (r#""layers": 2, "#, "", "config.model.layers"),
    (r#""layers": 2, "#, r#""layers": 2, "experts": 8, "#, "config.model.experts"),
    (r#""balance": "cost""#, r#""balance": "even""#, "config.balance"),
    (r#""role": "decode""#, r#""role": "both""#, "config.role"),
    (r#""id": "A", "prompt""#, r#""prompt""#, "requests[0].id"),
    (r#""id": "B", "prompt""#, r#""id": "A", "prompt""#, "requests[1].id"),
    (r#""id": "B", "prompt""#, r#""id": 7, "prompt""#, "requests[1].id"),
    (r#"{"seed": 0, "len": 3}"#, r#"{"seed": 0, "len": 0}"#, "requests[0].prompt[0].len"),
    (r#"{"seed": 0, "len": 3}"#, r#"{"len": 3}"#, "requests[0].prompt[0].seed"),
    (r#"{"seed": 0, "len": 3}"#, r#"{"seed": 4294967296, "len": 3}"#, "requests[0].prompt[0].seed"),
    (r#"{"seed": 0, "len": 3}"#, r#"{"seed": 0, "len": 3, "salt": 1}"#, "requests[0].prompt[0].salt"),
    (r#"{"seed": 0, "len": 3}"#, "3", "requests[0].prompt[0]"),
    (r#""max_tokens": 5, "#, "", "requests[0].max_tokens"),
    (r#""max_tokens": 5"#, r#""max_tokens": 0"#, "requests[0].max_tokens"),
    (r#""priority": -3"#, r#""priority": 0.5"#, "requests[0].priority"),
    (r#""priority": -3"#, r#""priority": 4294967296"#, "requests[0].priority"),
    (r#""arrival_ns": 0"#, r#""arrival_ns": -1"#, "requests[0].arrival_ns"),
    (r#""arrival_ns": 0"#, r#""arrival_ns": 9223372036854775808"#, "requests[0].arrival_ns"),
    (r#""tenant": "t""#, r#""tenant": 1"#, "requests[0].tenant"),
    (r#""weight": 0.5"#, r#""weight": 0"#, "requests[0].weight"),
    (r#""weight": 0.5"#, r#""weight": 0.0e5"#, "requests[0].weight"),
    (r#""weight": 0.5"#, r#""weight": -1"#, "requests[0].weight"),
    (r#""weight": 0.5"#, r#""weight": "1""#, "requests[0].weight"),
    (r#""stop_tokens": [0, 7]"#, r#""stop_tokens": [0, -7]"#, "requests[0].stop_tokens[1]"),
    (r#""stop_tokens": [0, 7]"#, r#""stop_tokens": 7"#, "requests[0].stop_tokens"),
    (r#""cache_salt": "s""#, r#""cache_salt": null"#, "requests[0].cache_salt"),
    (r#""gated": true"#, r#""gated": "yes""#, "requests[0].gated"),
    (r#""drafts": 2"#, r#""drafts": -2"#, "requests[0].drafts"),
    (r#""draft_accept": [0, 2]"#, r#""draft_accept": []"#, "requests[0].draft_accept"),
    (r#""draft_accept": [0, 2]"#, r#""draft_accept": [0, 2.5]"#, "requests[0].draft_accept[1]"),
    (r#""gated": true"#, r#""gate": true"#, "requests[0].gate"),
    (r#"{"op": "schedule"}"#, r#"{"op": "shedule"}"#, "script[1].op"),
    (r#"{"op": "schedule"}"#, "{}", "script[1].op"),
    (r#"{"op": "schedule"}"#, r#"{"op": "schedule", "id": "A"}"#, "script[1].id"),
    (r#"{"op": "schedule"}"#, r#"{"op": "schedule", "as": 3}"#, "script[1].as"),
    (r#"{"op": "abort", "id": "B"}"#, r#"{"op": "abort", "id": "C"}"#, "script[4].id"),
    (r#"{"op": "abort", "id": "B"}"#, r#"{"op": "abort"}"#, "script[4].id"),
    (r#"{"op": "abort", "id": "B"}"#, r#"{"op": "abort", "id": "B", "max": 1}"#, "script[4].max"),
    (r#""now_ns": 0"#, r#""now_ns": -1"#, "script[10].now_ns"),
    (r#", "now_ns": 0"#, "", "script[10].now_ns"),
    (r#"{"op": "drain", "max": 3}"#, r#"{"op": "drain", "max": 0}"#, "script[12].max"),
    (r#"{"op": "fail"}"#, r#""fail""#, "script[3]"),
];

#[test]
fn bad_scenarios_name_the_key() {
    for &(old, new, key) in BAD {
        assert_eq!(FULL.matches(old).count(), 1, "{old}");
        let error = Scenario::parse(&FULL.replace(old, new)).expect_err(new);
        assert_eq!(error.key, key, "{old} -> {new}: {error}");
        assert!(!error.problem.is_empty());
    }
    for (text, key) in [
        (r#"{"config": {}}"#, "requests"),
        (r#"{"requests": {}}"#, "requests"),
        (r#"{"requests": [], "script": {}}"#, "script"),
        (r#"{"requests": [], "config": []}"#, "config"),
        (r#"{"requests": [], "config": {"chunking": "cost"}}"#, "config.chunking"),
        (r#"{"requests": [], "config": {"chunking": {"kind": "adaptive"}}}"#, "config.cost"),
        (r#"{"requests": [], "config": {"role": "prefill", "admission": "lazy"}}"#, "config.admission"),
        (r#"{"requests": [{"id": "A", "prompt": [], "max_tokens": 1}]}"#, "requests[0].prompt"),
        ("[]", ""),
        ("", ""),
        ("{", ""),
        (r#"{"requests": []} {}"#, ""),
        (r#"{"requests": [], "config": {"stages": 1, "stages": 2}}"#, ""),
    ] {
        assert_eq!(Scenario::parse(text).expect_err(text).key, key, "{text}");
    }
}

#[test]
fn a_message_is_one_line_whatever_the_file_holds() {
    let error = Scenario::parse("{\"requests\": [], \"a\\nb\": 1}").unwrap_err();
    assert_eq!(error.to_string().lines().count(), 1);
    assert!(error.to_string().contains("a\\nb"), "{error}");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(Scenario::parse(&deep).unwrap_err().to_string().lines().count(), 1);
}

#[test]
fn damaged_text_never_panics() {
    let mut refused = 0;
    for at in (0..FULL.len()).filter(|&at| FULL.is_char_boundary(at)) {
        for damage in ["", "}", "\"", "9", "-", "null", "\u{0}"] {
            let text = format!("{}{damage}{}", &FULL[..at], &FULL[(at + 1).min(FULL.len())..]);
            refused += u32::from(Scenario::parse(&text).is_err());
        }
        refused += u32::from(Scenario::parse(&FULL[..at]).is_err());
    }
    assert!(refused as usize > FULL.len());
}

#[test]
fn weights_are_above_zero_at_any_exponent() {
    for (weight, millionths) in [("1", 1_000_000), ("2.5", 2_500_000), ("1e-9", 1), ("1e-99999999999", 1), ("1e99", u64::MAX)] {
        let text = FULL.replace(r#""weight": 0.5"#, &format!(r#""weight": {weight}"#));
        assert_eq!(Scenario::parse(&text).unwrap().requests[0].weight_millionths, millionths, "{weight}");
    }
}

fn prompt_item(len: u32, table: &[u32]) -> Item {
    let table = table.iter().copied().map(BlockId).collect();
    Item { request: 0, start: 0, len, drafts: 0, right_drafts: 0, samples: true, table, tokens: Vec::new() }
}

fn one_request() -> Scenario {
    let text = r#"{"requests": [{"id": "A", "prompt": [{"seed": 65, "len": 19}], "max_tokens": 9, "drafts": 2}]}"#;
    Scenario::parse(text).unwrap()
}

/// Decodes of one token each after a prompt of 19, all through one table.
fn plain_outputs(n: u32) -> Vec<u32> {
    let scenario = one_request();
    let mut model = Model::new(&scenario.requests, 8);
    let mut outputs = Vec::new();
    for step in 0..n {
        let item = prompt_item(19, &[9, 4, 7, 1, 0]);
        let item = if step == 0 { item } else { Item { start: 18 + step, len: 1, ..item } };
        model.schedule(BatchId(step.into()), vec![item]).unwrap();
        outputs.extend(model.complete().unwrap().unwrap().1.remove(0).tokens);
    }
    outputs
}

#[test]
fn outputs_are_the_published_ones() {
    // Scenario 003 stops at its seventh output, 19125.
    assert_eq!(plain_outputs(7)[6], 19125);
}

#[test]
fn drafts_are_accepted_up_to_the_first_wrong_one() {
    let plain = plain_outputs(4);
    let scenario = one_request();
    for right_drafts in 0..=3u32 {
        let mut model = Model::new(&scenario.requests, 8);
        model.schedule(BatchId(0), vec![prompt_item(19, &[2, 3, 5])]).unwrap();
        model.complete().unwrap();
        let item = Item { start: 19, len: 3, drafts: 2, right_drafts, ..prompt_item(19, &[2, 3, 5]) };
        model.schedule(BatchId(1), vec![item]).unwrap();
        let tokens = model.complete().unwrap().unwrap().1.remove(0).tokens;
        assert_eq!(tokens, plain[1..=1 + right_drafts.min(2) as usize], "{right_drafts} right");
    }
}

#[test]
fn a_block_reused_under_its_fence_changes_tokens_of_both() {
    let text = r#"{"requests": [{"id": "A", "prompt": [{"seed": 1, "len": 8}], "max_tokens": 1},
                                {"id": "B", "prompt": [{"seed": 2, "len": 8}], "max_tokens": 1}]}"#;
    let scenario = Scenario::parse(text).unwrap();
    let sampled = |tables: [u32; 2]| {
        let mut model = Model::new(&scenario.requests, 8);
        for (request, block) in tables.into_iter().enumerate() {
            model.schedule(BatchId(request as u64), vec![Item { request, ..prompt_item(8, &[block]) }]).unwrap();
        }
        [(); 2].map(|()| model.complete().unwrap().unwrap().1.remove(0).tokens[0])
    };
    let (apart, shared) = (sampled([0, 1]), sampled([3, 3]));
    assert_ne!(apart[0], shared[0]);
    assert_ne!(apart[1], shared[1]);
}

#[test]
fn a_lost_batch_leaves_rubbish_and_a_transfer_the_right_tokens() {
    let plain = plain_outputs(1)[0];
    let scenario = one_request();
    let mut model = Model::new(&scenario.requests, 8);
    let last = Item { start: 18, len: 1, ..prompt_item(19, &[2, 3, 5]) };
    let sample = |model: &mut Model<'_>| {
        model.schedule(BatchId(1), vec![last.clone()]).unwrap();
        model.complete().unwrap().unwrap().1.remove(0).tokens[0]
    };
    model.transfer(0, 0, 19, last.table.clone(), true).unwrap();
    assert_eq!(sample(&mut model), plain);
    let too_short = Err(ModelError::Table { request: 0, position: 8 });
    assert_eq!(model.schedule(BatchId(0), vec![prompt_item(19, &[2])]), too_short);
    model.fail().unwrap();
    model.schedule(BatchId(0), vec![Item { start: 0, len: 18, ..last.clone() }]).unwrap();
    model.fail().unwrap();
    assert_ne!(sample(&mut model), plain);
    model.transfer(0, 0, 19, last.table.clone(), false).unwrap();
    assert_ne!(sample(&mut model), plain);
}

#[test]
fn memory_is_bounded() {
    let scenario = Scenario::parse(FULL).unwrap();
    let mut model = Model::new(&scenario.requests, u32::MAX);
    let item = Item { request: 1, ..prompt_item(u32::MAX, &[0]) };
    let distant = Item { start: u32::try_from(MAX_SLOTS).unwrap() + 7, len: 1, ..item };
    assert_eq!(model.schedule(BatchId(0), vec![distant]), Err(ModelError::Memory));
}
