//! A queue whose keys fall as time goes by, each at its own rate: a kinetic tournament (Basch, Guibas and Hershberger, "Data structures for mobile
//! data", SODA 1997).
//!
//! Leaves are the requests; each inner node knows which of its leaves comes first, and until when that is certain. When the clock moves, only nodes
//! whose time has come are looked at. Changing a leaf is O(log n). A node over k leaves changes its winner at most k times while its leaves stay as
//! they are (the lower envelope of k lines), so a leaf costs O(log n) node visits, each at the end of a path of O(log n), over its whole life.

use alloc::vec::Vec;

use super::heap::Positions;
use crate::kv::NIL;
use crate::policy::Key;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The leaf that comes first.
    winner: u32,
    /// The first time at which that may be another one.
    until_ns: u64,
}

const EMPTY: Node = Node { winner: NIL, until_ns: u64::MAX };

/// See the module. The clock only goes forward.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tournament {
    leaves: Vec<(Key, u32)>,
    positions: Positions,
    /// `nodes[1]` is the root, below node i are 2i and 2i + 1; behind the last node come the leaves.
    nodes: Vec<Node>,
    now_ns: u64,
}

impl Tournament {
    pub(crate) fn contains(&self, name: u32) -> bool {
        self.positions.contains(name)
    }

    /// Who comes first at the time of the last [`advance`](Self::advance). O(1).
    pub(crate) fn peek(&self) -> Option<(Key, u32)> {
        let root = self.nodes.get(1)?;
        self.leaves.get(root.winner as usize).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u32)> + '_ {
        self.leaves.iter().copied()
    }

    /// Inserts the name or gives it another key. O(log n), amortised where it grows.
    pub(crate) fn set(&mut self, name: u32, key: Key) {
        let at = self.positions.get(name);
        if at != NIL {
            self.leaves[at as usize].0 = key;
            return self.update(at as usize);
        }
        let at = self.leaves.len();
        self.positions.set(name, at as u32);
        self.leaves.push((key, name));
        if at < self.nodes.len() {
            self.update(at);
        } else {
            self.nodes.resize((2 * self.nodes.len()).max(2), EMPTY);
            self.rebuild();
        }
    }

    /// Removes the name if it is there. O(log n).
    pub(crate) fn remove(&mut self, name: u32) {
        let at = self.positions.get(name);
        if at == NIL {
            return;
        }
        self.positions.set(name, NIL);
        self.leaves.swap_remove(at as usize);
        // The path of the place that is empty now comes first: nobody may look at what it held.
        self.update(self.leaves.len());
        if let Some(&(_, moved)) = self.leaves.get(at as usize) {
            self.positions.set(moved, at);
            self.update(at as usize);
        }
    }

    /// Gives every name a new key. O(n).
    pub(crate) fn rekey(&mut self, mut key: impl FnMut(u32) -> Key) {
        for leaf in &mut self.leaves {
            leaf.0 = key(leaf.1);
        }
        self.rebuild();
    }

    /// The clock moves on. O(log n) for each node whose winner may have changed.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        if self.nodes.len() > 1 {
            self.refresh(1);
        }
    }

    fn refresh(&mut self, node: usize) {
        if self.nodes.get(node).is_some_and(|n| n.until_ns <= self.now_ns) {
            self.refresh(2 * node);
            self.refresh(2 * node + 1);
            self.nodes[node] = self.play(node);
        }
    }

    fn rebuild(&mut self) {
        for node in (1..self.nodes.len()).rev() {
            self.nodes[node] = self.play(node);
        }
    }

    /// The path above a leaf anew.
    fn update(&mut self, leaf: usize) {
        let mut node = (leaf + self.nodes.len()) / 2;
        while node > 0 {
            self.nodes[node] = self.play(node);
            node /= 2;
        }
    }

    /// What a child of a node says.
    fn below(&self, child: usize) -> Node {
        match self.nodes.get(child) {
            Some(node) => *node,
            None if child - self.nodes.len() < self.leaves.len() => Node { winner: (child - self.nodes.len()) as u32, until_ns: u64::MAX },
            None => EMPTY,
        }
    }

    fn play(&self, node: usize) -> Node {
        let (a, b) = (self.below(2 * node), self.below(2 * node + 1));
        if a.winner == NIL || b.winner == NIL {
            return if a.winner == NIL { b } else { a };
        }
        let (key_a, key_b) = (&self.leaves[a.winner as usize].0, &self.leaves[b.winner as usize].0);
        let (winner, first, second) =
            if key_a.compare(key_b, self.now_ns).is_le() { (a.winner, key_a, key_b) } else { (b.winner, key_b, key_a) };
        Node { winner, until_ns: a.until_ns.min(b.until_ns).min(second.overtakes(first, self.now_ns)) }
    }

    /// Whether every node is what its children say now. O(n).
    pub(crate) fn is_consistent(&self) -> bool {
        let first = self.leaves.iter().min_by(|a, b| a.0.compare(&b.0, self.now_ns)).map(|leaf| leaf.1);
        self.leaves.iter().enumerate().all(|(at, leaf)| self.positions.get(leaf.1) as usize == at)
            && self.peek().map(|(_, name)| name) == first
            && (1..self.nodes.len()).all(|node| self.nodes[node].winner == self.play(node).winner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_at_every_time_is_what_a_scan_finds() {
        let mut queue = Tournament::default();
        let mut keys = alloc::collections::BTreeMap::new();
        let (mut now, mut state, mut changes, mut last) = (0u64, 3u64, 0u32, None);
        for seq in 0..30_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (name, what, draw) = ((state >> 33) as u32 % 50, (state >> 40) % 8, state >> 45);
            match what {
                0 | 1 => {
                    let zero = i128::from(now) + i128::from(draw % 2000) - 200;
                    let key =
                        if draw % 9 == 0 { Key::fixed(i128::from(draw % 7) - 3, seq) } else { Key::falling(zero, draw % 31 + 1, seq) };
                    queue.set(name, key);
                    keys.insert(name, key);
                }
                2 => {
                    queue.remove(name);
                    keys.remove(&name);
                }
                _ => {
                    now += draw % 20;
                    queue.advance(now);
                }
            }
            let first = keys.iter().min_by(|a, b| a.1.compare(b.1, now)).map(|(&name, _)| name);
            assert_eq!(queue.peek().map(|(_, name)| name), first, "at {now}");
            changes += u32::from(what > 2 && first != last);
            last = first;
            assert_eq!(queue.iter().count(), keys.len());
            if seq % 100 == 0 {
                assert!(queue.is_consistent());
            }
        }
        assert!(changes > 80, "time alone changed the first {changes} times only");
    }
}
