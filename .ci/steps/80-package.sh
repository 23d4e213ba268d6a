#!/usr/bin/env bash
# the crates package, and build from what was packaged
source "$(dirname "$0")/../lib.sh"

run cargo package --quiet --locked --allow-dirty -p cpp-sched --target-dir target/ci/package
for file in LICENSE-MIT LICENSE-APACHE README.md examples/minimal.rs; do
    cargo package --quiet --locked --allow-dirty -p cpp-sched --list | grep -qxF "$file" || { echo "the package lacks $file"; exit 1; }
done
