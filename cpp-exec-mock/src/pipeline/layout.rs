//! Virtual stages: devices that have more than one group of layers, and what that makes of a list of batches.
//!
//! A batch passes the virtual stages in order; a device runs one piece at a time, and of those that are there that of the oldest batch. So a piece can
//! be overtaken by one that comes later, and times are found event by event. [`Pipe`](super::Pipe) has one group a device, where that cannot happen.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Where the groups of layers are, for P devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One group a device: 0, 1, .., P-1.
    Linear,
    /// Two groups a device: 0, 1, .., P-1, 0, 1, .., P-1 (Narayanan et al., SC '21). Twice as many hops.
    Interleaved,
    /// Two groups a device, forth and back: 0, 1, .., P-1, P-1, .., 1, 0 (Qi et al., 2024). The first and the last layers are on one device, and the turn needs
    /// no hop.
    V,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Linear, Self::Interleaved, Self::V];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Interleaved => "interleaved",
            Self::V => "v",
        }
    }

    /// Groups of layers on each device.
    #[must_use]
    pub const fn groups(self) -> u32 {
        match self {
            Self::Linear => 1,
            Self::Interleaved | Self::V => 2,
        }
    }

    /// The device of each virtual stage, in order.
    #[must_use]
    pub fn devices(self, stages: u32) -> Vec<u32> {
        let forth = 0..stages;
        match self {
            Self::Linear => forth.collect(),
            Self::Interleaved => forth.clone().chain(forth).collect(),
            Self::V => forth.clone().chain(forth.rev()).collect(),
        }
    }
}

/// What a list of batches takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutTimes {
    /// When each batch leaves the last virtual stage, in nanoseconds.
    pub completions_ns: Vec<u64>,
    /// How long each device works.
    pub busy_ns: Vec<u64>,
}

impl LayoutTimes {
    /// When the last batch is out.
    #[must_use]
    pub fn makespan_ns(&self) -> u64 {
        self.completions_ns.iter().copied().max().unwrap_or(0)
    }
}

/// Times of batches that are all there at 0: `devices` are those of the virtual stages in order, batch `j` takes `times[j]` on each of them, and `hop_ns` passes
/// between two that are on different devices. Saturating. O(batches · virtual stages · log).
///
/// ```
/// use cpp_exec_mock::pipeline::{Layout, layout_times};
/// // Two batches on two devices: 2 on each, or 1 on each of two groups.
/// let makespan = |layout: Layout, ns| layout_times(&layout.devices(2), &[ns; 2], 0).makespan_ns();
/// assert_eq!((makespan(Layout::Linear, 2), makespan(Layout::Interleaved, 1), makespan(Layout::V, 1)), (6, 5, 6));
/// ```
#[must_use]
pub fn layout_times(devices: &[u32], times: &[u64], hop_ns: u64) -> LayoutTimes {
    let count = devices.iter().max().map_or(0, |&last| last as usize + 1);
    let mut result = LayoutTimes { completions_ns: vec![0; times.len()], busy_ns: vec![0; count] };
    if devices.is_empty() {
        return result;
    }
    // Pieces that are there: (batch, virtual stage).
    let mut queues = vec![BTreeSet::new(); count];
    queues[devices[0] as usize].extend((0..times.len()).map(|batch| (batch, 0)));
    let mut free_ns = vec![0u64; count];
    // When something may start: pieces that arrive, and devices that are free again.
    let mut events = BinaryHeap::from([Reverse((0u64, devices[0] as usize, None))]);
    while let Some(Reverse((now_ns, device, arrived))) = events.pop() {
        queues[device].extend(arrived);
        // Everything of one instant is there before anything starts.
        if events.peek().is_some_and(|&Reverse((ns, next, _))| ns == now_ns && next == device) || free_ns[device] > now_ns {
            continue;
        }
        let Some((batch, stage)) = queues[device].pop_first() else { continue };
        let end_ns = now_ns.saturating_add(times[batch]);
        result.busy_ns[device] = result.busy_ns[device].saturating_add(times[batch]);
        free_ns[device] = end_ns;
        events.push(Reverse((end_ns, device, None)));
        match devices.get(stage + 1) {
            None => result.completions_ns[batch] = end_ns,
            Some(&next) => {
                let hop_ns = if next as usize == device { 0 } else { hop_ns };
                events.push(Reverse((end_ns.saturating_add(hop_ns), next as usize, Some((batch, stage + 1)))));
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::recurrence::completions;
    use rand::{RngExt, SeedableRng};

    fn of(layout: Layout, stages: u32, times: &[u64], hop_ns: u64) -> LayoutTimes {
        layout_times(&layout.devices(stages), times, hop_ns)
    }

    #[test]
    fn three_batches_on_three_devices_by_hand() {
        // One group of 2: out at 6, 8, 10.
        assert_eq!(of(Layout::Linear, 3, &[2; 3], 0).completions_ns, [6, 8, 10]);
        // Two groups of 1, forth and forth: a batch a nanosecond, for ever: device 0 [0,1][1,2][2,3] and [3,4][4,5][5,6].
        assert_eq!(of(Layout::Interleaved, 3, &[1; 3], 0).completions_ns, [6, 7, 8]);
        // Forth and back: batch 0 goes through; device 2 has batch 0 [2,4], batch 1 [4,6], batch 2 [6,8], and each goes back from there.
        let v = of(Layout::V, 3, &[1; 3], 0);
        assert_eq!((v.completions_ns.clone(), v.busy_ns.clone(), v.makespan_ns()), (vec![6, 8, 10], vec![6; 3], 10));
        // A hop of 10: two, five and four of them.
        let first = |layout, ns| of(layout, 3, &[ns], 10).completions_ns[0];
        assert_eq!((first(Layout::Linear, 2), first(Layout::Interleaved, 1), first(Layout::V, 1)), (26, 56, 46));
    }

    #[test]
    fn one_group_a_device_is_the_recurrence() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(8);
        for _ in 0..500 {
            let stages = rng.random_range(1..8u32);
            let times: Vec<u64> = (0..rng.random_range(0..20)).map(|_| rng.random_range(0..50)).collect();
            let hop_ns = rng.random_range(0..20);
            let batches: Vec<Vec<u64>> = times.iter().map(|&ns| vec![ns; stages as usize]).collect();
            assert_eq!(of(Layout::Linear, stages, &times, hop_ns).completions_ns, completions(&batches, hop_ns));
        }
    }

    #[test]
    fn two_groups_halve_the_fill() {
        // With as many batches as devices, or a multiple: all of the work, and P-1 halves.
        for (stages, rounds) in [(2u32, 3u64), (4, 1), (4, 5), (7, 2)] {
            let times = vec![5u64; (u64::from(stages) * rounds) as usize];
            let expected = 2 * 5 * times.len() as u64 + 5 * u64::from(stages - 1);
            let interleaved = of(Layout::Interleaved, stages, &times, 0);
            assert_eq!(interleaved.makespan_ns(), expected, "{stages} {rounds}");
            assert!(interleaved.busy_ns.iter().all(|&ns| ns == 10 * times.len() as u64));
        }
    }
}
