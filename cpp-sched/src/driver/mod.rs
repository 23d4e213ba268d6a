//! The loop around the scheduler, ready made: fill the pipeline, wait for the oldest batch, complete it.
//!
//! The [`Driver`] owns a [`Scheduler`] and an [`Executor`]. It has no thread and no clock: somebody calls [`step`](Driver::step), a thread or
//! an asynchronous runtime, and learns whether to step again or what to wait for.
//!
//! | rule | |
//! |---|---|
//! | fill first | the executor is waited for only if the pipeline is full or nothing can be scheduled |
//! | no wait on nothing | with nothing in flight the executor is neither polled nor waited for |
//! | no sleep on work | a step answers "wait" only if the one thing left to do is to wait |
//! | oldest first | results are applied in the order of the batches; anything else is a failure of the executor |
//! | commands first | a command given before the step that applies a result comes before it: an abort wins over a last token |
//! | every batch | each batch is completed or lost exactly once, those of middle chunks too; nobody waits for those in particular |
//! | at most D | the executor never has more than [`Config::depth`](crate::Config::depth) batches |
//! | room | no batch is decided while the executor [has no room](Executor::has_room) for one |
//! | flush | before it rests with nothing in flight the executor is told to send what it has not sent |
//!
//! ```
//! use std::collections::VecDeque;
//! use cpp_sched::driver::{Driver, Executor, Samples, Step};
//! use cpp_sched::{BatchId, Config, Event, Request, RequestId, Scheduled, Scheduler};
//!
//! /// Stands for a pipeline: the token after position `p` is `p`.
//! #[derive(Default)]
//! struct Counting(VecDeque<(BatchId, Vec<(RequestId, u32)>)>);
//!
//! impl Executor for Counting {
//!     type Error = std::convert::Infallible;
//!
//!     fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Self::Error> {
//!         let sampling = batch.rows().iter().filter(|row| row.samples);
//!         self.0.push_back((batch.id(), sampling.map(|row| (row.request, row.end())).collect()));
//!         Ok(())
//!     }
//!
//!     fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Self::Error> {
//!         Ok(self.0.pop_front().map(|(batch, sampled)| {
//!             sampled.iter().for_each(|&(request, end)| samples.push(request, &[end]));
//!             batch
//!         }))
//!     }
//!
//!     fn fail(&mut self) -> Result<(), Self::Error> {
//!         self.0.clear();
//!         Ok(())
//!     }
//! }
//!
//! let mut config = Config::default();
//! config.stages = 2;
//! let mut driver = Driver::new(Scheduler::new(config)?, Counting::default());
//! driver.submit(Request::new(RequestId(1), vec![7; 5], 3)).unwrap();
//! let mut text = Vec::new();
//! let end = driver.run(|driver| {
//!     // Between two steps: here commands go in and events come out.
//!     text.extend(driver.events().filter_map(|event| match event {
//!         Event::Token { token, .. } => Some(token),
//!         _ => None,
//!     }));
//! });
//! assert_eq!((end, text), (Ok(Step::Idle), vec![5, 6, 7]));
//! # Ok::<(), cpp_sched::ConfigError>(())
//! ```

mod commands;
mod executor;
#[cfg(all(test, feature = "journal"))]
mod forwards;
#[cfg(feature = "journal")]
mod journal;
mod step;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

pub use executor::{Executor, Samples};
pub use step::{Failure, GaveUp, Progress, Step};

use crate::batch::{Batch, Sample};
use crate::error::CompleteError;
use crate::event::Event;
use crate::ids::BatchId;
#[cfg(feature = "journal")]
use crate::journal::{Input, JournalWriter};
use crate::kv::KvEvent;
use crate::outcome::{EmptyReason, Schedule};
use crate::scheduler::Scheduler;

/// A scheduler and the executor that it schedules for; see the [module](self).
#[derive(Debug)]
pub struct Driver<E: Executor> {
    scheduler: Scheduler,
    executor: E,
    samples: Samples,
    /// The batch whose samples are in `samples`, not applied yet.
    received: Option<BatchId>,
    /// Events that the executor has seen, of those that the caller has not taken.
    told: usize,
    max_failures: u32,
    /// Failures since a batch was completed.
    failures: u32,
    /// The executor has failed, and what is in flight is not rolled back yet.
    failing: bool,
    /// The executor may hold something unsent.
    unflushed: bool,
    /// Room for the samples of a call, empty between calls.
    borrowed: Vec<Sample<'static>>,
    /// Every call on the scheduler is written there.
    #[cfg(feature = "journal")]
    journal: Option<JournalWriter>,
}

