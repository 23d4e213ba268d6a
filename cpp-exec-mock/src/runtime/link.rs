//! Edges between stages: in one process, or over a socket.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::mpsc;
use std::time::Duration;

use super::message::Frame;
use super::process::SealError;
use super::stub::rest;

/// Why a frame did not come over.
#[derive(Debug)]
#[non_exhaustive]
pub enum LinkError {
    /// The other end is gone.
    Closed,
    /// The connection failed.
    Io(io::Error),
    /// What came is no frame, or one that is larger than any batch.
    Frame(&'static str),
    /// A connection between processes is broken, or somebody else has written to it.
    Sealed(SealError),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other end of the link is gone"),
            Self::Io(error) => write!(f, "link: {error}"),
            Self::Frame(problem) => write!(f, "what came over the link is no frame: {problem}"),
            Self::Sealed(error) => write!(f, "link: {error}"),
        }
    }
}

impl std::error::Error for LinkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

impl From<SealError> for LinkError {
    fn from(error: SealError) -> Self {
        if error == SealError::Closed { Self::Closed } else { Self::Sealed(error) }
    }
}

/// The end of an edge that frames go into, in order. Used by one thread, which does nothing else.
pub trait FrameSender<A>: Send {
    /// Sends a frame; may block until the other end has room.
    ///
    /// # Errors
    /// It cannot come over.
    fn send(&mut self, frame: Frame<A>) -> Result<(), LinkError>;
}

/// The end of an edge that frames come out of, in the order in which they went in. Used by one thread, which does nothing else.
pub trait FrameReceiver<A>: Send {
    /// Waits for the next frame.
    ///
    /// # Errors
    /// None will come, or what came is none.
    fn receive(&mut self) -> Result<Frame<A>, LinkError>;
}

/// Both ends of an edge.
pub type Edge<A> = (Box<dyn FrameSender<A>>, Box<dyn FrameReceiver<A>>);

/// Makes the edges of a pipeline, and makes them anew when a stage was lost.
pub trait Link<A>: Send {
    /// A new edge.
    ///
    /// # Errors
    /// There can be none.
    fn edge(&mut self) -> Result<Edge<A>, LinkError>;
}

/// Edges within one process: activations are handed over, not copied.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "nothing to set")]
pub struct ChannelLink;

impl<A: Send + 'static> Link<A> for ChannelLink {
    fn edge(&mut self) -> Result<Edge<A>, LinkError> {
        let (sender, receiver) = mpsc::channel::<Frame<A>>();
        Ok((Box::new(sender), Box::new(receiver)))
    }
}

impl<A: Send> FrameSender<A> for mpsc::Sender<Frame<A>> {
    fn send(&mut self, frame: Frame<A>) -> Result<(), LinkError> {
        Self::send(self, frame).map_err(|_| LinkError::Closed)
    }
}

impl<A: Send> FrameReceiver<A> for mpsc::Receiver<Frame<A>> {
    fn receive(&mut self) -> Result<Frame<A>, LinkError> {
        self.recv().map_err(|_| LinkError::Closed)
    }
}

/// Edges of another link on which each frame is under way for a while, one after the other: a slow network.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a link and its delay")]
pub struct DelayedLink<L> {
    /// What carries the frames.
    pub link: L,
    /// How long a frame takes.
    pub delay: Duration,
}

impl<A: Send + 'static, L: Link<A>> Link<A> for DelayedLink<L> {
    fn edge(&mut self) -> Result<Edge<A>, LinkError> {
        let (sender, receiver) = self.link.edge()?;
        Ok((Box::new(Delayed { sender, delay: self.delay }), receiver))
    }
}

struct Delayed<A> {
    sender: Box<dyn FrameSender<A>>,
    delay: Duration,
}

impl<A: Send> FrameSender<A> for Delayed<A> {
    fn send(&mut self, frame: Frame<A>) -> Result<(), LinkError> {
        rest(self.delay);
        self.sender.send(frame)
    }
}

/// Edges over local sockets: as between processes, within one.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "one limit")]
pub struct SocketLink {
    /// Numbers in a frame at most.
    pub max_numbers: usize,
}

#[cfg(unix)]
impl Link<Vec<f32>> for SocketLink {
    fn edge(&mut self) -> Result<Edge<Vec<f32>>, LinkError> {
        let (sender, receiver) = std::os::unix::net::UnixStream::pair().map_err(LinkError::Io)?;
        Ok((Box::new(StreamSender::new(sender)), Box::new(StreamReceiver::new(receiver, self.max_numbers))))
    }
}

