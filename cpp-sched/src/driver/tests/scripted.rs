//! An executor that follows a script and remembers every call.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::batch::Scheduled;
use crate::config::Config;
use crate::driver::{Driver, Executor, Samples, Step};
use crate::event::Event;
use crate::ids::{BatchId, RequestId, TokenId};
use crate::request::Request;
use crate::scheduler::Scheduler;

/// What the executor was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Submit(u64),
    Poll,
    Wait,
    Fail,
    Flush,
    Preempted(u64),
    Finished(u64),
}

/// What the executor does at its next call of a kind, in place of what is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trick {
    /// `submit` fails, the batch is gone.
    LoseSubmit,
    /// `poll` or `wait` fails.
    LoseResult,
    /// `fail` fails.
    CannotFail,
    /// `poll` or `wait` returns the newest batch.
    NewestFirst,
    /// `poll` or `wait` returns this batch without samples.
    Stale(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("stage 1 is gone")
    }
}

impl core::error::Error for Broken {}

/// Remembers every call. The token after position `p` is `p`.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    pub(super) calls: Vec<Call>,
    pub(super) pipeline: VecDeque<(BatchId, Vec<(RequestId, u32)>)>,
    /// Results that are there without waiting.
    pub(super) ready: usize,
    /// Whether `wait` blocks until there is one.
    pub(super) blocking: bool,
    /// It takes no batch.
    pub(super) closed: bool,
    pub(super) tricks: VecDeque<Trick>,
    pub(super) most: usize,
    pub(super) returned: Vec<BatchId>,
    pub(super) lost: Vec<BatchId>,
}

impl Scripted {
    pub(super) fn blocking() -> Self {
        Self { blocking: true, ..Self::default() }
    }

    pub(super) fn trick(&mut self, which: impl Fn(Trick) -> bool) -> Option<Trick> {
        if self.tricks.front().copied().is_some_and(which) { self.tricks.pop_front() } else { None }
    }

    pub(super) fn result(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Broken> {
        assert!(samples.is_empty(), "samples of an earlier batch are left");
        match self.trick(|t| matches!(t, Trick::LoseResult | Trick::NewestFirst | Trick::Stale(_))) {
            Some(Trick::LoseResult) => return Err(Broken),
            Some(Trick::Stale(batch)) => return Ok(Some(BatchId(batch))),
            Some(_) => self.pipeline.rotate_right(1),
            None => {}
        }
        let (batch, sampled) = self.pipeline.pop_front().expect("asked for a result with nothing under way");
        for (request, end) in sampled {
            samples.push(request, &[end]);
        }
        self.returned.push(batch);
        Ok(Some(batch))
    }
}

impl Executor for Scripted {
    type Error = Broken;

    fn has_room(&mut self) -> bool {
        !self.closed
    }

    fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Broken> {
        self.calls.push(Call::Submit(batch.id().0));
        for row in batch.rows() {
            assert!(batch.blocks(row).len() as u32 * 4 >= row.end(), "a row without its blocks");
        }
        if self.trick(|t| t == Trick::LoseSubmit).is_some() {
            self.lost.push(batch.id());
            return Err(Broken);
        }
        let sampled = batch.rows().iter().filter(|row| row.samples).map(|row| (row.request, row.end())).collect();
        self.pipeline.push_back((batch.id(), sampled));
        self.most = self.most.max(self.pipeline.len());
        Ok(())
    }

    fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Broken> {
        self.calls.push(Call::Poll);
        assert!(!self.pipeline.is_empty(), "polled with nothing under way");
        if self.ready == 0 {
            return Ok(None);
        }
        self.ready -= 1;
        self.result(samples)
    }

    fn wait(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Broken> {
        self.calls.push(Call::Wait);
        assert!(!self.pipeline.is_empty(), "waited for nothing");
        if self.blocking { self.result(samples) } else { Ok(None) }
    }

    fn fail(&mut self) -> Result<(), Broken> {
        self.calls.push(Call::Fail);
        if self.trick(|t| t == Trick::CannotFail).is_some() {
            return Err(Broken);
        }
        self.lost.extend(self.pipeline.drain(..).map(|(batch, _)| batch));
        Ok(())
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Preempted { request } => self.calls.push(Call::Preempted(request.0)),
            Event::Finished { request, .. } => self.calls.push(Call::Finished(request.0)),
            _ => {}
        }
    }

    fn flush(&mut self) -> Result<(), Broken> {
        self.calls.push(Call::Flush);
        Ok(())
    }
}

pub(super) fn config(stages: u32) -> Config {
    Config { stages, block_size: 4, num_blocks: 64, max_batch_tokens: 8, ..Config::default() }
}

pub(super) fn driver(config: Config, executor: Scripted) -> Driver<Scripted> {
    Driver::new(Scheduler::new(config).unwrap(), executor)
}

pub(super) fn request(id: u64, prompt: usize, max_tokens: u32) -> Request {
    Request::new(RequestId(id), vec![7; prompt], max_tokens)
}

pub(super) fn steps(driver: &mut Driver<Scripted>, n: usize) -> Vec<Step<Broken>> {
    (0..n).map(|_| driver.step().unwrap()).collect()
}

pub(super) fn calls(driver: &mut Driver<Scripted>) -> Vec<Call> {
    core::mem::take(&mut driver.executor_mut().calls)
}

/// Runs until there is nothing to do; the tokens of each event in order.
pub(super) fn run_out(driver: &mut Driver<Scripted>) -> Vec<(u64, TokenId)> {
    let mut tokens = Vec::new();
    let end = driver.run(|driver| {
        tokens.extend(driver.events().filter_map(|event| match event {
            Event::Token { request, token, .. } => Some((request.0, token)),
            _ => None,
        }));
        driver.scheduler().check_invariants().unwrap();
    });
    assert_eq!(end, Ok(Step::Idle));
    tokens
}
