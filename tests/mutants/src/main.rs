//! All mutants of the kernel in one build (*mutant schemata*).
//!
//! `cargo mutants` builds the kernel anew for each of its 7,000 mutants: 60 hours. Here the mutants that it lists stand side by side in one
//! copy of the tree. Where `a + b` could become `a - b` or `a * b`, the copy has a choice between the three, and the environment variable
//! `CPP_MUTANT` says which mutant is alive; without it the copy does what the original does.
//!
//! ```sh
//! cargo mutants --list --json > target/mutants/list.json
//! cargo run --manifest-path tests/mutants/Cargo.toml -- target/mutants/list.json target/mutants/tree
//! ```
//!
//! Writes the copy with its `mutants.json`: every mutant with its number and state (`built`, or why not). `tests/mutants/run.py` runs them.

mod check;
mod list;
mod render;
mod sites;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use list::Mutant;

/// What the copy leaves out of what was asked for, and why.
#[derive(Default)]
pub struct Left {
    /// Mutants by number.
    pub mutants: BTreeMap<u32, &'static str>,
    /// Functions that stay `const`, by name, since constants call them.
    pub constant: BTreeSet<String>,
}

/// The crate whose sources are mutated.
const KERNEL: &str = "cpp-sched";

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [list, out] = &arguments[..] else {
        eprintln!("usage: cpp-sched-mutants LIST.json FOLDER, in the repository's root");
        return ExitCode::from(2);
    };
    match run(list, out) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(list: &Path, out: &Path) -> Result<(), String> {
    let mutants = list::read(list)?;
    copy_tree(out)?;
    let results = out.join("mutants.json");
    let mut left = list::read_left(&results, &mutants);
    // Until the copy compiles: what the compiler refuses is left out. First the kernel alone, which is quick; then whoever uses it.
    for everything in [false, true] {
        loop {
            let sites = write_kernel(&mutants, &mut left, out)?;
            list::write(&results, &mutants, &left, &sites)?;
            let refused = check::compile(out, everything, &mut left)?;
            if refused == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Every file under version control, changed where the tests would do useless work. A file that is equal already stays, for cargo's sake.
fn copy_tree(out: &Path) -> Result<(), String> {
    let listed = Command::new("git").args(["ls-files", "-z"]).output().map_err(|e| format!("git ls-files: {e}"))?;
    let names = String::from_utf8(listed.stdout).map_err(|e| format!("git ls-files: {e}"))?;
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let Ok(bytes) = std::fs::read(name) else { continue };
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => adapt(name, text).into_bytes(),
            Err(other) => other.into_bytes(),
        };
        write(&out.join(name), &bytes)?;
    }
    Ok(())
}

fn adapt(name: &str, text: String) -> String {
    match Path::new(name).extension().and_then(|e| e.to_str()) {
        // The choices break lints, not rules of the language.
        Some("toml") => text.replace("missing_docs = \"deny\"\n", ""),
        // A property that fails is not made small and not written down.
        Some("rs") if name.starts_with("tests/") => text
            .replace("max_shrink_iters: 20_000", "max_shrink_iters: 0")
            .replace("failure_persistence: Some(Box::new(seeds))", "failure_persistence: { let _ = seeds; None }"),
        _ => text,
    }
}

fn write_kernel(mutants: &[Mutant], left: &mut Left, out: &Path) -> Result<BTreeMap<u32, u32>, String> {
    let mut sites = BTreeMap::new();
    let files: BTreeSet<&str> = mutants.iter().map(|m| m.file.as_str()).collect();
    for file in files {
        let source = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
        let mine: Vec<&Mutant> = mutants.iter().filter(|m| m.file == file && !left.mutants.contains_key(&m.number)).collect();
        let found = sites::find(&source, &mine, left).map_err(|e| format!("{file}: {e}"))?;
        sites.extend(found.iter().flat_map(|site| site.numbers().map(|number| (number, site.id()))));
        write(&out.join(file), render::render(&source, &found).as_bytes())?;
    }
    let root = format!("{KERNEL}/src/lib.rs");
    let source = std::fs::read_to_string(out.join(&root)).map_err(|e| format!("{root}: {e}"))?;
    if !source.contains("\nmod mutant;") {
        let source = source.replacen("extern crate alloc;", "extern crate alloc;\nextern crate std;\nmod mutant;", 1);
        write(&out.join(&root), source.as_bytes())?;
    }
    write(&out.join(KERNEL).join("src/mutant.rs"), include_bytes!("../mutant.rs"))?;
    Ok(sites)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if std::fs::read(path).is_ok_and(|before| before == bytes) {
        return Ok(());
    }
    let failed = |e| format!("{}: {e}", path.display());
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    std::fs::write(path, bytes).map_err(failed)
}
