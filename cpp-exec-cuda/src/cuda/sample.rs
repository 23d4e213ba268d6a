//! From the last layer to tokens, choosing exactly as the CPU device chooses from the same logits.
//!
//! What is wanted of each position is known before the batch runs, so all of it is put on the stream at once: the most likely token, candidates where
//! somebody chooses among some, and all logits where somebody chooses among all. The choice is made on the host when it has come.

use cpp_exec_mock::cpu::Sampling;
use cpp_exec_mock::runtime::{RowSample, Work, WorkRow};
use cpp_sched::TokenId;
use cudarc::driver::CudaSlice;

use super::error::{CudaError, Doing};
use super::gpu::{Output, Pointer, Queue};
use super::numbers::Numbers;
use super::stream::{Event, Pinned, Stream};
use super::weights::Halves;

/// Threads of the kernels over a vocabulary, as they have them.
const THREADS: u32 = 1024;
/// Candidates of a row, as the kernel has room for.
const MOST_CANDIDATES: u32 = 256;
/// Positions of a batch that may choose among all tokens before the host must wait for them; few where tests leave out that wait.
const WHOLE: usize = if cfg!(feature = "planted-faults") { 1 } else { 64 };

/// Room for the logits of some positions at a time.
#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    gathered: Halves,
    logits: CudaSlice<f32>,
    /// Logits were copied to the host: another copy may follow.
    copied: Event,
}

/// What the positions of a batch have come to: part of a slot.
#[derive(Debug)]
pub(super) struct Chosen {
    best: CudaSlice<i32>,
    tokens: CudaSlice<i32>,
    logits: CudaSlice<f32>,
    host_best: Pinned<i32>,
    host_tokens: Pinned<i32>,
    host_logits: Pinned<f32>,
    host_whole: Pinned<f32>,
    /// How the token of each position is chosen, and the position that it will have.
    choices: Vec<(Sampling, u32)>,
    /// Candidates of each position.
    count: usize,
    /// Positions whose whole logits are in `host_whole`, in this order.
    whole: Vec<usize>,
    /// Tokens that were chosen because there was no room for more whole logits.
    early: Vec<(usize, TokenId)>,
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

impl Chosen {
    pub(super) fn new(queue: &Queue, positions: usize, vocabulary: usize) -> Result<Self, CudaError> {
        let (context, candidates) = (queue.gpu().context(), positions * (MOST_CANDIDATES as usize).min(vocabulary));
        Ok(Self {
            best: queue.zeros(positions)?,
            tokens: queue.zeros(candidates)?,
            logits: queue.zeros(candidates)?,
            host_best: Pinned::zeros(context, positions)?,
            host_tokens: Pinned::zeros(context, candidates)?,
            host_logits: Pinned::zeros(context, candidates)?,
            host_whole: Pinned::zeros(context, WHOLE.min(positions) * vocabulary)?,
            choices: Vec::with_capacity(positions),
            count: 0,
            whole: Vec::with_capacity(WHOLE),
            early: Vec::new(),
        })
    }

    /// Becomes that of a batch.
    pub(super) fn begin(&mut self, work: &Work, vocabulary: usize) {
        self.choices.clear();
        for row in &work.rows {
            if let Some(sampling) = &row.sampling {
                self.choices.extend((row.end() - 1 - row.drafts..row.end()).map(|position| (*sampling, position + 1)));
            }
        }
        let count =
            |(sampling, _): &(Sampling, u32)| if let Choice::Candidates(count) = Choice::of(sampling, vocabulary) { count } else { 0 };
        self.count = self.choices.iter().map(count).max().unwrap_or(0);
        self.whole.clear();
        self.early.clear();
    }

    /// Positions that are sampled.
    pub(super) const fn positions(&self) -> usize {
        self.choices.len()
    }

    pub(super) fn best(&self, queue: &Queue) -> Pointer {
        queue.pointer(&self.best)
    }

    /// Copies what was found to the host, behind what the stream waits for.
    pub(super) fn copy_out(&mut self, queue: &Queue, stream: &Stream) -> Result<(), CudaError> {
        let (positions, candidates) = (self.choices.len(), self.choices.len() * self.count);
        stream.copy_out(queue.pointer(&self.best).address(), &mut self.host_best, 0, positions)?;
        stream.copy_out(queue.pointer(&self.tokens).address(), &mut self.host_tokens, 0, candidates)?;
        stream.copy_out(queue.pointer(&self.logits).address(), &mut self.host_logits, 0, candidates)
    }

    /// The token of each position.
    fn choose(&self, vocabulary: usize) -> Vec<TokenId> {
        let choose = |(at, (sampling, position)): (usize, &(Sampling, u32))| match Choice::of(sampling, vocabulary) {
            Choice::Greedy => self.host_best.as_slice()[at] as TokenId,
            Choice::Candidates(_) => {
                let candidates = at * self.count..(at + 1) * self.count;
                // They come in the order in which `choose` would put them, so their places are as good as tokens.
                let place = sampling.choose(&self.host_logits.as_slice()[candidates.clone()], *position);
                self.host_tokens.as_slice()[candidates][place as usize] as TokenId
            }
            Choice::All => {
                let early = self.early.iter().find(|(place, _)| *place == at).map(|(_, token)| *token);
                let place = self.whole.iter().position(|place| *place == at).unwrap_or(0);
                let logits = || &self.host_whole.as_slice()[place * vocabulary..(place + 1) * vocabulary];
                early.unwrap_or_else(|| sampling.choose(logits(), *position))
            }
        };
        self.choices.iter().enumerate().map(choose).collect()
    }

