//! Messages over a connection whose ends know each other: nobody can put one in, change one, or send one again.
//!
//! A message is its length as a little-endian `u32`, its bytes, and the HMAC-SHA-256 over its number and its bytes under the key of this
//! direction of this connection. It is not encrypted: where others can listen in on a network, let it go through a tunnel.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::secret::{Code, keyed, same};

/// Why no message came, or none can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SealError {
    /// The other end is gone.
    Closed,
    /// Nothing came for so long.
    Silent(Duration),
    /// A message is longer than any that is due here.
    Long {
        /// Bytes that it claims to have.
        claimed: u64,
        /// Bytes that it may have.
        most: u64,
    },
    /// What came was not made by the other end, or does not come next.
    Forged,
    /// It is no message that is known.
    Content(String),
    /// The connection failed.
    Io(String),
}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed by the other end"),
            Self::Silent(time) => write!(f, "nothing was heard for {:.1} s", time.as_secs_f64()),
            Self::Long { claimed, most } => write!(f, "a message of {claimed} bytes was announced, {most} are allowed"),
            Self::Forged => f.write_str("a message does not carry the code of the other end"),
            Self::Content(problem) => write!(f, "a message is not understood: {problem}"),
            Self::Io(problem) => write!(f, "the connection failed: {problem}"),
        }
    }
}

impl std::error::Error for SealError {}

impl From<io::Error> for SealError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::UnexpectedEof | Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::NotConnected => Self::Closed,
            _ => Self::Io(error.to_string()),
        }
    }
}

