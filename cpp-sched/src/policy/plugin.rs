//! A policy of the caller's.

use core::fmt::Debug;

/// What a policy sees of a request. Times and costs are nanoseconds; without a cost model costs are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestView {
    /// Its place in the order of submission.
    pub seq: u64,
    /// [`Request::priority`](crate::Request::priority).
    pub priority: i64,
    /// When it arrived.
    pub arrival_ns: u64,
    /// Its arrival and its target for the first token.
    pub deadline_ns: Option<u64>,
    /// The clock.
    pub now_ns: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Those of them that are not scheduled.
    pub prompt_left: u32,
    /// Cost of the prompt that is not scheduled.
    pub work_left: u64,
    /// Cost of the whole prompt.
    pub work_total: u64,
    /// Output tokens delivered.
    pub outputs: u32,
    /// [`Request::tenant`](crate::Request::tenant).
    pub tenant: Option<u64>,
    /// [`Request::weight_millionths`](crate::Request::weight_millionths).
    pub weight_millionths: u64,
}

/// A policy's word on a request: the smallest comes first, and the earlier submit of two equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rank {
    /// This number, until the request is queued again: after its next chunk, or when it waits anew.
    Key(i128),
    /// A number that falls as time goes by, without anybody asking again: `(zero_ns - now) / per`. With `zero_ns` as the deadline less what is
    /// left to compute, it is the slack in units of `per`; 0 counts as 1. Values beyond 2^62 count as that.
    Falling {
        /// When the number is 0.
        zero_ns: i128,
        /// How slowly it falls.
        per: u64,
    },
    /// Not now: behind everybody who may run now, and in no batch while anything else is in flight or in the batch. Asked again at this
    /// time. The core keeps it from being put off for more than [`Config::max_deferral_ns`](crate::Config::max_deferral_ns) in all between two
    /// of its chunks; after that it comes as the last of those that may run now.
    NotNow {
        /// Until when.
        until_ns: u64,
    },
}

/// An order of prompt work: a small plug-in over a core that owns correctness. Whatever it answers, budgets, blocks, fences and progress are
/// right, and every request ends; it can only choose a bad order. Hand it to [`Scheduler::with_policy`](crate::Scheduler::with_policy).
///
/// It is asked when a request is queued: when it comes, after each of its chunks, when it was preempted or put off. A decision takes
/// O(log requests) and asks only about the requests that it moves. Give equal answers to equal questions, or runs cannot be repeated; where a
/// snapshot is restored, what it said before the snapshot still stands. A scheduler that is cloned shares its policy.
///
/// It must not panic: a panic of [`rank`](Self::rank) unwinds through the middle of a call on the scheduler, which is of no more use then. Whoever
/// catches it drops the scheduler and goes on from a snapshot.
///
/// Who is preempted when blocks are short is not the policy's choice but the latest submitted: a fixed order, so that nobody takes turns for ever.
/// Who waits too long is served whatever the policy says, if [`Latency::max_prefill_wait_ns`](crate::Latency::max_prefill_wait_ns) is set.
///
/// ```
/// use cpp_sched::{Config, Policy, Rank, Request, RequestId, RequestView, Scheduler};
///
/// /// Last come, first served.
/// #[derive(Debug)]
/// struct Lifo;
///
/// impl Policy for Lifo {
///     fn name(&self) -> &str {
///         "lifo"
///     }
///
///     fn rank(&self, view: &RequestView) -> Rank {
///         Rank::Key(-i128::from(view.seq))
///     }
/// }
///
/// let mut scheduler = Scheduler::with_policy(Config::default(), Box::new(Lifo))?;
/// for id in 1..=3 {
///     scheduler.submit(Request::new(RequestId(id), vec![5; 100], 1))?;
/// }
/// let batch = scheduler.schedule().batch().unwrap();
/// assert_eq!(batch.rows().iter().map(|row| row.request.0).collect::<Vec<_>>(), [3, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Policy: Debug + Send + Sync {
    /// Its name: in snapshots and journals, so that they are not read with another one.
    fn name(&self) -> &str;

    /// Where the request comes. O(1) is expected. Must not panic.
    fn rank(&self, view: &RequestView) -> Rank;
}
