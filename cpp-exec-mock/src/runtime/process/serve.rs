//! A worker's side: joins the leader, and works at the posts that it is sent to.

use std::error::Error;
use std::fmt;
use std::net::{SocketAddr, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cpp_sched::Config;

use super::ProcessPatience;
use super::edge::{EdgeReceiver, EdgeSender, Gate};
use super::handshake::HandshakeError;
use super::message::{Join, LONGEST, Refusal, ToLeader, ToWorker, VERSION, Welcome};
use super::reach::reach;
use super::rendezvous::Rendezvous;
use super::sealed::{SealError, SealedReader, SealedWriter, shut};
use super::secret::Secret;
use crate::runtime::crew::panic_text;
use crate::runtime::letters::Letters;
use crate::runtime::link::{FrameReceiver, FrameSender};
use crate::runtime::message::{Control, Report};
use crate::runtime::work::Device;
use crate::runtime::worker::{Inbox, Left, Post, Worker};

/// What a worker must know.
#[derive(Clone, Debug)]
#[allow(clippy::exhaustive_structs, reason = "what must be decided")]
pub struct WorkerOptions {
    /// Its stage, and where the leader is.
    pub place: Rendezvous,
    /// What the processes of the pipeline know.
    pub secret: Secret,
    /// What tells its model from others.
    pub model: [u8; 32],
    /// How long it waits.
    pub patience: ProcessPatience,
    /// Where its device writes to the stages beside it, if it does.
    pub letters: Option<Letters>,
}

/// Why a worker has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkerError {
    /// The leader cannot be reached.
    Unreachable {
        /// Where it should be.
        leader: String,
        /// What came of it last.
        problem: String,
    },
    /// The leader is none, or does not want to know this worker.
    Handshake {
        /// Where it is.
        leader: String,
        /// Why.
        error: HandshakeError,
    },
    /// There is no place for this worker.
    Refused(Refusal),
    /// The device cannot be made; the leader was told.
    Load(String),
    /// The device is gone; the leader was told.
    Device(String),
    /// The leader is gone.
    Lost(SealError),
}

impl fmt::Display for WorkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { leader, problem } => write!(f, "the leader at {leader} cannot be reached: {problem}"),
            Self::Handshake { leader, error } => write!(f, "the leader at {leader}: {error}"),
            Self::Refused(refusal) => write!(f, "the leader has refused this worker: {refusal}"),
            Self::Load(problem) => f.write_str(problem),
            Self::Device(problem) => write!(f, "the device is gone: {problem}"),
            Self::Lost(error) => write!(f, "the leader is gone: {error}"),
        }
    }
}

impl Error for WorkerError {}

/// What happens to a worker.
enum Order<D: Device> {
    Post { post: u64, generation: u64, down: Option<SocketAddr> },
    Leave { post: u64 },
    Exit,
    Lost(SealError),
    Ended(Result<Box<Worker<D>>, String>),
}

/// The way to the leader; several threads have something to say.
type Mouth = Arc<Mutex<SealedWriter>>;
/// The inbox of the post, while there is one.
type InboxOf<D> = Arc<Mutex<Option<Sender<Inbox<<D as Device>::Activations>>>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nobody panics while holding one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says something. If the leader is gone, whoever reads from it finds out.
fn say(mouth: &Mouth, message: &ToLeader) -> bool {
    lock(mouth).say(message).is_ok()
}

