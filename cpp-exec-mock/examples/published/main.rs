//! Published measurements against the simulator: fit again, predict, compare. Everything is in `docs/published.md`.
//!
//! ```text
//! cargo run --release -p cpp-exec-mock --example published              # the out-of-sample table of all profiles
//! cargo run --release -p cpp-exec-mock --example published -- fit NAME  # fits a profile again; values for its file
//! cargo run --release -p cpp-exec-mock --example published -- sglang    # Qwen3-235B and DeepSeek-V3.1 on H20
//! cargo run --release -p cpp-exec-mock --example published -- atom      # Kimi-K2.5 on MI355X
//! cargo run --release -p cpp-exec-mock --example published -- vllm      # Llama-3.1-8B on 2 x L4, before and after, paired seeds
//! ```

mod vllm;

use std::process::ExitCode;

use cpp_exec_mock::profile::{CutRule, Fitted, Point, Profile, ProfileError, Published, builtin_names, fit, measure};
use cpp_sched::Attos;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        [] => builtin_names().into_iter().try_for_each(table),
        ["fit", name] => refit(name),
        ["sglang"] => ["qwen3-235b-h20", "deepseek-v3.1-h20"].into_iter().try_for_each(table).and_then(|()| other_assumptions()),
        ["atom"] => table("kimi-k2.5-mi355x"),
        ["vllm"] => table("llama-8b-l4").and_then(|()| vllm::ratios()),
        _ => {
            eprintln!("published: [fit NAME | sglang | atom | vllm]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("published: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Published and computed times of a profile as it is in its file: fit points, then predictions.
fn table(name: &str) -> Result<(), ProfileError> {
    let (profile, Some(published)) = (Profile::find(name)?, Published::find(name)?) else {
        println!("{name}: nothing measured; {}\n", Profile::find(name)?.about);
        return Ok(());
    };
    println!("{name}: {}", published.source);
    println!("  {:<44}{:>12}{:>12}{:>9}", "", "published", "simulator", "");
    for (kind, points) in [("fit", &published.fit), ("prediction", &published.prediction)] {
        let mut worst = 0f64;
        for point in points {
            let ns = measure(&profile, &published, point)?;
            let off = ns / point.published_ns() - 1.0;
            worst = worst.max(off.abs());
            println!("  {kind:<11}{:<33}{:>12}{:>12}{:>+8.1} %", point.what, show(point.published_ns()), show(ns), 100.0 * off);
        }
        if !points.is_empty() {
            println!("  {kind:<11}{} points, at most {:.1} % off", points.len(), 100.0 * worst);
        }
    }
    println!();
    Ok(())
}

fn show(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Fits again from the values in the file, and shows both.
fn refit(name: &str) -> Result<(), ProfileError> {
    let profile = Profile::find(name)?;
    let fitted = match Published::find(name)? {
        Some(published) => fit(&profile, &published)?.map(|fitted| (published, fitted)),
        None => None,
    };
    let Some((published, Fitted { profile: after, published: drawn, values, .. })) = fitted else {
        println!("{name}: nothing to fit");
        return Ok(());
    };
    println!("{name}: {} points for {} values (nanoseconds of the whole model; c0 of each stage)", published.fit.len(), values.len());
    for (free, file, fitted) in values {
        println!("  {:<18} in the file {file:<16.9} fitted {fitted:<16.9} ({:+.4} %)", free.name(), 100.0 * (fitted / file - 1.0));
    }
    for point in &published.fit {
        let off = measure(&after, &drawn, point)? / point.published_ns() - 1.0;
        println!("  {:<44} {:>+8.2} %", point.what, 100.0 * off);
    }
    Ok(())
}

/// What is assumed and not fitted, and what the predictions become with other assumptions; the fit is done anew for each.
fn other_assumptions() -> Result<(), ProfileError> {
    println!("predictions with other assumptions, each fitted anew (the first of each as in the file):");
    for name in ["qwen3-235b-h20", "deepseek-v3.1-h20"] {
        for ms in [10, 0, 5, 20, 40] {
            with(name, &format!("{ms} ms per batch and stage"), |profile, _| profile.per_batch = Attos::from_ns(ms * 1_000_000))?;
        }
    }
    for (what, rule) in [
        ("base 18432, smooth 0.8", CutRule::Sglang { base: 18_432, smooth_percent: 80 }),
        ("base 12288, smooth 0.65", CutRule::Sglang { base: 12_288, smooth_percent: 65 }),
        ("chunks of 6144", CutRule::Fixed { tokens: 6144 }),
    ] {
        // The run on one stage is asked about, not fitted: its chunks stay.
        with("qwen3-235b-h20", &format!("8 stages: {what}"), |_, published| {
            let prompts = published.fit.iter_mut().chain(&mut published.prediction).filter_map(|point| point.prompt.as_mut());
            prompts.filter(|prompt| prompt.layers.len() > 1).for_each(|prompt| prompt.chunks = rule);
        })?;
    }
    for tokens in [12_288, 8192, 4096] {
        with("deepseek-v3.1-h20", &format!("1 stage: chunks of {tokens}"), |_, published| {
            published.fit.iter_mut().filter_map(|point| point.prompt.as_mut()).for_each(|prompt| prompt.chunks = CutRule::Fixed { tokens });
        })?;
    }
    Ok(())
}

fn with(name: &str, what: &str, change: impl FnOnce(&mut Profile, &mut Published)) -> Result<(), ProfileError> {
    let (mut profile, Some(mut published)) = (Profile::find(name)?, Published::find(name)?) else { return Ok(()) };
    change(&mut profile, &mut published);
    let Some(fitted) = fit(&profile, &published)? else { return Ok(()) };
    let off = |point: &Point| {
        measure(&fitted.profile, &published, point).map(|ns| format!("{:+.1} %", 100.0 * (ns / point.published_ns() - 1.0)))
    };
    let offs = published.prediction.iter().map(off).collect::<Result<Vec<_>, _>>()?;
    println!("  {name:<20}{what:<34}{}", offs.join(", "));
    Ok(())
}
