//! From one stage to the next.

use super::pipe::{Piece, Pipe};
use super::{Cause, Links, Transfer};

impl Pipe {
    /// The transfer from stage `s` to the next, or to the scheduler: when it begins and when it is over. Says what holds the stage meanwhile.
    pub(super) fn hand_on(&mut self, s: usize, end_ns: u64, piece: &Piece<'_>) -> (u64, u64) {
        let (stages, next) = self.stages.split_at_mut(s + 1);
        let stage = &mut stages[s];
        stage.end_ns = end_ns;
        stage.free_ns = end_ns;
        stage.held.clear();
        let Some(next) = next.first() else { return (end_ns, end_ns.saturating_add(self.return_ns)) };
        let link_ns = end_ns.max(stage.link_free_ns);
        let blocking_receive = self.links.receives == Transfer::Blocking;
        let room_ns = match self.links.room() {
            _ if blocking_receive => next.free_ns,
            Some(room) if next.starts.len() >= room => next.starts[0],
            _ => 0,
        };
        let send_ns = link_ns.max(room_ns);
        if send_ns >= stage.hang_from_ns {
            // The first of them; what comes behind it waits for the link.
            stage.hang_from_ns = u64::MAX;
            stage.link_free_ns = u64::MAX;
            self.hung_since_ns.get_or_insert(send_ns);
        } else {
            stage.link_free_ns = send_ns.saturating_add(piece.transmit_ns);
        }
        let sent_ns = stage.link_free_ns.saturating_add(piece.latency_ns);
        stage.free_ns = match (self.links.sends, self.links.room()) {
            (Transfer::Blocking, _) => sent_ns,
            (Transfer::Overlapped, Some(_)) if !blocking_receive => send_ns,
            (Transfer::Overlapped, _) => end_ns,
        };
        if stage.free_ns > end_ns {
            // A send that has to wait until the other side receives is communication that blocks; a full buffer is not.
            if !blocking_receive {
                stage.held.push((link_ns, Cause::Communication));
                stage.held.push((send_ns, Cause::Downstream));
            }
            let hung = sent_ns == u64::MAX && self.hung_since_ns.is_some();
            stage.held.push((stage.free_ns, if hung { Cause::Fault } else { Cause::Communication }));
        }
        (send_ns, sent_ns)
    }
}

impl Links {
    pub(super) fn room(&self) -> Option<usize> {
        self.buffer.map(|room| room.max(1) as usize)
    }
}
