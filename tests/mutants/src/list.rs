//! The mutants as `cargo mutants --list --json` names them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde_json::{Value, json};

use crate::Left;

/// The state of a mutant that the compiler refuses.
pub const NOT_BUILT: &str = "not built";

/// One mutant.
pub struct Mutant {
    /// Its place in the list, from 1.
    pub number: u32,
    pub file: String,
    /// `BinaryOperator`, `FnValue` and so on.
    pub genre: String,
    /// What stands in the span instead.
    pub replacement: String,
    pub function: String,
    pub name: String,
    /// Bytes of the file.
    pub span: Range<usize>,
}

/// Reads the list, and the files that it names for where their lines begin.
pub fn read(path: &Path) -> Result<Vec<Mutant>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let list: Vec<Value> = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut sources = BTreeMap::<String, String>::new();
    let mut mutants = Vec::with_capacity(list.len());
    for (value, number) in list.iter().zip(1..) {
        let field = |name: &str| value[name].as_str().map(str::to_owned).ok_or_else(|| format!("mutant {number} has no {name}"));
        let file = field("file")?;
        if !sources.contains_key(&file) {
            let source = std::fs::read_to_string(&file).map_err(|e| format!("{file}: {e}"))?;
            sources.insert(file.clone(), source);
        }
        let place = |end: &str| {
            let at = |axis: &str| value["span"][end][axis].as_u64().map(|n| n as usize);
            byte(&sources[&file], at("line")?, at("column")?)
        };
        let (Some(start), Some(end)) = (place("start"), place("end")) else {
            return Err(format!("mutant {number}: its span is not in {file}: make the list anew"));
        };
        mutants.push(Mutant {
            number,
            genre: field("genre")?,
            replacement: field("replacement")?,
            function: value["function"]["function_name"].as_str().unwrap_or_default().to_owned(),
            name: field("name")?,
            span: start..end,
            file,
        });
    }
    Ok(mutants)
}

/// Lines and columns are counted from 1, columns in characters.
fn byte(source: &str, line: usize, column: usize) -> Option<usize> {
    let text = source.split_inclusive('\n').nth(line.checked_sub(1)?)?;
    let before = text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(column.checked_sub(1)?)?;
    Some(text.as_ptr() as usize - source.as_ptr() as usize + before)
}

/// Every mutant with its state, for the runner.
pub fn write(path: &Path, mutants: &[Mutant], left: &Left, sites: &BTreeMap<u32, u32>) -> Result<(), String> {
    let state = |m: &Mutant| left.mutants.get(&m.number).copied().unwrap_or("built");
    let list: Vec<Value> = mutants
        .iter()
        .map(|m| {
            let site = sites.get(&m.number);
            json!({ "number": m.number, "file": m.file, "function": m.function, "name": m.name, "genre": m.genre, "state": state(m), "site": site })
        })
        .collect();
    let mut counts = BTreeMap::<&str, usize>::new();
    for mutant in mutants {
        *counts.entry(state(mutant)).or_default() += 1;
    }
    println!("{} mutants: {counts:?}", mutants.len());
    let all = json!({ "mutants": list, "constant": left.constant });
    std::fs::write(path, all.to_string()).map_err(|e| format!("{}: {e}", path.display()))
}

/// What an earlier run with the same list left out.
pub fn read_left(path: &Path, mutants: &[Mutant]) -> Left {
    let mut left = Left::default();
    let before = std::fs::read_to_string(path).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or_default();
    let list = before["mutants"].as_array().map_or(&[][..], Vec::as_slice);
    if list.len() != mutants.len() || list.iter().zip(mutants).any(|(value, m)| value["name"] != m.name.as_str()) {
        return left;
    }
    left.constant.extend(before["constant"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned));
    let refused = list.iter().zip(mutants).filter(|(value, _)| value["state"] == NOT_BUILT);
    left.mutants.extend(refused.map(|(_, m)| (m.number, NOT_BUILT)));
    left
}
