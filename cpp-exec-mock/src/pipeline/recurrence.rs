//! Exact times of a list of batches that are all there from the start.
//!
//! `C[j,s] = max(C[j-1,s], C[j,s-1] + hop) + t[j,s]` for stages `s` and batches `j` in order. When every batch costs the same on all stages, the
//! last completion has a closed form, `Σ t + (P-1)·(max t + hop)`: the order of the sizes does not matter, only their sum and their largest.
//!
//! ```
//! use cpp_exec_mock::pipeline::recurrence::{makespan, makespan_equal_stages};
//! // Three batches of 2, 5 and 3 ns on four equal stages: 10 + 3 * 5.
//! let batches = [2, 5, 3].map(|t| [t; 4]);
//! assert_eq!(makespan(&batches, 0), 25);
//! assert_eq!(makespan_equal_stages(&[2, 5, 3], 4, 0), 25);
//! ```

/// When each batch leaves the last stage, in nanoseconds from the start; `batches[j][s]` is the time of batch `j` on stage `s`, every batch has
/// as many stages, and `hop_ns` passes between two stages. Saturating. O(batches · stages).
///
/// # Panics
/// If two batches have different numbers of stages.
#[must_use]
pub fn completions<B: AsRef<[u64]>>(batches: &[B], hop_ns: u64) -> Vec<u64> {
    let stages = batches.first().map_or(0, |batch| batch.as_ref().len());
    let mut free_at = vec![0u64; stages];
    let mut done = Vec::with_capacity(batches.len());
    for batch in batches {
        let times = batch.as_ref();
        assert_eq!(times.len(), stages, "every batch passes every stage");
        let mut arrives = 0u64;
        for (free, &time) in free_at.iter_mut().zip(times) {
            *free = (*free).max(arrives).saturating_add(time);
            arrives = free.saturating_add(hop_ns);
        }
        done.push(free_at.last().copied().unwrap_or(0));
    }
    done
}

/// When the last batch leaves the last stage: the last of [`completions`], 0 without batches.
#[must_use]
pub fn makespan<B: AsRef<[u64]>>(batches: &[B], hop_ns: u64) -> u64 {
    completions(batches, hop_ns).last().copied().unwrap_or(0)
}

/// The makespan when batch `j` takes `times[j]` on every one of `stages` stages: `Σ t + (P-1)·(max t + hop)`, 0 without batches or stages.
/// Saturating. O(batches).
#[must_use]
pub fn makespan_equal_stages(times: &[u64], stages: u32, hop_ns: u64) -> u64 {
    let (Some(&largest), true) = (times.iter().max(), stages > 0) else { return 0 };
    let sum = times.iter().fold(0u64, |sum, &t| sum.saturating_add(t));
    sum.saturating_add(largest.saturating_add(hop_ns).saturating_mul(u64::from(stages - 1)))
}
