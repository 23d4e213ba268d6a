//! Commands on the scheduler behind a driver.

#[cfg(feature = "journal")]
use alloc::boxed::Box;

use super::{Driver, Executor};
use crate::config::Config;
use crate::cost::CostModel;
use crate::encoder::Span;
use crate::error::{CompleteError, ConfigError, ExtendError, ForkError, SubmitError};
use crate::gate::Gate;
use crate::ids::{BatchId, RequestId};
#[cfg(feature = "journal")]
use crate::journal::Input;
use crate::outcome::Outcome;
use crate::request::{Fork, Prompt, Request};
use crate::scheduler::Pause;
#[cfg(doc)]
use crate::scheduler::Scheduler;

/// Commands: as the methods of the same names of [`Scheduler`]. What they bring about is told to the executor before the next batch.
impl<E: Executor> Driver<E> {
    /// See [`Scheduler::submit`].
    ///
    /// # Errors
    /// What is wrong with the request; nothing has changed.
    pub fn submit(&mut self, request: Request) -> Result<(), SubmitError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::Submit(Box::new(request.clone())));
        self.scheduler.submit(request)
    }

    /// See [`Scheduler::abort`]. Wins over a result that no step has applied yet.
    pub fn abort(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::Abort(request));
        self.scheduler.abort(request)
    }

    /// See [`Scheduler::extend`].
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn extend(&mut self, request: RequestId, input: Prompt, max_tokens: u32) -> Result<(), ExtendError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::Extend { request, input: input.clone(), max_tokens });
        self.scheduler.extend(request, input, max_tokens)
    }

    /// See [`Scheduler::extend_with`].
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn extend_with(&mut self, request: RequestId, input: Prompt, spans: &[Span], max_tokens: u32) -> Result<(), ExtendError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::ExtendWith { request, input: input.clone(), spans: spans.to_vec(), max_tokens });
        self.scheduler.extend_with(request, input, spans, max_tokens)
    }

    /// See [`Scheduler::fork`].
    ///
    /// # Errors
    /// What is wrong; nothing has changed.
    pub fn fork(&mut self, parent: RequestId, child: Fork) -> Result<(), ForkError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::Fork { parent, child: Box::new(child.clone()) });
        self.scheduler.fork(parent, child)
    }

    /// See [`Scheduler::open`].
    pub fn open(&mut self, request: RequestId, gate: Gate) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::Open(request, gate));
        self.scheduler.open(request, gate)
    }

    /// See [`Scheduler::shut`].
    pub fn shut(&mut self, request: RequestId, gate: Gate) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::Shut(request, gate));
        self.scheduler.shut(request, gate)
    }

    /// See [`Scheduler::ready`].
    pub fn ready(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::Ready(request));
        self.scheduler.ready(request)
    }

    /// See [`Scheduler::set_drafts`].
    pub fn set_drafts(&mut self, request: RequestId, drafts: u32) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::SetDrafts(request, drafts));
        self.scheduler.set_drafts(request, drafts)
    }

    /// See [`Scheduler::kv_sent`].
    pub fn kv_sent(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::KvSent(request));
        self.scheduler.kv_sent(request)
    }

    /// See [`Scheduler::kv_sent_by`].
    pub fn kv_sent_by(&mut self, request: RequestId, consumer: u32) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::KvSentBy(request, consumer));
        self.scheduler.kv_sent_by(request, consumer)
    }

    /// See [`Scheduler::kv_send_failed`].
    pub fn kv_send_failed(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::KvSendFailed(request));
        self.scheduler.kv_send_failed(request)
    }

    /// See [`Scheduler::kv_arrived`].
    pub fn kv_arrived(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::KvArrived(request));
        self.scheduler.kv_arrived(request)
    }

    /// See [`Scheduler::kv_failed`].
    pub fn kv_failed(&mut self, request: RequestId) -> Outcome {
        #[cfg(feature = "journal")]
        self.note(|| Input::KvFailed(request));
        self.scheduler.kv_failed(request)
    }

    /// See [`Scheduler::tick`].
    pub fn tick(&mut self, now_ns: u64) {
        #[cfg(feature = "journal")]
        if now_ns > self.scheduler.now_ns() {
            self.note(|| Input::Tick(now_ns));
        }
        self.scheduler.tick(now_ns);
    }

    /// See [`Scheduler::pause`].
    pub fn pause(&mut self, pause: Pause) {
        #[cfg(feature = "journal")]
        self.note(|| Input::Pause(pause));
        self.scheduler.pause(pause);
    }

    /// See [`Scheduler::drain`].
    pub fn drain(&mut self, drain: bool) {
        #[cfg(feature = "journal")]
        self.note(|| Input::Drain(drain));
        self.scheduler.drain(drain);
    }

    /// See [`Scheduler::reconfigure`].
    ///
    /// # Errors
    /// The field that is wrong, or that cannot change; nothing has changed.
    pub fn reconfigure(&mut self, config: Config) -> Result<(), ConfigError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::Reconfigure(Box::new(config)));
        self.scheduler.reconfigure(config)
    }

    /// See [`Scheduler::set_cost_model`].
    ///
    /// # Errors
    /// What is wrong with the model; nothing has changed.
    pub fn set_cost_model(&mut self, model: CostModel) -> Result<(), ConfigError> {
        self.set_stage_costs(core::slice::from_ref(&model))
    }

    /// See [`Scheduler::set_stage_costs`].
    ///
    /// # Errors
    /// What is wrong with the models; nothing has changed.
    pub fn set_stage_costs(&mut self, models: &[CostModel]) -> Result<(), ConfigError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::SetStageCosts(models.to_vec()));
        self.scheduler.set_stage_costs(models)
    }

    /// See [`Scheduler::lose`]: the executor has told that one batch is lost and the others live. If its result comes all the same, it is
    /// thrown away.
    ///
    /// # Errors
    /// A batch that is not in flight; nothing has changed.
    pub fn lose(&mut self, batch: BatchId) -> Result<(), CompleteError> {
        #[cfg(feature = "journal")]
        self.note(|| Input::Lose(batch));
        self.scheduler.lose(batch)
    }

    /// See [`Scheduler::reset_all_kv`].
    pub fn reset_all_kv(&mut self) {
        #[cfg(feature = "journal")]
        self.note(|| Input::ResetAllKv);
        self.scheduler.reset_all_kv();
    }

    /// See [`Scheduler::reset_prefix_cache`].
    pub fn reset_prefix_cache(&mut self) {
        #[cfg(feature = "journal")]
        self.note(|| Input::ResetPrefixCache);
        self.scheduler.reset_prefix_cache();
    }
}
