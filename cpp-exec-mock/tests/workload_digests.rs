//! Digests: two prompts share them exactly as far as their contents are equal.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use cpp_exec_mock::workload::{LoadOptions, Workload};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn load(name: &str, content: &str) -> Workload {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    Workload::load(&path, &LoadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

/// How many digests the prompts of two items have in common at the start; asserts that none is equal after the first difference.
fn common(workload: &Workload, a: usize, b: usize, block: u32) -> usize {
    let (a, b) = (workload.digests(a, block), workload.digests(b, block));
    let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let rest: HashSet<_> = a[common..].iter().collect();
    assert!(b[common..].iter().all(|digest| !rest.contains(digest)));
    common
}

#[test]
fn one_digest_for_each_whole_block() {
    let workload = load("whole.jsonl", "{\"arrival_s\":0,\"input_tokens\":100,\"output_tokens\":1,\"hash_ids\":[5],\"hash_block\":64}");
    for (block, count) in [(1, 100), (16, 6), (64, 1), (100, 1), (101, 0)] {
        let digests = workload.digests(0, block);
        assert_eq!(digests.len(), count, "{block}");
        assert_eq!(digests.iter().collect::<HashSet<_>>().len(), count);
    }
}

/// Random prompts of blocks with few different ids: what is shared by digests must be what a comparison of the ids says, for all pairs and several
/// sizes of KV blocks, smaller and larger than the blocks of the ids and not dividing them.
#[test]
fn digests_agree_with_a_comparison_of_contents() {
    const HASH_BLOCK: u32 = 12;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut below = |n: u64| rng.next_u64() % n;
    let mut text = String::new();
    let mut prompts = Vec::new();
    for _ in 0..60 {
        let ids: Vec<u64> = (0..below(8)).map(|_| below(2)).collect();
        // The last block may be cut short; or there are tokens beyond all ids.
        let input = (ids.len() as u64 * u64::from(HASH_BLOCK) + below(20)).saturating_sub(10).max(1) as u32;
        let ids = ids[..ids.len().min(input.div_ceil(HASH_BLOCK) as usize)].to_vec();
        text +=
            &format!("{{\"arrival_s\":0,\"input_tokens\":{input},\"output_tokens\":1,\"hash_ids\":{ids:?},\"hash_block\":{HASH_BLOCK}}}\n");
        prompts.push((ids, input));
    }
    let workload = load("random.jsonl", &text);
    for a in 0..prompts.len() {
        for b in 0..a {
            let equal_ids = prompts[a].0.iter().zip(&prompts[b].0).take_while(|(a, b)| a == b).count() as u32;
            let equal_tokens = (equal_ids * HASH_BLOCK).min(prompts[a].1).min(prompts[b].1);
            for block in [1, 4, 5, 12, 16, 24] {
                assert_eq!(common(&workload, a, b, block) as u32, equal_tokens / block, "{:?} {:?} {block}", prompts[a], prompts[b]);
            }
        }
    }
}

#[test]
fn turns_share_what_was_cached_and_no_more() {
    let workload = load(
        "turns.csv",
        "trace,agent,t_s,input_tokens,cached_tokens,output_tokens\n\
         s,0,0,1000,0,200\n\
         s,0,1,1300,1152,10\n\
         s,0,2,2000,1280,10\n\
         s,0,3,640,320,10\n",
    );
    // The second turn continues the first one's output: beyond its 1000 tokens nothing of the first prompt is shared, but the third turn,
    // which continues the second, has the same tokens there.
    assert_eq!(common(&workload, 0, 1, 16), 1000 / 16);
    assert_eq!(common(&workload, 1, 2, 16), 1280 / 16);
    assert_eq!(common(&workload, 0, 2, 16), 1000 / 16);
    assert_eq!(common(&workload, 2, 3, 64), 320 / 64);
    assert_eq!(common(&workload, 0, 3, 64), 320 / 64);
}

/// A cache without bound that holds every prompt so far: hit tokens over all input tokens.
#[test]
fn an_unbounded_cache_hits_what_the_trace_says() {
    let turns = [(1000, 0), (1500, 960), (2100, 1472), (2200, 2048), (900, 512)];
    let mut text = "trace,agent,t_s,input_tokens,cached_tokens,output_tokens\n".to_owned();
    for (index, (input, cached)) in turns.iter().enumerate() {
        text += &format!("s,0,{index},{input},{cached},5\n");
    }
    let workload = load("hits.csv", &text);
    let mut seen = HashMap::new();
    for (index, (_, cached)) in turns.iter().enumerate() {
        let digests = workload.digests(index, 16);
        let hits = digests.iter().take_while(|digest| seen.contains_key(*digest)).count();
        assert_eq!(hits, cached / 16);
        seen.extend(digests.into_iter().map(|digest| (digest, index)));
    }
}
