//! A worker: the mirror of the scheduler's plans, and a device that runs them.
//!
//! Three threads a stage: one receives frames from the stage before, one computes, one sends frames on. So while batch k is computed, k+1 comes
//! in and k-1 goes out. Whatever reaches the worker comes through one inbox, so nothing waits for one sender while another has something to say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use cpp_sched::wire::{Applied, Mirror, Plan, Token};
use cpp_sched::{BatchId, Config, TokenId};

use super::link::{FrameReceiver, FrameSender, LinkError};
use super::message::{Control, Frame, Report, Span};
use super::work::{Device, Work};
use crate::cpu::Sampling;

/// What reaches a worker.
#[derive(Debug)]
#[non_exhaustive]
pub enum Inbox<A> {
    /// From the leader.
    Control(Control),
    /// From the stage before.
    Frame(Frame<A>),
    /// The edge from the stage before is broken.
    Broken(LinkError),
}

/// Where a worker stands, and whom it talks to.
#[allow(missing_debug_implementations, reason = "it holds links")]
#[non_exhaustive]
pub struct Post<A> {
    /// Its stage, from 0 on.
    pub stage: usize,
    /// When the pipeline was started.
    pub epoch: Instant,
    /// How often the pipeline has been aborted before.
    pub generation: u64,
    /// What reaches it.
    pub inbox: Receiver<Inbox<A>>,
    /// The way into its inbox, for the thread that receives frames.
    pub to_inbox: Sender<Inbox<A>>,
    /// The edge from the stage before; none for the first.
    pub up: Option<Box<dyn FrameReceiver<A>>>,
    /// The edge to the stage behind; none for the last.
    pub down: Option<Box<dyn FrameSender<A>>>,
    /// What it tells the leader. False: nobody listens any more.
    pub report: Box<dyn FnMut(Report) -> bool + Send>,
}

/// A batch that waits for its frame, for tokens, or for its turn.
#[derive(Debug)]
struct Planned {
    work: Work,
    /// Tokens that a batch before it samples: place, batch and row.
    unknown: Vec<(usize, BatchId, u32)>,
}

/// What of a worker outlives its post: a device with its memory, and what it knows of requests.
#[derive(Debug)]
pub struct Worker<D: Device> {
    device: D,
    mirror: Mirror,
    depth: u64,
    ring: usize,
    /// The first tokens of rows that sampled, by batch and row.
    sampled: BTreeMap<(BatchId, u32), TokenId>,
}

/// Why a worker has left its post.
#[derive(Debug)]
#[non_exhaustive]
pub enum Left {
    /// It was told to, or nobody is there to tell it anything.
    Stopped,
    /// It does not know any more what the leader knows: it must start anew.
    Lost(String),
}

/// The state of one stay at a post.
struct Shift<'a, D: Device> {
    worker: &'a mut Worker<D>,
    stage: usize,
    generation: u64,
    first: bool,
    plans: VecDeque<Planned>,
    frames: VecDeque<Frame<D::Activations>>,
    report: &'a mut (dyn FnMut(Report) -> bool + Send),
    /// A batch of this generation has failed: nothing more is run until the abort.
    failed: bool,
}

impl<D: Device> Worker<D> {
    /// A worker with a device whose memory is empty. `config` is the scheduler's.
    #[must_use]
    pub fn new(device: D, config: &Config) -> Self {
        let depth = config.depth();
        Self { device, mirror: Mirror::new(config), depth: depth.into(), ring: depth as usize, sampled: BTreeMap::new() }
    }

    /// The device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Works at a post until it is told to stop. O(everything that it is told).
    pub fn work(&mut self, post: Post<D::Activations>) -> Left {
        let Post { stage, epoch, generation, inbox, to_inbox, up, down, mut report } = post;
        let first = up.is_none();
        if let Some(up) = up {
            thread::spawn(move || receive(up, &to_inbox));
        }
        // As many frames wait to be sent as batches are in the pipeline at most, so that computing never waits for the link.
        let outbox = down.map(|down| {
            let (outbox, frames) = sync_channel(self.ring);
            thread::spawn(move || send(down, &frames));
            outbox
        });
        let plans = VecDeque::with_capacity(self.ring);
        let mut shift =
            Shift { stage, generation, first, plans, frames: VecDeque::new(), report: &mut *report, failed: false, worker: self };
        loop {
            while let Some((planned, frame)) = shift.next() {
                if !shift.run(planned, frame, outbox.as_ref(), epoch) {
                    return Left::Stopped;
                }
                // What has come meanwhile may be an abort.
                if let Ok(message) = inbox.try_recv() {
                    match shift.handle(message) {
                        None => {}
                        Some(left) => return left,
                    }
                }
            }
            let Ok(message) = inbox.recv() else { return Left::Stopped };
            if let Some(left) = shift.handle(message) {
                return left;
            }
        }
    }
}

