//! The queue of requests with prompt work, in the order of the policy.
//!
//! Requests are grouped: in one group all in all, but for policy `fair`, where a group is a tenant and groups are ordered by what they were
//! served. So a charge to a tenant re-keys one group, however many requests it has waiting. A policy whose keys move with time has one group, in a
//! [`Tournament`].

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::heap::{Heap, IndexedHeap, Positions};
use super::kinetic::Tournament;
use crate::policy::{FixedKey, Key};

/// What requests of one or several queues are compared by: their groups, then their own keys.
pub(crate) type Place = (u128, Key);

/// How two places are ordered at a time.
pub(crate) fn compare(a: &Place, b: &Place, now_ns: u64) -> Ordering {
    a.0.cmp(&b.0).then_with(|| a.1.compare(&b.1, now_ns))
}

/// See the module. Every operation is O(log n).
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptQueue {
    groups: Vec<Heap<FixedKey>>,
    positions: Positions,
    /// Groups that hold something, by (their own key, the key of their first request).
    order: IndexedHeap<(u128, FixedKey)>,
    group_keys: Vec<u128>,
    len: u32,
    /// In place of all this, where keys move with time.
    moving: Option<Tournament>,
}

impl PromptQueue {
    /// A queue for keys that may move with time.
    pub(crate) fn moving() -> Self {
        Self { moving: Some(Tournament::default()), ..Self::default() }
    }

    /// The clock moves on. O(1) unless keys move with time.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        if let Some(moving) = &mut self.moving {
            moving.advance(now_ns);
        }
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.moving.as_ref().map_or_else(|| self.positions.contains(slot), |moving| moving.contains(slot))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.moving.as_ref().map_or(self.len == 0, Tournament::is_empty)
    }

    /// The first request: what it is compared by, and its slot.
    pub(crate) fn peek(&self) -> Option<(Place, u32)> {
        if let Some(moving) = &self.moving {
            return moving.peek().map(|(key, slot)| ((0, key), slot));
        }
        let ((served, key), group) = self.order.peek()?;
        self.groups[group as usize].peek().map(|(_, slot)| ((served, key.into()), slot))
    }

    pub(crate) fn push(&mut self, slot: u32, key: Key, group: u32) {
        if let Some(moving) = &mut self.moving {
            return moving.set(slot, key);
        }
        let at = group as usize;
        if self.groups.len() <= at {
            self.groups.resize_with(at + 1, Heap::default);
            self.group_keys.resize(at + 1, 0);
        }
        self.groups[at].push(&mut self.positions, slot, key.into());
        self.len += 1;
        self.reorder(group);
    }

    /// Removes the request if it is there.
    pub(crate) fn remove(&mut self, slot: u32, group: u32) {
        if let Some(moving) = &mut self.moving {
            return moving.remove(slot);
        }
        if self.contains(slot) {
            self.groups[group as usize].remove(&mut self.positions, slot);
            self.len -= 1;
            self.reorder(group);
        }
    }

    /// Gives a request that is there another key.
    pub(crate) fn update(&mut self, slot: u32, key: Key, group: u32) {
        match &mut self.moving {
            Some(moving) => moving.set(slot, key),
            None => {
                self.groups[group as usize].update(&mut self.positions, slot, key.into());
                self.reorder(group);
            }
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
        if let Some(moving) = &mut self.moving {
            return moving.rekey(key);
        }
        for group in 0..self.groups.len() {
            self.groups[group].rekey(&mut self.positions, |slot| key(slot).into());
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
        self.groups.iter().flat_map(Heap::iter).map(|(key, slot)| (key.into(), slot)).chain(self.moving.iter().flat_map(Tournament::iter))
    }

    pub(crate) fn is_consistent(&self) -> bool {
        self.groups.iter().all(|g| g.is_consistent(&self.positions))
            && self.order.is_consistent()
            && self.groups.iter().map(Heap::len).sum::<usize>() == self.len as usize
            && self.order.iter().all(|((_, first), g)| self.groups[g as usize].peek().is_some_and(|(k, _)| k == first))
            && self.order.len() == self.groups.iter().filter(|g| g.len() > 0).count()
            && self.moving.as_ref().is_none_or(|moving| moving.is_consistent() && self.len == 0)
    }
}
