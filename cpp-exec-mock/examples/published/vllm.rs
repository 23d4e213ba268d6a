//! The ratios of after to before, seed by seed.

use cpp_exec_mock::profile::{Profile, ProfileError, Published, ratios as measured};

const NAME: &str = "llama-8b-l4";

/// Where the published ratios lie among those of the seeds.
pub(crate) fn ratios() -> Result<(), ProfileError> {
    let profile = Profile::find(NAME)?;
    let Some(drawn) = Published::find(NAME)?.and_then(|published| published.workload) else { return Ok(()) };
    let found = measured(&profile, &drawn)?;
    let last = drawn.predict_seed + u64::from(drawn.seeds) - 1;
    println!(
        "after / before on the same requests, {} seeds ({} to {last}), none of them used by the fit:",
        drawn.seeds, drawn.predict_seed
    );
    println!("  {:<12}{:>10}{:>8}{:>8}{:>19}{:>8}   published ratio", "", "published", "mean", "median", "central 90 %", "width");
    for (what, published, values) in
        [("mean TTFT", 0.86, &found.ttft_mean), ("p99 TTFT", 0.72, &found.ttft_p99), ("mean TPOT", 0.96, &found.tpot_mean)]
    {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let rank = part * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[rank as usize], sorted[(rank as usize + 1).min(sorted.len() - 1)]);
            low + (high - low) * rank.fract()
        };
        let (low, high) = (at(0.05), at(0.95));
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let below = sorted.iter().filter(|&&ratio| ratio < published).count();
        let inside = if (low..=high).contains(&published) { "inside" } else { "OUTSIDE" };
        println!(
            "  {what:<12}{published:>10.2}{mean:>8.3}{:>8.3}{:>19}{:>8.3}   {inside}; {below} of {} seeds below; 1.0 is {}",
            at(0.5),
            format!("{low:.3} to {high:.3}"),
            high - low,
            sorted.len(),
            if high < 1.0 { "excluded" } else { "not excluded" }
        );
    }
    Ok(())
}
