//! Which requests can be on time together.
//!
//! One machine serves requests with work `w` and due times `d` on time if and only if it does so in the order of their due times: for each
//! request, `now` and the work up to and including it is no later than its due time (Jackson 1955). If that fails, dropping the largest of those up to the
//! first that would be late leaves the fewest late ones (Moore 1968, with Hodgson). [`Feasible`] keeps the sums for that on a treap over the due
//! times, so that requests may come, go and progress at O(log n) each; its shape follows from the requests in it alone.

use crate::kv::NIL;
use crate::queue::IndexedHeap;
use crate::splitmix::mix;

use alloc::vec::Vec;

/// A request with a due time. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// When it is due, less the time that is the same for all.
    pub(crate) at_ns: u64,
    pub(crate) seq: u64,
    /// The machine's time for what is left of it.
    pub(crate) work_ns: u64,
}

impl Due {
    const fn key(&self) -> (u64, u64) {
        (self.at_ns, self.seq)
    }

    /// When it must start at the latest, alone.
    fn start(&self) -> i128 {
        i128::from(self.at_ns) - i128::from(self.work_ns)
    }
}

#[derive(Clone, Copy, Debug)]
struct Node {
    due: Due,
    left: u32,
    right: u32,
    /// What follows is over the subtree: the work in it,
    sum: i128,
    /// the least of `due - work up to it`, counting the work of the subtree alone,
    slack: i128,
    /// and the largest work, of equal ones the latest submitted.
    heaviest: (u64, u64, u32),
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Feasible {
    /// By slot; only those that are in the tree mean something.
    nodes: Vec<Node>,
    present: Vec<bool>,
    root: u32,
    /// Those in the tree by their latest start.
    starts: IndexedHeap<(i128, u64)>,
    /// Those that were taken out as too much work, least work first.
    out: IndexedHeap<(u64, u64)>,
}

impl Default for Feasible {
    fn default() -> Self {
        Self { nodes: Vec::new(), present: Vec::new(), root: NIL, starts: IndexedHeap::default(), out: IndexedHeap::default() }
    }
}

impl Feasible {
    /// Whether the request is in the tree.
    pub(crate) fn contains(&self, name: u32) -> bool {
        self.present.get(name as usize).copied().unwrap_or(false)
    }

    /// What is known of a request, in the tree or out of it.
    pub(crate) fn get(&self, name: u32) -> Option<Due> {
        let known = self.contains(name) || self.out.contains(name);
        known.then(|| self.nodes[name as usize].due)
    }

    pub(crate) fn is_out(&self, name: u32) -> bool {
        self.out.contains(name)
    }

    /// Puts the request into the tree. O(log n).
    pub(crate) fn insert(&mut self, name: u32, due: Due) {
        self.remove(name);
        self.store(name, due);
        self.present[name as usize] = true;
        self.starts.push(name, (due.start(), due.seq));
        let (left, right) = self.split(self.root, due.key());
        let left = self.merge(left, name);
        self.root = self.merge(left, right);
    }

    /// Notes the request as one that is out of the tree, and may come back. O(log n).
    pub(crate) fn put_out(&mut self, name: u32, due: Due) {
        self.remove(name);
        self.store(name, due);
        self.out.push(name, (due.work_ns, due.seq));
    }

    /// Forgets the request. O(log n).
    pub(crate) fn remove(&mut self, name: u32) {
        self.out.remove(name);
        if !self.contains(name) {
            return;
        }
        self.present[name as usize] = false;
        self.starts.remove(name);
        let (at_ns, seq) = self.nodes[name as usize].due.key();
        let (left, rest) = self.split(self.root, (at_ns, seq));
        let (_, right) = self.split(rest, (at_ns, seq + 1));
        self.root = self.merge(left, right);
    }

