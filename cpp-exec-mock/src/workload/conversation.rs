//! Conversations: the next turn comes some time after the end of the one before it, and reads all that was said.

use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, OpenClosed01};

use super::clients::{NEVER, exponential_ns};
use super::synthetic::{check, out_of_range, stream};
use super::{Prefix, WorkItem, Workload, WorkloadError};

/// How requests follow each other.
///
/// Without `users` conversations begin by themselves, at [`rate`](super::Synthetic::rate) requests per second in the mean (so long as the machine keeps
/// up). With them the loop is closed: each user has one request at most at a time and goes from one conversation to the next, so that the load
/// follows the machine.
///
/// ```
/// use cpp_exec_mock::workload::{Sessions, Synthetic, Workload};
/// let sessions = Some(Sessions { users: Some(10), ..Sessions::default() });
/// let workload = Workload::synthetic(&Synthetic { requests: 100, sessions, ..Synthetic::default() })?;
/// let own = (0..100).filter(|&i| workload.follows_after_ns(i).is_none()).count();
/// assert_eq!(own, 10, "one for each user, the others follow");
/// # Ok::<(), cpp_exec_mock::workload::WorkloadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sessions {
    /// Mean turns of a conversation, from 1; their number is geometric. Default 5.
    pub turns_mean: f64,
    /// Mean time from the end of an answer to the next request, exponential, in nanoseconds. Default 10 s.
    pub think_ns: u64,
    /// Users, at least 1. Default none: an open loop.
    pub users: Option<u32>,
    /// A conversation ends before its prompt and output would be longer than this. Default 131,072 tokens.
    pub max_context: u32,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { turns_mean: 5.0, think_ns: 10_000_000_000, users: None, max_context: 1 << 17 }
    }
}

/// Draws conversations.
pub(super) struct Conversation<'a> {
    sessions: &'a Sessions,
    requests: u32,
    turns: ChaCha8Rng,
    thoughts: ChaCha8Rng,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(sessions: &'a Sessions, requests: u32, seed: u64) -> Result<Self, WorkloadError> {
        let mean = sessions.turns_mean;
        check("turns", mean, (1.0..=1e6).contains(&mean), "must be from 1 to 1e6")?;
        if sessions.users == Some(0) {
            return Err(out_of_range("users", "must be at least 1"));
        }
        Ok(Self { sessions, requests, turns: stream(seed, 4), thoughts: stream(seed, 5) })
    }

    /// Fills an empty workload. `arrival_ns` draws the next beginning of a conversation, `lengths` what is asked and answered in one turn.
    pub(super) fn draw(
        &mut self,
        workload: &mut Workload,
        arrival_ns: &mut dyn FnMut() -> Result<u64, WorkloadError>,
        lengths: &mut dyn FnMut() -> (u32, u32),
    ) -> Result<(), WorkloadError> {
        match self.sessions.users {
            None => {
                while self.left(workload) > 0 {
                    let begins_ns = arrival_ns()?;
                    self.conversation(workload, Some(begins_ns), self.left(workload), lengths);
                }
            }
            Some(users) => {
                let users = users.min(self.requests);
                // Each has thought about its first request.
                let mut begins: Vec<u64> = (0..users).map(|_| self.think_ns()).collect();
                begins.sort_unstable();
                for (user, begins_ns) in (0..users).zip(begins) {
                    let mut left = self.requests / users + u32::from(user < self.requests % users);
                    let mut own = Some(begins_ns);
                    while left > 0 {
                        left -= self.conversation(workload, own.take(), left, lengths);
                    }
                }
            }
        }
        Ok(())
    }

    fn left(&self, workload: &Workload) -> u32 {
        self.requests - workload.items.len() as u32
    }

    fn think_ns(&mut self) -> u64 {
        exponential_ns(OpenClosed01.sample(&mut self.thoughts), self.sessions.think_ns).min(NEVER - 1)
    }

    /// Adds a conversation of `most` turns at most, which begins at a time of its own or after the item before it. Returns its turns.
    fn conversation(&mut self, workload: &mut Workload, begins_ns: Option<u64>, most: u32, lengths: &mut dyn FnMut() -> (u32, u32)) -> u32 {
        // The items of a chain stand together, under the time at which it begins.
        let arrival_ns = begins_ns.or_else(|| workload.items.last().map(|item| item.arrival_ns)).unwrap_or(0);
        let (mut said, mut turn) = (0u32, 0);
        let goes_on = 1.0 - 1.0 / self.sessions.turns_mean;
        loop {
            let (asked, output_tokens) = lengths();
            let input_tokens = said.saturating_add(asked);
            if turn > 0 && input_tokens.saturating_add(output_tokens) > self.sessions.max_context {
                return turn;
            }
            let index = workload.items.len() as u32;
            let prefix = if turn == 0 { Prefix::New } else { Prefix::Continues { item: index - 1, tokens: said } };
            let follows = turn > 0 || begins_ns.is_none();
            let think_ns = if follows { self.think_ns() } else { NEVER };
            workload.clients.think_ns.push(think_ns);
            workload.items.push(WorkItem { arrival_ns, priority: 0, input_tokens, output_tokens, tenant: None, prefix });
            said = input_tokens.saturating_add(output_tokens);
            turn += 1;
            let uniform: f64 = OpenClosed01.sample(&mut self.turns);
            if turn == most || uniform > goes_on {
                return turn;
            }
        }
    }
}
