//! Who may talk: both ends of a connection prove that they know the secret, before anything else is read.
//!
//! ```text
//! client                                                                            server
//!   ── CPPW, protocol, purpose, random number ────────────────────────────────────▶           40 bytes
//!   ◀──────────────────────────────── CPPW, protocol, verdict, another random number ──       40 bytes
//!   ── HMAC(secret, "client", both) ───────────────────────────────────────────────▶          32 bytes
//!   ◀─────────────────────────────────────── verdict, HMAC(secret, "server", both) ──         33 bytes
//! ```
//!
//! All are of fixed length, so a stranger can announce no length; all must be there by a deadline, so one who does not speak, or speaks a
//! byte at a time, holds nothing for long. The client proves itself first: a stranger gets no code to try secrets out on. Random numbers never
//! come again, so neither does a proof. Each direction's key for what follows is a code of both numbers too.

use std::fmt;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::sealed::{SealError, SealedReader, SealedWriter, read_until};
use super::secret::{Code, Secret, random, same};

/// What is said between processes, by number; both ends must say the same.
pub const PROTOCOL: u16 = 1;

const MAGIC: [u8; 4] = *b"CPPW";
const FINE: u8 = 0;
const OTHER_PROTOCOL: u8 = 1;
const OTHER_SECRET: u8 = 2;

/// What may be said before it is known who speaks for what: a name and a few numbers.
const FIRST_MESSAGE: u64 = 4096;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A worker and the leader.
    Control = 1,
    /// A stage and the one before it.
    Edge = 2,
}

/// Why a connection was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end does not speak like a process of a pipeline.
    Stranger,
    /// The other end is of another version.
    Protocol {
        /// Ours.
        ours: u16,
        /// Theirs.
        theirs: u16,
    },
    /// The other end does not know the secret.
    Secret,
    /// The other end wants something that it cannot get here.
    Purpose(u8),
    /// The connection ended, or nothing came in time.
    Connection(SealError),
    /// This end cannot begin.
    Random(String),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stranger => f.write_str("it does not speak like a process of a pipeline"),
            Self::Protocol { ours, theirs } => {
                write!(f, "it speaks version {theirs} of the protocol, this process version {ours}: run the same cpp-run everywhere")
            }
            Self::Secret => f.write_str("it does not have the same secret: give all processes the same CPP_SECRET or CPP_SECRET_FILE"),
            Self::Purpose(purpose) => write!(f, "it wants a connection of kind {purpose}, which there is none of here"),
            Self::Connection(error) => error.fmt(f),
            Self::Random(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for HandshakeError {}

impl From<SealError> for HandshakeError {
    fn from(error: SealError) -> Self {
        Self::Connection(error)
    }
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> Self {
        Self::Connection(error.into())
    }
}

/// Both directions of a connection whose other end is known.
pub(super) type Ends = (SealedWriter, SealedReader);

fn hello(protocol: u16, byte: u8) -> Result<[u8; 40], HandshakeError> {
    let mut hello = [0; 40];
    hello[..4].copy_from_slice(&MAGIC);
    hello[4..6].copy_from_slice(&protocol.to_le_bytes());
    hello[6] = byte;
    hello[8..].copy_from_slice(&random().map_err(|error| HandshakeError::Random(error.to_string()))?);
    Ok(hello)
}

/// The protocol that the other end speaks.
fn protocol_of(hello: &[u8; 40]) -> Result<u16, HandshakeError> {
    if hello[..4] == MAGIC { Ok(u16::from_le_bytes([hello[4], hello[5]])) } else { Err(HandshakeError::Stranger) }
}

fn ends(stream: &TcpStream, write: &Code, read: &Code, patience: Duration) -> Result<Ends, HandshakeError> {
    let mut reader = SealedReader::new(stream.try_clone()?, read, FIRST_MESSAGE);
    reader.set_limits(FIRST_MESSAGE, Some(patience))?;
    Ok((SealedWriter::new(stream.try_clone()?, write), reader))
}

/// The client's part.
pub(super) fn greet(stream: &TcpStream, secret: &Secret, purpose: Purpose, patience: Duration) -> Result<Ends, HandshakeError> {
    greet_as(PROTOCOL, stream, secret, purpose as u8, patience)
}

fn greet_as(protocol: u16, stream: &TcpStream, secret: &Secret, purpose: u8, patience: Duration) -> Result<Ends, HandshakeError> {
    let until = Instant::now() + patience;
    let mut stream = stream;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(patience))?;
    let ours = hello(protocol, purpose)?;
    stream.write_all(&ours)?;
    let mut theirs = [0; 40];
    read_until(&mut stream, &mut theirs, until, patience)?;
    let spoken = protocol_of(&theirs)?;
    if spoken != protocol {
        return Err(HandshakeError::Protocol { ours: protocol, theirs: spoken });
    }
    if theirs[6] != FINE || theirs[8..] == ours[8..] {
        // No server's answer: an echo of what was sent, say.
        return Err(HandshakeError::Stranger);
    }
    stream.write_all(&secret.code("client", &[&ours, &theirs]))?;
    let mut verdict = [0; 33];
    // Of a refusal one byte may be all that comes.
    read_until(&mut stream, &mut verdict[..1], until, patience)?;
    match verdict[0] {
        FINE => {}
        OTHER_SECRET => return Err(HandshakeError::Secret),
        _ => return Err(HandshakeError::Stranger),
    }
    read_until(&mut stream, &mut verdict[1..], until, patience)?;
    let proof: Code = std::array::from_fn(|at| verdict[at + 1]);
    if !same(&proof, &secret.code("server", &[&ours, &theirs])) {
        return Err(HandshakeError::Secret);
    }
    let key = |direction| secret.code(direction, &[&ours, &theirs]);
    ends(stream, &key("client to server"), &key("server to client"), patience)
}

/// The server's part.
pub(super) fn answer(stream: &TcpStream, secret: &Secret, purpose: Purpose, patience: Duration) -> Result<Ends, HandshakeError> {
    let until = Instant::now() + patience;
    let mut stream = stream;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(patience))?;
    let mut theirs = [0; 40];
    read_until(&mut stream, &mut theirs[..4], until, patience)?;
    if theirs[..4] != MAGIC {
        // A stranger is told nothing.
        return Err(HandshakeError::Stranger);
    }
    read_until(&mut stream, &mut theirs[4..], until, patience)?;
    let spoken = protocol_of(&theirs)?;
    let ours = hello(PROTOCOL, if spoken == PROTOCOL { FINE } else { OTHER_PROTOCOL })?;
    stream.write_all(&ours)?;
    if spoken != PROTOCOL {
        return Err(HandshakeError::Protocol { ours: PROTOCOL, theirs: spoken });
    }
    let mut proof: Code = [0; 32];
    read_until(&mut stream, &mut proof, until, patience)?;
    if !same(&proof, &secret.code("client", &[&theirs, &ours])) {
        stream.write_all(&[OTHER_SECRET])?;
        return Err(HandshakeError::Secret);
    }
    if theirs[6] != purpose as u8 {
        return Err(HandshakeError::Purpose(theirs[6]));
    }
    let mut verdict = [FINE; 33];
    verdict[1..].copy_from_slice(&secret.code("server", &[&theirs, &ours]));
    stream.write_all(&verdict)?;
    let key = |direction| secret.code(direction, &[&theirs, &ours]);
    ends(stream, &key("server to client"), &key("client to server"), patience)
}

#[cfg(test)]
mod tests;
