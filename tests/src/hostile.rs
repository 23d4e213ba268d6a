//! A policy that answers whatever harms: the core must keep every rule all the same.

use std::sync::atomic::{AtomicU64, Ordering};

use cpp_sched::{Policy, Rank, RequestView};

use crate::driver::{Driver, Failure};
use crate::truth::mix;
use crate::world::{Kind, World};

/// Bytes of an input of [`run`] before those of the world.
pub const ANSWERS: usize = 32;

/// Runs a world under a hostile policy: the first [`ANSWERS`] bytes are two of deferral (in units of 2 ns, at most) and the answers, taken in turn; the
/// others are the world.
///
/// # Errors
/// The rule that was broken, and the world, as text.
pub fn run(bytes: &[u8]) -> Result<(), String> {
    let (answers, world) = bytes.split_at(bytes.len().min(ANSWERS));
    let mut world = World::from_bytes(Kind::Any, world);
    let (deferral, answers) = answers.split_at(answers.len().min(2));
    world.config.max_deferral_ns = deferral.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)) * 2;
    let policy = Box::new(Hostile::with_answers(answers));
    let failure = |text: String| Failure { op: None, text };
    let done =
        Driver::with_policy(world.config, policy).map_err(|error| failure(error.to_string())).and_then(|driver| driver.run_through(&world));
    done.map(drop).map_err(|failure| format!("{failure}\n{world:?}"))
}

/// Its answers are drawn anew at each question, so it changes its mind all the time.
#[derive(Debug)]
pub struct Hostile {
    seed: u64,
    /// Which of its habits each answer follows, in turn; none: as the seed has it.
    habits: Vec<u8>,
    asked: AtomicU64,
}

impl Hostile {
    /// One of many; equal seeds and equal questions give equal answers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, habits: Vec::new(), asked: AtomicU64::new(0) }
    }

    /// One whose answers are given: a byte each, over and over.
    #[must_use]
    pub fn with_answers(answers: &[u8]) -> Self {
        Self { seed: answers.first().copied().unwrap_or_default().into(), habits: answers.to_vec(), asked: AtomicU64::new(0) }
    }
}

impl Policy for Hostile {
    fn name(&self) -> &'static str {
        "hostile"
    }

    fn rank(&self, view: &RequestView) -> Rank {
        let turn = self.asked.fetch_add(1, Ordering::Relaxed);
        let draw = mix(self.seed, turn);
        let small = i128::from(draw >> 56);
        // A habit for each seed, and exceptions to it.
        let habit = match self.habits.get(turn as usize % self.habits.len().max(1)) {
            Some(&habit) => habit.into(),
            None if draw.is_multiple_of(5) => draw >> 8,
            None => self.seed,
        };
        match habit % 9 {
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
