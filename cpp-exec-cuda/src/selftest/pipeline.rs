//! Scheduler, stage runtime and stages together, with a tiny model: what they say is what the processor would say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cpp_exec_mock::cpu::{CpuStage, KvShape, Part, Rounding, Said, Sampling, TeacherForced};
use cpp_exec_mock::model::{Format, LlamaConfig, TinyLlama, Weights};
use cpp_exec_mock::runtime::{ChannelLink, Crew, Device, Patience, Pipeline, Threads, Work};
use cpp_sched::driver::{Driver, Progress, Step};
use cpp_sched::{Admission, BatchId, BlockId, Config, Event, Request, RequestId, Scheduler, TokenId};

use super::SelftestError;
use super::report::Line;
use crate::cuda::{CudaStage, Ends, Gpu, InProcessEdge, Room};

/// How far logits and tokens may be behind the processor's, in standard deviations of logits: what sums in another order come to after four layers.
pub const TOLERANCE: f32 = 0.1;

/// A prompt and what followed.
pub type Answer = (Vec<TokenId>, Vec<TokenId>);

/// A tiny model in a folder of its own, which goes with it.
#[derive(Debug)]
pub struct TestModel {
    folder: PathBuf,
    config: LlamaConfig,
    weights: Weights,
}

impl TestModel {
    const LAYERS: usize = 4;
    const PROMPTS: u32 = 5;
    const TOKENS: u32 = 10;

