//! A clairvoyant to compare with.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::draw::Job;

/// How many deadlines an EDF meets that may interrupt at no cost, knows every job's work, and drops the largest job of those in the way whenever
/// one would be late: one machine that works at the rate of the slowest stage. `fill_ns` = what a last chunk needs for the stages behind it.
///
/// Dropping the largest is what gives the fewest late jobs when all arrive at once (Moore 1968, with Hodgson); with arrivals over time it is no
/// longer the optimum, but hard to beat. O(late jobs * jobs * log jobs).
#[must_use]
pub fn clairvoyant(jobs: &[Job], fill_ns: u64) -> usize {
    let aimed: Vec<usize> = (0..jobs.len()).filter(|&at| jobs[at].ttft_slo_ns.is_some()).collect();
    let mut dropped = BTreeSet::new();
    while let Some((start, late)) = first_late(jobs, &aimed, &dropped, fill_ns) {
        // Those that ran since the machine was last free, or started before the late one's deadline and are as urgent.
        let due = deadline(&jobs[late]);
        let in_the_way = aimed.iter().copied().filter(|&at| {
            !dropped.contains(&at) && jobs[at].arrival_ns >= start && jobs[at].arrival_ns <= due && deadline(&jobs[at]) <= due
        });
        let largest = in_the_way.max_by_key(|&at| (jobs[at].work_ns, at)).unwrap_or(late);
        dropped.insert(largest);
    }
    aimed.len() - dropped.len()
}

fn deadline(job: &Job) -> u64 {
    job.arrival_ns.saturating_add(job.ttft_slo_ns.unwrap_or(u64::MAX))
}

/// Runs EDF until a job is late: since when the machine was busy, and that job.
fn first_late(jobs: &[Job], aimed: &[usize], dropped: &BTreeSet<usize>, fill_ns: u64) -> Option<(u64, usize)> {
    let mut coming = aimed.iter().copied().filter(|at| !dropped.contains(at)).peekable();
    let mut ready: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
    let (mut now, mut busy_since) = (0, 0);
    loop {
        if ready.is_empty() {
            let &at = coming.peek()?;
            if jobs[at].arrival_ns > now || now == 0 {
                busy_since = jobs[at].arrival_ns;
            }
            now = now.max(jobs[at].arrival_ns);
        }
        while let Some(&at) = coming.peek().filter(|&&at| jobs[at].arrival_ns <= now) {
            coming.next();
            ready.push(Reverse((deadline(&jobs[at]), at, jobs[at].work_ns)));
        }
        let Some(Reverse((due, at, left))) = ready.pop() else { continue };
        let until = coming.peek().map_or(u64::MAX, |&next| jobs[next].arrival_ns);
        if now.saturating_add(left) <= until {
            now += left;
            if now.saturating_add(fill_ns) > due {
                return Some((busy_since, at));
            }
        } else {
            ready.push(Reverse((due, at, left - (until - now))));
            now = until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(arrival_ns: u64, work_ns: u64, slo: u64) -> Job {
        Job {
            arrival_ns,
            class: 0,
            phase: 0,
            input_tokens: 1,
            output_tokens: 1,
            tenant: None,
            own_ns: work_ns,
            work_ns,
            ttft_slo_ns: Some(slo),
            tpot_slo_ns: None,
        }
    }

    #[test]
    fn the_largest_of_those_in_the_way_is_dropped() {
        // One of 10 and two of 1 that are due at 6: without the large one both are met.
        assert_eq!(clairvoyant(&[job(0, 10, 10), job(5, 1, 1), job(5, 1, 2)], 0), 2);
        // With time enough for all, all are met, interrupting the large one.
        assert_eq!(clairvoyant(&[job(0, 10, 16), job(5, 1, 1), job(5, 1, 2)], 0), 3);
        assert_eq!(clairvoyant(&[job(0, 10, 12), job(5, 1, 1), job(5, 1, 2)], 0), 3);
        // A fill of 1 makes the first short one late whatever is done.
        assert_eq!(clairvoyant(&[job(0, 10, 12), job(5, 1, 1), job(5, 1, 2)], 1), 2);
        assert_eq!(clairvoyant(&[], 0), 0);
    }
}
