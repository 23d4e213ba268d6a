//! What a profile was fitted on, and what else was published of the same machine: points of the fit and points of prediction, apart.
//!
//! A profile's file may have a section `[published]`. The fit looks at the points under `fit` alone; those under `prediction` are then computed and
//! compared, so that how far off they are is an out-of-sample error.
//!
//! ```toml
//! [published]
//! source = "where the measurements were published"
//! free = ["c1", "c2"]                     # what the fit may change; all else stays as it is in the file
//!
//! [[published.fit]]
//! what = "TTFT, 128K tokens"
//! ms = 10_540
//! # One prompt alone: layers of each stage, its tokens, and how it was cut.
//! prompt = { layers = [11, 11, 12, 12, 12, 12, 12, 12], tokens = 131_072, chunks = { rule = "sglang", base = 18_432, smooth_percent = 80 } }
//!
//! [[published.prediction]]
//! what = "reading 8192 x 8192 weights"
//! us = 35.1
//! gemm = { m = 1, n = 8192, k = 8192 }    # a matrix product on [device]
//! ```
//!
//! Points with `workload = { mode = "request", measure = "ttft_mean" }` are measured over several seeds of the drawn workload in `[published.workload]`.

mod cut;
mod fit;
mod measure;

use std::fmt;

use serde::Deserialize;

use super::{ProfileError, builtin};

pub use cut::CutRule;
pub use fit::{Fitted, Free, fit};
pub use measure::{Measure, Ratios, measure, ratios};

/// The section `[published]` of a profile's file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Published {
    /// Where the measurements were published, and what had to be assumed.
    pub source: String,
    /// What the fit may change.
    #[serde(default)]
    pub free: Vec<Free>,
    /// The points that the fit sees.
    #[serde(default)]
    pub fit: Vec<Point>,
    /// The points that it does not.
    #[serde(default)]
    pub prediction: Vec<Point>,
    /// What the points of a workload were measured on.
    pub workload: Option<Drawn>,
}

/// One published measurement.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Point {
    /// What was measured.
    pub what: String,
    /// The published time in milliseconds; this or `us`.
    ms: Option<f64>,
    us: Option<f64>,
    /// One prompt alone.
    pub prompt: Option<Prompt>,
    /// A matrix product on the profile's device.
    pub gemm: Option<Gemm>,
    /// A number over a whole workload.
    pub workload: Option<Quantity>,
}

/// One prompt alone in the pipeline: the time to its first token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Prompt {
    /// Layers of each stage, or parts of the model in proportion.
    pub layers: Vec<u32>,
    /// Of the prompt.
    pub tokens: u32,
    /// How it is cut.
    pub chunks: CutRule,
}

/// A product of an `m x k` and a `k x n` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, clippy::exhaustive_structs, reason = "the usual names")]
pub struct Gemm {
    pub m: u64,
    pub n: u64,
    pub k: u64,
}

/// A number over a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Quantity {
    /// `request` or `chunk`: how the scheduler of the measured engine pipelined.
    pub mode: Pipelined,
    /// Which number.
    pub measure: Measure,
}

/// How much of a request may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::exhaustive_enums, reason = "before and after")]
pub enum Pipelined {
    /// The next chunk waits for the last one to come back.
    Request,
    /// The next chunk follows at once.
    Chunk,
}

/// A workload of which the totals are known.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Drawn {
    /// Pipeline stages.
    pub stages: u32,
    /// Tokens in a batch at most.
    pub max_batch_tokens: u32,
    /// Requests, Poisson arrivals.
    pub requests: u32,
    /// Per second.
    pub rate: f64,
    /// Of all prompts together.
    pub prompt_tokens: u32,
    /// Of all outputs together.
    pub output_tokens: u32,
    /// Standard deviation of the logarithm of prompt lengths.
    pub input_sigma: f64,
    /// The same of output lengths.
    pub output_sigma: f64,
    /// First seed of the fit.
    pub fit_seed: u64,
    /// First seed of the prediction; the seeds of the fit are not among them.
    pub predict_seed: u64,
    /// How many seeds each.
    pub seeds: u32,
}

#[derive(Deserialize)]
struct File {
    published: Option<Published>,
}

impl Published {
    /// That of a built-in profile; none if it has none.
    ///
    /// # Errors
    /// There is no such profile, or a point is wrong.
    pub fn find(name: &str) -> Result<Option<Self>, ProfileError> {
        let Some(text) = builtin::text(name) else {
            let problem = format!("no built-in profile: there are {}", builtin::builtin_names().join(", "));
            return Err(ProfileError::new(name, None, problem));
        };
        Self::parse(text, name)
    }

    /// That of a profile's text. `place` stands for it in errors.
    ///
    /// # Errors
    /// What is wrong with which point.
    pub fn parse(text: &str, place: &str) -> Result<Option<Self>, ProfileError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() as u64 + 1);
            ProfileError::new(place, line, error.message().replace('\n', " "))
        })?;
        if let Some(published) = &file.published {
            for point in published.fit.iter().chain(&published.prediction) {
                point
                    .check(published)
                    .map_err(|problem| ProfileError::new(place, None, format!("published: {}: {problem}", point.what)))?;
            }
        }
        Ok(file.published)
    }
}

impl Point {
    /// The published time, in nanoseconds.
    #[must_use]
    pub fn published_ns(&self) -> f64 {
        self.ms.map(|ms| ms * 1e6).or_else(|| self.us.map(|us| us * 1e3)).unwrap_or(f64::NAN)
    }

    fn check(&self, published: &Published) -> Result<(), &'static str> {
        if self.ms.is_some() == self.us.is_some() || !(self.published_ns() > 0.0 && self.published_ns() < 1e15) {
            return Err("one of ms and us must be a time above 0");
        }
        if u8::from(self.prompt.is_some()) + u8::from(self.gemm.is_some()) + u8::from(self.workload.is_some()) != 1 {
            return Err("exactly one of prompt, gemm and workload says what was measured");
        }
        if self.workload.is_some() && published.workload.is_none() {
            return Err("[published.workload] is missing");
        }
        if let Some(prompt) = &self.prompt
            && (prompt.tokens == 0 || prompt.tokens > 1 << 26 || !prompt.chunks.is_valid())
        {
            return Err("a prompt has 1 to 2^26 tokens, and chunks of at least 64");
        }
        Ok(())
    }
}

impl fmt::Display for Free {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
