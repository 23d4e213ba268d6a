//! How much longer the pipeline was busy with prompts than it had to be.
//!
//! A *busy period* begins when a prompt arrives while none is unfinished, and ends when the last piece of the last prompt leaves the last stage. For
//! each the least time is known: whatever was run had to pass every stage, so with W the work of a set of rows on one stage and c0 what a
//! batch costs beside it, no cutting and no order takes less than `(sqrt(W) + sqrt((P-1)*c0))^2` from the moment when the first of them could begin
//! ([`cpp_sched::planner::lower_bound`]). That holds for the prompts from any arrival on; the latest such end counts. Decodes that ran meanwhile
//! are work, too. Regret is what was above that.
//!
//! A prompt whose client hangs up needs no more work; batches that are lost have done none, so what faults cost is regret.
//!
//! It is a lower limit of the optimum: one prompt alone on equal stages comes within a few percent of it (`cpp-sim plan` has the exact optimum).
//! History that is read again for each chunk (`c4`), tiles and floors are left out, and so are hops but for their latency: they make
//! regret larger, never the limit wrong. O(1) a row; a request of the current period takes about 60 bytes.

use std::collections::{BTreeMap, BTreeSet};

use cpp_sched::planner::lower_bound;
use cpp_sched::{Attos, CostModel, CostTerms, Row, RowKind};

use super::Machine;
use super::watch::{BatchBack, RequestArrived, Watch};

/// The regret of all busy periods together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Regret {
    /// Busy periods that have ended.
    pub periods: u64,
    /// How long they were, in nanoseconds.
    pub busy_ns: u64,
    /// How long they had to be at least.
    pub least_ns: u64,
}

impl Regret {
    /// Busy time over the least, minus 1; none without a period.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "statistics, not decisions")]
    pub fn part(&self) -> Option<f64> {
        (self.least_ns > 0).then(|| self.busy_ns as f64 / self.least_ns as f64 - 1.0)
    }
}

/// Watches a run and adds up its [`Regret`].
#[derive(Clone, Debug)]
pub struct RegretMeter {
    stages: Vec<CostModel>,
    /// Stages beside the first, in millionths; 0 where stages differ.
    drain_millionths: u64,
    latency_ns: u64,
    regret: Regret,
    /// Arrived, and not seen by a batch yet: by time, then place.
    coming: BTreeSet<(u64, usize)>,
    /// Prompts of the current period, by place in the workload.
    prompts: BTreeMap<usize, Prompt>,
    unfinished: usize,
    start_ns: u64,
    /// Work of decodes in the current period on each stage.
    decodes: Vec<u128>,
}

#[derive(Clone, Debug)]
struct Prompt {
    arrival_ns: u64,
    /// On each stage.
    work: Vec<u128>,
    done: bool,
}

