//! What a fault cost: when it was noticed, how the backlog grew, and when it was gone again.

use super::{Fault, Faults};
use crate::sim::metrics::{Distribution, Samples};

/// One fault as it came about. Times are nanoseconds from the start of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incident {
    /// What was to go wrong.
    pub fault: Fault,
    /// When it came about; none: never, since no result or transfer came, or the run was over.
    pub began_ns: Option<u64>,
    /// When it was noticed: stages that died, lost results, transfers that never end.
    pub noticed_ns: Option<u64>,
    /// When all stages worked again as they should, as far as this fault goes.
    pub up_ns: Option<u64>,
    /// Batches that were lost by it.
    pub batches_lost: u64,
    /// Requests without a first token when it began, or their mean until then, rounded up, if that is more.
    pub backlog_before: u64,
    /// The most of them from then until it was recovered from.
    pub backlog_peak: u64,
    /// When their number was down to that before, after all stages worked again.
    pub recovered_ns: Option<u64>,
}

/// What all faults of a run cost.
#[derive(Clone, Debug, Default)]
pub struct FaultOutcome {
    /// Each of them, in order of time.
    pub incidents: Vec<Incident>,
    /// TTFT of requests with a first token before the first fault began.
    pub ttft_before: Distribution,
    /// Of those between whose arrival and first token a fault was going on, or had not been recovered from.
    pub ttft_during: Distribution,
    /// Of those that arrived after a recovery.
    pub ttft_after: Distribution,
}

/// Keeps the backlog and the incidents of a run.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) incidents: Vec<Incident>,
    backlog: u64,
    /// Sum of backlog times nanoseconds since `start_ns`.
    area: u128,
    start_ns: u64,
    last_ns: u64,
    /// Faults that have begun and are not recovered from.
    open: u32,
    begun: bool,
    recovered_ns: u64,
    before: Samples,
    during: Samples,
    after: Samples,
}

impl Recovery {
    pub(crate) fn new(faults: &Faults, start_ns: u64) -> Self {
        let incident = |&fault: &Fault| Incident {
            fault,
            began_ns: None,
            noticed_ns: None,
            up_ns: None,
            batches_lost: 0,
            backlog_before: 0,
            backlog_peak: 0,
            recovered_ns: None,
        };
        Self {
            incidents: faults.list().iter().map(incident).collect(),
            backlog: 0,
            area: 0,
            start_ns,
            last_ns: start_ns,
            open: 0,
            begun: false,
            recovered_ns: 0,
            before: Samples::default(),
            during: Samples::default(),
            after: Samples::default(),
        }
    }

    fn pass(&mut self, now_ns: u64) {
        self.area += u128::from(self.backlog) * u128::from(now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// A request waits for its first token.
    pub(crate) fn came(&mut self, now_ns: u64) {
        self.pass(now_ns);
        self.backlog += 1;
        if self.open > 0 {
            for incident in self.incidents.iter_mut().filter(|incident| incident.is_open()) {
                incident.backlog_peak = incident.backlog_peak.max(self.backlog);
            }
        }
    }

    /// A request has its first token, or ended without one.
    pub(crate) fn served(&mut self, now_ns: u64) {
        self.pass(now_ns);
        self.backlog = self.backlog.saturating_sub(1);
    }

    /// A first token came at `now_ns` for a request that arrived at `arrival_ns`.
    pub(crate) fn first_token(&mut self, arrival_ns: u64, now_ns: u64) {
        self.served(now_ns);
        let phase = match () {
            () if !self.begun => &mut self.before,
            () if self.open > 0 || self.recovered_ns > arrival_ns => &mut self.during,
            () => &mut self.after,
        };
        phase.push(now_ns.saturating_sub(arrival_ns));
    }

    /// The `i`th fault begins.
    pub(crate) fn begin(&mut self, i: usize, now_ns: u64) {
        self.pass(now_ns);
        let long_ns = u128::from(now_ns.saturating_sub(self.start_ns)).max(1);
        let mean = u64::try_from(self.area.div_ceil(long_ns)).unwrap_or(u64::MAX);
        let incident = &mut self.incidents[i];
        incident.began_ns = Some(now_ns);
        incident.backlog_before = self.backlog.max(mean);
        incident.backlog_peak = self.backlog;
        self.open += 1;
        self.begun = true;
    }

    /// Looks whether faults whose stages work again are recovered from.
    pub(crate) fn look(&mut self, now_ns: u64) {
        if self.open == 0 {
            return;
        }
        for incident in self.incidents.iter_mut().filter(|incident| incident.is_open()) {
            if incident.up_ns.is_some_and(|up_ns| up_ns <= now_ns) && self.backlog <= incident.backlog_before {
                incident.recovered_ns = Some(now_ns);
                self.recovered_ns = now_ns;
                self.open -= 1;
            }
        }
    }

    /// The end of the run.
    pub(crate) fn outcome(self) -> FaultOutcome {
        FaultOutcome {
            incidents: self.incidents,
            ttft_before: self.before.distribution(),
            ttft_during: self.during.distribution(),
            ttft_after: self.after.distribution(),
        }
    }
}

impl Incident {
    const fn is_open(&self) -> bool {
        self.began_ns.is_some() && self.recovered_ns.is_none()
    }

    /// From its beginning until it was recovered from.
    #[must_use]
    pub fn recovery_ns(&self) -> Option<u64> {
        Some(self.recovered_ns? - self.began_ns?)
    }
}