/// What a step was stopped by.
type Stop<E> = Failure<<E as Executor>::Error>;

impl<E: Executor> Driver<E> {
    /// Failures in a row that are tried again, unless [`set_max_failures`](Self::set_max_failures) says otherwise.
    pub const MAX_FAILURES: u32 = 3;

    /// A driver of a scheduler. Batches that are in flight already are none of this executor's and are rolled back first.
    #[must_use]
    pub fn new(scheduler: Scheduler, executor: E) -> Self {
        Self {
            failing: scheduler.in_flight() > 0,
            scheduler,
            executor,
            samples: Samples::default(),
            received: None,
            told: 0,
            max_failures: Self::MAX_FAILURES,
            failures: 0,
            unflushed: false,
            borrowed: Vec::new(),
            #[cfg(feature = "journal")]
            journal: None,
        }
    }

    /// How many failures in a row, without a batch completed between them, are tried again: 0 = none, `u32::MAX` = all.
    pub fn set_max_failures(&mut self, max_failures: u32) {
        self.max_failures = max_failures;
    }

    /// The scheduler, to ask it something.
    #[must_use]
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The executor.
    #[must_use]
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The executor, to tell it something: whatever it keeps of a request may be given to it before the next step.
    pub fn executor_mut(&mut self) -> &mut E {
        &mut self.executor
    }

    /// Both at once, for an executor that wants to look at the scheduler: an [`Encoder`](crate::wire::Encoder) inside of it writes a
    /// [`transfer`](crate::wire::Encoder::transfer) from there.
    pub fn parts_mut(&mut self) -> (&Scheduler, &mut E) {
        (&self.scheduler, &mut self.executor)
    }

    /// Takes both apart.
    #[must_use]
    pub fn into_parts(self) -> (Scheduler, E) {
        (self.scheduler, self.executor)
    }

    /// The executor is known to have failed, by other means than an answer of it: a supervisor says so. The next step has it let go of every
    /// batch under way and rolls them back, and does not count as a failure in a row.
    pub fn fail(&mut self) {
        self.failing = true;
    }

