//! Edges between stages that are processes: each worker has a gate, a port that the stage before it comes to.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::ProcessPatience;
use super::handshake::{HandshakeError, Purpose, answer, greet};
use super::message::Edge;
use super::sealed::{SealError, SealedReader, SealedWriter};
use super::secret::Secret;
use super::serve::WorkerOptions;
use super::visitors::{Visit, Visitors};
use crate::runtime::link::{FrameReceiver, FrameSender, LinkError, StreamReceiver, StreamSender};
use crate::runtime::message::Frame;

/// Connections that may be on their way in.
const VISITORS: usize = 64;
/// What a frame has beside its numbers.
const FRAME_HEADER: u64 = 28;

/// Where the stage before comes in, and the way to the one behind.
#[derive(Debug)]
pub(super) struct Gate {
    stage: usize,
    secret: Secret,
    patience: ProcessPatience,
    address: SocketAddr,
    arrived: Receiver<(Edge, EdgeReceiver)>,
    closed: Arc<AtomicBool>,
}

/// The end of an edge that frames go into.
#[derive(Debug)]
pub(super) struct EdgeSender {
    writer: SealedWriter,
    stream: TcpStream,
}

/// The end of an edge that frames come out of.
#[derive(Debug)]
pub(super) struct EdgeReceiver {
    reader: SealedReader,
    max_numbers: u64,
}

impl Gate {
    /// Opens a gate at the address with which the leader is reached: where that is the loopback, so is this.
    pub(super) fn open(control: &TcpStream, options: &WorkerOptions, max_numbers: u64) -> Result<Self, SealError> {
        let listener = TcpListener::bind((control.local_addr()?.ip(), 0))?;
        let address = listener.local_addr()?;
        let (sender, arrived) = channel();
        let (secret, patience, closed) = (options.secret.clone(), options.patience, Arc::new(AtomicBool::new(false)));
        let gate = Self { stage: options.place.rank, secret: secret.clone(), patience, address, arrived, closed: Arc::clone(&closed) };
        thread::spawn(move || {
            let visitors = Visitors::new(VISITORS);
            loop {
                let accepted = listener.accept();
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                let Ok((stream, _)) = accepted else {
                    thread::sleep(Duration::from_millis(50));
                    continue;
                };
                let Some(visit) = visitors.admit(&stream) else { continue };
                let (secret, sender) = (secret.clone(), sender.clone());
                // Without a thread for it the connection ends with the closure that holds it.
                let _ = thread::Builder::new().spawn(move || receive(&stream, visit, &secret, patience.handshake, max_numbers, &sender));
            }
        });
        Ok(gate)
    }

    pub(super) const fn port(&self) -> u16 {
        self.address.port()
    }

    /// The edge from the stage before, if it comes.
    pub(super) fn wait(&self, post: u64) -> Option<EdgeReceiver> {
        let until = Instant::now() + self.patience.handshake;
        loop {
            // Those of earlier posts are over.
            let (edge, receiver) = self.arrived.recv_timeout(until.saturating_duration_since(Instant::now())).ok()?;
            if edge == (Edge { post, from: self.stage - 1 }) {
                return Some(receiver);
            }
        }
    }

    /// An edge to the stage behind.
    pub(super) fn connect(&self, address: SocketAddr, post: u64) -> Result<EdgeSender, HandshakeError> {
        let stream = TcpStream::connect_timeout(&address, self.patience.handshake)?;
        let (mut writer, _) = greet(&stream, &self.secret, Purpose::Edge, self.patience.handshake)?;
        writer.say(&Edge { post, from: self.stage })?;
        stream.set_write_timeout(Some(self.patience.silence))?;
        Ok(EdgeSender { writer, stream })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for connections.
        drop(TcpStream::connect_timeout(&self.address, Duration::from_millis(200)));
    }
}

/// Judges a connection. Strangers are told nothing, and nobody is told of them: the leader's desk is where they are counted.
fn receive(
    stream: &TcpStream,
    visit: Visit,
    secret: &Secret,
    patience: Duration,
    max_numbers: u64,
    arrived: &Sender<(Edge, EdgeReceiver)>,
) {
    let Ok((_, mut reader)) = answer(stream, secret, Purpose::Edge, patience) else { return };
    // Whoever knows the secret makes room for nobody.
    drop(visit);
    let Ok(edge) = reader.hear() else { return };
    // The next frame may take any time.
    if reader.set_limits(FRAME_HEADER + 4 * max_numbers, None).is_ok() {
        let _ = arrived.send((edge, EdgeReceiver { reader, max_numbers }));
    }
}

impl EdgeSender {
    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl EdgeReceiver {
    pub(super) const fn stream(&self) -> &TcpStream {
        self.reader.stream()
    }
}

impl FrameSender<Vec<f32>> for EdgeSender {
    fn send(&mut self, frame: Frame<Vec<f32>>) -> Result<(), LinkError> {
        let mut written = Ok(());
        self.writer.send_with(|bytes| written = StreamSender::new(bytes).send(frame))?;
        written
    }
}

impl FrameReceiver<Vec<f32>> for EdgeReceiver {
    fn receive(&mut self) -> Result<Frame<Vec<f32>>, LinkError> {
        let most = usize::try_from(self.max_numbers).unwrap_or(usize::MAX);
        StreamReceiver::new(self.reader.receive()?, most).receive()
    }
}
