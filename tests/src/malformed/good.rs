//! Good inputs for everything that reads bytes: what tests damage, and fuzzing starts from.

use cpp_sched::journal::{Input, JournalWriter};
use cpp_sched::wire::Encoder;
use cpp_sched::{Config, Request, RequestId, Sample, Schedule, Scheduler};

/// One input, for the target of this name.
#[derive(Clone, Debug)]
pub struct Good {
    /// The target, one of [`TARGETS`](super::TARGETS).
    pub target: &'static str,
    /// What it is.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

impl Good {
    fn new(target: &'static str, name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { target, name: name.into(), bytes }
    }

    /// All of them: the messages, the journal and some snapshots of a small run, a configuration, and a file of each kind.
    ///
    /// # Panics
    /// If the kernel refuses the small run.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = small_run();
        let config = serde_json::to_vec(&Config::default()).expect("a good run");
        all.push(Self::new("configurations", "defaults", config));
        all.extend(texts().into_iter().map(|(name, bytes)| Self::new("texts", name, bytes)));
        all
    }
}

/// The configuration of the small run.
#[must_use]
pub fn small_config() -> Config {
    let mut config = Config::default();
    (config.num_blocks, config.max_batch_tokens, config.stages, config.prefix_caching) = (12, 24, 2, true);
    config
}

/// Three prompts over two stages.
fn small_run() -> Vec<Good> {
    let config = small_config();
    let mut scheduler = Scheduler::new(config).expect("a good run");
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
            encoder.encode(&batch, &mut message).expect("a good run");
            messages.extend(u16::try_from(message.len()).expect("a good run").to_le_bytes());
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
        let postcard = postcard::to_allocvec(&snapshot).expect("a good run");
        snapshots.push(Good::new("snapshots", format!("after_{}_postcard", id.0), postcard));
        let json = serde_json::to_vec(&snapshot).expect("a good run");
        snapshots.push(Good::new("snapshots", format!("after_{}_json", id.0), json));
    }
    snapshots.push(Good::new("messages", "three_prompts_two_stages", messages));
    snapshots.push(Good::new("journals", "three_prompts_two_stages", journal.take()));
    snapshots
}

/// Good texts, each behind the byte that says what it is.
fn texts() -> Vec<(&'static str, Vec<u8>)> {
    [
        ("scenario", 0, include_str!("../../conformance/scenarios/001-one-request.json")),
        ("profile", 1, "layers = 8\n"),
        ("study", 2, "name = \"a\"\nseed = 1\n"),
        ("table", 3, "history,new_tokens,time_ms\n0,512,3.5\n512,512,4.0\n"),
        ("azure", 4, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"),
        ("mooncake", 5, "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"),
        ("burstgpt", 6, "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"),
        ("weka", 7, "trace,agent,t_s,input_tokens,cached_tokens,output_tokens\na,0,0.5,1000,0,20\n"),
        ("jsonl", 8, "{\"arrival_s\":0.5,\"input_tokens\":100,\"output_tokens\":3}\n"),
        ("guessed", 9, "{\"arrival_s\":0.5,\"input_tokens\":100,\"output_tokens\":3}\n"),
    ]
    .into_iter()
    .map(|(name, which, text)| (name, [&[which], text.as_bytes()].concat()))
    .collect()
}
