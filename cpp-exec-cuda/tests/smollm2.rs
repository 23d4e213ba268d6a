//! SmolLM2-135M over stages that are processes: the tokens of one unchunked pass, with prefix hits, preemptions, an abort, drafts, and workers that
//! are killed in between.
//!
//! `bash scripts/make-smollm2.sh DIR`, then `CPP_SMOLLM2=DIR cargo test --release -p cpp-exec-cuda --test smollm2 -- --ignored`.
#![cfg(unix)]

#[path = "../../cpp-exec-mock/tests/common/harness.rs"]
#[allow(dead_code, reason = "the tests over threads use all of it")]
mod harness;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::model::Split;
use cpp_exec_mock::runtime::process::{Launch, ProcessOptions, ProcessPatience, Processes, Secret};
use cpp_exec_mock::runtime::{Patience, Pipeline, RuntimeError};
use cpp_sched::driver::Driver;
use cpp_sched::{Admission, Config, RequestId, Scheduler, TokenId};
use harness::{Case, Model, check, run_with};

/// `<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n`
const QUESTION: [TokenId; 16] = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198];
/// `The capital of France is Paris.<|im_end|>`
const ANSWER: [TokenId; 8] = [504, 3575, 282, 4649, 314, 7042, 30, 2];

/// The question, and others that begin like it.
fn cases() -> Vec<Case> {
    let case = |prompt: Vec<TokenId>, outputs| Case { prompt, outputs, drafts: 0, sampling: Sampling::default(), abort_after: None };
    let longer = |repeat: usize| QUESTION[..11].repeat(repeat).into_iter().chain(QUESTION).collect::<Vec<_>>();
    vec![
        case(QUESTION.to_vec(), 8),
        Case { drafts: 3, ..case(longer(2), 12) },
        Case { sampling: Sampling { temperature: 0.8, top_k: 50, top_p: 0.9, seed: 3 }, ..case(longer(1), 10) },
        Case { abort_after: Some(3), ..case(longer(3), 12) },
    ]
}

#[test]
#[ignore = "needs SmolLM2 in CPP_SMOLLM2; .ci/run does it"]
fn processes_that_are_killed_change_no_token() {
    let folder =
        PathBuf::from(std::env::var_os("CPP_SMOLLM2").expect("CPP_SMOLLM2 must be the folder that scripts/make-smollm2.sh has made"));
    let (model, cases) = (Model::open(&folder), cases());
    for stages in [1usize, 2, 4] {
        let mut config = Config::default();
        config.stages = stages as u32;
        config.block_size = 8;
        config.num_blocks = 13;
        config.max_batch_tokens = 12;
        config.prefix_caching = true;
        config.admission = Admission::Lazy;
        let own = folder.clone();
        let launch: Launch = Box::new(move |_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_cpp-run"));
            command.args(["worker", "--device", "cpu", "--model"]).arg(&own);
            Some(command)
        });
        let options = ProcessOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            secret: Secret::random().expect("random numbers"),
            layers: Split::Even.layers(&model.config, stages).expect("layers for all"),
            max_numbers: 12 * model.config.hidden_size,
            model: model.weights.fingerprint(&model.config),
            patience: ProcessPatience::default(),
        };
        let processes = Processes::start(&config, options, launch, |_| {}).expect("all workers come");
        let mut driver = Driver::new(Scheduler::new(config).expect("valid"), Pipeline::new(&config, processes, Patience::default()));
        let mut kills = 0;
        let outcome = run_with(&mut driver, &cases, true, |driver, tokens| {
            if tokens > 6 * (kills + 1) && kills < 2 {
                let stage = kills % stages;
                let pid = driver.executor_mut().crew_mut().pids()[stage].expect("it has joined");
                assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("there is kill").success());
                kills += 1;
            }
        });
        check(&model, &cases, &outcome);
        assert_eq!(outcome.tokens[&RequestId(0)], ANSWER);
        let stats = driver.scheduler().stats();
        assert!(stats.preemptions > 0 && stats.cache_hit_tokens > 0 && stats.accepted_draft_tokens > 0, "{stats:?}");
        assert_eq!((kills, outcome.recovered), (2, 2), "{:?}", outcome.failures);
        assert!(outcome.failures.iter().all(|error| matches!(error, RuntimeError::Died { .. })), "{:?}", outcome.failures);
    }
}
