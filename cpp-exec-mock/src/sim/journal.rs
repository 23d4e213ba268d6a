//! The journal of a run, on its way to a file.

use std::io::Write;

use cpp_sched::driver::Driver;
use cpp_sched::journal::JournalWriter;

use super::SimError;
use super::site::Site;

/// Bytes that are kept before they are written.
const KEPT: usize = 1 << 16;

/// Where a journal goes.
pub(crate) struct Sink<'a> {
    pending: Vec<u8>,
    sink: &'a mut dyn Write,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(sink: &'a mut dyn Write) -> Self {
        Self { pending: Vec::new(), sink }
    }

    /// Writes what the driver has recorded, if it is much.
    pub(crate) fn flush(&mut self, driver: &mut Driver<Site<'_>>, all: bool) -> Result<(), SimError> {
        self.pending.append(&mut driver.journal().map(JournalWriter::take).unwrap_or_default());
        if all || self.pending.len() >= KEPT {
            self.sink.write_all(&self.pending).map_err(|error| SimError::Journal(error.to_string()))?;
            self.pending.clear();
        }
        Ok(())
    }
}