    /// What each row has sampled, when everything is on the host.
    pub(super) fn samples(&self, work: &Work, vocabulary: usize) -> Vec<RowSample> {
        let found = self.choose(vocabulary);
        let mut next = 0;
        let rows = work.rows.iter().zip(0..).filter(|(row, _)| row.sampling.is_some());
        rows.map(|(row, number)| {
            let own = &found[next..next + row.drafts as usize + 1];
            next += own.len();
            RowSample { row: number, tokens: accepted(work, row, own) }
        })
        .collect()
    }
}

impl Sampler {
    /// Positions whose logits are computed at once.
    pub(super) const ROWS: usize = 256;

    pub(super) fn new(queue: &Queue, rows: usize, hidden: usize, vocabulary: usize) -> Result<Self, CudaError> {
        let (gathered, logits) = (queue.zeros(rows * hidden)?, queue.zeros(rows * vocabulary)?);
        Ok(Self { rows, hidden, vocabulary, gathered, logits, copied: Event::new(queue.gpu().context())? })
    }

    /// Logits of so many positions, whose places begin at `places`, and the most likely token of each. Part of graphs.
    pub(super) fn best(
        &self,
        queue: &Queue,
        kernels: &Numbers,
        (places, count): (Pointer, usize),
        normed: &Halves,
        head: &Halves,
        best: Pointer,
    ) -> Result<(), CudaError> {
        let gathered = queue.pointer(&self.gathered);
        let arguments = [gathered.into(), queue.pointer(normed).into(), places.into(), self.hidden.into()];
        queue.launch(kernels.gather, [count, 1, 1], 128, &arguments)?;
        self.multiply(queue, count, head)?;
        let arguments = [best.into(), queue.pointer(&self.logits).into(), self.vocabulary.into()];
        queue.launch(kernels.argmax, [count, 1, 1], THREADS, &arguments)
    }

    /// Logits of so many gathered positions.
    pub(super) fn multiply(&self, queue: &Queue, count: usize, head: &Halves) -> Result<(), CudaError> {
        let head = (queue.pointer(head), self.vocabulary, self.hidden);
        queue.multiply((queue.pointer(&self.gathered), count), head, (queue.pointer(&self.logits), Output::F32))
    }

    /// The logits that were computed last, position after position: of so many. Waits; for tests.
    pub(super) fn read_logits(&self, queue: &Queue, positions: usize) -> Result<Vec<f32>, CudaError> {
        let mut logits = vec![0.0; positions.min(self.rows) * self.vocabulary];
        queue.stream().inner().memcpy_dtoh(&self.logits.slice(..logits.len()), &mut logits).doing("copying logits")?;
        queue.wait()?;
        Ok(logits)
    }

    /// What positions from `first` on want beside the most likely token, of logits that were computed last.
    pub(super) fn others(
        &self,
        queue: &Queue,
        kernels: &Numbers,
        chosen: &mut Chosen,
        first: usize,
        count: usize,
    ) -> Result<(), CudaError> {
        let logits = queue.pointer(&self.logits);
        if chosen.count > 0 {
            let place = 4 * first * chosen.count;
            let arguments = [
                queue.pointer(&chosen.tokens).plus(place).into(),
                queue.pointer(&chosen.logits).plus(place).into(),
                logits.into(),
                self.vocabulary.into(),
                chosen.count.into(),
            ];
            queue.launch(kernels.candidates, [count, 1, 1], THREADS, &arguments)?;
        }
        for position in first..first + count {
            if !matches!(Choice::of(&chosen.choices[position].0, self.vocabulary), Choice::All) {
                continue;
            }
            if (chosen.whole.len() + 1) * self.vocabulary > chosen.host_whole.as_slice().len() {
                self.make_room(queue, chosen)?;
            }
            let from = logits.plus(4 * (position - first) * self.vocabulary).address();
            // On the same stream, since the next logits are written to the same place.
            queue.stream().copy_out(from, &mut chosen.host_whole, chosen.whole.len() * self.vocabulary, self.vocabulary)?;
            chosen.whole.push(position);
        }
        Ok(())
    }

    /// Waits for what the host has of whole logits, and chooses. The one place where the host waits: more positions of one batch that choose
    /// among all tokens than there is room for.
    fn make_room(&self, queue: &Queue, chosen: &mut Chosen) -> Result<(), CudaError> {
        self.copied.record(queue.stream()).doing("copying logits")?;
        while !self.copied.is_complete().doing("copying logits")? {
            std::thread::yield_now();
        }
        for (place, &position) in chosen.whole.iter().enumerate() {
            let (sampling, at) = chosen.choices[position];
            let logits = &chosen.host_whole.as_slice()[place * self.vocabulary..(place + 1) * self.vocabulary];
            chosen.early.push((position, sampling.choose(logits, at)));
        }
        chosen.whole.clear();
        Ok(())
    }
}

/// The tokens of a row: those that drafts have right, and the one that follows them.
fn accepted(work: &Work, row: &WorkRow, found: &[TokenId]) -> Vec<TokenId> {
    let drafts = &work.tokens[(row.first + (row.len - row.drafts) as usize).min(work.tokens.len())..];
    let right = found.iter().zip(drafts).take(row.drafts as usize).take_while(|(found, draft)| found == draft).count();
    found[..=right].to_vec()
}
