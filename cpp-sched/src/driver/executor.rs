//! What an executor is to the [`Driver`](super::Driver).

use alloc::vec::Vec;

use crate::batch::{Sample, Scheduled};
use crate::event::Event;
use crate::ids::{BatchId, RequestId, TokenId};

/// Runs batches on a pipeline, in the order in which it gets them, and has their results in the same order.
///
/// A *polling* executor (an asynchronous runtime, a completion queue) implements [`poll`](Self::poll) and leaves [`wait`](Self::wait) as it is; a
/// *blocking* one (a channel, a device to synchronise with) implements both. It has at most [`Config::depth`](crate::Config::depth) batches at
/// any time, so a ring of that many buffers is enough: a batch's buffers are its own until its result was returned or [`fail`](Self::fail) has
/// returned.
///
/// An error of any method means that batches are lost. The driver then calls [`fail`](Self::fail).
pub trait Executor {
    /// Why batches are lost.
    type Error;

    /// Whether it takes a batch now. While it does not, the driver decides none: for an executor whose queue in front of the first stage is full,
    /// or which wants decisions made as late as possible. With batches under way it is waited for, else the driver says
    /// [`WaitingForExecutor`](super::Step::WaitingForExecutor).
    fn has_room(&mut self) -> bool {
        true
    }

    /// Takes a batch in, with the block tables of its rows, and does not wait for its result. What [`preempted`](crate::Batch::preempted) names
    /// is forgotten before the rows are looked at.
    ///
    /// # Errors
    /// The batch, and with it all that are under way, cannot be run.
    fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Self::Error>;

    /// The oldest batch under way, if its result is there now: its number, and its samples pushed to `samples` (which is empty), one for each
    /// row that [samples](crate::Row::samples), in the order of the rows. A batch of middle chunks has none, and is returned all the same.
    ///
    /// Called only with a batch under way. An executor that can only block may always answer `None` here.
    ///
    /// # Errors
    /// A batch under way is lost.
    fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Self::Error>;

    /// As [`poll`](Self::poll), but there is nothing else to do: it may block until the result is there. `None`: not yet; the driver says
    /// [`WaitingForResults`](super::Step::WaitingForResults) and its caller waits.
    ///
    /// # Errors
    /// A batch under way is lost.
    fn wait(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Self::Error> {
        self.poll(samples)
    }

    /// Every batch under way is lost. When it has returned, nothing of them is written any more (their blocks will be given out anew), and the
    /// next batch can be taken. What completed batches wrote is still there.
    ///
    /// # Errors
    /// Not possible now: the driver gives no batch out and calls it again.
    fn fail(&mut self) -> Result<(), Self::Error>;

    /// Something happened to a request. Called for every event, in order, before the caller sees it and before the next batch is handed over.
    fn event(&mut self, event: &Event) {
        let _ = event;
    }

    /// Nothing is under way and nothing can be scheduled: whatever is still unsent must go out now. Called once each time.
    ///
    /// # Errors
    /// It cannot.
    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The samples of one batch, as an executor hands them in. Keeps its room from one batch to the next.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Whose sample, and where its tokens end.
    ends: Vec<(RequestId, usize)>,
    tokens: Vec<TokenId>,
}

impl Samples {
    /// Adds the sample of the next row that samples: the accepted drafts, and the token that follows them.
    pub fn push(&mut self, request: RequestId, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        self.ends.push((request, self.tokens.len()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.tokens.clear();
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Sample<'_>> + '_ {
        let mut start = 0;
        self.ends.iter().map(move |&(request, end)| {
            let tokens = &self.tokens[start..end];
            start = end;
            Sample { request, tokens }
        })
    }
}