/// Joins the leader, makes a device with `load`, which is told of its part and calls what it is given with the bytes that it has read, and works
/// until the leader says that the run is over.
///
/// # Errors
/// It cannot join, has no device, or has lost the leader. Whoever has started this process may start it again.
pub fn serve<D: Device<Activations = Vec<f32>> + 'static>(
    options: &WorkerOptions,
    load: impl FnOnce(&Welcome, &Config, &mut dyn FnMut(u64)) -> Result<D, Box<dyn Error + Send + Sync>>,
) -> Result<(), WorkerError> {
    let silence = options.patience.silence;
    let (welcome, epoch, stream, mouth, mut reader) = join(options)?;
    let lost = WorkerError::Lost;
    reader.set_limits(LONGEST, Some(silence)).map_err(lost)?;
    stream.set_write_timeout(Some(silence)).map_err(|error| lost(error.into()))?;
    let config: Config = serde_json::from_str(&welcome.config).map_err(|error| lost(SealError::Content(error.to_string())))?;
    let gate = Gate::open(&stream, options, welcome.max_numbers).map_err(lost)?;

    let (orders_in, orders) = channel();
    let inbox: InboxOf<D> = Arc::default();
    let hearing = (Arc::clone(&mouth), Arc::clone(&inbox), orders_in.clone());
    thread::spawn(move || hear(reader, &hearing.0, &hearing.1, &hearing.2));

    let mut unsaid = 0;
    let mut progress = |bytes: u64| {
        unsaid += bytes;
        if unsaid >= 1 << 20 {
            say(&mouth, &ToLeader::Loaded(std::mem::take(&mut unsaid)));
        }
    };
    let loaded = load(&welcome, &config, &mut progress);
    say(&mouth, &ToLeader::Loaded(unsaid));
    let device = match loaded {
        Ok(device) => device,
        Err(error) => {
            say(&mouth, &ToLeader::Unable(error.to_string()));
            return Err(WorkerError::Load(error.to_string()));
        }
    };
    say(&mouth, &ToLeader::Ready { port: gate.port() });
    let (idle, letters) = (Some(Box::new(Worker::new(device, &config))), options.letters.clone());
    let mut staff =
        Staff { stage: welcome.stage, epoch, patience: options.patience, mouth, inbox, orders_in, gate, letters, idle, shift: None };
    let ended = staff.work(&orders);
    shut(&stream);
    ended
}

/// Finds the leader and is welcomed: with the time at which the pipeline was started, as far as the way to the leader lets it be known.
#[allow(clippy::type_complexity, reason = "used once")]
fn join(options: &WorkerOptions) -> Result<(Welcome, Instant, TcpStream, Mouth, SealedReader), WorkerError> {
    let place = &options.place;
    let (stream, (mut writer, mut reader)) = reach(options)?;
    let sent = Instant::now();
    let (version, model, pid) = (VERSION.to_owned(), options.model, std::process::id());
    let join = ToLeader::Join(Join { version, rank: place.rank, world_size: place.world_size, model, pid });
    writer.say(&join).map_err(WorkerError::Lost)?;
    // What a plan may be is known only now; a welcome is short.
    reader.set_limits(1 << 20, Some(options.patience.handshake)).map_err(WorkerError::Lost)?;
    match reader.hear().map_err(WorkerError::Lost)? {
        ToWorker::Welcome(welcome) => {
            let half = sent.elapsed() / 2;
            let since = Duration::from_nanos(welcome.now_ns);
            let epoch = (sent + half).checked_sub(since).unwrap_or(sent);
            Ok((*welcome, epoch, stream, Arc::new(Mutex::new(writer)), reader))
        }
        ToWorker::Refused(refusal) => Err(WorkerError::Refused(refusal)),
        _ => Err(WorkerError::Lost(SealError::Content("the leader's first message is no welcome".to_owned()))),
    }
}

/// Hears the leader out: answers it, and hands on what it says.
fn hear<D: Device>(mut reader: SealedReader, mouth: &Mouth, inbox: &InboxOf<D>, orders: &Sender<Order<D>>) {
    loop {
        let order = match reader.hear() {
            Ok(ToWorker::Ping) => {
                say(mouth, &ToLeader::Pong);
                continue;
            }
            Ok(ToWorker::Control(control)) => {
                // Between two posts there is nobody to tell.
                if let Some(inbox) = &*lock(inbox) {
                    let _ = inbox.send(Inbox::Control(control));
                }
                continue;
            }
            Ok(ToWorker::Post { post, generation, down }) => Order::Post { post, generation, down },
            Ok(ToWorker::Leave { post }) => Order::Leave { post },
            Ok(ToWorker::Exit) => Order::Exit,
            Ok(ToWorker::Welcome(_) | ToWorker::Refused(_)) => Order::Lost(SealError::Content("a second welcome".to_owned())),
            Err(error) => Order::Lost(error),
        };
        let last = matches!(order, Order::Exit | Order::Lost(_));
        if orders.send(order).is_err() || last {
            return;
        }
    }
}

/// A shift at a post.
struct Shift {
    post: u64,
    /// Its edges.
    streams: Vec<TcpStream>,
}

/// The worker of this process, at a post or between two.
struct Staff<D: Device> {
    stage: usize,
    epoch: Instant,
    patience: ProcessPatience,
    mouth: Mouth,
    inbox: InboxOf<D>,
    orders_in: Sender<Order<D>>,
    gate: Gate,
    letters: Option<Letters>,
    idle: Option<Box<Worker<D>>>,
    shift: Option<Shift>,
}

