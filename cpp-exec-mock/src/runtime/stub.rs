//! A device that computes nothing and takes a given time.

use std::convert::Infallible;
use std::time::{Duration, Instant};

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

/// How much sooner than asked for a thread is woken: a system wakes threads late, by its timer's slack at least (50 us on Linux).
const SPIN: Duration = Duration::from_micros(300);

/// Waits for so long, and hardly longer: sleeps, and looks at the clock for the last bit of it.
pub(super) fn rest(time: Duration) {
    let end = Instant::now() + time;
    std::thread::sleep(time.saturating_sub(SPIN));
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

impl Device for Stub {
    type Activations = ();
    type Error = Infallible;

    fn run(&mut self, work: &Work, (): &(), (): &mut (), samples: &mut Vec<RowSample>) -> Result<(), Infallible> {
        rest(self.time(work.tokens.len()));
        if self.samples {
            let sampling = (0..).zip(&work.rows).filter(|(_, row)| row.sampling.is_some());
            samples.extend(sampling.map(|(row, _)| RowSample { row, tokens: vec![Self::TOKEN] }));
        }
        Ok(())
    }
}
