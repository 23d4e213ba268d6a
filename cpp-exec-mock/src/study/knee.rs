//! The heaviest load that a scheduler can take.

use cpp_sched::Config;

use super::draw::Job;
use super::file::{Study, StudyError};
use super::play::{Fate, play_unless};
use super::summary::Summary;

/// Part of the study's time that what is left at its end may take, for a load to count as sustained.
const LEFT: f64 = 0.05;

/// When a load counts as taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knee {
    /// At most 1 % of the requests miss a target.
    Misses,
    /// The same, and a twentieth of the study's time after the last arrival everything is served: patient requests hide no queue that grows.
    Sustained,
}

impl Knee {
    fn holds(self, jobs: &[Job], fates: &[Fate], seconds: f64) -> bool {
        let last = jobs.last().map_or(0, |job| job.arrival_ns);
        let end = fates.iter().map(|fate| fate.last_token_ns).max().unwrap_or(0);
        self == Self::Misses || end.saturating_sub(last) as f64 <= LEFT * seconds * 1e9
    }
}

/// Where a knee is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KneePoint {
    /// The load, as a part of the measured capacity.
    pub load: f64,
    /// What became of the requests there.
    pub summary: Summary,
}

/// The largest load that counts as taken, for one seed's draws, by bisection between 0 and 1.28 to a hundredth; `rate` is that of a
/// load of 1. A seed draws the same requests at every load, at other times.
///
/// # Errors
/// As [`play_unless`].
pub fn knee(study: &Study, rate: f64, seed: u64, config: Config, kind: Knee) -> Result<KneePoint, StudyError> {
    let (machine, _) = study.machine()?;
    let seconds: f64 = study.phases.iter().map(|phase| phase.seconds).sum();
    let (mut best, mut high) = (KneePoint::default(), 1.28);
    for _ in 0..7 {
        let middle = f64::midpoint(best.load, high);
        let jobs = study.draw(seed, rate * middle)?;
        let fates = play_unless(&jobs, &machine, config, jobs.len() / 100)?;
        match fates.filter(|fates| kind.holds(&jobs, fates, seconds)) {
            Some(fates) => best = KneePoint { load: middle, summary: Summary::of(&jobs, &fates, |_| true) },
            None => high = middle,
        }
    }
    Ok(best)
}