impl<D: Device<Activations = Vec<f32>> + 'static> Staff<D> {
    fn work(&mut self, orders: &Receiver<Order<D>>) -> Result<(), WorkerError> {
        // This end holds a sender itself, so the channel is never closed.
        while let Ok(order) = orders.recv() {
            match order {
                Order::Post { post, generation, down } => match self.begin(post, generation, down) {
                    Ok(()) => say(&self.mouth, &ToLeader::Posted { post }),
                    Err(problem) => say(&self.mouth, &ToLeader::NoPost { post, problem }),
                },
                Order::Leave { post } => self.stop() || say(&self.mouth, &ToLeader::Left { post }),
                Order::Ended(Ok(worker)) => {
                    self.idle = Some(worker);
                    let post = self.end();
                    say(&self.mouth, &ToLeader::Left { post })
                }
                Order::Ended(Err(problem)) => {
                    self.end();
                    let died = Report::Died { stage: self.stage, life: 0, problem: problem.clone() };
                    say(&self.mouth, &ToLeader::Report(died));
                    return Err(WorkerError::Device(problem));
                }
                Order::Exit => {
                    self.wind_up(orders);
                    return Ok(());
                }
                Order::Lost(error) => {
                    self.wind_up(orders);
                    return Err(WorkerError::Lost(error));
                }
            };
        }
        Ok(())
    }

    /// Tells the shift to end. False: there is none.
    fn stop(&self) -> bool {
        lock(&self.inbox).as_ref().is_some_and(|inbox| inbox.send(Inbox::Control(Control::Stop)).is_ok())
    }

    /// A shift is over; whoever is at the other end of its edges is told.
    fn end(&mut self) -> u64 {
        *lock(&self.inbox) = None;
        let shift = self.shift.take();
        shift.map_or(0, |shift| {
            shift.streams.iter().for_each(shut);
            shift.post
        })
    }

    /// The process ends: a batch that runs may end, but is not waited for long.
    fn wind_up(&mut self, orders: &Receiver<Order<D>>) {
        let until = Instant::now() + self.patience.handshake;
        if self.stop() {
            loop {
                match orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(Order::Ended(_)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                    Ok(_) => {}
                }
            }
        }
        self.end();
    }

    /// Makes the edges of a post and begins to work at it.
    fn begin(&mut self, post: u64, generation: u64, down: Option<SocketAddr>) -> Result<(), String> {
        let Some(mut worker) = self.idle.take() else { return Err("it is still at work".to_owned()) };
        let edges = self.edges(post, down);
        let (up, down) = match edges {
            Ok(edges) => edges,
            Err(problem) => {
                self.idle = Some(worker);
                return Err(problem);
            }
        };
        let streams = [up.as_ref().map(EdgeReceiver::stream), down.as_ref().map(EdgeSender::stream)];
        let streams = streams.into_iter().flatten().filter_map(|stream| stream.try_clone().ok()).collect();
        self.shift = Some(Shift { post, streams });
        let (to_inbox, inbox) = channel();
        *lock(&self.inbox) = Some(to_inbox.clone());
        let (stage, epoch, mouth, ended) = (self.stage, self.epoch, Arc::clone(&self.mouth), self.orders_in.clone());
        let up = up.map(|up| Box::new(up) as Box<dyn FrameReceiver<Vec<f32>>>);
        let down = down.map(|down| Box::new(down) as Box<dyn FrameSender<Vec<f32>>>);
        let (up, down) = match &self.letters {
            Some(letters) => letters.at_post(up, down),
            None => (up, down),
        };
        let post = Post {
            stage,
            epoch,
            generation,
            inbox,
            to_inbox,
            up,
            down,
            report: Box::new(move |report| say(&mouth, &ToLeader::Report(report))),
        };
        thread::spawn(move || {
            let end = match catch_unwind(AssertUnwindSafe(|| worker.work(post))) {
                Ok(Left::Stopped) => Ok(worker),
                Ok(Left::Lost(problem)) => Err(problem),
                Err(panic) => Err(panic_text(&*panic)),
            };
            let _ = ended.send(Order::Ended(end));
        });
        Ok(())
    }

    fn edges(&self, post: u64, down: Option<SocketAddr>) -> Result<(Option<EdgeReceiver>, Option<EdgeSender>), String> {
        // First to the stage behind: its gate opens by itself, so nobody waits in a circle.
        let down = down.map(|address| {
            self.gate.connect(address, post).map_err(|error| format!("the stage behind it at {address} cannot be reached: {error}"))
        });
        let down = down.transpose()?;
        let up = (self.stage > 0).then(|| self.gate.wait(post).ok_or("the stage before it has not come"));
        Ok((up.transpose()?, down))
    }
}
