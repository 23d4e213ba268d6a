//! A device that computes nothing and takes a given time.

use std::convert::Infallible;
use std::time::Duration;

use cpp_sched::TokenId;

use super::work::{Device, RowSample, Work};

/// Stands for a stage of known speed: to see how well a pipeline overlaps, apart from what it computes. Every sampled token is [`Stub::TOKEN`].
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a formula of two terms, and where it stands")]
pub struct Stub {
    /// What each batch takes.
    pub per_batch: Duration,
    /// What each token of it takes.
    pub per_token: Duration,
    /// Whether it samples: the last stage does.
    pub samples: bool,
}

impl Stub {
    /// What it samples.
    pub const TOKEN: TokenId = 1;

    /// What a batch of so many tokens takes.
    #[must_use]
    pub fn time(&self, tokens: usize) -> Duration {
        self.per_batch + self.per_token * u32::try_from(tokens).unwrap_or(u32::MAX)
    }
}

impl Device for Stub {
    type Activations = ();
    type Error = Infallible;

    fn run(&mut self, work: &Work, (): &(), (): &mut (), samples: &mut Vec<RowSample>) -> Result<(), Infallible> {
        std::thread::sleep(self.time(work.tokens.len()));
        if self.samples {
            let sampling = (0..).zip(&work.rows).filter(|(_, row)| row.sampling.is_some());
            samples.extend(sampling.map(|(row, _)| RowSample { row, tokens: vec![Self::TOKEN] }));
        }
        Ok(())
    }
}
