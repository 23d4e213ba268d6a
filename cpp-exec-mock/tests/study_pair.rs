//! A prompt of 600,000 tokens is under way when one of 101 tokens arrives: whoever looks at lengths or shares serves the short one next, and the long
//! one hardly notices.

use cpp_exec_mock::profile::Profile;
use cpp_exec_mock::sim::Machine;
use cpp_exec_mock::study::{Fate, Job, play};
use cpp_sched::{Balance, Chunking, Config, PolicyKind, Request, RequestId, Scheduler};

const LONG: u32 = 600_000;
const SHORT: u32 = 101;

fn config(policy: PolicyKind, sharing: bool) -> (Machine, Config) {
    let profile = Profile::find("llama-70b-h100-tp8").unwrap();
    let mut config = profile.config(4).unwrap();
    config.chunking = Chunking::Adaptive;
    config.balance = Balance::Cost;
    config.policy = policy;
    config.latency.space_sharing = sharing;
    (Machine::new(&profile, 4).unwrap(), config)
}

fn job(input_tokens: u32, arrival_ns: u64, tenant: u64, config: Config) -> Job {
    let idle = Scheduler::new(config).unwrap();
    let own_ns = idle.estimate(&Request::with_lengths(RequestId(0), input_tokens, Vec::new(), 8)).unwrap().ttft_ns;
    Job {
        arrival_ns,
        class: 0,
        phase: 0,
        input_tokens,
        output_tokens: 8,
        tenant: Some(tenant),
        own_ns,
        work_ns: own_ns,
        ttft_slo_ns: Some(3 * own_ns),
        tpot_slo_ns: None,
    }
}

fn ttft(job: &Job, fate: &Fate) -> u64 {
    fate.first_token_ns.unwrap() - job.arrival_ns
}

#[test]
fn a_short_prompt_is_next_and_the_long_one_hardly_notices() {
    for policy in [PolicyKind::Srpf, PolicyKind::Lars, PolicyKind::Hybrid, PolicyKind::Fair] {
        for sharing in [false, true] {
            let (machine, config) = config(policy, sharing);
            let long = job(LONG, 0, 1, config);
            let alone = ttft(&long, &play(&[long], &machine, config).unwrap()[0]);
            for part in [1, 3, 7] {
                let jobs = [long, job(SHORT, alone / 8 * part, 2, config)];
                let fates = play(&jobs, &machine, config).unwrap();
                let steps = fates[1].first_batch.unwrap();
                let delay = ttft(&jobs[0], &fates[0]) as f64 / alone as f64 - 1.0;
                println!(
                    "{policy:?}, sharing {sharing}, at {part}/8: in the batch after {steps} others, long one later by {:.2} %",
                    delay * 100.0
                );
                assert!(steps < 2, "{policy:?}, sharing {sharing}: {steps} batches passed the short prompt");
                assert!(delay <= 0.01, "{policy:?}, sharing {sharing}: the long one is later by {:.2} %", delay * 100.0);
            }
        }
    }
}
