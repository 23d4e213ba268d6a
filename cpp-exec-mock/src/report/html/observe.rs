//! What a report needs to see of a run while it goes on, in memory that does not grow with the run.

use std::collections::VecDeque;

use cpp_sched::{KvUsage, RowKind};

use super::bins::{CostClasses, Merge, Thinned, TimeBins};
use crate::pipeline::{Cause, Slice};
use crate::sim::{BatchBack, RequestDone, Watch};

/// Slices of a stage that one stretch of the timeline may hold, and of all stages together at least and at most.
const STAGE_SLICES: usize = 150;
const SLICES: (usize, usize) = (1200, 3000);
/// Batches in one stretch of the timeline.
const MOST_BATCHES: u64 = 80;

/// Watches a run for a report with [`html_page`](super::html_page). A few MiB at most, however long the run is.
#[derive(Clone, Debug, Default)]
pub struct Observer {
    pub(super) requests: Thinned<Done>,
    pub(super) load: TimeBins<Load>,
    pub(super) stages: Vec<TimeBins<Shares>>,
    pub(super) costs: CostClasses,
    pub(super) cost: Spread,
    pub(super) first: Stretch,
    /// Two later stretches, each begun when twice as many batches had been seen as at the one before.
    later: [Option<Stretch>; 2],
    batches: u64,
    newest: VecDeque<u64>,
}

/// A request that is done; times in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) input_tokens: u32,
    pub(super) ttft_ns: u64,
    pub(super) tpot_ns: Option<u64>,
    pub(super) e2e_ns: u64,
}

/// Requests and memory in a bin of time: the most of each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    pub(super) waiting: u32,
    pub(super) running: u32,
    /// Where most blocks were in use; none: nothing was seen in this bin.
    pub(super) kv: Option<KvUsage>,
}

/// Nanoseconds of a stage in a bin of time: busy with prompt work, busy with decodes alone, then idle by cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shares(pub(super) [u64; 2 + Cause::ALL.len()]);

/// How different batches are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread {
    pub(super) batches: u64,
    sum: f64,
    squares: f64,
    windows: u64,
    peaks: f64,
}

/// A stretch of the timeline, slice by slice.
#[derive(Clone, Debug, Default)]
pub(super) struct Stretch {
    pub(super) from_batch: u64,
    batches: u64,
    full: bool,
    pub(super) slices: Vec<Bar>,
}

/// A slice, and the batch it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) slice: Slice,
    pub(super) batch: u64,
    pub(super) tokens: u64,
    pub(super) decodes: u32,
    pub(super) prefill: bool,
}

impl Observer {
    /// A stretch from the second half of the run, if it was long enough to have one.
    pub(super) fn second(&self) -> Option<&Stretch> {
        let [older, newer] = &self.later;
        newer.as_ref().filter(|stretch| stretch.full).or(older.as_ref()).or(newer.as_ref())
    }

    fn see_slices(&mut self, back: &BatchBack<'_>) {
        let pieces: Vec<(u64, u32, bool)> = back
            .pieces()
            .map(|rows| {
                let decodes = rows.iter().filter(|row| row.kind == RowKind::Decode).count();
                let tokens = rows.iter().map(|row| u64::from(row.num_scheduled_tokens)).sum();
                (tokens, decodes as u32, decodes < rows.len())
            })
            .collect();
        let bars = back.slices.iter().map(|&slice| {
            let (tokens, decodes, prefill) = pieces.get(slice.piece as usize).copied().unwrap_or_default();
            Bar { slice, batch: back.batch.0, tokens, decodes, prefill }
        });
        for bar in bars.clone() {
            self.share(&bar.slice, bar.prefill);
        }
        if self.batches.is_power_of_two() && self.batches >= 2 * MOST_BATCHES {
            // 256, 512, 1024, ...
            let [older, newer] = &mut self.later;
            *older = newer.take();
            *newer = Some(Stretch { from_batch: back.batch.0, ..Stretch::default() });
        }
        let most = self.most_slices();
        self.first.add(bars.clone(), most);
        if let Some(stretch) = &mut self.later[1] {
            stretch.add(bars, most);
        }
    }

    fn most_slices(&self) -> usize {
        (STAGE_SLICES * self.stages.len()).clamp(SLICES.0, SLICES.1)
    }

    fn share(&mut self, slice: &Slice, prefill: bool) {
        let stage = slice.stage as usize;
        if stage >= self.stages.len() {
            self.stages.resize_with(stage + 1, TimeBins::default);
        }
        let part = match slice.idle {
            None => usize::from(!prefill),
            Some(cause) => 2 + cause as usize,
        };
        self.stages[stage].over(slice.from_ns, slice.to_ns, |shares, ns| shares.0[part] += ns);
    }

