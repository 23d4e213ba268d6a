//! The queue of requests with prompt work, in the order of the policy.
//!
//! Requests are grouped: in one group all in all, but for policy `fair`, where a group is a tenant and groups are ordered by what they were
//! served. So a charge to a tenant re-keys one group, however many requests it has waiting.

use alloc::vec::Vec;

use super::heap::{Heap, IndexedHeap, Positions};
use crate::policy::Key;

/// See the module. Every operation is O(log n).
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptQueue {
    groups: Vec<Heap<Key>>,
    positions: Positions,
    /// Groups that hold something, by (their own key, the key of their first request).
    order: IndexedHeap<(u128, Key)>,
    group_keys: Vec<u128>,
    len: u32,
}

impl PromptQueue {
    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.positions.contains(slot)
    }

    /// The first request: what it is compared by, and its slot.
    pub(crate) fn peek(&self) -> Option<((u128, Key), u32)> {
        let (key, group) = self.order.peek()?;
        self.groups[group as usize].peek().map(|(_, slot)| (key, slot))
    }

    pub(crate) fn push(&mut self, slot: u32, key: Key, group: u32) {
        let at = group as usize;
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, Heap::default);
            self.group_keys.resize(at + 1, 0);
        }
        self.groups[at].push(&mut self.positions, slot, key);
        self.len += 1;
        self.reorder(group);
    }

    /// Removes the request if it is there.
    pub(crate) fn remove(&mut self, slot: u32, group: u32) {
        if self.contains(slot) {
            self.groups[group as usize].remove(&mut self.positions, slot);
            self.len -= 1;
            self.reorder(group);
        }
    }

    /// Gives a group another key.
    pub(crate) fn set_group_key(&mut self, group: u32, key: u128) {
        let at = group as usize;
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, Heap::default);
            self.group_keys.resize(at + 1, 0);
        }
        self.group_keys[at] = key;
        self.reorder(group);
    }

    /// Gives every request a new key. O(n).
    pub(crate) fn rekey(&mut self, mut key: impl FnMut(u32) -> Key) {
        for group in 0..self.groups.len() {
            self.groups[group].rekey(&mut self.positions, &mut key);
            self.reorder(group as u32);
        }
    }

    fn reorder(&mut self, group: u32) {
        match self.groups[group as usize].peek() {
            Some((first, _)) => self.order.set(group, (self.group_keys[group as usize], first)),
            None => self.order.remove(group),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, u32)> + '_ {
        self.groups.iter().flat_map(Heap::iter)
    }

    pub(crate) fn is_consistent(&self) -> bool {
        self.groups.iter().all(|g| g.is_consistent(&self.positions))
            && self.order.is_consistent()
            && self.groups.iter().map(Heap::len).sum::<usize>() == self.len as usize
            && self.order.iter().all(|((_, first), g)| self.groups[g as usize].peek().is_some_and(|(k, _)| k == first))
            && self.order.len() == self.groups.iter().filter(|g| g.len() > 0).count()
    }
}
