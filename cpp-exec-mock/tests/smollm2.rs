//! SmolLM2-135M over real stages: the tokens of one unchunked pass, whatever happens on the way.
//!
//! `bash scripts/make-smollm2.sh DIR`, then `CPP_SMOLLM2=DIR cargo test --release -p cpp-exec-mock --test smollm2 -- --ignored`.

#[path = "common/harness.rs"]
#[allow(dead_code, reason = "the tiny model's tests use all of it")]
mod harness;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{ChannelLink, Patience};
use cpp_sched::{Admission, Config, RequestId, TokenId};
use harness::{Case, Fault, Faults, Model, check, no_faults, run, start};

/// `<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n`
const QUESTION: [TokenId; 16] = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];
/// `The capital of France is Paris.<|im_end|>`
const ANSWER: [TokenId; 8] = [504, 3575, 282, 4649, 314, 7042, 30, 2];

fn model() -> Arc<Model> {
    let folder = std::env::var_os("CPP_SMOLLM2").expect("CPP_SMOLLM2 must be the folder that scripts/make-smollm2.sh has made");
    Model::open(&PathBuf::from(folder))
}

fn config(stages: u32) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 8;
    config.num_blocks = 64;
    config.max_batch_tokens = 12;
    config.prefix_caching = true;
    config
}

/// The question, and others that begin like it.
fn cases() -> Vec<Case> {
    let case = |prompt: Vec<TokenId>, outputs| Case { prompt, outputs, drafts: 0, sampling: Sampling::default(), abort_after: None };
    let longer = |repeat: usize| QUESTION[..11].repeat(repeat).into_iter().chain(QUESTION).collect::<Vec<_>>();
    vec![
        case(QUESTION.to_vec(), 8),
        Case { drafts: 3, ..case(longer(2), 16) },
        Case { sampling: Sampling { temperature: 0.8, top_k: 50, top_p: 0.9, seed: 3 }, ..case(longer(1), 10) },
        Case { abort_after: Some(3), ..case(longer(3), 12) },
        Case { drafts: 2, ..case(longer(1), 20) },
    ]
}

#[test]
#[ignore = "needs SmolLM2 in CPP_SMOLLM2; .ci/run does it"]
fn the_answer_is_paris_over_one_two_and_four_stages() {
    let (model, cases) = (model(), cases());
    assert_eq!(model.expected(&QUESTION, 8, Sampling::default()), ANSWER);
    for stages in [1, 2, 4] {
        for asynchronous in [false, true] {
            let mut config = config(stages);
            config.async_scheduling = asynchronous;
            let mut driver = start(&model, config, &no_faults(), ChannelLink, Patience::default());
            let outcome = run(&mut driver, &cases, true);
            check(&model, &cases, &outcome);
            assert_eq!(outcome.tokens[&RequestId(0)], ANSWER);
            let stats = driver.scheduler().stats();
            // Drafts need the token that they follow, so asynchronous scheduling carries none.
            assert!(stats.cache_hit_tokens > 0 && (asynchronous || stats.accepted_draft_tokens > 0), "{stats:?}");
        }
    }
}

#[test]
#[ignore = "needs SmolLM2 in CPP_SMOLLM2; .ci/run does it"]
fn preemptions_aborts_drafts_and_killed_stages_change_no_token() {
    let (model, cases) = (model(), cases());
    for stages in [1, 2, 4] {
        let last = stages as usize - 1;
        let faults: Faults = Arc::new(Mutex::new(vec![(last, 6, Fault::Panic), (0, 11, Fault::Error), (last / 2, 20, Fault::Panic)]));
        let mut config = config(stages);
        config.num_blocks = 15;
        config.admission = Admission::Lazy;
        let mut driver = start(&model, config, &faults, ChannelLink, Patience::default());
        let outcome = run(&mut driver, &cases, true);
        check(&model, &cases, &outcome);
        let stats = driver.scheduler().stats();
        assert!(stats.preemptions > 0 && stats.cache_hit_tokens > 0 && stats.accepted_draft_tokens > 0, "{stats:?}");
        assert_eq!((outcome.failures.len(), outcome.recovered), (3, 2), "{stages} stages: {:?}", outcome.failures);
    }
}
