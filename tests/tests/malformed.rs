//! Everything that reads bytes, on damaged forms of good inputs: small changes get further than noise. The fuzz targets go on from here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cpp_sched::journal::{Input, JournalWriter};
use cpp_sched::wire::Encoder;
use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler};
use cpp_sched_tests::malformed::TARGETS;
use cpp_sched_tests::truth::mix;

/// A small run: its messages (each behind its length), its journal, and snapshots on the way.
fn good() -> (Vec<u8>, Vec<u8>, Vec<Vec<u8>>) {
    let mut config = Config::default();
    (config.num_blocks, config.max_batch_tokens, config.stages, config.prefix_caching) = (12, 24, 2, true);
    let mut scheduler = Scheduler::new(config).unwrap();
    let (mut encoder, mut journal) = (Encoder::new(&config), JournalWriter::new(&config));
    let (mut messages, mut snapshots) = (Vec::new(), Vec::new());
    for id in 0..3 {
        let request = Request::new(RequestId(id), (0..30).map(|at| at + id as u32 / 2).collect(), 4);
        journal.apply(&Input::Submit(Box::new(request)), &mut scheduler);
    }
    for _ in 0..12 {
        journal.input(&Input::Schedule);
        if let Schedule::Batch(batch) = scheduler.schedule() {
            journal.batch(&batch);
            let mut message = Vec::new();
            encoder.encode(&batch, &mut message).unwrap();
            messages.extend(u16::try_from(message.len()).unwrap().to_le_bytes());
            messages.extend(message);
            continue;
        }
        let Some(oldest) = scheduler.oldest_in_flight() else { break };
        let id = oldest.id();
        let samples: Vec<_> =
            oldest.rows().iter().filter(|row| row.samples).map(|row| Sample { request: row.request, tokens: &[9] }).collect();
        let input = Input::complete(id, &samples);
        journal.apply(&input, &mut scheduler);
        let snapshot = scheduler.snapshot();
        snapshots.push(postcard::to_allocvec(&snapshot).unwrap());
        snapshots.push(serde_json::to_vec(&snapshot).unwrap());
    }
    (messages, journal.take(), snapshots)
}

/// Good texts, each behind the byte that says what it is.
fn texts() -> Vec<Vec<u8>> {
    [
        (0, include_str!("../conformance/scenarios/001-one-request.json")),
        (1, "layers = 8\n"),
        (2, "name = \"a\"\nseed = 1\n"),
        (3, "history,new_tokens,time_ms\n0,512,3.5\n512,512,4.0\n"),
        (4, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"),
        (5, "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"),
        (6, "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"),
        (7, "trace,agent,t_s,input_tokens,cached_tokens,output_tokens\na,0,0.5,1000,0,20\n"),
        (8, "{\"arrival_s\":0.5,\"input_tokens\":100,\"output_tokens\":3}\n"),
        (9, "{\"arrival_s\":0.5,\"input_tokens\":100,\"output_tokens\":3}\n"),
    ]
    .into_iter()
    .map(|(which, text)| [&[which], text.as_bytes()].concat())
    .collect()
}

fn damaged(good: &[u8], seed: u64) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for turn in 0..1 + seed % 3 {
        let draw = mix(seed, turn);
        let at = (draw >> 8) as usize % bytes.len().max(1);
        match draw % 6 {
            _ if bytes.is_empty() => {}
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (draw >> 40 & 7),
            2 => bytes[at] = [0, 0xff, 0x7f, 0x80, b'9', b'-'][(draw >> 40) as usize % 6],
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, (draw >> 40) as u8),
            _ => {
                let (from, to) = (at, (at + 8).min(bytes.len()));
                let piece = bytes[from..to].to_vec();
                bytes.splice(from..from, piece);
            }
        }
    }
    bytes
}

#[test]
fn damaged_inputs_are_refused_or_work() {
    let (messages, journal, snapshots) = good();
    let config = serde_json::to_vec(&Config::default()).unwrap();
    let mut inputs = vec![(0, messages), (2, journal), (4, config)];
    inputs.extend(snapshots.into_iter().map(|snapshot| (1, snapshot)));
    inputs.extend(texts().into_iter().map(|text| (3, text)));
    let rounds = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256u64);
    for (index, (target, good)) in inputs.iter().enumerate() {
        let (name, run) = TARGETS[*target];
        run(good);
        for seed in 0..rounds {
            let bytes = damaged(good, mix(index as u64, seed));
            if catch_unwind(AssertUnwindSafe(|| run(&bytes))).is_err() {
                panic!("{name}, input {index}, seed {seed}: {:?}", String::from_utf8_lossy(&bytes));
            }
        }
    }
}

#[test]
fn good_inputs_are_good() {
    // Else the test above damages what is refused anyway.
    let (messages, journal, snapshots) = good();
    assert!(cpp_sched::journal::replay(&journal).unwrap().difference.is_none());
    let mut mirror = cpp_sched::wire::Mirror::new(&{
        let mut config = Config::default();
        config.num_blocks = 12;
        config
    });
    let length = usize::from(u16::from_le_bytes([messages[0], messages[1]]));
    mirror.apply(&messages[2..2 + length]).unwrap();
    for snapshot in snapshots.iter().step_by(2) {
        Scheduler::restore(postcard::from_bytes(snapshot).unwrap()).unwrap();
    }
}
