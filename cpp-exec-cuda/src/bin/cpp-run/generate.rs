//! `cpp-run generate`: prompts in, tokens out as they come.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cpp_exec_cuda::text::{Template, Text, TextStream};
use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::model::LlamaConfig;
use cpp_exec_mock::runtime::{Calibration, Pipeline, Timing, guess, timeline};
use cpp_sched::driver::{Progress, Step};
use cpp_sched::{Chunking, Config, CostModel, Event, Request, RequestId, TokenId};

use crate::args::{Chat, GenerateArgs, Links};
use crate::device::Chosen;
use crate::failure::{Failure, note, print};
use crate::load::{self, Runtime};
use crate::processes;
use crate::summary::{Times, spread};
use crate::worker::{self, Seat};

pub(crate) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let device = Chosen::new(args.device, &args.cuda, &args.graphs)?;
    if let Some(place) = processes::place_of_worker(args)? {
        let seat = Seat {
            device,
            rounding: args.rounding.rounding(),
            link: args.link.unwrap_or(Links::Socket),
            link_patience: Duration::from_secs(args.link_timeout),
            gpu: None,
        };
        return worker::work(&args.model, seat, place, Duration::from_secs(args.join_timeout));
    }
    let processes = args.processes.is_some();
    device.carries(args.link.unwrap_or(if processes { Links::Socket } else { Links::Channel }), processes)?;
    let prompts = prompts(args)?;
    let model = LlamaConfig::read(&args.model)?;
    device.runs(&model)?;
    let mut text = Text::read(&args.model, model.vocab_size)?;
    match args.chat {
        Chat::Auto => {}
        Chat::None => text.set_template(None),
        Chat::Chatml => text.set_template(Some(Template::ChatMl)),
        Chat::Llama3 => text.set_template(Some(Template::Llama3)),
    }
    if let Some(path) = &args.timeline {
        // Before the run, not after it.
        std::fs::write(path, "").map_err(|error| Failure::file(path, &error))?;
    }
    if !args.kv_tokens.is_multiple_of(args.block_size) {
        let blocks = args.kv_tokens.div_ceil(args.block_size);
        let positions = u64::from(blocks) * u64::from(args.block_size);
        note(&format!(
            "--kv-tokens {} is not whole blocks of {}: there is memory for {positions} positions",
            args.kv_tokens, args.block_size
        ));
    }
    let stages = processes::stages(args)?;
    let parts = load::parts(args, &model, stages as usize)?;
    let guesses: Vec<_> = parts.iter().map(|part| guess(&model, part, FLOPS)).collect();
    let mut config = config(args, stages, &guesses);
    device.limit(&mut config, &model);
    let mut driver = load::start(args, &model, config, parts, device)?;
    driver.set_max_failures(args.retries);
    let mut outputs = BTreeMap::new();
    for (id, prompt) in (0..).map(RequestId).zip(&prompts) {
        let mut request = Request::new(id, text.encode(prompt)?, args.max_tokens);
        request.stop_tokens = model.eos.iter().copied().chain(text.ends()).collect();
        request.drafts = args.drafts;
        driver.submit(request).map_err(|error| Failure::Usage(format!("prompt {}: {error}", id.0 + 1)))?;
        let sampling = Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed.wrapping_add(id.0) };
        driver.executor_mut().set_sampling(id, sampling);
        outputs.insert(id, Output::new());
    }
    let mut measured = Measured {
        calibration: Calibration::new(&guesses),
        timings: Vec::new(),
        keep: args.timeline.is_some(),
        tell: args.batches,
        adaptive: args.adaptive,
    };
    drive(&mut driver, &text, &mut outputs, &mut measured)?;
    finish(&driver, outputs, &measured);
    if let Some(path) = &args.timeline {
        let written = std::fs::File::create(path).and_then(|file| timeline(file, stages as usize, &measured.timings));
        written.map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// What a core is taken to do in a second until it was measured.
const FLOPS: u64 = 10_000_000_000;

/// The stages' times, and what was made of them.
struct Measured {
    calibration: Calibration,
    timings: Vec<Timing>,
    /// Times are kept, for a timeline.
    keep: bool,
    /// Each batch is told.
    tell: bool,
    /// The scheduler gets the costs.
    adaptive: bool,
}

impl Measured {
    fn take_in(&mut self, driver: &mut Runtime) -> Result<(), Failure> {
        let timings = driver.executor_mut().timings();
        for timing in &timings {
            let stages = self.calibration.observe(timing);
            if self.tell {
                let ms = |ns: u64| ns as f64 / 1e6;
                let stages: Vec<String> =
                    stages.into_iter().map(|(predicted, measured)| format!("{:.2} / {:.2} ms", ms(predicted), ms(measured))).collect();
                note(&format!(
                    "{}: {} rows, {} tokens, predicted / measured {}",
                    timing.batch,
                    timing.rows.len(),
                    timing.terms.tokens,
                    stages.join(", ")
                ));
            }
        }
        if self.adaptive && !timings.is_empty() {
            let models = self.calibration.models();
            driver.set_stage_costs(&models).map_err(|error| Failure::Failed(format!("measured costs: {error}")))?;
        }
        if self.keep {
            self.timings.extend(timings);
        }
        Ok(())
    }
}

fn config(args: &GenerateArgs, stages: u32, guesses: &[CostModel]) -> Config {
    let mut config = Config::default();
    config.stages = stages;
    config.block_size = args.block_size;
    config.num_blocks = args.kv_tokens.div_ceil(args.block_size);
    config.max_batch_tokens = args.max_batch_tokens;
    config.prefix_caching = true;
    config.async_scheduling = args.asynchronous;
    if args.adaptive {
        config.chunking = Chunking::Adaptive;
        config.adaptive.align = args.block_size.min(args.max_batch_tokens);
        config.cost = guesses.iter().copied().max_by_key(|guess| guess.c1);
    }
    config
}

fn prompts(args: &GenerateArgs) -> Result<Vec<String>, Failure> {
    let mut prompts = args.prompt.clone();
    if let Some(path) = &args.prompts {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
        prompts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(ToOwned::to_owned));
    }
    if prompts.is_empty() { Err(Failure::Usage("there is no prompt: give --prompt, or a file with lines".to_owned())) } else { Ok(prompts) }
}

