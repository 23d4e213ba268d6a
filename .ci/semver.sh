#!/usr/bin/env bash
# The kernel against the last tag: what has changed must be what its version may change (cargo-semver-checks). Without a tag there is nothing to
# compare with, and the last line says so.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || tag=
if [ -z "$tag" ]; then
    echo "left out: no tag like v0.1.0 yet, so nothing has been promised"
    exit 0
fi
need_cargo cargo-semver-checks cargo-semver-checks 0.51.0
run cargo semver-checks --package cpp-sched --all-features --baseline-rev "$tag"
