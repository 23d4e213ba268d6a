//! The profiles that come with the tool.

use std::fmt::Write;

use super::{Profile, Published};
use crate::report::wrap;

const PROFILES: [(&str, &str); 7] = [
    ("demo", include_str!("../../profiles/demo.toml")),
    ("llama-70b-h100-tp8", include_str!("../../profiles/llama-70b-h100-tp8.toml")),
    ("llama-8b-l4", include_str!("../../profiles/llama-8b-l4.toml")),
    ("llama-8b-h200", include_str!("../../profiles/llama-8b-h200.toml")),
    ("qwen3-235b-h20", include_str!("../../profiles/qwen3-235b-h20.toml")),
    ("deepseek-v3.1-h20", include_str!("../../profiles/deepseek-v3.1-h20.toml")),
    ("kimi-k2.5-mi355x", include_str!("../../profiles/kimi-k2.5-mi355x.toml")),
];

pub(super) fn text(name: &str) -> Option<&'static str> {
    PROFILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The names of the built-in profiles.
#[must_use]
pub fn builtin_names() -> Vec<&'static str> {
    PROFILES.iter().map(|(name, _)| *name).collect()
}

/// The built-in profiles as text, with what each stands for and where its numbers come from.
#[must_use]
pub fn list_profiles() -> String {
    let mut text = String::new();
    for (name, toml) in PROFILES {
        let profile = Profile::parse(toml, name).expect("the tests read all built-in profiles");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name}\n{}", wrap(&profile.about, 4));
        for line in profile.source.trim().lines() {
            let _ = writeln!(text, "{}", wrap(line, 4));
        }
        if let Ok(Some(published)) = Published::parse(toml, name) {
            let (fit, prediction) = (published.fit.len(), published.prediction.len());
            let told = format!("Fitted to {fit} published points, held against {prediction} others: {}", published.source);
            let _ = writeln!(text, "{}", wrap(&told, 4));
        }
    }
    text
}
