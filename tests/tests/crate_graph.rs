//! Dependencies point one way: executors and tests know the kernel, the kernel knows nobody and needs no std.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

fn manifest(folder: &str) -> Table {
    let path = root().join(folder).join("Cargo.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The dependency tables of a manifest, those for single targets included: the name of the table, and what is in it.
fn dependency_tables(manifest: &Table) -> Vec<(String, Table)> {
    let mut tables = Vec::new();
    let mut add = |prefix: &str, table: &Table| {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            if let Some(Value::Table(dependencies)) = table.get(kind) {
                tables.push((format!("{prefix}{kind}"), dependencies.clone()));
            }
        }
    };
    add("", manifest);
    if let Some(Value::Table(targets)) = manifest.get("target") {
        for (target, table) in targets {
            add(&format!("target.{target}."), table.as_table().expect("a target holds tables"));
        }
    }
    tables
}

fn members() -> BTreeMap<String, Table> {
    let workspace = manifest("");
    let folders = workspace["workspace"]["members"].as_array().expect("members").iter().map(|m| m.as_str().expect("a folder").to_owned());
    folders
        .map(|folder| {
            let manifest = manifest(&folder);
            (manifest["package"]["name"].as_str().expect("a name").to_owned(), manifest)
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("cpp-sched", &[][..]),
        ("cpp-exec-mock", &["cpp-sched"]),
        ("cpp-exec-cuda", &["cpp-sched", "cpp-exec-mock"]),
        ("cpp-sched-tests", &["cpp-sched", "cpp-exec-mock", "cpp-exec-cuda"]),
        ("cpp-sched-fuzz", &["cpp-sched", "cpp-sched-tests"]),
    ]);
    let members = members();
    assert_eq!(members.keys().map(String::as_str).collect::<BTreeSet<_>>(), allowed.keys().copied().collect());
    for (name, manifest) in &members {
        for (table, dependencies) in dependency_tables(manifest) {
            for dependency in dependencies.keys().filter(|dependency| members.contains_key(*dependency)) {
                assert!(allowed[name.as_str()].contains(&dependency.as_str()), "{name} must not know {dependency} ({table})");
            }
        }
    }
}

#[test]
fn the_kernel_needs_little_and_no_std() {
    let kernel = manifest("cpp-sched");
    let workspace = manifest("");
    let shared = workspace["workspace"]["dependencies"].as_table().expect("shared dependencies");
    // postcard: the binary form of journals, behind the feature `journal`.
    let known = ["hashbrown", "smallvec", "siphasher", "serde", "postcard"];
    for (table, dependencies) in dependency_tables(&kernel) {
        if table.ends_with("dev-dependencies") {
            continue;
        }
        for (name, dependency) in &dependencies {
            assert!(known.contains(&name.as_str()), "{name} is new in {table}: is it small, audited and no_std?");
            assert_eq!(dependency.get("workspace").and_then(Value::as_bool), Some(true), "{name} takes its version from the workspace");
            assert_eq!(shared[name]["default-features"].as_bool(), Some(false), "{name} comes without its default features");
            let features = [dependency.get("features"), shared[name].get("features")].into_iter().flatten().filter_map(Value::as_array);
            assert!(features.flatten().all(|feature| feature.as_str() != Some("std")), "{name} is asked for std");
        }
    }
    let source = std::fs::read_to_string(root().join("cpp-sched/src/lib.rs")).expect("the kernel's lib.rs");
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(source.contains(attribute), "the kernel has lost {attribute}");
    }
    assert!(!source.contains("extern crate std"), "the kernel pulls std");
}

#[test]
fn features_of_the_kernel_only_add() {
    let kernel = manifest("cpp-sched");
    let features = kernel["features"].as_table().expect("features");
    assert_eq!(features["default"].as_array().map(Vec::len), Some(0), "nothing is on by default");
    for (name, enables) in features {
        for feature in enables.as_array().expect("a list").iter().filter_map(Value::as_str) {
            assert!(!feature.ends_with("/std") || name == "std", "feature {name} pulls {feature}");
        }
    }
}

#[test]
fn the_fuzzer_is_built_by_name_only() {
    let workspace = manifest("");
    let default = workspace["workspace"]["default-members"].as_array().expect("default members");
    assert!(default.iter().all(|member| member.as_str() != Some("fuzz")), "fuzz needs a C++ runtime");
    assert_eq!(default.len() + 1, workspace["workspace"]["members"].as_array().expect("members").len());
}