    /// Changes of the prefix cache; see [`Scheduler::kv_events`].
    pub fn kv_events(&mut self) -> alloc::vec::Drain<'_, KvEvent> {
        self.scheduler.kv_events()
    }

    /// What happened since the last call, in order. Take them between steps: they pile up until taken.
    pub fn events(&mut self) -> alloc::vec::Drain<'_, Event> {
        self.tell();
        self.told = 0;
        self.scheduler.events()
    }

    /// Steps until there is something to wait for, and says what. `between` is called before every step: there commands go in and events come
    /// out.
    ///
    /// # Errors
    /// See [`step`](Self::step).
    pub fn run(&mut self, mut between: impl FnMut(&mut Self)) -> Result<Step<E::Error>, GaveUp<E::Error>> {
        loop {
            between(self);
            let step = self.step()?;
            if !step.is_progress() {
                // What this step told is taken too.
                between(self);
                return Ok(step);
            }
        }
    }

    /// Does the next thing: applies a result, or hands out one batch, or receives a result, or recovers from a failure, or finds that there is
    /// nothing to do but wait.
    ///
    /// # Errors
    /// The executor failed more often in a row than [`set_max_failures`](Self::set_max_failures) allows.
    pub fn step(&mut self) -> Result<Step<E::Error>, GaveUp<E::Error>> {
        match self.try_step() {
            Ok(step) => Ok(step),
            Err(cause) => {
                self.failing = true;
                self.failures = self.failures.saturating_add(1);
                if self.failures > self.max_failures {
                    return Err(GaveUp { failures: core::mem::take(&mut self.failures), cause });
                }
                Ok(Step::Progress(Progress::Failed(cause)))
            }
        }
    }

    fn try_step(&mut self) -> Result<Step<E::Error>, Stop<E>> {
        if self.failing {
            return self.roll_back();
        }
        if let Some(batch) = self.received.take() {
            return self.complete(batch);
        }
        if self.scheduler.in_flight() > 0 {
            self.samples.clear();
            if let Some(batch) = self.executor.poll(&mut self.samples).map_err(Failure::Executor)? {
                return self.complete(batch);
            }
        }
        let reason = if self.scheduler.in_flight() < self.scheduler.config().depth() && self.executor.has_room() {
            #[cfg(feature = "journal")]
            self.note(|| Input::Schedule);
            match self.scheduler.schedule() {
                Schedule::Batch(_batch) => {
                    #[cfg(feature = "journal")]
                    if let Some(journal) = &mut self.journal {
                        journal.batch(&_batch);
                    }
                    return self.submit_newest();
                }
                Schedule::Empty(reason) => Some(reason),
            }
        } else {
            None
        };
        self.tell();
        if self.scheduler.in_flight() > 0 {
            return self.wait();
        }
        if self.unflushed {
            self.executor.flush().map_err(Failure::Executor)?;
            self.unflushed = false;
        }
        Ok(match reason {
            None => Step::WaitingForExecutor,
            Some(EmptyReason::Idle) => Step::Idle,
            Some(EmptyReason::NoBlocks) => Step::NoBlocks,
            Some(EmptyReason::Paused) => Step::Paused,
            // The other two come only with batches in flight.
            Some(EmptyReason::WaitingForExternal | EmptyReason::WaitingForResults | EmptyReason::PipelineFull) => Step::WaitingForExternal,
        })
    }

    fn submit_newest(&mut self) -> Result<Step<E::Error>, Stop<E>> {
        self.tell();
        self.unflushed = true;
        let Some(batch) = self.scheduler.newest_in_flight() else { return Ok(Step::WaitingForResults) };
        self.executor.submit(&batch).map_err(Failure::Executor)?;
        Ok(Step::Progress(Progress::Submitted(batch.id())))
    }

    fn wait(&mut self) -> Result<Step<E::Error>, Stop<E>> {
        self.samples.clear();
        match self.executor.wait(&mut self.samples).map_err(Failure::Executor)? {
            None => Ok(Step::WaitingForResults),
            Some(batch) => {
                self.received = Some(batch);
                Ok(Step::Progress(Progress::Received(batch)))
            }
        }
    }

    fn complete(&mut self, batch: BatchId) -> Result<Step<E::Error>, Stop<E>> {
        let oldest = self.scheduler.oldest_in_flight().map_or_else(|| self.scheduler.next_batch(), Batch::id);
        if batch < oldest {
            return Ok(Step::Progress(Progress::Discarded(batch)));
        }
        self.apply(batch).map_err(Failure::Result)?;
        self.failures = 0;
        self.tell();
        Ok(Step::Progress(Progress::Completed(batch)))
    }

    fn apply(&mut self, batch: BatchId) -> Result<(), CompleteError> {
        let mut samples: Vec<Sample<'_>> = core::mem::take(&mut self.borrowed);
        samples.extend(self.samples.iter());
        #[cfg(feature = "journal")]
        if let Some(journal) = &mut self.journal {
            journal.input(&Input::complete(batch, &samples));
        }
        let result = self.scheduler.complete(batch, &samples);
        samples.clear();
        // Nothing is left that borrows; collecting an empty vector of the same layout keeps its room.
        self.borrowed = samples.into_iter().map(|sample| Sample { request: sample.request, tokens: &[] }).collect();
        result
    }

    /// The executor lets go of everything before the scheduler gives the blocks out anew.
    fn roll_back(&mut self) -> Result<Step<E::Error>, Stop<E>> {
        self.received = None;
        self.executor.fail().map_err(Failure::Executor)?;
        #[cfg(feature = "journal")]
        self.note(|| Input::Fail);
        let lost = self.scheduler.fail();
        self.failing = false;
        self.tell();
        Ok(Step::Progress(Progress::RolledBack(lost)))
    }

    /// Tells the executor what it has not seen.
    fn tell(&mut self) {
        let events = self.scheduler.pending_events();
        for event in events.get(self.told..).unwrap_or_default() {
            self.executor.event(event);
        }
        self.told = events.len();
    }
}