    /// Forgets everybody.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn store(&mut self, name: u32, due: Due) {
        let at = name as usize;
        let node = Node { due, left: NIL, right: NIL, sum: 0, slack: 0, heaviest: (0, 0, 0) };
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, node);
            self.present.resize(at + 1, false);
        }
        self.nodes[at] = node;
        self.sum_up(name);
    }

    // ---- questions -----------------------------------------------------------------------------------------------------------

    /// The least of `due - work up to it` over all: if that is before now, somebody will be late. O(1).
    pub(crate) fn slack(&self) -> i128 {
        self.slack_of(self.root)
    }

    /// Who must start first, alone, and by when. O(1).
    pub(crate) fn first_start(&self) -> Option<(i128, u32)> {
        self.starts.peek().map(|((start, _), name)| (start, name))
    }

    /// Who has the least work of those that are out. O(1).
    pub(crate) fn least_out(&self) -> Option<u32> {
        self.out.peek().map(|(_, name)| name)
    }

    /// The largest of those up to the first that will be late if work begins at `now`. O(log n).
    pub(crate) fn heaviest_before_first_late(&self, now: i128) -> Option<u32> {
        if self.slack() >= now {
            return None;
        }
        let (mut at, mut before, mut heaviest) = (self.root, 0, (0, 0, NIL));
        while at != NIL {
            let node = &self.nodes[at as usize];
            if self.slack_of(node.left).saturating_sub(before) < now {
                at = node.left;
                continue;
            }
            let up_to = before + self.sum_of(node.left) + i128::from(node.due.work_ns);
            heaviest = heaviest.max(self.heaviest_of(node.left)).max((node.due.work_ns, node.due.seq, at));
            if i128::from(node.due.at_ns) - up_to < now {
                break;
            }
            (before, at) = (up_to, node.right);
        }
        (heaviest.2 != NIL).then_some(heaviest.2)
    }

    /// The due time of the last that will be late if work begins at `now`. O(log n).
    pub(crate) fn last_late(&self, now: i128) -> Option<(u64, u64)> {
        if self.slack() >= now {
            return None;
        }
        let (mut at, mut before) = (self.root, 0);
        while at != NIL {
            let node = &self.nodes[at as usize];
            let up_to = before + self.sum_of(node.left) + i128::from(node.due.work_ns);
            if self.slack_of(node.right).saturating_sub(up_to) < now {
                (before, at) = (up_to, node.right);
            } else if i128::from(node.due.at_ns) - up_to < now {
                return Some(node.due.key());
            } else {
                at = node.left;
            }
        }
        None
    }

    /// Whether the request could be put into the tree without anybody being late, work beginning at `now`. O(log n).
    pub(crate) fn fits(&self, due: &Due, now: i128) -> bool {
        let (mut at, mut before, mut later) = (self.root, 0, i128::MAX);
        while at != NIL {
            let node = &self.nodes[at as usize];
            let up_to = before + self.sum_of(node.left) + i128::from(node.due.work_ns);
            if due.key() < node.due.key() {
                later = later.min(i128::from(node.due.at_ns) - up_to).min(self.slack_of(node.right).saturating_sub(up_to));
                at = node.left;
            } else {
                (before, at) = (up_to, node.right);
            }
        }
        let work = i128::from(due.work_ns);
        due.start() - before >= now && later.saturating_sub(work) >= now
    }

    /// The request that is due first, of those behind `after`, up to `to`. O(log n).
    pub(crate) fn next(&self, after: Option<(u64, u64)>, to: (u64, u64)) -> Option<((u64, u64), u32)> {
        let (mut at, mut found) = (self.root, None);
        while at != NIL {
            let node = &self.nodes[at as usize];
            if after.is_none_or(|after| node.due.key() > after) {
                (found, at) = (Some((node.due.key(), at)), node.left);
            } else {
                at = node.right;
            }
        }
        found.filter(|(key, _)| *key <= to)
    }

    // ---- the treap -----------------------------------------------------------------------------------------------------------

    fn sum_of(&self, at: u32) -> i128 {
        if at == NIL { 0 } else { self.nodes[at as usize].sum }
    }

    fn slack_of(&self, at: u32) -> i128 {
        if at == NIL { i128::MAX } else { self.nodes[at as usize].slack }
    }

    fn heaviest_of(&self, at: u32) -> (u64, u64, u32) {
        if at == NIL { (0, 0, NIL) } else { self.nodes[at as usize].heaviest }
    }

    fn sum_up(&mut self, at: u32) {
        let Node { due, left, right, .. } = self.nodes[at as usize];
        let up_to = self.sum_of(left) + i128::from(due.work_ns);
        let own = i128::from(due.at_ns) - up_to;
        let slack = self.slack_of(left).min(own).min(self.slack_of(right).saturating_sub(up_to));
        let heaviest = self.heaviest_of(left).max((due.work_ns, due.seq, at)).max(self.heaviest_of(right));
        let sum = up_to + self.sum_of(right);
        let node = &mut self.nodes[at as usize];
        (node.sum, node.slack, node.heaviest) = (sum, slack, heaviest);
    }

    /// Those before `key`, and the others.
    fn split(&mut self, at: u32, key: (u64, u64)) -> (u32, u32) {
        if at == NIL {
            return (NIL, NIL);
        }
        let Node { due, left, right, .. } = self.nodes[at as usize];
        let parts = if due.key() < key {
            let (low, high) = self.split(right, key);
            self.nodes[at as usize].right = low;
            (at, high)
        } else {
            let (low, high) = self.split(left, key);
            self.nodes[at as usize].left = high;
            (low, at)
        };
        self.sum_up(at);
        parts
    }

    /// Two trees, all of the first before all of the second.
    fn merge(&mut self, a: u32, b: u32) -> u32 {
        if a == NIL || b == NIL {
            return if a == NIL { b } else { a };
        }
        let (first, second) = (&self.nodes[a as usize], &self.nodes[b as usize]);
        if (mix(first.due.seq), first.due.seq) < (mix(second.due.seq), second.due.seq) {
            let merged = self.merge(first.right, b);
            self.nodes[a as usize].right = merged;
            self.sum_up(a);
            a
        } else {
            let merged = self.merge(a, second.left);
            self.nodes[b as usize].left = merged;
            self.sum_up(b);
            b
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    /// The same by scanning.
    fn slacks(all: &BTreeMap<(u64, u64), (u64, u32)>) -> Vec<((u64, u64), i128)> {
        let mut sum = 0;
        let slack = |(&key, &(work, _)): (&(u64, u64), &(u64, u32))| {
            sum += i128::from(work);
            (key, i128::from(key.0) - sum)
        };
        all.iter().map(slack).collect()
    }

    #[test]
    fn every_question_is_answered_as_by_a_scan() {
        let (mut tree, mut all) = (Feasible::default(), BTreeMap::new());
        let mut keys = BTreeMap::new();
        let mut state = 11u64;
        let mut late = 0;
        for seq in 0..10_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (name, work, at_ns) = ((state >> 33) as u32 % 40, (state >> 40) % 21, (state >> 46) % 900);
            if let Some(key) = keys.remove(&name) {
                all.remove(&key);
                tree.remove(name);
            }
            let due = Due { at_ns, seq, work_ns: work };
            let now = i128::from(state >> 58) - 8;
            let fits = tree.fits(&due, now);
            tree.insert(name, due);
            all.insert((at_ns, seq), (work, name));
            keys.insert(name, (at_ns, seq));
            let slacks = slacks(&all);
            assert_eq!(tree.slack(), slacks.iter().map(|s| s.1).min().unwrap());
            // It would be late, or it makes somebody behind it late.
            assert_eq!(fits, slacks.iter().all(|&(key, slack)| key < (at_ns, seq) || slack >= now));
            let first = slacks.iter().find(|s| s.1 < now).map(|s| s.0);
            let heaviest = first.map(|first| all.range(..=first).map(|(key, &(work, name))| (work, key.1, name)).max().unwrap().2);
            assert_eq!(tree.heaviest_before_first_late(now), heaviest);
            assert_eq!(tree.last_late(now), slacks.iter().rfind(|s| s.1 < now).map(|s| s.0));
            let start = all.iter().map(|(key, &(work, name))| (i128::from(key.0) - i128::from(work), key.1, name)).min().unwrap();
            assert_eq!(tree.first_start(), Some((start.0, start.2)));
            let mut walked = Vec::new();
            let mut at = None;
            while let Some((key, name)) = tree.next(at, (600, u64::MAX)) {
                walked.push(name);
                at = Some(key);
            }
            assert_eq!(walked, all.range(..=(600, u64::MAX)).map(|(_, &(_, name))| name).collect::<Vec<_>>());
            late += u32::from(first.is_some());
        }
        assert!((1000..9900).contains(&late), "{late} times somebody was late");
    }

    #[test]
    fn dropping_the_largest_leaves_as_few_late_ones_as_any_choice_does() {
        let mut state = 5u64;
        for _ in 0..300 {
            let mut draw = |most: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % most
            };
            let jobs: Vec<Due> = (0..8).map(|seq| Due { at_ns: draw(30), seq, work_ns: draw(12) + 1 }).collect();
            let mut tree = Feasible::default();
            (0..).zip(&jobs).for_each(|(name, &job)| tree.insert(name, job));
            let mut kept = jobs.len();
            while let Some(name) = tree.heaviest_before_first_late(0) {
                tree.remove(name);
                kept -= 1;
            }
            let most = (0u32..1 << jobs.len()).filter(|set| {
                let mut chosen: Vec<_> = (0..).zip(&jobs).filter(|(at, _)| set & (1 << at) != 0).map(|(_, job)| job).collect();
                chosen.sort_unstable_by_key(|job| job.key());
                let mut sum = 0;
                chosen.iter().all(|job| {
                    sum += job.work_ns;
                    sum <= job.at_ns
                })
            });
            assert_eq!(kept as u32, most.map(u32::count_ones).max().unwrap());
        }
    }
}
