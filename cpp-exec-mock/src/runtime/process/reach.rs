//! A worker's way to its leader, which may come later than the worker.

use std::io::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::thread;
use std::time::{Duration, Instant};

use super::handshake::{Ends, HandshakeError, Purpose, greet};
use super::rendezvous::Rendezvous;
use super::serve::{WorkerError, WorkerOptions};

/// A connection to the leader, as soon as there is one.
pub(super) fn reach(options: &WorkerOptions) -> Result<(TcpStream, Ends), WorkerError> {
    let (place, patience) = (&options.place, options.patience);
    let leader = format!("{}:{}", place.host, place.port);
    let until = Instant::now() + patience.join;
    let mut pause = Duration::from_millis(10);
    loop {
        let problem = match connect(place, patience.handshake) {
            Err(error) => error.to_string(),
            Ok(stream) => match greet(&stream, &options.secret, Purpose::Control, patience.handshake) {
                Ok(ends) => return Ok((stream, ends)),
                // It may be busy, or on its way out.
                Err(HandshakeError::Connection(error)) => error.to_string(),
                Err(error) => return Err(WorkerError::Handshake { leader, error }),
            },
        };
        if Instant::now() + pause >= until {
            return Err(WorkerError::Unreachable { leader, problem });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

fn connect(place: &Rendezvous, patience: Duration) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("the host has no address");
    for address in (place.host.as_str(), place.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) if is_own(&stream) => {
                // With something unread it ends at once; else the port would not be free for a minute.
                let _ = (&stream).write(&[0]);
                last = std::io::Error::other(NOBODY);
            }
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What came of a connection to oneself.
const NOBODY: &str = "nobody listens there";

/// Whether both ends of a connection are this one. Where nobody listens at a port of the range from which the system takes those of outgoing
/// connections, it may take just that one and connect it to itself (RFC 9293, 3.5, simultaneous open); the leader then finds its port in use.
fn is_own(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer)
}

#[cfg(test)]
mod tests {
    use super::{NOBODY, Rendezvous, connect};
    use std::net::TcpListener;
    use std::time::Duration;

    /// A worker that came before its leader once connected to itself, was told of another version, and held the leader's port.
    #[test]
    fn a_connection_to_oneself_is_no_leader() {
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let place = |port| Rendezvous { rank: 0, world_size: 1, local_rank: 0, host: "127.0.0.1".to_owned(), port };
        // Linux takes even ports for those that connect and gives odd ones to those that listen, so both are tried; it goes through its range.
        let places = [place(free()), place(free() ^ 1)];
        let mut attempts = 0..100_000;
        let met = attempts.find(|at| connect(&places[at % 2], Duration::from_secs(5)).is_err_and(|error| error.to_string() == NOBODY));
        match met {
            // The port is free for the leader at once.
            Some(at) => drop(TcpListener::bind(("127.0.0.1", places[at % 2].port)).unwrap()),
            None => eprintln!("not met: this system connects no port to itself"),
        }
    }
}
