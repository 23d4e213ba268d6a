//! Real traces through the simulator. Their folder comes from `CPP_TRACES`; without it there is nothing to read and the test says so.
//!
//! Sources: Azure LLM inference dataset 2023 (Splitwise, ISCA'24), Mooncake FAST'25 conversation trace, WEKA's kv-cache-tester sessions.

mod common;

use std::path::PathBuf;

use common::balances;
use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::{Machine, Mode, Outcome, Slo, simulate};
use cpp_exec_mock::workload::{LoadOptions, Workload};

fn run(workload: &Workload, mode: Mode) -> Outcome {
    let profile = Profile::find("llama-70b-h100-tp8").unwrap();
    let mut config = profile.config(4).unwrap();
    config.max_batch_tokens = 2048;
    mode.apply(&mut config);
    simulate(workload, &Machine::new(&profile, 4).unwrap(), config, Slo::default(), &mut |_| {}).unwrap()
}

#[test]
fn chunk_level_pipelining_serves_long_prompts_of_real_traces_sooner() {
    let Some(folder) = std::env::var_os("CPP_TRACES").map(PathBuf::from) else {
        eprintln!("CPP_TRACES is not set: no real traces to run");
        return;
    };
    for (file, limit) in [
        ("azure2023_conv.csv", 3000),
        ("azure2023_code.csv", 3000),
        ("mooncake_conversation_trace.jsonl.gz", 1500),
        ("weka_agentic_requests.csv.gz", 300),
    ] {
        let path = folder.join(file);
        if !path.exists() {
            eprintln!("{} is not there", path.display());
            continue;
        }
        for scale in ["1", "0.5"] {
            let options = LoadOptions { limit: Some(limit), time_scale: scale.parse().unwrap(), ..LoadOptions::default() };
            let workload = Workload::load(&path, &options).unwrap();
            let [request, chunk] = [Mode::Request, Mode::Chunk].map(|mode| run(&workload, mode));
            for outcome in [&request, &chunk] {
                assert_eq!(outcome.requests.finished, limit as u64, "{file} x{scale}");
                assert!(balances(outcome), "{file} x{scale}: {:?}", outcome.tokens);
            }
            assert_eq!(run(&workload, Mode::Chunk).decision_digest, chunk.decision_digest, "{file} x{scale}");
            let (long, all) = ((request.ttft_long, chunk.ttft_long), (request.ttft, chunk.ttft));
            assert!(long.1.mean < long.0.mean && long.1.p99 < long.0.p99, "{file} x{scale}: {long:?}");
            assert!(all.1.mean.unwrap() <= 1.02 * all.0.mean.unwrap(), "{file} x{scale}: {all:?}");
        }
    }
}
