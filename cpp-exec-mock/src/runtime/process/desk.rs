//! Where workers join: a port, and who is let in.

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::ProcessPatience;
use super::handshake::{HandshakeError, Purpose, answer};
use super::message::{Join, LONGEST, Refusal, ToLeader, ToWorker, VERSION, Welcome};
use super::sealed::{SealError, SealedReader, SealedWriter};
use super::secret::Secret;
use super::visitors::{Visit, Visitors};

/// Connections beyond the workers' own that may be on their way in.
const VISITORS: usize = 64;
/// Refusals that nobody has asked about yet; of more there is no word, since strangers make as many as they like.
const UNTOLD: usize = 1024;
/// A worker that comes again may be here before the end of the one before it was noticed: it waits so long for its seat.
const FREED: Duration = Duration::from_secs(1);

/// A connection that came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// Where it came from.
    pub from: SocketAddr,
    /// Why.
    pub error: JoinError,
}

/// Why a connection does not become a worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinError {
    /// It did not prove itself.
    Handshake(HandshakeError),
    /// It did, but did not say who it is.
    Connection(SealError),
    /// There is no place for it.
    Refusal(Refusal),
    /// Too many others were on their way in, and it had not proven itself when they came.
    Busy,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection from {} was refused: ", self.from)?;
        match &self.error {
            JoinError::Handshake(error) => error.fmt(f),
            JoinError::Connection(error) => error.fmt(f),
            JoinError::Refusal(error) => error.fmt(f),
            JoinError::Busy => f.write_str("too many others were being judged"),
        }
    }
}

/// A worker that has joined.
#[derive(Debug)]
pub(super) struct Member {
    /// Which of all that ever joined, from 1 on.
    pub(super) life: u64,
    pub(super) pid: u32,
    /// Its host, as the leader reaches it.
    pub(super) host: IpAddr,
    pub(super) out: Sender<ToWorker>,
    pub(super) stream: TcpStream,
}

/// What happens at the desk.
#[derive(Debug)]
pub(super) enum Event {
    Joined { stage: usize, member: Member },
    Said { stage: usize, life: u64, message: ToLeader },
    Gone { stage: usize, life: u64, problem: String },
    Refused(Refused),
}

/// What everybody is told, and who sits where.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) secret: Secret,
    pub(super) config: String,
    pub(super) layers: Vec<Range<usize>>,
    pub(super) max_numbers: u64,
    pub(super) model: [u8; 32],
    pub(super) patience: ProcessPatience,
    pub(super) epoch: Instant,
    /// Life and process of each stage's worker.
    seats: Mutex<Vec<Option<(u64, u32)>>>,
    lives: AtomicU64,
    visitors: Arc<Visitors>,
    untold: AtomicUsize,
    closed: AtomicBool,
}