    fn see_cost(&mut self, back: &BatchBack<'_>) {
        let mut busy_ns = vec![0u64; self.stages.len()];
        for slice in back.slices.iter().filter(|slice| slice.idle.is_none()) {
            if let Some(busy_ns) = busy_ns.get_mut(slice.stage as usize) {
                *busy_ns += slice.to_ns - slice.from_ns;
            }
        }
        let cost_ns = busy_ns.iter().copied().max().unwrap_or(0);
        let decodes = back.rows.iter().filter(|row| row.kind == RowKind::Decode).count();
        let kind = if decodes == 0 {
            0
        } else if decodes < back.rows.len() {
            1
        } else {
            2
        };
        self.costs.add(cost_ns, kind);
        self.cost.add(cost_ns);
        self.newest.push_back(cost_ns);
        if self.newest.len() > self.stages.len().max(1) {
            self.newest.pop_front();
        }
        if self.newest.len() == self.stages.len() {
            self.cost.neighbours(&self.newest);
        }
    }
}

impl Watch for Observer {
    fn batch(&mut self, back: &BatchBack<'_>) {
        self.batches += 1;
        self.see_slices(back);
        self.see_cost(back);
        let load = self.load.at(back.now_ns);
        load.merge(Load { waiting: back.waiting, running: back.running, kv: Some(back.kv) });
    }

    fn lost(&mut self, back: &BatchBack<'_>) {
        self.batches += 1;
        self.see_slices(back);
    }

    fn idle(&mut self, slices: &[Slice]) {
        self.end(slices);
    }

    fn request(&mut self, done: &RequestDone) {
        let gaps = u64::from(done.output_tokens.saturating_sub(1));
        let tpot_ns = (done.e2e_ns - done.ttft_ns).checked_div(gaps);
        self.requests.push(Done { input_tokens: done.input_tokens, ttft_ns: done.ttft_ns, tpot_ns, e2e_ns: done.e2e_ns });
    }

    fn end(&mut self, slices: &[Slice]) {
        for slice in slices {
            self.share(slice, false);
        }
        let bars = slices.iter().map(|&slice| Bar { slice, batch: 0, tokens: 0, decodes: 0, prefill: false });
        let most = self.most_slices();
        self.first.add(bars.clone(), most);
        if let Some(stretch) = &mut self.later[1] {
            stretch.add(bars, most);
        }
    }
}

impl Stretch {
    fn add(&mut self, bars: impl Iterator<Item = Bar>, most: usize) {
        if self.full {
            return;
        }
        self.slices.extend(bars);
        self.batches += 1;
        self.full = self.batches >= MOST_BATCHES || self.slices.len() >= most;
        self.slices.truncate(most);
    }
}

impl Merge for Load {
    fn merge(&mut self, later: Self) {
        self.waiting = self.waiting.max(later.waiting);
        self.running = self.running.max(later.running);
        let used = |kv: &Option<KvUsage>| kv.as_ref().map(|kv| kv.held);
        if used(&later.kv) >= used(&self.kv) {
            self.kv = later.kv;
        }
    }
}

impl Merge for Shares {
    fn merge(&mut self, later: Self) {
        self.0.iter_mut().zip(later.0).for_each(|(sum, ns)| *sum += ns);
    }
}

impl Spread {
    fn add(&mut self, ns: u64) {
        let seconds = ns as f64 / 1e9;
        self.batches += 1;
        self.sum += seconds;
        self.squares += seconds * seconds;
    }

    fn neighbours(&mut self, costs: &VecDeque<u64>) {
        let (sum, most) = costs.iter().fold((0u128, 0u64), |(sum, most), &ns| (sum + u128::from(ns), most.max(ns)));
        if sum > 0 {
            self.windows += 1;
            self.peaks += most as f64 * costs.len() as f64 / sum as f64;
        }
    }

    /// Mean, in seconds.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.batches > 0).then(|| self.sum / self.batches as f64)
    }

    /// Standard deviation over mean.
    pub(super) fn variation(&self) -> Option<f64> {
        let mean = self.mean().filter(|&mean| mean > 0.0)?;
        Some((self.squares / self.batches as f64 - mean * mean).max(0.0).sqrt() / mean)
    }

    /// Of as many batches in a row as there are stages: the dearest over their mean, on average. 1 = equal neighbours.
    pub(super) fn peak(&self) -> Option<f64> {
        (self.windows > 0).then(|| self.peaks / self.windows as f64)
    }
}
