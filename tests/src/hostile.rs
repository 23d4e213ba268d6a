//! A policy that answers whatever harms: the core must keep every rule all the same.

use std::sync::atomic::{AtomicU64, Ordering};

use cpp_sched::{Policy, Rank, RequestView};

use crate::truth::mix;

/// Its answers are drawn anew at each question, so it changes its mind all the time.
#[derive(Debug)]
pub struct Hostile {
    seed: u64,
    asked: AtomicU64,
}

impl Hostile {
    /// One of many; equal seeds and equal questions give equal answers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, asked: AtomicU64::new(0) }
    }
}

impl Policy for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        let draw = mix(self.seed, self.asked.fetch_add(1, Ordering::Relaxed));
        let small = i128::from(draw >> 56);
        // A habit for each seed, and exceptions to it.
        match if draw.is_multiple_of(5) { draw >> 8 } else { self.seed } % 9 {
            0 => Rank::NotNow { until_ns: u64::MAX },
            1 => Rank::NotNow { until_ns: view.now_ns.saturating_add(draw >> 52) },
            2 => Rank::NotNow { until_ns: draw >> 50 },
            // Whoever has come furthest waits for those who have not begun.
            3 => Rank::Key(-i128::from(view.prompt_left)),
            4 => Rank::Key(-i128::from(view.seq)),
            5 => Rank::Key([i128::MIN, i128::MAX, 0, small][(draw >> 60) as usize % 4]),
            6 => Rank::Falling {
                zero_ns: [i128::MIN, i128::MAX, 0, small][(draw >> 60) as usize % 4],
                per: [0, 1, u64::MAX, draw][(draw >> 58) as usize % 4],
            },
            7 => Rank::Falling { zero_ns: i128::from(view.now_ns) + small - 100, per: (draw >> 40) % 50 },
            _ => Rank::Key(small),
        }
    }
}
