//! The journal of a run: every call on the scheduler, written as it happens.

use std::io::Write;

use cpp_sched::journal::{Input, JournalWriter};
use cpp_sched::{BatchId, Config, CostModel, Request, Sample, Scheduled};

use super::SimError;

/// Bytes that are kept before they are written.
const KEPT: usize = 1 << 16;

/// A journal on its way to a file.
pub(crate) struct Recorder<'a> {
    writer: JournalWriter,
    pending: Vec<u8>,
    sink: &'a mut dyn Write,
    now_ns: u64,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(config: &Config, sink: &'a mut dyn Write) -> Self {
        Self { writer: JournalWriter::new(config), pending: Vec::new(), sink, now_ns: 0 }
    }

    /// The clock; a call that changes nothing is not written.
    pub(crate) fn tick(&mut self, now_ns: u64) {
        if now_ns > self.now_ns {
            self.now_ns = now_ns;
            self.writer.input(&Input::Tick(now_ns));
        }
    }

    pub(crate) fn input(&mut self, input: &Input) {
        self.writer.input(input);
    }

    pub(crate) fn submit(&mut self, request: &Request) {
        self.writer.input(&Input::Submit(Box::new(request.clone())));
    }

    pub(crate) fn complete(&mut self, batch: BatchId, samples: &[Sample<'_>]) {
        self.writer.input(&Input::complete(batch, samples));
    }

    pub(crate) fn stage_costs(&mut self, models: &[CostModel]) {
        self.writer.input(&Input::SetStageCosts(models.to_vec()));
    }

    pub(crate) fn schedule(&mut self) {
        self.writer.input(&Input::Schedule);
    }

    pub(crate) fn batch(&mut self, batch: &Scheduled<'_>) {
        self.writer.batch(batch);
    }

    /// Writes what there is, if it is much.
    pub(crate) fn flush(&mut self, all: bool) -> Result<(), SimError> {
        self.pending.append(&mut self.writer.take());
        if all || self.pending.len() >= KEPT {
            self.sink.write_all(&self.pending).map_err(|error| SimError::Journal(error.to_string()))?;
            self.pending.clear();
        }
        Ok(())
    }
}
