//! The links over which KV goes from the stages of one pool to another: one a stage, first ready, first sent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

/// What a link does. Each prefill stage has one, for the KV of its layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KvLink {
    /// From the end of a transmission to its arrival, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes per second of one link; 0 = a transfer takes its latency alone.
    pub bytes_per_s: u64,
    /// Bytes of KV per token, of all layers together.
    pub bytes_per_token: u64,
}

/// KV that one stage sends: whole layers of some positions of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) request: usize,
    pub(super) stage: usize,
    pub(super) tokens: u64,
    /// When its first layer can be sent, and when the last one can.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

/// All links.
pub(super) struct Links {
    link: KvLink,
    layers: u64,
    free_ns: Vec<u64>,
    pub(super) busy_ns: Vec<u64>,
    /// Parts that wait until they are ready: (when, which), those of one time as they came.
    ready: BinaryHeap<Reverse<(u64, usize)>>,
    parts: Vec<Part>,
    spare: Vec<usize>,
}

impl Links {
    /// One link for each of `stages` stages of `layers` layers each.
    pub(super) fn new(link: KvLink, stages: usize, layers: u64, start_ns: u64) -> Self {
        Self {
            link,
            layers: layers.max(1),
            free_ns: vec![start_ns; stages],
            busy_ns: vec![0; stages],
            ready: BinaryHeap::new(),
            parts: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Hands in a part.
    pub(super) fn offer(&mut self, part: Part) {
        let place = self.spare.pop().unwrap_or(self.parts.len());
        if place == self.parts.len() {
            self.parts.push(part);
        } else {
            self.parts[place] = part;
        }
        self.ready.push(Reverse((part.first_ns, place)));
    }

    /// When the next part is ready.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.ready.peek().map(|&Reverse((ns, _))| ns)
    }

    /// Sends the next part that is ready by `now_ns`: it, and when it is there.
    ///
    /// A layer is sent when it is ready and those before it are sent. With equal layers at equal distances that ends when all have been sent one after
    /// the other, or when the last one has, whichever is later.
    pub(super) fn send(&mut self, now_ns: u64) -> Option<(Part, u64)> {
        let &Reverse((ns, place)) = self.ready.peek()?;
        if ns > now_ns {
            return None;
        }
        self.ready.pop();
        self.spare.push(place);
        let part = self.parts[place];
        let all_ns = self.transmit_ns(part.tokens);
        let free_ns = &mut self.free_ns[part.stage];
        let begins_ns = (*free_ns).max(part.first_ns);
        let ends_ns = begins_ns.saturating_add(all_ns).max(part.last_ns.saturating_add(all_ns.div_ceil(self.layers)));
        *free_ns = ends_ns;
        self.busy_ns[part.stage] += all_ns;
        Some((part, ends_ns.saturating_add(self.link.latency_ns)))
    }

    /// How long one stage's part of the KV of so many tokens takes its link, in nanoseconds, rounded up.
    fn transmit_ns(&self, tokens: u64) -> u64 {
        let bytes = u128::from(tokens) * u128::from(self.link.bytes_per_token);
        let per_s = u128::from(self.link.bytes_per_s) * self.free_ns.len() as u128;
        if per_s == 0 {
            return 0;
        }
        u64::try_from(bytes.saturating_mul(1_000_000_000).div_ceil(per_s)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(stage: usize, tokens: u64, first_ns: u64, last_ns: u64) -> Part {
        Part { request: 0, stage, tokens, first_ns, last_ns }
    }

    /// Two stages of four layers; a token is 8 bytes, 4 on each stage; a byte takes a nanosecond.
    fn links() -> Links {
        Links::new(KvLink { latency_ns: 5, bytes_per_s: 1_000_000_000, bytes_per_token: 8 }, 2, 4, 0)
    }

    #[test]
    fn parts_of_one_stage_wait_for_each_other() {
        let mut links = links();
        for part in [part(0, 10, 100, 100), part(1, 10, 100, 100), part(0, 5, 120, 120)] {
            links.offer(part);
        }
        assert_eq!((links.next_ns(), links.send(99).is_none()), (Some(100), true));
        let arrivals: Vec<u64> = std::iter::from_fn(|| links.send(200)).map(|(_, ns)| ns).collect();
        // 40 each from 100 on; then 20 behind the first.
        assert_eq!((arrivals, links.busy_ns), (vec![145, 145, 165], vec![60, 40]));
    }

    #[test]
    fn layers_go_as_they_come() {
        // 40 in four layers of 10. Ready at 25, 50, 75, 100: the last one ends at 110, not at 140.
        let mut fast = links();
        fast.offer(part(0, 10, 25, 100));
        assert_eq!(fast.send(25).unwrap().1, 115);
        // 400 in layers of 100: the link is the slower one, 25 + 400.
        let mut slow = links();
        slow.offer(part(0, 100, 25, 100));
        assert_eq!(slow.send(25).unwrap().1, 430);
    }
}
