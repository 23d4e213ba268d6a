#!/usr/bin/env bash
# the crates package, each builds from what was packaged, and docs.rs is told to document all features
source "$(dirname "$0")/../lib.sh"

crates=(cpp-sched cpp-exec-mock cpp-exec-cuda)
# Cargo unpacks what it packages for the build of the next crate, and keeps it by path and version: of an earlier run it would build on the old sources.
for crate in "${crates[@]}"; do
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/"$crate"-[0-9]*
done
# All at once, so that one finds the other before either is published.
run cargo package --quiet --locked --allow-dirty "${crates[@]/#/-p}"
for crate in "${crates[@]}"; do
    files=$(cargo package --quiet --locked --allow-dirty -p "$crate" --list)
    for file in LICENSE-MIT LICENSE-APACHE README.md; do
        grep -qxF "$file" <<<"$files" || { echo "the package $crate lacks $file"; exit 1; }
    done
    grep -qxF 'all-features = true' "$crate/Cargo.toml" || { echo "$crate/Cargo.toml lacks [package.metadata.docs.rs] all-features = true"; exit 1; }
done
cargo package --quiet --locked --allow-dirty -p cpp-sched --list | grep -qxF examples/minimal.rs || { echo "the package lacks its example"; exit 1; }
