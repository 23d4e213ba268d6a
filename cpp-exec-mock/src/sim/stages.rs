//! Where each stage's time went.

/// The time of one stage over the window of a run, by cause. The causes of idle time that are not told apart yet are 0 and stand under
/// `dependency`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// From the first arrival to the last result: the sum of all others.
    pub window_ns: u64,
    /// It ran a batch.
    pub busy_ns: u64,
    /// No batch had come this far yet.
    pub fill_ns: u64,
    /// No batch came any more.
    pub drain_ns: u64,
    /// A batch was on its way from the stage before.
    pub communication_ns: u64,
    /// A batch was being decided.
    pub scheduler_ns: u64,
    /// A stage before it took longer.
    pub upstream_ns: u64,
    /// A stage after it took longer.
    pub downstream_ns: u64,
    /// Requests were alive, but waited for results in flight.
    pub dependency_ns: u64,
    /// No request was alive.
    pub no_work_ns: u64,
}

impl StageTime {
    /// A stage that was busy for `busy_ns` of a window in which no request was alive for `no_work_ns`; both cannot be at once.
    pub(crate) const fn new(window_ns: u64, busy_ns: u64, no_work_ns: u64) -> Self {
        let dependency_ns = window_ns.saturating_sub(busy_ns).saturating_sub(no_work_ns);
        Self {
            window_ns,
            busy_ns,
            no_work_ns,
            dependency_ns,
            fill_ns: 0,
            drain_ns: 0,
            communication_ns: 0,
            scheduler_ns: 0,
            upstream_ns: 0,
            downstream_ns: 0,
        }
    }

    /// The parts, by name.
    #[must_use]
    pub const fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("busy", self.busy_ns),
            ("fill", self.fill_ns),
            ("drain", self.drain_ns),
            ("communication", self.communication_ns),
            ("scheduler", self.scheduler_ns),
            ("upstream", self.upstream_ns),
            ("downstream", self.downstream_ns),
            ("dependency", self.dependency_ns),
            ("no_work", self.no_work_ns),
        ]
    }

    /// The parts as fractions of the window, by name. They sum to 1: an empty window counts as time without work.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn fractions(&self) -> [(&'static str, f64); 9] {
        self.parts().map(|(name, ns)| {
            let fraction = match self.window_ns {
                0 if name == "no_work" => 1.0,
                0 => 0.0,
                window => ns as f64 / window as f64,
            };
            (name, fraction)
        })
    }
}
