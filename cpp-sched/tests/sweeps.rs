//! The short ways of the step that happens most decide what the long ways do: a scheduler whose decodes go into and out of batches in sweeps, and which
//! does not look for prompt work that cannot be there, beside one that may do none of this. Options that change nothing else keep it from it: a limit on
//! adapters that is never met, and a stop token that never comes.

mod inputs;

use cpp_sched::journal::{Answer, Input};
use cpp_sched::{Chunking, Config, KvGroups, PolicyKind, Request, RequestId, Scheduler, TokenId};
use inputs::Inputs;

/// No result has it.
const NEVER: TokenId = TokenId::MAX;

fn runs(default: u64) -> u64 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse::<u64>().ok()).map_or(default, |cases| default * cases / 256)
}

/// A configuration under which decodes can be plain, mostly.
fn plain(mut config: Config, seed: u64) -> Config {
    (config.cost, config.model, config.draft_slots, config.lookahead_tokens) = (None, None, 0, 0);
    (config.relegation, config.feasibility_guard, config.max_adapters_per_batch) = (false, false, None);
    config.latency.reject_above_millionths = None;
    if matches!(config.chunking, Chunking::Cost { .. } | Chunking::Adaptive) {
        config.chunking = Chunking::Tokens { max: None };
    }
    if config.policy == PolicyKind::Fair {
        config.policy = PolicyKind::Fcfs;
    }
    if seed % 8 != 0 {
        config.kv_groups = KvGroups::default();
    }
    config
}

/// The same, but that nothing is plain.
fn long_way(mut config: Config) -> Config {
    config.max_adapters_per_batch = Some(u32::MAX);
    config
}

/// The input for the one that takes short ways, and for the one that must not.
fn both(input: Input, plain: bool) -> (Input, Input) {
    let requests = |request: &Request| {
        let mut short = request.clone();
        if plain {
            (short.stop_tokens, short.tbt_slo_ns) = (Vec::new(), None);
        }
        let mut long = short.clone();
        long.stop_tokens.push(NEVER);
        (Box::new(short), Box::new(long))
    };
    match &input {
        Input::Submit(request) => {
            let (short, long) = requests(request);
            (Input::Submit(short), Input::Submit(long))
        }
        Input::Fork { parent, child } => {
            let (mut short, parent) = (child.clone(), *parent);
            if plain {
                short.stop_tokens.clear();
            }
            let mut long = short.clone();
            long.stop_tokens.push(NEVER);
            (Input::Fork { parent, child: short }, Input::Fork { parent, child: long })
        }
        Input::Reconfigure(config) => (Input::Reconfigure(config.clone()), Input::Reconfigure(Box::new(long_way(**config)))),
        _ => (input.clone(), input),
    }
}

/// All that a caller sees of an answer.
fn told(answer: &Answer<'_>) -> String {
    let Answer::Batch(batch) = answer else { return format!("{answer:?}") };
    let tables: Vec<_> = batch.rows().iter().map(|row| batch.blocks(row)).collect();
    format!("{:?} {:?} {tables:?}", batch.id(), batch.batch())
}

fn seen(scheduler: &mut Scheduler) -> String {
    let events: Vec<_> = scheduler.events().collect();
    let kv_events: Vec<_> = scheduler.kv_events().collect();
    let why: Vec<_> = (0..10).map(|id| scheduler.why(RequestId(id))).collect();
    format!("{events:?} {kv_events:?} {why:?} {:?} {:?}", scheduler.kv_usage(), scheduler.stats())
}

#[test]
fn short_ways_decide_as_the_long_ones() {
    let mut batches = 0;
    let first = std::env::var("SWEEPS_FROM").ok().and_then(|from| from.parse().ok()).unwrap_or(9_000_000);
    for seed in first..first + runs(600) {
        let mut inputs = Inputs::new(seed);
        let drawn = *inputs.scheduler().config();
        let config = plain(drawn, seed);
        let (Ok(mut short), Ok(mut long)) = (Scheduler::new(config), Scheduler::new(long_way(config))) else {
            panic!("{config:?} is refused");
        };
        for step in 0..300 {
            let (one, other) = both(inputs.next(&short), seed % 4 != 0);
            let (one, other) = (told(&one.apply(&mut short)), told(&other.apply(&mut long)));
            assert_eq!(one, other, "seed {seed}, input {step}: {config:?}");
            batches += u64::from(one.starts_with("BatchId"));
            assert_eq!(seen(&mut short), seen(&mut long), "seed {seed}, after input {step}: {config:?}");
            short.check_invariants().unwrap();
        }
    }
    assert!(batches > 20 * runs(600), "{batches} batches");
}
