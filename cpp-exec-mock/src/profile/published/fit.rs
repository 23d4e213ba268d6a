//! The fit: what a profile may change, so that its points of fit come out as published.

use cpp_sched::Attos;
use serde::Deserialize;

use super::{Point, Published, measure};
use crate::profile::{Profile, ProfileError, derive};

/// Something that a fit may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Free {
    /// The constant that each stage pays for each batch.
    C0,
    /// The part of the constant that is shared out like the layers: reading weights.
    C0Shared,
    /// Per token.
    C1,
    /// Per pair.
    C2,
    /// Per token of history.
    C4,
    /// `c1`, `c2` and `c4` by one factor: their ratios are known, the speed is not.
    Speed,
    /// The part of the peak that matrix products reach; whole percent.
    LinearPercent,
    /// The part of the memory bandwidth that is reached; whole percent.
    BandwidthPercent,
    /// The spread of prompt lengths in the workload.
    InputSigma,
}

/// What came of a fit.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fitted {
    /// The profile with what was fitted.
    pub profile: Profile,
    /// The points, and the workload with what was fitted.
    pub published: Published,
    /// What was free: the value in the file, and the fitted one. Coefficients are nanoseconds of the whole model (`c0`: of each stage).
    pub values: Vec<(Free, f64, f64)>,
}

/// Steps at most.
const STEPS: usize = 20;
/// A coefficient is changed by this part to see what depends on it.
const PROBE: f64 = 0.02;

impl Free {
    /// Its name in a profile's file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::C0 => "c0",
            Self::C0Shared => "c0_shared",
            Self::C1 => "c1",
            Self::C2 => "c2",
            Self::C4 => "c4",
            Self::Speed => "speed",
            Self::LinearPercent => "linear_percent",
            Self::BandwidthPercent => "bandwidth_percent",
            Self::InputSigma => "input_sigma",
        }
    }

    const fn is_percent(self) -> bool {
        matches!(self, Self::LinearPercent | Self::BandwidthPercent)
    }

    /// Its value, in the units of [`Fitted::values`]; the speed is that of `c1`.
    fn value(self, profile: &Profile, published: &Published) -> f64 {
        let ns = |attos: Attos| attos.0 as f64 / 1e9;
        match self {
            Self::C0 => ns(profile.per_batch),
            Self::C0Shared => ns(profile.whole.c0),
            Self::C1 | Self::Speed => ns(profile.whole.c1),
            Self::C2 => ns(profile.whole.c2),
            Self::C4 => ns(profile.whole.c4),
            Self::LinearPercent => profile.device.as_ref().map_or(0.0, |device| device.linear_percent.into()),
            Self::BandwidthPercent => profile.device.as_ref().map_or(0.0, |device| device.bandwidth_percent.into()),
            Self::InputSigma => published.workload.map_or(0.0, |workload| workload.input_sigma),
        }
    }

    /// Multiplies it.
    fn scale(self, factor: f64, profile: &mut Profile, published: &mut Published) {
        let times = |attos: &mut Attos| *attos = Attos((attos.0 as f64 * factor).round() as u128);
        match self {
            Self::C0 => times(&mut profile.per_batch),
            Self::C0Shared => times(&mut profile.whole.c0),
            Self::C1 => times(&mut profile.whole.c1),
            Self::C2 => times(&mut profile.whole.c2),
            Self::C4 => times(&mut profile.whole.c4),
            Self::Speed => [&mut profile.whole.c1, &mut profile.whole.c2, &mut profile.whole.c4].into_iter().for_each(times),
            Self::InputSigma => published.workload.iter_mut().for_each(|workload| workload.input_sigma *= factor),
            Self::LinearPercent | Self::BandwidthPercent => {}
        }
    }

    fn set_percent(self, percent: u32, profile: &mut Profile) {
        if let Some(device) = &mut profile.device {
            match self {
                Self::LinearPercent => device.linear_percent = percent,
                _ => device.bandwidth_percent = percent,
            }
        }
    }
}