impl RegretMeter {
    /// For runs on this machine, whose stages cost what their models say: with a table of measured times in their place there is no limit to tell.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let mut stages = machine.stage_costs.clone();
        let hops = stages.len().saturating_sub(1) as u64;
        let equal = stages.windows(2).all(|pair| pair[0] == pair[1]);
        stages.iter_mut().for_each(|stage| stage.c4 = Attos::ZERO);
        if equal {
            stages.truncate(1);
        }
        Self {
            decodes: vec![0; stages.len()],
            stages,
            drain_millionths: if equal { hops * 1_000_000 } else { 0 },
            latency_ns: machine.hop.latency_ns.saturating_mul(hops),
            regret: Regret::default(),
            coming: BTreeSet::new(),
            prompts: BTreeMap::new(),
            unfinished: 0,
            start_ns: 0,
        }
    }

    /// Of all periods that have ended so far.
    #[must_use]
    pub const fn regret(&self) -> Regret {
        self.regret
    }

    fn admit(&mut self, until_ns: u64) {
        while let Some(&(arrival_ns, index)) = self.coming.first().filter(|(arrival_ns, _)| *arrival_ns <= until_ns) {
            self.coming.pop_first();
            if self.unfinished == 0 {
                self.start_ns = arrival_ns;
            }
            self.unfinished += 1;
            self.prompts.insert(index, Prompt { arrival_ns, work: vec![0; self.stages.len()], done: false });
        }
    }

    /// A prompt needs no more work.
    fn done(&mut self, index: usize) {
        if let Some(prompt) = self.prompts.get_mut(&index).filter(|prompt| !prompt.done) {
            prompt.done = true;
            self.unfinished -= 1;
        }
    }

    fn add(&mut self, row: &Row) {
        let (history, tokens) = (row.num_computed_tokens, row.num_scheduled_tokens);
        let (terms, work) = match row.kind {
            RowKind::Decode => (CostTerms::decode(history, tokens), &mut self.decodes),
            // The prompt of an earlier period that has to be computed again counts with the decodes.
            RowKind::Prefill => {
                let prompt = self.prompts.get_mut(&(row.request.0 as usize));
                (CostTerms::prefill(history, tokens), prompt.map_or(&mut self.decodes, |prompt| &mut prompt.work))
            }
        };
        for (stage, work) in self.stages.iter().zip(work) {
            *work = work.saturating_add(stage.items(&terms).0);
        }
    }

    /// The last prompt of the period is done.
    fn close(&mut self, end_ns: u64) {
        let mut sums = vec![0u128; self.stages.len()];
        let mut least_ns = 0;
        let limit = |sums: &[u128]| {
            let bounds = self.stages.iter().zip(sums).map(|(stage, &sum)| lower_bound(stage.c0, Attos(sum), self.drain_millionths).to_ns());
            bounds.max().unwrap_or(0).saturating_add(self.latency_ns)
        };
        // From the last arrival back: what came from each one on.
        let mut prompts: Vec<&Prompt> = self.prompts.values().collect();
        prompts.sort_by_key(|prompt| std::cmp::Reverse(prompt.arrival_ns));
        // Whose client was gone before any of it ran has cost nothing.
        for prompt in prompts.into_iter().filter(|prompt| prompt.work.iter().any(|&work| work > 0)) {
            sums.iter_mut().zip(&prompt.work).for_each(|(sum, work)| *sum = sum.saturating_add(*work));
            least_ns = least_ns.max((prompt.arrival_ns - self.start_ns).saturating_add(limit(&sums)));
        }
        sums.iter_mut().zip(&self.decodes).for_each(|(sum, work)| *sum = sum.saturating_add(*work));
        if sums.iter().any(|&sum| sum > 0) {
            self.regret.periods += 1;
            self.regret.busy_ns = self.regret.busy_ns.saturating_add(end_ns - self.start_ns);
            self.regret.least_ns = self.regret.least_ns.saturating_add(least_ns.max(limit(&sums)));
        }
        self.prompts.clear();
        self.decodes.fill(0);
    }
}

impl Watch for RegretMeter {
    fn arrived(&mut self, arrived: &RequestArrived) {
        self.coming.insert((arrived.arrival_ns, arrived.index));
    }

    fn batch(&mut self, back: &BatchBack<'_>) {
        let busy = || back.slices.iter().filter(|slice| slice.idle.is_none());
        let (Some(begin_ns), Some(end_ns)) = (busy().map(|slice| slice.from_ns).min(), busy().map(|slice| slice.to_ns).max()) else {
            return;
        };
        // In order: those that were there when it began; what it did; those that came before it ended.
        self.admit(begin_ns);
        if self.unfinished > 0 && begin_ns >= self.start_ns {
            back.rows.iter().for_each(|row| self.add(row));
        }
        self.admit(end_ns);
        for row in back.rows.iter().filter(|row| row.kind == RowKind::Prefill && row.samples) {
            self.done(row.request.0 as usize);
        }
        if self.unfinished == 0 && !self.prompts.is_empty() {
            self.close(end_ns);
        }
    }

    fn aborted(&mut self, index: usize, now_ns: u64) {
        self.admit(now_ns);
        self.done(index);
        if self.unfinished == 0 && !self.prompts.is_empty() {
            self.close(now_ns);
        }
    }
}