    /// Writes it. `name` tells it from others of this process.
    ///
    /// # Errors
    /// The folder for temporary files cannot be written to.
    pub fn new(name: &str, seed: u64) -> Result<Self, SelftestError> {
        let other = |error: &dyn std::fmt::Display| SelftestError::Other(format!("a model for the test: {error}"));
        let folder = std::env::temp_dir().join(format!("cpp-run-selftest-{name}-{}", std::process::id()));
        let tiny = TinyLlama {
            seed,
            num_heads: 6,
            num_kv_heads: 2,
            head_dim: 32,
            num_layers: Self::LAYERS,
            format: Format::Bf16,
            ..TinyLlama::default()
        };
        tiny.write(&folder).map_err(|error| other(&error))?;
        let weights = Weights::open(&folder).map_err(|error| other(&error))?;
        Ok(Self { folder, config: tiny.config(), weights })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its configuration and weights.
    #[must_use]
    pub const fn parts(&self) -> (&LlamaConfig, &Weights) {
        (&self.config, &self.weights)
    }

    /// The layers of a stage.
    #[must_use]
    pub const fn part(stage: usize, stages: usize) -> Part {
        Part { stage, stages, layers: Self::LAYERS * stage / stages..Self::LAYERS * (stage + 1) / stages }
    }

    /// A configuration with chunks, several batches in flight, and too few blocks for all, so that somebody is preempted.
    #[must_use]
    pub fn scheduling(stages: u32) -> Config {
        let mut config = Config::default();
        config.stages = stages;
        config.block_size = 4;
        config.num_blocks = 24;
        config.max_batch_tokens = 30;
        config.admission = Admission::Lazy;
        config
    }

    /// What a stage must have room for.
    #[must_use]
    pub fn room(config: &Config) -> Room {
        Room { positions: 100, tokens: config.max_batch_tokens, rows: config.max_batch_tokens, batches: config.depth() }
    }

    /// Runs some prompts over a crew. Lost batches are computed again; how many times that was is returned as well. `before` is called before each step with
    /// the tokens that are out.
    ///
    /// # Errors
    /// The crew cannot go on.
    pub fn answers<C: Crew>(
        &self,
        config: &Config,
        crew: C,
        patience: Patience,
        mut before: impl FnMut(&mut C, u64),
    ) -> Result<(Vec<Answer>, u32), SelftestError> {
        let other = |error: &dyn std::fmt::Display| SelftestError::Other(error.to_string());
        let scheduler = Scheduler::new(*config).map_err(|error| other(&error))?;
        let mut driver = Driver::new(scheduler, Pipeline::new(config, crew, patience));
        let prompts = prompts();
        for (number, prompt) in (0..).zip(&prompts) {
            driver.submit(Request::new(RequestId(number), prompt.clone(), Self::TOKENS)).map_err(|error| other(&error))?;
        }
        let (mut tokens, mut lost, mut out) = (BTreeMap::<u64, Vec<TokenId>>::new(), 0, 0);
        loop {
            before(driver.executor_mut().crew_mut(), out);
            match driver.step().map_err(|error| other(&error))? {
                Step::Progress(Progress::Failed(failure)) => {
                    lost += 1;
                    if lost > 3 {
                        return Err(SelftestError::Other(format!("lost for the fourth time: {failure}")));
                    }
                }
                Step::Progress(Progress::RolledBack(_)) => {
                    Pipeline::recover(&mut driver);
                }
                Step::Progress(_) => {}
                Step::Idle => break,
                step => return Err(SelftestError::Other(format!("nothing can go on: {step:?}"))),
            }
            for event in driver.events() {
                if let Event::Token { request, token, .. } = event {
                    tokens.entry(request.0).or_default().push(token);
                    out += 1;
                }
            }
        }
        Ok((prompts.into_iter().zip(tokens.into_values()).collect(), lost))
    }

    /// The answers of stages that are threads with one GPU. Activations go through the host, or from stage to stage on the device.
    ///
    /// # Errors
    /// As [`answers`](Self::answers).
    pub fn answers_of_threads(self: &Arc<Self>, gpu: &Arc<Gpu>, stages: u32, on_device: bool) -> Result<Vec<Answer>, SelftestError> {
        let config = Self::scheduling(stages);
        let edges: Vec<InProcessEdge> = (1..stages).filter(|_| on_device).map(|_| InProcessEdge::new(gpu)).collect::<Result<_, _>>()?;
        let (model, gpu) = (Arc::clone(self), Arc::clone(gpu));
        let factory = move |stage| {
            let (part, room) = (Self::part(stage, stages as usize), Self::room(&config));
            let ends = Ends::of(&edges, stage);
            Ok(CudaStage::load_with(&gpu, &model.config, &model.weights, &part, KvShape::from(&config), room, ends, |_| ())?)
        };
        let patience = Patience { batch: Duration::from_secs(120), ..Patience::default() };
        let threads = Threads::start(&config, Box::new(factory), ChannelLink, patience.abort);
        let threads = threads.map_err(|error| SelftestError::Other(error.to_string()))?;
        Ok(self.answers(&config, threads, patience, |_, _| ())?.0)
    }

    /// A stage's own text after some prompts, and the logits of each token, held against the processor.
    ///
    /// # Errors
    /// The stage cannot be loaded or run.
    pub fn logits(&self, gpu: &Arc<Gpu>) -> Result<TeacherForced, SelftestError> {
        let kv = KvShape { block_size: 16, num_blocks: 16 };
        let room = Room { positions: 100, tokens: 60, rows: 1, batches: 1 };
        let mut stage = CudaStage::load(gpu, &self.config, &self.weights, &Self::part(0, 1), kv, room, |_| ())?;
        let mut texts = Vec::new();
        for prompt in prompts() {
            let (mut tokens, mut said) = (prompt.clone(), Vec::new());
            for step in 0..Self::TOKENS {
                let start = if step == 0 { 0 } else { tokens.len() - 1 };
                let table: Vec<BlockId> = (0..tokens.len().div_ceil(16) as u32).map(BlockId).collect();
                let mut work = Work::new(BatchId(step.into()));
                work.push(RequestId(0), start as u32, &tokens[start..], 0, &table, Some(Sampling::default()));
                let mut samples = Vec::new();
                stage.run(&work, &Vec::new(), &mut Vec::new(), &mut samples)?;
                let token = samples.first().and_then(|sample| sample.tokens.first()).copied();
                let token = token.ok_or_else(|| SelftestError::Other("a row that samples has no token".to_owned()))?;
                said.push(Said { token, logits: stage.logits(1)? });
                tokens.push(token);
            }
            texts.push((prompt, said));
        }
        self.teach(&texts)
    }

    /// Holds answers against the processor, which rounds in the same places, and is given the text so far.
    ///
    /// # Errors
    /// The model cannot be loaded.
    pub fn judge(&self, answers: &[Answer]) -> Result<TeacherForced, SelftestError> {
        let said = |(prompt, answer): &Answer| (prompt.clone(), answer.iter().copied().map(Said::from).collect());
        self.teach(&answers.iter().map(said).collect::<Vec<_>>())
    }

    fn teach(&self, texts: &[(Vec<TokenId>, Vec<Said>)]) -> Result<TeacherForced, SelftestError> {
        let other = |error: &dyn std::fmt::Display| SelftestError::Other(error.to_string());
        let kv = KvShape { block_size: 16, num_blocks: 16 };
        let stage = CpuStage::load_rounding(&self.config, &self.weights, &Self::part(0, 1), kv, Rounding::Bf16AtOpBorders, |_| ());
        let mut cpu = [stage.map_err(|error| other(&error))?];
        let mut teacher = TeacherForced::default();
        for (prompt, said) in texts {
            teacher.look(&mut cpu, kv.block_size, prompt, said).map_err(|error| other(&error))?;
        }
        Ok(teacher)
    }

    /// The line of the table for logits.
    #[must_use]
    pub fn line_of_logits(&self, gpu: &Arc<Gpu>) -> Line {
        let what = "logits of 1 stage";
        match self.logits(gpu) {
            Ok(teacher) => {
                let whole = teacher.logits == (Self::PROMPTS * Self::TOKENS) as usize;
                let text = format!(
                    "of {} tokens, at most {:.3} standard deviations off, tolerated {TOLERANCE}",
                    teacher.logits, teacher.worst_logit
                );
                Line::check(what, whole && teacher.is_within(TOLERANCE), text)
            }
            Err(error) => Line::check(what, false, error.to_string()),
        }
    }

    /// The line of the table for what stages have said: every request has its tokens, and each is within tolerance.
    #[must_use]
    pub fn line(&self, what: &str, answers: Result<Vec<Answer>, SelftestError>) -> Line {
        let judged = answers.and_then(|answers| Ok((self.judge(&answers)?, answers)));
        match judged {
            Ok((teacher, answers)) => {
                let wanted = (Self::PROMPTS * Self::TOKENS) as usize;
                let whole = answers.len() == Self::PROMPTS as usize && teacher.tokens == wanted;
                let text = format!(
                    "{} of {} tokens are the processor's; the others at most {:.3} standard deviations behind, tolerated {TOLERANCE}",
                    teacher.equal, wanted, teacher.worst_token
                );
                Line::check(what, whole && teacher.is_within(TOLERANCE), text)
            }
            Err(error) => Line::check(what, false, error.to_string()),
        }
    }
}

fn prompts() -> Vec<Vec<TokenId>> {
    let prompt = |number: u32| (0..7 + number * 9).map(|i| (i * (number + 3) + number * 17) % 256).collect();
    (0..TestModel::PROMPTS).map(prompt).collect()
}

impl Drop for TestModel {
    fn drop(&mut self) {
        // Another process's cleaner may have been quicker.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
