//! What is told of a run of a study.

use super::draw::Job;
use super::play::Fate;

/// Figures over some of the requests of a run. Times are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Requests.
    pub count: usize,
    /// Refused at submit.
    pub rejected: usize,
    /// Served as relegated ones.
    pub relegated: usize,
    /// Met every target that they have; those refused met none.
    pub met: usize,
    /// First token within its target.
    pub met_ttft: usize,
    /// Mean time to the first token, over those that got one.
    pub ttft_mean_s: f64,
    /// Its median.
    pub ttft_p50_s: f64,
    /// Its 99th percentile (the next larger one).
    pub ttft_p99_s: f64,
    /// Mean time per output token after the first.
    pub tpot_mean_s: f64,
    /// Its 99th percentile over requests.
    pub tpot_p99_s: f64,
}

impl Summary {
    /// Over the requests that `which` picks.
    #[must_use]
    pub fn of(jobs: &[Job], fates: &[Fate], which: impl Fn(&Job) -> bool) -> Self {
        let mut summary = Self::default();
        let (mut ttfts, mut tpots) = (Vec::new(), Vec::new());
        for (job, fate) in jobs.iter().zip(fates).filter(|(job, _)| which(job)) {
            summary.count += 1;
            summary.rejected += usize::from(fate.rejected);
            summary.relegated += usize::from(fate.relegated);
            summary.met_ttft += usize::from(fate.met_ttft(job));
            summary.met += usize::from(fate.met(job));
            ttfts.extend(fate.ttft_ns(job).map(|ttft| ttft as f64 / 1e9));
            tpots.extend(fate.tpot_ns().map(|tpot| tpot as f64 / 1e9));
        }
        ttfts.sort_unstable_by(f64::total_cmp);
        summary.ttft_mean_s = mean(&ttfts);
        summary.ttft_p50_s = percentile(&ttfts, 0.5);
        summary.ttft_p99_s = percentile(&ttfts, 0.99);
        tpots.sort_unstable_by(f64::total_cmp);
        summary.tpot_mean_s = mean(&tpots);
        summary.tpot_p99_s = percentile(&tpots, 0.99);
        summary
    }

    /// Part of the requests that met every target.
    #[must_use]
    pub fn attainment(&self) -> f64 {
        self.met as f64 / self.count.max(1) as f64
    }

    /// Part of the requests whose first token came in time.
    #[must_use]
    pub fn ttft_attainment(&self) -> f64 {
        self.met_ttft as f64 / self.count.max(1) as f64
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}