const MAGIC: [u8; 4] = *b"CPPF";

/// Writes frames to a stream of bytes: `CPPF`, generation, batch and number of numbers as little-endian `u64`, then the numbers as `f32`.
#[derive(Debug)]
pub struct StreamSender<W> {
    stream: W,
    bytes: Vec<u8>,
}

impl<W: Write + Send> StreamSender<W> {
    /// Frames go into this stream.
    pub const fn new(stream: W) -> Self {
        Self { stream, bytes: Vec::new() }
    }
}

impl<W: Write + Send> FrameSender<Vec<f32>> for StreamSender<W> {
    fn send(&mut self, frame: Frame<Vec<f32>>) -> Result<(), LinkError> {
        self.bytes.clear();
        self.bytes.extend(MAGIC);
        for number in [frame.generation, frame.batch, frame.activations.len() as u64] {
            self.bytes.extend(number.to_le_bytes());
        }
        self.bytes.extend(frame.activations.iter().flat_map(|number| number.to_le_bytes()));
        self.stream.write_all(&self.bytes)?;
        Ok(self.stream.flush()?)
    }
}

/// Reads frames from a stream of bytes.
#[derive(Debug)]
pub struct StreamReceiver<R> {
    stream: R,
    max_numbers: usize,
    bytes: Vec<u8>,
}

impl<R: Read + Send> StreamReceiver<R> {
    /// Frames come out of this stream, with so many numbers at most.
    pub const fn new(stream: R, max_numbers: usize) -> Self {
        Self { stream, max_numbers, bytes: Vec::new() }
    }
}

impl<R: Read + Send> FrameReceiver<Vec<f32>> for StreamReceiver<R> {
    fn receive(&mut self) -> Result<Frame<Vec<f32>>, LinkError> {
        let mut header = [0; 28];
        self.stream.read_exact(&mut header)?;
        if header[..4] != MAGIC {
            return Err(LinkError::Frame("it does not begin as one"));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[4 + 8 * at + byte]));
        let count = usize::try_from(number(2)).ok().filter(|count| *count <= self.max_numbers);
        let count = count.ok_or(LinkError::Frame("it is larger than a batch can be"))?;
        self.bytes.resize(count * 4, 0);
        self.stream.read_exact(&mut self.bytes)?;
        let activations = self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Frame { generation: number(0), batch: number(1), activations })
    }
}

#[cfg(test)]
mod tests {
    use super::{ChannelLink, Frame, FrameReceiver, FrameSender, Link, LinkError, StreamReceiver, StreamSender};

    fn frame(batch: u64, numbers: usize) -> Frame<Vec<f32>> {
        Frame { generation: 3, batch, activations: (0..numbers).map(|n| n as f32 / 7.0).collect() }
    }

    fn carries(mut link: impl Link<Vec<f32>>) {
        let (mut sender, mut receiver) = link.edge().unwrap();
        let sending = std::thread::spawn(move || (0..20).for_each(|batch| sender.send(frame(batch, batch as usize * 1000)).unwrap()));
        for batch in 0..20 {
            assert_eq!(receiver.receive().unwrap(), frame(batch, batch as usize * 1000));
        }
        sending.join().unwrap();
        assert!(matches!(receiver.receive(), Err(LinkError::Closed)));
    }

    #[test]
    fn frames_come_over_in_order_and_an_end_is_told() {
        carries(ChannelLink);
        #[cfg(unix)]
        carries(super::SocketLink { max_numbers: 20_000 });
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut bytes = Vec::new();
        StreamSender::new(&mut bytes).send(frame(1, 5)).unwrap();
        let receive = |bytes: &[u8], most| StreamReceiver::new(bytes, most).receive();
        assert_eq!(receive(&bytes, 5).unwrap(), frame(1, 5));
        assert!(matches!(receive(&bytes, 4), Err(LinkError::Frame(_))));
        for end in 0..bytes.len() {
            assert!(matches!(receive(&bytes[..end], 5), Err(LinkError::Closed)));
        }
        bytes[0] = 0;
        assert!(matches!(receive(&bytes, 5), Err(LinkError::Frame(_))));
    }
}
