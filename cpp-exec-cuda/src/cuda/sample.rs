//! From the last layer to tokens, choosing exactly as the CPU device chooses from the same logits.

use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{RowSample, Work, WorkRow};
use cpp_sched::TokenId;
use cudarc::driver::CudaSlice;

use super::error::CudaError;
use super::gpu::{Output, Queue};
use super::numbers::Numbers;
use super::weights::Halves;

/// Threads of the kernels over a vocabulary, as they have them.
const THREADS: u32 = 1024;
/// Candidates of a row, as the kernel has room for.
const MOST_CANDIDATES: u32 = 256;

/// Room for the logits of some positions at a time.
#[derive(Debug)]
pub(super) struct Sampler {
    rows: usize,
    hidden: usize,
    vocabulary: usize,
    which: CudaSlice<i32>,
    gathered: Halves,
    logits: CudaSlice<f32>,
    tokens: CudaSlice<i32>,
    chosen: CudaSlice<f32>,
    /// The token of each position whose logits were wanted, position after position.
    found: Vec<TokenId>,
}

/// How a token is chosen.
enum Choice {
    /// The most likely.
    Greedy,
    /// Among so many candidates.
    Candidates(usize),
    /// Among all.
    All,
}

impl Choice {
    fn of(sampling: &Sampling, vocabulary: usize) -> Self {
        match sampling.top_k {
            _ if sampling.temperature.is_nan() || sampling.temperature <= 0.0 => Self::Greedy,
            1..=MOST_CANDIDATES => Self::Candidates((sampling.top_k as usize).min(vocabulary)),
            _ => Self::All,
        }
    }
}

impl Sampler {
    /// Positions whose logits are computed at once.
    pub(super) const ROWS: usize = 256;

    pub(super) fn new(queue: &Queue, rows: usize, hidden: usize, vocabulary: usize) -> Result<Self, CudaError> {
        Ok(Self {
            rows,
            hidden,
            vocabulary,
            which: queue.zeros(rows)?,
            gathered: queue.zeros(rows * hidden)?,
            logits: queue.zeros(rows * vocabulary)?,
            tokens: queue.zeros(rows * MOST_CANDIDATES as usize)?,
            chosen: queue.zeros(rows * MOST_CANDIDATES as usize)?,
            found: Vec::new(),
        })
    }

    /// Chooses the tokens of all rows that sample; `places` are their tokens whose logits are wanted, row after row.
    #[allow(clippy::too_many_arguments, reason = "what a last stage has, each once")]
    pub(super) fn run(
        &mut self,
        queue: &Queue,
        kernels: &Numbers,
        places: &[i32],
        work: &Work,
        normed: &Halves,
        head: &Halves,
        samples: &mut Vec<RowSample>,
    ) -> Result<(), CudaError> {
        // Of each place: how its token is chosen, and the position that the token will have.
        let rows = || work.rows.iter().zip(0..).filter_map(|(row, number)| row.sampling.as_ref().map(|sampling| (row, number, sampling)));
        let choices: Vec<(&Sampling, u32)> = rows()
            .flat_map(|(row, _, sampling)| (row.end() - 1 - row.drafts..row.end()).map(move |position| (sampling, position + 1)))
            .collect();
        self.found.clear();
        for (places, choices) in places.chunks(self.rows).zip(choices.chunks(self.rows)) {
            self.logits_of(queue, kernels, places, normed, head)?;
            self.choose(queue, kernels, choices)?;
        }
        let mut next = 0;
        for (row, number, _) in rows() {
            let found = &self.found[next..next + row.drafts as usize + 1];
            next += found.len();
            samples.push(RowSample { row: number, tokens: accepted(work, row, found) });
        }
        Ok(())
    }

    fn logits_of(&mut self, queue: &Queue, kernels: &Numbers, places: &[i32], normed: &Halves, head: &Halves) -> Result<(), CudaError> {
        queue.write(places, &mut self.which)?;
        let arguments =
            [queue.pointer(&self.gathered).into(), queue.pointer(normed).into(), queue.pointer(&self.which).into(), self.hidden.into()];
        queue.launch(kernels.gather, [places.len(), 1, 1], 128, &arguments)?;
        queue.multiply(
            (queue.pointer(&self.gathered), places.len()),
            (queue.pointer(head), self.vocabulary, self.hidden),
            (queue.pointer(&self.logits), Output::F32),
        )
    }

    /// Chooses the tokens of the positions whose logits are there.
    fn choose(&mut self, queue: &Queue, kernels: &Numbers, choices: &[(&Sampling, u32)]) -> Result<(), CudaError> {
        let arguments = [queue.pointer(&self.tokens).into(), queue.pointer(&self.logits).into(), self.vocabulary.into()];
        queue.launch(kernels.argmax, [choices.len(), 1, 1], THREADS, &arguments)?;
        let mut best = vec![0; choices.len()];
        queue.read(&self.tokens, 0, &mut best)?;
        let kinds: Vec<Choice> = choices.iter().map(|(sampling, _)| Choice::of(sampling, self.vocabulary)).collect();
        let count = kinds.iter().map(|kind| if let Choice::Candidates(count) = kind { *count } else { 0 }).max().unwrap_or(0);
        let (mut tokens, mut logits) = (vec![0; choices.len() * count], vec![0.0; choices.len() * count]);
        if count > 0 {
            let arguments = [
                queue.pointer(&self.tokens).into(),
                queue.pointer(&self.chosen).into(),
                queue.pointer(&self.logits).into(),
                self.vocabulary.into(),
                count.into(),
            ];
            queue.launch(kernels.candidates, [choices.len(), 1, 1], THREADS, &arguments)?;
            queue.read(&self.tokens, 0, &mut tokens)?;
            queue.read(&self.chosen, 0, &mut logits)?;
        }
        for (at, ((sampling, position), kind)) in choices.iter().zip(kinds).enumerate() {
            self.found.push(match kind {
                Choice::Greedy => best[at] as TokenId,
                Choice::Candidates(_) => {
                    // They come in the order in which `choose` would put them, so their places are as good as tokens.
                    let place = sampling.choose(&logits[at * count..(at + 1) * count], *position);
                    tokens[at * count + place as usize] as TokenId
                }
                Choice::All => {
                    let mut all = vec![0.0; self.vocabulary];
                    queue.read(&self.logits, at * self.vocabulary, &mut all)?;
                    sampling.choose(&all, *position)
                }
            });
        }
        Ok(())
    }
}

/// The tokens of a row: those that drafts have right, and the one that follows them.
fn accepted(work: &Work, row: &WorkRow, found: &[TokenId]) -> Vec<TokenId> {
    let drafts = &work.tokens[(row.first + (row.len - row.drafts) as usize).min(work.tokens.len())..];
    let right = found.iter().zip(drafts).take(row.drafts as usize).take_while(|(found, draft)| found == draft).count();
    found[..=right].to_vec()
}