/// One request's way to stdout: its text as it comes if it is the first that is not finished, else when its turn comes.
struct Output {
    stream: TextStream,
    text: String,
    ended: bool,
    since: Instant,
    last: Option<Instant>,
    times: Times,
}

impl Output {
    fn new() -> Self {
        Self {
            stream: TextStream::default(),
            text: String::new(),
            ended: false,
            since: Instant::now(),
            last: None,
            times: Times::default(),
        }
    }

    fn push(&mut self, text: &Text, token: TokenId) -> Result<(), Failure> {
        let now = Instant::now();
        match self.last.replace(now) {
            None => self.times.first = Some(now - self.since),
            Some(last) => self.times.between.push(now - last),
        }
        self.text.push_str(&self.stream.push(text, token)?);
        Ok(())
    }
}

fn drive(driver: &mut Runtime, text: &Text, outputs: &mut BTreeMap<RequestId, Output>, measured: &mut Measured) -> Result<(), Failure> {
    let many = outputs.len() > 1;
    let (mut current, mut shown) = (RequestId(0), 0);
    loop {
        let step = driver.step().map_err(|error| Failure::Failed(error.to_string()))?;
        match &step {
            Step::Progress(Progress::Failed(failure)) => {
                note(&format!("{failure}; its batches run again"));
            }
            Step::Progress(Progress::RolledBack(_)) => {
                Pipeline::recover(driver);
            }
            _ => {}
        }
        measured.take_in(driver)?;
        for event in driver.events() {
            match event {
                Event::Token { request, token, .. } => {
                    if let Some(output) = outputs.get_mut(&request) {
                        output.push(text, token)?;
                    }
                }
                Event::Finished { request, .. } => {
                    if let Some(output) = outputs.get_mut(&request) {
                        let rest = output.stream.finish(text)?;
                        output.text.push_str(&rest);
                        output.ended = true;
                    }
                }
                _ => {}
            }
        }
        while let Some(output) = outputs.get(&current) {
            if many && shown == 0 && !output.text.is_empty() {
                print(&format!("[{}] ", current.0 + 1))?;
            }
            print(&output.text[shown..])?;
            shown = output.text.len();
            if !output.ended {
                break;
            }
            print("\n")?;
            (current, shown) = (RequestId(current.0 + 1), 0);
        }
        match step {
            Step::Progress(_) => {}
            Step::Idle => return Ok(()),
            other => return Err(Failure::Failed(format!("nothing can go on: {other:?}"))),
        }
    }
}

fn finish(driver: &Runtime, outputs: BTreeMap<RequestId, Output>, measured: &Measured) {
    let stats = driver.scheduler().stats();
    let started = outputs.values().map(|output| output.since).min();
    let ended = outputs.values().filter_map(|output| output.last).max();
    let seconds = started.zip(ended).map_or(0.0, |(started, ended)| (ended - started).as_secs_f64());
    let times: Vec<Times> = outputs.into_values().map(|output| output.times).collect();
    note(&format!("time to first token: {}", spread(times.iter().filter_map(|times| times.first).collect())));
    note(&format!("from token to token: {}", spread(times.into_iter().flat_map(|times| times.between).collect())));
    note(&format!(
        "{} tokens in {seconds:.2} s, {:.1} a second; {} batches over {} stages, {} prompt tokens from the cache, {} of {} drafts right, {} preemptions",
        stats.output_tokens,
        stats.output_tokens as f64 / seconds.max(1e-9),
        stats.batches,
        driver.scheduler().config().stages,
        stats.cache_hit_tokens,
        stats.accepted_draft_tokens,
        stats.draft_tokens,
        stats.preemptions,
    ));
    note(&format!("stage times are predicted to {:.1} % at the end", measured.calibration.error() * 100.0));
}
