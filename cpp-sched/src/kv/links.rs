//! Doubly linked lists through an array: O(1) at both ends and in the middle, no allocation.

use super::NIL;

/// The two links of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

impl Link {
    pub(crate) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// Elements that carry a [`Link`], by number.
pub(crate) trait Linked {
    fn link(&self, element: u32) -> Link;
    fn link_mut(&mut self, element: u32) -> &mut Link;
}

/// A list. An element is in at most one list that uses its link; its owner knows in which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL, len: 0 };

    pub(crate) fn push_back(&mut self, arena: &mut impl Linked, element: u32) {
        *arena.link_mut(element) = Link { prev: self.tail, next: NIL };
        if self.tail == NIL {
            self.head = element;
        } else {
            arena.link_mut(self.tail).next = element;
        }
        self.tail = element;
        self.len += 1;
    }

    pub(crate) fn push_front(&mut self, arena: &mut impl Linked, element: u32) {
        *arena.link_mut(element) = Link { prev: NIL, next: self.head };
        if self.head == NIL {
            self.tail = element;
        } else {
            arena.link_mut(self.head).prev = element;
        }
        self.head = element;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, arena: &mut impl Linked, element: u32) {
        let Link { prev, next } = arena.link(element);
        if prev == NIL {
            self.head = next;
        } else {
            arena.link_mut(prev).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            arena.link_mut(next).prev = prev;
        }
        *arena.link_mut(element) = Link::NONE;
        self.len -= 1;
    }

    pub(crate) fn pop_front(&mut self, arena: &mut impl Linked) -> Option<u32> {
        let head = self.head;
        if head == NIL {
            return None;
        }
        self.remove(arena, head);
        Some(head)
    }
}
