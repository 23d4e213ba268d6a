//! What the compiler refuses is left out.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::list::NOT_BUILT;
use crate::{KERNEL, Left};

/// Compiles the copy and leaves out the mutants that it fails at. How many there were.
pub fn compile(tree: &Path, everything: bool, left: &mut Left) -> Result<usize, String> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", "../build").args(["check", "--message-format", "json", "--config=profile.dev.debug=0"]);
    match everything {
        false => cargo.args(["-p", KERNEL, "--all-features", "--lib"]),
        true => cargo.args(["-p", KERNEL, "-p", "cpp-sched-tests", "--all-features", "--tests"]),
    };
    let run = cargo.output().map_err(|e| format!("cargo check: {e}"))?;
    if run.status.success() {
        return Ok(0);
    }
    let before = (left.mutants.len(), left.constant.len());
    let mut unknown = BTreeSet::new();
    for line in String::from_utf8_lossy(&run.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let message = &message["message"];
        if message["level"] == "error" && !blame(message, tree, left)? {
            unknown.insert(message["rendered"].as_str().unwrap_or_default().to_owned());
        }
    }
    let refused = left.mutants.len() + left.constant.len() - before.0 - before.1;
    if refused > 0 {
        return Ok(refused);
    }
    let unknown: String = unknown.into_iter().collect();
    Err(format!("the copy does not compile, and no mutant is to blame:\n{unknown}{}", String::from_utf8_lossy(&run.stderr)))
}

/// Finds who an error is about; false if nobody.
fn blame(error: &Value, tree: &Path, left: &mut Left) -> Result<bool, String> {
    let mut spans: Vec<&Value> = error["spans"].as_array().into_iter().flatten().collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    // A function that constants call.
    if error["code"]["code"] == "E0015" {
        let text = error["message"].as_str().unwrap_or_default();
        let name = text.split('`').nth(1).and_then(|path| path.rsplit("::").next()).unwrap_or_default();
        if !name.is_empty() && name != "at" {
            return Ok(left.constant.insert(name.to_owned()));
        }
    }
    let mut found = false;
    for span in spans {
        let file = span["file_name"].as_str().unwrap_or_default();
        let (Some(start), Some(end)) = (span["byte_start"].as_u64(), span["byte_end"].as_u64()) else { continue };
        let text = std::fs::read_to_string(tree.join(file)).map_err(|e| format!("{file}: {e}"))?;
        for number in suspects(&text, start as usize, end as usize) {
            left.mutants.entry(number).or_insert(NOT_BUILT);
            found = true;
        }
        // The place itself says more than what else the compiler points at.
        if found {
            break;
        }
    }
    Ok(found)
}

/// The mutants in whose text the place is; else those of the innermost site around it; else those inside of it.
fn suspects(text: &str, start: usize, end: usize) -> Vec<u32> {
    let marks = marks(text);
    let around = |m: &&Mark| m.start <= start && end <= m.end;
    let length = |m: &&Mark| m.end - m.start;
    if let Some(mutant) = marks.iter().filter(|m| !m.site).filter(around).min_by_key(length) {
        return vec![mutant.number];
    }
    let of = |site: &Mark| marks.iter().filter(|m| !m.site && m.of == site.number).map(|m| m.number).collect();
    if let Some(site) = marks.iter().filter(|m| m.site).filter(around).min_by_key(length) {
        return of(site);
    }
    let inside = marks.iter().filter(|m| m.site && start <= m.start && m.end <= end).max_by_key(length);
    inside.map_or_else(Vec::new, of)
}

struct Mark {
    site: bool,
    number: u32,
    /// The site around a mutant.
    of: u32,
    start: usize,
    end: usize,
}

/// What the comments mark.
fn marks(text: &str) -> Vec<Mark> {
    let (mut marks, mut sites, mut open) = (Vec::new(), Vec::<(u32, usize)>::new(), Vec::<(u32, usize)>::new());
    for (at, _) in text.match_indices("/*") {
        let Some((word, _)) = text[at + 2..].split_once("*/") else { continue };
        let number = |digits: &str| digits.parse::<u32>().ok();
        if let Some(n) = word.strip_prefix('[').and_then(number) {
            sites.push((n, at));
        } else if let Some(n) = word.strip_prefix('<').and_then(number) {
            open.push((n, at));
        } else if word.strip_suffix(']').and_then(number).is_some() {
            let Some((number, start)) = sites.pop() else { continue };
            marks.push(Mark { site: true, number, of: number, start, end: at });
        } else if word.strip_suffix('>').and_then(number).is_some() {
            let (Some((number, start)), Some(&(of, _))) = (open.pop(), sites.last()) else { continue };
            marks.push(Mark { site: false, number, of, start, end: at });
        }
    }
    marks
}
