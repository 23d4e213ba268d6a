#!/usr/bin/env bash
# The kernel against the last tag: what has changed must be what its version may change (cargo-semver-checks).
#
#   bash .ci/semver.sh             uses cargo-semver-checks if it is installed
#   bash .ci/semver.sh --install   installs it first: part of a release (CONTRIBUTING.md), since building it takes long
#
# Where there is no tag, or no tool, nothing is compared, and the last line says so.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tag=$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || tag=
if [ -z "$tag" ]; then
    echo "left out: no tag like v0.1.0 yet, so nothing has been promised"
    exit 0
fi
[ "${1-}" = --install ] && need_cargo cargo-semver-checks cargo-semver-checks 0.51.0
if ! command -v cargo-semver-checks >/dev/null; then
    echo "left out: cargo-semver-checks is not installed here (bash .ci/semver.sh --install builds it, some minutes)"
    exit 0
fi
# The compiler that writes both descriptions is this one; the tool reads what stable compilers write.
run cargo semver-checks --package cpp-sched --all-features --baseline-rev "$tag"
