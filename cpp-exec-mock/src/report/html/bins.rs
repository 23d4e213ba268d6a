//! What grows with a run, in bounded memory: bins of time that get wider, classes of cost, a thinned sample.

/// Bins of time at most; a run that needs more has bins twice as wide.
const MOST_BINS: usize = 512;

/// What two neighbouring bins become when they are one.
pub(super) trait Merge: Clone + Default {
    /// Takes over the later bin.
    fn merge(&mut self, later: Self);
}

/// Values over time. Bins are added as time goes on and merged in pairs when there are too many: O(1) amortised, at most 512 bins.
#[derive(Clone, Debug)]
pub(super) struct TimeBins<T> {
    from_ns: Option<u64>,
    width_ns: u64,
    bins: Vec<T>,
}

impl<T> Default for TimeBins<T> {
    fn default() -> Self {
        Self { from_ns: None, width_ns: 1000, bins: Vec::new() }
    }
}

impl<T: Merge> TimeBins<T> {
    /// The bin of an instant; what is before the first one counts as the first.
    pub(super) fn at(&mut self, ns: u64) -> &mut T {
        let index = self.index(ns);
        &mut self.bins[index]
    }

    /// Shows each bin that a stretch of time touches, and how many nanoseconds of it. Nothing for an empty one.
    pub(super) fn over(&mut self, from_ns: u64, to_ns: u64, mut add: impl FnMut(&mut T, u64)) {
        if to_ns <= from_ns {
            return;
        }
        let origin_ns = *self.from_ns.get_or_insert(from_ns);
        // The last bin first: it decides how wide all are.
        let last = self.index(to_ns - 1);
        let first = self.index(from_ns);
        for index in first..=last {
            let begin_ns = origin_ns + index as u64 * self.width_ns;
            let inside = to_ns.min(begin_ns + self.width_ns).saturating_sub(from_ns.max(begin_ns));
            add(&mut self.bins[index], inside);
        }
    }

    fn index(&mut self, ns: u64) -> usize {
        let since = ns.saturating_sub(*self.from_ns.get_or_insert(ns));
        while since / self.width_ns >= MOST_BINS as u64 {
            self.widen();
        }
        let index = (since / self.width_ns) as usize;
        if index >= self.bins.len() {
            self.bins.resize(index + 1, T::default());
        }
        index
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let mut merged: Vec<T> = Vec::with_capacity(MOST_BINS);
        for pair in self.bins.chunks(2) {
            let mut bin = pair[0].clone();
            pair[1..].iter().cloned().for_each(|later| bin.merge(later));
            merged.push(bin);
        }
        self.bins = merged;
    }

    /// Each bin with its beginning and end, in nanoseconds.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        let origin_ns = self.from_ns.unwrap_or(0);
        let begin = move |index: usize| origin_ns + index as u64 * self.width_ns;
        self.bins.iter().enumerate().map(move |(index, bin)| (begin(index), begin(index + 1), bin))
    }
}

/// Classes within a factor of two.
const PER_OCTAVE: f64 = 8.0;

/// Positive times by size, in classes that are 9 % wide, of three kinds each.
#[derive(Clone, Debug, Default)]
pub(super) struct CostClasses {
    counts: std::collections::BTreeMap<i32, [u64; 3]>,
}

impl CostClasses {
    /// Counts one.
    pub(super) fn add(&mut self, ns: u64, kind: usize) {
        let class = ((ns.max(1) as f64).log2() * PER_OCTAVE).floor() as i32;
        self.counts.entry(class).or_default()[kind] += 1;
    }

    /// Each class that holds something: its limits in nanoseconds, and its counts.
    pub(super) fn iter(&self) -> impl Iterator<Item = (f64, f64, &[u64; 3])> {
        let limit = |class: i32| (f64::from(class) / PER_OCTAVE).exp2();
        self.counts.iter().map(move |(&class, counts)| (limit(class), limit(class + 1), counts))
    }
}

/// Every k-th of what comes, where k doubles whenever there would be more than [`Thinned::MOST`]. No randomness: equal runs keep equal samples.
#[derive(Clone, Debug)]
pub(super) struct Thinned<T> {
    kept: Vec<T>,
    seen: u64,
    every: u64,
}

impl<T> Default for Thinned<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), seen: 0, every: 1 }
    }
}

impl<T> Thinned<T> {
    /// Kept at most.
    pub(super) const MOST: usize = 1 << 15;

    /// Keeps it, or not.
    pub(super) fn push(&mut self, value: T) {
        if self.seen.is_multiple_of(self.every) {
            if self.kept.len() == Self::MOST {
                let mut keep = false;
                self.kept.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.every *= 2;
            }
            if self.seen.is_multiple_of(self.every) {
                self.kept.push(value);
            }
        }
        self.seen += 1;
    }

    /// What is kept, in order.
    pub(super) fn kept(&self) -> &[T] {
        &self.kept
    }

    /// One of so many was kept.
    pub(super) const fn every(&self) -> u64 {
        self.every
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Merge for u64 {
        fn merge(&mut self, later: Self) {
            *self += later;
        }
    }

    #[test]
    fn bins_keep_every_nanosecond_however_often_they_are_merged() {
        let mut bins = TimeBins::<u64>::default();
        let (mut at, mut sum) = (5_000_000_000u64, 0);
        for step in 1..3000u64 {
            let long = step * step % 700_001;
            bins.over(at, at + long, |bin, ns| *bin += ns);
            (at, sum) = (at + long + 13, sum + long);
        }
        assert_eq!(bins.iter().map(|(.., ns)| *ns).sum::<u64>(), sum);
        assert!(bins.iter().all(|(from, to, ns)| *ns <= to - from));
        assert!(bins.iter().count() <= MOST_BINS);
        let (first, last) = (bins.iter().next().unwrap(), bins.iter().last().unwrap());
        assert!(first.0 == 5_000_000_000 && last.0 < at && last.1 + 2 * (last.1 - last.0) > at);
        // One stretch over everything touches all bins.
        let before = bins.iter().count();
        bins.over(5_000_000_000, at, |bin, ns| *bin += ns);
        assert!(bins.iter().count() >= before);
        assert_eq!(bins.iter().map(|(.., ns)| *ns).sum::<u64>(), sum + at - 5_000_000_000);
        bins.over(7, 7, |_, _| panic!("nothing"));
    }

    #[test]
    fn a_thinned_sample_is_even_and_bounded() {
        let mut sample = Thinned::default();
        for value in 0..200_000u64 {
            sample.push(value);
        }
        assert_eq!(sample.every(), 8);
        assert!(sample.kept().len() <= Thinned::<u64>::MOST);
        assert!(sample.kept().windows(2).all(|pair| pair[1] - pair[0] == 8) && sample.kept()[0] == 0);
        assert!(sample.kept().last().unwrap() + 8 >= 199_999);
    }

    #[test]
    fn classes_hold_what_they_say() {
        let mut classes = CostClasses::default();
        for ns in [0, 1, 1000, 1_000_000, 1_000_001, u64::MAX] {
            classes.add(ns, 1);
        }
        assert_eq!(classes.iter().map(|(.., counts)| counts[1]).sum::<u64>(), 6);
        assert!(classes.iter().any(|(low, high, counts)| low <= 1e6 && high > 1_000_001.0 && counts[1] == 2));
    }
}
