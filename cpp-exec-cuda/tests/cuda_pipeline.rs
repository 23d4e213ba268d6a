//! Scheduler, stage runtime and CUDA devices together: a tiny model over one, two and four stages, with chunks, preemptions and sockets.
//!
//! See `cuda_device.rs` for what it runs on.
#![cfg(all(feature = "cuda", unix))]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use cpp_exec_cuda::cuda::{CudaStage, Ends, Gpu, InProcessEdge, Room};
use cpp_exec_mock::cpu::{KvShape, Rounding, Said, TeacherForced};
use cpp_exec_mock::runtime::{ChannelLink, Link, Patience, Pipeline, SocketLink, Threads};
use cpp_sched::driver::{Driver, Progress, Step};
use cpp_sched::{Admission, Config, Event, Request, RequestId, Scheduler, TokenId};

use support::{KV, Model, gpu, tiny};

fn config(stages: u32) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = 4;
    // Not enough for all: somebody is preempted.
    config.num_blocks = 24;
    config.max_batch_tokens = 30;
    config.admission = Admission::Lazy;
    config
}

/// A prompt and what followed.
type Answer = (Vec<TokenId>, Vec<TokenId>);

/// What came of each request, and how often one was preempted. `on_device`: activations go from stage to stage there, and the link has headers.
fn run(model: &Arc<Model>, gpu: &Arc<Gpu>, stages: u32, link: impl Link<Vec<f32>> + 'static, on_device: bool) -> (Vec<Answer>, u64) {
    let config = config(stages);
    let room = Room { positions: 100, tokens: config.max_batch_tokens, rows: config.max_batch_tokens, batches: config.depth() };
    let (model, gpu) = (Arc::clone(model), Arc::clone(gpu));
    let edges: Vec<InProcessEdge> = (1..stages).map(|_| InProcessEdge::new(&gpu).unwrap()).collect();
    let factory = move |stage: usize| {
        let part = model.part(stage, stages as usize);
        let up = stage.checked_sub(1).filter(|_| on_device).map(|edge| edges[edge].receiver());
        let down = edges.get(stage).filter(|_| on_device).map(InProcessEdge::sender);
        let (config, kv) = (model.tiny.config(), KvShape::from(&config));
        let mut made = CudaStage::load_with(&gpu, &config, &model.weights, &part, kv, room, Ends { up, down }, |_| ())?;
        if on_device {
            made.capture_graphs()?;
        }
        Ok(made)
    };
    let patience = Patience { batch: std::time::Duration::from_secs(120), ..Patience::default() };
    let threads = Threads::start(&config, Box::new(factory), link, patience.abort).unwrap();
    let mut driver = Driver::new(Scheduler::new(config).unwrap(), Pipeline::new(&config, threads, patience));
    let prompts: Vec<Vec<TokenId>> =
        (0..5u32).map(|number| (0..7 + number * 9).map(|i| (i * (number + 3) + number * 17) % 256).collect()).collect();
    for (number, prompt) in prompts.iter().enumerate() {
        driver.submit(Request::new(RequestId(number as u64), prompt.clone(), 10)).unwrap();
    }
    let mut tokens: BTreeMap<u64, Vec<TokenId>> = BTreeMap::new();
    loop {
        match driver.step().unwrap() {
            Step::Progress(Progress::Failed(failure)) => panic!("{failure}"),
            Step::Progress(_) => {}
            Step::Idle => break,
            other => panic!("{other:?}"),
        }
        for event in driver.events() {
            if let Event::Token { request, token, .. } = event {
                tokens.entry(request.0).or_default().push(token);
            }
        }
    }
    driver.scheduler().check_invariants().unwrap();
    let preemptions = driver.scheduler().stats().preemptions;
    (prompts.into_iter().zip(tokens.into_values()).collect(), preemptions)
}

#[test]
fn a_pipeline_of_cuda_stages_says_what_the_cpu_device_would_say() {
    let Some(gpu) = gpu() else { return };
    let model = Arc::new(Model::new("pipeline", tiny(31)));
    let mut cpu = [model.cpu_rounding(0, 1, Rounding::Bf16AtOpBorders)];
    for (stages, on_device) in [(1, false), (2, false), (4, false), (2, true), (4, true)] {
        let (answers, preemptions) = if stages == 2 {
            run(&model, &gpu, stages, SocketLink { max_numbers: 30 * 64 }, on_device)
        } else {
            run(&model, &gpu, stages, ChannelLink, on_device)
        };
        assert_eq!(answers.len(), 5);
        let mut teacher = TeacherForced::default();
        for (prompt, answer) in &answers {
            assert_eq!(answer.len(), 10);
            let said: Vec<Said> = answer.iter().map(|token| Said::from(*token)).collect();
            teacher.look(&mut cpu, KV.block_size, prompt, &said).unwrap();
        }
        println!("{stages} stages: {teacher:?}; {preemptions} preemptions");
        // Rounded in the same places: what is left are sums in another order, and what they lead to.
        assert!(preemptions > 0 && teacher.is_within(0.1) && teacher.equal >= 47);
    }
}
