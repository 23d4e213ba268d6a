//! A binary heap whose elements can be removed and re-keyed by name: O(log n), no allocation once it has grown.

use alloc::vec::Vec;

use crate::kv::NIL;
use crate::state::grow;

/// Where each name stands in its heap; NIL = nowhere. Heaps over disjoint sets of names may share one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Positions(Vec<u32>);

impl Positions {
    pub(super) fn set(&mut self, name: u32, at: u32) {
        if self.0.len() <= name as usize {
            let more = name as usize + 1 - self.0.len();
            if name as usize >= self.0.capacity() {
                self.0.reserve_exact(more + self.0.len() / 16 + 15);
            }
            self.0.resize(name as usize + 1, NIL);
        }
        self.0[name as usize] = at;
    }

    pub(super) fn get(&self, name: u32) -> u32 {
        self.0.get(name as usize).copied().unwrap_or(NIL)
    }

    pub(crate) fn contains(&self, name: u32) -> bool {
        self.get(name) != NIL
    }
}

/// The heap proper: the smallest key first. Positions are kept outside. Keys and names lie apart, or alignment would waste a part of each node.
#[derive(Clone, Debug)]
pub(crate) struct Heap<K> {
    keys: Vec<K>,
    names: Vec<u32>,
}

impl<K> Default for Heap<K> {
    fn default() -> Self {
        Self { keys: Vec::new(), names: Vec::new() }
    }
}

impl<K: Ord + Copy> Heap<K> {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.iter().next()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        self.keys.iter().copied().zip(self.names.iter().copied())
    }

    pub(crate) fn push(&mut self, positions: &mut Positions, name: u32, key: K) {
        debug_assert!(!positions.contains(name));
        grow(&mut self.keys);
        grow(&mut self.names);
        self.keys.push(key);
        self.names.push(name);
        self.up(positions, self.keys.len() - 1);
    }

    /// Removes a name that is in this heap.
    pub(crate) fn remove(&mut self, positions: &mut Positions, name: u32) {
        let at = positions.get(name) as usize;
        debug_assert!(self.names.get(at) == Some(&name));
        positions.set(name, NIL);
        self.keys.swap_remove(at);
        self.names.swap_remove(at);
        if at < self.keys.len() {
            self.settle(positions, at);
        }
    }

    /// Gives a name that is in this heap another key.
    pub(crate) fn update(&mut self, positions: &mut Positions, name: u32, key: K) {
        let at = positions.get(name) as usize;
        self.keys[at] = key;
        self.settle(positions, at);
    }

    /// Gives every name a new key. O(n).
    pub(crate) fn rekey(&mut self, positions: &mut Positions, mut key: impl FnMut(u32) -> K) {
        for (own, &name) in self.keys.iter_mut().zip(&self.names) {
            *own = key(name);
        }
        for at in (0..self.keys.len()).rev() {
            self.down(positions, at);
        }
    }

    fn settle(&mut self, positions: &mut Positions, at: usize) {
        let at = self.up(positions, at);
        self.down(positions, at);
    }

    /// Puts a node where it belongs.
    fn put(&mut self, positions: &mut Positions, at: usize, (key, name): (K, u32)) {
        (self.keys[at], self.names[at]) = (key, name);
        positions.set(name, at as u32);
    }

    fn up(&mut self, positions: &mut Positions, mut at: usize) -> usize {
        let node = (self.keys[at], self.names[at]);
        while at > 0 {
            let parent = (at - 1) / 2;
            if self.keys[parent] <= node.0 {
                break;
            }
            self.put(positions, at, (self.keys[parent], self.names[parent]));
            at = parent;
        }
        self.put(positions, at, node);
        at
    }

    fn down(&mut self, positions: &mut Positions, mut at: usize) {
        let node = (self.keys[at], self.names[at]);
        loop {
            let mut child = 2 * at + 1;
            if child >= self.keys.len() {
                break;
            }
            if child + 1 < self.keys.len() && self.keys[child + 1] < self.keys[child] {
                child += 1;
            }
            if node.0 <= self.keys[child] {
                break;
            }
            self.put(positions, at, (self.keys[child], self.names[child]));
            at = child;
        }
        self.put(positions, at, node);
    }

    /// Whether keys and positions are in order. O(n).
    pub(crate) fn is_consistent(&self, positions: &Positions) -> bool {
        let ordered = |at: usize| at == 0 || self.keys[(at - 1) / 2] <= self.keys[at];
        (0..).zip(&self.names).all(|(at, &name)| positions.get(name) as usize == at && ordered(at)) && self.names.len() == self.keys.len()
    }
}

/// A heap with positions of its own.
#[derive(Clone, Debug)]
pub(crate) struct IndexedHeap<K> {
    heap: Heap<K>,
    positions: Positions,
}

impl<K> Default for IndexedHeap<K> {
    fn default() -> Self {
        Self { heap: Heap::default(), positions: Positions::default() }
    }
}

impl<K: Ord + Copy> IndexedHeap<K> {
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn peek(&self) -> Option<(K, u32)> {
        self.heap.peek()
    }

    pub(crate) fn contains(&self, name: u32) -> bool {
        self.positions.contains(name)
    }

    pub(crate) fn push(&mut self, name: u32, key: K) {
        self.heap.push(&mut self.positions, name, key);
    }

    /// Removes the name if it is there.
    pub(crate) fn remove(&mut self, name: u32) {
        if self.contains(name) {
            self.heap.remove(&mut self.positions, name);
        }
    }

    /// Inserts the name or gives it another key.
    pub(crate) fn set(&mut self, name: u32, key: K) {
        if self.contains(name) {
            self.heap.update(&mut self.positions, name, key);
        } else {
            self.push(name, key);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, u32)> + '_ {
        self.heap.iter()
    }

    pub(crate) fn is_consistent(&self) -> bool {
        self.heap.is_consistent(&self.positions)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use super::*;

    #[test]
    fn like_an_ordered_set_under_random_operations() {
        let (mut heap, mut set) = (IndexedHeap::default(), BTreeSet::new());
        let mut keys = [0u64; 64];
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (name, key, what) = ((state >> 33) as u32 % 64, state >> 50, (state >> 40) % 4);
            let entry = (keys[name as usize], name);
            match what {
                0 | 1 => {
                    set.remove(&entry);
                    heap.set(name, (key, name));
                    keys[name as usize] = key;
                    set.insert((key, name));
                }
                2 => {
                    heap.remove(name);
                    set.remove(&entry);
                }
                _ => {
                    if let Some((_, first)) = heap.peek() {
                        heap.remove(first);
                        assert_eq!(set.pop_first().map(|e| e.1), Some(first));
                    }
                }
            }
            assert_eq!(heap.peek().map(|n| n.0), set.first().copied());
            assert_eq!(heap.len(), set.len());
        }
        assert!(heap.is_consistent());
    }
}
