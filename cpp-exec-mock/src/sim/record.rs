//! What is kept of each request during a run, and the token account.

use super::coverage::Coverage;

/// No time yet.
pub(crate) const NEVER: u64 = u64::MAX;
/// Not admitted: the next row may start anywhere.
const ANYWHERE: u32 = u32::MAX;

/// One request during a run.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) arrival_ns: u64,
    /// When its first batch was decided.
    pub(crate) first_scheduled_ns: u64,
    pub(crate) first_token_ns: u64,
    pub(crate) last_token_ns: u64,
    /// When the newest token that is scheduled to be sampled is back.
    pub(crate) token_back_ns: u64,
    /// When the piece with its token was back, of the batch that is being completed.
    pub(crate) piece_back_ns: u64,
    pub(crate) computed: u64,
    recomputed: u64,
    ran: Coverage,
    /// Where its next row starts.
    next: u32,
    pub(crate) outputs: u32,
    /// The output that is a stop token; 0 = none.
    pub(crate) stop_after: u32,
    /// Whether its end was told.
    pub(crate) ended: bool,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self {
            arrival_ns: 0,
            first_scheduled_ns: NEVER,
            first_token_ns: NEVER,
            last_token_ns: NEVER,
            token_back_ns: 0,
            piece_back_ns: 0,
            computed: 0,
            recomputed: 0,
            ran: Coverage::default(),
            next: ANYWHERE,
            outputs: 0,
            stop_after: 0,
            ended: false,
        }
    }

    /// Whether the next token of it is its last one, whatever the scheduler allows.
    pub(crate) const fn is_last_output(&self) -> bool {
        self.outputs + 1 == self.stop_after
    }

    /// A batch runs `start..end`. The first row of an admission may start anywhere (what is before it was found in the cache), each other one
    /// where the one before it has ended; else the place where it should have started comes back as an error.
    pub(crate) fn runs(&mut self, start: u32, end: u32) -> Result<(), u32> {
        if self.next != ANYWHERE && self.next != start {
            return Err(self.next);
        }
        self.next = end;
        self.computed += u64::from(end - start);
        self.recomputed += u64::from(self.ran.add(start, end));
        Ok(())
    }

    /// It lost its blocks.
    pub(crate) const fn preempted(&mut self) {
        self.next = ANYWHERE;
    }

    /// Rows in flight were lost at `now_ns`: it goes on where it `stands`, if it is still there, and no token of it is on its way.
    pub(crate) fn rolled_back(&mut self, stands: Option<u32>, now_ns: u64) {
        if let Some(stands) = stands.filter(|_| self.next != ANYWHERE) {
            self.next = stands;
        }
        self.token_back_ns = self.token_back_ns.min(now_ns);
    }

    /// Adds a finished request with a prompt of `prompt` tokens.
    pub(crate) fn add_to(&self, prompt: u32, tally: &mut TokenTally) {
        let needed = u64::from(prompt) + u64::from(self.outputs) - 1;
        let limit = u32::try_from(needed).unwrap_or(u32::MAX);
        let ran = u64::from(self.ran.below(limit));
        tally.requests += 1;
        tally.prompt += u64::from(prompt);
        tally.output += u64::from(self.outputs);
        tally.computed += self.computed;
        // Repeats, and what lies past the end.
        tally.recomputed += self.recomputed + u64::from(self.ran.below(u32::MAX)) - ran;
        tally.cached += needed - ran;
        tally.unreached += needed.saturating_sub(u64::from(self.next));
    }
}

/// Tokens over the finished requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenTally {
    /// Finished requests.
    pub requests: u64,
    /// Of their prompts.
    pub prompt: u64,
    /// Needed positions that no batch of the request ever ran: found in the prefix cache.
    pub cached: u64,
    /// Positions that batches ran.
    pub computed: u64,
    /// Of these the surplus: repeats after a preemption, steps past the end.
    pub recomputed: u64,
    /// Delivered.
    pub output: u64,
    /// Positions behind the last row that a request needed to end as it did; other than 0 only by a bug.
    unreached: u64,
}

impl TokenTally {
    /// Whether `computed - recomputed = prompt - cached + output - requests`, and every request went as far as its outputs say.
    #[must_use]
    pub const fn balances(&self) -> bool {
        self.unreached == 0 && self.computed + self.cached + self.requests == self.prompt + self.output + self.recomputed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(prompt: u32, outputs: u32, admissions: &[&[(u32, u32)]]) -> TokenTally {
        let mut record = Record::new();
        record.outputs = outputs;
        for (i, rows) in admissions.iter().enumerate() {
            if i > 0 {
                record.preempted();
            }
            for &(start, end) in *rows {
                assert_eq!(record.runs(start, end), Ok(()));
            }
        }
        let mut tally = TokenTally::default();
        record.add_to(prompt, &mut tally);
        tally
    }

    #[test]
    fn hits_repeats_and_steps_past_the_end_are_told_apart() {
        let plain = tally(100, 3, &[&[(0, 60), (60, 100), (100, 101), (101, 102)]]);
        assert_eq!((plain.computed, plain.cached, plain.recomputed, plain.balances()), (102, 0, 0, true));
        let hit = tally(100, 3, &[&[(48, 100), (100, 102)]]);
        assert_eq!((hit.computed, hit.cached, hit.recomputed, hit.balances()), (54, 48, 0, true));
        // Preempted at 60 after a hit of 16; comes back with a hit of 64: positions 60..64 never ran.
        let twice = tally(100, 3, &[&[(16, 60)], &[(64, 102)]]);
        assert_eq!((twice.computed, twice.cached, twice.recomputed, twice.balances()), (82, 20, 0, true));
        let repeat = tally(100, 3, &[&[(16, 60)], &[(0, 102)]]);
        assert_eq!((repeat.computed, repeat.cached, repeat.recomputed, repeat.balances()), (146, 0, 44, true));
        let past = tally(100, 3, &[&[(0, 100), (100, 101), (101, 102), (102, 103)]]);
        assert_eq!((past.computed, past.recomputed, past.balances()), (103, 1, true));
    }

    #[test]
    fn a_request_that_ends_before_its_rows_do_not_balance() {
        assert!(!tally(100, 3, &[&[(0, 101)]]).balances());
    }

    #[test]
    fn a_row_continues_the_one_before_it() {
        let mut record = Record::new();
        assert_eq!((record.runs(5, 10), record.runs(11, 12)), (Ok(()), Err(10)));
        record.preempted();
        assert_eq!(record.runs(2, 4), Ok(()));
    }
}