/// Fits what is free to the points of fit: least squares of the logarithms of computed over published, by Gauss and Newton's method from the values in the file;
/// percentages by trying all of them. None if nothing is free.
///
/// # Errors
/// As [`measure`](fn@measure); fewer points than free values.
pub fn fit(profile: &Profile, published: &Published) -> Result<Option<Fitted>, ProfileError> {
    if published.free.is_empty() {
        return Ok(None);
    }
    if published.fit.len() < published.free.len() {
        return Err(profile.bad(format!("published: {} points cannot fit {} values", published.fit.len(), published.free.len())));
    }
    let mut now = (profile.clone(), published.clone());
    let (percents, coefficients): (Vec<Free>, Vec<Free>) = published.free.iter().partition(|free| free.is_percent());
    for _ in 0..if percents.is_empty() { 0 } else { 3 } {
        for &free in &percents {
            let mut best = (f64::INFINITY, 1);
            for percent in 1..=100 {
                free.set_percent(percent, &mut now.0);
                let sum: f64 = residuals(&now.0, &now.1)?.iter().map(|r| r * r).sum();
                if sum < best.0 {
                    best = (sum, percent);
                }
            }
            free.set_percent(best.1, &mut now.0);
        }
    }
    if let (false, Some(model), Some(device)) = (percents.is_empty(), &now.0.model, &now.0.device) {
        now.0.whole = derive(model, device);
    }
    if !coefficients.is_empty() {
        gauss_newton(&mut now, &coefficients)?;
    }
    let value = |free: &Free| (*free, free.value(profile, published), free.value(&now.0, &now.1));
    let values = published.free.iter().map(value).collect();
    Ok(Some(Fitted { profile: now.0, published: now.1, values }))
}

fn published_workload(published: &Published) -> bool {
    published.fit.iter().any(|point| point.workload.is_some())
}

/// Logarithms of computed over published.
fn residuals(profile: &Profile, published: &Published) -> Result<Vec<f64>, ProfileError> {
    let one = |point: &Point| measure(profile, published, point).map(|ns| (ns / point.published_ns()).ln());
    published.fit.iter().map(one).collect()
}

fn gauss_newton(now: &mut (Profile, Published), free: &[Free]) -> Result<(), ProfileError> {
    let scaled = |now: &(Profile, Published), steps: &[f64]| {
        let mut next = now.clone();
        free.iter().zip(steps).for_each(|(free, step)| free.scale(step.exp(), &mut next.0, &mut next.1));
        next
    };
    let squares = |r: &[f64]| r.iter().map(|r| r * r).sum::<f64>();
    let mut at = residuals(&now.0, &now.1)?;
    // Statistics over drawn workloads move in steps when requests change places: nearer than this they cannot be told from the published ones.
    let near = if published_workload(&now.1) { 2e-3 } else { 1e-9 };
    for _ in 0..STEPS {
        if at.iter().all(|r| r.abs() < near) {
            break;
        }
        let mut slopes = Vec::with_capacity(free.len());
        for i in 0..free.len() {
            let mut probe = vec![0.0; free.len()];
            probe[i] = PROBE;
            let next = scaled(now, &probe);
            let moved = residuals(&next.0, &next.1)?;
            slopes.push(moved.iter().zip(&at).map(|(a, b)| (a - b) / PROBE).collect::<Vec<f64>>());
        }
        let Some(step) = solve(&slopes, &at) else { break };
        // Half as far as long as it does not get better: what is measured has steps of its own.
        let mut better = None;
        for halvings in 0..6 {
            let step: Vec<f64> = step.iter().map(|s| s.clamp(-0.7, 0.7) / f64::from(1u32 << halvings)).collect();
            let next = scaled(now, &step);
            let r = residuals(&next.0, &next.1)?;
            if squares(&r) < squares(&at) {
                better = Some((next, r, step));
                break;
            }
        }
        let Some((next, r, step)) = better else { break };
        (*now, at) = (next, r);
        if step.iter().all(|s| s.abs() < 1e-6) {
            break;
        }
    }
    Ok(())
}

/// The step that makes the residuals smallest: `(J'J) s = -J'r`. None if the points do not tell the values apart.
fn solve(slopes: &[Vec<f64>], at: &[f64]) -> Option<Vec<f64>> {
    let n = slopes.len();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut rows: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| dot(&slopes[i], &slopes[j])).chain([-dot(&slopes[i], at)]).collect()).collect();
    for i in 0..n {
        let pivot = (i..n).max_by(|&a, &b| rows[a][i].abs().total_cmp(&rows[b][i].abs()))?;
        rows.swap(i, pivot);
        if rows[i][i].abs() < 1e-12 {
            return None;
        }
        let row = rows[i].clone();
        for (_, other) in rows.iter_mut().enumerate().filter(|(j, _)| *j != i) {
            let factor = other[i] / row[i];
            other.iter_mut().zip(&row).for_each(|(a, b)| *a -= factor * b);
        }
    }
    Some((0..n).map(|i| rows[i][n] / rows[i][i]).collect())
}
