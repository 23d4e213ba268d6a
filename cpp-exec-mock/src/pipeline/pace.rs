//! Times at which a stage runs slower than it should, or not at all.

/// How fast a stage runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Not at all; what it was running goes on afterwards.
    Stopped,
    /// Slower: what takes 1000 ns takes so many. Less than 1000 counts as 1000.
    Slower(u32),
}

/// A time during which a stage has a pace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its beginning, in nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// The pace meanwhile. Where windows overlap, the slowest counts.
    pub pace: Pace,
}

/// The windows of one stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows(Vec<Window>);

impl Windows {
    pub(super) fn add(&mut self, window: Window) {
        self.0.push(window);
    }

    /// What ended by `ns` is of no use any more.
    pub(super) fn forget(&mut self, ns: u64) {
        self.0.retain(|window| window.to_ns > ns);
    }

    /// Runs work of `work_ns` from `start_ns` on; tells each part in order as (lost, from, to), and returns the end. Saturating.
    ///
    /// With a pace of k/1000 the work that is done in dt is `dt * 1000 / k`, rounded down. O(windows²), of which there are few.
    pub(super) fn run(&self, start_ns: u64, work_ns: u64, mut part: impl FnMut(bool, u64, u64)) -> u64 {
        let (mut at_ns, mut left_ns) = (start_ns, work_ns);
        while left_ns > 0 && at_ns < u64::MAX {
            let now = || self.0.iter().filter(|window| window.from_ns <= at_ns && at_ns < window.to_ns);
            let edges = self.0.iter().flat_map(|window| [window.from_ns, window.to_ns]);
            let until_ns = edges.filter(|&edge| edge > at_ns).min().unwrap_or(u64::MAX);
            let long_ns = until_ns - at_ns;
            let slowest = now().map(|window| window.pace.thousandths()).max().unwrap_or(Some(1000));
            let stopped = now().any(|window| window.pace == Pace::Stopped);
            let (busy_ns, lost_ns) = match slowest.filter(|_| !stopped) {
                None => (0, long_ns),
                Some(k) => {
                    let k = u128::from(k);
                    let need_ns = (u128::from(left_ns) * k).div_ceil(1000);
                    match u64::try_from(need_ns).ok().filter(|&need_ns| need_ns <= long_ns) {
                        Some(need_ns) => (left_ns, need_ns - left_ns),
                        None => {
                            let done_ns = (u128::from(long_ns) * 1000 / k) as u64;
                            (done_ns, long_ns - done_ns)
                        }
                    }
                }
            };
            if busy_ns > 0 {
                part(false, at_ns, at_ns + busy_ns);
            }
            if lost_ns > 0 {
                part(true, at_ns + busy_ns, at_ns + busy_ns + lost_ns);
            }
            left_ns -= busy_ns;
            at_ns += busy_ns + lost_ns;
        }
        at_ns
    }
}

impl Pace {
    fn thousandths(self) -> Option<u32> {
        match self {
            Self::Stopped => None,
            Self::Slower(k) => Some(k.max(1000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(windows: &[(u64, u64, Pace)], start_ns: u64, work_ns: u64) -> (u64, Vec<(bool, u64, u64)>) {
        let windows = Windows(windows.iter().map(|&(from_ns, to_ns, pace)| Window { from_ns, to_ns, pace }).collect());
        let mut parts = Vec::new();
        let end_ns = windows.run(start_ns, work_ns, |lost, from, to| parts.push((lost, from, to)));
        (end_ns, parts)
    }

    #[test]
    fn work_stops_and_goes_on() {
        let stop = [(10, 15, Pace::Stopped)];
        assert_eq!(parts(&stop, 4, 9), (18, vec![(false, 4, 10), (true, 10, 15), (false, 15, 18)]));
        assert_eq!(parts(&stop, 4, 6), (10, vec![(false, 4, 10)]), "done as it stops");
        assert_eq!(parts(&stop, 12, 2), (17, vec![(true, 12, 15), (false, 15, 17)]));
        assert_eq!(parts(&stop, 15, 2), (17, vec![(false, 15, 17)]));
        assert_eq!(parts(&stop, 12, 0), (12, vec![]));
    }

    #[test]
    fn half_speed_takes_twice_as_long() {
        let slow = [(10, 20, Pace::Slower(2000))];
        // 6 before; then 4 in 8 of the window.
        assert_eq!(parts(&slow, 4, 10), (18, vec![(false, 4, 10), (false, 10, 14), (true, 14, 18)]));
        // 6 before, 5 in the window, 1 after.
        assert_eq!(parts(&slow, 4, 12), (21, vec![(false, 4, 10), (false, 10, 15), (true, 15, 20), (false, 20, 21)]));
        // The slowest counts: 1 in the first three, 0, 1 in the last three, 1 after.
        assert_eq!(parts(&[(0, 9, Pace::Slower(3000)), (3, 6, Pace::Stopped), (0, 9, Pace::Slower(1500))], 0, 3).0, 10);
    }

    #[test]
    fn the_end_of_the_clock_is_no_panic() {
        assert_eq!(parts(&[(5, u64::MAX, Pace::Stopped)], 0, 9).0, u64::MAX);
        assert_eq!(parts(&[], u64::MAX - 3, 9).0, u64::MAX);
    }
}
