//! Who arrives when, and who gives up: known beforehand, or after the end of another request.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::workload::Workload;

/// Arrivals of a workload while it runs.
pub(crate) struct Arrivals<'a> {
    workload: &'a Workload,
    /// The next item that may arrive at a time of its own.
    next: usize,
    /// Items that follow one that has ended: (when, which).
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Clients that hang up: (when, which).
    hang_ups: BinaryHeap<Reverse<(u64, u32)>>,
}

impl<'a> Arrivals<'a> {
    pub(crate) fn new(workload: &'a Workload) -> Self {
        let mut arrivals = Self { workload, next: 0, due: BinaryHeap::new(), hang_ups: BinaryHeap::new() };
        arrivals.skip_followers();
        arrivals
    }

    fn skip_followers(&mut self) {
        while self.next < self.workload.items().len() && self.workload.follows_after_ns(self.next).is_some() {
            self.next += 1;
        }
    }

    /// The next arrival that is known: (when, which).
    fn peek(&self) -> Option<(u64, u32)> {
        let own = self.workload.items().get(self.next).map(|item| (item.arrival_ns, self.next as u32));
        let due = self.due.peek().map(|&Reverse(due)| due);
        own.into_iter().chain(due).min()
    }

    /// When the next one arrives, as far as is known by now.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.peek().map(|(ns, _)| ns)
    }

    /// The next one that has arrived by `now_ns`: which, and when. O(log waiting).
    pub(crate) fn take(&mut self, now_ns: u64) -> Option<(usize, u64)> {
        let (arrival_ns, item) = self.peek().filter(|&(ns, _)| ns <= now_ns)?;
        if self.due.peek() == Some(&Reverse((arrival_ns, item))) {
            self.due.pop();
        } else {
            self.next += 1;
            self.skip_followers();
        }
        if let Some(patience_ns) = self.workload.patience_ns(item as usize) {
            self.hang_ups.push(Reverse((arrival_ns.saturating_add(patience_ns), item)));
        }
        Some((item as usize, arrival_ns))
    }

    /// A request has ended, in whatever way: the one that follows it comes after its think time.
    pub(crate) fn ended(&mut self, item: usize, now_ns: u64) {
        if let Some(think_ns) = self.workload.follows_after_ns(item + 1) {
            self.due.push(Reverse((now_ns.saturating_add(think_ns), item as u32 + 1)));
        }
    }

    /// When the next client hangs up, of those that `alive` says are still there; the others are forgotten.
    pub(crate) fn next_hang_up_ns(&mut self, alive: impl Fn(usize) -> bool) -> Option<u64> {
        while let Some(&Reverse((ns, item))) = self.hang_ups.peek() {
            if alive(item as usize) {
                return Some(ns);
            }
            self.hang_ups.pop();
        }
        None
    }

    /// The next client that has hung up by `now_ns`.
    pub(crate) fn take_hang_up(&mut self, now_ns: u64) -> Option<usize> {
        let &Reverse((ns, item)) = self.hang_ups.peek()?;
        if ns > now_ns {
            return None;
        }
        self.hang_ups.pop();
        Some(item as usize)
    }
}
