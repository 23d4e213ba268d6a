//! A device that works by itself: batches are computed on a thread of its own, two at a time under way.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use cpp_exec_mock::runtime::{Device, Finished, RowSample, Started, Work};
use cpp_sched::BatchId;

use crate::harness::{Frail, FrailError};

type Result<T> = std::result::Result<T, FrailError>;
type Done = Result<(Vec<f32>, Vec<RowSample>)>;

pub(crate) struct ByItself {
    batches: Sender<(Work, Vec<f32>)>,
    results: Receiver<Done>,
    under_way: VecDeque<BatchId>,
    /// How often it was told to forget everything, and how often it had no room.
    pub(crate) generation: u64,
}

impl ByItself {
    pub(crate) fn new(mut device: Frail) -> Self {
        let (batches, given) = channel::<(Work, Vec<f32>)>();
        let (done, results) = channel();
        thread::spawn(move || {
            for (work, input) in given {
                let (mut output, mut samples) = (Vec::new(), Vec::new());
                let result = device.run(&work, &input, &mut output, &mut samples).map(|()| (output, samples));
                if done.send(result).is_err() {
                    return;
                }
            }
        });
        Self { batches, results, under_way: VecDeque::new(), generation: 0 }
    }
}

impl Device for ByItself {
    type Activations = Vec<f32>;
    type Error = FrailError;

    fn run(&mut self, _: &Work, _: &Vec<f32>, _: &mut Vec<f32>, _: &mut Vec<RowSample>) -> Result<()> {
        unreachable!("it has batches under way")
    }

    fn start(&mut self, work: &Work, input: &Vec<f32>, _: &mut Option<Vec<f32>>, _: &mut Vec<RowSample>) -> Result<Started> {
        if self.under_way.len() == 2 {
            return Ok(Started::Full);
        }
        self.batches.send((work.clone(), input.clone())).map_err(|_| FrailError::Fault)?;
        self.under_way.push_back(work.batch);
        Ok(Started::UnderWay)
    }

    fn finished(&mut self) -> Result<Option<Finished<Vec<f32>>>> {
        match self.results.try_recv() {
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(FrailError::Fault),
            Ok(done) => {
                let batch = self.under_way.pop_front().expect("a result is of a batch under way");
                let (output, samples) = done?;
                Ok(Some(Finished { batch, samples, output: Some(output) }))
            }
        }
    }

    fn reset(&mut self, generation: u64) -> Result<()> {
        assert!(generation >= self.generation);
        self.generation = generation;
        for _ in self.under_way.drain(..) {
            // What has failed was reported, or is lost with the others.
            if self.results.recv().is_err() {
                return Err(FrailError::Fault);
            }
        }
        Ok(())
    }
}