/// Reads exactly so many bytes until then, however slowly they come.
pub(super) fn read_until(stream: &mut &TcpStream, bytes: &mut [u8], until: Instant, patience: Duration) -> Result<(), SealError> {
    let mut done = 0;
    while done < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(SealError::Silent(patience));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return Err(SealError::Closed),
            Ok(read) => done += read,
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The end that messages go into.
#[derive(Debug)]
pub(super) struct SealedWriter {
    stream: TcpStream,
    key: Hmac<Sha256>,
    number: u64,
    bytes: Vec<u8>,
}

/// The end that messages come out of.
#[derive(Debug)]
pub(super) struct SealedReader {
    stream: TcpStream,
    key: Hmac<Sha256>,
    number: u64,
    bytes: Vec<u8>,
    most: u64,
    silence: Option<Duration>,
}

fn seal(key: &Hmac<Sha256>, number: u64, bytes: &[u8]) -> Code {
    let mut hmac = key.clone();
    hmac.update(&number.to_le_bytes());
    hmac.update(bytes);
    hmac.finalize().into_bytes().into()
}

impl SealedWriter {
    pub(super) fn new(stream: TcpStream, key: &Code) -> Self {
        Self { stream, key: keyed(key), number: 0, bytes: Vec::new() }
    }

    /// Sends what `fill` puts behind the bytes that it is given. O(bytes).
    pub(super) fn send_with(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Result<(), SealError> {
        self.bytes.clear();
        self.bytes.extend([0; 4]);
        fill(&mut self.bytes);
        let length = self.bytes.len() - 4;
        let announced = u32::try_from(length).map_err(|_| SealError::Long { claimed: length as u64, most: u32::MAX.into() })?;
        self.bytes[..4].copy_from_slice(&announced.to_le_bytes());
        let code = seal(&self.key, self.number, &self.bytes[4..]);
        self.number += 1;
        self.bytes.extend(code);
        self.stream.write_all(&self.bytes).map_err(|error| match error {
            error if is_timeout(&error) => SealError::Silent(self.stream.write_timeout().ok().flatten().unwrap_or_default()),
            error => error.into(),
        })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), SealError> {
        self.send_with(|out| out.extend_from_slice(bytes))
    }
}

impl SealedReader {
    pub(super) fn new(stream: TcpStream, key: &Code, most: u64) -> Self {
        Self { stream, key: keyed(key), number: 0, bytes: Vec::new(), most, silence: None }
    }

    /// From now on messages may be so long, and may take so long to come; `None`: any time.
    pub(super) fn set_limits(&mut self, most: u64, silence: Option<Duration>) -> Result<(), SealError> {
        (self.most, self.silence) = (most, silence);
        Ok(self.stream.set_read_timeout(silence)?)
    }

    /// The connection itself, to be shut from elsewhere.
    pub(super) const fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The next message. Room is taken for bytes that have come, not for those that were announced.
    pub(super) fn receive(&mut self) -> Result<&[u8], SealError> {
        let silence = self.silence.unwrap_or_default();
        let late = |error: io::Error| if is_timeout(&error) { SealError::Silent(silence) } else { error.into() };
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(late)?;
        let claimed = u64::from(u32::from_le_bytes(length));
        if claimed > self.most {
            return Err(SealError::Long { claimed, most: self.most });
        }
        self.bytes.clear();
        let read = (&self.stream).take(claimed).read_to_end(&mut self.bytes).map_err(late)?;
        if (read as u64) < claimed {
            return Err(SealError::Closed);
        }
        let mut code = [0; 32];
        self.stream.read_exact(&mut code).map_err(late)?;
        if !same(&code, &seal(&self.key, self.number, &self.bytes)) {
            return Err(SealError::Forged);
        }
        self.number += 1;
        Ok(&self.bytes)
    }
}

/// Ends a connection for both sides, whoever else holds it.
pub(super) fn shut(stream: &TcpStream) {
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::{SealError, SealedReader, SealedWriter};
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// The bytes of a message, as they go over the wire.
    fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
        let (one, other) = pair();
        let mut writer = SealedWriter { number, ..SealedWriter::new(one, &[7; 32]) };
        writer.send(content).unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &other, &mut bytes).unwrap();
        bytes
    }

    fn received(bytes: &[u8], most: u64) -> Result<Vec<u8>, SealError> {
        let (mut one, other) = pair();
        one.write_all(bytes).unwrap();
        drop(one);
        SealedReader::new(other, &[7; 32], most).receive().map(<[u8]>::to_vec)
    }

    #[test]
    fn messages_come_in_order_and_only_once() {
        let (one, other) = pair();
        let (mut writer, mut reader) = (SealedWriter::new(one, &[7; 32]), SealedReader::new(other, &[7; 32], 100));
        for content in [&b"first"[..], b"", b"third"] {
            writer.send(content).unwrap();
            assert_eq!(reader.receive().unwrap(), content);
        }
        drop(writer);
        assert_eq!(reader.receive(), Err(SealError::Closed));
        assert_eq!(received(&bytes(0, b"x"), 9), Ok(b"x".to_vec()));
        assert_eq!(received(&bytes(1, b"x"), 9), Err(SealError::Forged), "sent again, or one was left out");
    }

    #[test]
    fn a_changed_bit_a_cut_and_a_huge_length_are_told_apart() {
        let whole = bytes(0, b"content");
        for at in 4..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            assert_eq!(received(&changed, 9), Err(SealError::Forged), "byte {at}");
        }
        for end in 0..whole.len() {
            assert_eq!(received(&whole[..end], 9), Err(SealError::Closed), "{end} bytes");
        }
        let mut huge = whole;
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(received(&huge, 9), Err(SealError::Long { claimed: u32::MAX.into(), most: 9 }));
        // Within what is allowed: no more room is taken than bytes come.
        assert_eq!(received(&huge, u64::MAX), Err(SealError::Closed));
    }

    #[test]
    fn silence_is_told() {
        let (one, other) = pair();
        let mut reader = SealedReader::new(other, &[7; 32], 9);
        reader.set_limits(9, Some(Duration::from_millis(30))).unwrap();
        assert_eq!(reader.receive(), Err(SealError::Silent(Duration::from_millis(30))));
        drop(one);
    }
}
