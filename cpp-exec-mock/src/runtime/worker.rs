//! A worker: the mirror of the scheduler's plans, and a device that runs them.
//!
//! Three threads a stage: one receives frames from the stage before, one computes, one sends frames on. So while batch k is computed, k+1 comes
//! in and k-1 goes out. Whatever reaches the worker comes through one inbox, so nothing waits for one sender while another has something to say.
//! A device that works by itself has several batches under way: then the inbox and the device are looked at in turn.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use cpp_sched::wire::{Applied, Mirror, Plan, Token};
use cpp_sched::{BatchId, Config, TokenId};

use super::link::{FrameReceiver, FrameSender, LinkError};
use super::message::{Control, Frame, Report, Span};
use super::work::{Device, RowSample, Started, Work};
use crate::cpu::Sampling;

/// How long the inbox is waited for while the device has something under way.
const GLANCE: Duration = Duration::from_micros(20);

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

/// A batch that the device works at.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    batch: BatchId,
    start_ns: u64,
}

/// What has come of the next batch.
enum Next {
    /// It was started, or has run.
    Started,
    /// The device has no room for it.
    Full,
    /// Nobody listens any more.
    Alone,
}

/// The state of one stay at a post.
struct Shift<'a, D: Device> {
    worker: &'a mut Worker<D>,
    stage: usize,
    generation: u64,
    first: bool,
    plans: VecDeque<Planned>,
    frames: VecDeque<Frame<D::Activations>>,
    under_way: VecDeque<UnderWay>,
    /// The next batch has everything but room on the device.
    full: bool,
    epoch: Instant,
    /// When the batch before ended on the device.
    ended_ns: u64,
    outbox: Option<SyncSender<Frame<D::Activations>>>,
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
        if let Err(error) = self.device.reset(generation) {
            return Left::Lost(error.to_string());
        }
        let mut shift = Shift {
            stage,
            generation,
            first,
            plans,
            frames: VecDeque::new(),
            under_way: VecDeque::with_capacity(self.ring),
            full: false,
            epoch,
            ended_ns: 0,
            outbox,
            report: &mut *report,
            failed: false,
            worker: self,
        };
        loop {
            if !shift.collect() {
                return Left::Stopped;
            }
            shift.full = false;
            while let Some((planned, frame)) = shift.next() {
                match shift.run(planned, frame) {
                    Next::Started => {}
                    Next::Full => break,
                    Next::Alone => return Left::Stopped,
                }
                // What has come meanwhile may be an abort.
                if let Ok(message) = inbox.try_recv() {
                    match shift.handle(message) {
                        None => {}
                        Some(left) => return left,
                    }
                }
            }
            let message = if shift.is_waiting_for_the_device() {
                match inbox.recv_timeout(GLANCE) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => return Left::Stopped,
                }
            } else {
                let Ok(message) = inbox.recv() else { return Left::Stopped };
                message
            };
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
                self.under_way.clear();
                self.failed = false;
                if let Err(error) = self.worker.device.reset(generation) {
                    return Some(Left::Lost(error.to_string()));
                }
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

    fn is_waiting_for_the_device(&self) -> bool {
        !self.failed && (self.full || !self.under_way.is_empty() || self.worker.device.is_busy())
    }

    /// Runs or starts a batch; hands its activations on, and reports, as far as it is through.
    fn run(&mut self, planned: Planned, frame: Frame<D::Activations>) -> Next {
        let (mut output, mut samples) = (None, Vec::new());
        let (batch, start_ns) = (planned.work.batch, nanoseconds(self.epoch));
        let alone = |listens: bool| if listens { Next::Started } else { Next::Alone };
        match self.worker.device.start(&planned.work, &frame.activations, &mut output, &mut samples) {
            Err(error) => alone(self.fail(format!("{batch}: {error}")).is_none()),
            Ok(Started::Full) => {
                self.full = true;
                self.plans.push_front(planned);
                if !self.first {
                    self.frames.push_front(frame);
                }
                Next::Full
            }
            Ok(Started::UnderWay) => {
                self.under_way.push_back(UnderWay { batch, start_ns });
                self.hand_on(batch, output);
                Next::Started
            }
            Ok(Started::Done) => alone(self.done(UnderWay { batch, start_ns }, samples, output)),
        }
    }

    /// Takes in what the device has finished. False: nobody listens any more.
    fn collect(&mut self) -> bool {
        while !self.failed && (!self.under_way.is_empty() || self.worker.device.is_busy()) {
            match self.worker.device.finished() {
                Ok(None) => return true,
                Ok(Some(finished)) => {
                    let Some(oldest) = self.under_way.pop_front().filter(|oldest| oldest.batch == finished.batch) else {
                        return self.fail(format!("{} is through out of its turn", finished.batch)).is_none();
                    };
                    if !self.done(oldest, finished.samples, finished.output) {
                        return false;
                    }
                }
                Err(error) => return self.fail(error.to_string()).is_none(),
            }
        }
        true
    }

    /// Reports a batch that is through. False: nobody listens any more.
    fn done(&mut self, batch: UnderWay, samples: Vec<RowSample>, output: Option<D::Activations>) -> bool {
        // What is under way together is run one after the other.
        let time = Span { start_ns: batch.start_ns.max(self.ended_ns), end_ns: nanoseconds(self.epoch) };
        self.ended_ns = time.end_ns;
        // Before the frame goes on: so the leader hears of the stages in their order, and knows all times when the last one reports.
        let report = Report::Done { stage: self.stage, generation: self.generation, batch: batch.batch, time, samples };
        let told = (self.report)(report);
        self.hand_on(batch.batch, output);
        told
    }

    fn hand_on(&self, batch: BatchId, output: Option<D::Activations>) {
        if let (Some(outbox), Some(activations)) = (&self.outbox, output) {
            // Nobody behind: the leader finds out by itself.
            let _ = outbox.send(Frame { generation: self.generation, batch: batch.0, activations });
        }
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