impl<D: Device> Shift<'_, D> {
    /// Takes a message in; `Some` if it is the end.
    fn handle(&mut self, message: Inbox<D::Activations>) -> Option<Left> {
        match message {
            Inbox::Control(Control::Plan { generation, message, sampling }) => {
                // Plans of an earlier generation are part of the stream all the same.
                match plan(&mut self.worker.mirror, &message, &sampling) {
                    Ok(planned) if generation == self.generation => self.plans.push_back(planned),
                    Ok(_) => {}
                    Err(problem) => return Some(Left::Lost(problem)),
                }
            }
            Inbox::Control(Control::Tokens { generation, batch, tokens }) if generation == self.generation => {
                let oldest = BatchId(batch.0.saturating_sub(2 * self.worker.depth));
                self.worker.sampled = self.worker.sampled.split_off(&(oldest, 0));
                self.worker.sampled.extend(tokens.iter().map(|(row, token)| ((batch, *row), *token)));
            }
            Inbox::Control(Control::Tokens { .. }) => {}
            Inbox::Control(Control::Resync(message)) => {
                if let Err(error) = self.worker.mirror.apply(&message) {
                    return Some(Left::Lost(error.to_string()));
                }
            }
            Inbox::Control(Control::Abort { generation }) => {
                self.generation = generation;
                self.plans.clear();
                self.frames.retain(|frame| frame.generation >= generation);
                self.worker.sampled.clear();
                self.failed = false;
                if !(self.report)(Report::Aborted { stage: self.stage, generation }) {
                    return Some(Left::Stopped);
                }
            }
            Inbox::Control(Control::Stop) => return Some(Left::Stopped),
            // A frame of a later generation comes before this stage has heard of the abort, if the stage before was told first.
            Inbox::Frame(frame) if frame.generation >= self.generation => self.frames.push_back(frame),
            Inbox::Frame(_) => {}
            // If the stage before is gone, the leader knows; whatever else is wrong with the link it does not.
            Inbox::Broken(LinkError::Closed) => {}
            Inbox::Broken(error) => return self.fail(error.to_string()),
        }
        None
    }

    fn fail(&mut self, problem: String) -> Option<Left> {
        self.failed = true;
        let told = (self.report)(Report::Failed { stage: self.stage, generation: self.generation, problem });
        (!told).then_some(Left::Stopped)
    }

    /// The next batch, if all that it needs is there.
    fn next(&mut self) -> Option<(Planned, Frame<D::Activations>)> {
        if self.failed {
            return None;
        }
        let planned = self.plans.front_mut()?;
        if self.first {
            let sampled = &self.worker.sampled;
            let tokens = &mut planned.work.tokens;
            planned.unknown.retain(|&(place, batch, row)| match sampled.get(&(batch, row)) {
                Some(token) => {
                    tokens[place] = *token;
                    false
                }
                None => true,
            });
            if !planned.unknown.is_empty() {
                return None;
            }
            return Some((self.plans.pop_front()?, Frame::default()));
        }
        let frame = self.frames.front().filter(|frame| frame.generation == self.generation)?;
        if frame.batch != planned.work.batch.0 {
            let problem = format!("batch {} came over the link, {} is due", frame.batch, planned.work.batch);
            self.fail(problem);
            return None;
        }
        Some((self.plans.pop_front()?, self.frames.pop_front()?))
    }

    /// Runs a batch, hands its activations on, and reports. False: nobody listens any more.
    fn run(
        &mut self,
        planned: Planned,
        frame: Frame<D::Activations>,
        outbox: Option<&SyncSender<Frame<D::Activations>>>,
        epoch: Instant,
    ) -> bool {
        let (work, mut activations, mut samples) = (planned.work, D::Activations::default(), Vec::new());
        let start_ns = nanoseconds(epoch);
        if let Err(error) = self.worker.device.run(&work, &frame.activations, &mut activations, &mut samples) {
            return self.fail(format!("{}: {error}", work.batch)).is_none();
        }
        let time = Span { start_ns, end_ns: nanoseconds(epoch) };
        // Before the frame goes on: so the leader hears of the stages in their order, and knows all times when the last one reports.
        let told = (self.report)(Report::Done { stage: self.stage, generation: self.generation, batch: work.batch, time, samples });
        if let Some(outbox) = outbox {
            // Nobody behind: the leader finds out by itself.
            let _ = outbox.send(Frame { generation: self.generation, batch: work.batch.0, activations });
        }
        told
    }
}

fn nanoseconds(epoch: Instant) -> u64 {
    u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn receive<A>(mut up: Box<dyn FrameReceiver<A>>, inbox: &Sender<Inbox<A>>) {
    loop {
        let (message, over) = match up.receive() {
            Ok(frame) => (Inbox::Frame(frame), false),
            Err(error) => (Inbox::Broken(error), true),
        };
        if inbox.send(message).is_err() || over {
            return;
        }
    }
}

fn send<A>(mut down: Box<dyn FrameSender<A>>, frames: &Receiver<Frame<A>>) {
    for frame in frames {
        if down.send(frame).is_err() {
            return;
        }
    }
}

/// Applies a message to the mirror and takes the plan apart.
fn plan(mirror: &mut Mirror, message: &[u8], sampling: &[(u32, Sampling)]) -> Result<Planned, String> {
    let applied = mirror.apply(message).map_err(|error| error.to_string())?;
    let Applied::Plan(plan) = applied else { return Err("a message that is no plan came in place of one".to_owned()) };
    Ok(take_apart(plan, sampling))
}

fn take_apart(plan: Plan<'_>, sampling: &[(u32, Sampling)]) -> Planned {
    let mut planned = Planned { work: Work::new(plan.batch()), unknown: Vec::new() };
    planned.work.copies.extend_from_slice(plan.copies());
    let (mut tokens, mut sampling) = (Vec::new(), sampling.iter().peekable());
    for (number, row) in (0..).zip(plan.rows()) {
        tokens.clear();
        for token in row.tokens() {
            tokens.push(match token {
                Token::Known(token) | Token::Draft(token) => token,
                Token::Sampled { plan, row } => {
                    planned.unknown.push((planned.work.tokens.len() + tokens.len(), plan, row));
                    0
                }
                // Drafts and tokens that the caller keeps do not come this way.
                _ => TokenId::MAX,
            });
        }
        let own = sampling.next_if(|(of, _)| *of == number).map(|(_, sampling)| *sampling);
        let sampling = row.samples().then(|| own.unwrap_or_default());
        planned.work.push(row.request(), row.num_computed_tokens(), &tokens, row.num_draft_tokens(), row.blocks(), sampling);
    }
    planned
}
