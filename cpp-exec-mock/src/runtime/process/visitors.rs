//! Connections on their way in: so many at once, and the one that has been there longest makes room for the newest.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sealed::shut;

/// Threads at most for each connection that may be on its way in: one that was sent away takes a moment to notice.
const THREADS: usize = 2;

/// Who is being judged at a port. Somebody who knows the secret has proven it within a few packets, so whoever holds connections open without
/// a word is sent away, not the worker that comes after them. O(those on their way in) each.
#[derive(Debug)]
pub(super) struct Visitors {
    most: usize,
    here: Mutex<Here>,
}

#[derive(Debug, Default)]
struct Here {
    /// Connections that are judged, the oldest first.
    judged: VecDeque<(u64, TcpStream)>,
    /// With those that were sent away and have not noticed.
    threads: usize,
    next: u64,
}

/// A connection that is being judged, until this is dropped.
#[derive(Debug)]
pub(super) struct Visit {
    visitors: Arc<Visitors>,
    number: u64,
}

impl Visitors {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most: most.max(1), here: Mutex::default() })
    }

    fn here(&self) -> MutexGuard<'_, Here> {
        // Nobody panics while holding it.
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a connection in, and sends the oldest away if they are too many. `None`: not even that helps at the moment.
    pub(super) fn admit(self: &Arc<Self>, stream: &TcpStream) -> Option<Visit> {
        let mut here = self.here();
        if here.threads >= THREADS * self.most {
            return None;
        }
        let stream = stream.try_clone().ok()?;
        if here.judged.len() >= self.most
            && let Some((_, oldest)) = here.judged.pop_front()
        {
            shut(&oldest);
        }
        let number = here.next;
        here.judged.push_back((number, stream));
        here.threads += 1;
        here.next += 1;
        Some(Visit { visitors: Arc::clone(self), number })
    }
}

impl Visit {
    /// Whether it had to make room for another one.
    pub(super) fn was_sent_away(&self) -> bool {
        !self.visitors.here().judged.iter().any(|(number, _)| *number == self.number)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut here = self.visitors.here();
        here.threads -= 1;
        here.judged.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::Visitors;
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_oldest_makes_room_and_threads_are_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pair = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let visitors = Visitors::new(2);
        let pairs: Vec<_> = (0..5).map(|_| pair()).collect();
        let mut visits: Vec<_> = pairs[..4].iter().map(|(_, stream)| visitors.admit(stream).unwrap()).collect();
        assert_eq!(visits.iter().map(super::Visit::was_sent_away).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!((&pairs[0].0).read(&mut [0]).unwrap(), 0, "it was hung up on");
        assert!(visitors.admit(&pairs[4].1).is_none(), "four threads, two of which have not noticed");
        // One that was judged leaves room, so nobody is sent away for the next.
        visits.remove(2);
        let next = visitors.admit(&pairs[4].1).unwrap();
        assert!(!visits[2].was_sent_away() && !next.was_sent_away());
    }
}
