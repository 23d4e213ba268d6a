//! Why a stage is idle.

use std::fmt;

/// The one cause of a stretch of idle time of one stage.
///
/// Causes are found along the graph of events that made the stage wait, not by what happens elsewhere at the same instant: a stage that waits
/// because the piece came late to the stage before it has that stage's cause, as far as that one's gap was as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The first piece after a time without work had not come this far.
    Fill,
    /// No piece came any more before the last request was done.
    Drain,
    /// A transfer that the stage had to wait for: it was sending (and maybe the other side did not receive yet) or receiving, the link was taken, or
    /// the next piece was longer under way than the one before it; or the devices of the stage were exchanging data with each other. For stage 0 also: the pipeline was full, and the oldest result on its way back.
    Communication,
    /// A batch was being decided, or a piece prepared.
    Scheduler,
    /// The stage before took longer for the next piece than this one for the piece before it.
    Upstream,
    /// The buffer of the next stage was full, or the pipeline was full and stages further down were at work.
    Downstream,
    /// Requests were alive, but each waited for a result in flight.
    Dependency,
    /// No request was alive.
    NoWork,
    /// A fault: the stage stood still, ran slower than it should, or was down.
    Fault,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Fill,
        Self::Drain,
        Self::Communication,
        Self::Scheduler,
        Self::Upstream,
        Self::Downstream,
        Self::Dependency,
        Self::NoWork,
        Self::Fault,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Drain => "drain",
            Self::Communication => "communication",
            Self::Scheduler => "scheduler",
            Self::Upstream => "upstream",
            Self::Downstream => "downstream",
            Self::Dependency => "dependency",
            Self::NoWork => "no_work",
            Self::Fault => "fault",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stretch of the time of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which stage.
    pub stage: u32,
    /// Which piece of the batch it ran, or waited for.
    pub piece: u32,
    /// Why it was idle; none: it ran a piece.
    pub idle: Option<Cause>,
    /// Its beginning, in nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
}

/// The time of one stage over a window, by what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// The whole window.
    pub window_ns: u64,
    /// It ran a piece.
    pub busy_ns: u64,
    idle_ns: [u64; Cause::ALL.len()],
}

impl StageTime {
    /// Idle time of one cause.
    #[must_use]
    pub const fn idle_ns(&self, cause: Cause) -> u64 {
        self.idle_ns[cause as usize]
    }

    pub(crate) const fn over(mut self, window_ns: u64) -> Self {
        self.window_ns = window_ns;
        self
    }

    pub(crate) fn add(&mut self, idle: Option<Cause>, ns: u64) {
        match idle {
            None => self.busy_ns += ns,
            Some(cause) => self.idle_ns[cause as usize] += ns,
        }
    }

    /// Busy time and idle time of all causes together; the window, if every nanosecond has been accounted for once.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.idle_ns.iter().fold(self.busy_ns, |sum, &ns| sum.saturating_add(ns))
    }

    /// The parts, by name. `fault` is there only where it took time.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let idle = Cause::ALL.iter().map(|&cause| (cause, self.idle_ns(cause)));
        let idle = idle.filter(|&(cause, ns)| cause != Cause::Fault || ns > 0).map(|(cause, ns)| (cause.name(), ns));
        std::iter::once(("busy", self.busy_ns)).chain(idle)
    }

    /// The parts as fractions of the window, by name. They sum to 1: an empty window counts as time without work.
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn fractions(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.parts().map(|(name, ns)| match self.window_ns {
            0 if name == "no_work" => (name, 1.0),
            0 => (name, 0.0),
            window => (name, ns as f64 / window as f64),
        })
    }
}
