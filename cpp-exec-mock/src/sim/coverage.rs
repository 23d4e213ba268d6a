//! Which positions of a request some batch has run.

/// A set of positions, as sorted ranges that do not touch. One range nearly always: it takes a preemption and a longer prefix hit to make two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    first: (u32, u32),
    rest: Vec<(u32, u32)>,
}

impl Coverage {
    /// Adds `start..end` and answers how many of these positions were there already. O(1) at the end of a single range, else O(ranges).
    pub(crate) fn add(&mut self, start: u32, end: u32) -> u32 {
        debug_assert!(start < end);
        if self.rest.is_empty() {
            if self.first.0 == self.first.1 {
                self.first = (start, end);
                return 0;
            }
            if start == self.first.1 {
                self.first.1 = end;
                return 0;
            }
        }
        let mut ranges = std::mem::take(&mut self.rest);
        ranges.insert(0, self.first);
        let repeated = ranges.iter().map(|&range| overlap(range, (start, end))).sum();
        ranges.push((start, end));
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.0 <= last.1 => last.1 = last.1.max(range.1),
                _ => merged.push(range),
            }
        }
        self.first = merged.remove(0);
        self.rest = merged;
        repeated
    }

    /// How many positions below `limit` are in the set.
    pub(crate) fn below(&self, limit: u32) -> u32 {
        self.ranges().map(|range| overlap(range, (0, limit))).sum()
    }

    fn ranges(&self) -> impl Iterator<Item = (u32, u32)> {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }
}

fn overlap(a: (u32, u32), b: (u32, u32)) -> u32 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn agrees_with_a_list_of_flags() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        for _ in 0..2000 {
            let (mut coverage, mut flags) = (Coverage::default(), [false; 40]);
            for _ in 0..rng.random_range(1..12) {
                let start = rng.random_range(0..39u32);
                let end = rng.random_range(start + 1..=40);
                let before = flags[start as usize..end as usize].iter().filter(|&&f| f).count();
                assert_eq!(coverage.add(start, end) as usize, before);
                flags[start as usize..end as usize].fill(true);
                let limit = rng.random_range(0..=41u32);
                let expected = flags.iter().take(limit as usize).filter(|&&f| f).count();
                assert_eq!(coverage.below(limit) as usize, expected, "{coverage:?} below {limit}");
            }
        }
    }

    #[test]
    fn chunks_in_order_stay_one_range() {
        let mut coverage = Coverage::default();
        assert_eq!((coverage.add(64, 100), coverage.add(100, 101), coverage.add(101, 500)), (0, 0, 0));
        assert_eq!(coverage, Coverage { first: (64, 500), rest: vec![] });
        // A preemption, and a hit that ends beyond what was run.
        assert_eq!(coverage.add(512, 600), 0);
        assert_eq!((coverage.below(u32::MAX), coverage.add(0, 600)), (436 + 88, 436 + 88));
        assert_eq!(coverage, Coverage { first: (0, 600), rest: vec![] });
    }
}
