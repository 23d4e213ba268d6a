//! A journal of all that a driver asks of its scheduler.

use alloc::vec::Vec;

use super::{Driver, Executor};
use crate::journal::{Input, JournalWriter};

/// With the feature `journal`: every call on the scheduler, commands and the driver's own, written down as it is made.
impl<E: Executor> Driver<E> {
    /// Writes every call from now on to `journal`, which has to start from the scheduler as it is now: [`JournalWriter::new`] before the first
    /// call, [`JournalWriter::from_snapshot`] later. [`replay`](crate::journal::replay) makes the same decisions from it.
    ///
    /// Calls that are refused are written too. Left out are those that the scheduler never sees: a result that is thrown away, a step with the
    /// pipeline full, the time that it was already.
    ///
    /// ```
    /// use cpp_sched::driver::{Driver, Executor, Samples};
    /// use cpp_sched::journal::{JournalWriter, replay};
    /// use cpp_sched::{BatchId, Config, Request, RequestId, Scheduled, Scheduler};
    /// # #[derive(Default)]
    /// # struct Echo(Vec<(BatchId, Vec<RequestId>)>);
    /// # impl Executor for Echo {
    /// #     type Error = std::convert::Infallible;
    /// #     fn submit(&mut self, batch: &Scheduled<'_>) -> Result<(), Self::Error> {
    /// #         self.0.push((batch.id(), batch.rows().iter().filter(|row| row.samples).map(|row| row.request).collect()));
    /// #         Ok(())
    /// #     }
    /// #     fn poll(&mut self, samples: &mut Samples) -> Result<Option<BatchId>, Self::Error> {
    /// #         let (batch, sampled) = self.0.remove(0);
    /// #         sampled.iter().for_each(|&request| samples.push(request, &[9]));
    /// #         Ok(Some(batch))
    /// #     }
    /// #     fn fail(&mut self) -> Result<(), Self::Error> {
    /// #         self.0.clear();
    /// #         Ok(())
    /// #     }
    /// # }
    ///
    /// let config = Config::default();
    /// let mut driver = Driver::new(Scheduler::new(config)?, Echo::default());
    /// driver.record(JournalWriter::new(&config));
    /// driver.submit(Request::new(RequestId(1), vec![7; 5], 3))?;
    /// driver.run(|_| {}).unwrap();
    /// let written = driver.journal().map(JournalWriter::take).unwrap_or_default();
    /// let replay = replay(&written)?;
    /// assert_eq!((replay.batches, replay.difference), (3, None));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record(&mut self, journal: JournalWriter) {
        self.journal = Some(journal);
    }

    /// The journal, to take what was written from it. `None`: nothing is recorded.
    pub fn journal(&mut self) -> Option<&mut JournalWriter> {
        self.journal.as_mut()
    }

    /// Ends the journal and begins a new one from the scheduler as it is now; what was not taken of the old one. See [`JournalWriter::rotate`].
    /// `None`: nothing is recorded. O(everything).
    pub fn rotate_journal(&mut self) -> Option<Vec<u8>> {
        Some(self.journal.as_mut()?.rotate(&self.scheduler))
    }

    /// A call that is about to be made.
    pub(super) fn note(&mut self, input: impl FnOnce() -> Input) {
        if let Some(journal) = &mut self.journal {
            journal.input(&input());
        }
    }
}