impl Desk {
    pub(super) fn new(
        secret: Secret,
        config: String,
        layers: Vec<Range<usize>>,
        max_numbers: u64,
        model: [u8; 32],
        patience: ProcessPatience,
    ) -> Self {
        Self {
            seats: Mutex::new(vec![None; layers.len()]),
            visitors: Visitors::new(VISITORS + layers.len()),
            secret,
            config,
            layers,
            max_numbers,
            model,
            patience,
            epoch: Instant::now(),
            lives: AtomicU64::new(0),
            untold: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Option<(u64, u32)>>> {
        // Nobody panics while holding it; and each place is whole at any time.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of a seat, unless somebody else has it.
    pub(super) fn free(&self, stage: usize, life: u64) {
        if let Some(seat) = self.seats().get_mut(stage)
            && seat.is_some_and(|(other, _)| other == life)
        {
            *seat = None;
        }
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self, address: SocketAddr) {
        self.closed.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        drop(TcpStream::connect_timeout(&address, Duration::from_millis(200)));
    }

    /// Lets workers in, each in a thread of its own, until it is closed.
    pub(super) fn open(self: &Arc<Self>, listener: TcpListener, events: Sender<Event>) {
        let desk = Arc::clone(self);
        thread::spawn(move || {
            loop {
                let accepted = listener.accept();
                if desk.closed.load(Ordering::Relaxed) {
                    return;
                }
                let Ok((stream, from)) = accepted else {
                    // Out of descriptors, say: others will be given back.
                    thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let visit = desk.visitors.admit(&stream);
                let (own, to_leader) = (Arc::clone(&desk), events.clone());
                // Without a thread for it the connection ends with the closure that holds it.
                let judging = visit.map(|visit| thread::Builder::new().spawn(move || own.receive(&stream, from, visit, &to_leader)));
                if !matches!(judging, Some(Ok(_))) {
                    desk.refuse(from, JoinError::Busy, &events);
                }
            }
        });
    }

    /// Judges a connection, and serves it if it is a worker's.
    fn receive(&self, stream: &TcpStream, from: SocketAddr, visit: Visit, events: &Sender<Event>) {
        let (stage, life, pid, writer, mut reader) = match self.judge(stream, visit) {
            Ok(judged) => judged,
            Err(error) => return self.refuse(from, error, events),
        };
        let problem = match self.serve(stream, from, (stage, life, pid), writer, &mut reader, events) {
            Ok(()) => return,
            Err(error) => error.to_string(),
        };
        // In this order: whoever comes next is heard of after this.
        let _ = events.send(Event::Gone { stage, life, problem });
        self.free(stage, life);
    }

    /// Tells the leader of a connection that came to nothing.
    fn refuse(&self, from: SocketAddr, error: JoinError, events: &Sender<Event>) {
        if self.untold.fetch_add(1, Ordering::Relaxed) < UNTOLD {
            let _ = events.send(Event::Refused(Refused { from, error }));
        } else {
            self.told();
        }
    }

    /// A refusal was taken from the queue.
    pub(super) fn told(&self) {
        self.untold.fetch_sub(1, Ordering::Relaxed);
    }

    fn judge(&self, stream: &TcpStream, visit: Visit) -> Result<(usize, u64, u32, SealedWriter, SealedReader), JoinError> {
        let ends = answer(stream, &self.secret, Purpose::Control, self.patience.handshake);
        let (mut writer, mut reader) =
            ends.map_err(|error| if visit.was_sent_away() { JoinError::Busy } else { JoinError::Handshake(error) })?;
        // Whoever knows the secret makes room for nobody.
        drop(visit);
        let join = match reader.hear().map_err(JoinError::Connection)? {
            ToLeader::Join(join) => join,
            _ => return Err(JoinError::Connection(SealError::Content("the first message says who joins".to_owned()))),
        };
        match self.seat_soon(&join) {
            Ok(life) => Ok((join.rank, life, join.pid, writer, reader)),
            Err(refusal) => {
                // Who has hung up already need not be told.
                let _ = writer.say(&ToWorker::Refused(refusal.clone()));
                Err(JoinError::Refusal(refusal))
            }
        }
    }

    /// A seat, if it is free or gets free in a moment.
    fn seat_soon(&self, join: &Join) -> Result<u64, Refusal> {
        // The worker waits for an answer no longer than this.
        let until = Instant::now() + FREED.min(self.patience.handshake / 2);
        loop {
            match self.seat(join) {
                Err(Refusal::Taken { .. }) if Instant::now() < until && !self.closed.load(Ordering::Relaxed) => {
                    thread::sleep(Duration::from_millis(10));
                }
                seated => return seated,
            }
        }
    }

    fn seat(&self, join: &Join) -> Result<u64, Refusal> {
        let (rank, stages) = (join.rank, self.layers.len());
        if join.version != VERSION {
            return Err(Refusal::Version { leader: VERSION.to_owned(), worker: join.version.chars().take(40).collect() });
        }
        if rank >= stages {
            return Err(Refusal::Rank { rank, stages });
        }
        if join.world_size != stages {
            return Err(Refusal::WorldSize { world_size: join.world_size, stages });
        }
        if join.model != self.model {
            return Err(Refusal::Model { rank });
        }
        let seat = &mut self.seats()[rank];
        if let Some((_, pid)) = *seat {
            return Err(Refusal::Taken { rank, pid });
        }
        let life = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        *seat = Some((life, join.pid));
        Ok(life)
    }

    /// Welcomes a worker and hands on what it says until it is gone. Ok: nobody listens any more.
    fn serve(
        &self,
        stream: &TcpStream,
        from: SocketAddr,
        (stage, life, pid): (usize, u64, u32),
        writer: SealedWriter,
        reader: &mut SealedReader,
        events: &Sender<Event>,
    ) -> Result<(), SealError> {
        let silence = self.patience.silence;
        stream.set_write_timeout(Some(silence))?;
        reader.set_limits(LONGEST, Some(silence))?;
        let (out, messages) = channel();
        let welcome = Welcome {
            stage,
            stages: self.layers.len(),
            layers: self.layers[stage].clone(),
            config: self.config.clone(),
            max_numbers: self.max_numbers,
            now_ns: u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX),
        };
        let _ = out.send(ToWorker::Welcome(Box::new(welcome)));
        let (ours, ping) = (stream.try_clone()?, silence / 4);
        thread::spawn(move || write(writer, &messages, &ours, ping));
        let member = Member { life, pid, host: from.ip(), out, stream: stream.try_clone()? };
        if events.send(Event::Joined { stage, member }).is_err() {
            return Ok(());
        }
        loop {
            let message = reader.hear()?;
            if events.send(Event::Said { stage, life, message }).is_err() {
                return Ok(());
            }
        }
    }
}

/// Sends what there is to say, and now and then that the leader is there.
fn write(mut writer: SealedWriter, messages: &Receiver<ToWorker>, stream: &TcpStream, ping: Duration) {
    loop {
        let message = match messages.recv_timeout(ping) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => ToWorker::Ping,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if writer.say(&message).is_err() {
            // Whoever reads from it finds out.
            super::sealed::shut(stream);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Desk, Event, Join, JoinError, Refusal, Secret, UNTOLD, VERSION};
    use crate::runtime::process::ProcessPatience;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    fn desk() -> Desk {
        let secret = Secret::new("a secret of the tests").unwrap();
        Desk::new(secret, String::new(), vec![0..2, 2..4], 1, [1; 32], ProcessPatience::default())
    }

    fn join(rank: usize) -> Join {
        Join { version: VERSION.to_owned(), rank, world_size: 2, model: [1; 32], pid: 77 }
    }

    #[test]
    fn a_seat_is_for_one_and_for_the_next_when_it_is_free() {
        let desk = desk();
        let first = desk.seat(&join(1)).unwrap();
        assert_eq!(desk.seat(&join(1)), Err(Refusal::Taken { rank: 1, pid: 77 }));
        assert!(desk.seat(&join(0)).is_ok());
        desk.free(1, first);
        let second = desk.seat(&join(1)).unwrap();
        desk.free(1, first);
        assert_eq!(desk.seat(&join(1)), Err(Refusal::Taken { rank: 1, pid: 77 }), "{second} has not left");
    }

    #[test]
    fn a_worker_that_is_back_before_its_end_was_noticed_gets_its_seat() {
        let desk = desk();
        let first = desk.seat_soon(&join(1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                desk.free(1, first);
            });
            assert_eq!(desk.seat_soon(&join(1)), Ok(first + 1));
        });
        let taken = Refusal::Taken { rank: 1, pid: 77 };
        assert_eq!(desk.seat_soon(&join(1)), Err(taken), "the second is there, and stays");
    }

    #[test]
    fn a_flood_of_refusals_takes_no_room_without_end() {
        let (desk, (sender, events)) = (desk(), channel());
        let refuse = |times| (0..times).for_each(|_| desk.refuse(([127, 0, 0, 1], 1).into(), JoinError::Busy, &sender));
        refuse(10 * UNTOLD);
        assert_eq!(events.try_iter().map(|event| assert!(matches!(event, Event::Refused(_)))).count(), UNTOLD);
        // As the leader does for each that it has taken.
        desk.told();
        refuse(3);
        assert_eq!(events.try_iter().count(), 1);
    }

    #[test]
    fn each_wrong_worker_is_told_what_is_wrong_with_it() {
        let seat = |join| desk().seat(&join).unwrap_err();
        let version = Join { version: "0.0.1".to_owned(), ..join(0) };
        assert_eq!(seat(version), Refusal::Version { leader: VERSION.to_owned(), worker: "0.0.1".to_owned() });
        assert_eq!(seat(join(2)), Refusal::Rank { rank: 2, stages: 2 });
        assert_eq!(seat(Join { world_size: 3, ..join(0) }), Refusal::WorldSize { world_size: 3, stages: 2 });
        assert_eq!(seat(Join { model: [2; 32], ..join(1) }), Refusal::Model { rank: 1 });
    }
}
