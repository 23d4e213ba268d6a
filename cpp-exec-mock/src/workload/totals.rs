//! Lengths that sum to given totals.

use super::Workload;

impl Workload {
    /// Scales prompt and output lengths by one factor each, so that they sum to these totals exactly: what is known of many published
    /// measurements is the totals alone. Rounded down, at least 1; what is missing goes to the longest, one token each in turn. A total below one
    /// token a request leaves 1 everywhere.
    ///
    /// ```
    /// use cpp_exec_mock::workload::{Synthetic, Workload};
    /// let mut workload = Workload::synthetic(&Synthetic { requests: 150, ..Synthetic::default() })?;
    /// workload.scale_lengths(106_025, 42_000);
    /// assert_eq!(workload.items().iter().map(|item| item.input_tokens).sum::<u32>(), 106_025);
    /// assert_eq!(workload.items().iter().map(|item| item.output_tokens).sum::<u32>(), 42_000);
    /// # Ok::<(), cpp_exec_mock::workload::WorkloadError>(())
    /// ```
    pub fn scale_lengths(&mut self, input_total: u32, output_total: u32) {
        let mut inputs: Vec<u32> = self.items.iter().map(|item| item.input_tokens).collect();
        let mut outputs: Vec<u32> = self.items.iter().map(|item| item.output_tokens).collect();
        scale(&mut inputs, input_total);
        scale(&mut outputs, output_total);
        for (item, (input, output)) in self.items.iter_mut().zip(inputs.into_iter().zip(outputs)) {
            (item.input_tokens, item.output_tokens) = (input, output);
        }
        self.source = format!("{}, lengths scaled to {input_total} and {output_total} tokens in all", self.source);
    }
}

fn scale(lengths: &mut [u32], total: u32) {
    let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    if sum == 0 {
        return;
    }
    for length in lengths.iter_mut() {
        *length = (u128::from(*length) * u128::from(total) / u128::from(sum)).max(1) as u32;
    }
    let mut longest: Vec<usize> = (0..lengths.len()).collect();
    longest.sort_by_key(|&i| (std::cmp::Reverse(lengths[i]), i));
    let now: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    // Less than one a request is missing; too many there are only where some were raised to 1.
    for i in longest.iter().cycle().take(u64::from(total).saturating_sub(now) as usize) {
        lengths[*i] += 1;
    }
    let mut surplus = now.saturating_sub(total.into());
    for &i in &longest {
        let less = surplus.min(u64::from(lengths[i] - 1));
        lengths[i] -= less as u32;
        surplus -= less;
    }
}

#[cfg(test)]
mod tests {
    use super::scale;

    #[test]
    fn totals_are_exact_and_order_stays() {
        for (lengths, total) in [(vec![10, 20, 70], 1000), (vec![3, 3, 3], 10), (vec![1, 1, 1], 3), (vec![9, 8, 7], 5)] {
            let mut scaled = lengths.clone();
            scale(&mut scaled, total);
            assert_eq!(scaled.iter().sum::<u32>(), total, "{lengths:?}: {scaled:?}");
            assert!(scaled.iter().all(|&length| length > 0));
            assert!(lengths.windows(2).zip(scaled.windows(2)).all(|(a, b)| a[0] < a[1] || b[0] + 1 >= b[1]), "{lengths:?}: {scaled:?}");
        }
        let mut few = vec![5, 5];
        scale(&mut few, 1);
        assert_eq!(few, [1, 1]);
        scale(&mut [], 7);
    }
}
