//! How fast a run was.

use std::time::Duration;

/// The times of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// From its submit to its first token.
    pub(crate) first: Option<Duration>,
    /// From each token to the next.
    pub(crate) between: Vec<Duration>,
}

/// Mean, median, 99th percentile and maximum, in milliseconds; empty without values.
pub(crate) fn spread(mut values: Vec<Duration>) -> String {
    values.sort();
    let Some(most) = values.last() else { return "none".to_owned() };
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let mean = values.iter().sum::<Duration>() / values.len() as u32;
    let at = |share: f64| ms(values[((values.len() - 1) as f64 * share).round() as usize]);
    format!("mean {:.1} ms, median {:.1} ms, 99 % {:.1} ms, most {:.1} ms", ms(mean), at(0.5), at(0.99), ms(*most))
}

#[cfg(test)]
mod tests {
    use super::spread;
    use std::time::Duration;

    #[test]
    fn a_spread_is_told_in_milliseconds() {
        let values = (0..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(spread(values), "mean 50.0 ms, median 50.0 ms, 99 % 99.0 ms, most 100.0 ms");
        assert_eq!(spread(Vec::new()), "none");
    }
}
