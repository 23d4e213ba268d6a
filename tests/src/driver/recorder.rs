//! The run as a journal, and what becomes of it when the process dies.

use cpp_sched::journal::{Decisions, Input, JournalWriter, replay};
use cpp_sched::{Config, PolicyKind, Scheduled};

use super::{Driver, Line, ensure};

/// What is on disk: a snapshot or a configuration, and every call since.
#[derive(Debug)]
pub(super) struct Recorder {
    writer: JournalWriter,
    stored: Vec<u8>,
    /// Of the run that was never interrupted.
    decisions: Decisions,
}

impl Recorder {
    pub(super) fn new(config: &Config) -> Self {
        let mut writer = JournalWriter::new(config);
        Self { stored: writer.take(), writer, decisions: Decisions::default() }
    }

    /// Before the call, whatever its answer.
    pub(super) fn input(&mut self, input: &Input) {
        self.writer.input(input);
        self.stored.append(&mut self.writer.take());
    }

    pub(super) fn batch(&mut self, batch: &Scheduled<'_>) {
        self.decisions.add(batch);
        self.writer.batch(batch);
        self.stored.append(&mut self.writer.take());
    }
}

impl Driver {
    /// What is on disk brings back the same scheduler, with the same digest of all that was decided.
    pub(super) fn replayed(&self) -> Result<cpp_sched::journal::Replay, String> {
        let replay = replay(&self.recorder.stored).map_err(|error| format!("the journal: {error}"))?;
        ensure!(replay.difference.is_none(), "the journal's run is another one: {:?}", replay.difference);
        ensure!(replay.digest == self.recorder.decisions.digest(), "the journal's run ends with another digest");
        ensure!(replay.scheduler.snapshot() == self.scheduler.snapshot(), "the journal's run ends in another state");
        Ok(replay)
    }

    /// The process dies, and another one goes on: with a scheduler out of the last snapshot and the journal since, and as a new leader.
    /// A policy of the test's remembers what it was asked, and no journal has that: then nothing happens.
    pub(super) fn kill(&mut self) -> Result<(), String> {
        if self.config.policy == PolicyKind::Custom {
            return self.end_call(Line::Done("kill"), Vec::new());
        }
        let replay = self.replayed()?;
        self.recorder.writer = replay.go_on();
        self.recorder.stored = self.recorder.writer.take();
        self.scheduler = replay.scheduler;
        self.mirrors.new_leader(&self.scheduler)?;
        self.meet_grouped("killed, several groups", "killed");
        self.end_call(Line::Done("kill"), Vec::new())
    }

    /// The journal begins anew: what was written before is not needed any more.
    pub(super) fn rotate(&mut self) -> Result<(), String> {
        self.recorder.writer.rotate(&self.scheduler);
        self.recorder.stored = self.recorder.writer.take();
        self.end_call(Line::Done("rotate"), Vec::new())
    }
}
