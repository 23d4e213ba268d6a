//! The calls on a scheduler as values.

use alloc::boxed::Box;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::batch::{Sample, Scheduled};
use crate::config::Config;
use crate::cost::CostModel;
use crate::encoder::Span;
use crate::gate::Gate;
use crate::ids::{BatchId, RequestId, TokenId};
use crate::outcome::{EmptyReason, Schedule};
use crate::request::{Fork, Prompt, Request};
use crate::scheduler::{Pause, Scheduler};

/// One call on a [`Scheduler`], with its arguments. Everything that it decides follows from its configuration and from these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Input {
    /// [`Scheduler::schedule`].
    Schedule,
    /// [`Scheduler::complete`].
    Complete {
        /// Which batch.
        batch: BatchId,
        /// Whose samples, and their tokens.
        samples: Vec<(RequestId, Vec<TokenId>)>,
    },
    /// [`Scheduler::tick`].
    Tick(u64),
    /// [`Scheduler::submit`].
    Submit(Box<Request>),
    /// [`Scheduler::abort`].
    Abort(RequestId),
    /// [`Scheduler::fail`].
    Fail,
    /// [`Scheduler::lose`].
    Lose(BatchId),
    /// [`Scheduler::ready`].
    Ready(RequestId),
    /// [`Scheduler::open`].
    Open(RequestId, Gate),
    /// [`Scheduler::shut`].
    Shut(RequestId, Gate),
    /// [`Scheduler::set_drafts`].
    SetDrafts(RequestId, u32),
    /// [`Scheduler::extend`].
    Extend {
        /// Which session.
        request: RequestId,
        /// What it is to read.
        input: Prompt,
        /// Its next output at most.
        max_tokens: u32,
    },
    /// [`Scheduler::fork`].
    Fork {
        /// Whose prompt.
        parent: RequestId,
        /// The new request. It is written as a whole [`Request`] with an empty prompt, as it was before there was a [`Fork`].
        #[serde(with = "as_request")]
        child: Box<Fork>,
    },
    /// [`Scheduler::kv_sent`].
    KvSent(RequestId),
    /// [`Scheduler::kv_sent_by`].
    KvSentBy(RequestId, u32),
    /// [`Scheduler::kv_send_failed`].
    KvSendFailed(RequestId),
    /// [`Scheduler::kv_arrived`].
    KvArrived(RequestId),
    /// [`Scheduler::kv_failed`].
    KvFailed(RequestId),
    /// [`Scheduler::pause`].
    Pause(Pause),
    /// [`Scheduler::drain`].
    Drain(bool),
    /// [`Scheduler::reconfigure`].
    Reconfigure(Box<Config>),
    /// [`Scheduler::reset_prefix_cache`].
    ResetPrefixCache,
    /// [`Scheduler::reset_all_kv`].
    ResetAllKv,
    /// [`Scheduler::set_stage_costs`]; with one model it is [`Scheduler::set_cost_model`].
    SetStageCosts(Vec<CostModel>),
    /// [`Scheduler::extend_with`].
    ExtendWith {
        /// Which session.
        request: RequestId,
        /// What it is to read.
        input: Prompt,
        /// The spans of that.
        spans: Vec<Span>,
        /// Its next output at most.
        max_tokens: u32,
    },
}

/// What a call answered.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// A batch.
    Batch(Scheduled<'a>),
    /// No batch.
    Empty(EmptyReason),
    /// It was done.
    Done,
    /// It was refused, or had no effect.
    Refused,
}

impl Answer<'_> {
    const fn done(done: bool) -> Self {
        if done { Self::Done } else { Self::Refused }
    }
}

impl Input {
    /// A result as an input.
    #[must_use]
    pub fn complete(batch: BatchId, samples: &[Sample<'_>]) -> Self {
        Self::Complete { batch, samples: samples.iter().map(|sample| (sample.request, sample.tokens.to_vec())).collect() }
    }

    /// Makes the call. It costs what the call costs, and a copy of a request or of samples.
    pub fn apply<'s>(&self, scheduler: &'s mut Scheduler) -> Answer<'s> {
        Answer::done(match self {
            Self::Schedule => {
                return match scheduler.schedule() {
                    Schedule::Batch(batch) => Answer::Batch(batch),
                    Schedule::Empty(reason) => Answer::Empty(reason),
                };
            }
            Self::Complete { batch, samples } => {
                let samples: Vec<_> = samples.iter().map(|(request, tokens)| Sample { request: *request, tokens }).collect();
                scheduler.complete(*batch, &samples).is_ok()
            }
            Self::Tick(now_ns) => {
                scheduler.tick(*now_ns);
                true
            }
            Self::Submit(request) => scheduler.submit((**request).clone()).is_ok(),
            Self::Abort(request) => scheduler.abort(*request).is_applied(),
            Self::Fail => scheduler.fail() > 0,
            Self::Lose(batch) => scheduler.lose(*batch).is_ok(),
            Self::Ready(request) => scheduler.ready(*request).is_applied(),
            Self::Open(request, gate) => scheduler.open(*request, *gate).is_applied(),
            Self::Shut(request, gate) => scheduler.shut(*request, *gate).is_applied(),
            Self::SetDrafts(request, drafts) => scheduler.set_drafts(*request, *drafts).is_applied(),
            Self::Extend { request, input, max_tokens } => scheduler.extend(*request, input.clone(), *max_tokens).is_ok(),
            Self::ExtendWith { request, input, spans, max_tokens } => {
                scheduler.extend_with(*request, input.clone(), spans, *max_tokens).is_ok()
            }
            Self::Fork { parent, child } => scheduler.fork(*parent, (**child).clone()).is_ok(),
            Self::KvSent(request) => scheduler.kv_sent(*request).is_applied(),
            Self::KvSentBy(request, consumer) => scheduler.kv_sent_by(*request, *consumer).is_applied(),
            Self::KvSendFailed(request) => scheduler.kv_send_failed(*request).is_applied(),
            Self::KvArrived(request) => scheduler.kv_arrived(*request).is_applied(),
            Self::KvFailed(request) => scheduler.kv_failed(*request).is_applied(),
            Self::Pause(pause) => {
                scheduler.pause(*pause);
                true
            }
            Self::Drain(drain) => {
                scheduler.drain(*drain);
                true
            }
            Self::Reconfigure(config) => scheduler.reconfigure(**config).is_ok(),
            Self::SetStageCosts(models) => scheduler.set_stage_costs(models).is_ok(),
            Self::ResetPrefixCache => {
                scheduler.reset_prefix_cache();
                true
            }
            Self::ResetAllKv => {
                scheduler.reset_all_kv();
                true
            }
        })
    }
}

/// A fork as a request: what journals hold. One that a fork cannot be is found as damage.
mod as_request {
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::request::{Fork, Prompt, Request};

    pub(super) fn serialize<S: Serializer>(fork: &Fork, serializer: S) -> Result<S::Ok, S::Error> {
        fork.clone().over(Prompt::Tokens(Vec::new()), 0, None).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Fork>, D::Error> {
        let request = Request::deserialize(deserializer)?;
        if request.pooling {
            return Err(D::Error::custom("a pooling request as a fork"));
        }
        Ok(Box::new(Fork::like(&request, request.id)))
    }
}
