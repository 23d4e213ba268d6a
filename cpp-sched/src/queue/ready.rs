//! The queue of decodes: first come, first served, in a ring that is read in one sweep.
//!
//! Taking a request out of the middle only clears its ticket; the ring drops dead entries when it comes to them, or when they are too many.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// A request's claim to a place in the queue: 0 = none. Kept in its slot, so that a look at the slot tells whether it stands here.
pub(crate) type Ticket = u32;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    pub(crate) ticket: Ticket,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadyQueue {
    entries: VecDeque<Entry>,
    /// Entries whose ticket is good.
    len: u32,
    last_ticket: Ticket,
    /// Entries that were looked at and keep their place.
    kept: Vec<Entry>,
}

impl ReadyQueue {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Entries, dead ones included: those that come later stand behind them.
    pub(crate) fn mark(&self) -> usize {
        self.entries.len()
    }

    /// A place at the end; the ticket for it. O(1).
    #[inline]
    pub(crate) fn push_back(&mut self, slot: u32) -> Ticket {
        self.last_ticket = self.last_ticket.wrapping_add(1).max(1);
        self.entries.push_back(Entry { slot, ticket: self.last_ticket });
        self.len += 1;
        self.last_ticket
    }

    /// The holder of a ticket gives up its place. O(1) amortised.
    pub(crate) fn give_up(&mut self) {
        self.len -= 1;
    }

    /// So many holders give up their places.
    pub(crate) fn give_up_many(&mut self, holders: u32) {
        self.len -= holders;
    }

    /// The requests that stand here, in order. `is_good` as for [`compact`](Self::compact).
    #[cfg(feature = "serde")]
    pub(crate) fn living(&self, is_good: impl Fn(Entry) -> bool) -> Vec<u32> {
        self.entries.iter().filter(|&&entry| is_good(entry)).map(|entry| entry.slot).collect()
    }

    /// Drops dead entries when they outnumber the living. `is_good` tells whether an entry's ticket is its slot's.
    pub(crate) fn compact(&mut self, is_good: impl Fn(Entry) -> bool) {
        if self.entries.len() > 2 * self.len as usize + 64 {
            self.entries.retain(|&entry| is_good(entry));
        }
    }

    /// The first entry, dead or alive. The caller says what becomes of it: it is taken, or [`keep`](Self::keep) is called.
    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// An entry that was popped stands first again.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        self.entries.push_front(entry);
    }

    /// An entry that was popped keeps its place, and is not met again in this sweep.
    pub(crate) fn keep(&mut self, entry: Entry) {
        self.kept.push(entry);
    }

    /// Ends a sweep: entries that were kept stand first again, in their order.
    pub(crate) fn restore(&mut self) {
        while let Some(entry) = self.kept.pop() {
            self.entries.push_front(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_entries_stay_first_and_dead_ones_go() {
        let mut queue = ReadyQueue::default();
        let tickets: Vec<_> = (0..4).map(|slot| queue.push_back(slot)).collect();
        let first = queue.pop_front().unwrap();
        queue.keep(first);
        assert_eq!(queue.pop_front().unwrap().slot, 1);
        queue.give_up();
        queue.restore();
        assert_eq!((queue.pop_front().unwrap().slot, queue.len()), (0, 3));
        for _ in 0..200 {
            queue.push_back(9);
            queue.give_up();
        }
        queue.compact(|entry| entry.slot != 9 && entry.ticket == tickets[entry.slot as usize]);
        assert_eq!((queue.mark(), queue.pop_front().unwrap().slot), (2, 2));
    }
}
